# SPDX-License-Identifier: Apache-2.0
"""Steps of a Keras model whose dense part is compiled by XLA.

Lookups and updates of tables stay outside. Between them a single compiled function runs the
forward pass, the loss, the metrics and the backward pass, and the optimizer of the dense variables
if it sees no table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed.layers import step_outputs
from tf_embed.layers.step_outputs import Output
from tf_embed.models.joined_lookups import NotCompiledError, step_of, surveyed
from tf_embed.optimizers.steps import compiled_dense_steps, deferred_updates
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.outer_optimizers import check_beside_own


def train_step(model: keras.Model, data: Any) -> Any:
    """Works as `keras.Model.train_step`.

    Raises:
        NotCompiledError: If the dense part can't be compiled. Nothing is changed then.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape(persistent=True) as tape:
        outputs = _outputs(model, x, training=True)
    values = [output.value for output in outputs]
    variables, optimizer = model.trainable_variables, model.optimizer
    anchors = [one for one in variables if isinstance(one, Anchor)]
    dense = [one for one in variables if not isinstance(one, Anchor)]
    if any(one is not None for one in tape.gradient(values, dense)):
        raise NotCompiledError("weights of ids depend on variables")
    # An optimizer that trains tables too needs all gradients at once.
    trains_tables = getattr(optimizer, "trains_dynamic_tables", False)
    if not trains_tables:
        for anchor in anchors:  # the optimizer itself sees none of them
            if anchor.own_trainer is not None:
                check_beside_own(optimizer, anchor.table_name)
    if not optimizer.built:
        optimizer.build(variables)
    num_rows = _num_rows(x)

    def dense_part() -> Any:
        rows = list(map(tf.identity, values))
        with tf.GradientTape() as dense_tape:
            dense_tape.watch(rows)
            given = [Output(output.layer, one) for output, one in zip(outputs, rows, strict=True)]
            y_pred, loss = _forward(model, given, x, y, sample_weight, training=True)
            scaled = optimizer.scale_loss(loss)
        of_rows, of_dense = dense_tape.gradient(scaled, [rows, dense])
        if not trains_tables and any(one is not None for one in of_dense):
            optimizer.apply(of_dense, dense)
            of_dense = None
        _track(model, loss, num_rows)
        logs = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return logs, of_rows, of_dense

    logs, of_rows, of_dense = _compiled(dense_part)
    pairs = [pair for pair in zip(values, of_rows, strict=True) if pair[1] is not None]
    used, upstream = zip(*pairs, strict=True) if pairs else ((), ())
    of_anchors = tape.gradient(list(used), anchors, output_gradients=list(upstream))
    if of_dense is None:
        # As the optimizer does in the other case.
        for anchor, gradient in zip(anchors, of_anchors, strict=True):
            if gradient is not None:
                anchor.assign(gradient)
    else:
        with compiled_dense_steps():
            optimizer.apply([*of_dense, *of_anchors], [*dense, *anchors])
    return logs


def test_step(model: keras.Model, data: Any) -> Any:
    """Works as `keras.Model.test_step`; see `train_step`."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    outputs, num_rows = _outputs(model, x, training=False), _num_rows(x)

    def dense_part() -> Any:
        y_pred, loss = _forward(model, outputs, x, y, sample_weight, training=False)
        _track(model, loss, num_rows)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return _compiled(dense_part)


def predict_step(model: keras.Model, data: Any) -> Any:
    """Works as `keras.Model.predict_step`; see `train_step`."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    outputs = _outputs(model, x, training=False)

    def dense_part() -> Any:
        with step_outputs.given(outputs):
            return _call(model, x, training=False)

    return _compiled(dense_part)


def why_not(step: Callable[[keras.Model, Any], Any], model: keras.Model, data: Any) -> str | None:
    """The reason for which XLA can't compile a step, found in a graph that never runs; or None."""
    reasons: list[str] = []

    def traced() -> None:
        # An error must not leave the trace, which would not initialize the variables that it made.
        # The updates of this trace are not of the step around it.
        try:
            with deferred_updates():
                step(model, data)
        except NotCompiledError as error:
            reasons.append(str(error))

    tf.function(traced, autograph=False).get_concrete_function()
    return reasons[0] if reasons else None


def _compiled(dense_part: Callable[[], Any]) -> Any:
    """The result of the dense part, compiled by XLA."""
    function = tf.function(dense_part, jit_compile=True, autograph=False)
    graph = function.get_concrete_function().graph
    if any(tensor.dtype == tf.string for tensor in graph.inputs):
        raise NotCompiledError("the dense part reads strings")
    if any(op.type.startswith("TfEmbed") for op in graph.get_operations()):
        raise NotCompiledError("a lookup is outside of the layers of the model's call")
    return function()


def _outputs(model: keras.Model, x: Any, training: bool) -> list[Output]:
    """The outputs of the layers with tables, in the order of their calls."""
    if tf.distribute.has_strategy():
        raise NotCompiledError("replicas of a strategy share the tables")
    graph = tf.compat.v1.get_default_graph()
    with step_of(model):
        surveyed(lambda: _call(model, x, training))
        # Nothing else of this call is used. In the scope, it leaves the model's state as it is.
        with keras.StatelessScope(), step_outputs.collected() as collection:
            _call(model, x, training)
    for output in collection.outputs:
        if not isinstance(output.value, tf.Tensor):
            raise NotCompiledError(f"the output of {output.layer.name!r} is not a tensor")
        if output.graph is not graph:
            raise NotCompiledError(f"{output.layer.name!r} is called in a loop or a condition")
    return collection.outputs


def _forward(
    model: keras.Model,
    outputs: Sequence[Output],
    x: Any,
    y: Any,
    sample_weight: Any,
    training: bool,
) -> Any:
    """The predictions and the loss."""
    with step_outputs.given(outputs):
        y_pred = _call(model, x, training)
    arguments = {"x": x, "y": y, "y_pred": y_pred, "sample_weight": sample_weight}
    # A model of Keras 2 may lack the argument.
    if "training" in inspect.signature(model.compute_loss).parameters:
        arguments["training"] = training
    return y_pred, model.compute_loss(**arguments)


def _track(model: keras.Model, loss: tf.Tensor, num_rows: tf.Tensor) -> None:
    """Adds a loss to the mean that Keras reports, if the model has it."""
    for metric in model.metrics:
        if metric.name == "loss":
            metric.update_state(loss, sample_weight=num_rows)
            return


def _num_rows(x: Any) -> tf.Tensor:
    # Outside of XLA, which takes no strings.
    return tf.shape(next(one for one in keras.tree.flatten(x) if one is not None))[0]


def _call(model: keras.Model, x: Any, training: bool) -> Any:
    takes_training = "training" in inspect.signature(model.call).parameters
    return model(x, training=training) if takes_training else model(x)

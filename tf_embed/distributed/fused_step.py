# SPDX-License-Identifier: Apache-2.0
"""Steps of a Keras model whose tables share the exchanges between workers.

A single table needs five collectives a step: three for its lookups and two for its gradients. Here
all tables of a functional model together need five. Pooling bags on the workers that own the rows
takes another collective. The ids of the layers are functions of the model's inputs, so they are
known when the model is called. A custom training loop passes the ids of several layers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed.layers.layer_with_tables import LayerWithTables
from tf_embed.optimizers.steps import deferred_updates
from tf_embed.sharded import recorded_lookups
from tf_embed.sharded.worker_lookups import look_up
from tf_embed.validation import flag, items_of, shown


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step of a functional model.

    Attributes:
        layers: Its layers with sharded tables, each with the number of its input tensors.
        ids_model: A model that computes these tensors.
        training: Whether layers are called as in training.
    """

    model: keras.Model
    layers: list[tuple[LayerWithTables, int]]
    ids_model: keras.Model
    training: bool


# Per thread, because several models may train in the same process.
class _Local(threading.local):
    step: _Step | None = None


_local = _Local()

# Layers whose lookups are in the layer's own tf.functions.
_look_up_apart: weakref.WeakSet[keras.layers.Layer] = weakref.WeakSet()


def fused_step(
    model: keras.Model, step: Callable[[Any], Any], training: bool
) -> Callable[[Any], Any]:
    """Returns a step that combines the lookups and the updates of all tables.

    Args:
        model: The model, whose calls are within `fused_call`. If it is not functional, each of its
            tables looks up by itself.
        step: The step, a function of a batch.
        training: Whether layers are called as in training.
    """
    ids_of_layers = _ids_of_layers(model)

    def fused(data: Any) -> Any:
        before = _local.step
        _local.step = ids_of_layers and _Step(model, *ids_of_layers, training)
        try:
            with deferred_updates():
                return step(data)
        finally:
            _local.step = before

    return fused


@contextlib.contextmanager
def fused_call(model: keras.Model, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
    """Combines the lookups of a model call in the block, if a fused step makes the call.

    Lookups are within the call, not before the step, so that a tape sees them.
    """
    step = _local.step
    if step is None or step.model is not model:
        yield
        return
    inputs = args[0] if args else kwargs["inputs"]
    training = kwargs.get("training")
    if training is None:
        training = step.training
    ids = keras.tree.flatten(step.ids_model(inputs, training=training))
    with recorded_lookups.recorded() as lookups:
        for layer, count in step.layers:
            _record(layer, layer.call_as_in_model, ids[:count], training)
            ids = ids[count:]
    with recorded_lookups.answered(look_up(lookups)):
        yield


def look_up_together(
    calls: Sequence[tuple[Any, ...]], *, training: bool | None = None
) -> list[Any]:
    """Calls several layers, whose tables share the exchanges between workers.

    A single table needs three collectives for a lookup; here all tables together need three. Use it
    in a custom training loop: a `tf_embed.distributed.Model` does the same in its steps. In a
    single process the result equals the result of separate calls.

    Args:
        calls: A tuple of the layer and its arguments for each call, such as `(items, item_ids)`.
            Layers that are called separately: layers without tables on workers, unbuilt layers,
            table-batched layers, and layers that look up in a tf.function that they call.
        training: The argument `training` of each layer, a bool. Default: None, not passed.

    Returns:
        The outputs of the calls, in their order. Gradients flow through them.

    Raises:
        TypeError: If `calls` is not a list, or `training` is not a bool.
        ValueError: If a call is not a tuple of a layer and its arguments.

    Example:
        >>> items = tf_embed.layers.DynamicEmbedding(8, optimizer="adam", name="items")
        >>> users = tf_embed.layers.DynamicEmbedding(4, optimizer="adam", name="users")
        >>> rows = tf_embed.distributed.look_up_together(
        ...     [(items, tf.constant([3, 5])), (users, tf.constant([7, 7]))], training=True
        ... )
        >>> [one.shape.as_list() for one in rows]
        [[2, 8], [2, 4]]
    """
    calls = items_of(calls, "calls")
    for call in calls:
        is_call = isinstance(call, tuple) and len(call) > 1
        if not is_call or not isinstance(call[0], keras.layers.Layer):
            raise ValueError(
                "`calls` must have tuples of a layer and its arguments. Received: "
                f"calls=[..., {shown(call)}, ...]"
            )
    kwargs = {} if training is None else {"training": flag(training, "training")}
    with recorded_lookups.recorded() as lookups:
        for layer, *args in calls:
            # Other layers must be called only once: a second call could change their state.
            if _has_tables_on_workers(layer):
                _record(layer, layer, *args, **kwargs)
    with recorded_lookups.answered(look_up(lookups)):
        return [layer(*args, **kwargs) for layer, *args in calls]


def _record(layer: keras.layers.Layer, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Records the lookups of a layer's call, except lookups in the layer's own tf.function."""
    if layer not in _look_up_apart and not recorded_lookups.call_to_record(call, *args, **kwargs):
        # The next time, the tf.function has a trace, and recording would run its exchanges.
        _look_up_apart.add(layer)


def _ids_of_layers(
    model: keras.Model,
) -> tuple[list[tuple[LayerWithTables, int]], keras.Model] | None:
    """Returns the layers with sharded tables, and a model that computes their input tensors.

    Each layer is paired with the number of its input tensors. The result is None without such
    layers.

    A layer is left out if it is called several times, or if its ids are computed within another
    model. It is also left out if its id weights depend on variables: the model of the inputs may
    change a state, such as the seed of a Dropout.
    """
    layers, ids = [], []
    inputs = _inputs_of(model)
    for layer in model.layers if inputs is not None else ():
        if not _has_tables_on_workers(layer):
            continue
        try:
            of_layer = keras.tree.flatten(layer.input)
            has_variables = bool(keras.Model(inputs, of_layer).variables)
        except (AttributeError, ValueError):
            continue  # left out of the fused step: the layer exchanges its ids itself
        if has_variables and any(tf.as_dtype(one.dtype).is_floating for one in of_layer):
            continue
        layers.append((layer, len(of_layer)))
        ids += of_layer
    return (layers, keras.Model(inputs, ids)) if layers else None


def _inputs_of(model: keras.Model) -> Any:
    """Returns the inputs of a functional or sequential model, or None for another model.

    They have the structure of a call's argument, such as a dict. Its keys may differ from the names
    of the inputs.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or isinstance(model, keras.Sequential):
        return inputs or None  # a Sequential's `input` is a call's input
    try:
        return model.input
    except (AttributeError, ValueError):
        return None  # a subclass with an attribute of this name


def _has_tables_on_workers(layer: keras.layers.Layer) -> bool:
    if not isinstance(layer, LayerWithTables) or not layer.built:
        return False
    return any(table.spread.is_collective for table in layer.looked_up_tables)

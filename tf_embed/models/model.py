# SPDX-License-Identifier: Apache-2.0
"""`Model`: a Keras model whose tables step together, and whose dense part XLA compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tf_embed.layers import step_outputs
from tf_embed.models import compiled_step, joined_lookups
from tf_embed.models.step_report import StepReport
from tf_embed.models.table_lines import print_tables
from tf_embed.optimizers.steps import deferred_updates, make_deferred_updates
from tf_embed.variable.anchor import tables_of

Step = Callable[..., Any]


class ModelWithTables:
    """A mixin for `keras.Model`: `class MyModel(ModelWithTables, keras.Model)`. See `Model`.

    Example:
        >>> import keras, tf_embed
        >>> class Ratings(tf_embed.ModelWithTables, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.items = tf_embed.layers.DynamicEmbedding(4, optimizer="adagrad")
        ...     def call(self, ids):
        ...         return self.items(ids)
        >>> Ratings().compile("adam", "mse", jit_compile=True)
    """

    _compiles_dense_part = False
    _report = StepReport()
    # Attributes of `keras.Model`.
    name: str
    built: bool
    jit_compile: Any
    optimizer: Any
    trainable_variables: list[Any]

    # --- Methods that the user calls --------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.compile`.

        Args:
            *args: The arguments of `keras.Model.compile`.
            **kwargs: The same. `jit_compile` says whether XLA compiles the dense part of a step. By
                default, "auto", it does if Keras would compile the model without its tables: if
                there is a GPU, all layers support XLA, and there is no strategy.
        """
        # Keras decides. It must not compile the whole step, because XLA has no tables.
        with step_outputs.for_xla():
            super().compile(*args, **kwargs)  # type: ignore[misc]
            self._compiles_dense_part = self.jit_compile
        self.jit_compile = False
        self._report = StepReport()

    def step_report(self) -> StepReport:
        """Reports what a step does together, once `fit`, `evaluate` or `predict` has made a step.

        Returns:
            A report to print: whether the dense part is compiled, which lookups are made together,
            and the reasons for which others are not.

        Example:
            >>> import keras, tensorflow as tf, tf_embed
            >>> inputs = keras.Input([2], dtype="int64")
            >>> rows = tf_embed.layers.DynamicEmbedding(4, optimizer="adam", name="items")(inputs)
            >>> model = tf_embed.Model(inputs, keras.layers.Dense(1)(rows))
            >>> model.compile("adam", "mse", jit_compile=False)
            >>> _ = model.predict(tf.constant([[1, 2]]), verbose=0)
            >>> model.step_report().compiled
            False
        """
        return self._report

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints Keras's summary, and a line for each table as `tf_embed.print_tables`.

        Args:
            *args: The arguments of `keras.Model.summary`.
            **kwargs: The same.

        Example:
            >>> import keras, tf_embed
            >>> inputs = keras.Input([2], dtype="int64")
            >>> outputs = tf_embed.layers.DynamicEmbedding(4, name="items")(inputs)
            >>> texts = []
            >>> tf_embed.Model(inputs, outputs).summary(print_fn=texts.append)
            >>> texts[1].splitlines()[2].split()[:4]
            ['items', '0', '4', '0']
        """
        super().summary(*args, **kwargs)  # type: ignore[misc]
        if tables_of(self):
            print_tables(self, print_fn=args[2] if len(args) > 2 else kwargs.get("print_fn"))

    # --- Methods that Keras calls -----------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model as Keras does. Within a step, its tables look up together."""
        make_deferred_updates()
        call = super().__call__  # type: ignore[misc]
        with joined_lookups.joined(self, lambda: call(*args, **kwargs)) as found:
            if found:
                self._report = self._report.with_lookups(found)
            return call(*args, **kwargs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """As `keras.Model.compute_metrics`, after the updates of tables."""
        make_deferred_updates()
        return super().compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[misc]

    def train_step(self, data: Any) -> Any:
        """As `keras.Model.train_step`, in which all tables are updated together."""
        with deferred_updates():
            return self._step(compiled_step.train_step, super().train_step, data)  # type: ignore[misc]

    def test_step(self, data: Any) -> Any:
        """As `keras.Model.test_step`."""
        return self._step(compiled_step.test_step, super().test_step, data)  # type: ignore[misc]

    def predict_step(self, data: Any) -> Any:
        """As `keras.Model.predict_step`."""
        return self._step(compiled_step.predict_step, super().predict_step, data)  # type: ignore[misc]

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As `keras.Model.compile_from_config`, which refuses a model with a `compile` of its own.

        Args:
            config: The result of `get_compile_config`.
        """
        if type(self).compile is not ModelWithTables.compile:
            super().compile_from_config(config)  # type: ignore[misc]
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    # --- Helpers ----------------------------------------------------------------------------------

    def _step(self, compiled: Step, step: Step, data: Any) -> Any:
        with joined_lookups.step_of(self):
            reason = self._why_not_compiled(compiled, data)
            self._report = self._report.with_compiled(reason)
            return compiled(self, data) if reason is None else step(data)

    def _why_not_compiled(self, compiled: Step, data: Any) -> str | None:
        if not self._compiles_dense_part:
            return "`jit_compile` is off, or a layer does not support XLA"
        if tf.executing_eagerly():
            return "it runs eagerly"
        reason = compiled_step.why_not(compiled, self, data)
        if reason is not None:  # the step is the same without XLA, only slower
            logging.warning("%r is not compiled by XLA: %s.", self.name, reason)
        return reason


@keras.saving.register_keras_serializable(package="tf_embed")
class FunctionalModel(ModelWithTables, keras.Model):
    """The class of `Model(inputs, outputs)`. Keras adds its functional model to the bases."""


class Model(ModelWithTables, keras.Model):
    """A `keras.Model` whose tables step together, and whose dense part XLA compiles.

    Use it as `keras.Model`: `Model(inputs, outputs)`, or as a base class. Everything is Keras's:
    `compile`, `fit`, callbacks, `train_on_batch`, `steps_per_execution`, saving, export. Rows,
    slots, statistics and losses equal a `keras.Model` to the last bit, unless XLA rounds the dense
    part in another way. In a step

    *   all lookups whose ids are functions of the inputs are made together, and so are all updates
        of tables;
    *   with `jit_compile`, XLA compiles the forward and the backward pass of the dense part, the
        loss, the metrics, and the optimizer of dense variables. Lookups and updates of tables are
        outside. Keras itself compiles no model with tables.

    Python code of the model's `call` runs several times when a step is traced. A subclass that
    overrides `train_step` steps by it, and nothing is compiled. `Model(inputs, outputs)` is an
    instance of `ModelWithTables`, not of this class.

    Raises:
        TypeError: If a subclass passes `inputs` and `outputs` to this class.

    Example:
        >>> import keras, tensorflow as tf, tf_embed
        >>> inputs = keras.Input([2], dtype="int64")
        >>> rows = tf_embed.layers.DynamicEmbedding(4, optimizer="adam", name="items")(inputs)
        >>> outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
        >>> model = tf_embed.Model(inputs, outputs)
        >>> model.compile("adam", "mse", jit_compile=True)
        >>> ids, labels = tf.constant([[1, 2], [3, 2]]), tf.constant([[0.0], [1.0]])
        >>> history = model.fit(ids, labels, verbose=0)
        >>> model.step_report().compiled
        True
    """

    # Of this class alone: the class of its functional models, and the mixin for others.
    _functional: type = FunctionalModel
    _mixin = "tf_embed.ModelWithTables"

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a functional model if `inputs` and `outputs` are given."""
        functional = vars(cls).get("_functional")  # a subclass has none
        if functional is not None and _is_functional(args, kwargs):
            return functional(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any):
        if _is_functional(args, kwargs):
            # Keras would change the bases of this class, which all other subclasses share.
            raise TypeError(
                f"{type(self).__name__} must not pass `inputs` and `outputs` to its base class: "
                f"make it class ...({self._mixin}, keras.Model)."
            )
        super().__init__(*args, **kwargs)


def _is_functional(args: Any, kwargs: Any) -> bool:
    """Whether the arguments of a model are `inputs` and `outputs`."""
    names = {"inputs", "outputs"} & set(kwargs)
    return len(args) + len(names) >= 2 or bool(names)

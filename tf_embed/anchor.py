"""The Keras variable that stands for a table where Keras wants a variable.

It has the shape (0, dim), so it counts no parameters and saves nothing. Its value goes into each
lookup, so `tape.gradient` finds it and gives, for it, the gradients of the rows at their keys: a
tf.IndexedSlices. From there two ways lead into the table:

- `tf_embed.DynamicEmbeddingOptimizer` hands the slices to `update` with its own rule.
- Any other Keras optimizer sees `overwrite_with_gradient` and assigns the gradient to the
  variable instead of updating it, so `assign` runs a step of the table's own optimizer.

Keras passes the second way's optimizer nowhere, so what it does to gradients on the way, clipping
and weight decay, does not reach the table. What would make rows wrong is refused.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tf_embed import ops, snapshot
from tf_embed.table import Table


class Trainer(Protocol):
    """An optimizer as a table sees it; `optimizers/rules.py` has it."""

    @property
    def rule(self) -> str:
        """Name of the rule."""

    def hyper(self, variable: Any) -> tf.Tensor:
        """Hyper-parameters of this step, float64 vector."""

    def step(self) -> tf.Tensor:
        """Number of this step, from 1; int64 scalar."""

    def advance(self) -> None:
        """Goes to the next step."""


class Anchor(keras.Variable):
    """The variable of shape (0, dim) through which a table is trained.

    Args:
        table: The table.
        trainable: Whether it is trained; as in any Keras variable, it may change later.
        name: Name of the variable.
    """

    def __init__(self, table: Table, trainable: bool = True, name: str = "embeddings") -> None:
        options = table.options
        super().__init__(
            initializer="zeros",
            shape=(0, options.dim),
            dtype=options.value_dtype.name,
            trainable=trainable,
            autocast=False,
            name=name,
        )
        self._table = table
        self.own_trainer: Trainer | None = None

    @property
    def table(self) -> Table:
        """The table it stands for."""
        return self._table

    @property
    def table_name(self) -> str:
        """The name that messages use."""
        return self._table.options.name

    @property
    def overwrite_with_gradient(self) -> bool:
        """True: a Keras optimizer assigns the gradient, and makes no slots.

        Raises:
            ValueError: The Keras optimizer that asks can't train this table.
        """
        for optimizer in calling_optimizers():
            self._check_outer_optimizer(optimizer)
        return True

    def numpy(self) -> np.ndarray:
        """An array of shape (0, dim) that carries the rows, for `get_weights`.

        Raises:
            ValueError: keras.callbacks.OrbaxCheckpoint asks, which would drop the rows.
        """
        if any(_is_orbax_checkpoint(frame.f_locals.get("self")) for frame in _callers()):
            raise ValueError(
                f"keras.callbacks.OrbaxCheckpoint does not save the rows of {self.table_name!r}: "
                "use keras.callbacks.ModelCheckpoint or tf.train.CheckpointManager."
            )
        return snapshot.take(self._table)

    def __array__(self, dtype: Any = None) -> np.ndarray:
        """A plain array of shape (0, dim).

        Raises:
            ValueError: A Keras layer that is no DynamicEmbedding wants to write it to a file,
                which would drop the rows.
        """
        if any(frame.f_code.co_name == "save_own_variables" for frame in _callers()):
            raise ValueError(
                f"The rows of {self.table_name!r} are not saved in Keras files with a layer that "
                "has its anchor as a weight: use a tf_embed.layers.DynamicEmbedding in the layer, "
                "or save with tf.train.Checkpoint."
            )
        return super().__array__(dtype)

    def assign(self, value: Any) -> Any:
        """Takes a gradient, or the rows of a table.

        Args:
            value: tf.IndexedSlices, a gradient: one step of the table's own optimizer. What
                `numpy` gave, as in `set_weights`, or another anchor: its rows.

        Returns:
            The value.

        Raises:
            ValueError: The gradient is a tensor, so its keys are lost; the table has no optimizer
                of its own; or there are no rows with the value, or rows of another kind of table.
        """
        if isinstance(value, tf.IndexedSlices):
            if self.own_trainer is None:
                raise ValueError(self._no_optimizer())
            if self.trainable:
                self.update(value, self.own_trainer)
                self.own_trainer.advance()
            return value
        if isinstance(value, tf.Tensor):
            self.check_gradient(value)
        snapshot.put(self._table, value.numpy() if isinstance(value, Anchor) else value)
        return value

    def update(self, gradient: Any, trainer: Trainer) -> None:
        """Runs one step of an optimizer on the rows that a gradient names.

        Args:
            gradient: tf.IndexedSlices, values [n, dim] and the keys as indices [n].
            trainer: The optimizer. It does not advance.

        Raises:
            ValueError: The gradient is none, or this is a replica of several.
        """
        slices = self.check_gradient(gradient)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"The table of {self.table_name!r} can't be trained by several replicas yet: use "
                f"one. Received: a tf.distribute strategy with {replicas} replicas"
            )
        options = self._table.options
        self._table.apply(
            ops.keys_of(slices, options.key_dtype),
            tf.cast(slices.values, options.value_dtype),
            rule=trainer.rule,
            hyper=trainer.hyper(self),
            step=trainer.step(),
        )

    def check_gradient(self, gradient: Any) -> tf.IndexedSlices:
        """The gradient, where it is one of rows.

        Raises:
            ValueError: It is dense, so its keys are lost.
        """
        if isinstance(gradient, tf.IndexedSlices):
            return gradient
        raise ValueError(
            f"The gradient of {self.table_name!r} must be a tf.IndexedSlices, whose indices are "
            "the keys; a dense one has lost them. It becomes dense where it is added to a tensor "
            f"or leaves a loop such as tf.vectorized_map. Received: {gradient!r}"
        )

    # There is nothing in it, but in a SavedModel it is a variable like any other. While Keras
    # builds a model symbolically it has no value yet, and could not be restored by Keras's hooks.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": tf.zeros(self.shape, self.dtype)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> None:
        del restored_tensors

    def _no_optimizer(self) -> str:
        return (
            f"{self.table_name!r} has a dynamic table, which a Keras optimizer can't train by "
            "itself: give the table its own, tf_embed.layers.DynamicEmbedding(..., "
            'optimizer="adam"), or wrap the model\'s, '
            "tf_embed.DynamicEmbeddingOptimizer(optimizer)."
        )

    def _check_outer_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Refuses a Keras optimizer that would leave the table untrained or its rows wrong."""
        if self.own_trainer is None:
            raise ValueError(self._no_optimizer())
        refused = {
            option: value
            for option in ("loss_scale_factor", "gradient_accumulation_steps", "use_ema")
            if (value := getattr(optimizer, option, None))
        }
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            refused["LossScaleOptimizer"] = optimizer.name
        if refused:
            option, value = next(iter(refused.items()))
            raise ValueError(
                f"The optimizer {optimizer.name!r} must not use {option} in a model with a "
                f"dynamic table of its own optimizer, {self.table_name!r}: Keras applies it to "
                f"dense variables only. Received: {option}={value!r}"
            )


def calling_optimizers() -> list[keras.optimizers.Optimizer]:
    """The Keras optimizers in whose methods this call stands, innermost first.

    Keras tells a variable nothing about the optimizer, neither when it asks whether to overwrite
    it nor when it does, so the callers are looked at. Where none is found, nothing is checked.
    """
    found: list[keras.optimizers.Optimizer] = []
    frame = inspect.currentframe()
    for _ in range(12):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.optimizers.Optimizer) and caller not in found:
            found.append(caller)
    return found


def _callers() -> Iterator[types.FrameType]:
    """The frames in which this call stands, innermost first.

    A variable is not told who asks for its value and what for, so these are looked at where an
    answer would drop rows.
    """
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_orbax_checkpoint(caller: Any) -> bool:
    kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)
    return kind is not None and isinstance(caller, kind)

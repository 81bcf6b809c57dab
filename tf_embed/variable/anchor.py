# SPDX-License-Identifier: Apache-2.0
"""The Keras variable that represents a table in Keras.

It has the shape (0, dim), so it counts no parameters and saves nothing. Its value is an input of
each lookup. `tape.gradient` for it is therefore a tf.IndexedSlices of the gradients of the rows, by
key. An optimizer applies them to the table in one of two ways:

- `tf_embed.DynamicEmbeddingOptimizer` takes `slices_of` it, for its own rule.
- Any other Keras optimizer sees `overwrite_with_gradient` and assigns the gradient to the
  variable instead of updating it, so `assign` runs a step of the table's own optimizer.

In the second way the table does not see the model's optimizer, whose clipping and weight decay do
not reach the table. Settings that would train rows wrong are refused.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed import callers
from tf_embed.ops import gradient_ops, routing_ops
from tf_embed.saving import keras_weights
from tf_embed.sharded import strategies
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.variable.outer_optimizers import check_beside_own


class Trainer(Protocol):
    """A table's view of an optimizer; implemented in `optimizers/trainer.py`."""

    @property
    def optimizer(self) -> Any:
        """The Keras optimizer."""

    @property
    def slots(self) -> list[SlotVariable]:
        """The slots that it keeps for each row."""

    def step(self, anchor: Anchor, keys: tf.Tensor, gradients: tf.Tensor) -> None:
        """Makes a step of the table's own optimizer.

        Args:
            anchor: The anchor whose gradient it is.
            keys: [n], which may repeat.
            gradients: [n, dim].
        """

    def check_strategy(self) -> None:
        """Refuses a strategy whose replicas can't train the table together."""


_adding_extra = threading.Lock()


class Anchor(keras.Variable):
    """The variable of shape (0, dim) through which a table is trained.

    Checkpoints that reach it also include the table and its optimizer. Keras omits layers in lists
    and dicts from checkpoints, so their tables are reached only through the model's optimizer.

    Args:
        checkpoint: Whether checkpoints include the table.
        dim: The second number of its shape. Default: the table's dim.
    """

    def __init__(
        self,
        table: Table,
        checkpoint: bool = True,
        name: str = "embeddings",
        dim: int | None = None,
    ) -> None:
        options = table.options
        super().__init__(
            initializer="zeros",
            shape=(0, dim or options.dim),
            dtype=_dtype_of_anchor(options.value_dtype) if dim is None else "float32",
            trainable=True,
            # In a mixed precision layer Keras would cast the value, but the lookup op needs the
            # dtype of rows.
            autocast=False,
            name=name,
        )
        self._table = table
        self._frozen = False
        # A layer may be built while a tf.function is traced, and the variable must outlive that
        # graph. A Python bool would be a constant of a traced step. Ops take it on the host.
        with tf.init_scope(), tf.device("/CPU:0"):
            self._is_trained = tf.Variable(True, trainable=False, name=f"{name}_is_trained")
        self._own_trainer: Trainer | None = None
        # Whether Keras has named the layer of the table.
        self.has_automatic_name = False
        # Whether lookups clip the gradient; then the loss must not be scaled.
        self.clips_gradient = False
        # The maximum norm of rows in lookups through this anchor.
        self.max_norm: Any = None
        # Weak, because an extra anchor refers to this anchor. Threads read a dict that is never
        # modified.
        self._extras: dict[str, weakref.ref[ExtraAnchor]] = {}
        self._checkpoint = checkpoint
        if checkpoint:
            self._track_trackable(table, "table")

    @property
    def table(self) -> Table:
        """The table that it represents."""
        return self._table

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that it represents."""
        return (self._table,)

    @property
    def table_of_keys(self) -> Table | None:
        """The table whose keys a gradient has; None if no keys need an owner."""
        return self._table

    @property
    def table_name(self) -> str:
        """The name that messages use."""
        return self._table.options.name

    @property
    def extras(self) -> dict[str, ExtraAnchor]:
        """The other anchors of the table that are in use, by name."""
        extras = ((name, extra()) for name, extra in self._extras.items())
        return {name: extra for name, extra in extras if extra is not None}

    def _add_extra(self, name: str, extra: ExtraAnchor) -> None:
        """Adds an anchor to `extras` while it is in use. It replaces an anchor of this name."""
        with _adding_extra:
            extras = self.extras | {name: extra}
            self._extras = {name: weakref.ref(one) for name, one in extras.items()}

    @property
    def own_trainer(self) -> Trainer | None:
        """The table's own optimizer."""
        return self._own_trainer

    @own_trainer.setter
    def own_trainer(self, trainer: Trainer) -> None:
        self._own_trainer = trainer
        if self._checkpoint:
            self._track_trackable(trainer, "trainer", overwrite=True)
            self._track_trackable(trainer.optimizer, "optimizer", overwrite=True)

    @property
    def trainable(self) -> bool:
        """True, so that a step that Keras has traced still computes the gradient.

        Setting it sets `frozen`, which a traced step obeys at once.
        """
        return True

    @trainable.setter
    def trainable(self, trainable: bool) -> None:
        self.frozen = not trainable

    @property
    def is_on_tapes(self) -> bool:
        """Whether lookups record gradients. A frozen table's do, because it may be unfrozen."""
        return True

    @property
    def frozen(self) -> bool:
        """Whether gradients are ignored."""
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self.set_initially_frozen(frozen)
        # A traced step sets it again each time it runs.
        if not tf.executing_eagerly():
            self._is_trained.assign(not self._frozen)

    def set_initially_frozen(self, frozen: bool) -> None:
        """Sets the initial `frozen`. Call it while the layer is built, outside of traced steps."""
        self._frozen = bool(frozen)
        # Keras builds layers in a graph that it discards, so an op there would never run. A step
        # that builds the layer must not undo later changes of `frozen`.
        with tf.init_scope():
            self._is_trained.assign(not self._frozen)

    @property
    def value(self) -> Any:
        """The variable of shape (0, dim).

        Raises:
            ValueError: If a Keras optimizer that is being built can't train this table.
        """
        # An optimizer without slots reads `overwrite_with_gradient` only at its first step. Every
        # optimizer reads the value when it is built, so the error is raised earlier here.
        if callers.optimizer_builds():
            self._check_outer_optimizers()
        return super().value

    @property
    def overwrite_with_gradient(self) -> bool:
        """True: a Keras optimizer assigns the gradient, and makes no slots.

        Raises:
            ValueError: If the calling Keras optimizer can't train this table.
        """
        self._check_outer_optimizers()
        return True

    def numpy(self) -> np.ndarray:
        """An array of shape (0, dim) that carries the rows, for `get_weights`.

        Raises:
            ValueError: If `get_state_tree` is the caller. Its result includes the optimizer's
                variables, and Orbax, which saves it, would drop the rows.
        """
        # `get_weights` calls this method too, so the name of the caller distinguishes them.
        if callers.calls_function("get_state_tree"):
            raise ValueError(
                f"`get_state_tree` does not carry what an optimizer keeps for {self.table_name!r}, "
                "and keras.callbacks.OrbaxCheckpoint not even its rows: use `get_weights`, "
                "keras.callbacks.ModelCheckpoint or tf.train.CheckpointManager."
            )
        return self._take_rows()

    def __array__(self, dtype: Any = None) -> np.ndarray:
        """A plain array of shape (0, dim).

        Raises:
            ValueError: If a Keras layer other than DynamicEmbedding writes it to a file, which
                would drop the rows.
        """
        # Keras makes an array of each weight of a layer that does not save itself.
        if callers.calls_function("save_own_variables"):
            raise ValueError(
                f"The rows of {self.table_name!r} are not saved in Keras files with a layer that "
                "has its anchor as a weight: use a tf_embed.layers.DynamicEmbedding in the layer, "
                "or save with tf.train.Checkpoint."
            )
        return super().__array__(dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """A tensor of shape (0, dim); a scalar for keras.callbacks.TensorBoard to draw."""
        # TensorFlow ends the process on an image without pixels, and Keras draws none of a scalar.
        if callers.calls_function("_log_weight_as_image"):
            return tf.zeros([], dtype or self.dtype)
        return super().__tf_tensor__(dtype, name)

    def assign(self, value: Any) -> Any:
        """Applies a gradient, or replaces the rows of the table.

        Args:
            value: A gradient, tf.IndexedSlices, makes a step of the table's own optimizer. An array
                from `numpy`, as in `set_weights`, or another anchor replaces the rows.

        Returns:
            The value.

        Raises:
            ValueError: If the gradient is a tensor, so its keys are lost; the table has no own
                optimizer; or the value has no rows, or rows of another kind of table.
        """
        # A Keras optimizer assigns the gradient; see `overwrite_with_gradient`.
        if isinstance(value, tf.IndexedSlices):
            self._train(value)
            return value
        # A plain tensor from an optimizer is a gradient that was densified; `slices_of` raises.
        if isinstance(value, tf.Tensor) and callers.optimizers():
            self.slices_of(value)
        # The rows of another anchor are in its `numpy`; its value has none.
        self._put_rows(value.numpy() if isinstance(value, Anchor) else value)
        return value

    def _take_rows(self) -> np.ndarray:
        return keras_weights.get_weights(self._table)

    def _put_rows(self, rows: np.ndarray) -> None:
        keras_weights.set_weights(rows, self._table)

    def slices_of(self, gradient: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys and the rows of a gradient; no rows if the table is frozen.

        Args:
            gradient: A tf.IndexedSlices, whose indices are keys.

        Returns:
            The keys [n] and the gradients [n, dim].

        Raises:
            TypeError: If its keys are not of the table's kind, or its values are not floating.
            ValueError: If it is dense, so its keys are lost.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            raise ValueError(
                f"The gradient of {self.table_name!r} must be a tf.IndexedSlices, whose indices "
                "are the keys; a dense one has lost them. It becomes dense where it is added to a "
                "tensor, where a tf.function that looks up is called in a loop and the tape is "
                "outside, and where `unconnected_gradients` asks for zeros. Received: "
                f"{gradient!r}"
            )
        self._check_dtypes(gradient)
        keys = gradient_ops.keys_of(gradient, self._table.options.key_dtype, self.table_name)
        values = tf.convert_to_tensor(gradient.values)  # a user's slices may have an array
        # Small ops are costly in a step of many tables, so this op replaces the ops below. It has
        # a kernel for the CPU only.
        if not self._table.options.is_on_gpu and values.shape.rank == 2:
            with tf.device("/CPU:0"):
                return routing_ops.unless_frozen(keys, values, self.is_trained)
        # Sliced in the graph: a step that is traced now must obey `frozen` when it runs.
        keys, values = unless_frozen(self, tf.size(keys), keys, values)
        return keys, values

    def _check_dtypes(self, gradient: tf.IndexedSlices) -> None:
        """Refuses slices that a user made and a cast would change."""
        keys, values = (
            # Slices that a user made may have lists.
            tf.as_dtype(part.dtype) if hasattr(part, "dtype") else None
            for part in (gradient.indices, gradient.values)
        )
        if keys is not None and not keys.is_integer and keys != tf.string:
            raise TypeError(
                f"The gradient of {self.table_name!r} must have keys as its indices. Received: "
                f"indices of dtype {keys.name}"
            )
        if values is not None and not values.is_floating:
            raise TypeError(
                f"The gradient of {self.table_name!r} must have floats as its values. Received: "
                f"values of dtype {values.name}"
            )

    def no_rows(self) -> tf.IndexedSlices:
        """The gradient of a step without a lookup."""
        options = self._table.options
        return tf.IndexedSlices(
            tf.zeros([0, options.dim], options.value_dtype), tf.zeros([0], options.key_dtype)
        )

    def _train(self, gradient: tf.IndexedSlices) -> None:
        """Makes a step of the table's own optimizer."""
        keys, gradients = self.slices_of(gradient)
        trainer = self.own_trainer
        if trainer is None:
            if not self.frozen:
                raise ValueError(self._no_optimizer())
            # This step may be traced now and run when the table is no longer frozen.
            tf.debugging.assert_equal(tf.size(keys), 0, self._no_optimizer())
            return
        trainer.step(self, keys, gradients)

    @property
    def is_trained(self) -> tf.Tensor:
        """Whether gradients are not ignored when a step runs, a bool scalar."""
        return tf.convert_to_tensor(self._is_trained)

    # It is empty, but in a SavedModel it is a variable like any other. While Keras builds a model
    # symbolically it has no value yet, and Keras's hooks could not restore it.

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        return super()._trackable_children(save_type, **kwargs) if save_type == "checkpoint" else {}

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        callers.saves_all(
            self.table_name
        )  # refuses saves that would drop a tensor without elements
        return {"VARIABLE_VALUE": tf.zeros(self.shape, self.dtype)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> None:
        del restored_tensors

    def _no_optimizer(self) -> str:
        return (
            f"{self.table_name!r} has a table, which a Keras optimizer can't train by itself: give "
            'its layer one of its own, optimizer="adam", or wrap the model\'s, '
            "tf_embed.DynamicEmbeddingOptimizer(optimizer)."
        )

    def _check_outer_optimizers(self) -> None:
        """Refuses Keras optimizers that would leave the table untrained or its rows wrong."""
        for optimizer in callers.optimizers():
            if not getattr(optimizer, "trains_dynamic_tables", False):
                self._check_outer_optimizer(optimizer)

    def _check_outer_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        # A frozen table needs no optimizer. `_train` checks again, because it may be unfrozen.
        if self.own_trainer is None:
            if self.frozen:
                return
            raise ValueError(self._no_optimizer())
        check_beside_own(optimizer, self.table_name)


class ExtraAnchor(Anchor):
    """A further anchor of a table, for lookups whose gradients are wanted separately.

    An optimizer joins the gradients of all anchors of a table and makes one step.

    Args:
        table: The table.
        anchor: The table's anchor. None: the table is not trained.
        checkpoint: Whether checkpoints include the table.
        name: Name of the variable.
    """

    def __init__(self, table: Table, anchor: Anchor | None, checkpoint: bool, name: str) -> None:
        super().__init__(table, checkpoint, name=name.replace("/", "_"))
        self._anchor = anchor
        if anchor is None:
            # The table is not trainable, so gradients of this anchor are dropped.
            super().set_initially_frozen(frozen=True)
        else:
            # Shared, so that freezing the table stops the gradients of all its anchors.
            self._is_trained = anchor._is_trained
            anchor._add_extra(name, self)

    @property
    @override
    def own_trainer(self) -> Trainer | None:
        return None if self._anchor is None else self._anchor.own_trainer

    @own_trainer.setter
    def own_trainer(self, trainer: Trainer) -> None:
        if self._anchor is not None:
            self._anchor.own_trainer = trainer

    @property
    def is_on_tapes(self) -> bool:
        """Whether the table may be trained through this anchor."""
        return self._anchor is not None

    @property
    def frozen(self) -> bool:
        """Whether gradients are ignored, of this anchor and of the table's."""
        return self._anchor is None or self._anchor.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        if self._anchor is not None:
            self._anchor.frozen = frozen

    def set_initially_frozen(self, frozen: bool) -> None:
        """Sets `frozen` of the table's anchor; see `Anchor.set_initially_frozen`.

        Args:
            frozen: Whether gradients are ignored from now on.
        """
        if self._anchor is not None:
            self._anchor.set_initially_frozen(frozen)


def _dtype_of_anchor(value_dtype: tf.DType) -> str:
    """The dtype of rows, unless the strategy can't make variables of it."""
    on_workers = strategies.worker_count(tf.distribute.get_strategy()) > 1
    # A new variable is broadcast, which TensorFlow does not support for bfloat16.
    return "float32" if on_workers and value_dtype == tf.bfloat16 else value_dtype.name


def unless_frozen(anchor: Anchor, count: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The first `count` rows of tensors; none if gradients are ignored when a step runs."""
    # A GPU has sizes in host memory. But it would select one of them in its own, and wait.
    with tf.device("/CPU:0"):
        end = tf.reshape(tf.where(anchor.is_trained, count, 0), [1])
    return [tf.strided_slice(tensor, [0], end) for tensor in tensors]


def tables_of(layer: keras.layers.Layer) -> list[Table]:
    """The tables among the weights of a layer or a model, without duplicates."""
    anchors = [weight for weight in layer.weights if isinstance(weight, Anchor)]
    return list({id(table): table for anchor in anchors for table in anchor.tables}.values())

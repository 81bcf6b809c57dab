# SPDX-License-Identifier: Apache-2.0
"""`TableLayer`: a Keras layer that owns a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.layers.given_ids import GivenIds
from tf_embed.layers.ids import cast_ids, check_kind
from tf_embed.layers.ids_layer import IdsLayer, ids_dtype_of
from tf_embed.layers.prefetching import with_prefetch
from tf_embed.ops import pooling_ops
from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.ops.pooling_ops import Bags, compute_dtype
from tf_embed.optimizers.own_optimizer import own_optimizer
from tf_embed.optimizers.rules import step_variable
from tf_embed.optimizers.trainer import TableTrainer
from tf_embed.saving import keras_files
from tf_embed.sharded.worker_sharding import WorkerSharding, as_sharding
from tf_embed.table.initializers import row_initializer, with_own_seed
from tf_embed.table.lookups import Lookup
from tf_embed.table.placement import place
from tf_embed.table.policies import MAX_ROWS, TablePolicy, check_policy
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.table.storage import Storage, check_storage_of_table
from tf_embed.variable.lookup import gradient_token
from tf_embed.variable.memory_report import MemoryReport
from tf_embed.variable.table_text import kind_text, options_text, rows_here, size_texts
from tf_embed.variable.variable import Variable

_TRAINER = "optimizer_"  # prefix of its arrays in a file
TRAINABLE_DTYPES = tuple(dtype for dtype in validation.VALUE_DTYPES if dtype.is_floating)


class TableLayer(IdsLayer):
    """Base of layers with a table. Handles the table, its optimizer, saving, ids and padding.

    A subclass defines `call`, which uses the rows of a batch, and the shape of its output.

    Args:
        dim: As in `tf_embed.layers.DynamicEmbedding`, like all arguments that are not listed here.
        table_name: Format of the table's name, with {} for the name of the layer.
        checkpoint: Whether tf.train.Checkpoint carries the rows.
    """

    def __init__(
        self,
        dim: int,
        key_dtype: Any,
        value_dtype: Any,
        initializer: Any,
        *,
        optimizer: Any,
        padding_id: int | str | None,
        devices: Sequence[str] | str | None,
        partitioner: PartitionFn | dict[str, Any] | None,
        init_size: int,
        unknown_value: Any,
        policy: TablePolicy | dict[str, Any] | None,
        storage: Storage | dict[str, Any] | None,
        distribution: WorkerSharding | dict[str, Any] | str | None,
        name: str | None,
        unknown_in_training: bool = False,
        table_name: str = "{}",
        checkpoint: bool = True,
        **kwargs: Any,
    ) -> None:
        if name is not None:
            validation.name_of(name)
        # Keras would cast floating inputs to the compute dtype, and so round ids.
        super().__init__(name=name, autocast=False, **kwargs)
        self._has_own_name = name is not None
        self.supports_masking = True
        self.dim = validation.int_in(dim, "dim", most=validation.MAX_DIM)
        self.key_dtype = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype").name
        self._ids_dtype = ids_dtype_of(self.key_dtype)
        self.value_dtype = validation.dtype_of(value_dtype, TRAINABLE_DTYPES, "value_dtype").name
        self.initializer = with_own_seed(deserialized(initializer, "initializer"))
        self.optimizer = None if optimizer is None else own_optimizer(optimizer)
        self.padding_id = None if padding_id is None else self._padding_id(padding_id)
        # A wrong initializer is refused here. It is created again with the table.
        row_initializer(
            self.initializer,
            dim=self.dim,
            value_dtype=tf.as_dtype(self.value_dtype),
            name=self.name,
        )
        self.devices = list(devices) if isinstance(devices, (list, tuple)) else devices
        self.partitioner = deserialized(partitioner, "partitioner")
        if self.partitioner is not None:
            validation.function_of(self.partitioner, "partitioner")
        self.storage = deserialized(storage, "storage")
        check_storage_of_table(self.storage)
        types = tf.as_dtype(self.key_dtype), tf.as_dtype(self.value_dtype)
        self.policy = deserialized(policy, "policy")
        placement = place(devices, *types, self.storage)
        check_policy(self.policy, len(placement.devices))
        self.distribution = deserialized(distribution, "distribution")
        as_sharding(self.distribution)
        self.init_size = validation.int_in(init_size, "init_size", least=0, most=MAX_ROWS)
        self.unknown_value = self._unknown_row(unknown_value)
        self.unknown_in_training = validation.flag(unknown_in_training, "unknown_in_training")
        if self.unknown_in_training and self.unknown_value is None:
            raise ValueError(
                "`unknown_value` must be given with `unknown_in_training`. Received: "
                "unknown_value=None, unknown_in_training=True"
            )
        self.checkpoint = validation.flag(checkpoint, "checkpoint")
        self._table_name = table_name
        self._given = GivenIds([self.name])
        self._variable: Variable | None = None
        self._trainer: TableTrainer | None = None
        self._loads = keras_files.LoadAttempts()

    def build(self, input_shape: Any = None) -> None:
        """Creates the table. Its shape does not depend on the ids' shape."""
        if self._variable is None:
            self._make_table()
        self.built = True

    def _make_table(self) -> None:
        variable = self._new_variable(
            key_dtype=self.key_dtype,
            value_dtype=self.value_dtype,
            dim=self.dim,
            devices=self.devices,
            partitioner=default_partition_fn if self.partitioner is None else self.partitioner,
            name=self._table_name.format(self.name),
            initializer=self.initializer,
            init_size=self.init_size,
            policy=self.policy,
            storage=self.storage,
            distribution=self.distribution,
            checkpoint=self.checkpoint,
        )
        (anchor,) = variable.trainable_variables
        anchor.has_automatic_name = not self._has_own_name
        if self.padding_id is None:
            variable.table.check_functions = self._given.check
        with tf.init_scope():  # a checkpoint that waits for the table is restored here
            self._variable = variable
            # Keras makes an attribute of the layer a layer weight.
            self._anchor = anchor
        anchor.set_initially_frozen(frozen=not self.trainable)
        if self.optimizer is not None:
            trainer = TableTrainer(anchor, self.optimizer, is_own=True)
            trainer.check_strategy()
            trainer.bind()
            anchor.own_trainer = self._trainer = trainer

    def _new_variable(self, **arguments: Any) -> Variable:
        """Makes the variable; a subclass may make a variable of a subclass."""
        return Variable(**arguments)

    @property
    def variable(self) -> Variable:
        """The table.

        Raises:
            AttributeError: If the layer is not built, so it has no table yet.
        """
        if self._variable is None:
            raise AttributeError(
                f"{self.name!r} has no table yet: call the layer, or `layer.build()`, first."
            )
        return self._variable

    def prefetch(
        self,
        dataset: tf.data.Dataset,
        ids: Callable[[Any], Any] | None = None,
        buffer_size: int = 2,
    ) -> tf.data.Dataset:
        """Promotes the rows of the next batches to the cache while the current batch computes.

        For a layer whose `storage` gives its table a cache. The elements, their order,
        `element_spec` and cardinality are unchanged, and so are the trained rows. The layer creates
        its table if it has none yet.

        Choose `host_bytes`, or on a GPU `gpu_bytes`, so that the cache holds the distinct rows of
        `buffer_size` + 2 batches; otherwise rows leave before they are used. A batch promotes at
        most half as many rows as fit in the cache.

        Args:
            dataset: A dataset of batches, as `fit` takes it; finite or infinite.
            ids: A function from an element to the ids that the layer will look up: a tensor, a
                tf.RaggedTensor or a tf.SparseTensor, or a list, tuple or dict of them. Default: the
                element, or its first item if it is (x, y) or (x, y, sample_weight).
            buffer_size: Number of batches to prefetch, an int from 0, or tf.data.AUTOTUNE.
                Default: 2.

        Returns:
            A tf.data.Dataset of the same elements.

        Raises:
            TypeError: If `dataset` is not a dataset, `ids` is not a function, `buffer_size` is not
                an int, or the ids are not of a dtype that the layer takes.
            ValueError: If `buffer_size` is out of range, `ids` is missing and an element has
                several inputs, or the table is sharded over workers.

        Example:
            >>> import tensorflow as tf, tf_embed
            >>> layer = tf_embed.layers.DynamicEmbedding(2)
            >>> batches = tf.data.Dataset.from_tensor_slices({"item": [5, 6, 7]}).batch(2)
            >>> ahead = layer.prefetch(batches, ids=lambda features: features["item"])
            >>> [batch["item"].numpy().tolist() for batch in ahead]
            [[5, 6], [7]]
        """
        table = self._table_made().table
        return with_prefetch(dataset, self._prefetch_ids, ids, buffer_size, self.name, [table])

    def memory_report(self) -> MemoryReport:
        """Reports memory use and capacity of each tier. Creates the table if there is none.

        Returns:
            A report to print; see `tf_embed.Variable.memory_report`.

        Example:
            >>> import tf_embed
            >>> layer = tf_embed.layers.DynamicEmbedding(4, optimizer="adagrad", name="items")
            >>> report = layer.memory_report()
            >>> report.weight_bytes, report.slot_bytes, report.row_bytes
            (16, 16, 32)
        """
        return self._table_made().memory_report()

    def count_params(self) -> int:
        """The number of weights in the present rows.

        For a table that is sharded over workers, it counts the rows of this worker. `summary` shows
        it at the layer. The totals of a model leave it out: Keras computes them from the shapes of
        variables, and the anchor has no rows; see `tf_embed.print_tables`.

        Raises:
            ValueError: If the layer is not built.
        """
        others = super().count_params()  # raises if the layer is not built
        return others + rows_here(self.variable.table) * self.dim

    def _table_made(self) -> Variable:
        """Returns the table, and creates it if there is none. Does not mark the layer as built.

        A keras.Sequential without an Input takes the dtype of ids from a layer that is not built.
        """
        if self._variable is None:
            # Keras builds a layer within this scope, which sets the paths of its variables.
            with keras.name_scope(self.name):
                self._make_table()
        return self.variable

    def _prefetch_ids(self, ids: Any) -> list[tf.Operation]:
        """Returns the ops that promote the rows of ids in a graph."""
        table, ops = self.variable.table, []
        for some in tf.nest.flatten(ids):
            if isinstance(some, tf.SparseTensor):
                some = some.values
            elif isinstance(some, tf.RaggedTensor):
                some = some.flat_values
            some = validation.as_tensor(some, "ids", self.name)
            ops.append(table.prefetch(cast_ids(some, table.options.key_dtype, self.name)))
        return ops

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        """Returns the mask of ids that are not padding; None for ragged and sparse ids."""
        if self.padding_id is None:
            return previous_mask
        if isinstance(ids, keras.KerasTensor):
            return self._symbolic_mask(ids)
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            return None
        return tf.logical_not(self._is_padding(self._keys(tf.convert_to_tensor(ids))))

    def _symbolic_mask(self, ids: keras.KerasTensor) -> keras.KerasTensor | None:
        """Returns the mask of symbolic ids, from Keras ops, which a functional model can save."""
        # Older versions of Keras have no symbolic ragged tensors.
        if getattr(ids, "ragged", False) or ids.sparse:
            return None
        if ids.dtype != self.key_dtype:
            ids = keras.ops.cast(ids, self.key_dtype)
        padding_id = self.padding_id
        # A saved model stores it as a Python integer, which TensorFlow converts to int64.
        if isinstance(padding_id, int) and padding_id >= 2**63:
            ids, padding_id = keras.ops.cast(ids, "int64"), padding_id - 2**64
        return keras.ops.not_equal(ids, padding_id)

    # Saving.

    def save_own_variables(self, store: Any) -> None:
        """Writes rows, slots, seed and the step of the table's own optimizer.

        Keras calls this for .keras and .weights.h5 files.
        """
        if self._variable is None:
            return
        beside = self._given.arrays()
        if self._trainer is not None:
            step = step_variable(self._trainer.optimizer).numpy()
            beside |= {"step": step, **self._trainer.arrays(_TRAINER)}
        keras_files.save(self._variable.table, store, beside)

    def load_own_variables(self, store: Any) -> None:
        """Replaces the rows and optimizer state with the state that `save_own_variables` wrote.

        Raises:
            ValueError: If the file has no rows, they are damaged, or they have another dim or
                dtype. The table is then unchanged.
        """
        if self._variable is None and not store.keys():
            return  # saved before it was built
        self.build()
        with self._loads.attempt(store):
            beside = keras_files.load(self.variable.table, store)
            self._given.load(beside)
        # Keras also loads the optimizer, except if either the saved or the present optimizer has a
        # schedule and the other has a number.
        if self._trainer is not None and "step" in beside:
            step_variable(self._trainer.optimizer).assign(beside["step"])
            self._trainer.load(beside, _TRAINER)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments. A random initializer has its seed, so a copy has the same rows."""
        # The old format only asks a layer for its config, and so would lose the rows.
        keras_files.refuse_old_format(self.name)
        unknown = self.unknown_value
        # The default has no name that Keras can load.
        by_default = self.partitioner is default_partition_fn
        return {
            **super().get_config(),
            "dim": self.dim,
            "key_dtype": self.key_dtype,
            "value_dtype": self.value_dtype,
            "initializer": serialized(self.initializer),
            "optimizer": serialized(self.optimizer),
            "padding_id": self.padding_id,
            "devices": self.devices,
            "partitioner": None if by_default else serialized(self.partitioner),
            "init_size": self.init_size,
            "unknown_value": None if unknown is None else unknown.tolist(),
            "unknown_in_training": self.unknown_in_training,
            "policy": serialized(self.policy),
            "storage": serialized(self.storage),
            "distribution": serialized(self.distribution),
        }

    def __repr__(self) -> str:
        known = vars(self)  # `repr` must work even if `__init__` has failed
        if "_loads" not in known:
            return f"<{type(self).__name__}, not made>"
        texts = [f"name={validation.shown(self.name)}"]
        if known.get("combiner") is not None:
            texts.append(f"combiner={self.combiner!r}")
        if self._variable is not None:
            table = self._variable.table
            texts += [*kind_text(table), *size_texts([table]), *options_text(table)]
        else:
            texts += [
                f"dim={self.dim}",
                f"key_dtype={self.key_dtype}",
                f"value_dtype={self.value_dtype}",
            ]
            given = {"policy": self.policy, "storage": self.storage}
            texts += [f"{name}={one!r}" for name, one in given.items() if one is not None]
            if self.optimizer is not None:
                texts.append(f"optimizer={type(self.optimizer).__name__}")
        if not self.built:
            texts.append("not built")
        return f"<{type(self).__name__} {', '.join(texts)}>"

    # Steps of `call`.

    def _output_spec(self, ids: Any, is_ragged: bool) -> keras.KerasTensor:
        """Checks symbolic ids and returns the symbolic output."""
        check_kind(tf.as_dtype(ids.dtype), tf.as_dtype(self.key_dtype), self.name)
        options = {"ragged": True} if is_ragged else {}
        shape = self.compute_output_shape(ids.shape)
        return keras.KerasTensor(shape, dtype=self._output_dtype, **options)

    def _as_outputs(self, rows: Any) -> Any:
        """Converts rows to the dtype of the output."""
        dtype = tf.as_dtype(self._output_dtype)
        return rows if rows.dtype == dtype else tf.cast(rows, dtype)

    def _keys(self, ids: Any) -> Any:
        """Converts ids to the key dtype, in the same container."""
        if self.padding_id is None:
            ids = self._given.marked(ids)
        key_dtype = tf.as_dtype(self.key_dtype)
        if isinstance(ids, tf.SparseTensor):
            indices, values, shape = pooling_ops.checked_sparse(ids, f"`ids` of {self.name!r}")
            return tf.SparseTensor(indices, cast_ids(values, key_dtype, self.name), shape)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(cast_ids(ids.flat_values, key_dtype, self.name))
        return cast_ids(tf.convert_to_tensor(ids), key_dtype, self.name)

    def _is_padding(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.equal(keys, tf.constant(self.padding_id, keys.dtype))

    def _rows(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the rows of keys, keys.shape + [dim]. Padding is never looked up."""
        if self.padding_id is None:
            return self._find(keys, training)
        # Padding is left out before the lookup, so it has no gradient either.
        flat = tf.reshape(keys, [-1])
        places = tf.where(tf.logical_not(self._is_padding(flat)))
        rows = self._find(tf.gather_nd(flat, places), training)
        rows = tf.scatter_nd(places, rows, [tf.size(flat, tf.int64), self.dim])
        rows = tf.reshape(rows, tf.concat([tf.shape(keys), [self.dim]], 0))
        return tf.ensure_shape(rows, keys.shape.concatenate([self.dim]))

    def _find(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        variable = self.variable
        table, token = variable.table, gradient_token(variable)
        lookup = Lookup(table, keys, training, token=token, defaults=self._defaults(training))
        return table.look_up(lookup)

    def _pooled(
        self,
        keys: tf.Tensor,
        bags: Bags,
        weights: tf.Tensor | None,
        combiner: str | None,
        training: bool,
    ) -> tf.Tensor:
        """Returns a row for each bag. Padding does not count."""
        variable = self.variable
        assert combiner is not None  # or there are no bags
        if weights is not None:
            weights = tf.cast(weights, compute_dtype(variable.value_dtype))
        table, token = variable.table, gradient_token(variable)
        pooling = Pooling(bags, weights, combiner, self.padding_id)
        return table.look_up(
            Lookup(table, keys, training, pooling, token, self._defaults(training))
        )

    def _defaults(self, training: bool) -> tf.Tensor | None:
        """Returns the default row of absent ids; None for their initial rows."""
        # In training, an absent id is about to get its row, so the step sees its initial row.
        if self.unknown_value is None or (training and not self.unknown_in_training):
            return None
        row = np.broadcast_to(self.unknown_value, [self.dim])
        return tf.cast(tf.constant(row), self.variable.value_dtype)

    def _padding_id(self, padding_id: Any) -> int | str:
        key_dtype = tf.as_dtype(self.key_dtype)
        if key_dtype == tf.string:
            if not isinstance(padding_id, str):
                raise TypeError(
                    "`padding_id` must be a str, for the key dtype is string. Received: "
                    f"padding_id={validation.shown(padding_id)}"
                )
            return padding_id
        least = min(key_dtype.min, -(2**63))
        padding_id = validation.int_in(padding_id, "padding_id", least=least, most=2**64 - 1)
        if not key_dtype.min <= padding_id <= key_dtype.max:
            raise ValueError(
                f"`padding_id` must fit the key dtype {self.key_dtype}. Received: "
                f"padding_id={padding_id}"
            )
        return padding_id

    def _unknown_row(self, unknown_value: Any) -> np.ndarray | None:
        if unknown_value is None:
            return None
        try:
            row = np.asarray(unknown_value)
        except (TypeError, ValueError, NotImplementedError):
            row = np.array(None)  # refused below
        if row.dtype.kind not in "iuf":
            raise TypeError(
                "`unknown_value` must be a number or an array of numbers. Received: "
                f"unknown_value={validation.shown(unknown_value)}"
            )
        if row.shape not in ((), (self.dim,)):
            raise ValueError(
                f"`unknown_value` must be a number or of shape ({self.dim},). Received: "
                f"shape={row.shape}"
            )
        # Only a check: the config keeps the given numbers.
        validation.rounded(row, tf.as_dtype(self.value_dtype), "unknown_value", self.name)
        return row.astype(np.float64)


def serialized(value: Any) -> Any:
    """Converts a value to a form that JSON can hold."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if tf.is_tensor(value):
        return value.numpy().tolist()
    if isinstance(value, tf.types.experimental.PolymorphicFunction):
        return _serialized_function(value)
    return keras.saving.serialize_keras_object(value)


def _serialized_function(function: Any) -> Any:
    """Serializes a tf.function, which Keras would save as an object that it can't load."""
    config = keras.saving.serialize_keras_object(function.python_function)
    name = keras.saving.get_registered_name(function)
    if keras.saving.get_registered_object(name) is function:
        config = {**config, "config": name}
    return config


def deserialized(value: Any, argument: str = "value") -> Any:
    """Inverts `serialized`, except that arrays become lists.

    Raises:
        ValueError: If Keras can't deserialize a dict.
    """
    if not isinstance(value, dict):
        return value
    try:
        return keras.saving.deserialize_keras_object(value)
    except Exception as error:
        raise ValueError(
            f"`{argument}` must be an object, or the config of one that Keras knows. Received: "
            f"{argument}={validation.shown(value)}: {error}"
        ) from error

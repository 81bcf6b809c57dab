"""`Variable`: a dynamic embedding table as a TensorFlow object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import arguments
from tf_embed.table.creators import KVCreator, policy_of, storage_of
from tf_embed.table.devices import device_names
from tf_embed.table.initializers import row_initializer
from tf_embed.table.policies import MOST_ROWS, TablePolicy
from tf_embed.table.shard import Shard
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.table.storage import GpuStorage
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.file_methods import DEFAULT_NAME, FileMethods
from tf_embed.variable.policy_methods import PolicyMethods, check_policies, notes_updates
from tf_embed.variable.training_methods import TrainingMethods

DEFAULT_INIT_SIZE = 8192
INIT_SIZE_VARIABLE = "TF_HASHTABLE_INIT_SIZE"


class Variable(FileMethods, PolicyMethods, TrainingMethods):
    """A table of embeddings that grows: any integer, or string, is a key and has a row.

    Keys need not be known beforehand. A lookup gives a key that has no row yet its initial row,
    and stores nothing; rows enter by `upsert`, by `accum`, and by training. Every integer of the
    key dtype is a legal key, and every string. The rows are spread over shards, one for each device
    of `devices`.

    All methods run eagerly, in a tf.function, and (`lookup`) in tf.data pipelines and loaded
    SavedModels, and may run from several threads at once. tf.train.Checkpoint and SavedModels
    carry the rows, and a checkpoint restores into any number of shards.

    `lookup` is not differentiable; `tf_embed.embedding_lookup` is, with respect to
    `trainable_variables`. In a Keras model use `tf_embed.layers.DynamicEmbedding`.

    Args:
        key_dtype: tf.int64, tf.int32, tf.uint64, tf.uint32 or tf.string. Strings are any bytes, and
            different ones never share a row.
        value_dtype: tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.int32, tf.int64,
            tf.bool or tf.string. Floating ones can be trained.
        dim: Number of weights in a row, at least 1.
        devices: Where the shards are, a device name for each; names may repeat, so
            `["/CPU:0"] * 4` makes four shards. Those of a variable on a GPU are all on that one.
            Default: one shard, on the first GPU where this build has GPU support and there is
            one, else on the CPU.
        partitioner: Called with keys [n] and the number of shards for the shard of each key [n],
            int32 or int64. Default: `default_partition_fn`, the remainder.
        shared_name: Accepted for the sake of old code. Two variables never share rows, whatever
            their names.
        name: Name, for messages, and to tell apart the initial rows of variables of one seed. At
            most 1024 bytes in UTF-8, without control characters.
        initializer: The row of a key that has none: None for 0 or empty strings, a number, or
            where values are strings a string or `dim` of them, an array [dim], a Keras
            initializer or its name, or a callable (shape, dtype) -> rows. Keras's uniform,
            normal, truncated normal, VarianceScaling, Glorot, He and LeCun initializers (with
            fans as for the shape (1, dim)) give each key a row of its own, a function of the
            seed, the name and the key: the same in any order, batch, number of shards and
            process. A callable is called for each batch of new keys, so its rows depend on the
            batches.
        trainable: Whether optimizers may change rows.
        checkpoint: Whether tf.train.Checkpoint carries the rows. SavedModels always do.
        init_size: Rows to make room for, in all shards together, int(init_size / shards) each. 0
            takes the environment variable TF_HASHTABLE_INIT_SIZE, or else 8192.
        kv_creator: A `CuckooHashTableCreator`, for a table without a bound, or a
            `HkvHashTableCreator`, whose config has a bound and says which rows leave; not both that
            one and `policy`. Its `init_capacity` goes before `init_size`, and `storage` before its
            `max_hbm_for_values`.
        restrict_policy: What `restrict` goes by: `TimestampRestrictPolicy`,
            `FrequencyRestrictPolicy`, or a subclass of `RestrictPolicy` of your own. The class; the
            variable makes one of it, and has it under this name.
        bp_v2: Stored. With bp_v2 and without, `accum` and steps of optimizers in several threads
            lose nothing; see `tf_embed.DynamicEmbeddingOptimizer`.
        short_file_name: Accepted for the sake of old code.
        policy: A `TablePolicy`, by which rows come and leave. Default: a row comes with the first
            training step of its key, and stays.
        storage: A `GpuStorage`: bounds on the memory of a table on a GPU, and whether rows beyond
            them are in the host's. Default: what the `kv_creator` says, or else the GPU's memory.

    Raises:
        TypeError: A dtype or a type that is not supported.
        ValueError: A value out of range, a `kv_creator` of Redis or beside a `policy`, a device
            that has no tables, an initializer that can't give rows of this dtype and dim, or a
            tf.distribute strategy other than MirroredStrategy and OneDeviceStrategy.

    Example:
        >>> import tf_embed
        >>> v = tf_embed.Variable(dim=2, initializer=-1.0)
        >>> v.upsert([7, -3], [[1.0, 2.0], [3.0, 4.0]])
        >>> v.lookup([[7, 0]]).numpy().tolist()
        [[[1.0, 2.0], [-1.0, -1.0]]]
        >>> int(v.size())
        2
        >>> v.remove([7])
        >>> int(v.size())
        1
    """

    def __init__(
        self,
        key_dtype: Any = tf.int64,
        value_dtype: Any = tf.float32,
        dim: int = 1,
        devices: Sequence[str] | str | None = None,
        partitioner: PartitionFn = default_partition_fn,
        shared_name: str | None = None,
        name: str = DEFAULT_NAME,
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: KVCreator | None = None,
        restrict_policy: Any = None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        policy: TablePolicy | None = None,
        storage: GpuStorage | None = None,
    ) -> None:
        del short_file_name
        _check_eager()
        super().__init__()  # a tf.Module's own name must be an identifier; ours need not
        name = arguments.name_of(name)
        arguments.function_of(partitioner, "partitioner")
        key_dtype = arguments.dtype_of(key_dtype, arguments.KEY_DTYPES, "key_dtype")
        value_dtype = arguments.dtype_of(value_dtype, arguments.VALUE_DTYPES, "value_dtype")
        dim = arguments.positive_int(dim, "dim", most=arguments.MOST_DIM)
        _check_strategy(key_dtype)
        policy = policy_of(kv_creator, policy)
        storage = storage_of(kv_creator, storage)
        names = device_names(devices, key_dtype, value_dtype)
        check_policies(policy, restrict_policy, len(names))
        init_size = arguments.positive_int(init_size, "init_size", least=0, most=MOST_ROWS)
        init_size = init_size or _init_size()
        if kv_creator is not None and kv_creator.init_size is not None:
            init_size = kv_creator.init_size
        self._variable_name = name
        self._device_names = names
        self.shared_name = shared_name
        self.checkpoint = arguments.flag(checkpoint, "checkpoint")
        self.init_size = init_size
        self.kv_creator = kv_creator
        self.bp_v2 = arguments.flag(bp_v2, "bp_v2")
        self._table = Table(
            TableOptions(
                name=name,
                key_dtype=key_dtype,
                value_dtype=value_dtype,
                dim=dim,
                num_shards=len(names),
                init_size=init_size // len(names),
                initializer=row_initializer(
                    initializer, dim=dim, value_dtype=value_dtype, name=name
                ),
                partition_fn=partitioner,
                device=names[0],
                policy=policy,
                wanted_statistics=() if restrict_policy is None else restrict_policy.statistics,
                storage=storage,
            )
        )
        is_trained = arguments.flag(trainable, "trainable") and value_dtype.is_floating
        self._anchor = Anchor(self._table, self.checkpoint) if is_trained else None
        self.restrict_policy = None
        if restrict_policy is not None:
            self.restrict_policy = restrict_policy(self)
            if notes_updates(restrict_policy):
                self._table.on_update = self.restrict_policy.apply_update

    # What it is.

    @property
    def name(self) -> str:
        """The name."""
        return self._variable_name

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the keys."""
        return self._table.options.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """Dtype of the weights."""
        return self._table.options.value_dtype

    @property
    def dim(self) -> int:
        """Number of weights in a row."""
        return self._table.options.dim

    @property
    def devices(self) -> list[str]:
        """The device of each shard."""
        return list(self._device_names)

    @property
    def shard_num(self) -> int:
        """Number of shards."""
        return self._table.options.num_shards

    @property
    def partition_fn(self) -> PartitionFn:
        """What chooses the shard of a key."""
        return self._table.options.partition_fn

    @property
    def initializer(self) -> Any:
        """What the initial rows are drawn from, an `initializers.RowInitializer`."""
        return self._table.options.initializer

    @property
    def storage(self) -> GpuStorage | None:
        """Where the rows of a variable on a GPU are; None: in the GPU's memory, without a bound."""
        return self._table.options.storage

    @property
    def table(self) -> Table:
        """The table that holds all shards."""
        return self._table

    @property
    def tables(self) -> list[Shard]:
        """The shards, one for each of `devices`."""
        return [
            Shard(self._table, index, device) for index, device in enumerate(self._device_names)
        ]

    # Verbs.

    def upsert(
        self, keys: Any, values: Any, name: str | None = None, *, distinct: bool = False
    ) -> tf.Operation | None:
        """Writes rows, and inserts the keys that are new.

        Of a key that stands several times, the last position wins. Optimizer slots of rows that
        were there stay.

        Args:
            keys: Integers, or strings, of any shape.
            values: keys.shape + [dim].
            name: Name of the operation.
            distinct: Says that no key stands twice. Then nobody looks for equal ones, which is
                some 30% of the time that writing large batches of present rows takes. Of a key
                that does stand twice all the same, any one of its positions wins.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: A wrong dtype.
            ValueError: Shapes that do not go together; where they are unknown until the
                operation runs, tf.errors.InvalidArgumentError then.
        """
        with arguments.scope(name, "upsert"):
            keys = self._keys(keys)
            values = self._rows(keys, values, "values")
            distinct = arguments.flag(distinct, "distinct")
            return self._table.insert_or_assign(keys, values, distinct)

    def accum(
        self,
        keys: Any,
        old_values: Any,
        new_values: Any,
        exists: Any,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Adds `new_values - old_values` to rows, or inserts `new_values`, as the caller saw them.

        Where `exists` and the key is there, the difference is added. Where not `exists` and the
        key is not there, `new_values` is inserted. In the two other cases the table has changed
        since the caller looked, and nothing is done. The differences of a key that stands several
        times are all added. Rows of bool and of strings have no sum, and can't
        be accumulated.

        Args:
            keys: Integers, or strings, of any shape.
            old_values: What a lookup gave, keys.shape + [dim].
            new_values: What the rows should become, keys.shape + [dim].
            exists: Whether the lookup found the keys, bool, keys.shape.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: A wrong dtype, or a variable whose rows have no sum.
            ValueError: Shapes that do not go together.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1)
            >>> old, exists = v.lookup([1], return_exists=True)
            >>> v.accum([1], old, old + 2.0, exists)  # inserts
            >>> old, exists = v.lookup([1], return_exists=True)
            >>> v.accum([1, 1], [old[0], old[0]], [old[0] + 0.5, old[0] + 1.0], [True, True])
            >>> v.lookup([1]).numpy().tolist()
            [[3.5]]
        """
        if self.value_dtype in (tf.bool, tf.string):
            raise TypeError(
                f"`accum` needs values that have a sum; {self.name!r} has value_dtype="
                f"{self.value_dtype.name}. Use `upsert`."
            )
        with arguments.scope(name, "accum"):
            keys = self._keys(keys)
            old_values = self._rows(keys, old_values, "old_values")
            new_values = self._rows(keys, new_values, "new_values")
            exists = arguments.tensor_of(exists, tf.bool, "exists", self.name)
            if not exists.shape.is_compatible_with(keys.shape):
                raise ValueError(
                    f"`exists` of {self.name!r} must have the shape of the keys, {keys.shape}. "
                    f"Received: exists.shape={exists.shape}"
                )
            return self._table.accum(keys, old_values, new_values, exists)

    def lookup(
        self,
        keys: Any,
        return_exists: bool = False,
        name: str | None = None,
        training: bool = False,
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Looks rows up. Keys that are not there get their initial rows, and are not inserted.

        Args:
            keys: Integers, or strings, of any shape.
            return_exists: Whether to tell which keys are there.
            name: Name of the operation.
            training: Whether this is a use of the rows in the sense of `TablePolicy`.

        Returns:
            Rows, keys.shape + [dim]; with `return_exists` also a bool tensor, keys.shape.

        Raises:
            TypeError: A wrong dtype, or a tensor as `training`.
        """
        with arguments.scope(name, "lookup"):
            values, exists = self._table.find(self._keys(keys), training=training)
        return (values, exists) if arguments.flag(return_exists, "return_exists") else values

    def remove(self, keys: Any, name: str | None = None) -> tf.Operation | None:
        """Removes keys, with their rows and optimizer slots. Keys that are not there are ignored.

        Args:
            keys: Integers, or strings, of any shape.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: A wrong dtype.
        """
        with arguments.scope(name, "remove"):
            return self._table.erase(self._keys(keys))

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """Removes all keys and gives the memory back.

        Args:
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with arguments.scope(name, "clear"):
            return self._table.clear()

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Counts keys.

        Args:
            index: Which shard, from 0; None for all together.
            name: Name of the operation.

        Returns:
            int64 scalar.

        Raises:
            ValueError: There is no such shard.
        """
        if index is not None:
            index = arguments.positive_int(index, "index", least=0)
            if index >= self.shard_num:
                raise ValueError(
                    f"`index` must be less than the number of shards of {self.name!r}, "
                    f"{self.shard_num}. Received: index={index}"
                )
        with arguments.scope(name, "size"):
            return self._table.size(-1 if index is None else index)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies all keys and rows, as they are at one moment, in no particular order.

        Args:
            name: Name of the operation.

        Returns:
            Keys [n] and rows [n, dim].
        """
        with arguments.scope(name, "export"):
            exported = self._table.export(with_slots=False, with_policy=False)
        return exported.keys, exported.values

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """What TensorFlow saves; without the table where checkpoints must not have it."""
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type == "checkpoint" and not self.checkpoint:
            children.pop("_table")
            children.pop("restrict_policy", None)
        return children

    def __repr__(self) -> str:
        return (
            f"<tf_embed.Variable name={arguments.shown(self.name)}, dim={self.dim}, key_dtype="
            f"{self.key_dtype.name}, value_dtype={self.value_dtype.name}, shards={self.shard_num}>"
        )

    def _rows(self, keys: tf.Tensor, rows: Any, argument: str) -> tf.Tensor:
        rows = arguments.tensor_of(rows, self.value_dtype, argument, self.name)
        arguments.check_rows(keys, rows, self.dim, argument, self.name)
        return rows


def _check_eager() -> None:
    """Refuses a tf.Graph that no tf.function traces, as sessions of TensorFlow 1 have it.

    Raises:
        RuntimeError: There is no eager execution around.
    """
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A tf_embed.Variable must be made in eager execution or in a tf.function. "
                "Received: a call in a tf.Graph, as for a session of TensorFlow 1"
            )


def _check_strategy(key_dtype: tf.DType) -> None:
    """Refuses a tf.distribute strategy whose replicas could not share a table.

    Args:
        key_dtype: Dtype of the keys.

    Raises:
        ValueError: The table would be made under such a one. Named.
    """
    strategy = tf.distribute.get_strategy()
    known = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
    if tf.distribute.has_strategy() and not isinstance(strategy, known):
        raise ValueError(
            "Dynamic tables may be made under tf.distribute.MirroredStrategy and "
            f"OneDeviceStrategy so far. Received: {type(strategy).__name__}"
        )
    if key_dtype == tf.string and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Tables with string keys are for one replica so far: TensorFlow can't join the "
            "gradients of several. Received: key_dtype=string, "
            f"{strategy.num_replicas_in_sync} replicas"
        )


def _init_size() -> int:
    """The number of rows to make room for when nobody says."""
    text = os.environ.get(INIT_SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_INIT_SIZE
    try:
        return arguments.positive_int(int(text), INIT_SIZE_VARIABLE, least=0)
    except ValueError as error:
        raise ValueError(
            f"The environment variable {INIT_SIZE_VARIABLE} must be a number of rows. Received: "
            f"{INIT_SIZE_VARIABLE}={arguments.shown(text)}"
        ) from error

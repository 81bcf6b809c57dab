# SPDX-License-Identifier: Apache-2.0
"""`Variable`: a dynamic embedding table as a TensorFlow object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.saving.progress import Progress
from tf_embed.sharded.new_table import check_eager, check_strategy, default_init_size, new_table
from tf_embed.sharded.worker_sharding import WorkerSharding, as_sharding
from tf_embed.table.initializers import row_initializer
from tf_embed.table.placement import place
from tf_embed.table.policies import MAX_ROWS, TablePolicy, check_policy
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.storage import Storage, check_storage_of_table
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.eviction import Eviction
from tf_embed.variable.memory_report import MemoryReport, memory_report
from tf_embed.variable.row_arguments import RowArguments
from tf_embed.variable.row_files import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_NAME,
    MAX_BUFFER_BYTES,
    RowFiles,
)
from tf_embed.variable.row_statistics import RowStatistics
from tf_embed.variable.table_text import kind_text, options_text, size_texts
from tf_embed.variable.table_training import TableTraining


class Variable(tf.Module):
    """An embedding table with an open vocabulary, keyed by integers or strings.

    The vocabulary need not be declared. Every integer of the key dtype and every string is a valid
    key. A lookup of an absent key returns its initial row and stores nothing. `upsert`, `accum` and
    training insert rows. The rows are partitioned into shards, a shard for each entry of `devices`.

    All methods work in eager execution and in a tf.function, and may be called from several threads
    at once. `lookup` also works in tf.data pipelines and in loaded SavedModels. tf.train.Checkpoint
    and SavedModels save the rows, and a checkpoint restores into any number of shards.

    A tensor of a narrower dtype, such as int32 for int64 keys, is cast; a dtype with numbers that
    are no keys raises TypeError. In a graph, keys that a cast has rounded or wrapped raise
    tf.errors.InvalidArgumentError; see `tf_embed.layers.DynamicEmbedding`.

    `lookup` is not differentiable. `tf_embed.embedding_lookup` is differentiable with respect to
    `trainable_variables`. In a Keras model use `tf_embed.layers.DynamicEmbedding`.

    Args:
        key_dtype: tf.int64, tf.int32, tf.uint64, tf.uint32 or tf.string. A string key may hold any
            bytes. Distinct strings never share a row.
        value_dtype: tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.int32, tf.int64,
            tf.bool or tf.string. Only floating dtypes are trainable.
        dim: Number of weights in a row, at least 1.
        name: The name in messages. It also makes the initial rows of variables with the same seed
            differ. At most 1024 bytes in UTF-8, without control characters.
        initializer: The initial row of a key: None for 0 or empty strings, a number, an array
            [dim], a Keras initializer or its name, or a callable (shape, dtype) -> rows. String
            values take one string, or `dim` of them. Keras's uniform, normal, truncated normal,
            VarianceScaling, Glorot, He and LeCun initializers (with fans as for the shape (1, dim))
            make the row of a key a function of the seed, the name and the key. That row is the same
            in any order, batch, number of shards and process. A callable is called for the distinct
            absent keys of each batch, so its rows depend on the batches. If rows expire, pooled
            lookups and training call it for present keys too.
        trainable: Whether optimizers may change rows.
        checkpoint: Whether tf.train.Checkpoint saves the rows. SavedModels always do.
        init_size: Rows to reserve in all shards together, int(init_size / shards) in each. A table
            that is sharded over workers divides it among them. 0 means the environment variable
            TF_HASHTABLE_INIT_SIZE if it is set, otherwise 8192.
        policy: A `TablePolicy`, for admission and eviction. Default: a key gets its row with its
            first training step, and keeps it.
        storage: A `Storage`: the memories and the folder on disk that hold the rows, and the bytes
            of each. Default: one unbounded memory, the GPU's or the host's.
        devices: The device name of each shard, CPUs or GPUs. Names may repeat, so `["/CPU:0"] * 4`
            makes four shards. `["/GPU:0", "/GPU:1"]` puts half of the keys on each of two GPUs.
            Default: one shard, on the first GPU if there is one and everything that the table is
            made with works there, otherwise on the CPU.
        partitioner: A function of keys [n] and the number of shards that returns the shard of each
            key [n], int32 or int64. With several GPUs it decides the GPU too. Default:
            `default_partition_fn`, the remainder.
        distribution: The placement of a variable that is created in the scope of a
            tf.distribute.MultiWorkerMirroredStrategy. "sharded" keeps the row of a key on one
            worker, and a `tf_embed.distributed.WorkerSharding` does the same with settings. "local"
            gives each worker its own table. Outside such a scope it has no effect. All workers must
            call the methods of a sharded variable in the same order. `devices`, `partitioner` and
            `storage` apply to each worker, which has its own folder in the `path`; `max_rows` of a
            policy applies to all workers together. In the scope of a
            tf.distribute.ParameterServerStrategy the rows are on its servers, in host memory or
            tiers below it, and "local" raises an error. Default: None, "sharded".

    Raises:
        TypeError: If a dtype or the type of an argument is not supported.
        ValueError: If a value is out of range, a device can't hold tables, the initializer can't
            make rows of this dtype and dim, or the tf.distribute strategy is none of
            MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy and
            ParameterServerStrategy.

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
        *,
        name: str = DEFAULT_NAME,
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        policy: TablePolicy | None = None,
        storage: Storage | None = None,
        devices: Sequence[str] | str | None = None,
        partitioner: PartitionFn = default_partition_fn,
        distribution: WorkerSharding | str | None = None,
    ) -> None:
        check_eager()
        super().__init__()  # without a name, which would have to be an identifier
        name = validation.name_of(name)
        validation.function_of(partitioner, "partitioner")
        key_dtype = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype")
        value_dtype = validation.dtype_of(value_dtype, validation.VALUE_DTYPES, "value_dtype")
        dim = validation.int_in(dim, "dim", most=validation.MAX_DIM)
        check_strategy(key_dtype)
        check_storage_of_table(storage)
        placement = place(devices, key_dtype, value_dtype, storage)
        num_shards = len(placement.devices)
        check_policy(policy, num_shards)
        init_size = validation.int_in(init_size, "init_size", least=0, most=MAX_ROWS)
        init_size = init_size or default_init_size()
        self._variable_name = name
        self.checkpoint = validation.flag(checkpoint, "checkpoint")
        self.init_size = init_size
        options = TableOptions(
            name=name,
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            dim=dim,
            num_shards=num_shards,
            init_size=init_size // num_shards,
            initializer=row_initializer(initializer, dim=dim, value_dtype=value_dtype, name=name),
            partition_fn=partitioner,
            device=placement.devices[0],
            device_reason=placement.reason,
            shard_devices=placement.several_gpus,
            policy=policy,
            storage=storage,
        )
        self._table = self._new_table(options, as_sharding(distribution))
        # Rows on parameter servers are not on this process's devices.
        is_here = self._table.options.device == options.device
        here = placement.devices if is_here else (self._table.options.device,) * num_shards
        self._device_names = here
        is_trained = validation.flag(trainable, "trainable") and value_dtype.is_floating
        self._anchor = Anchor(self._table, self.checkpoint) if is_trained else None
        # No component refers to the variable.
        self._arguments = self._arguments_of_methods()
        self._statistics = RowStatistics(self._table, self._arguments)
        self._eviction = Eviction(self._table)
        self._training = TableTraining(self._table, self._anchor)
        self._files = RowFiles(self._table)

    # Properties.

    @property
    def name(self) -> str:
        """The name in messages, from the constructor."""
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
    def initializer(self) -> Any:
        """The `initializers.RowInitializer` that makes the initial rows."""
        return self._table.options.initializer

    @property
    def storage(self) -> Storage | None:
        """The tiers that hold the rows, and their bounds. None means one unbounded memory."""
        return self._table.options.storage

    @property
    def table(self) -> Table:
        """The table that holds all shards."""
        return self._table

    # Reads and writes.

    def upsert(self, keys: Any, values: Any, *, distinct: bool = False) -> tf.Operation | None:
        """Writes rows, and inserts new keys.

        If a key occurs more than once, its last position wins. Rows that are already present keep
        their optimizer slots.

        Args:
            keys: Integers, or strings, of any shape.
            values: keys.shape + [dim].
            distinct: A hint that all keys are distinct, which skips the search for duplicates. The
                search takes a noticeable part of a large write to present rows. If a key does occur
                twice, any of its positions wins.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If a dtype is wrong.
            ValueError: If the shapes do not match.
            tf.errors.InvalidArgumentError: If shapes that are unknown until the operation runs do
                not match.
        """
        keys = self._arguments.keys(keys)
        values = self._arguments.rows(keys, values, "values")
        distinct = validation.flag(distinct, "distinct")
        return self._table.insert_or_assign(keys, values, distinct)

    def accum(
        self,
        keys: Any,
        old_values: Any,
        new_values: Any,
        exists: Any,
    ) -> tf.Operation | None:
        """Adds `new_values - old_values` to present rows, and inserts `new_values` of absent keys.

        If `exists` and the key is present, the difference is added. If not `exists` and the key is
        absent, `new_values` is inserted. Otherwise the table changed after the caller's lookup, and
        nothing is done. If a key occurs more than once, all its differences are added, each in the
        dtype of the rows. Rows of bools or strings can't be summed, so they can't be accumulated.

        Args:
            keys: Integers, or strings, of any shape.
            old_values: The rows that a lookup returned, keys.shape + [dim].
            new_values: The wanted rows, keys.shape + [dim].
            exists: Whether the lookup found the keys, bool, keys.shape.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If a dtype is wrong, or the values are bools or strings.
            ValueError: If the shapes do not match.

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
        keys = self._arguments.keys(keys)
        old_values = self._arguments.rows(keys, old_values, "old_values")
        new_values = self._arguments.rows(keys, new_values, "new_values")
        exists = self._arguments.of_keys(keys, exists, tf.bool, "exists")
        return self._table.accum(keys, old_values, new_values, exists)

    def lookup(
        self, keys: Any, return_exists: bool = False, *, training: bool = False
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Looks up rows. An absent key yields its initial row, and is not inserted.

        In tf.data, an iterator over such lookups can be saved in a checkpoint, without the rows.

        Args:
            keys: Integers, or strings, of any shape.
            return_exists: Whether to also return which keys are present.
            training: Whether this counts as a use of the rows, see `TablePolicy`.

        Returns:
            Rows, keys.shape + [dim]; with `return_exists` also a bool tensor, keys.shape.

        Raises:
            TypeError: If a dtype is wrong, or `training` is a tensor.
        """
        values, exists = self._table.find(self._arguments.keys(keys), training=training)
        return (values, exists) if validation.flag(return_exists, "return_exists") else values

    def prefetch(self, keys: Any) -> tf.Operation | None:
        """Promotes rows from lower tiers to the cache, ahead of their use.

        No row changes, and no key is inserted. A call promotes at most half as many rows as the
        cache holds. In a table without a cache (see `Storage`) it does nothing.

        Args:
            keys: Integers, or strings, of any shape. Keys without a row are skipped.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If `keys` have a wrong dtype.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1)
            >>> v.upsert([1, 2], [[0.0], [1.0]])
            >>> v.prefetch([2, 3])
            >>> int(v.size())
            2
        """
        return self._table.prefetch(self._arguments.keys(keys))

    def remove(self, keys: Any) -> tf.Operation | None:
        """Removes keys, with their rows and optimizer slots. Absent keys are ignored.

        Gradients of `gradient_accumulation_steps` that wait for the keys are dropped. A tf.function
        does this if it is traced after the optimizer's first step.

        Args:
            keys: Integers, or strings, of any shape.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If the dtype is wrong.
        """
        return self._table.erase(self._arguments.keys(keys))

    def clear(self) -> tf.Operation | None:
        """Removes all keys and frees their memory. Gradients that wait are dropped as in `remove`.

        Returns:
            The operation in a graph, None in eager execution.
        """
        return self._table.clear()

    def size(self) -> tf.Tensor:
        """Counts the keys of all shards; int64 scalar."""
        return self._table.size()

    def export(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies a consistent snapshot of all keys and rows, in no particular order.

        Returns:
            Keys [n] and rows [n, dim].
        """
        exported = self._table.export(with_slots=False, with_policy=False)
        return exported.keys, exported.values

    # Training.

    @property
    def trainable(self) -> bool:
        """Whether optimizers may change rows."""
        return self._training.is_on

    @property
    def anchor(self) -> Anchor | None:
        """The Keras variable that stands for the table on a tf.GradientTape.

        None if the rows are not trainable.
        """
        return self._anchor

    @property
    def trainable_variables(self) -> tuple[Anchor, ...]:
        """The variables for gradients and optimizers: the anchor, if the rows are trainable."""
        return self._training.anchors

    def slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """The slots of an optimizer, such as Adam's momentum and velocity.

        Args:
            optimizer: A `tf_embed.DynamicEmbeddingOptimizer`, the Keras optimizer in it, or the
                table's own optimizer.

        Returns:
            A view of each slot, with `lookup`, `export` and `size`. The list is empty if the
            optimizer does not train this variable or is not built yet.

        Raises:
            TypeError: If `optimizer` is not a Keras optimizer.

        Example:
            >>> import keras, tf_embed
            >>> v = tf_embed.Variable(dim=2, name="users")
            >>> adam = keras.optimizers.Adam(0.1, name="adam")
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(adam)
            >>> with tf.GradientTape() as tape:
            ...     loss = tf.reduce_sum(tf_embed.embedding_lookup(v, [5]))
            >>> optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            >>> slots = v.slot_variables(optimizer)
            >>> [slot.name for slot in slots]
            ['users/adam/momentum', 'users/adam/velocity']
            >>> slots[0].lookup([5]).numpy()
            array([[0.1, 0.1]], dtype=float32)
        """
        return self._training.slots_of(optimizer)

    # Admission, eviction and statistics.

    @property
    def policy(self) -> TablePolicy | None:
        """The policy of admission and eviction."""
        return self._table.options.policy

    def restrict(self, num_reserved: Any) -> tf.Tensor | None:
        """Evicts rows, by the policy, until `num_reserved` are left, and frees their memory.

        Expired rows are removed first, then the first rows in the eviction order, until exactly
        `num_reserved` rows are left in all shards together. Optimizer slots leave with their rows.
        Other variables do not change.

        Args:
            num_reserved: The most rows that stay, an int or an integer scalar.

        Returns:
            The number of removed rows, int64 scalar. None, after a warning, without a policy.

        Raises:
            TypeError: If the argument has the wrong type.
            ValueError: If `num_reserved` is negative, or the policy has no eviction order.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 2, 3], [[0.0]] * 3)
            >>> v.upsert([2, 3], [[1.0]] * 2)
            >>> v.upsert([3], [[2.0]])
            >>> int(v.restrict(2))
            1
            >>> sorted(v.export()[0].numpy().tolist())
            [2, 3]
        """
        return self._eviction.restrict(num_reserved)

    def drain_evicted(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows that the policy evicted since the last call, and clears the log.

        The log has the rows that were evicted by a bound or by `restrict`, and expired rows. It
        does not have rows that `remove` or `clear` removed. With it you can keep evicted rows
        elsewhere.

        Returns:
            Keys [n] in the order of their eviction, and rows [n, dim] as of that moment. A key that
            was inserted and evicted again occurs twice.

        Raises:
            ValueError: If the variable keeps no log, because its policy has no `log_evicted`.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(2, log_evicted=True))
            >>> for key in (1, 2, 3):
            ...     v.upsert([key], [[key / 2]])
            >>> [tensor.numpy().tolist() for tensor in v.drain_evicted()]
            [[1], [[0.5]]]
        """
        return self._eviction.drain()

    def stats(self) -> dict[str, Any]:
        """Memory use of the variable, and counters of its events since it was created.

        Cheap: it reads counters and samples some keys.

        Returns:
            A dict, of Python numbers in eager execution, otherwise of scalar tensors:

            - rows: Number of keys.
            - payload_bytes: Bytes of weights, slots and statistics of all rows.
            - index_bytes: Bytes of the index from keys to rows, and of the statistics of rows on
              disk.
            - slack_bytes: Bytes of rows that are free or not used yet.
            - pinned_bytes: The part of `payload_bytes` and `slack_bytes` that a table on a GPU has
              in pinned host memory, see `Storage`.
            - admission_bytes: Bytes of the counters of keys that wait for admission.
            - load: The load factor of the index, from 0 to 1; of the cache, if there are tiers.
            - mean_probe_length: The mean number of cache lines of the index that a lookup reads,
              over a sample; 0 without rows.
            - admitted: Rows that a policy with a bound, admission or TTL admitted.
            - held_back: Times that a key got no row because it had too few steps, once per step.
            - refused: Times that a key got no row because there was no room.
            - evicted: Rows that were evicted to make room, or by `restrict`.
            - expired: Rows that left because they were not used for too long.
            - undrained: Rows that wait for `drain_evicted`.
            - hits, misses: Keys that lookups of all kinds found, and did not find.

            For a table with tiers, from a `path` or `gpu_cache` in its `storage`; otherwise 0 or
            None:

            - cache_rows: Rows in the cache. `payload_bytes` counts these rows.
            - cache_hits, cache_misses: Keys that lookups and training found in the cache, and keys
              that they found below it. Keys without a row are in neither.
            - cache_hit_rate: The fraction of these that was in the cache, from 0 to 1. None before
              the first, NaN in a graph.
            - promoted: Rows that were promoted to the cache, by use or by `prefetch`.
            - demoted: Rows that the cache evicted to the tiers below.
            - demoted_unwritten: Demoted rows that were unchanged, and so were not written again.
            - host_rows, host_bytes: Rows in host memory below the cache of a table on a GPU,
              including rows that are also in the cache, and their bytes.
            - disk_rows: Rows on disk, including rows that are also in the cache.
            - disk_live_bytes: Bytes of these rows.
            - disk_bytes: Bytes of files.
            - disk_rows_read, disk_read_bytes, disk_read_requests: Rows that were read from disk,
              the bytes that were read for them, and the blocks that were requested.
            - read_amplification: Bytes read, divided by the bytes of the rows that were wanted;
              at least 1. None before the first read, NaN in a graph.
            - disk_rows_written, disk_written_bytes: Rows that were written to disk, and the bytes
              that were written for them.
            - disk_compacted_bytes: Bytes that compaction of files read and wrote.
            - disk_queue_depth: The most disk requests that were in flight at once.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=4)
            >>> v.upsert([1, 2], [[0.0] * 4] * 2)
            >>> _ = v.lookup([1, 2, 3])
            >>> stats = v.stats()
            >>> stats["rows"], stats["payload_bytes"], stats["hits"], stats["misses"]
            (2, 32, 2, 1)
        """
        return self._statistics.of_table()

    def memory_report(self) -> MemoryReport:
        """Reports the bytes of the rows in each tier, and how many rows fit.

        Bytes of a row include the slots of the optimizer. A table's own optimizer counts at once.
        The model's optimizer counts once it is built, which the first step of `fit` does.

        Returns:
            A `MemoryReport`, with the numbers as attributes and a text table as its `str`. On a GPU
            the split of rows between GPU and host is an estimate.

        Raises:
            RuntimeError: If it is called while a graph is traced.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=4, name="items")
            >>> v.upsert([1, 2], [[0.0] * 4] * 2)
            >>> report = v.memory_report()
            >>> report.row_bytes, report.tiers[0].rows
            (16, 2)
            >>> print(report)
            'items': 2 rows. A row takes 16 bytes: weights 16, slots 0, statistics 0.
            ...
        """
        return memory_report(self._table)

    def row_statistics(self, keys: Any) -> dict[str, tf.Tensor]:
        """The usage statistics of rows, as policies need them. This call is not a use itself.

        Args:
            keys: Integers of any shape.

        Returns:
            A dict of tensors of keys.shape. "exists" is bool. The others are int64, 0 for absent
            keys, and there only if the variable keeps them:

            - last_step: The step of the last use. Steps count the calls that changed rows.
            - last_time_ms: The time of the last use, in milliseconds since 1970.
            - count: The number of steps with a use.
            - score: The score from `set_scores`.
            - last_epoch: The latest epoch of a use.

        Raises:
            TypeError: If the dtype is wrong.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 1], [[0.0], [1.0]])
            >>> _ = v.lookup([1], training=True)
            >>> statistics = v.row_statistics([1, 2])
            >>> {name: value.numpy().tolist() for name, value in statistics.items()}
            {'exists': [True, False], 'last_step': [2, 0], 'count': [2, 0]}
        """
        return self._statistics.of_rows(keys)

    def set_scores(self, keys: Any, scores: Any) -> tf.Operation | None:
        """Sets the scores of rows, for `eviction="score"`. A new row has the score 0.

        Args:
            keys: Integers of any shape. Absent keys are ignored. If a key occurs more than once,
                its last position wins.
            scores: Integers, keys.shape. The row with the lowest score is evicted first.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If a dtype is wrong.
            ValueError: If the variable keeps no scores, or the shapes do not match.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(2, eviction="score"))
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.set_scores([1], [5])
            >>> v.upsert([3], [[0.0]])
            >>> sorted(v.export()[0].numpy().tolist())
            [1, 3]
        """
        return self._statistics.set_scores(keys, scores)

    def set_clock(
        self, step: Any = None, time_ms: Any = None, epoch: Any = None
    ) -> tf.Operation | None:
        """Sets the clock of the usage statistics, to replay a log or to test a policy.

        By default each call that changes rows is a step, counted from 1, and the time is the
        system's.

        Args:
            step: The number of the present step, from 1 to 2**62. Default: unchanged.
            time_ms: The time in milliseconds since 1970. The clock stands still there until the
                next call. "system" returns to the system's time. Default: unchanged.
            epoch: The number of the present epoch, from 0 to 2**31 - 1, for an `eviction` by
                epochs. With `steps_per_epoch` the next epoch still begins at the same step. A row
                keeps the latest epoch of its uses, even if the clock is set back. Default: the
                epoch follows from the steps.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If an argument is not an integer.
            ValueError: If an argument is out of range, or the variable keeps no epochs.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(ttl_seconds=60))
            >>> v.set_clock(time_ms=0)
            >>> v.upsert([1], [[0.0]])
            >>> v.set_clock(time_ms=60_000)
            >>> v.upsert([2], [[0.0]])
            >>> _ = v.restrict(2)
            >>> v.export()[0].numpy().tolist()
            [2]
        """
        return self._statistics.set_clock(step, time_ms, epoch)

    def restart_ttl(self) -> tf.Tensor:
        """Begins the time to live of all rows now, including expired rows.

        For a table that is loaded after a pause and trained on. Rows keep the time of their last
        use in every save, so a pause longer than `ttl_seconds` leaves only expired rows. Lookups
        still show them, but training begins each of them again, optimizer slots included. The load
        logs a warning with their number. Call this between the load and the next step to keep them.

        It reads all rows once, also those on disk. Of a table that is sharded over workers, each
        worker restarts its own rows. Steps, counts, epochs and scores do not change.

        Returns:
            The number of rows that had expired, an int64 scalar.

        Raises:
            ValueError: If the variable has no `ttl_seconds`, or is in Redis.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(ttl_seconds=60))
            >>> v.set_clock(time_ms=0)
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.set_clock(time_ms=90_000)  # as in a process that loads the rows later
            >>> int(v.restart_ttl())
            2
            >>> v.set_clock(time_ms=149_000)
            >>> int(v.restart_ttl())
            0
        """
        return self._statistics.restart_ttl()

    # Files.

    def save_rows(
        self,
        path: Any,
        *,
        file_name: str | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Writes all rows to files: weights, optimizer slots, and usage statistics.

        The files hold a consistent snapshot. Writers of the variable wait until it is written;
        lookups do not wait. No copy of the table is made, only a buffer of `buffer_bytes` or of a
        256th of a shard, whichever is larger. The workers, servers or GPUs of a sharded variable
        write a part each, and each part is a snapshot.

        A save atomically replaces an earlier save of that name in the folder. After a failure, or
        after the death of a process, the folder holds the old save or the new one, never a mixture.
        If several processes or GPUs write parts, this holds for each part. Use a new folder for
        each save if a process may die between two parts. When all parts are there, saves by another
        number of processes are removed. Only one save at a time may write the files of a name.

        Args:
            path: The folder, a str, a path or a scalar string tensor. It is created. Any path that
                tf.io.gfile supports, which includes s3:// with tensorflow-io.
            file_name: The name in file names. Default: None, the variable's name.
            buffer_bytes: Approximate bytes of a block of rows, from 1 to 2^30. Default: 4 MiB.
            progress: None, True or a function. True prints a bar, as Keras does; if several
                processes save, the first one prints. A function is called with `done_rows` and
                `total_rows`, two ints, at most ten times a second: first with no row done, then by
                a thread while rows are written, and a last time, with two equal numbers, when the
                files are complete. Only rows that this process saves count. If a call raises, no
                further call is made, and the error is raised once the save is complete. A save that
                fails makes no last call. A call that does not return keeps the save from returning.
                In eager execution only. Default: None.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument is out of range, if another variable with the default name
                has already saved into the folder, or if `progress` is given in a graph.
            tf.errors.OpError: If the files can't be written. The folder keeps its earlier save.

        Example:
            >>> import tempfile, tf_embed
            >>> folder = tempfile.mkdtemp()
            >>> v = tf_embed.Variable(dim=2)
            >>> v.upsert([1, 2], [[0.0, 1.0], [2.0, 3.0]])
            >>> v.save_rows(folder)
            >>> other = tf_embed.Variable(dim=2, devices=["/CPU:0"] * 3)
            >>> other.load_rows(folder)
            >>> other.lookup([2]).numpy().tolist()
            [[2.0, 3.0]]
            >>> v.save_rows(folder, progress=print)
            0 2
            2 2
        """
        place = self._files.place(path, file_name)
        buffer_bytes = validation.int_in(buffer_bytes, "buffer_bytes", most=MAX_BUFFER_BYTES)
        return self._files.save(place, buffer_bytes=buffer_bytes, progress=progress)

    def load_rows(
        self, path: Any, *, file_name: str | None = None, progress: Progress = None
    ) -> tf.Operation | None:
        """Loads all rows that `save_rows` wrote, from any number of shards and processes.

        Rows of present keys are replaced, and all other rows stay. Weights, optimizer slots and
        usage statistics are loaded as saved. If the rows exceed the bound of a policy, the first
        rows in its eviction order are evicted. A variable without rows also takes over the seed of
        initial rows and, from a save by one process, the admission counts. So training continues
        exactly as it would have with the saved table. Build a `DynamicEmbeddingOptimizer` before
        you load, because an optimizer that starts on a table drops the slots that it finds. Each
        worker or server of a sharded variable loads the rows that it owns.

        All files are read and checked, every byte, before the first row is loaded. A file that is
        damaged, incomplete, or of another dtype or dim raises an error, and the table does not
        change.

        Args:
            path: The folder, as in `save_rows`.
            file_name: The name in file names. Default: None, the variable's name.
            progress: None, True or a function, as in `save_rows`. There is no call while files are
                checked. All rows that this process reads count, including rows that it leaves to
                others. All calls are made by the thread that loads. Default: None.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If `file_name` is out of range, or if `progress` is given in a graph.
            tf.errors.NotFoundError: If the folder holds no complete save of that name.
            tf.errors.DataLossError: If a file is damaged. The message names the file.
            tf.errors.InvalidArgumentError: If the rows have another dtype or dim.
            tf.errors.FailedPreconditionError: If the variable has rows with the slots of another
                optimizer than the saved rows.
        """
        return self._files.load(self._files.place(path, file_name), progress=progress)

    # Hooks of TensorFlow.

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """The objects that TensorFlow saves, without the table if `checkpoint` is False."""
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type == "checkpoint" and not self.checkpoint:
            children.pop("_table")
        return children

    def __repr__(self) -> str:
        table = self._table
        texts = [*kind_text(table), *size_texts([table]), *options_text(table)]
        return f"<tf_embed.Variable name={validation.shown(self.name)}, {', '.join(texts)}>"

    def _new_table(self, options: TableOptions, sharding: WorkerSharding | None) -> Table:
        """Makes the table; a subclass may change its options."""
        return new_table(options, sharding)

    def _arguments_of_methods(self) -> RowArguments:
        """Checks the keys and rows that methods take; a subclass may have other checks."""
        return RowArguments(self._table.options)

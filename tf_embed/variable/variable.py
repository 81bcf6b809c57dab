# SPDX-License-Identifier: Apache-2.0
"""`Variable`: a dynamic embedding table as a TensorFlow object."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.exchange.worker_sharding import WorkerSharding, as_sharding
from tf_embed.saving.progress import Progress
from tf_embed.table.creators import KVCreator, policy_of, storage_of
from tf_embed.table.devices import device_names
from tf_embed.table.initializers import row_initializer
from tf_embed.table.new_table import new_table
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.table.restrict_policies import check_policies, notes_updates
from tf_embed.table.shard import Shard
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.storage import Storage
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.creation import check_eager, check_strategy, default_init_size
from tf_embed.variable.eviction import Eviction
from tf_embed.variable.memory_report import MemoryReport, memory_report
from tf_embed.variable.row_arguments import RowArguments
from tf_embed.variable.row_files import DEFAULT_BUFFER_BYTES, DIRPATH_VARIABLE, RowFiles
from tf_embed.variable.row_statistics import RowStatistics
from tf_embed.variable.table_text import kind_text, settings_text, size_texts
from tf_embed.variable.table_training import TableTraining

DEFAULT_NAME = "DynamicEmbedding_Variable"


class Variable(tf.Module):
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
        init_size: Rows to make room for, in all shards together, int(init_size / shards) each; a
            table that is sharded over workers divides it among them. 0 takes the environment
            variable TF_HASHTABLE_INIT_SIZE, or else 8192.
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
        storage: A `Storage`: which memories, and which folder on disk, hold the rows, and how many
            bytes of each. Default: what the `kv_creator` says, otherwise one memory without a
            bound, the GPU's or the host's.
        distribution: How a variable that is made in the scope of a
            tf.distribute.MultiWorkerMirroredStrategy is spread over its workers: "sharded", each
            key has a row on one of them; a `tf_embed.distributed.WorkerSharding`, the same with
            settings; or "local", each worker has a table of its own. Elsewhere it has no effect.
            All workers must call the methods of a sharded variable in the same order. `devices`,
            `partitioner` and `storage` are those of each worker, which has a folder of its own in
            the `path`; `max_rows` of a policy is of all together. In the scope of a
            tf.distribute.ParameterServerStrategy rows are on its servers, in host memory or tiers
            below it, and "local" is refused. Default: None, "sharded".

    Raises:
        TypeError: A dtype or a type that is not supported.
        ValueError: A value out of range, a `kv_creator` of Redis or beside a `policy`, a device
            that has no tables, an initializer that can't give rows of this dtype and dim, or a
            tf.distribute strategy other than MirroredStrategy, MultiWorkerMirroredStrategy,
            OneDeviceStrategy and ParameterServerStrategy.

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
        storage: Storage | None = None,
        distribution: WorkerSharding | str | None = None,
    ) -> None:
        del short_file_name
        check_eager()
        super().__init__()  # a tf.Module's own name must be an identifier; ours need not
        name = validation.name_of(name)
        validation.function_of(partitioner, "partitioner")
        key_dtype = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype")
        value_dtype = validation.dtype_of(value_dtype, validation.VALUE_DTYPES, "value_dtype")
        dim = validation.positive_int(dim, "dim", most=validation.MAX_DIM)
        check_strategy(key_dtype)
        policy = policy_of(kv_creator, policy)
        storage = storage_of(kv_creator, storage)
        names = device_names(devices, key_dtype, value_dtype)
        check_policies(policy, restrict_policy, len(names))
        init_size = validation.positive_int(init_size, "init_size", least=0, most=MAX_ROWS)
        init_size = init_size or default_init_size()
        if kv_creator is not None and kv_creator.init_size is not None:
            init_size = kv_creator.init_size
        self._variable_name = name
        self._device_names = names
        self.shared_name = shared_name
        self.checkpoint = validation.flag(checkpoint, "checkpoint")
        self.init_size = init_size
        self.kv_creator = kv_creator
        self.bp_v2 = validation.flag(bp_v2, "bp_v2")
        sharding = as_sharding(distribution)
        self._table = new_table(
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
            ),
            sharding,
            restrict_policy,
        )
        is_trained = validation.flag(trainable, "trainable") and value_dtype.is_floating
        self._anchor = Anchor(self._table, self.checkpoint) if is_trained else None
        # No part knows the variable. All are there before a restrict policy asks the variable.
        self._arguments = self._arguments_of_methods()
        self._statistics = RowStatistics(self._table, self._arguments)
        self._eviction = Eviction(self._table)
        self._training = TableTraining(self._table, self._anchor)
        self._files = RowFiles(self._table, is_named=name != DEFAULT_NAME)
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
    def storage(self) -> Storage | None:
        """The tiers that hold the rows, and their bounds; None: one memory, without a bound."""
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
        with validation.name_scope(name, "upsert"):
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
        with validation.name_scope(name, "accum"):
            keys = self._arguments.keys(keys)
            old_values = self._arguments.rows(keys, old_values, "old_values")
            new_values = self._arguments.rows(keys, new_values, "new_values")
            exists = self._arguments.of_keys(keys, exists, tf.bool, "exists")
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
        with validation.name_scope(name, "lookup"):
            values, exists = self._table.find(self._arguments.keys(keys), training=training)
        return (values, exists) if validation.flag(return_exists, "return_exists") else values

    def prefetch(self, keys: Any, name: str | None = None) -> tf.Operation | None:
        """Brings rows that are in lower tiers up to the cache, ahead of their use.

        No row changes, and no key is inserted. A call brings up at most half as many rows as the
        cache has room for. In a table without a cache (see `Storage`) there is nothing to bring up.

        Args:
            keys: Integers, or strings, of any shape. Keys without a row are skipped.
            name: Name of the operation.

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
        with validation.name_scope(name, "prefetch"):
            return self._table.prefetch(self._arguments.keys(keys))

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
        with validation.name_scope(name, "remove"):
            return self._table.erase(self._arguments.keys(keys))

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """Removes all keys and gives the memory back.

        Args:
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "clear"):
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
            index = validation.positive_int(index, "index", least=0)
            if index >= self.shard_num:
                raise ValueError(
                    f"`index` must be less than the number of shards of {self.name!r}, "
                    f"{self.shard_num}. Received: index={index}"
                )
        with validation.name_scope(name, "size"):
            return self._table.size(-1 if index is None else index)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies all keys and rows, as they are at one moment, in no particular order.

        Args:
            name: Name of the operation.

        Returns:
            Keys [n] and rows [n, dim].
        """
        with validation.name_scope(name, "export"):
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

        None where the rows are not trained.
        """
        return self._anchor

    @property
    def trainable_variables(self) -> tuple[Anchor, ...]:
        """What to take gradients of and to hand to an optimizer: the anchor, if trainable."""
        return self._training.anchors

    @property
    def trainable_store(self) -> dict[str, Anchor]:
        """`trainable_variables` by name."""
        return {anchor.table_name: anchor for anchor in self._training.anchors}

    def get_trainable_by_name(self, name: str) -> Anchor | None:
        """What to take gradients of and to hand to an optimizer, by the name of a lookup.

        A variable has one anchor, whatever its lookups are called, so every name gives that, also
        before the first lookup.

        Args:
            name: The `name` of an `embedding_lookup`, or any other.

        Returns:
            The anchor; None where rows are not trained.

        Raises:
            TypeError: `name` is no str.
            RuntimeError: In a graph. Ask outside of the tf.function, or take `anchor`.

        Example:
            >>> import keras, tensorflow as tf, tf_embed
            >>> params = tf_embed.tfra.get_variable("foo", dim=4)
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
            >>> @tf.function
            ... def loss_fn(ids):
            ...     emb = tf_embed.embedding_lookup(params, ids, name="user_embedding")
            ...     return tf.reduce_mean(tf.reduce_sum(emb, axis=1))
            >>> ids = tf.constant([1, 2, 3], tf.int64)
            >>> for i in range(10):
            ...     _ = optimizer.minimize(
            ...         lambda: loss_fn(ids),
            ...         var_list=[params.get_eager_trainable_by_name("user_embedding")],
            ...     )
            >>> int(params.size())
            3
            >>> tf_embed.tfra.forget_variable("foo")
        """
        return self._training.anchor_of_lookup(name)

    def get_eager_trainable_by_name(self, name: str) -> Anchor | None:
        """Gives what `get_trainable_by_name` gives, under TFRA's other name.

        Args:
            name: As in `get_trainable_by_name`.

        Returns:
            As `get_trainable_by_name`.
        """
        return self.get_trainable_by_name(name)

    def get_slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """What an optimizer keeps beside the rows, such as Adam's momentum and velocity.

        Args:
            optimizer: A `tf_embed.DynamicEmbeddingOptimizer`, the Keras optimizer in it, or the
                table's own optimizer.

        Returns:
            A view for each slot, with `lookup`, `export` and `size`; none where the optimizer does
            not train this variable, or has not yet been built.

        Raises:
            TypeError: It is no Keras optimizer.

        Example:
            >>> import keras, tf_embed
            >>> v = tf_embed.Variable(dim=2, name="users")
            >>> adam = keras.optimizers.Adam(0.1, name="adam")
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(adam)
            >>> with tf.GradientTape() as tape:
            ...     loss = tf.reduce_sum(tf_embed.embedding_lookup(v, [5]))
            >>> optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            >>> slots = v.get_slot_variables(optimizer)
            >>> [slot.name for slot in slots]
            ['users/adam/momentum', 'users/adam/velocity']
            >>> slots[0].lookup([5]).numpy()
            array([[0.1, 0.1]], dtype=float32)
        """
        return self._training.slots_of(optimizer)

    # Admission, eviction and statistics.

    @property
    def policy(self) -> TablePolicy | None:
        """By which rows come and leave."""
        return self._table.options.policy

    def restrict(self, num_reserved: Any, **kwargs: Any) -> Any:
        """Removes rows, by the policy, until `num_reserved` are left, and gives memory back.

        With a `restrict_policy` it is that one's `apply_restriction`. With a `policy` alone,
        expired rows go, and then those that are first in its order, until exactly `num_reserved`
        are left in all shards together. Slots go with their rows, and other variables are left
        alone.

        Args:
            num_reserved: How many rows stay at most, an int or an integer scalar.
            **kwargs: What the `restrict_policy` takes besides, such as `trigger`: rows are removed
                only where there are more than so many.

        Returns:
            How many rows were removed, int64 scalar; or what a `restrict_policy` of the user's
            gives. None, after a warning, for a variable without any policy.

        Raises:
            TypeError: An argument of a wrong type, or one that the policy does not take.
            ValueError: `num_reserved` is negative, or the policy has no order.

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
        if self.restrict_policy is not None:
            return self.restrict_policy.apply_restriction(num_reserved, **kwargs)
        return self._eviction.restrict(num_reserved, kwargs)

    def drain_evicted(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the rows that have left by the policy since the last call, and forgets them.

        Rows that were evicted by a bound or by `restrict`, and rows that expired; not those that
        `remove` and `clear` took out. So whatever leaves can be kept elsewhere.

        Returns:
            Keys [n] in the order in which they left, where a key that came back and left again
            stands twice, and rows [n, dim] as they were then.

        Raises:
            ValueError: The variable keeps no log: its policy is without `log_evicted`.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(2, log_evicted=True))
            >>> for key in (1, 2, 3):
            ...     v.upsert([key], [[key / 2]])
            >>> [tensor.numpy().tolist() for tensor in v.drain_evicted()]
            [[1], [[0.5]]]
        """
        return self._eviction.drain()

    def export_keys_and_scores(
        self, split_size: int, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies all keys, and of each row the number by which it stays, as of one moment.

        Args:
            split_size: How many rows are copied at a time, at most 65536.
            name: Name of the operation.

        Returns:
            Keys [n] in no order and, int64 [n], what the order goes by, the lowest leave first:
            the last step for "lru", the number of steps for "lfu", the last time in milliseconds
            since 1970 for "ttl", the score for "score"; for "epoch_lru" and "epoch_lfu" the latest
            epoch times 2**32, plus the last step or the number of steps, at most 2**32 - 1.

        Raises:
            TypeError: The variable has no order, or `split_size` is no int.
            ValueError: `split_size` is not positive.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.upsert([2], [[0.0]])
            >>> keys, scores = v.export_keys_and_scores(1024)
            >>> sorted(zip(keys.numpy().tolist(), scores.numpy().tolist()))
            [(1, 1), (2, 2)]
        """
        order = "" if self.restrict_policy is None else self.restrict_policy.order
        return self._eviction.export_scores(split_size, name, default_order=order)

    def stats(self) -> dict[str, Any]:
        """What the variable is made of, and what has happened to it since it was made.

        Cheap: it reads counters, and looks at a sample of some keys.

        Returns:
            A dict, of Python numbers in eager execution, else of scalars:

            - rows: Number of keys.
            - payload_bytes: Bytes of weights, slots and statistics of all rows.
            - index_bytes: Bytes of the index from keys to rows, and of the statistics of rows on
              disk.
            - slack_bytes: Bytes of rows that are freed, or not used yet.
            - pinned_bytes: Of these two, the bytes of rows of a table on a GPU that are in pinned
              host memory, see `Storage`.
            - admission_bytes: Bytes of what counts the keys that wait for a row.
            - load: How full the index is, from 0 to 1; of a table with tiers, the cache's.
            - mean_probe_length: Cache lines of the index that a lookup reads, in the mean over a
              sample; 0 without rows.
            - admitted: Rows that came by a policy with a bound, admission or TTL.
            - held_back: Times that a key did not get a row for want of steps, once for each step.
            - refused: Times that one did not for want of room.
            - evicted: Rows that left for others, or by `restrict`.
            - expired: Rows that left because they were not used.
            - undrained: Rows that wait for `drain_evicted`.
            - hits, misses: Keys that lookups of all kinds found, and did not.

            Of a table with tiers, which its `storage` gives it by `path` or `gpu_cache`, otherwise
            0 or None:

            - cache_rows: Rows in the cache. The `payload_bytes` are theirs.
            - cache_hits, cache_misses: Keys that lookups and training found in the cache, and keys
              that they found below it. Keys without a row are in neither.
            - cache_hit_rate: The part of these that was in the cache, from 0 to 1. None before the
              first, NaN in a graph.
            - promoted: Rows that came up to the cache, by use or by `prefetch`.
            - demoted: Rows that the cache evicted to the tiers below.
            - demoted_unwritten: Of these, rows that had not changed, and were not written again.
            - host_rows, host_bytes: Rows in host memory below the cache of a table on a GPU,
              including those that are in the cache as well, and their bytes.
            - disk_rows: Rows on disk, including those that are in the cache as well.
            - disk_live_bytes: Bytes of these rows.
            - disk_bytes: Bytes of files.
            - disk_rows_read, disk_read_bytes, disk_read_requests: Rows that were read from disk,
              the bytes that were read for them, and the blocks that were requested.
            - read_amplification: Bytes read, divided by the bytes of the rows that were wanted;
              1 is the least. None before the first read, NaN in a graph.
            - disk_rows_written, disk_written_bytes: Rows that were written to disk, and the bytes
              that were written for them.
            - disk_compacted_bytes: Bytes that compaction of files read and wrote.
            - disk_queue_depth: The most requests to the disk that were in flight at once.

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
        """Reports what rows take in each tier, and how many fit.

        Bytes of a row include the slots of the optimizer. A table's own optimizer is known at
        once, the model's when it is built, as the first step of `fit` does.

        Returns:
            A `MemoryReport`, whose `str` is a text table. Its attributes are the numbers. On a GPU
            the split of rows between GPU and host is an estimate.

        Raises:
            RuntimeError: If it is called while a graph is traced.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.Variable(dim=4, name="items")
            >>> v.upsert([1, 2], [[0.0] * 4] * 2)
            >>> report = v.memory_report()
            >>> report.row_bytes, report.tiers[0].name, report.tiers[0].rows
            (16, 'host', 2)
            >>> print(report)
            'items': 2 rows. A row takes 16 bytes: weights 16, slots 0, statistics 0.
            ...
        """
        return memory_report(self._table)

    def row_statistics(self, keys: Any) -> dict[str, tf.Tensor]:
        """What is kept of the use of rows, as policies need it. Is no use itself.

        Args:
            keys: Integers of any shape.

        Returns:
            A dict of tensors of keys.shape: "exists", bool; and int64, 0 for absent keys, those of
            the following that the variable keeps: "last_step", the step of the last use, which
            counts the calls that changed rows; "last_time_ms", its time in milliseconds since 1970;
            "count", the number of steps with a use; "score"; "last_epoch", the latest epoch of a
            use.

        Raises:
            TypeError: A wrong dtype.

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
        """Says which rows are worth more, for `eviction="score"`. A new row has the score 0.

        Args:
            keys: Integers of any shape. Those that are not there are passed over; of a key that
                stands several times the last position wins.
            scores: Integers, keys.shape; the lowest leave first.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: A wrong dtype.
            ValueError: The variable keeps no scores, or shapes that do not go together.

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
        """Sets the clock by which uses of rows are noted, to replay a log or to test a policy.

        Without this, steps are counted from 1, one for each call that changes rows, and the time is
        the system's.

        Args:
            step: The number of the present step, from 1 to 2**62. Default: leaves it.
            time_ms: The time in milliseconds since 1970, at which the clock stands until the next
                call; "system" to go by the system's time again. Default: leaves it.
            epoch: The number of the present epoch, from 0 to 2**31 - 1, for an `eviction` that goes
                by epochs. With `steps_per_epoch` the next one still begins where it would have. A
                row keeps the latest epoch of its uses, whatever comes later. Default: leaves it to
                the steps.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument is no integer.
            ValueError: An argument is out of range, or the variable keeps no epochs.

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

    # Files.

    def save_to_file_system(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = DIRPATH_VARIABLE,
        append_to_file: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Writes all rows to files: weights, optimizer slots, and what policies keep of them.

        The rows are those of one moment: writers of the variable wait until all are written,
        lookups do not. It takes no copy of the table, only a buffer of `buffer_size` or of a 256th
        of a shard, whichever is more.

        A save takes the place of an earlier one of the same variable, `proc_size` and `proc_rank`
        in the folder, and does so at once, when it is whole: whatever fails and whenever a process
        dies, the folder holds the old save or the new one, and a load finds no mixture. Where
        several processes save, that holds for the part of each; so give each save a folder of its
        own if a process may die between two parts. When all parts are there, saves by another
        number of processes are removed. Only one save at a time may run into a folder for a
        variable and a rank.

        Args:
            dirpath: The folder, a str, a path or a scalar string tensor. It is made. Any path that
                tf.io.gfile knows, so with tensorflow-io also s3://.
            proc_size: Number of processes that save a part each, at least 1. Default: the number of
                workers that the variable is sharded over, otherwise 1.
            proc_rank: Which of them this is, from 0. Default: this worker, otherwise 0.
            file_name_list: None, or [a name]: what the files are named after instead of the
                variable.
            dirpath_env: Name of an environment variable. Where it is set when the operation runs,
                it is the folder instead of `dirpath`.
            append_to_file: Must be False, as a save is of one moment.
            buffer_size: Bytes of a block of rows, about, from 1 to 2^30. (TFRA counts keys.)
            name: Name of the operation.
            progress: None, True or a function. True prints a bar, as Keras does; if several
                processes save, the first one prints. A function is called with `done_rows` and
                `total_rows`, two ints, at most ten times a second: first with no row done, then by
                a thread while rows are written, and a last time, with two equal numbers, when the
                files are complete. Rows are those that this process saves. If a call raises, it was
                the last one, and its error is raised once the save is complete. A save that fails
                makes no last call. A call that does not return keeps the save from returning. In
                eager execution only. Default: None.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: An argument out of range; or another variable that nobody named either has
                saved into the folder; or `progress` in a graph.
            tf.errors.OpError: The files can't be written; what is in the folder is as it was.

        Example:
            >>> import tempfile, tf_embed
            >>> folder = tempfile.mkdtemp()
            >>> v = tf_embed.Variable(dim=2)
            >>> v.upsert([1, 2], [[0.0, 1.0], [2.0, 3.0]])
            >>> v.save_to_file_system(folder)
            >>> other = tf_embed.Variable(dim=2, devices=["/CPU:0"] * 3)
            >>> other.load_from_file_system(folder)
            >>> other.lookup([2]).numpy().tolist()
            [[2.0, 3.0]]
            >>> v.save_to_file_system(folder, progress=print)
            0 2
            2 2
        """
        return self._files.save(
            *(dirpath, proc_size, proc_rank, file_name_list, dirpath_env),
            append_to_file=append_to_file,
            buffer_size=buffer_size,
            name=name,
            progress=progress,
        )

    def load_from_file_system(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = DIRPATH_VARIABLE,
        load_entire_dir: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Loads rows that `save_to_file_system` wrote, from any number of shards and processes.

        Rows of keys that are there are replaced, other rows stay. Weights, optimizer slots and the
        statistics of policies come as they were saved; where more rows come than a policy's bound
        lets stay, those leave that are first in its order. A variable without rows also takes over
        the seed of initial rows and, from a save by one process, what admission has counted. So
        training goes on from there as it would have from the table that was saved. Build a
        `DynamicEmbeddingOptimizer` before: one that begins with a table drops the slots that it
        finds.

        Which rows a process loads:

        - with `load_entire_dir`, those of all processes;
        - where `proc_size` processes saved, those that process `proc_rank` saved. If the parts of
          the others are not in the folder, that is no error, since each process may have a folder
          of its own;
        - where another number saved, those whose key the partitioner gives to `proc_rank` of
          `proc_size`: of `default_partition_fn`, key mod proc_size, and strings by
          tf.strings.to_hash_bucket_fast.

        Before the first row is loaded, all files are read and checked, each byte of them. What is
        damaged or not whole, or does not fit the variable, is refused, and the table is as it was.

        Args:
            dirpath: The folder, as in `save_to_file_system`.
            proc_size: Number of processes that load, at least 1. Default: 1; but a variable that is
                sharded over workers loads from the files of any number of processes the rows that
                each worker owns, and takes neither `proc_size` nor `proc_rank`.
            proc_rank: Which of them this is, from 0. Default: 0.
            file_name_list: None, or [a name]: what the files are named after, where that is not
                the variable's name.
            dirpath_env: As in `save_to_file_system`.
            load_entire_dir: Whether to load the rows of all processes.
            buffer_size: Accepted for the sake of old code; blocks are as long as they were
                written.
            name: Name of the operation.
            progress: None, True or a function, as in `save_to_file_system`. There is no call while
                files are checked. Rows are those that this process reads, with those that it
                leaves to others. All calls are made by the thread that loads. Default: None.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: An argument out of range, or `progress` in a graph.
            tf.errors.NotFoundError: The folder holds no whole save of the variable.
            tf.errors.DataLossError: A file is damaged. Named.
            tf.errors.InvalidArgumentError: The rows have another dtype or dim.
            tf.errors.FailedPreconditionError: The variable has rows with slots of another
                optimizer than the saved ones.
        """
        return self._files.load(
            *(dirpath, proc_size, proc_rank, file_name_list, dirpath_env),
            load_entire_dir=load_entire_dir,
            buffer_size=buffer_size,
            name=name,
            progress=progress,
        )

    def load_from_file_system_with_restore_function(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """The same as `load_from_file_system`, which spreads rows over any number of shards.

        Args:
            dirpath: The folder.
            proc_size: Number of processes that load.
            proc_rank: Which of them this is.
            buffer_size: Accepted for the sake of old code.
            progress: As in `load_from_file_system`.

        Returns:
            The operation in a graph, None in eager execution.
        """
        return self.load_from_file_system(
            dirpath, proc_size, proc_rank, buffer_size=buffer_size, progress=progress
        )

    def load_tfra_files(
        self,
        dirpath: str | os.PathLike[str],
        file_name: str | None = None,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        """Loads rows that `save_to_file_system` of TensorFlow Recommenders Addons wrote.

        Those are files `<name>_mht_1of1_rank0_size1-keys` and `-values`, of all shards and
        processes. Rows of keys that are there are replaced, other rows stay. The files say nothing
        of dtypes and dim, so these must be the variable's. Slots are tables of their own there, and
        are not loaded: optimizers begin anew. In eager execution only.

        Args:
            dirpath: The folder, any path that tf.io.gfile knows.
            file_name: The name of the table that was saved. Default: the variable's.
            buffer_size: Bytes of rows that are loaded at a time, about, from 1 to 2^30.

        Raises:
            TypeError: The variable has string keys or values.
            ValueError: There is no such table, a file is missing, or the lengths are not those of
                the variable's dtypes and dim. Nothing is loaded then.
            RuntimeError: In a graph.

        Example:
            >>> import numpy as np, os, tempfile, tf_embed
            >>> stem = os.path.join(tempfile.mkdtemp(), "user_mht_1of1_rank0_size1")
            >>> np.array([7], np.int64).tofile(stem + "-keys")
            >>> np.array([[1.0, 2.0]], np.float32).tofile(stem + "-values")
            >>> v = tf_embed.Variable(dim=2, name="user")
            >>> v.load_tfra_files(os.path.dirname(stem))
            >>> v.lookup([7]).numpy().tolist()
            [[1.0, 2.0]]
        """
        self._files.load_tfra(dirpath, file_name, buffer_size)

    # TensorFlow's.

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """What TensorFlow saves; without the table where checkpoints must not have it."""
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type == "checkpoint" and not self.checkpoint:
            children.pop("_table")
            children.pop("restrict_policy", None)
        return children

    def __repr__(self) -> str:
        table = self._table
        texts = [*kind_text(table), *size_texts([table]), *settings_text(table)]
        return f"<tf_embed.Variable name={validation.shown(self.name)}, {', '.join(texts)}>"

    def _arguments_of_methods(self) -> RowArguments:
        """Checks the keys and rows that methods take; a subclass may have other checks."""
        return RowArguments(self._table.options)

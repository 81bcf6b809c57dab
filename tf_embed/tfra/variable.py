# SPDX-License-Identifier: Apache-2.0
"""`Variable`: a `tf_embed.Variable` with TFRA's arguments and methods."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.saving.progress import Progress
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.placement import place
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.table.sharding import PartitionFn, default_partition_fn
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.storage import Storage
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions
from tf_embed.tfra import creators, restrict_policies, row_files
from tf_embed.tfra.creators import KVCreator
from tf_embed.tfra.restrict_policies import RestrictPolicy
from tf_embed.tfra.shard import Shard
from tf_embed.variable import variable
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.row_files import DEFAULT_BUFFER_BYTES, DEFAULT_NAME


class Variable(variable.Variable):
    """`tf_embed.Variable` with the arguments and methods of TFRA's `Variable`.

    Args:
        key_dtype: As in `tf_embed.Variable`, and so are all others that are not below.
        shared_name: Ignored; accepted for TFRA compatibility. Two variables never share rows, even
            if their names are equal.
        kv_creator: A `CuckooHashTableCreator` for an unbounded table; a `HkvHashTableCreator`,
            whose config sets a bound and an eviction order, and which excludes `policy`; or a
            `RedisTableCreator`. Its `init_capacity` overrides `init_size`, and `storage` overrides
            its storage.
        restrict_policy: The policy class that `restrict` applies: `TimestampRestrictPolicy`,
            `FrequencyRestrictPolicy`, or your own subclass of `RestrictPolicy`. The variable makes
            an instance and keeps it as its attribute of this name.
        bp_v2: Stored, without effect. Concurrent `accum` calls and optimizer steps never lose an
            update; see `tf_embed.DynamicEmbeddingOptimizer`.
        short_file_name: Ignored; accepted for TFRA compatibility.

    Raises:
        TypeError, ValueError: As in `tf_embed.Variable`; or if `kv_creator` and `policy` both have
            an eviction order, or the table can't have the `restrict_policy`.

    Example:
        >>> import tf_embed
        >>> creator = tf_embed.tfra.CuckooHashTableCreator()
        >>> v = tf_embed.tfra.Variable(dim=2, name="users", kv_creator=creator)
        >>> v.upsert([7], [[1.0, 2.0]], name="write")
        >>> v.lookup([7]).numpy().tolist()
        [[1.0, 2.0]]
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
        restrict_policy: type[RestrictPolicy] | None = None,
        bp_v2: bool = False,
        short_file_name: bool = False,
        policy: TablePolicy | None = None,
        storage: Storage | None = None,
        distribution: WorkerSharding | str | None = None,
    ) -> None:
        del short_file_name
        self.bp_v2 = validation.flag(bp_v2, "bp_v2")
        if kv_creator is not None:
            keys = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype")
            values = validation.dtype_of(value_dtype, validation.VALUE_DTYPES, "value_dtype")
            num_shards = len(place(devices, keys, values).devices)
            policy = creators.policy_from_creator(kv_creator, policy, num_shards)
            storage = kv_creator.storage if storage is None else storage
            init_size = validation.int_in(init_size, "init_size", least=0, most=MAX_ROWS)
            if kv_creator.init_size is not None:
                init_size = kv_creator.init_size
        restrict_policies.check_policy_class(restrict_policy)
        self._policy_class = restrict_policy
        super().__init__(
            key_dtype,
            value_dtype,
            dim,
            name=name,
            initializer=initializer,
            trainable=trainable,
            checkpoint=checkpoint,
            init_size=init_size,
            policy=policy,
            storage=storage,
            devices=devices,
            partitioner=partitioner,
            distribution=distribution,
        )
        self.shared_name = shared_name
        self.kv_creator = kv_creator
        self.restrict_policy: RestrictPolicy | None = None
        if restrict_policy is not None:
            # Last, because the policy may call any method of the variable.
            self.restrict_policy = restrict_policy(self)
            # Otherwise each step would compute distinct keys for a method that does nothing.
            if restrict_policies.notes_updates(restrict_policy):
                self.table.on_update = self.restrict_policy.apply_update

    @override
    def _new_table(self, options: TableOptions, sharding: WorkerSharding | None) -> Table:
        if self._policy_class is not None:
            restrict_policies.check_placement(self._policy_class, options, sharding)
            statistics = self._policy_class.statistics
            options = dataclasses.replace(options, wanted_statistics=statistics)
        return super()._new_table(options, sharding)

    # Properties.

    @property
    def shard_num(self) -> int:
        """Number of shards."""
        return self.table.options.num_shards

    @property
    def partition_fn(self) -> PartitionFn:
        """The function that assigns keys to shards."""
        return self.table.options.partition_fn

    @property
    def tables(self) -> list[Shard]:
        """The shards, in the order of `devices`."""
        return [Shard(self.table, index, device) for index, device in enumerate(self.devices)]

    # Reads and writes.

    def upsert(
        self, keys: Any, values: Any, name: str | None = None, *, distinct: bool = False
    ) -> tf.Operation | None:
        """Writes rows, and inserts new keys; see `tf_embed.Variable.upsert`.

        Args:
            keys: As in `tf_embed.Variable.upsert`, and so are all others.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "upsert"):
            return super().upsert(keys, values, distinct=distinct)

    def accum(
        self,
        keys: Any,
        old_values: Any,
        new_values: Any,
        exists: Any,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Adds to present rows, and inserts new keys; see `tf_embed.Variable.accum`.

        Args:
            keys: As in `tf_embed.Variable.accum`, and so are all others.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "accum"):
            return super().accum(keys, old_values, new_values, exists)

    def lookup(
        self,
        keys: Any,
        return_exists: bool = False,
        name: str | None = None,
        training: bool = False,
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Looks up rows, and inserts none; see `tf_embed.Variable.lookup`.

        Args:
            keys: As in `tf_embed.Variable.lookup`, and so are all others.
            name: Name of the operation.

        Returns:
            Rows, keys.shape + [dim]; with `return_exists` also a bool tensor, keys.shape.
        """
        with validation.name_scope(name, "lookup"):
            return super().lookup(keys, return_exists, training=training)

    def prefetch(self, keys: Any, name: str | None = None) -> tf.Operation | None:
        """Promotes rows to the cache, ahead of their use; see `tf_embed.Variable.prefetch`.

        Args:
            keys: Integers, or strings, of any shape. Keys without a row are skipped.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "prefetch"):
            return super().prefetch(keys)

    def remove(self, keys: Any, name: str | None = None) -> tf.Operation | None:
        """Removes keys, with their rows and optimizer slots; see `tf_embed.Variable.remove`.

        Args:
            keys: Integers, or strings, of any shape.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "remove"):
            return super().remove(keys)

    def clear(self, name: str | None = None) -> tf.Operation | None:
        """Removes all keys and frees their memory; see `tf_embed.Variable.clear`.

        Args:
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.
        """
        with validation.name_scope(name, "clear"):
            return super().clear()

    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Counts keys.

        Args:
            index: The number of a shard, from 0. None counts all shards together.
            name: Name of the operation.

        Returns:
            int64 scalar.

        Raises:
            ValueError: If there is no such shard.
        """
        if index is not None:
            index = validation.int_in(index, "index", least=0)
            if index >= self.shard_num:
                raise ValueError(
                    f"`index` must be less than the number of shards of {self.name!r}, "
                    f"{self.shard_num}. Received: index={index}"
                )
        with validation.name_scope(name, "size"):
            return self.table.size(-1 if index is None else index)

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies a snapshot of all keys and rows; see `tf_embed.Variable.export`.

        Args:
            name: Name of the operation.

        Returns:
            Keys [n] and rows [n, dim].
        """
        with validation.name_scope(name, "export"):
            return super().export()

    # Training.

    @property
    def trainable_store(self) -> dict[str, Anchor]:
        """`trainable_variables`, and the variable's ShadowVariables that are in use, by name."""
        named: dict[str, Anchor] = {one.table_name: one for one in self.trainable_variables}
        return named | self._shadows if named else named

    def get_trainable_by_name(self, name: str) -> Anchor | None:
        """The variable for gradients and optimizers, by the name of a lookup.

        A variable has a single anchor for all its lookups. So every name returns that anchor, even
        before the first lookup, except the name of a `ShadowVariable` of this variable.

        Args:
            name: The `name` of an `embedding_lookup`, or of a ShadowVariable, as given or with "_"
                for "/", or any other.

        Returns:
            The anchor, or the ShadowVariable; None if the rows are not trainable.

        Raises:
            TypeError: If `name` is not a str.
            RuntimeError: If called in a graph. Call it outside the tf.function, or use `anchor`.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.tfra.Variable(dim=2)
            >>> v.get_trainable_by_name("user_embedding") is v.anchor
            True
        """
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a str. Received: name={validation.shown(name)}")
        if not tf.executing_eagerly():
            raise RuntimeError(
                "`get_trainable_by_name` is for eager execution: call it outside of the "
                f"tf.function, or take the `anchor` of {self.name!r}."
            )
        shadows = self._shadows
        by_own_name = {one.name: one for one in shadows.values()}  # which has no "/"
        return shadows.get(name, by_own_name.get(name, self.anchor))

    def get_eager_trainable_by_name(self, name: str) -> Anchor | None:
        """The same as `get_trainable_by_name`, under TFRA's other name.

        Args:
            name: As in `get_trainable_by_name`.

        Returns:
            As in `get_trainable_by_name`.
        """
        return self.get_trainable_by_name(name)

    @property
    def _shadows(self) -> dict[str, Anchor]:
        """The shadow variables that are in use, by name."""
        extras = {} if self.anchor is None else self.anchor.extras
        # A copy of a variable has the anchors of the original variable.
        return {name: one for name, one in extras.items() if one.table is self.table}

    def get_slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """The slots of an optimizer.

        Args:
            optimizer: As in `tf_embed.Variable.slot_variables`.

        Returns:
            A view of each slot, as from `tf_embed.Variable.slot_variables`.
        """
        return self.slot_variables(optimizer)

    # Eviction.

    @override
    def restrict(self, num_reserved: Any, **kwargs: Any) -> Any:
        """Evicts rows until `num_reserved` are left, and frees their memory.

        With a `restrict_policy` this calls its `apply_restriction`, otherwise it is
        `tf_embed.Variable.restrict`.

        Args:
            num_reserved: The most rows that stay, an int or an integer scalar.
            **kwargs: Further arguments of the `restrict_policy`, such as `trigger`, the number of
                rows above which rows are removed.

        Returns:
            The number of removed rows, int64 scalar, or the result of your own `restrict_policy`.
            None, after a warning, for a variable without any policy.

        Raises:
            TypeError: If an argument has the wrong type, or the policy does not accept it.
            ValueError: If `num_reserved` is negative, or the policy has no eviction order.

        Example:
            >>> import tf_embed
            >>> policy = tf_embed.tfra.FrequencyRestrictPolicy
            >>> v = tf_embed.tfra.Variable(dim=1, restrict_policy=policy)
            >>> v.upsert([1, 2, 3], [[0.0]] * 3)
            >>> v.upsert([2, 3], [[1.0]] * 2)
            >>> int(v.restrict(2, trigger=3)), int(v.restrict(2))
            (0, 1)
        """
        if self.restrict_policy is not None:
            return self.restrict_policy.apply_restriction(num_reserved, **kwargs)
        if kwargs and self.policy is not None:
            raise TypeError(
                f"`restrict` of {self.name!r} takes `num_reserved` alone, without a "
                f"restrict_policy. Received: {', '.join(kwargs)}"
            )
        return super().restrict(num_reserved)

    def export_keys_and_scores(
        self, split_size: int, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies a consistent snapshot of all keys and their eviction scores.

        Args:
            split_size: The number of rows that are copied at a time, at most 65536.
            name: Name of the operation.

        Returns:
            Keys [n] in no particular order, and their scores, int64 [n]. The lowest score is
            evicted first. The score is the last step for "lru", the number of steps for "lfu", the
            last time in milliseconds since 1970 for "ttl", and the score for "score". For
            "epoch_lru" and "epoch_lfu" it is the latest epoch times 2**32, plus the last step
            modulo 2**32, or the number of steps, at most 2**32 - 1.

        Raises:
            TypeError: If the variable has no eviction order, or `split_size` is not an int.
            ValueError: If `split_size` is not positive.

        Example:
            >>> import tf_embed
            >>> v = tf_embed.tfra.Variable(dim=1, policy=tf_embed.TablePolicy(eviction="lfu"))
            >>> v.upsert([1, 2], [[0.0]] * 2)
            >>> v.upsert([2], [[0.0]])
            >>> sorted(v.export_keys_and_scores(1024)[1].numpy().tolist())
            [1, 2]
        """
        order = None if self.policy is None else self.policy.eviction
        if order is None and self.restrict_policy is not None:
            order = self.restrict_policy.order
        if not order:
            raise TypeError(
                f"{self.name!r} keeps no scores: make it with policy="
                "tf_embed.TablePolicy(eviction=...), or with a tf_embed.tfra.HkvHashTableCreator. "
                f"Received: policy={self.policy}"
            )
        split_size = validation.int_in(split_size, "split_size")
        with validation.name_scope(name, "export_keys_and_scores"):
            return self.table.export_scores(order, split_size)

    # Files.

    def save_to_file_system(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = row_files.DIRPATH_VARIABLE,
        append_to_file: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Writes all rows to files: weights, optimizer slots, and usage statistics.

        The files and guarantees are as in `tf_embed.Variable.save_rows`. A save replaces an earlier
        save of the same variable, `proc_size` and `proc_rank` in the folder.

        Args:
            dirpath: The folder, as `path` of `tf_embed.Variable.save_rows`.
            proc_size: Number of processes that each save a part, at least 1. Default: the number of
                workers or servers that the variable is sharded over, otherwise 1.
            proc_rank: The number of this process, from 0. Default: this worker, otherwise 0.
            file_name_list: A list of one name for the files. Default: None, the variable's name.
            dirpath_env: An environment variable that, when it is set, replaces `dirpath`.
            append_to_file: Must be False, because a save is a single snapshot.
            buffer_size: Approximate bytes of a block of rows, from 1 to 2^30. (TFRA counts keys.)
            name: Name of the operation.
            progress: As in `tf_embed.Variable.save_rows`.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError, ValueError, tf.errors.OpError: As in `tf_embed.Variable.save_rows`.

        Example:
            >>> import tempfile, tf_embed
            >>> folder = tempfile.mkdtemp()
            >>> v = tf_embed.tfra.Variable(dim=2)
            >>> v.upsert([1, 2], [[0.0, 1.0], [2.0, 3.0]])
            >>> v.save_to_file_system(folder)
            >>> v.clear()
            >>> v.load_from_file_system(folder)
            >>> v.lookup([2]).numpy().tolist()
            [[2.0, 3.0]]
        """
        if validation.flag(append_to_file, "append_to_file"):
            raise ValueError(
                "`append_to_file` must be False: a save has the rows of one moment, each key once, "
                f"and takes the place of an earlier one. Received: append_to_file={append_to_file}"
            )
        processes = (proc_size, proc_rank)
        place = row_files.place_of(self.table, dirpath, processes, file_name_list, dirpath_env)
        buffer_bytes = row_files.buffer_bytes_of(buffer_size)
        with validation.name_scope(name, "save_to_file_system"):
            return self._files.save(place, buffer_bytes=buffer_bytes, progress=progress)

    def load_from_file_system(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = row_files.DIRPATH_VARIABLE,
        load_entire_dir: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Loads rows that `save_to_file_system` wrote, as `tf_embed.Variable.load_rows` does.

        The rows that a process loads:

        - With `load_entire_dir`: the rows of all processes.
        - If `proc_size` processes saved: the rows that process `proc_rank` saved. The parts of
          other processes may be missing, because each process may have its own folder.
        - If another number of processes saved: the rows whose key the partitioner assigns to
          `proc_rank` of `proc_size`. With `default_partition_fn` this is key mod proc_size, and
          tf.strings.to_hash_bucket_fast for strings.

        Args:
            dirpath: The folder, as in `save_to_file_system`.
            proc_size: Number of processes that load, at least 1. Default: 1. A variable that is
                sharded over workers or servers takes only their number, the default. Each of them
                loads the rows that it owns, from the files of any number of processes.
            proc_rank: The number of this process, from 0. Default: this worker, otherwise 0.
            file_name_list: As in `save_to_file_system`, and so are all others that are not below.
            load_entire_dir: Whether to load the rows of all processes.
            buffer_size: Ignored; accepted for TFRA compatibility.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError, ValueError, tf.errors.OpError: As in `tf_embed.Variable.load_rows`.
        """
        processes = (proc_size, proc_rank)
        place = row_files.place_of(self.table, dirpath, processes, file_name_list, dirpath_env)
        row_files.buffer_bytes_of(buffer_size)  # only checked: blocks are as they were written
        whole = validation.flag(load_entire_dir, "load_entire_dir")
        with validation.name_scope(name, "load_from_file_system"):
            return self._files.load(place, whole=whole, progress=progress)

    def load_from_file_system_with_restore_function(
        self,
        dirpath: Any,
        proc_size: int | None = None,
        proc_rank: int | None = None,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        *,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """The same as `load_from_file_system`, which loads into any number of shards.

        Args:
            dirpath: As in `load_from_file_system`, and so are all others.

        Returns:
            The operation in a graph, None in eager execution.
        """
        options: dict[str, Any] = {"buffer_size": buffer_size, "progress": progress}
        return self.load_from_file_system(dirpath, proc_size, proc_rank, **options)

    def load_tfra_files(
        self,
        dirpath: str | os.PathLike[str],
        file_name: str | None = None,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        """Loads rows that `save_to_file_system` of TensorFlow Recommenders Addons wrote.

        These are the files `<name>_mht_1of1_rank0_size1-keys` and `-values`, of all shards and
        processes. Rows of present keys are replaced, and all other rows stay. The files do not
        record dtypes and dim, so the variable's must match. TFRA stores slots as separate tables.
        They are not loaded, so optimizers start with fresh slots. Only works in eager execution.

        Args:
            dirpath: The folder, any path that tf.io.gfile supports.
            file_name: The name of the table that was saved. Default: the variable's.
            buffer_size: Approximate bytes of rows that are loaded at a time, from 1 to 2^30.

        Raises:
            TypeError: If the variable has string keys or values.
            ValueError: If there is no such table, a file is missing, or the lengths do not fit the
                variable's dtypes and dim. Nothing is loaded then.
            RuntimeError: If called in a graph.

        Example:
            >>> import numpy as np, os, tempfile, tf_embed
            >>> stem = os.path.join(tempfile.mkdtemp(), "user_mht_1of1_rank0_size1")
            >>> np.array([7], np.int64).tofile(stem + "-keys")
            >>> np.array([[1.0, 2.0]], np.float32).tofile(stem + "-values")
            >>> v = tf_embed.tfra.Variable(dim=2, name="user")
            >>> v.load_tfra_files(os.path.dirname(stem))
            >>> v.lookup([7]).numpy().tolist()
            [[1.0, 2.0]]
        """
        row_files.load_tfra_files(self.table, dirpath, file_name, buffer_size)

    # Hooks of TensorFlow.

    @override
    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "checkpoint" and not self.checkpoint:
            children.pop("restrict_policy", None)
        return children

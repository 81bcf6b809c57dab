# SPDX-License-Identifier: Apache-2.0
"""Creators for `Variable(kv_creator=...)`, which say where rows are and which are evicted.

All creators use the same hash table in memory, on the CPU and on a GPU, and it supports every
eviction strategy. So a creator only translates to a `TablePolicy`, a `Storage` and an `init_size`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.configs import KerasConfig
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.table.storage import Storage
from tf_embed.tfra.redis_config import RedisTableConfig


class HkvEvictStrategy(enum.IntEnum):
    """The eviction order, in HierarchicalKV's names; see `TablePolicy` for the orders.

    - LRU: first the rows that were not used for the most steps, `eviction="lru"`.
    - LFU: first the rows that were used in the fewest steps, `eviction="lfu"`.
    - EPOCHLRU: by the epoch of the last use, then by LRU, `eviction="epoch_lru"`.
    - EPOCHLFU: by the epoch of the last use, then by LFU, `eviction="epoch_lfu"`.
    - CUSTOMIZED: first the rows of the lowest score, `eviction="score"`.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.HkvEvictStrategy(3)
        <HkvEvictStrategy.EPOCHLFU: 3>
    """

    LRU = 0
    LFU = 1
    EPOCHLRU = 2
    EPOCHLFU = 3
    CUSTOMIZED = 4


_EVICTION = {
    HkvEvictStrategy.LRU: "lru",
    HkvEvictStrategy.LFU: "lfu",
    HkvEvictStrategy.EPOCHLRU: "epoch_lru",
    HkvEvictStrategy.EPOCHLFU: "epoch_lfu",
    HkvEvictStrategy.CUSTOMIZED: "score",
}


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class FileSystemSaver(KerasConfig):
    """The folder for the files of a variable, as `Variable.kv_creator.saver`.

    It has no effect on tf.train.Checkpoint, `.keras` files and SavedModels. They save the rows with
    it and without it, and restore into any number of shards. In TFRA such a saver writes the rows
    to its own files instead of these.

    Args:
        proc_size: The number of processes that each save a part. Requires `proc_rank`.
        proc_rank: The number of this process, from 0. Requires `proc_size`.
        save_path: A folder.
        buffer_size: Number of keys that are read or written at a time.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or only one of `proc_size` and `proc_rank` is
            given.

    Example:
        >>> import tf_embed
        >>> saver = tf_embed.tfra.FileSystemSaver(save_path="/tmp/rows")
        >>> creator = tf_embed.tfra.CuckooHashTableCreator(saver=saver)
        >>> v = tf_embed.tfra.Variable(dim=2, kv_creator=creator)
        >>> v.kv_creator.saver.save_path
        '/tmp/rows'
    """

    proc_size: int | None = None
    proc_rank: int | None = None
    save_path: str | None = None
    buffer_size: int = 4096

    def __post_init__(self) -> None:
        if (self.proc_size is None) != (self.proc_rank is None):
            raise ValueError(
                "`proc_size` and `proc_rank` go together. Received: "
                f"proc_size={self.proc_size}, proc_rank={self.proc_rank}"
            )
        if self.proc_size is not None:
            validation.int_in(self.proc_size, "proc_size")
            most = self.proc_size - 1
            validation.int_in(self.proc_rank, "proc_rank", least=0, most=most)
        if not isinstance(self.save_path, (str, type(None))):
            raise TypeError(
                f"`save_path` must be a str. Received: save_path={validation.shown(self.save_path)}"
            )
        validation.int_in(self.buffer_size, "buffer_size")


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class CuckooHashTableConfig(KerasConfig):
    """An empty config. An unbounded table has no settings except the arguments of `Variable`.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.CuckooHashTableCreator(tf_embed.tfra.CuckooHashTableConfig()).policy
    """


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class HkvHashTableConfig(KerasConfig):
    """The capacity and the eviction of a table, in HierarchicalKV's names.

    Differences from TFRA:

    - The default is no bound. TFRA's default is 1,048,576 rows, beyond which rows are silently
      evicted.
    - The bound is exact, for all shards together. The lowest row of a shard is evicted, not the
      lowest row of a bucket.
    - Uses count as in `TablePolicy`: a key counts once per step, and every call that changes rows
      is a step of `step_per_epoch`.
    - Scores are saved with the rows, and optimizer slots are evicted with their rows.

    Args:
        init_capacity: Rows to reserve, in all shards together. Default: the variable's
            `init_size`.
        max_capacity: The most rows, in all shards together, at least one for each shard. Default:
            no bound.
        max_hbm_for_values: Bytes of GPU memory for the rows of a table on a GPU, with their slots.
            Further rows are in host memory. The same as `gpu_bytes` of a `Storage`.
        evict_strategy: The eviction order, a `HkvEvictStrategy` or its number.
        step_per_epoch: The number of steps in an epoch, for EPOCHLRU and EPOCHLFU. With 0 only
            `Variable.set_clock` changes the epoch. (With 0 TFRA starts an epoch at each upsert;
            its documentation asks for another number.)
        gen_scores_fn: The `score_fn` of `TablePolicy`, for CUSTOMIZED. Other strategies ignore it.
        reserved_key_start_bit: Ignored. No key is reserved, and every integer is a valid key.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or CUSTOMIZED has no `gen_scores_fn`.

    Example:
        >>> import tf_embed
        >>> config = tf_embed.tfra.HkvHashTableConfig(
        ...     max_capacity=2, evict_strategy=tf_embed.tfra.HkvEvictStrategy.LFU
        ... )
        >>> v = tf_embed.tfra.Variable(dim=1, kv_creator=tf_embed.tfra.HkvHashTableCreator(config))
        >>> for keys in ([1], [1, 2], [3]):
        ...     v.upsert(keys, [[0.0]] * len(keys))
        >>> sorted(v.export()[0].numpy().tolist())
        [1, 3]
    """

    init_capacity: int | None = None
    max_capacity: int | None = None
    max_hbm_for_values: int = 2**30
    evict_strategy: HkvEvictStrategy = HkvEvictStrategy.LRU
    step_per_epoch: int = 0
    gen_scores_fn: Callable[[tf.Tensor], Any] | None = None
    reserved_key_start_bit: int = 0

    def __post_init__(self) -> None:
        least = 1
        if self.init_capacity is not None:
            least = validation.int_in(self.init_capacity, "init_capacity", most=MAX_ROWS)
        if self.max_capacity is not None:
            validation.int_in(self.max_capacity, "max_capacity", least=least, most=MAX_ROWS)
        validation.int_in(self.max_hbm_for_values, "max_hbm_for_values", least=0)
        most = max(HkvEvictStrategy)
        number = validation.int_in(self.evict_strategy, "evict_strategy", least=0, most=most)
        object.__setattr__(self, "evict_strategy", HkvEvictStrategy(number))
        validation.int_in(self.step_per_epoch, "step_per_epoch", least=0, most=2**62)
        validation.int_in(self.reserved_key_start_bit, "reserved_key_start_bit", least=0, most=62)
        if self.gen_scores_fn is not None:
            validation.function_of(self.gen_scores_fn, "gen_scores_fn")
        if self.evict_strategy == HkvEvictStrategy.CUSTOMIZED and self.gen_scores_fn is None:
            raise ValueError(
                "`gen_scores_fn` must give the scores where evict_strategy is CUSTOMIZED. "
                "Received: gen_scores_fn=None"
            )

    @property
    def policy(self) -> TablePolicy:
        """The equivalent `TablePolicy`."""
        eviction = _EVICTION[self.evict_strategy]
        by_epochs = eviction.startswith("epoch")
        return TablePolicy(
            max_rows=self.max_capacity,
            eviction=eviction,
            # TFRA's config may have both with any strategy, but `TablePolicy` would refuse them.
            steps_per_epoch=self.step_per_epoch or None if by_epochs else None,
            score_fn=self.gen_scores_fn if eviction == "score" else None,
        )

    @property
    def storage(self) -> Storage:
        """The equivalent `Storage`."""
        return Storage(gpu_bytes=self.max_hbm_for_values)

    @override
    def get_config(self) -> dict[str, Any]:
        # JSON has no enums.
        return {**super().get_config(), "evict_strategy": int(self.evict_strategy)}


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class KVCreator(KerasConfig):
    """The base class of creators. A variable takes an instance of a subclass.

    Args:
        config: The settings, an instance of the creator's config class. Default: the defaults of
            that class.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: If an argument has the wrong type.

    Example:
        >>> import tf_embed
        >>> issubclass(tf_embed.tfra.HkvHashTableCreator, tf_embed.tfra.KVCreator)
        True
    """

    config: Any = None
    saver: FileSystemSaver | None = None

    def __post_init__(self) -> None:
        wanted = self._config_class()
        if self.config is not None and wanted is not None and not isinstance(self.config, wanted):
            raise TypeError(
                f"`config` of {type(self).__name__} must be a tf_embed.tfra.{wanted.__name__}. "
                f"Received: config={validation.shown(self.config)}"
            )
        if self.saver is not None and not isinstance(self.saver, FileSystemSaver):
            raise TypeError(
                f"`saver` must be a tf_embed.tfra.FileSystemSaver. Received: "
                f"saver={validation.shown(self.saver)}"
            )

    @classmethod
    def _config_class(cls) -> type | None:
        return None

    @property
    def policy(self) -> TablePolicy | None:
        """The policy of admission and eviction."""
        return None

    @property
    def storage(self) -> Storage | None:
        """The tiers of the table; None for one memory."""
        return None

    @property
    def init_size(self) -> int | None:
        """Rows to reserve, in all shards together; None for the variable's own `init_size`."""
        return None


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class CuckooHashTableCreator(KVCreator):
    """A table without a bound, the same as without a creator.

    Args:
        config: A `CuckooHashTableConfig`, or None.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: If an argument has the wrong type.

    Example:
        >>> import tf_embed
        >>> creator = tf_embed.tfra.CuckooHashTableCreator()
        >>> v = tf_embed.tfra.Variable(dim=2, kv_creator=creator)
        >>> v.kv_creator is creator
        True
    """

    @classmethod
    def _config_class(cls) -> type:
        return CuckooHashTableConfig


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class HkvHashTableCreator(KVCreator):
    """A table that evicts rows by its config. Unlike HierarchicalKV it needs no GPU.

    Args:
        config: A `HkvHashTableConfig`. Default: no bound; `Variable.restrict` evicts by LRU.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: If an argument has the wrong type.

    Example:
        >>> import tf_embed
        >>> config = tf_embed.tfra.HkvHashTableConfig(max_capacity=1000)
        >>> creator = tf_embed.tfra.HkvHashTableCreator(config)
        >>> creator.policy
        TablePolicy(max_rows=1000)
        >>> v = tf_embed.tfra.Variable(dim=2, kv_creator=creator)
    """

    @classmethod
    def _config_class(cls) -> type:
        return HkvHashTableConfig

    @property
    def policy(self) -> TablePolicy:
        """The policy of admission and eviction."""
        return (self.config or HkvHashTableConfig()).policy

    @property
    def storage(self) -> Storage:
        """The tiers of the table."""
        return (self.config or HkvHashTableConfig()).storage

    @property
    def init_size(self) -> int | None:
        """Rows to reserve, in all shards together; None for the variable's own `init_size`."""
        return None if self.config is None else self.config.init_capacity


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class RedisTableCreator(KVCreator):
    """A table on a Redis server, which several processes can share; see `tf_embed.RedisServer`.

    Args:
        config: A `RedisTableConfig`. Default: a server on this machine at port 6379.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: If an argument has the wrong type.
    """

    @property
    def storage(self) -> Storage:
        """The server.

        Raises:
            ValueError: If the config can't be read, or has a field that is not supported.
        """
        return Storage(redis=(self.config or RedisTableConfig()).server())

    @classmethod
    def _config_class(cls) -> type:
        return RedisTableConfig


def policy_from_creator(kv_creator: Any, policy: Any, num_shards: int) -> Any:
    """The policy of a table with these two arguments.

    Raises:
        TypeError: If `kv_creator` is not a creator of a table.
        ValueError: If there is a `policy`, and the creator has its own, or if the bound of the
            creator is less than a row for each shard.
    """
    known = (CuckooHashTableCreator, HkvHashTableCreator, RedisTableCreator)
    if not isinstance(kv_creator, known):
        raise TypeError(
            "`kv_creator` must be a tf_embed.tfra.CuckooHashTableCreator, HkvHashTableCreator or "
            f"RedisTableCreator. Received: kv_creator={validation.shown(kv_creator)}"
        )
    if kv_creator.policy is None:
        return policy
    if policy is not None:
        raise ValueError(
            "`kv_creator` and `policy` both say which rows leave: give one of them. Received: "
            f"kv_creator={validation.shown(kv_creator)}, policy={validation.shown(policy)}"
        )
    max_capacity = kv_creator.policy.max_rows
    if max_capacity is not None and max_capacity < num_shards:
        raise ValueError(
            "`max_capacity` of the config of `kv_creator` must be at least one for each of "
            f"{num_shards} shards. Received: max_capacity={max_capacity}"
        )
    return kv_creator.policy

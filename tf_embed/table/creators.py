# SPDX-License-Identifier: Apache-2.0
"""What `Variable(kv_creator=...)` takes: TFRA's words for the store of a table, and its eviction.

There is one store in memory, on the CPU and on a GPU, and it keeps to every strategy. So a creator
says what a `TablePolicy`, a `Storage` and `init_size` say as well.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.configs import KerasConfig
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.table.redis_config import RedisTableConfig
from tf_embed.table.storage import Storage


class HkvEvictStrategy(enum.IntEnum):
    """Which rows leave first, as HierarchicalKV names it; see `TablePolicy` for the orders.

    - LRU: those not used for the most steps, `eviction="lru"`.
    - LFU: those used in the fewest steps, `eviction="lfu"`.
    - EPOCHLRU: those last used in the earliest epoch, and of these as LRU, `eviction="epoch_lru"`.
    - EPOCHLFU: those last used in the earliest epoch, and of these as LFU, `eviction="epoch_lfu"`.
    - CUSTOMIZED: those of the lowest score, `eviction="score"`.

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
    """Where the files of a variable go, as a creator holds it for `Variable.kv_creator.saver`.

    It changes nothing of tf.train.Checkpoint, `.keras` files and SavedModels: these carry the rows
    with it and without it, and restore them into any number of shards. In TFRA they carry no rows
    beside such a saver, which writes them to files of its own.

    Args:
        proc_size: How many processes save, each its part. With `proc_rank`, or neither.
        proc_rank: Which of them this is, from 0.
        save_path: A folder.
        buffer_size: Number of keys that are read or written at a time.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument out of range, or one of the first two without the other.

    Example:
        >>> import tf_embed
        >>> saver = tf_embed.tfra.FileSystemSaver(save_path="/tmp/rows")
        >>> creator = tf_embed.tfra.CuckooHashTableCreator(saver=saver)
        >>> v = tf_embed.Variable(dim=2, kv_creator=creator)
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
            validation.positive_int(self.proc_size, "proc_size")
            most = self.proc_size - 1
            validation.positive_int(self.proc_rank, "proc_rank", least=0, most=most)
        if not isinstance(self.save_path, (str, type(None))):
            raise TypeError(
                f"`save_path` must be a str. Received: save_path={validation.shown(self.save_path)}"
            )
        validation.positive_int(self.buffer_size, "buffer_size")


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class CuckooHashTableConfig(KerasConfig):
    """Nothing: a table of no bound has no settings besides those of `Variable`.

    Example:
        >>> import tf_embed
        >>> tf_embed.tfra.CuckooHashTableCreator(tf_embed.tfra.CuckooHashTableConfig()).policy
    """


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class HkvHashTableConfig(KerasConfig):
    """The room, the bound and the eviction of a table, in the words of HierarchicalKV.

    Differences to TFRA: there is no bound unless `max_capacity` names one, where TFRA has one of
    1,048,576 rows beyond which rows leave in silence. The bound is exact, of all shards together,
    and the lowest row of a shard leaves, not that of a bucket. Uses are those of `TablePolicy`: a
    key counts once a step, and a step of `step_per_epoch` is any call that changes rows. Scores are
    saved with the rows. Slots leave with their rows.

    Args:
        init_capacity: Rows to make room for, in all shards together. Default: what the variable's
            `init_size` says.
        max_capacity: The most rows, in all shards together. Default: no bound.
        max_hbm_for_values: Bytes of a GPU's memory for the rows of a table that is on one, with
            their slots; further rows are in host memory. The `gpu_bytes` of a `Storage`.
        evict_strategy: Which rows leave first, a `HkvEvictStrategy` or its number.
        step_per_epoch: How many steps are an epoch, for EPOCHLRU and EPOCHLFU. 0: an epoch lasts
            until `Variable.set_clock` says that it is another. (In TFRA, each upsert is an epoch
            then, and its documentation asks for another number.)
        gen_scores_fn: The `score_fn` of `TablePolicy`; for CUSTOMIZED, and ignored without it.
        reserved_key_start_bit: Accepted: no key is reserved, and each integer is a legal one.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An argument out of range, or CUSTOMIZED without `gen_scores_fn`.

    Example:
        >>> import tf_embed
        >>> config = tf_embed.tfra.HkvHashTableConfig(
        ...     max_capacity=2, evict_strategy=tf_embed.tfra.HkvEvictStrategy.LFU
        ... )
        >>> v = tf_embed.Variable(dim=1, kv_creator=tf_embed.tfra.HkvHashTableCreator(config))
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
            least = validation.positive_int(self.init_capacity, "init_capacity", most=MAX_ROWS)
        if self.max_capacity is not None:
            validation.positive_int(self.max_capacity, "max_capacity", least=least, most=MAX_ROWS)
        validation.positive_int(self.max_hbm_for_values, "max_hbm_for_values", least=0)
        most = max(HkvEvictStrategy)
        number = validation.positive_int(self.evict_strategy, "evict_strategy", least=0, most=most)
        object.__setattr__(self, "evict_strategy", HkvEvictStrategy(number))
        validation.positive_int(self.step_per_epoch, "step_per_epoch", least=0, most=2**62)
        validation.positive_int(
            self.reserved_key_start_bit, "reserved_key_start_bit", least=0, most=62
        )
        if self.gen_scores_fn is not None:
            validation.function_of(self.gen_scores_fn, "gen_scores_fn")
        if self.evict_strategy == HkvEvictStrategy.CUSTOMIZED and self.gen_scores_fn is None:
            raise ValueError(
                "`gen_scores_fn` must give the scores where evict_strategy is CUSTOMIZED. "
                "Received: gen_scores_fn=None"
            )

    @property
    def policy(self) -> TablePolicy:
        """The same as a policy."""
        eviction = _EVICTION[self.evict_strategy]
        by_epochs = eviction.startswith("epoch")
        return TablePolicy(
            max_rows=self.max_capacity,
            eviction=eviction,
            steps_per_epoch=self.step_per_epoch or None if by_epochs else None,
            score_fn=self.gen_scores_fn if eviction == "score" else None,
        )

    @property
    def storage(self) -> Storage:
        """The same as a storage."""
        return Storage(gpu_bytes=self.max_hbm_for_values)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "evict_strategy": int(self.evict_strategy)}


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class KVCreator(KerasConfig):
    """Says what the table of a variable is; see its subclasses, of which a variable takes one.

    Args:
        config: The settings, of the class that belongs to the creator. Default: its defaults.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: An argument of a wrong type.

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
        """By which rows come and leave."""
        return None

    @property
    def storage(self) -> Storage | None:
        """The tiers of the table; None for one memory."""
        return None

    @property
    def init_size(self) -> int | None:
        """Rows to make room for, in all shards together; None for what the variable says."""
        return None


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class CuckooHashTableCreator(KVCreator):
    """A table without a bound: what a variable has without a creator.

    Args:
        config: A `CuckooHashTableConfig`, or None.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: An argument of a wrong type.

    Example:
        >>> import tf_embed
        >>> creator = tf_embed.tfra.CuckooHashTableCreator()
        >>> v = tf_embed.Variable(dim=2, kv_creator=creator)
        >>> v.kv_creator is creator
        True
    """

    @classmethod
    def _config_class(cls) -> type:
        return CuckooHashTableConfig


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class HkvHashTableCreator(KVCreator):
    """A table that evicts rows as its config says, and can do without a GPU.

    Args:
        config: A `HkvHashTableConfig`. Default: one without a bound, whose rows
            `Variable.restrict` takes out by LRU.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: An argument of a wrong type.

    Example:
        >>> import tf_embed
        >>> config = tf_embed.tfra.HkvHashTableConfig(max_capacity=1000)
        >>> creator = tf_embed.tfra.HkvHashTableCreator(config)
        >>> creator.policy
        TablePolicy(max_rows=1000)
        >>> v = tf_embed.Variable(dim=2, kv_creator=creator)
    """

    @classmethod
    def _config_class(cls) -> type:
        return HkvHashTableConfig

    @property
    def policy(self) -> TablePolicy:
        """By which rows come and leave."""
        return (self.config or HkvHashTableConfig()).policy

    @property
    def storage(self) -> Storage:
        """The tiers of the table."""
        return (self.config or HkvHashTableConfig()).storage

    @property
    def init_size(self) -> int | None:
        """Rows to make room for, in all shards together; None for what the variable says."""
        return None if self.config is None else self.config.init_capacity


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class RedisTableCreator(KVCreator):
    """A table on a Redis server, which several processes share: see `tf_embed.RedisServer`.

    Args:
        config: A `RedisTableConfig`. Default: a server on this machine at port 6379.
        saver: A `FileSystemSaver`, or None.

    Raises:
        TypeError: An argument of a wrong type.
    """

    @property
    def storage(self) -> Storage:
        """The server.

        Raises:
            ValueError: If the config can't be read, or has a field that is refused.
        """
        return Storage(redis=(self.config or RedisTableConfig()).server())

    @classmethod
    def _config_class(cls) -> type:
        return RedisTableConfig


def policy_of(kv_creator: Any, policy: Any) -> Any:
    """The policy of a table that is made with both arguments.

    Args:
        kv_creator: None, or a creator.
        policy: None, or a TablePolicy.

    Raises:
        TypeError: `kv_creator` is no creator of a table.
        ValueError: There is a policy beside one that has its own.
    """
    if kv_creator is None:
        return policy
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
    return kv_creator.policy


def storage_of(kv_creator: Any, storage: Any) -> Storage | None:
    """The storage of a table that is made with both arguments, of which `storage` goes before.

    Args:
        kv_creator: None, or a creator of a table.
        storage: None, or a Storage.

    Raises:
        TypeError: If `storage` is neither.
        ValueError: If it has a `path` and no bound for the cache.
    """
    if storage is None:
        return None if kv_creator is None else kv_creator.storage
    check_storage(storage)
    if storage.path is not None and storage.host_bytes is None and storage.gpu_bytes is None:
        raise ValueError(
            "`host_bytes` of `storage` must be given with a `path`: the bytes of rows in the "
            f"cache. Received: storage={storage}"
        )
    return storage


def check_storage(storage: Any) -> None:
    """Refuses what is not a Storage.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(storage, Storage):
        raise TypeError(
            f"`storage` must be a tf_embed.Storage. Received: storage={validation.shown(storage)}"
        )

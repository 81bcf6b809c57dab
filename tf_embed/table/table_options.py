# SPDX-License-Identifier: Apache-2.0
"""`TableOptions`: the settings of a table, and their conversion to the inputs of its op."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tf_embed.ops.new_table_ops import settings_text
from tf_embed.table import sharding
from tf_embed.table.initializers import RowInitializer
from tf_embed.table.policies import CHANGE_BIT, STATISTICS, TablePolicy
from tf_embed.table.redis_server import RedisServer
from tf_embed.table.storage import Storage


def kind_of(key_dtype: tf.DType, value_dtype: tf.DType, dim: int) -> str:
    """The kind of rows, as text for messages and files."""
    return f"key {key_dtype.name}, value {value_dtype.name}, dim {dim}"


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """The settings of a table.

    Attributes:
        name: The variable's name, for messages.
        key_dtype: int64, int32, uint64, uint32 or string.
        value_dtype: Dtype of the weights.
        dim: Number of weights in a row.
        num_shards: Number of shards.
        init_size: Rows that each shard reserves.
        initializer: The row of an absent key.
        partition_fn: Assigns keys to shards.
        device: TensorFlow's name of the device that holds the table.
        device_reason: Why it is on that device.
        shard_devices: The device of each shard, if shards are on several. `device` is the first.
        policy: The policy of admission and eviction. None admits keys at once and evicts no row.
        wanted_statistics: Statistics of each row in addition to the policy's, names of
            `policies.STATISTICS`.
        storage: The tiers that hold the rows, and their bounds. None means one unbounded memory.
    """

    name: str
    key_dtype: tf.DType = tf.int64
    value_dtype: tf.DType = tf.float32
    dim: int = 1
    num_shards: int = 1
    init_size: int = 8192
    initializer: RowInitializer = RowInitializer()
    partition_fn: sharding.PartitionFn = sharding.default_partition_fn
    device: str = "/CPU:0"
    device_reason: str = ""
    shard_devices: tuple[str, ...] = ()
    policy: TablePolicy | None = None
    wanted_statistics: tuple[str, ...] = ()
    storage: Storage | None = None

    @property
    def statistics(self) -> frozenset[str]:
        """The usage statistics of each row."""
        if self.redis is not None:  # the server expires unused rows itself
            return frozenset(self.wanted_statistics)
        kept = {*self.wanted_statistics, *(self.policy.kept if self.policy else ())}
        # The last step makes a key count once a step, and protects rows of the present step.
        by_steps = "count" in kept or self.evicts_by_bytes
        return frozenset({*kept, "last_step"} if by_steps else kept)

    @property
    def redis(self) -> RedisServer | None:
        """The server that holds the rows; None if they are in this process."""
        return None if self.storage is None else self.storage.redis

    @property
    def tracks_changes(self) -> bool:
        """Whether the table tracks the changes since a snapshot."""
        return self.policy is not None and self.policy.track_changes

    @property
    def words_of_row(self) -> int:
        """Words of 8 bytes that are stored next to each row."""
        return len(self.statistics) + int(self.tracks_changes)

    @property
    def evicts_by_bytes(self) -> bool:
        """Whether rows are evicted to keep the bytes of the storage within its bound."""
        has_order = self.policy is not None and self.policy.eviction is not None
        return has_order and self.storage is not None and self.storage.is_bounded

    @property
    def is_on_gpu(self) -> bool:
        """Whether the table is on a GPU."""
        return "GPU" in self.device.upper()

    @property
    def device_text(self) -> str:
        """The device, or the devices, for messages."""
        return " and ".join(dict.fromkeys(self.shard_devices)) or self.device

    @property
    def has_tiers(self) -> bool:
        """Whether there is a cache of rows, over rows in host memory, on disk, or both."""
        if self.storage is None:
            return False
        return self.storage.has_tiers_on_gpu if self.is_on_gpu else self.storage.has_tiers_on_cpu

    @property
    def notes_uses(self) -> bool:
        """Whether a training lookup does more than read: updates statistics or promotes rows."""
        expires_in_redis = self.redis is not None and self.policy is not None
        return self.has_tiers or bool(self.statistics) or expires_in_redis

    def settings(self, for_graph: bool = False) -> str:
        """The policy and the storage, as the ops that create a table take them.

        Args:
            for_graph: Whether it becomes a part of a graph. A SavedModel keeps the rows in memory
                and needs no server, so its graph has no settings of the server, and no password.
        """
        settings: dict[str, Any] = {} if self.policy is None else self.policy.settings()
        bits = sum(STATISTICS[one] for one in self.statistics)
        settings["statistics"] = bits + (CHANGE_BIT if self.tracks_changes else 0) or None
        if self.storage is not None:
            settings |= self.storage.settings()
            settings["evict_by_bytes"] = self.evicts_by_bytes or None
        if self.redis is not None and not for_graph:
            settings |= self.redis.settings(self.name)
        return settings_text(settings)

    @property
    def kind(self) -> str:
        """The kind of rows that the table accepts; saved with the rows."""
        return kind_of(self.key_dtype, self.value_dtype, self.dim)

    @property
    def slot_dtype(self) -> tf.DType:
        """Dtype of the optimizer's slots: float64 for float64 weights, otherwise float32."""
        return tf.float64 if self.value_dtype == tf.float64 else tf.float32

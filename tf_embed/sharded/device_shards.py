# SPDX-License-Identifier: Apache-2.0
"""`DeviceShards`: the shards of a table on several devices, and the device of each."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_embed import validation
from tf_embed.table import sharding
from tf_embed.table.policies import share_of
from tf_embed.table.storage import share_of_storage
from tf_embed.table.table_options import TableOptions


@dataclasses.dataclass(frozen=True)
class DeviceShards:
    """The shards of a table on several devices.

    A shard of a key is chosen as in a table on one device, and the shard decides the device.

    Args:
        options: The options of the whole table.
    """

    options: TableOptions

    @property
    def devices(self) -> tuple[str, ...]:
        """The distinct devices, in the order in which shards name them."""
        return tuple(dict.fromkeys(self.options.shard_devices))

    @property
    def are_remainders(self) -> bool:
        """Whether the device of a key is a remainder of the key, which ops compute themselves."""
        by_default = self.options.partition_fn is sharding.default_partition_fn
        return by_default and len(self.devices) == self.options.num_shards

    def place_of(self, shard: int) -> tuple[int, int]:
        """The number of a shard's device, and its number among the shards of that device."""
        names = self.options.shard_devices
        return self.devices.index(names[shard]), names[:shard].count(names[shard])

    def options_of(self, number: int) -> TableOptions:
        """The options of the shards on a device: their shares of the bounds, and a folder."""
        options, count = self.options, self.options.num_shards
        mine = [shard for shard in range(count) if self.place_of(shard)[0] == number]
        policy, storage = options.policy, options.storage
        if policy is not None and policy.max_rows is not None:
            bounds = [share_of(policy, shard, count).max_rows or 0 for shard in mine]
            policy = dataclasses.replace(policy, max_rows=sum(bounds))
        if storage is not None:
            storage = share_of_storage(storage, len(mine), count, f"device_{number}")
        return dataclasses.replace(
            options,
            num_shards=len(mine),
            shard_devices=(),
            partition_fn=self._shards_on_device,
            device=self.devices[number],
            device_reason="",  # the whole table says it
            policy=policy,
            storage=storage,
            # A function is called for the whole batch, as in a table on one device.
            initializer=dataclasses.replace(options.initializer, draw=None, by_key=None),
        )

    def devices_of_keys(self, keys: tf.Tensor) -> tf.Tensor:
        """The number of the device of each key [n], int32."""
        places = [self.place_of(shard)[0] for shard in range(self.options.num_shards)]
        return tf.gather(tf.constant(places), self._shards_of_keys(keys))

    def _shards_on_device(self, keys: tf.Tensor, count: int) -> tf.Tensor:
        """The number of each key's shard among the shards of its device. Keys [n]."""
        del count
        places = [self.place_of(shard)[1] for shard in range(self.options.num_shards)]
        return tf.gather(tf.constant(places), self._shards_of_keys(keys))

    def _shards_of_keys(self, keys: tf.Tensor) -> tf.Tensor:
        """The shard of each key [n], int32.

        Raises:
            tf.errors.InvalidArgumentError: If the partitioner returns another number. The op raises
                it.
        """
        options, count = self.options, self.options.num_shards
        shards = sharding.owners(keys, count, options.partition_fn, options.name)
        if shards is None:
            return sharding.default_partition_fn(keys, count)
        check = tf.debugging.Assert(
            tf.reduce_all(tf.logical_and(shards >= 0, shards < count)),
            [f"The partitioner of {options.name!r} must give shards in [0, {count}). Received:"]
            + [shards],
            summarize=20,
        )
        return validation.with_dependencies(shards, check)

# SPDX-License-Identifier: Apache-2.0
"""The shards of a table on several devices: their devices, keys and options."""

from __future__ import annotations

from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.sharded import new_table
from tf_embed.sharded.device_shards import DeviceShards
from tf_embed.sharded.spreads import OnDevice
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table import sharding
from tf_embed.table.table_options import TableOptions

KEYS = tf.constant([-3, -1, 0, 1, 2, 5, 7, 2**62], tf.int64)


def shards(*devices: str, **options: object) -> DeviceShards:
    options = {"num_shards": len(devices), "shard_devices": devices} | options
    return DeviceShards(TableOptions("v", device=devices[0], **options))


def reversed_shard(keys: tf.Tensor, count: int) -> tf.Tensor:
    return count - 1 - tf.math.floormod(tf.cast(keys, tf.int32), count)


class DeviceShardsTest(tf.test.TestCase, parameterized.TestCase):
    def test_places_are_in_the_order_of_the_names(self):
        made = shards("b", "a", "b", "b")
        self.assertEqual(made.devices, ("b", "a"))
        self.assertEqual([made.place_of(i) for i in range(4)], [(0, 0), (1, 0), (0, 1), (0, 2)])

    @parameterized.product(
        devices=(("a", "b"), ("a", "b", "a"), ("b", "a", "b", "a", "c")),
        partition_fn=(sharding.default_partition_fn, reversed_shard),
    )
    def test_a_key_is_on_the_device_of_its_shard(self, devices, partition_fn):
        made = shards(*devices, partition_fn=partition_fn)
        owners = OnDevice(made, rank=0).owners_of(KEYS)
        for key, shard, owner in zip(KEYS, partition_fn(KEYS, len(devices)), owners, strict=True):
            self.assertEqual(made.devices[int(owner)], devices[int(shard)])
            options = made.options_of(int(owner))
            of_part = options.partition_fn(key[tf.newaxis], options.num_shards)
            self.assertEqual((int(owner), int(of_part[0])), made.place_of(int(shard)))
        routed = OnDevice(made, rank=0).route(KEYS)
        self.assertAllEqual(routed.counts, tf.math.bincount(owners, minlength=len(made.devices)))
        self.assertAllEqual(routed.of_batch(routed.keys), KEYS)

    def test_a_wrong_shard_is_named(self):
        made = shards("a", "b", partition_fn=lambda keys, n: tf.cast(keys, tf.int32))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r"'v' must give .*\[0, 2\)"):
            OnDevice(made, rank=0).route(KEYS[2:6])

    @parameterized.parameters((10, [5, 3, 2]), (12, [6, 3, 3]), (6, [3, 2, 1]))
    def test_bounds_on_rows_are_the_bounds_of_the_shards(self, max_rows, expected):
        made = shards("a", "b", "a", "c", policy=tf_embed.TablePolicy(max_rows=max_rows))
        options = [made.options_of(number) for number in range(3)]
        self.assertEqual([one.policy.max_rows for one in options], expected)
        self.assertEqual([one.num_shards for one in options], [2, 1, 1])
        self.assertEqual([one.device for one in options], ["a", "b", "c"])

    def test_bytes_are_shared_by_the_shards(self):
        storage = tf_embed.Storage(gpu_bytes=400, host_bytes=90, path="/rows", disk_bytes=2)
        made = shards("a", "b", "a", storage=storage)
        found = [made.options_of(number).storage for number in range(2)]
        self.assertEqual([one.gpu_bytes for one in found], [266, 133])
        self.assertEqual([one.host_bytes for one in found], [60, 30])
        self.assertEqual([one.disk_bytes for one in found], [1, 1])
        self.assertEqual([one.path for one in found], ["/rows/device_0", "/rows/device_1"])
        made = shards("a", "b", storage=tf_embed.Storage(gpu_bytes=0))
        self.assertEqual(made.options_of(1).storage, tf_embed.Storage(gpu_bytes=0))

    @parameterized.parameters("servers_of_scope", "workers_of_scope")
    def test_a_table_over_processes_has_no_shards_on_several_devices(self, scope):
        options = shards("/GPU:0", "/GPU:1").options
        with (
            mock.patch.object(new_table, scope, lambda *_: object()),
            self.assertRaisesRegex(ValueError, "can't have this.*shards on several GPUs, devices="),
        ):
            new_table.new_table(options, WorkerSharding())


if __name__ == "__main__":
    tf.test.main()

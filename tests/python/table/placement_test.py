# SPDX-License-Identifier: Apache-2.0
"""The devices that a table may be on, in a process with two GPUs or none."""

from __future__ import annotations

from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.table import placement


def place(devices, *, keys=tf.int64, values=tf.float32, **options):
    return placement.place(devices, keys, values, **options)


# Arguments of tables that are on the CPU though there is a GPU, and the reason.
ON_CPU = (
    ({"keys": tf.string}, "a table of strings can't be on a GPU"),
    ({"values": tf.string}, "a table of strings can't be on a GPU"),
    ({"has_narrow_slots": True}, "a table with slots of float16 or bfloat16 can't be on a GPU"),
    (
        {"storage": tf_embed.Storage(redis=tf_embed.RedisServer(host="localhost"))},
        "a table in Redis can't be on a GPU",
    ),
    (
        {"storage": tf_embed.Storage(host_bytes=9, path="/tmp/rows")},
        "`storage` has a `path` and no `gpu_bytes`, the cache in the GPU's memory",
    ),
)
# Storages for both kinds of machine.
ON_GPU = (
    {"gpu_bytes": 9, "path": "/tmp/rows"},
    {"gpu_bytes": 9, "host_bytes": 9, "path": "/tmp/rows"},
    {"gpu_bytes": 9, "gpu_cache": True},
    {"gpu_bytes": 0},
    {"gpu_total_bytes": 9},
)


class PlacementTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.found = {"CPU": ["/CPU:0"], "GPU": ["/GPU:0", "/GPU:1"]}
        self.has_gpu_tables = True
        self.enter_context(
            mock.patch.object(tf.config, "list_logical_devices", lambda kind: self.found[kind])
        )
        self.enter_context(
            mock.patch.object(placement.process_ops, "has_gpu_tables", lambda: self.has_gpu_tables)
        )

    @parameterized.parameters("/CPU:0", "cpu", "/GPU:0", "/GPU:1", "gpu", "/device:GPU:1")
    def test_a_device_of_this_process(self, name):
        for given in (name, [name], (name, name)):
            found = place(given)
            self.assertEqual(found.devices, (given,) if isinstance(given, str) else tuple(given))
            self.assertEqual(found.reason, "`devices` says so")

    @parameterized.parameters("/CPU:1", "/GPU:2", "/job:localhost/task:1/GPU:0", "/replica:1/CPU:0")
    def test_a_device_that_this_process_has_not(self, name):
        with self.assertRaisesRegex(ValueError, f"that this process has, .*Received: '{name}'"):
            place(name)

    @parameterized.parameters("/TPU:0", "/job:worker/CPU:0", "GPU:x", "")
    def test_a_name_of_no_device_of_this_machine(self, name):
        with self.assertRaisesRegex(ValueError, "must be CPUs or GPUs of this machine"):
            place(name)

    def test_a_placement_is_as_it_was(self):
        given = placement.Placement(("/GPU:0",), "a layer said so")
        self.assertIs(place(given, keys=tf.string), given)

    @parameterized.parameters(*ON_GPU)
    def test_the_default_is_the_first_gpu(self, **storage):
        storage = tf_embed.Storage(**storage)
        for one in (None, storage):
            found = place(None, storage=one)
            self.assertEqual(found, placement.Placement(("/GPU:0",), "it is the first GPU"))
        self.found["GPU"] = []
        self.assertEqual(place(None, storage=storage).devices, ("/CPU:0",))

    @parameterized.parameters(*ON_CPU)
    def test_what_a_gpu_lacks_puts_a_table_on_the_cpu(self, options, reason):
        self.assertEqual(place(None, **options), placement.Placement(("/CPU:0",), reason))
        self.assertEqual(place("/CPU:0", **options).devices, ("/CPU:0",))
        with self.assertRaises(ValueError) as raised:
            place("/GPU:0", **options)
        words = f"`devices` names a GPU, but {reason}. Received: devices='/GPU:0'"
        self.assertEqual(str(raised.exception), words)

    def test_without_a_gpu_a_table_is_on_the_cpu(self):
        self.has_gpu_tables = False
        for reason in ("tf_embed has no GPU support: it must", "TensorFlow sees no GPU"):
            self.assertStartsWith(place(None).reason, reason)
            self.assertEqual(place(None).devices, ("/CPU:0",))
            with self.assertRaisesRegex(ValueError, f"names a GPU, but {reason}"):
                place("/GPU:0")
            self.found["GPU"] = []

    def test_shards_are_on_gpus_or_on_cpus(self):
        with self.assertRaisesRegex(ValueError, "must all be on GPUs or all on CPUs"):
            place(["/GPU:0", "/CPU:0"])
        self.found["CPU"].append("/CPU:1")
        for names in (["/CPU:0", "/CPU:1"], ["GPU", "/GPU:0", "gpu:0"]):
            found = place(names)
            self.assertEqual((found.devices, found.several_gpus), (tuple(names), ()))
            placement.check_one_gpu(found, "A layer")

    def test_shards_on_several_gpus(self):
        names = ["/GPU:1", "gpu", "/device:GPU:1"]
        found = place(names)
        self.assertEqual(found.devices, tuple(names))
        self.assertEqual(found.several_gpus, ("/GPU:1", "/GPU:0", "/GPU:1"))
        with self.assertRaisesRegex(ValueError, "A layer has all shards on one GPU"):
            placement.check_one_gpu(found, "A layer")
        with self.assertRaisesRegex(ValueError, "names a GPU, but a table of strings"):
            place(names, keys=tf.string)


if __name__ == "__main__":
    absltest.main()

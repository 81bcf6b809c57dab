# SPDX-License-Identifier: Apache-2.0
"""The devices that a table may be on, in a process with two GPUs or none."""

from __future__ import annotations

from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_embed.table import devices


class DevicesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.found = {"CPU": ["/CPU:0"], "GPU": ["/GPU:0", "/GPU:1"]}
        self.enterContext(
            mock.patch.object(tf.config, "list_logical_devices", lambda kind: self.found[kind])
        )
        self.enterContext(mock.patch.object(devices.process_ops, "has_gpu_tables", lambda: True))

    @parameterized.parameters("/CPU:0", "cpu", "/GPU:0", "/GPU:1", "gpu", "/device:GPU:1")
    def test_a_device_of_this_process(self, name):
        for given in (name, [name], (name, name)):
            names = devices.device_names(given, tf.int64, tf.float32)
            self.assertEqual(names, (given,) if isinstance(given, str) else tuple(given))

    @parameterized.parameters("/CPU:1", "/GPU:2", "/job:localhost/task:1/GPU:0", "/replica:1/CPU:0")
    def test_a_device_that_this_process_has_not(self, name):
        with self.assertRaisesRegex(ValueError, f"that this process has, .*Received: '{name}'"):
            devices.device_names(name, tf.int64, tf.float32)

    @parameterized.parameters("/TPU:0", "/job:worker/CPU:0", "GPU:x", "")
    def test_a_name_of_no_device_of_this_machine(self, name):
        with self.assertRaisesRegex(ValueError, "must be CPUs or GPUs of this machine"):
            devices.device_names(name, tf.int64, tf.float32)

    def test_the_default_is_the_first_gpu_if_it_supports_the_table(self):
        self.assertEqual(devices.device_names(None, tf.int64, tf.float32), ("/GPU:0",))
        self.assertEqual(devices.device_names(None, tf.string, tf.float32), ("/CPU:0",))
        self.assertEqual(devices.device_names(None, tf.int64, tf.string), ("/CPU:0",))
        self.found["GPU"] = []
        self.assertEqual(devices.device_names(None, tf.int64, tf.float32), ("/CPU:0",))
        with self.assertRaisesRegex(ValueError, "names a GPU, but TensorFlow sees no GPU"):
            devices.device_names("/GPU:0", tf.int64, tf.float32)

    @parameterized.parameters([["/GPU:0", "/GPU:1"]], [["/CPU:0", "/GPU:0"]], [["GPU", "gpu:1"]])
    def test_shards_are_not_on_a_gpu_and_elsewhere(self, *names):
        with self.assertRaisesRegex(ValueError, "shards of a variable on a GPU are all on that"):
            devices.device_names(*names, tf.int64, tf.float32)
        same = ["GPU", "/GPU:0", "gpu:0"]  # three names of the same device
        self.assertEqual(devices.device_names(same, tf.int64, tf.float32), tuple(same))

    def test_strings_are_not_on_a_gpu(self):
        with self.assertRaisesRegex(ValueError, "A table of strings can't be on a GPU"):
            devices.device_names("/GPU:0", tf.string, tf.float32)


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""`prefetch`, `memory_report` and the statistics of tiers, of tables in one memory."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe
from tf_embed.layers import DynamicEmbedding
from tf_embed.variable import memory_report as reports


class PrefetchTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(tf.int64, tf.int32, tf.uint64, tf.uint32)
    @pytest.mark.smoke
    def test_no_row_changes_and_none_comes(self, key_dtype):
        v = tf_embed.Variable(key_dtype, dim=2, devices=["/CPU:0"] * 3)
        v.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        self.assertIsNone(v.prefetch([[1, 7], [2, 2]]))
        self.assertIsNone(v.prefetch(tf.zeros([0], key_dtype)))
        operation = tf.function(lambda keys: v.prefetch(keys) is None)(tf.constant([1], key_dtype))
        self.assertFalse(operation)
        self.assertEqual(v.size(), 2)
        self.assertAllEqual(v.lookup([1, 2]), [[1, 2], [3, 4]])

    def test_strings_are_keys_as_well(self):
        v = tf_embed.Variable(tf.string, dim=1)
        v.upsert(["a"], [[1.0]])
        v.prefetch(["a", "b"])
        self.assertEqual(v.size(), 1)

    def test_keys_of_another_dtype_are_refused(self):
        with self.assertRaisesRegex(TypeError, "`keys` of 'mine' must be of dtype int64"):
            tf_embed.Variable(name="mine").prefetch(tf.constant(["a"]))

    def test_a_partitioner_is_asked(self):
        v = tf_embed.Variable(
            devices=["/CPU:0"] * 2, partitioner=lambda keys, count: tf.ones_like(keys, tf.int32)
        )
        v.upsert([4], [[1.0]])
        v.prefetch([4])
        self.assertEqual(v.table.size(1), 1)


class StatsTest(tf.test.TestCase):
    def test_ratios_are_unknown_without_tiers(self):
        v = tf_embed.Variable(dim=2)
        v.upsert([1], [[1.0, 2.0]])
        v.lookup([1, 2])
        stats = v.stats()
        self.assertIsNone(stats["cache_hit_rate"])
        self.assertIsNone(stats["read_amplification"])
        in_graph = tf.function(v.stats)()
        self.assertTrue(np.isnan(in_graph["cache_hit_rate"]))
        self.assertEqual(stats["disk_rows"], 0)


class MemoryReportTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (tf.float32, None, (12, 0)),
        (tf.float32, "sgd", (12, 0)),
        (tf.float32, "adam", (12, 24)),
        (tf.float32, "rowwise_adagrad", (12, 4)),
        (tf.float16, "adagrad", (6, 12)),
        (tf.float64, "adam", (24, 48)),
        (tf.float32, "nadam", (12, 24)),  # outside of the table
    )
    @pytest.mark.of_cpu("rows are in host memory")
    def test_a_row_is_the_same_before_and_after_training(self, dtype, optimizer, parts):
        layer = DynamicEmbedding(3, value_dtype=dtype, optimizer=optimizer, name="items")
        before = layer.memory_report()
        self.assertEqual((before.weight_bytes, before.slot_bytes), parts)
        if optimizer is None:
            layer.variable.upsert([1, 2], [[1.0] * 3] * 2)
        else:
            model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(np.array([[1], [2]]), np.array([0.0, 1.0]), verbose=0)
        after = layer.memory_report()
        self.assertEqual((after.weight_bytes, after.slot_bytes), parts)
        self.assertEqual((before.rows, after.rows), (0, 2))
        (tier,) = after.tiers
        self.assertEqual((tier.name, tier.bound_bytes, tier.capacity_rows), ("host", None, None))
        self.assertEqual((tier.rows, tier.bytes), (2, 2 * sum(parts)))
        self.assertEqual(after.row_bytes % 16, 0)

    def test_statistics_are_a_part_of_a_row(self):
        policy = tf_embed.TablePolicy(eviction="lfu")
        report = tf_embed.Variable(dim=4, policy=policy).memory_report()
        self.assertEqual((report.statistics_bytes, report.row_bytes), (16, 32))

    def test_the_models_optimizer_counts_once_it_is_built(self):
        layer = DynamicEmbedding(4)
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        self.assertEqual(layer.memory_report().slot_bytes, 0)
        optimizer.build(layer.trainable_variables)
        self.assertEqual(layer.memory_report().slot_bytes, 32)

    def test_it_prints_as_a_table(self):
        with self.assertLogs("absl", "INFO") as logs:
            v = tf_embed.Variable(dim=4, name="items")
        v.upsert(np.arange(100), np.zeros([100, 4], np.float32))
        report = v.memory_report()
        lines = str(report).splitlines()
        self.assertEqual(
            lines[0],
            "'items': 100 rows. A row takes 16 bytes: weights 16, slots 0, statistics 0.",
        )
        self.assertEqual(
            lines[1].split(), ["tier", "bound", "rows", "that", "fit", "rows", "bytes"]
        )
        self.assertIn("rows that fit", lines[1])
        first = report.tiers[0].name
        self.assertEqual(lines[2].split(), [first, "none", "any", "100", "1.6", "KiB"])
        self.assertEqual(lines[-3].split()[:2], ["index", "none"])
        self.assertEqual(lines[-2].split()[:2], ["slack", "none"])
        self.assertEqual(lines[-1], f"on {v.devices[0]}: {report.device_reason}")
        self.assertIn(f"INFO:absl:'items' is {lines[-1]}.", logs.output)
        self.assertEqual(report.slack_bytes, v.stats()["slack_bytes"])
        self.assertEqual(repr(report), str(report))

    @parameterized.parameters(
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**31, "2.0 GiB"), (2**52, "4096.0 TiB")
    )
    def test_bytes_have_units(self, number, text):
        self.assertEqual(reports.size_text(number), text)

    def test_a_graph_is_refused(self):
        v = tf_embed.Variable(name="mine")
        with self.assertRaisesRegex(
            RuntimeError, "must be called in eager execution. Received: a call in"
        ):
            tf.function(v.memory_report)()

    def test_tables_of_a_batched_layer_have_one(self):
        layer = tbe.TableBatchedEmbeddingBags([(5, 2)], optimizer="ADAM")
        layer([tf.constant([1, 2])])
        self.assertEqual(layer.tables[0].memory_report().weight_bytes, 8)


if __name__ == "__main__":
    tf.test.main()

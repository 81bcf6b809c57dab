# SPDX-License-Identifier: Apache-2.0
"""Models with tables on disk compute the same numbers as in memory, and use their caches."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy, tbe
from tf_embed.callbacks import TableMetrics
from tf_embed.layers import DynamicEmbedding

DIM, VOCABULARY, STEPS, BATCH = 4, 4000, 24, 32
ROW_BYTES = 16 + 2 * 16 + 1  # with Adam's slots
CACHE_ROWS = 400
POLICIES = (
    None,
    TablePolicy(700, "lfu", CounterAdmission(2), ttl_seconds=10**6, log_evicted=True),
    TablePolicy(500, "lru", BloomAdmission(2, 0.01), log_evicted=True),
)


class DiskTierTest(tf.test.TestCase, parameterized.TestCase):
    def storage(self, rows: int = CACHE_ROWS) -> tf_embed.Storage:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        return tf_embed.Storage(host_bytes=rows * ROW_BYTES, path=folder)

    def dataset(self) -> tf.data.Dataset:
        rng = np.random.default_rng(SEED)
        ids = rng.integers(0, VOCABULARY, [STEPS * BATCH, 2]) + 2**40
        y = rng.normal(size=[STEPS * BATCH, 1])
        return tf.data.Dataset.from_tensor_slices((ids, y)).batch(BATCH)

    def model(self, storage: Any, **options: Any) -> tuple[keras.Model, DynamicEmbedding]:
        keras.utils.set_random_seed(SEED)
        options = {"optimizer": "adam", "storage": storage, "devices": "/CPU:0"} | options
        layer = DynamicEmbedding(DIM, name="items", **options)
        model = keras.Sequential(
            [
                keras.Input([2], dtype="int64"),
                layer,
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse", jit_compile=False)
        return model, layer

    def uses(self, v: tf_embed.Variable) -> list[np.ndarray]:
        """The inputs and the victims of a policy, without times."""
        statistics = v.row_statistics(self.rows(v)[0])
        kept = [one.numpy() for name, one in statistics.items() if name != "last_time_ms"]
        left = v.drain_evicted() if v.policy is not None else (np.zeros([0]), np.zeros([0]))
        keys, rows = (np.asarray(part) for part in left)
        order = np.argsort(keys, kind="stable")
        counts = [v.stats()[name] for name in ("admitted", "held_back", "evicted", "expired")]
        return [*kept, keys[order], rows[order], np.array(counts)]

    def rows(self, v: tf_embed.Variable) -> tuple[np.ndarray, np.ndarray]:
        keys, rows = (part.numpy() for part in v.export())
        return np.sort(keys), rows[np.argsort(keys)]

    @parameterized.parameters(*POLICIES)
    @pytest.mark.smoke
    def test_fit_is_the_same_as_in_memory_with_prefetch_and_without(self, policy):
        results = []
        for on_disk, ahead in ((False, False), (True, False), (True, True)):
            model, layer = self.model(self.storage() if on_disk else None, policy=policy)
            dataset = layer.prefetch(self.dataset()) if ahead else self.dataset()
            losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
            results.append((losses, *self.rows(layer.variable), *self.uses(layer.variable)))
            stats = layer.variable.stats()
            if policy is not None:
                self.assertGreater(min(stats["evicted"], stats["held_back"]), 100)
            if on_disk:
                # Rows that a step and a prefetch promote at once may exceed the bound.
                most = CACHE_ROWS + (2 * BATCH if ahead else 0)
                self.assertLessEqual(stats["cache_rows"], most)
                self.assertGreater(stats["demoted"], 0)
                self.assertGreater(stats["disk_rows"], 0)
        for other in results[1:]:
            for one, wanted in zip(other, results[0], strict=True):
                self.assertAllEqual(one, wanted)

    def test_lookups_of_fit_hit_what_was_prefetched(self):
        rates = []
        for ahead in (False, True):
            model, layer = self.model(self.storage())
            model.fit(self.dataset(), verbose=0)
            before = layer.variable.stats()
            dataset = layer.prefetch(self.dataset(), buffer_size=1) if ahead else self.dataset()
            history = model.fit(dataset, verbose=0, callbacks=[TableMetrics()])
            after = layer.variable.stats()
            self.assertGreater(after["promoted"], before["promoted"])
            rates.append(history.history["cache_hit_rate"][0])
        self.assertGreater(rates[1], rates[0])
        self.assertGreater(rates[1], 0.95)

    def test_prefetch_brings_rows_up(self):
        v = tf_embed.Variable(dim=DIM, storage=self.storage())
        keys = np.arange(20 * CACHE_ROWS)
        for some in np.split(keys, 40):
            v.upsert(some, np.tile(some[:, None], [1, DIM]).astype("f"))
        before = v.stats()
        self.assertEqual(before["rows"], len(keys))
        v.prefetch(keys[:50])
        after = v.stats()
        self.assertEqual(after["promoted"] - before["promoted"], 50)
        self.assertGreaterEqual(after["read_amplification"], 1.0)
        self.assertAllEqual(v.lookup(keys)[:, 0], keys)

    def test_the_report_has_both_tiers(self):
        model, layer = self.model(self.storage())
        before = layer.memory_report()
        self.assertEqual(before.row_bytes, ROW_BYTES)
        self.assertEqual([tier.name for tier in before.tiers], ["host", "disk"])
        self.assertEqual(before.tiers[0].capacity_rows, CACHE_ROWS)
        model.fit(self.dataset(), verbose=0)
        after = layer.memory_report()
        self.assertEqual(after.row_bytes, ROW_BYTES)
        self.assertEqual(after.rows, int(layer.variable.size()))
        self.assertLessEqual(after.tiers[0].rows, CACHE_ROWS)
        self.assertGreaterEqual(sum(tier.rows for tier in after.tiers), after.rows)

    @parameterized.parameters(
        (None, 0),
        (TablePolicy(eviction="lfu"), 16),
        (TablePolicy(60_000, "ttl", ttl_seconds=1e6), 16),
        (TablePolicy(eviction="score"), 8),
    )
    def test_the_report_is_what_the_tiers_hold(self, policy, statistics):
        shards, row = 3, 16 + 1 + statistics
        v = tf_embed.Variable(
            dim=DIM,
            devices=["/CPU:0"] * shards,
            policy=policy,
            storage=tf_embed.Storage(
                host_bytes=shards * 500 * row,
                path=tempfile.mkdtemp(dir=self.get_temp_dir()),
            ),
        )
        self.assertEqual(v.memory_report().tiers[0].capacity_rows, shards * 500)
        index_bytes = []
        for some in np.split(np.arange(60_000), 60):
            v.upsert(some, np.zeros([len(some), DIM], np.float32))
            index_bytes.append(v.memory_report().index_bytes)
        report, stats = v.memory_report(), v.stats()
        host, disk = report.tiers
        self.assertEqual((report.statistics_bytes, report.row_bytes), (statistics, row))
        self.assertIn(f"statistics {statistics}, mark 1.", str(report))
        self.assertBetween(host.rows, 0.9 * host.capacity_rows, host.capacity_rows)
        self.assertEqual(host.bytes, host.rows * (row - 1))
        self.assertEqual(disk.bytes, stats["disk_bytes"])
        # The statistics of rows on disk, and of garbage there, are in memory.
        most = (24 + 2 * statistics) * disk.rows + 2**20
        self.assertBetween(report.index_bytes, (16 + statistics) * disk.rows, most)

    @parameterized.parameters((4, 1), (32, 3), (200, 1))
    def test_the_rows_that_fit_on_disk_fit(self, dim, shards):
        v = tf_embed.Variable(
            dim=dim,
            devices=["/CPU:0"] * shards,
            storage=tf_embed.Storage(
                host_bytes=2**18,
                path=tempfile.mkdtemp(dir=self.get_temp_dir()),
                disk_bytes=2**23,
            ),
        )
        fit = v.memory_report().tiers[1].capacity_rows
        step = max(1, fit // 40)
        count = 0
        with self.assertRaises(tf.errors.ResourceExhaustedError):
            while count < 2 * fit:
                keys = np.arange(count, count + step)
                v.upsert(keys, np.zeros([step, dim], np.float32))
                count += step
        self.assertBetween(v.memory_report().tiers[1].rows, 0.95 * fit, 1.25 * fit)

    def test_a_saved_model_has_all_rows(self):
        model, layer = self.model(self.storage())
        model.fit(self.dataset(), verbose=0)
        path = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir())) / "m.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertEqual(loaded.layers[0].storage, layer.storage)
        wanted = self.rows(layer.variable)
        for one, other in zip(self.rows(loaded.layers[0].variable), wanted, strict=True):
            self.assertAllEqual(one, other)

    @parameterized.parameters(*POLICIES)
    def test_batched_tables_are_the_same_as_in_memory(self, policy):
        results = []
        rng = np.random.default_rng(SEED)
        batches = [rng.integers(0, VOCABULARY, 2 * BATCH) for _ in range(STEPS)]
        offsets = tf.range(0, 2 * BATCH + 1, 2)
        host = tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU
        for on_disk in (False, True):
            layer = tbe.TableBatchedEmbeddingBags(
                [(None, DIM, *host), (VOCABULARY, DIM, *host)],
                optimizer="ADAM",
                table_names=["a", "b"],
                initializer=1.0,
                policy=[policy, None],
                storage=self.storage() if on_disk else None,
                gather_uvm_cache_stats=True,
                record_cache_metrics={"record_tablewise_cache_miss": True},
            )
            sgd = keras.optimizers.SGD()
            for number, batch in enumerate(batches):
                if number:
                    layer.prefetch(tf.constant(batch), offsets)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(tf.constant(batch), offsets, training=True) ** 2)
                variables = layer.trainable_variables
                sgd.apply(tape.gradient(loss, variables), variables)
            results.append([part for v in layer.tables for part in (*self.rows(v), *self.uses(v))])
            _, requested, _, promoted, _, _ = layer.get_uvm_cache_stats().numpy()
            self.assertEqual((requested > 0, promoted > 0), (on_disk, on_disk))
            self.assertLen(layer.get_table_wise_cache_miss(), 2)
            layer.reset_uvm_cache_stats()
            self.assertAllEqual(layer.get_uvm_cache_stats(), [-1, 0, -1, 0, -1, -1])
        for one, other in zip(*results, strict=True):
            self.assertAllEqual(one, other)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Policies of tables with rows on disk: each attribute reaches the table, its cache and its disk.

The suites of tests/cc/core/store test the rules themselves in C++, for every store.
"""

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
from support.cases import policy_tables
from support.cases.policy_tables import (
    COUNTED,
    ORDERS,
    keys_of,
    popular_keys,
    score_of,
    scores_by_key,
    train,
    upsert,
)
from support.cases.saved_files import content
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy, tfra
from tf_embed.layers import DynamicEmbedding

CACHE_BYTES = 400  # one to twenty rows of these tables
SHARDS = 3


def plain(v: tf_embed.Variable, keys: np.ndarray) -> tf.Tensor:
    """A lookup in training."""
    return v.lookup(keys, training=True)


def pooled(v: tf_embed.Variable, keys: np.ndarray) -> tf.Tensor:
    """A lookup in training with a bag for each key."""
    bags = tf.RaggedTensor.from_row_lengths(tf.constant(keys), tf.ones_like(keys))
    return tf_embed.embedding_lookup_sparse(v, bags, None, training=True)


class DiskTestCase(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def storage(self) -> tf_embed.Storage:
        return tf_embed.Storage(host_bytes=CACHE_BYTES, path=self.folder())

    def variable(
        self, policy: Any = None, shards: int = SHARDS, **options: Any
    ) -> tf_embed.Variable:
        return policy_tables.variable(policy, shards, storage=self.storage(), **options)

    def assert_disk_used(self, v: tf_embed.Variable) -> None:
        stats = v.stats()
        self.assertGreater(stats["disk_rows"], 0)
        self.assertGreater(stats["demoted"], 0)


class PolicyTest(DiskTestCase):
    @parameterized.parameters(*ORDERS)
    def test_a_bound_evicts_by_each_order(self, order):
        rng = np.random.default_rng(SEED)
        steps = 7 if order.startswith("epoch") else None
        score_fn = score_of if order == "score" else None
        v = self.variable(TablePolicy(61, order, steps_per_epoch=steps, score_fn=score_fn))
        oracle = PolicyOracle(order, 61, SHARDS, steps_per_epoch=steps)
        for number in range(30):
            v.set_clock(time_ms=number // 3)
            oracle.now_ms = number // 3
            keys = popular_keys(rng, 40, 300)
            trains = number % 5 != 0
            (train if trains else upsert)(v, keys)
            scores = dict(zip(keys, score_of(np.array(keys)).tolist(), strict=True))
            oracle.update(keys, trains, scores if score_fn else None)
            self.assertEqual(keys_of(v), oracle.keys())
        stats = v.stats()
        self.assertEqual({name: stats[name] for name in COUNTED}, oracle.counts)
        self.assertGreater(stats["evicted"], 50)
        self.assertEqual(scores_by_key(v, split_size=7), oracle.scores())
        self.assert_disk_used(v)

    def test_a_bound_without_an_order_refuses(self):
        v = self.variable(TablePolicy(61, None))
        for first in range(0, 120, 20):
            upsert(v, range(first, first + 20))
        # Shard 0 has room for 21 multiples of 3, each other shard for 20 keys.
        self.assertEqual(keys_of(v), [*range(61)])
        self.assertEqual((v.stats()["refused"], v.stats()["evicted"]), (59, 0))
        self.assert_disk_used(v)

    @parameterized.parameters(CounterAdmission(3), BloomAdmission(3, 1e-6))
    def test_an_admission_holds_keys_back_and_its_counts_are_saved(self, admission):
        policy, keys = TablePolicy(admission=admission), list(range(60))
        v, in_memory = self.variable(policy), policy_tables.variable(policy)
        for _ in range(2):
            train(v, keys)
        self.assertEqual((keys_of(v), v.stats()["held_back"]), ([], 120))
        path = tf.train.Checkpoint(v=v).write(str(self.folder() / "c"))
        tf.train.Checkpoint(v=in_memory).read(path).assert_consumed()
        for one in (v, in_memory):
            train(one, keys)
            self.assertEqual(keys_of(one), keys)
        self.assert_disk_used(v)

    def test_an_optimizer_outside_of_the_table_obeys_admission_and_bound(self):
        v = self.variable(TablePolicy(61, admission=CounterAdmission(2)))
        oracle = PolicyOracle("lru", 61, SHARDS, n=2)
        wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Nadam(0.1))
        rng = np.random.default_rng(SEED)
        for _ in range(20):
            keys = popular_keys(rng, 40, 300)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys, training=True))
            oracle.look_up(keys)
            wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            oracle.update(keys, trains=True)
            self.assertEqual(keys_of(v), oracle.keys())
        self.assert_disk_used(v)

    @parameterized.parameters(plain, pooled)
    def test_training_uses_rows_of_any_tier_and_misses_expired_ones(self, lookup):
        v = self.variable(TablePolicy(ttl_seconds=0.05))
        keys = np.arange(60)  # more than can be promoted together
        ones = np.ones([len(keys), 1], np.float32)
        v.set_clock(time_ms=0)
        v.upsert(keys, ones)
        v.set_clock(time_ms=30)
        self.assertAllEqual(lookup(v, keys[:50]), ones[:50])
        v.set_clock(time_ms=60)
        self.assertAllEqual(lookup(v, keys), [[1.0]] * 50 + [[0.0]] * 10)
        self.assertEqual(int(v.restrict(10**6)), 10)
        self.assertEqual(keys_of(v), [*range(50)])
        self.assertEqual(v.stats()["expired"], 10)
        self.assert_disk_used(v)

    @parameterized.parameters(True, False)
    def test_restrict_takes_rows_of_any_tier(self, by_policy):
        if by_policy:
            v = self.variable(TablePolicy(eviction="lfu"))
        else:
            v = tfra.Variable(
                devices=["/CPU:0"] * SHARDS,
                restrict_policy=tfra.FrequencyRestrictPolicy,
                storage=self.storage(),
            )
        upsert(v, range(90))
        upsert(v, range(0, 90, 3))
        self.assertEqual(int(v.restrict(30)), 60)
        self.assertEqual(keys_of(v), [*range(0, 90, 3)])
        self.assert_disk_used(v)

    def test_scores_are_set_in_any_tier(self):
        v = self.variable(TablePolicy(eviction="score"))
        upsert(v, range(60))
        scores = np.random.default_rng(SEED).permutation(60) - 30
        v.set_scores(range(60), scores)
        self.assertEqual(scores_by_key(v), dict(enumerate(scores.tolist())))
        self.assert_disk_used(v)

    def test_rows_that_leave_any_tier_are_logged_whole(self):
        rng = np.random.default_rng(SEED)
        v = self.variable(TablePolicy(61, "lfu", log_evicted=True), value_dtype=tf.int64)
        shadow: dict[int, int] = {}
        for number in range(30):
            keys = popular_keys(rng, 40, 300)
            values = np.arange(40 * number, 40 * number + 40)
            v.upsert(keys, values[:, None])
            for key, row in zip(*(one.numpy() for one in v.drain_evicted()), strict=True):
                self.assertEqual(shadow.pop(int(key)), row[0])
            shadow.update(zip(keys, values.tolist(), strict=True))
        keys, rows = (one.numpy() for one in v.export())
        self.assertEqual(dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True)), shadow)
        self.assert_disk_used(v)

    @parameterized.parameters((tf.string, tf.float32), (tf.int64, tf.string))
    def test_strings_come_and_go_with_their_rows(self, key_dtype, value_dtype):
        v = self.variable(
            TablePolicy(61, "lru", log_evicted=True), key_dtype=key_dtype, value_dtype=value_dtype
        )
        numbers = np.arange(120)
        words = np.array([b"word %d" % number for number in numbers], object)
        keys = words if key_dtype == tf.string else numbers
        rows = (words if value_dtype == tf.string else numbers.astype("f"))[:, None]
        for first in range(0, 120, 20):
            v.upsert(keys[first : first + 20], rows[first : first + 20])
        self.assertLessEqual(int(v.size()), 61)
        parts = zip(v.export(), v.drain_evicted(), strict=True)
        found = dict(zip(*(np.concatenate(part).ravel() for part in parts), strict=True))
        self.assertEqual(found, dict(zip(keys, rows[:, 0], strict=True)))
        self.assert_disk_used(v)


class PlacementTest(DiskTestCase):
    @pytest.mark.of_cpu("its lookups are on the CPU")
    def test_each_shard_has_a_folder_and_its_ops_are_on_the_cpu(self):
        v = self.variable(TablePolicy(300), name="items")
        upsert(v, range(90))
        folders = {path.name for path in pathlib.Path(v.storage.path).iterdir()}
        self.assertContainsSubset([f"items-{shard}" for shard in range(SHARDS)], folders)
        in_graph = tf.function(lambda: v.lookup([1, 2]))
        for output in (in_graph(), v.lookup([1, 2], training=True), v.size()):
            self.assertIn("CPU:0", output.device)

    def test_stats_count_what_the_cache_and_the_disk_hold(self):
        storage = tf_embed.Storage(host_bytes=2**16, path=self.folder())
        v = policy_tables.variable(TablePolicy(), SHARDS, dim=16, storage=storage)
        for first in range(0, 20_000, 2000):
            upsert(v, range(first, first + 2000))
        v.prefetch(range(9))
        v.lookup(range(0, 27, 3), training=True)  # three of them were prefetched
        stats = v.stats()
        self.assertEqual((stats["rows"], stats["hits"], stats["misses"]), (20_000, 9, 0))
        self.assertBetween(stats["cache_rows"], 1, 2**16 // 64)
        self.assertBetween(stats["disk_rows"], 19_000, 20_000)
        self.assertGreaterEqual(stats["promoted"], 9)
        self.assertBetween(stats["cache_hit_rate"], 0.0, 0.99)
        in_graph = {name: one.numpy() for name, one in tf.function(v.stats)().items()}
        for name in ("cache_rows", "disk_rows", "promoted", "demoted", "cache_hit_rate"):
            self.assertAllClose(in_graph[name], stats[name])
        v.restrict(500)
        after = v.stats()
        self.assertEqual(after["rows"], 500)
        self.assertLess(10 * after["disk_live_bytes"], stats["disk_live_bytes"])
        self.assertLess(after["disk_bytes"], stats["disk_bytes"] / 2)

    @parameterized.parameters("checkpoint", "files")
    def test_rows_and_their_uses_go_into_memory_and_back(self, way):
        policy = TablePolicy(100, "lfu", ttl_seconds=1000)
        v = self.variable(policy, name="items")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        for first in (0, 20, 30):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, range(first, first + 60)))
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
        wanted = content(v)
        self.assertLen(wanted, 90)
        for other in (policy_tables.variable(policy, name="items"), self.variable(policy, 1)):
            path = str(self.folder() / "save")
            if way == "checkpoint":
                tf.train.Checkpoint(v=v).write(path)
                tf.train.Checkpoint(v=other).read(path).assert_consumed()
            else:
                v.save_rows(path, file_name="items")
                other.load_rows(path, file_name="items")
            self.assertEqual(content(other), wanted)
            v = other
        self.assertGreater(v.stats()["disk_rows"], 0)

    def test_a_keras_file_has_the_policy_and_the_storage(self):
        policy = TablePolicy(60, "lfu", CounterAdmission(2), ttl_seconds=1000)
        layer = DynamicEmbedding(2, optimizer="adam", policy=policy, storage=self.storage())
        model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        ids = np.random.default_rng(SEED).integers(0, 100, [400, 2])
        model.fit(ids, np.ones([400, 1]), verbose=0)
        path = self.folder() / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path).layers[0]
        self.assertEqual((loaded.policy, loaded.storage), (policy, layer.storage))
        self.assertEqual(content(loaded.variable), content(layer.variable))
        self.assertLen(content(layer.variable), 60)
        self.assert_disk_used(layer.variable)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Bounds that refuse new keys: `TablePolicy(max_rows=..., eviction=None)`."""

from __future__ import annotations

import itertools
import os
import threading

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.policy_tables import (
    COUNTED,
    SHARDS,
    keys_of,
    popular_keys,
    train,
    upsert,
    variable,
)
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy


def refusing(max_rows: int, admission=None, **options) -> TablePolicy:
    return TablePolicy(max_rows, None, admission, **options)


def counts_of(v: tf_embed.Variable) -> dict[str, int]:
    stats = v.stats()
    return {name: stats[name] for name in COUNTED}


class RefusingBoundTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(itertools.product(SHARDS, (1, 2)))
    def test_the_keys_after_each_step_are_those_of_the_oracle(self, shards, n):
        rng = np.random.default_rng(SEED)
        admission = CounterAdmission(n) if n > 1 else None
        v = variable(refusing(61, admission), shards, init_size=1)
        oracle = PolicyOracle(None, 61, shards, n=n)
        for number in range(80):
            keys = popular_keys(rng, 40, 300)
            if number % 10 == 9:  # makes room again
                v.remove(keys[:20])
                for key, rows in itertools.product(keys[:20], oracle.shards):
                    rows.pop(key, None)
            if number % 4 == 1:
                v.lookup(keys, training=True)
            trains = number % 5 != 0
            (train if trains else upsert)(v, keys)
            oracle.update(keys, trains)
            self.assertEqual(keys_of(v), oracle.keys())
            self.assertEqual(counts_of(v), oracle.counts)
        self.assertGreater(oracle.counts["refused"], 100)

    def test_rows_train_on_and_refused_keys_have_their_initial_row(self):
        v = variable(refusing(3), initializer=0.5, dim=2)
        free = variable(initializer=0.5, dim=2)
        for keys in ([1, 2], [3, 4, 4, 5], [1, 6, 3], [4, 2]):
            train(v, keys)
            train(free, [key for key in keys if key <= 3])
        keys = list(range(1, 7))
        self.assertAllEqual(v.lookup(keys), free.lookup(keys))
        self.assertAllEqual(v.lookup([4, 5, 6], training=True), np.full([3, 2], 0.5))
        self.assertEqual(v.stats()["refused"], 4)
        self.assertEqual(v.stats()["evicted"], 0)

    def test_a_random_initial_row_stays_that_of_the_key(self):
        v = variable(refusing(1), initializer="uniform", dim=4)
        before = v.lookup([1, 2]).numpy()
        train(v, [1, 2])
        self.assertAllEqual(v.lookup([2]), before[1:])
        v.remove([1])
        train(v, [2])
        self.assertAllClose(v.lookup([2]), before[1:] - 1.0)

    def test_it_keeps_nothing_beside_a_row(self):
        v, free = variable(refusing(5), dim=4), variable(dim=4)
        for one in (v, free):
            upsert(one, [1, 2, 3])
        self.assertEqual(v.stats()["payload_bytes"], free.stats()["payload_bytes"])
        self.assertEqual(v.table.options.statistics, frozenset())

    @parameterized.parameters(keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.Nadam)
    def test_every_kind_of_rule_drops_the_gradients_of_refused_keys(self, optimizer):
        v = variable(refusing(5, CounterAdmission(2)), shards=3)
        free = variable()
        oracle = PolicyOracle(None, 5, 3, n=2)
        wrapped = [tf_embed.DynamicEmbeddingOptimizer(optimizer(0.1)) for _ in range(2)]
        rng = np.random.default_rng(SEED)

        def step(table, keys, by):
            with tf.GradientTape() as tape:
                rows = tf_embed.embedding_lookup(table, tf.constant(keys, tf.int64), training=True)
                loss = tf.reduce_sum(rows**2 + rows)
            by.apply(tape.gradient(loss, table.trainable_variables), table.trainable_variables)

        for _ in range(40):
            keys = rng.integers(0, 30, 12).tolist()
            step(v, keys, wrapped[0])
            oracle.update(keys, trains=True)
            held = set(keys_of(v))
            step(free, [key for key in keys if key in held], wrapped[1])
            self.assertEqual(keys_of(v), oracle.keys())
            self.assertEqual(counts_of(v), oracle.counts)
        self.assertAllClose(v.lookup(oracle.keys()), free.lookup(oracle.keys()))

    @parameterized.parameters(CounterAdmission(2), BloomAdmission(2, 1e-6))
    def test_an_admitted_key_without_room_comes_with_the_next_write_that_has_some(self, admission):
        v = variable(refusing(1, admission))
        for keys in ([1, 2], [1, 2], [2]):
            train(v, keys)
        self.assertEqual(keys_of(v), [1])
        self.assertEqual(v.stats()["refused"], 2)
        v.remove([1])
        train(v, [2])
        self.assertEqual(keys_of(v), [2])

    def test_restrictions_and_expiry_make_room(self):
        by_time = tf_embed.tfra.TimestampRestrictPolicy
        v = tf_embed.tfra.Variable(policy=refusing(3), restrict_policy=by_time)
        for time_ms, keys in enumerate(([1], [2], [3], [4])):
            v.set_clock(time_ms=time_ms)
            upsert(v, keys)
        self.assertEqual(keys_of(v), [1, 2, 3])
        self.assertEqual(int(v.restrict(2)), 1)
        upsert(v, [4, 5])
        self.assertEqual(keys_of(v), [2, 3, 4])
        v = variable(refusing(2, ttl_seconds=1.0), init_size=1)  # so small that a search covers it
        for time_ms, keys in ((0, [1]), (500, [2, 3]), (1200, [4, 5])):
            v.set_clock(time_ms=time_ms)
            train(v, keys)
        self.assertEqual(keys_of(v), [2, 4])
        self.assertEqual((v.stats()["refused"], v.stats()["expired"]), (2, 1))

    def test_a_table_without_an_order_is_not_restricted(self):
        with self.assertRaisesRegex(ValueError, "does not say which rows leave first"):
            variable(refusing(3)).restrict(1)

    def test_insert_and_accum_are_bounded_too(self):
        v = variable(refusing(2), initializer=7.0)
        v.accum([1, 2, 3], [[0.0]] * 3, [[1.0], [2.0], [3.0]], [False] * 3)
        self.assertEqual(keys_of(v), [1, 2])
        rows, exists = v.table.find_or_insert(tf.constant([3, 1, 3], tf.int64))
        self.assertAllEqual(rows, [[7.0], [1.0], [7.0]])
        self.assertAllEqual(exists, [False, True, False])
        self.assertEqual(keys_of(v), [1, 2])
        self.assertEqual(v.stats()["refused"], 2)

    def test_strings_of_refused_keys_are_dropped(self):
        v = variable(refusing(2), key_dtype=tf.string)
        with_log = variable(refusing(2, log_evicted=True), key_dtype=tf.string)
        for one in (v, with_log):
            for words in (["a", "b", "c"], ["d", "a"]):
                one.upsert(words, np.ones([len(words), 1], np.float32))
            self.assertEqual(keys_of(one), [b"a", b"b"])
            one.remove(["a"])
            one.upsert(["c", "d"], [[3.0], [4.0]])
            self.assertEqual(keys_of(one), [b"b", b"c"])
            self.assertAllEqual(one.lookup(["c", "d"]), [[3.0], [0.0]])
            self.assertEqual(one.stats()["refused"], 3)
        self.assertEmpty(with_log.drain_evicted()[0])

    @parameterized.parameters("checkpoint", "files", "arrays")
    def test_it_holds_after_rows_were_restored(self, way):
        v, other = (variable(refusing(40), 3, name="rows", dim=2) for _ in range(2))
        upsert(v, range(100))
        held = keys_of(v)
        self.assertLen(held, 40)
        path = os.path.join(self.get_temp_dir(), way)
        if way == "checkpoint":
            tf.train.Checkpoint(v=v).write(path)
            tf.train.Checkpoint(v=other).read(path).assert_consumed()
        elif way == "files":
            v.save_rows(path)
            other.load_rows(path)
        else:
            other.table.import_(v.table.export())
        self.assertEqual(keys_of(other), held)
        upsert(other, [*held[:3], 1000, 1001, 1000])
        self.assertEqual(keys_of(other), held)
        stats = other.stats()
        self.assertEqual((stats["refused"], stats["evicted"]), (2, 0))

    def test_more_rows_than_the_bound_are_restored_as_far_as_it_goes(self):
        v = variable(shards=2)
        upsert(v, range(50))
        other = variable(refusing(20, log_evicted=True), 3)
        other.table.import_(v.table.export())
        self.assertLessEqual(int(other.size()), 20)
        self.assertEqual(other.stats()["evicted"], 50 - int(other.size()))
        left = other.drain_evicted()[0].numpy().tolist()
        self.assertCountEqual([*left, *keys_of(other)], range(50))

    def test_a_copy_refuses_as_well(self):
        v = variable(refusing(2))
        upsert(v, [1, 2])
        v.table.clear()
        upsert(v, [3, 4, 5])
        self.assertEqual(keys_of(v), [3, 4])
        saved = keras.saving.serialize_keras_object(refusing(2))
        self.assertEqual(keras.saving.deserialize_keras_object(saved), refusing(2))

    def test_an_exported_model_has_the_rows_and_the_policy(self):
        layer = tf_embed.layers.DynamicEmbedding(2, policy=refusing(3), name="rows")
        model = keras.Sequential([keras.Input([2], dtype="int64"), layer, keras.layers.Flatten()])
        layer.variable.upsert([1, 2, 3, 4], np.arange(8.0).reshape(4, 2))
        expected = model(tf.constant([[1, 3], [4, 2]]))
        path = os.path.join(self.get_temp_dir(), "exported")
        model.export(path, verbose=False)
        loaded = tf.saved_model.load(path)
        served = loaded.serve(tf.constant([[1, 3], [4, 2]], tf.int64))
        self.assertAllEqual(served, expected)

    def test_a_fit_never_passes_the_bound(self):
        layer = tf_embed.layers.DynamicEmbedding(2, policy=refusing(50), optimizer="adam")
        model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        rng = np.random.default_rng(SEED)
        model.fit(rng.integers(0, 500, [300, 3]), rng.random([300, 1]), epochs=2, verbose=0)
        self.assertEqual(int(layer.variable.size()), 50)
        self.assertEqual(layer.variable.stats()["evicted"], 0)
        self.assertEqual(layer.variable.stats()["admitted"], 50)

    @parameterized.parameters(1, 3)
    def test_threads_never_bring_more_rows_than_the_bound(self, shards):
        v = variable(refusing(200), shards)
        sizes: list[int] = []

        def write(number: int) -> None:
            rng = np.random.default_rng([SEED, number])
            for step in range(30):
                keys = rng.integers(0, 1000, 100)
                (train if number % 2 else upsert)(v, keys.tolist())
                if step % 5 == 0:
                    v.remove(keys[:20])
                sizes.append(int(v.size()))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(sizes, 120)
        self.assertLessEqual(max(sizes), 200)
        self.assertEqual(v.stats()["evicted"], 0)
        self.assertEqual(int(v.size()), len(set(keys_of(v))))

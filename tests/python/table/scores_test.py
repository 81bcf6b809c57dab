# SPDX-License-Identifier: Apache-2.0
"""Epochs, and a user's own scores, as in HierarchicalKV: against policy_oracle.py."""

from __future__ import annotations

import itertools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.policy_tables import (
    ORDERS,
    SHARDS,
    keys_of,
    popular_keys,
    score_of,
    scores_by_key,
    train,
    upsert,
    variable,
)
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed import TablePolicy


class ExportTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(itertools.product(ORDERS, SHARDS))
    def test_scores_are_what_each_order_goes_by(self, order, shards):
        rng = np.random.default_rng(SEED)
        steps = 5 if order.startswith("epoch") else None
        v = variable(TablePolicy(eviction=order, steps_per_epoch=steps), shards)
        oracle = PolicyOracle(order, None, shards, steps_per_epoch=steps)
        for number in range(30):
            oracle.now_ms = 1000 + number // 2
            v.set_clock(time_ms=oracle.now_ms)
            keys = popular_keys(rng, 40, 300)
            (train if number % 2 else upsert)(v, keys)
            oracle.update(keys, trains=bool(number % 2))
        if order == "score":
            v.set_scores([keys[0]], [-7])
            oracle.shards[keys[0] % shards][keys[0]].score = -7
        for split_size in (1, 7, 10**9):
            self.assertEqual(scores_by_key(v, split_size), oracle.scores())

    @parameterized.parameters(*SHARDS)
    def test_restrict_keeps_the_row_of_the_highest_rank(self, shards):
        # All bits of this key's hash are set.
        last = 3558559446808474027
        v = variable(TablePolicy(eviction="score"), shards)
        keys = [last, *range(100)]
        upsert(v, keys)
        v.set_scores(keys, [2**63 - 1] * len(keys))
        for kept in (2, 1):
            v.restrict(kept)
            self.assertLen(scores_by_key(v), kept)
            self.assertIn(last, scores_by_key(v))

    def test_in_a_graph_and_of_an_empty_table(self):
        v = variable(TablePolicy(eviction="lfu"))
        export = tf.function(lambda: v.table.export_scores("lfu", 4))
        self.assertEqual([one.shape for one in export()], [[0], [0]])
        upsert(v, [3, 3, 4])
        self.assertCountEqual(export()[0].numpy(), [3, 4])
        self.assertAllEqual(export()[1], [1, 1])

    def test_keys_of_strings(self):
        v = tf_embed.Variable(tf.string, dim=1, policy=TablePolicy(eviction="lfu"))
        v.upsert(["a", "b"], [[0.0]] * 2)
        v.upsert(["b"], [[0.0]])
        keys, scores = v.table.export_scores("lfu", 1)
        self.assertEqual(dict(zip(keys.numpy(), scores.numpy(), strict=True)), {b"a": 1, b"b": 2})


class EpochTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(itertools.product(("epoch_lru", "epoch_lfu"), SHARDS))
    def test_epochs_that_are_set_by_hand(self, order, shards):
        rng = np.random.default_rng(SEED)
        v = variable(TablePolicy(61, order), shards)
        oracle = PolicyOracle(order, 61, shards)
        for number in range(60):
            if number % 9 == 4:  # sets the epoch forward or back
                oracle.epochs_ahead = int(rng.integers(number))
                v.set_clock(epoch=oracle.epochs_ahead)
            keys = popular_keys(rng, 40, 300)
            upsert(v, keys)
            oracle.update(keys, trains=False)
            self.assertEqual(keys_of(v), oracle.keys())
        self.assertEqual(scores_by_key(v), oracle.scores())

    def test_an_epoch_that_is_set_ends_where_it_would_have(self):
        v = variable(TablePolicy(eviction="epoch_lfu", steps_per_epoch=3))
        epochs = []
        for number in range(10):
            if number == 4:
                v.set_clock(epoch=10)
            upsert(v, [number])
            epochs.append(int(v.row_statistics([number])["last_epoch"][0]))
        self.assertEqual(epochs, [0, 0, 0, 1, 10, 10, 11, 11, 11, 12])

    def test_counts_go_on_from_one_epoch_to_the_next(self):
        v = variable(TablePolicy(eviction="epoch_lfu", steps_per_epoch=2))
        for _ in range(5):
            upsert(v, [1])
        self.assertEqual(scores_by_key(v), {1: (2 << 32) + 5})

    @parameterized.parameters("lru", "epoch_lru")
    def test_rows_leave_by_last_use_if_steps_are_those_of_a_clock(self, order):
        milliseconds = 1_790_000_000_000
        v = variable(TablePolicy(100, order))
        for key in range(100):
            v.set_clock(step=milliseconds + 1000 * key)
            upsert(v, [key])
        v.set_clock(step=milliseconds + 10**6)
        upsert(v, list(range(1000, 1020)))
        self.assertEqual(keys_of(v), [*range(20, 100), *range(1000, 1020)])

    def test_the_last_step_and_the_last_epoch_can_be_set(self):
        v = variable(TablePolicy(eviction="epoch_lru", steps_per_epoch=1))
        v.set_clock(step=2**62, epoch=2**31 - 1)
        for _ in range(3):
            upsert(v, [1])
        self.assertEqual(scores_by_key(v), {1: ((2**31 - 1) << 32) + 2})  # the step's lowest bits
        self.assertEqual(int(v.row_statistics([1])["last_step"][0]), 2**62 + 2)

    @parameterized.parameters(((1, 3),), ((3, 2),))
    def test_checkpoints_carry_epochs_to_any_number_of_shards(self, shards):
        policy = TablePolicy(40, "epoch_lfu", steps_per_epoch=4)
        path = os.path.join(self.get_temp_dir(), f"of_{shards[0]}_shards")
        rng = np.random.default_rng(SEED)
        v, other = variable(policy, shards[0]), variable(policy, shards[1])
        oracle = PolicyOracle("epoch_lfu", None, shards[1], steps_per_epoch=4)
        v.set_clock(epoch=6)
        oracle.epochs_ahead = 6
        for number in range(20):
            keys = [int(key) for key in rng.integers(0, 12, 8)]
            upsert(v, keys)
            oracle.update(keys, trains=False)
            if number == 9:
                tf.train.Checkpoint(v=v).write(path)
                tf.train.Checkpoint(v=other).read(path).assert_consumed()
                self.assertEqual(scores_by_key(other), scores_by_key(v))
                v = other  # the epoch continues there
        self.assertEqual(scores_by_key(v), oracle.scores())


class ScoreFunctionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*SHARDS)
    def test_a_bounded_table_is_that_of_the_oracle(self, shards):
        rng = np.random.default_rng(SEED)
        v = variable(TablePolicy(61, "score", score_fn=score_of), shards)
        oracle = PolicyOracle("score", 61, shards)
        for number in range(100):
            keys = popular_keys(rng, 40, 300)
            (train if number % 2 else upsert)(v, keys)
            scores = dict(zip(keys, score_of(np.array(keys)).tolist(), strict=True))
            oracle.update(keys, bool(number % 2), scores)
            self.assertEqual(keys_of(v), oracle.keys())
            self.assertEqual(v.stats()["refused"], oracle.counts["refused"])
        self.assertGreater(oracle.counts["refused"], 0)
        self.assertEqual(scores_by_key(v), oracle.scores())

    @parameterized.parameters("sgd", "adam", "nadam")
    def test_each_kind_of_step_writes_scores_in_a_graph_too(self, optimizer):
        v = variable(TablePolicy(4, "score", score_fn=lambda keys: keys * 10))
        wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.get(optimizer))
        wrapped.build(v.trainable_variables)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(keys: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys))
            wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        step(tf.constant([3, 1, 3, 4, 2], tf.int64))
        self.assertEqual(scores_by_key(v), {1: 10, 2: 20, 3: 30, 4: 40})
        step(tf.constant([9, 0], tf.int64))
        self.assertEqual(scores_by_key(v), {2: 20, 3: 30, 4: 40, 9: 90})
        self.assertEqual(v.stats()["refused"], 1)

    def test_accum_and_keys_of_any_shape_and_the_last_position_wins(self):
        seen = []

        def numbered(keys: tf.Tensor) -> list[int]:
            seen.append(keys.numpy().tolist())
            return list(range(len(keys)))

        v = variable(TablePolicy(eviction="score", score_fn=numbered))
        v.upsert([[5, 6], [5, 7]], np.zeros([2, 2, 1], np.float32))
        self.assertEqual(scores_by_key(v), {5: 2, 6: 1, 7: 3})
        v.accum([8, 7, 8], *np.zeros([2, 3, 1], np.float32), [False, True, False])
        self.assertEqual(scores_by_key(v), {5: 2, 6: 1, 7: 1, 8: 2})
        self.assertEqual(seen, [[5, 6, 5, 7], [8, 7, 8]])
        v.lookup([5], training=True)
        self.assertLen(seen, 2)

    def test_a_callable_initializer_with_a_bound(self):
        policy = TablePolicy(2, "score", score_fn=lambda keys: keys)
        v = variable(policy, initializer=lambda shape, dtype: tf.ones(shape, dtype))
        train(v, [1, 2, 3])
        self.assertEqual(scores_by_key(v), {2: 2, 3: 3})
        self.assertAllEqual(v.lookup([2, 3]), [[0.0]] * 2)

    def test_the_config_keeps_a_registered_function(self):
        policy = TablePolicy(5, "score", score_fn=score_of)
        saved = keras.saving.serialize_keras_object(policy)
        self.assertEqual(keras.saving.deserialize_keras_object(saved), policy)


if __name__ == "__main__":
    tf.test.main()

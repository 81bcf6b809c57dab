# SPDX-License-Identifier: Apache-2.0
"""An endless stream of drifting ids: a bounded table follows it within its bound."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed import TablePolicy

IDS, STEPS, BATCH = 20_000, 2_000, 512
BOUND = IDS // 10


class DriftingStreamTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("lru", "lfu", "ttl")
    def test_two_thousand_steps_stay_within_a_tenth_of_the_ids(self, eviction):
        v = tf_embed.Variable(
            dim=8, initializer="uniform", init_size=1, policy=TablePolicy(BOUND, eviction)
        )
        optimizer = tf_embed.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.01))
        optimizer.build(v.trainable_variables)

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, ids, training=True) ** 2)
            variables = v.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return v.size()

        # The id of rank k is k plus the number of the step, so ids move by a rank in each step.
        chances = 1.0 / np.arange(1, IDS + 1) ** 1.1
        ranks = np.random.default_rng(SEED).choice(IDS, [STEPS, BATCH], p=chances / chances.sum())
        sizes, memory = [], []
        for number in range(STEPS):
            sizes.append(int(step(tf.constant(ranks[number] + number))))
            if number % 500 == 499:
                stats = v.stats()
                memory.append(sum(stats[f"{of}_bytes"] for of in ("payload", "index", "slack")))
        self.assertEqual(max(sizes), BOUND)
        self.assertEqual(sizes[-1], BOUND)
        self.assertLessEqual(max(memory), 1.1 * memory[0], "memory is flat")
        # Nearly every batch has had the ids of the first ranks, for several steps.
        hot = tf.range(STEPS + 10, STEPS + 60, dtype=tf.int64)
        _, exists = v.lookup(hot, return_exists=True)
        self.assertGreaterEqual(int(tf.reduce_sum(tf.cast(exists, tf.int32))), 48)
        stats = v.stats()
        self.assertEqual(stats["admitted"] - stats["evicted"], BOUND)
        self.assertEqual(stats["refused"], 0)


if __name__ == "__main__":
    tf.test.main()

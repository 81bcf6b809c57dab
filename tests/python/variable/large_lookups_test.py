# SPDX-License-Identifier: Apache-2.0
"""Lookups and steps of more than 2^31 values, beyond 32-bit arithmetic.

They need 10 GiB of memory, so they are run by hand. large_batch_test.cc has tables of this size.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tf_embed

DIM = 1024
KNOWN = 8
KEYS = 2**21 + 1001
assert KEYS * DIM > 2**31


class LargeLookupsTest(tf.test.TestCase):
    def test_every_row_is_that_of_its_key_and_a_step_sums_all_gradients(self):
        v = tf_embed.Variable(dim=DIM, value_dtype="float16", initializer=0.0)
        table = np.random.default_rng(0).integers(-500, 500, [KNOWN, DIM]).astype("float16")
        v.upsert(range(KNOWN), table)
        keys = tf.range(KEYS, dtype=tf.int64) % KNOWN
        with tf.GradientTape() as tape:
            rows = tf_embed.embedding_lookup(v, keys)
            self.assertEqual(rows.shape, [KEYS, DIM])
            loss = tf.reduce_sum(rows)
        together = 2**12 * KNOWN
        for begin in range(0, KEYS, together):
            part = rows[begin : begin + together].numpy()
            np.testing.assert_array_equal(part, np.resize(table, part.shape))
        slices = tape.gradient(loss, v.anchor)
        del rows, loss, tape
        rate = 1.0 / (KEYS // KNOWN)
        trainer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(rate))
        trainer.apply([slices], [v.anchor])
        counts = np.bincount(np.arange(KEYS) % KNOWN)[:, None]
        self.assertAllClose(v.lookup(range(KNOWN)), table - rate * counts, rtol=1e-3, atol=1e-3)
        self.assertEqual(int(v.size()), KNOWN)


if __name__ == "__main__":
    tf.test.main()

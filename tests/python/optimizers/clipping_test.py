# SPDX-License-Identifier: Apache-2.0
"""`global_clipnorm` of dense variables and tables together, against Keras on dense variables."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed

optimizers = keras.optimizers


def slices(keys: list[int], values: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(keys, tf.int64))


class OptionsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("clipnorm", "global_clipnorm", "clipvalue")
    def test_an_option_below_0_is_off(self, option):
        v = tf_embed.Variable(dim=1, initializer="ones")
        dense = keras.Variable([1.0])
        inner = optimizers.SGD(0.1, **{option: -1.0})
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        optimizer.apply([slices([7], [[3.0]]), tf.constant([3.0])], [v.anchor, dense])
        self.assertAllClose(v.lookup([7]), [[0.7]])
        self.assertAllClose(dense, [0.7])

    def test_of_options_that_are_set_later_the_first_counts(self):
        v = tf_embed.Variable(dim=1, initializer="zeros")
        dense = keras.Variable([0.0])
        inner = optimizers.SGD(1.0, clipnorm=1.0)
        inner.global_clipnorm = 1.0
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        optimizer.apply([slices([7], [[3.0]]), tf.constant([4.0])], [v.anchor, dense])
        self.assertAllClose(v.lookup([7]), [[-1.0]])
        self.assertAllClose(dense, [-1.0])

    def test_accumulation_goes_with_a_global_norm_that_is_off(self):
        v = tf_embed.Variable(dim=1, initializer="zeros")
        inner = optimizers.SGD(1.0, global_clipnorm=-1.0, gradient_accumulation_steps=2)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        for _ in range(2):
            optimizer.apply([slices([7], [[3.0]])], [v.anchor])
        self.assertAllClose(v.lookup([7]), [[-3.0]])


if __name__ == "__main__":
    tf.test.main()

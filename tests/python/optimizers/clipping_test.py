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


class GatheredTest(tf.test.TestCase, parameterized.TestCase):
    """Dense variables with slices as gradients."""

    @parameterized.parameters((5,), (5, 2), (5, 2, 2))
    def test_a_gathered_variable_of_any_rank(self, *shape):
        dense, wanted = (keras.Variable(tf.zeros(shape)) for _ in range(2))
        row = keras.Variable([[0.0]])
        v = tf_embed.Variable(dim=1, initializer="zeros")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(0.1, global_clipnorm=0.5))
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(keras.ops.take(dense, [1, 2, 1], axis=0))
            theirs = tf.reduce_sum(keras.ops.take(wanted, [1, 2, 1], axis=0))
            theirs += tf.reduce_sum(row.value)
            loss += tf.reduce_sum(tf_embed.embedding_lookup(v, [7]))
        variables = [dense, v.anchor]
        optimizer.apply(tape.gradient(loss, variables), variables)
        variables = [wanted, row]
        optimizers.SGD(0.1, global_clipnorm=0.5).apply(tape.gradient(theirs, variables), variables)
        self.assertAllClose(dense, wanted)
        self.assertAllClose(v.lookup([7]), row)

    def test_slices_that_cancel_count_one_by_one_for_rows_too(self):
        gathered = tf.IndexedSlices(
            tf.constant([[10.0], [-10.0]]), tf.constant([2, 2]), tf.constant([4, 1])
        )
        gradients = [gathered, tf.constant([0.6])]
        wanted = [keras.Variable(tf.zeros([4, 1])), keras.Variable([0.0]), keras.Variable([[0.0]])]
        theirs = optimizers.SGD(1.0, global_clipnorm=1.0)
        theirs.apply([*gradients, tf.constant([[0.8]])], wanted)
        v = tf_embed.Variable(dim=1, initializer="zeros")
        dense = [keras.Variable(tf.zeros([4, 1])), keras.Variable([0.0])]
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(1.0, global_clipnorm=1.0))
        optimizer.apply([*gradients, slices([7], [[0.8]])], [*dense, v.anchor])
        self.assertAllClose(dense[0], wanted[0])
        self.assertAllClose(dense[1], wanted[1])
        self.assertAllClose(v.lookup([7]), wanted[2])


class LossScaleTest(tf.test.TestCase, parameterized.TestCase):
    @staticmethod
    def step_of(inner: Any, gradient: float) -> tuple[list[float], Any]:
        """A dense variable and a row after a step on scaled gradients, and the inner optimizer."""
        v = tf_embed.Variable(dim=1, initializer="zeros")
        dense = keras.Variable([0.0])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        variables = [dense, v.anchor]
        optimizer.build(variables)
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf_embed.embedding_lookup(v, [7]))
            loss = optimizer.scale_loss(gradient * (3.0 * tf.reduce_sum(dense.value) + 4.0 * rows))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return [float(dense.value[0]), float(v.lookup([7])[0, 0])], inner

    @parameterized.parameters(15, 66, 100)
    def test_gradients_are_squared_without_the_scale(self, power):
        sgd = optimizers.SGD(1.0, global_clipnorm=1.0)
        inner = optimizers.LossScaleOptimizer(sgd, initial_scale=2.0**power)
        numbers, inner = self.step_of(inner, 1.0)
        self.assertAllClose(numbers, [-0.6, -0.8])
        self.assertEqual(float(inner.dynamic_scale), 2.0**power)
        sgd = optimizers.SGD(1.0, global_clipnorm=1.0, loss_scale_factor=2.0**power)
        self.assertAllClose(self.step_of(sgd, 1.0)[0], [-0.6, -0.8])

    def test_a_step_whose_norm_overflows_is_left_out_and_halves_the_scale(self):
        sgd = optimizers.SGD(1.0, global_clipnorm=1.0)
        inner = optimizers.LossScaleOptimizer(sgd, initial_scale=2.0)
        numbers, inner = self.step_of(inner, 1e30)
        self.assertAllEqual(numbers, [0.0, 0.0])
        self.assertEqual(float(inner.dynamic_scale), 1.0)
        self.assertEqual(int(sgd.iterations), 0)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The arguments that the steps of DynamicEmbeddingOptimizer accept."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed


class StepArgumentsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.table = tf_embed.Variable(dim=2, name="t")
        self.table.upsert([1], [[1.0, 2.0]])
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        self.anchors = self.table.trainable_variables

    def loss(self):
        return tf.reduce_sum(tf_embed.embedding_lookup(self.table, [1]))

    def assert_row(self, *row):
        np.testing.assert_array_equal(self.table.lookup([1]), [row])

    @parameterized.parameters(
        (tf.constant([[1.0, 1.0]]), tf.constant([1.5]), "'t' must have keys.*dtype float32"),
        (tf.constant([[1.0, 1.0]]), tf.constant([True]), "'t' must have keys.*dtype bool"),
        (np.array([[1.0, 1.0]]), np.array([1.5]), "'t' must have keys.*dtype float64"),
        (tf.constant([["a", "b"]]), tf.constant([1]), "'t' must have floats.*dtype string"),
        (tf.constant([[1, 1]]), tf.constant([1]), "'t' must have floats.*dtype int32"),
    )
    def test_a_gradient_of_other_dtypes_is_refused(self, values, keys, words):
        with self.assertRaisesRegex(TypeError, words):
            self.optimizer.apply([tf.IndexedSlices(values, keys)], self.anchors)
        self.assert_row(1.0, 2.0)

    @parameterized.parameters(
        (tf.constant([[1.0, 1.0]]), tf.constant([1])),
        (tf.constant([[1.0, 1.0]]), tf.constant([1], tf.int64)),
        (tf.constant([[1.0, 1.0]]), [1]),
    )
    def test_slices_of_a_users_own_making_train(self, values, keys):
        self.optimizer.apply([tf.IndexedSlices(values, keys)], self.anchors)
        self.assert_row(0.5, 1.5)

    @parameterized.parameters(tuple, list, iter)
    def test_gradients_and_pairs_may_come_one_by_one(self, kind):
        def slices():
            return tf.IndexedSlices(tf.constant([[1.0, 1.0]]), tf.constant([1]))

        self.optimizer.apply(kind([slices()]), kind(self.anchors))
        self.assert_row(0.5, 1.5)
        self.optimizer.apply_gradients(kind([(slices(), self.anchors[0])]))
        self.assert_row(0.0, 1.0)

    def test_tables_are_no_variables(self):
        for one in (self.table, 3, tf.ones([2])):
            kind = type(one).__name__
            with self.assertRaisesRegex(
                TypeError,
                f"`var_list` must have variables, and the `trainable_var.*of type .*{kind}",
            ):
                self.optimizer.minimize(self.loss, [one])
        self.assert_row(1.0, 2.0)

    @parameterized.product(value=("ab", b"ab", {}, 3, tf.ones([2]), np.ones(2), keras.Variable))
    def test_what_is_no_list_is_refused(self, value):
        with self.assertRaisesRegex(TypeError, "`grads` must be a list. Received: grads="):
            self.optimizer.apply(value, self.anchors)
        with self.assertRaisesRegex(TypeError, "`trainable_variables` must be a list"):
            self.optimizer.apply([None], value)
        with self.assertRaisesRegex(TypeError, "`grads_and_vars` must be a list"):
            self.optimizer.apply_gradients(value)

    @parameterized.product(value=("ab", 3, (1, 2, 3)))
    def test_what_is_no_pair_is_refused(self, value):
        with self.assertRaisesRegex(TypeError, "`grads_and_vars` must have pairs"):
            self.optimizer.apply_gradients([value])

    def test_a_loss_is_a_tensor_and_a_tape_is_one(self):
        for loss in (lambda: None, lambda: 1.0, int):
            with self.assertRaisesRegex(TypeError, "`loss` must be a tensor, or a callable"):
                self.optimizer.minimize(loss, self.anchors)
        with tf.GradientTape() as tape:
            self.loss()
        with self.assertRaisesRegex(TypeError, "`loss` must be a tensor.*3"):
            self.optimizer.minimize(3, self.anchors, tape)
        with self.assertRaisesRegex(TypeError, "`tape` must be a tf.GradientTape.*'x'"):
            self.optimizer.minimize(self.loss, self.anchors, "x")
        self.assert_row(1.0, 2.0)


class AttributesTest(parameterized.TestCase):
    @parameterized.parameters(
        {"clipvalue": 0.1}, {"use_ema": True}, {"weight_decay": 0.5}, {"loss_scale_factor": 2.0}
    )
    def test_an_option_is_set_on_the_optimizer_inside(self, **option):
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        ((name, value),) = option.items()
        with self.assertRaisesRegex(ValueError, f"`{name}` must be set on the optimizer inside"):
            setattr(optimizer, name, value)
        setattr(optimizer, name, None)
        setattr(optimizer.inner_optimizer, name, value)
        optimizer.learning_rate = 0.25
        self.assertEqual(float(optimizer.inner_optimizer.learning_rate), 0.25)

    def test_set_weights_sets_the_variables(self):
        one, other = (
            tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Nadam(0.1)) for _ in range(2)
        )
        dense, table = keras.Variable([1.0]), tf_embed.Variable(dim=2)
        gradients = [tf.constant([1.0]), tf.IndexedSlices(tf.ones([1, 2]), tf.constant([7]))]
        for _ in range(3):
            one.apply(gradients, [dense, *table.trainable_variables])
        weights = [np.asarray(variable) for variable in one.variables]
        with self.assertRaisesRegex(ValueError, "`weights` must have an array of the shape of"):
            other.set_weights(weights)
        other.build([keras.Variable([1.0]), *tf_embed.Variable(dim=2).trainable_variables])
        other.set_weights(weights)
        self.assertEqual(int(other.iterations), 3)
        for left, right in zip(other.variables, weights, strict=True):
            np.testing.assert_array_equal(left, right)
        for dtype in ("int32", "float64"):  # like Keras's own `set_weights`
            other.set_weights([tf.cast(weight + 1, dtype) for weight in weights])
            self.assertEqual(int(other.iterations), 4)
        other.set_weights(weights)
        with self.assertRaisesRegex(ValueError, "`weights` must have an array of the shape of"):
            other.set_weights([*weights[:-1], np.zeros([9])])
        for words in ("a", tf.constant("a")):
            with self.assertRaisesRegex(ValueError, "`weights` must have numbers of int64 for"):
                other.set_weights([words, *weights[1:]])
        sparse = [tf.sparse.from_dense(weight) if weight.shape else weight for weight in weights]
        with self.assertRaisesRegex(ValueError, "`weights` must have numbers of float32 for"):
            other.set_weights([sparse[0] + 1, *sparse[1:]])
        with self.assertRaisesRegex(ValueError, "`weights` must have numbers of float32 for"):
            other.set_weights([np.int64(7), "a", *weights[2:]])
        self.assertEqual(int(other.iterations), 3)
        with self.assertRaisesRegex(TypeError, "`weights` must be a list"):
            other.set_weights(3)


if __name__ == "__main__":
    absltest.main()

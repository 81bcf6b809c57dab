# SPDX-License-Identifier: Apache-2.0
"""Gradients that are infinite, NaN, or too large to be squared, clipped as in Keras; and gradients
of keys that a table can't have.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed

KEYS = (4, 9, 2)
UNTOUCHED = 5
NAN, INF = float("nan"), float("inf")
VALUES = (NAN, INF, -INF, 1e30, -3e38, 1e-30, 0.0)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.5},
}
OPTIMIZERS = {"SGD": keras.optimizers.SGD, "Lion": keras.optimizers.Lion}


class UnusualGradientsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *itertools.product(["SGD"], OPTIONS, [True, False]),
        *itertools.product(["Lion"], OPTIONS, [False]),
    )
    def test_touched_rows_are_those_of_keras(self, kind, option, own):
        for value in VALUES:
            make = lambda: OPTIMIZERS[kind](0.1, **OPTIONS[option])  # noqa: E731
            dense = keras.Variable(np.full([len(KEYS), 2], 0.5, np.float32))
            if own:
                layer = tf_embed.layers.DynamicEmbedding(2, initializer=0.5, optimizer=make())
                layer.build()
                v, optimizer = layer.variable, tf_embed.DynamicEmbeddingOptimizer("sgd")
            else:
                v = tf_embed.Variable(dim=2, initializer=0.5)
                optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
            v.upsert([UNTOUCHED], [[0.5, 0.5]])
            theirs = make()
            for first in (1.0, value, 0.25):
                gradient = np.array([[first, 0.1], [0.2, -0.3], [0.0, 0.4]], np.float32)
                theirs.apply([tf.constant(gradient)], [dense])
                slices = tf.IndexedSlices(tf.constant(gradient), tf.constant(KEYS, tf.int64))
                optimizer.apply([slices], [v.anchor])
                np.testing.assert_allclose(
                    v.lookup(KEYS), dense.numpy(), rtol=2e-5, atol=2e-6, err_msg=f"{value}"
                )
            self.assertAllEqual(v.lookup([UNTOUCHED]), [[0.5, 0.5]])


class KeysTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_dtype=["int32", "uint32"], in_graph=[False, True])
    def test_a_key_that_does_not_fit_is_refused_and_no_row_changes(self, key_dtype, in_graph):
        v = tf_embed.Variable(key_dtype=key_dtype, dim=2, name="narrow")
        v.upsert([5], [[1.0, 1.0]])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        optimizer.build(v.trainable_variables)

        def step(keys: tf.Tensor) -> None:
            optimizer.apply([tf.IndexedSlices(tf.ones([1, 2]), keys)], [v.anchor])

        run = tf.function(step) if in_graph else step
        for key in (2**32 + 5, -(2**32) + 5):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "narrow.*must have .*int32 keys"
            ):
                run(tf.constant([key], tf.int64))
        self.assertAllEqual(v.lookup([5]), [[1.0, 1.0]])
        self.assertEqual(int(v.size()), 1)
        run(tf.constant([5], tf.int64))
        self.assertAllEqual(v.lookup([5]), [[0.5, 0.5]])


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Initializers that scale by a shape, for a table with a known number of rows: as in Keras."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.table.initializers import for_rows

ROWS, DIM = 1024, 16


def drawn(initializer) -> np.ndarray:
    return tf_embed.Variable(dim=DIM, initializer=initializer).lookup(np.arange(ROWS)).numpy()


class ForRowsTest(tf.test.TestCase, parameterized.TestCase):
    def expect_spread_of_keras(self, initializer) -> None:
        rows = drawn(for_rows(initializer, ROWS, DIM))
        of_keras = np.asarray(keras.initializers.get(initializer)((ROWS, DIM)))
        self.assertNear(rows.std() / of_keras.std(), 1.0, 5 / math.sqrt(rows.size))

    @parameterized.product(
        mode=("fan_in", "fan_out", "fan_avg"),
        distribution=("uniform", "truncated_normal", "untruncated_normal"),
    )
    def test_variance_scaling_has_the_fans_of_the_shape(self, mode, distribution):
        given = keras.initializers.VarianceScaling(3.0, mode, distribution, seed=2)
        self.expect_spread_of_keras(given)
        self.assertEqual(for_rows(given, ROWS, DIM).seed, 2)
        self.assertAllEqual(drawn(for_rows(given, 1, DIM)), drawn(given))

    @parameterized.product(kind=("glorot", "he", "lecun"), distribution=("uniform", "normal"))
    def test_named_initializers_have_the_fans_of_the_shape(self, kind, distribution):
        self.expect_spread_of_keras(f"{kind}_{distribution}")

    def test_an_initializer_without_fans_stays(self):
        given = keras.initializers.RandomUniform(seed=2)
        self.assertEqual(for_rows(given, ROWS, DIM).get_config(), given.get_config())
        for other in (None, 0.5, keras.initializers.Orthogonal()):
            self.assertIs(for_rows(other, ROWS, DIM), other)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Arguments of tables on servers, and tokens of steps, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import _library


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    def test_wrong_arguments_are_named(self) -> None:
        with self.assertRaisesRegex(TypeError, "`train`"):
            tf_embed.distributed.run_with_servers(3)
        with self.assertRaisesRegex(ValueError, "must have a cluster with tasks `worker` and `ps`"):
            tf_embed.distributed.run_with_servers(lambda strategy: None)
        with self.assertRaisesRegex(TypeError, "`model` must be a keras.Model. Received"):
            tf_embed.distributed.ParameterServerTrainer(3)
        model = keras.Sequential([keras.layers.Dense(1)])
        with self.assertRaisesRegex(
            ValueError, "be made in the scope of a tf.distribute.ParameterServerStrategy"
        ):
            tf_embed.distributed.ParameterServerTrainer(model)


def apply(variable: tf_embed.Variable, token: Any, owners: Sequence[int]) -> None:
    _library.load().tf_embed_apply(
        table=variable.table.resource_handle,
        keys=tf.constant([1], tf.int64),
        owners=tf.constant(owners, tf.int32),
        gradients=tf.ones([1, 2]),
        hyper=tf.constant([1.0, 0.0], tf.float64),
        step=tf.constant(1, tf.int64),
        scores=[],
        token=[tf.constant(token, tf.int64)],
        trained=[],
        dim=2,
        rule="sgd",
    )


class TokensTest(tf.test.TestCase):
    def apply(self, variable: tf_embed.Variable, token: Any) -> None:
        apply(variable, token, owners=[])

    def test_a_step_with_a_token_is_applied_once(self) -> None:
        variable = tf_embed.Variable(dim=2)
        for token in ([5, 0], [5, 0], [6, 0], [5, 0], [4, 5], [7, 5], [3, 0]):
            self.apply(variable, token)
        self.assertAllEqual(variable.lookup([1]), np.full([1, 2], -3.0))

    def test_a_token_of_another_shape_is_refused(self) -> None:
        variable = tf_embed.Variable(dim=2)
        for token in (5, [5], [1, 2, 3]):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`token`"):
                self.apply(variable, token)

    def test_a_step_that_failed_may_come_again(self) -> None:
        variable = tf_embed.Variable(dim=2)

        with self.assertRaises(tf.errors.InvalidArgumentError):
            apply(variable, [5, 0], owners=[3])
        apply(variable, [5, 0], owners=[0])
        self.assertAllEqual(variable.lookup([1]), np.full([1, 2], -1.0))


if __name__ == "__main__":
    tf.test.main()

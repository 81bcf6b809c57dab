# SPDX-License-Identifier: Apache-2.0
"""The checks of `stock_ops`, which replace the checks of the op library."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from tf_embed.ops import stock_ops


def int64(*numbers: int) -> tf.Tensor:
    return tf.constant(numbers, tf.int64)


class StockOpsTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, indices: tf.Tensor, offsets: tf.Tensor, mode: str = "fatal") -> Any:
        """Checks two bags of a table with 5 rows."""
        bags = int64(2)
        options = {"rows": [5], "owner": "bags", "mode": mode, "padding": []}
        return stock_ops.check_bounds(indices, offsets, bags, **options)

    @parameterized.parameters(
        ((1, 4), (0, 2), "`offsets` of .*bags.* must have one for each bag and one more"),
        ((1, 4), (0, 3, 2), "must not decrease, and go from 0 to the number of indices"),
        ((1, 4), (1, 1, 2), "must not decrease, and go from 0 to the number of indices"),
        ((1, 5), (0, 1, 2), "`indices` of .*bags.* must be row numbers of their tables"),
    )
    def test_a_wrong_batch_is_refused(self, indices, offsets, message):
        for check in (self.check, tf.function(self.check)):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
                check(int64(*indices), int64(*offsets))
        self.assertAllEqual(self.check(int64(1, 4), int64(0, 1, 2)).kept, [0, 1])

    @parameterized.parameters(([[0, 2]], [2, 2]), ([[-1, 0]], [2, 2]), ([], [2, -1]))
    def test_sparse_ids_outside_of_their_shape_are_refused(self, indices, shape):
        indices = tf.reshape(tf.constant(indices, tf.int64), [-1, 2])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "`ids` must have a dense_shape of numbers from 0, and indices within it",
        ):
            stock_ops.checked_sparse(
                indices, tf.zeros(tf.shape(indices)[:1]), int64(*shape), "`ids`"
            )


if __name__ == "__main__":
    tf.test.main()

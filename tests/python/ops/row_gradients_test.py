# SPDX-License-Identifier: Apache-2.0
"""The value that carries gradients of rows out of loops: its sum, its zero, its bytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_embed.ops import gradient_ops


def pack(*keys: int, dtype: Any = np.int64) -> tf.Tensor:
    """Gradients of several keys, which are equal to the keys."""
    keys = np.array(keys, dtype)
    return gradient_ops.row_gradients(keys, np.stack([keys, keys], 1).astype(np.float32))


def unpack(gradients: tf.Tensor, dtype: Any = tf.int64) -> list[int]:
    keys, values = gradient_ops.unpack_row_gradients(
        gradients, key_dtype=dtype, value_dtype=tf.float32, dim=2
    )
    np.testing.assert_array_equal(values, np.stack([keys, keys], 1).astype(np.float32))
    return keys.numpy().tolist()


class RowGradientsTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_sum_is_one_list_after_the_other(self):
        self.assertEqual(unpack(tf.add_n([pack(1, -2), pack(3), pack(1)])), [1, -2, 3, 1])
        self.assertEqual(unpack(pack(7, 8)), [7, 8])
        self.assertEqual(unpack(tf.add_n([pack(), pack(5)])), [5])

    def test_the_zero_is_none(self):
        zero = tf.zeros_like(pack(1, 2))
        self.assertEqual(unpack(zero), [])
        self.assertEqual(unpack(tf.add_n([zero, pack(4), zero])), [4])
        self.assertEqual(unpack(tf.add_n([zero, zero])), [])

    def test_a_token_has_the_zero_of_gradients(self):
        token = tf.function(lambda: gradient_ops.token(tf.zeros([0, 2]), key_dtype=tf.int64))()
        self.assertEqual(unpack(tf.add_n([tf.zeros_like(token), pack(3)])), [3])

    def test_sums_with_a_common_summand_do_not_see_each_other(self):
        common = tf.add_n([pack(1), pack(2)])
        one = tf.add_n([common, pack(3)])
        other = tf.add_n([common, pack(4)])
        both = tf.add_n([one, one])
        again = tf.add_n([one, pack(5)])
        self.assertEqual(unpack(common), [1, 2])
        self.assertEqual(unpack(one), [1, 2, 3])
        self.assertEqual(unpack(other), [1, 2, 4])
        self.assertEqual(unpack(both), [1, 2, 3, 1, 2, 3])
        self.assertEqual(unpack(again), [1, 2, 3, 5])

    def test_threads_that_add_to_one_value_do_not_see_each_other(self):
        common, sums = pack(-1), {}

        def work(number: int) -> None:
            gradients = common
            for i in range(50):
                gradients = tf.add_n([gradients, pack(number * 100 + i)])
            sums[number] = unpack(gradients)

        threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(4):
            self.assertEqual(sums[number], [-1, *range(number * 100, number * 100 + 50)])

    def test_it_survives_its_bytes(self):
        gradients = tf.add_n([pack(1, 2), pack(-3)])
        read = tf.io.parse_tensor(tf.io.serialize_tensor(gradients), tf.variant)
        self.assertEqual(unpack(read), [1, 2, -3])
        zero = tf.io.parse_tensor(tf.io.serialize_tensor(tf.zeros_like(read)), tf.variant)
        self.assertEqual(unpack(zero), [])

    @parameterized.parameters("int32", "uint64", "uint32")
    def test_keys_of_other_dtypes(self, dtype):
        largest = np.iinfo(dtype).max
        self.assertEqual(
            unpack(tf.add_n([pack(largest, dtype=dtype), pack(0, dtype=dtype)]), dtype),
            [largest, 0],
        )

    def test_what_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "one row for each of `keys`"):
            gradient_ops.row_gradients(np.zeros([2], np.int64), np.zeros([3, 2], np.float32))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must be of one table"):
            unpack(pack(1), tf.int32)
        other = tf.raw_ops.EmptyTensorList(
            element_shape=tf.constant([], tf.int32), max_num_elements=1, element_dtype=tf.float32
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "tf_embed::RowGradients"):
            unpack(other)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Checks of values that are known only when an op runs. The error names the first bad value."""

from __future__ import annotations

import re

import tensorflow as tf
from absl.testing import parameterized

from tf_embed import validation


def run(values, least, most, *places):
    return validation.in_range(values, least, most, "`x` must be small.", *places)


class InRangeTest(tf.test.TestCase, parameterized.TestCase):
    def expect_refused(self, words: str, *given):
        for function in (run, tf.function(run)):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`x` must be small") as one:
                function(*given)
            self.assertIn(words, re.sub(r"\s+", " ", re.sub(r"[][,]", " ", str(one.exception))))

    @parameterized.parameters("int32", "int64", "uint32", "uint64")
    def test_the_first_value_that_is_too_large_is_named_with_its_place(self, dtype):
        values = tf.constant([[1, 2, 3], [7, 12, 9]], dtype)
        self.expect_refused("Received: 12 at 1 1", values, 0, 9)
        self.assertAllEqual(run(values, 0, 12), values)
        self.assertAllEqual(tf.function(run)(values, 0, 12), values)

    def test_a_value_that_is_too_small_is_named_too(self):
        self.expect_refused("Received: -3 at 3", tf.constant([0, 1, 2, -3, 99]), 0, 9)
        self.expect_refused("Received: -3 at 0", tf.constant(-3), 0, 9)

    def test_a_place_may_be_that_of_a_sparse_tensor(self):
        places = tf.constant([[0, 0], [4, 2]], tf.int64)
        self.expect_refused("Received: 10 at 4 2", tf.constant([1, 10]), 0, 9, places)

    def test_a_bound_that_the_dtype_does_not_reach_is_not_checked(self):
        values = tf.constant([0, 2**32 - 1], tf.uint32)
        self.assertIs(run(values, -(2**63), 2**64), values)
        self.expect_refused("Received: 4294967295 at 1", values, -1, 2**31)

    def test_no_values_are_all_in_range(self):
        self.assertAllEqual(run(tf.zeros([0, 3], tf.int64), 1, 2), tf.zeros([0, 3]))
        self.assertAllEqual(tf.function(run)(tf.zeros([0], tf.int64), 1, 2), [])


if __name__ == "__main__":
    tf.test.main()

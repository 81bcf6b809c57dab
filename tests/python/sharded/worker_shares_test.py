# SPDX-License-Identifier: Apache-2.0
"""Shares of workers, against Python's integers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.oracles.reference import SEED
from tf_embed.sharded.worker_shares import share_of


def shares_of(num_reserved: int, sizes: list[int]) -> list[int]:
    kept, numbers = tf.constant(num_reserved, tf.int64), tf.constant(sizes, tf.int64)
    return [int(share_of(rank, kept, numbers)) for rank in range(len(sizes))]


class ShareTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(10, 10**4, 10**10, 2**50)
    def test_shares_are_those_of_exact_arithmetic(self, most):
        rng = np.random.default_rng(SEED)
        for _ in range(30):
            sizes = [int(size) for size in rng.integers(0, most, rng.integers(1, 9))]
            total = sum(sizes)
            for kept in {0, 1, total // 3, max(0, total - 1), total, total + 5, 2**60}:
                n = min(kept, total)
                up_to = [n * sum(sizes[:rank]) // max(total, 1) for rank in range(len(sizes) + 1)]
                expected = [up_to[rank + 1] - up_to[rank] for rank in range(len(sizes))]
                shares = shares_of(kept, sizes)
                self.assertEqual(shares, expected)
                self.assertEqual(sum(shares), n)
                self.assertTrue(all(one <= size for one, size in zip(shares, sizes, strict=True)))

    def test_shares_are_in_proportion(self):
        self.assertEqual(shares_of(50, [10, 30, 60]), [5, 15, 30])
        self.assertEqual(shares_of(7, [0, 0]), [0, 0])
        self.assertEqual(shares_of(2, [1, 1, 1]), [0, 1, 1])

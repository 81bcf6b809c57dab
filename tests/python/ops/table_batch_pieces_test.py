# SPDX-License-Identifier: Apache-2.0
"""`pieces` of ops on many tables: they cover each pooled value once, or are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import RawTable
from tf_embed import _library

RAW = _library.load()
DIMS = (2, 3)
BAGS = 12  # bag b has index b


def int64(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def is_good(pieces: np.ndarray, size: int) -> bool:
    """Whether pieces within a batch cover each value once, and each bag at most once."""
    values, bags = np.zeros([size], int), np.zeros([BAGS], int)
    for table, first, count, begin, stride in pieces:
        bags[first : first + count] += 1
        for i in range(count):
            values[begin + i * stride : begin + i * stride + DIMS[table]] += 1
    return bool(np.all(values == 1) and np.all(bags <= 1))


def blocks(draw: np.random.Generator) -> tuple[np.ndarray, int]:
    """Pieces that cover all values: a column of blocks, each a row of pieces."""
    pieces, first, begin = [], 0, 0
    while first < BAGS:
        tables = draw.integers(0, 2, draw.integers(1, 4))
        count = int(draw.integers(0, 3))
        if first + count * len(tables) > BAGS:
            break
        width, column = sum(DIMS[table] for table in tables), 0
        for table in tables:
            pieces.append([int(table), first, count, begin + column, width])
            first, column = first + count, column + DIMS[table]
        begin += count * width
    return np.reshape(np.array(pieces, np.int64), [-1, 5]), begin


def changed(draw: np.random.Generator, pieces: np.ndarray, size: int) -> np.ndarray:
    """Changes a number of a piece a little, such that the piece stays within the batch."""
    before, pieces = pieces, pieces.copy()
    piece = pieces[draw.integers(len(pieces))]
    column = draw.choice([1, 3, 4])
    piece[column] += draw.integers(-4, 5)
    table, first, count, begin, stride = piece
    bags_fit = first >= 0 and first + count <= BAGS
    end = begin + (count - 1) * stride + DIMS[table]
    values_fit = count == 0 or (begin >= 0 and stride >= DIMS[table] and end <= size)
    return pieces if bags_fit and values_fit else changed(draw, before, size)


# Pieces of 8 values. Either each value is covered, or their count is 8, but not both.
WRONG = {
    "two at one place": ([[0, 0, 2, 0, 2], [0, 2, 2, 0, 2]], "each of 8 .*Received: value 0 twice"),
    "a row too far": ([[0, 0, 2, 0, 4], [0, 2, 2, 4, 2]], "Received: value 4 twice"),
    "half a row": ([[0, 0, 1, 0, 2], [0, 1, 1, 1, 2], [0, 2, 2, 4, 2]], "Received: value 1 twice"),
    "one more": ([[0, 0, 5, 0, 1]], "values from 0 by 1"),
    "more than all": ([[0, 0, 4, 0, 2], [0, 4, 1, 2, 2]], "each of 8 pooled values once"),
    "a gap": ([[0, 0, 2, 0, 2], [0, 2, 1, 6, 2]], "all of 8 pooled values. Received: pieces of 6"),
    "a bag twice": ([[0, 0, 2, 0, 2], [0, 1, 2, 4, 2]], "each bag once. Received: bag 1 twice"),
}


class PiecesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tables = [RawTable(dim) for dim in DIMS]
        for table, dim in zip(self.tables, DIMS, strict=True):
            table.assign(range(BAGS), [[float(key + 1)] * dim for key in range(BAGS)])

    def calls(self, pieces: Any, size: int) -> dict[str, Any]:
        """The ops with pieces as an input."""
        batch = {
            "indices": int64(range(BAGS)),
            "offsets": int64(range(BAGS + 1)),
            "pieces": tf.reshape(int64(pieces), [-1, 5]),
            "weights": [],
            "dims": list(DIMS),
        }
        tables = {"tables": [table.handle for table in self.tables], "combiner": "sum"}
        size_of = {"size": int64(size)}
        gradient = {"gradient": tf.ones([size])}
        joined = {
            "values": tf.ones([3]),
            "sources": int64([0] * BAGS),
            "splits": int64(range(BAGS + 1)),
            "combiner": "sum",
        }
        return {
            "find": lambda: (
                RAW.tf_embed_find_pooled_tables(
                    **batch, **tables, **size_of, tokens=[], row_dtypes=[tf.float32] * 2
                ).pooled
            ),
            "sum_by_key": lambda: RAW.tf_embed_sum_by_key_tables(
                **batch,
                **gradient,
                combiner="sum",
                distinct_dtypes=[tf.int64] * 2,
                sum_dtypes=[tf.float32] * 2,
            ),
            "pack": lambda: RAW.tf_embed_pack_batch(**batch, **tables, **size_of),
            "split_bags": lambda: RAW.tf_embed_split_bags(
                **batch,
                **size_of,
                owners=tf.zeros([0], tf.int32),
                num_workers=2,
                rank=0,
                owner_rule="hash",
                ask_by="less",
                bytes_of_number=4,
            ),
            "join_bags": lambda: RAW.tf_embed_join_bags(**batch, **joined, **size_of),
            "join_bags_gradient": lambda: RAW.tf_embed_join_bags_gradient(
                **batch, **joined, **gradient
            ),
        }

    @parameterized.named_parameters(
        *((name.replace(" ", "_"), *case) for name, case in WRONG.items())
    )
    def test_every_op_refuses_pieces_that_overlap_or_leave_gaps(self, pieces, words):
        for name, call in self.calls(pieces, 8).items():
            with (
                self.subTest(name),
                self.assertRaisesRegex(tf.errors.InvalidArgumentError, f"`pieces` must.*{words}"),
            ):
                call()

    @parameterized.named_parameters(("overlap", 3, 0), ("a_bag", 1, 1))
    def test_a_step_refuses_packed_pieces_and_changes_nothing(self, column, number):
        good = [[0, 0, 2, 0, 2], [0, 2, 2, 4, 2]]
        packed = self.calls(good, 8)["pack"]().numpy()
        packed[6 + 7 + column] = number  # in the second piece, after six words and a piece
        step = {
            "tables": [table.handle for table in self.tables],
            "dims": list(DIMS),
            "combiner": "sum",
            "gradients": tf.ones([8]),
            "hyper": tf.constant([0.1, 0.0], tf.float64),
            "step": int64(1),
            "rule": "sgd",
        }
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`pieces` must .* twice"):
            RAW.tf_embed_apply_tables(batches=packed, **step)
        self.assertAllEqual(self.tables[0].find([0, 2])[0], [[1.0, 1.0], [3.0, 3.0]])

    def test_pieces_are_refused_exactly_if_values_or_bags_come_twice(self):
        seed = np.random.default_rng().integers(2**31)
        draw = np.random.default_rng(seed)
        seen = set()
        for case in range(400):
            pieces, size = blocks(draw)
            if not len(pieces):
                continue
            self.assertTrue(is_good(pieces, size))
            if case % 2:
                pieces = changed(draw, pieces, size)
            pieces = draw.permutation(pieces)
            good = is_good(pieces, size)
            seen.add((case % 2, good))
            message = f"seed {seed}, case {case}: {pieces.tolist()}, size {size}"
            try:
                found = self.calls(pieces, size)["find"]().numpy()
            except tf.errors.InvalidArgumentError as error:
                self.assertFalse(good, f"{message}: {error}")
                continue
            self.assertTrue(good, message)
            expected = np.zeros([size], np.float32)
            for table, first, count, begin, stride in pieces:
                for i in range(count):
                    row = slice(begin + i * stride, begin + i * stride + DIMS[table])
                    expected[row] = first + i + 1
            self.assertAllEqual(found, expected, message)
        self.assertIn((1, False), seen)
        self.assertIn((0, True), seen)


if __name__ == "__main__":
    tf.test.main()

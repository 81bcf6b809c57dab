# SPDX-License-Identifier: Apache-2.0
"""Casts before a table, found in the graph through ops that move numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_embed.ops import casts

EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}
INT64 = tf.int64


def sparse(x: tf.Tensor) -> tf.SparseTensor:
    return tf.SparseTensor([[0, 0], [1, 0]], x, [2, 1])


# The ops of TensorFlow and Keras that take ids from a matrix [n, 2].
MOVES: dict[str, Callable[[tf.Tensor], Any]] = {
    "slice": lambda x: x[:, 0],
    "slice of a size": lambda x: tf.slice(x, [0, 0], [-1, 1]),
    "gather": lambda x: tf.gather(x, [0], axis=1),
    "gather of a batch": lambda x: tf.gather(x, tf.zeros([2], tf.int32), axis=1, batch_dims=1),
    "gather_nd": lambda x: tf.gather_nd(x, [[0, 0], [1, 0]]),
    "take": lambda x: keras.ops.take(x, 0, axis=1),
    "take_along_axis": lambda x: keras.ops.take_along_axis(x, tf.zeros([2, 1], tf.int32), axis=1),
    "split": lambda x: tf.split(x, 2, axis=1)[0],
    "split of sizes": lambda x: tf.split(x, [1, 1], axis=1)[0],
    "squeeze": lambda x: tf.squeeze(x[:, :1], 1),
    "unstack": lambda x: tf.unstack(x, axis=1)[0],
    "transpose": lambda x: tf.transpose(x)[0],
    "reshape": lambda x: tf.reshape(x, [-1]),
    "expand_dims": lambda x: x[:, :1, tf.newaxis],
    "stack": lambda x: tf.stack([x[:, 0], x[:, 0]]),
    "concat": lambda x: tf.concat([x[:, :1], x[:, :1]], 1),
    "concat with a constant": lambda x: tf.concat([x[:, :1], tf.ones([2, 1], x.dtype)], 1),
    "tile": lambda x: tf.tile(x[:, :1], [1, 2]),
    "repeat": lambda x: tf.repeat(x[:, 0], 2),
    "broadcast": lambda x: tf.broadcast_to(x[:, 0], [3, 2]),
    "reverse": lambda x: tf.reverse(x[:, 0], [0]),
    "roll": lambda x: tf.roll(x[:, 0], 1, 0),
    "pad": lambda x: tf.pad(x[:, 0], [[0, 1]]),
    "pad with a constant": lambda x: tf.pad(x[:, 0], [[0, 1]], constant_values=3),
    "where": lambda x: tf.where(tf.equal(x[:, 0], 0), tf.zeros_like(x[:, 0]), x[:, 0]),
    "boolean_mask": lambda x: tf.boolean_mask(x[:, 0], [True, True]),
    "clip": lambda x: keras.ops.maximum(x[:, 0], 0),
    "largest": lambda x: tf.reduce_max(x[:, :1], 1),
    "unique": lambda x: tf.unique(x[:, 0])[0],
    "scatter": lambda x: tf.scatter_nd([[0], [1]], x[:, 0], [2]),
    "dynamic_partition": lambda x: tf.dynamic_partition(x[:, 0], [0, 0], 1)[0],
    "stop_gradient": lambda x: tf.stop_gradient(x[:, 0]),
    "custom gradient": lambda x: tf.custom_gradient(lambda y: (y, lambda up: up))(x[:, 0]),
    "ragged": lambda x: tf.RaggedTensor.from_row_lengths(x[:, 0], [1, 1]).to_tensor(),
    "sparse": lambda x: (
        tf.sparse.reorder(tf.SparseTensor([[0, 0], [1, 0]], x[:, 0], [2, 1])).values
    ),
}


def passes(function: Callable[[tf.Tensor], tf.Tensor], *numbers: Any) -> np.ndarray:
    """The keys that a table with int64 keys gets in a graph."""
    of_graph = tf.function(
        lambda *x: casts.unchanged(function(*x), "ids", "items"), autograph=False
    )
    return of_graph(*numbers).numpy()


class CastTest(tf.test.TestCase, parameterized.TestCase):
    def refuses(self, what: str, function: Any, *numbers: Any) -> None:
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, f"`ids` of .*items.*{what}"):
            passes(function, *numbers)

    @parameterized.product(move=list(MOVES), is_first=(True, False))
    def test_a_rounded_number_is_refused_behind_every_move(self, move, is_first):
        def ids(x: tf.Tensor) -> tf.Tensor:
            return MOVES[move](tf.cast(x, INT64)) if is_first else tf.cast(MOVES[move](x), INT64)

        good = tf.constant([[7.0, 0.5], [2.0**24 - 1, 1e30]])
        wanted = MOVES[move](tf.constant([[7, 0], [2**24 - 1, 1]], INT64))
        if move != "reshape":  # its ids are from both columns
            self.assertAllEqual(passes(ids, good), wanted)
        self.refuses("must not be rounded", ids, tf.constant([[7.0, 0.5], [2.0**24, 1.0]]))

    @parameterized.parameters(*EXACT)
    def test_numbers_are_exact_below_the_limit_of_the_float(self, dtype):
        limit = EXACT[dtype]
        for sign in (1, -1):
            good = tf.cast(tf.constant([sign * (limit - 1)], INT64), dtype)
            self.assertAllEqual(passes(lambda x: tf.cast(x, INT64), good), [sign * (limit - 1)])
            wrong = tf.cast(tf.constant([sign * limit], INT64), dtype)
            self.refuses(f"must not be rounded.*{dtype}", lambda x: tf.cast(x, INT64), wrong)

    def test_the_narrowest_float_of_a_chain_decides(self):
        def ids(x: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.cast(tf.cast(x, "bfloat16")[:, 0], "float64"), INT64)

        self.assertAllEqual(passes(ids, tf.constant([[255.0]])), [255])
        self.refuses("bfloat16", ids, tf.constant([[256.0]]))

    @parameterized.parameters(float("nan"), float("inf"), -float("inf"), 2.0**63, 1e30)
    def test_a_float_that_is_no_integer_of_the_dtype_is_refused(self, number):
        for dtype in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"):
            for given in ("float32", "float64"):
                cast = functools.partial(tf.cast, dtype=dtype)
                self.refuses("must not be", cast, tf.constant([number], given))

    def test_missing_numbers_may_be_filled_in(self):
        def ids(x: tf.Tensor) -> tf.Tensor:
            whole = tf.cast(x[:, 0], INT64)
            return tf.where(tf.math.is_nan(x[:, 0]), tf.zeros_like(whole), whole)

        self.assertAllEqual(passes(ids, tf.constant([[float("nan")], [5.0]])), [0, 5])

    def test_to_number_makes_float32(self):
        def ids(x: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.strings.to_number(x), INT64)

        self.assertAllEqual(passes(ids, tf.constant(["16777215"])), [16777215])
        self.refuses("must not be rounded", ids, tf.constant(["16777217"]))
        wide = passes(lambda x: tf.strings.to_number(x, INT64), tf.constant(["16777217"]))
        self.assertAllEqual(wide, [16777217])

    @parameterized.parameters(
        ("int64", "int32", 2**31 - 1, 2**31),
        ("int64", "int8", -128, -129),
        ("int64", "uint32", 2**32 - 1, -1),
        ("int32", "int16", 2**15 - 1, 2**15),
        ("uint64", "int64", 2**63 - 1, 2**63),
        ("int64", "uint64", 2**63 - 1, -1),
        ("uint32", "int32", 2**31 - 1, 2**31),
    )
    def test_an_integer_that_a_cast_changes_is_refused(self, wide, narrow, good, wrong):
        def ids(x: tf.Tensor) -> tf.Tensor:
            return tf.cast(tf.cast(x, narrow)[:, 0], INT64)

        self.assertAllEqual(passes(ids, tf.constant([[good]], wide)), [good])
        self.refuses(f"must not be changed.*{narrow}", ids, tf.constant([[wrong]], wide))

    def test_ids_are_checked_behind_an_offset_and_in_text(self):
        for ids in (
            lambda x: tf.cast(x, INT64) + [10, 20],
            lambda x: tf.cast(x, INT64) * 2 - 1,
            lambda x: tf.strings.as_string(tf.cast(x, INT64)),
            lambda x: tf.strings.join(["user_", tf.strings.as_string(tf.cast(x, INT64))])[:, 0],
            lambda x: tf.strings.to_hash_bucket_fast(tf.strings.as_string(x), 2**40),
        ):
            passes(ids, tf.constant([[5.0, 2.0**24 - 1]]))
            self.refuses("must not be rounded", ids, tf.constant([[2.0**24, 5.0]]))

    def test_numbers_that_are_no_ids_may_be_any(self):
        wide, large = tf.constant([2**60]), tf.constant([2.0**40])
        found = passes(lambda x, y: tf.gather(x, tf.cast(y, INT64)), wide, tf.constant([0.0]))
        self.assertAllEqual(found, [2**60])
        masked = passes(lambda x, y: tf.where(y > 2.0**30, x, -x), wide, large)
        self.assertAllEqual(masked, [2**60])
        flags = passes(lambda x: tf.cast(tf.cast(x, "bool"), INT64), tf.constant([2.0**30]))
        self.assertAllEqual(flags, [1])
        buckets = passes(lambda x: tf.cast(x, INT64) % 10, tf.constant([2.0**30]))
        self.assertAllEqual(buckets, [2**30 % 10])

    def test_exact_ids_beside_rounded_ones_may_be_any(self):
        def ids(x: tf.Tensor, exact: tf.Tensor) -> tf.Tensor:
            return tf.stack([tf.cast(x, INT64), exact])

        exact = tf.constant([2**60 + 1])
        self.assertAllEqual(passes(ids, tf.constant([5.0]), exact), [[5], [2**60 + 1]])
        self.refuses("must not be rounded", ids, tf.constant([2.0**24]), exact)

    @parameterized.parameters("map_fn", "vectorized_map", "cond", "while_loop")
    def test_a_cast_outside_of_a_loop_or_condition_is_found(self, way):
        def checked(one: tf.Tensor) -> tf.Tensor:
            return casts.unchanged(one, "ids", "items")

        def ids(x: tf.Tensor) -> tf.Tensor:
            whole = tf.cast(x[:, 0], INT64)
            if way == "cond":
                return tf.cond(tf.size(x) > 0, lambda: checked(whole), lambda: whole)
            if way == "while_loop":
                zero = tf.constant(0, INT64)
                return tf.while_loop(
                    lambda i, _: i < 2,
                    lambda i, total: (i + 1, total + checked(whole[i])),
                    (0, zero),
                )[1]
            return getattr(tf, way)(checked, whole)

        function = tf.function(ids)
        function(tf.constant([[5.0], [6.0]]))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must not be rounded"):
            function(tf.constant([[5.0], [2.0**24]]))

    def test_a_graph_without_such_a_cast_has_no_check(self):
        for dtype in ("int32", "int64"):
            spec = tf.TensorSpec([None, 2], dtype)
            function = tf.function(
                lambda x: casts.unchanged(tf.cast(x, INT64)[:, 0], "ids", "items")
            )
            ops = [op.type for op in function.get_concrete_function(spec).graph.get_operations()]
            self.assertNotIn("Assert", ops)


if __name__ == "__main__":
    tf.test.main()

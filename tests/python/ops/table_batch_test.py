# SPDX-License-Identifier: Apache-2.0
"""A pooled lookup in many tables by a single op, against a lookup in each table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.ops import table_batch_ops
from tf_embed.variable.lookup import gradient_token

FEATURES = (1, 0, 2, 0)  # the table of each feature
DIMS = (3, 1, 5)
DTYPES = (tf.float32, tf.bfloat16, tf.float16)


class Batch:
    """Tables, and random bags of each feature.

    Args:
        rng: The random generator.
        num_bags: Number of bags of each feature.
        longest: The most indices in a bag.
        weighted: Whether indices have weights.
        side_by_side: Whether the pooled rows of an example's features are adjacent.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        num_bags: tuple[int, ...],
        longest: int = 5,
        weighted: bool = False,
        side_by_side: bool = True,
    ) -> None:
        self.tables = [
            tf_embed.Variable(
                dim=dim, value_dtype=dtype, devices=["/CPU:0"] * shards, initializer="uniform"
            )
            for dim, dtype, shards in zip(DIMS, DTYPES, (1, 2, 1), strict=True)
        ]
        for table in self.tables:
            rows = rng.normal(size=[8, table.dim])
            table.upsert(np.arange(-4, 4), tf.cast(rows, table.value_dtype))
        self.num_bags = num_bags
        self.lengths = rng.integers(0, longest + 1, sum(num_bags))
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.indices = rng.integers(-8, 8, self.offsets[-1])
        self.weights = rng.normal(size=self.offsets[-1]).astype("f") if weighted else None
        self.pieces = []
        columns = np.cumsum([0, *(DIMS[table] for table in FEATURES)])
        bag = begin = 0
        for feature, (table, count) in enumerate(zip(FEATURES, num_bags, strict=True)):
            place = (columns[feature], columns[-1]) if side_by_side else (begin, DIMS[table])
            self.pieces.append([table, bag, count, *place])
            bag, begin = bag + count, begin + count * DIMS[table]
        self.size = begin

    def pooled(self, combiner: str, weights: Any = None, **changes: Any) -> tf.Tensor:
        inputs = {
            "indices": self.indices,
            "offsets": self.offsets,
            "pieces": np.reshape(self.pieces, [-1, 5]),
            "size": self.size,
        }
        tensors = {
            name: tf.constant(changes.get(name, value), tf.int64) for name, value in inputs.items()
        }
        return table_batch_ops.find_pooled_tables(
            [table.table.resource_handle for table in self.tables],
            **tensors,
            weights=weights,
            tokens=[gradient_token(table) for table in self.tables],
            row_dtypes=DTYPES,
            dims=changes.get("dims", DIMS),
            combiner=combiner,
        )

    def wanted(self, combiner: str, weights: Any = None) -> tf.Tensor:
        """The expected values, from a separate lookup for each bag."""
        places, values = [tf.zeros([0, 1], tf.int64)], [tf.zeros([0])]
        for table, first_bag, count, begin, stride in self.pieces:
            for i in range(count):
                part = slice(*self.offsets[first_bag + i : first_bag + i + 2])
                rows = tf_embed.embedding_lookup(self.tables[table], self.indices[part])
                rows = tf.cast(rows, tf.float32)
                if weights is not None:
                    rows *= weights[part][:, tf.newaxis]
                total = tf.reduce_sum(rows, 0)
                if combiner == "mean":
                    total /= max(1, part.stop - part.start)
                values.append(total)
                first = begin + i * stride
                places.append(tf.range(first, first + DIMS[table], dtype=tf.int64)[:, tf.newaxis])
        return tf.scatter_nd(tf.concat(places, 0), tf.concat(values, 0), [self.size])


def by_key(slices: tf.IndexedSlices | None) -> dict[int, np.ndarray]:
    sums: dict[int, np.ndarray] = {}
    if slices is not None:
        rows = tf.cast(slices.values, tf.float32).numpy()
        for key, row in zip(slices.indices.numpy().tolist(), rows, strict=True):
            sums[key] = sums.get(key, 0) + row
    return sums


class PooledTablesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        combiner=["sum", "mean"],
        weighted=[False, True],
        num_bags=[(6, 6, 6, 6), (0, 0, 0, 0), (5, 0, 9, 2)],
        in_graph=[False, True],
    )
    @pytest.mark.smoke
    def test_values_and_gradients_are_those_of_a_lookup_in_each(
        self, combiner, weighted, num_bags, in_graph
    ):
        rng = np.random.default_rng(sum(num_bags))
        batch = Batch(rng, num_bags, 6, weighted, side_by_side=len(set(num_bags)) == 1)
        factors = rng.normal(size=batch.size).astype("f")
        weights = None if batch.weights is None else tf.constant(batch.weights)
        anchors = [table.anchor for table in batch.tables]

        def run(pool: Any) -> Any:
            with tf.GradientTape() as tape:
                if weights is not None:
                    tape.watch(weights)
                values = pool(combiner, weights)
                loss = tf.reduce_sum(factors * values)
            gradients = tape.gradient(loss, [anchor.value for anchor in anchors])
            return values, gradients

        def of_weights(pool: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(factors * pool(combiner, weights))
            return tape.gradient(loss, weights)

        run_ours = tf.function(lambda: run(batch.pooled)) if in_graph else lambda: run(batch.pooled)
        found, gradients = run_ours()
        wanted, wanted_gradients = run(batch.wanted)
        self.assertAllClose(found, wanted, rtol=1e-5, atol=1e-5)
        tolerances = (1e-5, 2e-2, 3e-3)  # gradients are rounded to the tables' dtypes
        for one, other, tolerance in zip(gradients, wanted_gradients, tolerances, strict=True):
            ours, theirs = by_key(one), by_key(other)
            self.assertEqual(set(ours), set(theirs))
            for key, row in theirs.items():
                self.assertAllClose(ours[key], row, rtol=tolerance, atol=tolerance)
            if one is not None:
                self.assertLen(ours, one.indices.shape[0] or len(one.indices))
        if weights is not None and batch.size:
            self.assertAllClose(
                of_weights(batch.pooled), of_weights(batch.wanted), rtol=1e-5, atol=1e-5
            )

    def test_many_tables_are_summed_side_by_side(self):
        rng = np.random.default_rng(1)
        tables = [tf_embed.Variable(dim=2, name=f"table_{i}") for i in range(20)]
        pieces = [[i, 3 * i, 3, 2 * i, 40] for i in range(20)]
        lengths = rng.integers(0, 200, 60)
        offsets = tf.constant(np.concatenate([[0], np.cumsum(lengths)]), tf.int64)
        indices = tf.constant(rng.integers(0, 50, lengths.sum()))
        with tf.GradientTape() as tape:
            values = table_batch_ops.find_pooled_tables(
                [table.table.resource_handle for table in tables],
                indices,
                offsets,
                tf.constant(pieces, tf.int64),
                tf.constant(120, tf.int64),
                tokens=[gradient_token(table) for table in tables],
                row_dtypes=[tf.float32] * 20,
                dims=[2] * 20,
                combiner="sum",
            )
            loss = tf.reduce_sum(values)
        gradients = tape.gradient(loss, [table.anchor.value for table in tables])
        for i, slices in enumerate(gradients):
            part = slice(offsets[3 * i], offsets[3 * i + 3])
            keys, counts = np.unique(indices[part], return_counts=True)
            wanted = {key: [count, count] for key, count in zip(keys, counts, strict=True)}
            self.assertEqual({k: v.tolist() for k, v in by_key(slices).items()}, wanted)

    def test_nothing_is_inserted(self):
        batch = Batch(np.random.default_rng(2), (4, 4, 4, 4))
        batch.pooled("sum")
        self.assertEqual([int(table.size()) for table in batch.tables], [8, 8, 8])

    @parameterized.parameters(
        ({"offsets": [0, 1]}, "`offsets` must go from 0 to the number of indices"),
        ({"offsets": [0]}, "`offsets` must go from 0"),
        ({"offsets": []}, "`offsets` must go from 0"),
        ({"offsets": [0, 3, 2] + [99] * 6}, "`offsets` must"),
        ({"size": 5}, "`pieces` must"),
        ({"size": -1}, "`size` must not be negative"),
        ({"size": 10**9}, "`pieces` must cover all"),
        ({"pieces": [[0, 0, 2, 0, 3]]}, "`pieces` must cover all of 24 pooled values"),
        ({"pieces": [[3, 0, 2, 0, 3]]}, "Received: table 3, 2 bags from 0"),
        ({"pieces": [[-1, 0, 2, 0, 3]]}, "Received: table -1"),
        ({"pieces": [[0, 7, 2, 0, 3]]}, "8 bags.*Received: table 0, 2 bags from 7"),
        ({"pieces": [[0, 2**63 - 1, 2, 0, 3]]}, "`pieces` must be of"),
        ({"pieces": [[0, 0, 2**62, 0, 3]]}, "`pieces` must be of"),
        ({"pieces": [[0, 0, 2, 22, 3]]}, "values from 22 by 3"),
        ({"pieces": [[0, 0, 2, -1, 3]]}, "values from -1 by 3"),
        ({"pieces": [[0, 0, 2, 0, 2]]}, "values from 0 by 2"),
        ({"pieces": [[0, 0, 2, 0, 2**63 - 1]]}, "`pieces` must be of"),
        ({"dims": (3, 1, 4)}, "Table 2 of a batch must have int64 keys, dim 4"),
    )
    def test_what_is_wrong_is_refused(self, changes, words):
        batch = Batch(np.random.default_rng(3), (2, 2, 2, 2))
        changes = {name: np.array(one, np.int64) for name, one in changes.items()}
        if "dims" in changes:
            changes["dims"] = tuple(changes["dims"].tolist())
        with self.assertRaisesRegex((tf.errors.InvalidArgumentError, ValueError), words):
            batch.pooled("sum", **changes)

    def test_a_weighted_lookup_finds_each_row_once(self):
        batch = Batch(np.random.default_rng(1), (2, 2, 2, 2), weighted=True)
        weights = tf.constant(batch.weights)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            values = batch.pooled("sum", weights)
        self.assertEqual(tape.gradient(values, weights).shape, weights.shape)
        stats = [table.stats() for table in batch.tables]
        self.assertEqual(sum(one["hits"] + one["misses"] for one in stats), len(batch.indices))

    def test_weights_and_tables_that_do_not_go_together_are_refused(self):
        batch = Batch(np.random.default_rng(4), (2, 2, 2, 2))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`weights` must have one for"):
            batch.pooled("sum", tf.zeros([len(batch.indices) + 1]))
        batch.tables[0] = tf_embed.Variable(key_dtype=tf.int32, dim=3, trainable=False)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must have int64 keys"):
            table_batch_ops.find_pooled_tables(
                [batch.tables[0].table.resource_handle],
                tf.constant([1], tf.int64),
                tf.constant([0, 1], tf.int64),
                tf.constant([[0, 0, 1, 0, 3]], tf.int64),
                tf.constant(3, tf.int64),
                row_dtypes=[tf.float32],
                dims=[3],
                combiner="sum",
            )

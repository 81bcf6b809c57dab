# SPDX-License-Identifier: Apache-2.0
"""The rows that a weighted lookup gives beside its pooled rows, for the gradient of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import FLOATING, RawTable
from tf_embed import _library
from tf_embed.ops.pooling_ops import compute_dtype

RAW = _library.load()
KEYS = [[1, 7, 0], [3, 1, 2]]  # 7 has no row


def table_of(value_dtype: str = "float32", shards: int = 1) -> RawTable:
    """A table of the keys 0 to 3."""
    table = RawTable(2, value_dtype=value_dtype, num_shards=shards, initial=9.0)
    table.assign(range(4), [[10.0 * key, -key] for key in range(4)])
    return table


def find_pooled(table: RawTable, **changes: Any) -> Any:
    compute = compute_dtype(table.values_as)
    arguments = {
        **table.inputs(KEYS),
        "defaults": table.rows([]),
        "tokens": [],
        "bags": [],
        "weights": [tf.ones([2, 3], compute)],
        "pooled_dtype": compute,
        "combiner": "mean",
        "dim": 2,
        "found_dtypes": [compute],
    }
    return RAW.tf_embed_find_pooled(**{**arguments, **changes})


def find_pooled_tables(tables: list[RawTable], **changes: Any) -> Any:
    arguments = {
        "tables": [table.handle for table in tables],
        "indices": tf.constant([1, 7, 0, 3, 1, 2], tf.int64),
        "offsets": tf.constant([0, 2, 3, 3, 6], tf.int64),
        # The third piece first; the second bag is in no piece.
        "pieces": tf.constant([[1, 3, 1, 0, 2], [0, 0, 1, 2, 2], [1, 2, 1, 4, 2]], tf.int64),
        "size": tf.constant(6, tf.int64),
        "weights": [tf.range(6.0)],
        "tokens": [],
        "row_dtypes": [table.values_as for table in tables],
        "dims": [2, 2],
        "combiner": "sum",
        "found_dtypes": [tf.float32],
    }
    return RAW.tf_embed_find_pooled_tables(**{**arguments, **changes})


def two_tables() -> list[RawTable]:
    return [table_of(), table_of("bfloat16", shards=2)]


class FoundRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(value_dtype=FLOATING, shards=(1, 3), padding=(None, 1))
    def test_are_the_rows_of_the_keys_and_zeros_for_padding(self, value_dtype, shards, padding):
        table = table_of(value_dtype, shards)
        (rows,) = find_pooled(table, padding=[] if padding is None else [padding]).found
        wanted = tf.cast(table.find(KEYS)[0], rows.dtype).numpy()
        if padding is not None:
            wanted[np.equal(KEYS, padding)] = 0.0
        self.assertEqual(rows.dtype, compute_dtype(table.values_as))
        self.assertAllEqual(rows, wanted)

    def test_are_at_the_positions_of_the_keys_if_those_are_not_in_order(self):
        table = table_of()
        places = tf.constant([[1, 0], [0, 1], [1, 2]], tf.int64)
        bags = {"keys": table.keys([3, 1, 2]), "bags": [places, tf.constant([2, 3], tf.int64)]}
        (rows,) = find_pooled(table, **bags, weights=[tf.ones([3])]).found
        self.assertAllEqual(rows, table.find([3, 1, 2])[0])

    def test_of_many_tables_are_piece_by_piece(self):
        tables = two_tables()
        (rows,) = find_pooled_tables(tables).found
        first, second = tables[1].find([3, 1, 2])[0], tables[0].find([1, 7])[0]
        wanted = tf.concat([tf.cast(first, tf.float32), second], 0)
        self.assertAllEqual(rows, tf.reshape(wanted, [-1]))

    @parameterized.parameters(
        (lambda types: find_pooled(table_of(), found_dtypes=types),),
        (lambda types: find_pooled_tables(two_tables(), found_dtypes=types),),
    )
    def test_are_at_most_one_tensor(self, find):
        self.assertEmpty(find([]).found)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "`found_dtypes` must be none or 1. Received: 2"
        ):
            find([tf.float32] * 2)

    def test_in_their_place_the_gradient_of_weights_takes_defaults(self):
        # As a SavedModel of before has them.
        table, weights = table_of(), tf.ones([2, 3])
        rows, _ = table.find(KEYS)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            pooled = find_pooled(
                table, weights=[weights], combiner="sum", defaults=rows, found_dtypes=[]
            ).pooled
        self.assertAllEqual(tape.gradient(pooled, weights), tf.reduce_sum(rows, -1))

    def test_of_another_type_are_refused(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "`found_dtypes` must be float .*Received: double"
        ):
            find_pooled(table_of(), found_dtypes=[tf.float64])

    @pytest.mark.cpu
    @parameterized.parameters(
        (lambda: find_pooled(table_of()),), (lambda: find_pooled_tables(two_tables()),)
    )
    def test_are_written_only_if_the_graph_uses_them(self, find):
        self.assertEqual(outputs_of(find, lambda op: op.pooled), [0])
        self.assertEqual(outputs_of(find, lambda op: [op.pooled, *op.found]), [0, 1])


def outputs_of(find: Callable[[], Any], fetch: Callable[[Any], Any]) -> list[int]:
    """The numbers of the outputs that an op writes in a graph."""
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = find()
        session.run(fetch(found), options=options, run_metadata=metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    (op,) = [node for node in nodes if node.node_name == found.pooled.op.name]
    return [output.slot for output in op.output]


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Bags of many tables, and steps of Adam on all of them by a single op."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.ops import table_batch_ops
from tf_embed.ops.lookup_gradient import token_of
from tf_embed.tbe.batch_anchor import BatchAnchor

DIMS = (3, 1, 5)
DTYPES = (tf.float32, tf.bfloat16, tf.float32)
HYPER = tf.constant([0.5, 0.0, 0.9, 0.99, 1e-3], tf.float64)  # Adam's


def make_tables(count: int = 3, devices: str | None = None) -> list[tf_embed.Variable]:
    return [
        tf_embed.Variable(
            dim=DIMS[i % 3],
            value_dtype=DTYPES[i % 3],
            initializer=tf.keras.initializers.RandomNormal(seed=i),
            name=f"table_{i}",
            devices=devices,
        )
        for i in range(count)
    ]


class Bags:
    """Bags of two features of each table, in an order that mixes tables."""

    def __init__(self, rng: np.random.Generator, num_tables: int, num_bags: int, weighted: bool):
        self.of = [*range(num_tables), *reversed(range(num_tables))]
        self.num_bags = num_bags
        self.lengths = rng.integers(0, 5, num_bags * len(self.of))
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.indices = rng.integers(-4, 4, self.offsets[-1])
        self.weights = rng.normal(size=len(self.indices)).astype("f") if weighted else None
        dims = [DIMS[table % 3] for table in self.of]
        columns = np.cumsum([0, *dims])
        self.width = int(columns[-1])
        self.pieces = [
            [table, i * num_bags, num_bags, columns[i], self.width]
            for i, table in enumerate(self.of)
        ]
        self.gradient = rng.normal(size=num_bags * self.width).astype("f")

    def find(self, tables: list[Any], combiner: str, **options: Any) -> tf.Tensor:
        return table_batch_ops.find_pooled_tables(
            [table.table.resource_handle for table in tables],
            tf.constant(self.indices),
            tf.constant(self.offsets),
            tf.constant(self.pieces, tf.int64),
            tf.constant(self.num_bags * self.width, tf.int64),
            None if self.weights is None else tf.constant(self.weights),
            row_dtypes=[table.value_dtype for table in tables],
            dims=[table.dim for table in tables],
            combiner=combiner,
            **options,
        )

    def gradients_of(self, table: int, combiner: str) -> tuple[np.ndarray, np.ndarray]:
        """The keys of a table, and the gradient for each key."""
        values = self.gradient.reshape(self.num_bags, self.width)
        keys, rows = [], []
        for feature, owner in enumerate(self.of):
            if owner != table:
                continue
            column, dim = self.pieces[feature][3], DIMS[table % 3]
            for bag in range(self.num_bags):
                begin, end = self.offsets[feature * self.num_bags + bag :][:2]
                for i in range(begin, end):
                    factor = np.float32(1.0)
                    if combiner == "mean":
                        factor = np.float32(1.0) / np.float32(end - begin)
                    if self.weights is not None:
                        factor = factor * self.weights[i]
                    keys.append(self.indices[i])
                    rows.append(factor * values[bag, column : column + dim])
        shape = [len(keys), DIMS[table % 3]]
        return np.array(keys, np.int64), np.reshape(rows, shape).astype("f")


def packed(bags: Bags, tables: list[Any], combiner: str) -> tf.IndexedSlices:
    """The gradient of an anchor that all tables share."""
    anchor = BatchAnchor([table.table for table in tables], "all")
    with tf.GradientTape() as tape:
        values = bags.find(tables, combiner, packs=True, tokens=[token_of(anchor.value, tf.int64)])
        loss = tf.reduce_sum(values * bags.gradient)
    return tape.gradient(loss, anchor.value)


def apply(tables: list[Any], slices: tf.IndexedSlices, combiner: str, step: int = 1) -> None:
    table_batch_ops.apply_tables(
        [table.table.resource_handle for table in tables],
        slices.indices,
        tf.reshape(slices.values, [-1]),
        HYPER,
        tf.constant(step, tf.int64),
        dims=[table.dim for table in tables],
        combiner=combiner,
        rule="adam",
    )


def rows_of(table: Any) -> dict[int, list[float]]:
    keys, values = table.export()
    rows = tf.cast(values, tf.float32).numpy().tolist()
    return dict(zip(keys.numpy().tolist(), rows, strict=True))

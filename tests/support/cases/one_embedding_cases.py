# SPDX-License-Identifier: Apache-2.0
"""Layers of `tf_embed.one_embedding` for its tests, and their rows in NumPy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import one_embedding

KEY_TYPES = ("int32", "uint32", "int64", "uint64")


def store(path: str = "/tmp/rows", capacity: int = 1000, **options: Any) -> dict[str, Any]:
    return one_embedding.make_device_mem_store_options(path, capacity, **options)


def uniform_tables(*highs: float) -> list[dict[str, Any]]:
    """A table for each number, the bound of its initial weights."""
    make = one_embedding.make_uniform_initializer
    return [one_embedding.make_table(make(-high, high)) for high in highs]


def constant_tables(*values: float) -> list[dict[str, Any]]:
    make = one_embedding.make_constant_initializer
    return [one_embedding.make_table(make(value)) for value in values]


def layer(tables: Any = None, key_type: str = "int64", dim: int = 2, **options: Any) -> Any:
    options = {"name": "emb", "store_options": store(), "dtype": "float32", **options}
    kind = one_embedding.MultiTableEmbedding
    if isinstance(dim, list):
        kind = one_embedding.MultiTableMultiColumnEmbedding
    name, dtype = options.pop("name"), options.pop("dtype")
    return kind(name, dim, dtype, key_type, tables, options.pop("store_options"), **options)


def train(emb: Any, ids: Any) -> float:
    """Makes a step of the layer's own optimizer, and returns the loss."""
    optimizer = keras.optimizers.SGD()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(emb(ids, training=True), tf.float32) ** 2)
    variables = emb.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return float(loss)


def edges(key_type: str) -> np.ndarray:
    """The ids at the ends of a dtype, and around 0."""
    kind = tf.as_dtype(key_type).as_numpy_dtype
    ends = np.iinfo(kind)
    near = [ends.min, ends.min + 1, 0, 1, 2, ends.max - 2, ends.max - 1, ends.max]
    if ends.min < 0:
        near += [-2, -1]
    return np.array(sorted({*near, ends.max // 2, ends.max // 2 + 1}), kind)


class DenseTables:
    """Rows of tables in NumPy, by table and id, with steps of SGD.

    Args:
        initial: Returns the initial row of a table's id.
    """

    def __init__(self, initial: Any) -> None:
        self._initial = initial
        self.rows: dict[tuple[int, int], np.ndarray] = {}

    def find(self, ids: np.ndarray, tables: np.ndarray, padding: int | None) -> np.ndarray:
        found = []
        for one, table in zip(ids.flat, tables.flat, strict=True):
            row = self.rows.get((int(table), int(one)))
            row = self._initial(int(table), int(one)) if row is None else row
            found.append(np.zeros_like(row) if int(one) == padding else row)
        return np.stack(found).reshape([*ids.shape, -1])

    def step(
        self,
        ids: np.ndarray,
        tables: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        padding: int | None,
    ) -> None:
        sums: dict[tuple[int, int], np.ndarray] = {}
        flat = gradients.reshape([ids.size, -1])
        for one, table, gradient in zip(ids.flat, tables.flat, flat, strict=True):
            if int(one) != padding:
                key = (int(table), int(one))
                sums[key] = sums.get(key, 0.0) + gradient.astype(np.float32)
        for key, gradient in sums.items():
            row = self.rows.get(key)
            row = self._initial(*key) if row is None else row
            self.rows[key] = row - np.float32(rate) * gradient

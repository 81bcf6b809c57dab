"""TensorFlow's own hash table."""

from __future__ import annotations

import tensorflow as tf


class Table:
    """A table without an optimizer: it has none."""

    def __init__(self, dim: int) -> None:
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([dim]))

    @tf.function
    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.table.lookup(ids)

    @tf.function
    def upsert(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        self.table.insert(ids, rows)

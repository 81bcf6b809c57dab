# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own hash table."""

from __future__ import annotations

import tensorflow as tf


class Table:
    """A table. There is no optimizer for it."""

    def __init__(self, dim: int) -> None:
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([dim]))

        def upsert(ids: tf.Tensor, rows: tf.Tensor) -> None:
            table.insert(ids, rows)

        self.table = table
        self.lookup = tf.function(lambda ids: table.lookup(ids))
        self.upsert = tf.function(upsert)

# SPDX-License-Identifier: Apache-2.0
"""`StockTable`: a table's lookups with TensorFlow's ops, on rows in a variable."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.ops.pooling_ops import compute_dtype
from tf_embed.saving.row_blocks import RowBlocks
from tf_embed.static_export.initial_rows import random_rows
from tf_embed.static_export.key_index import KeyIndex, stored_dtype, stored_keys
from tf_embed.static_export.quantization import format_of
from tf_embed.table.initializers import current_initializer, drawn_rows
from tf_embed.table.table import Table


class StockTable(tf.Module):
    """The stand-in for a table in a SavedModel; see `substitutes`.

    The variables are empty. Their values are written to the files of the SavedModel block by block.

    Args:
        quantize: None, "float16" or "int8"; see `quantization`.
        draws: Whether keys without a row get their initial row; otherwise zeros.

    Attributes:
        keys: The keys [n].
        rows: A row of zeros, followed by the rows of the keys, [n + 1, width].
    """

    def __init__(self, table: Table, *, quantize: str | None, draws: bool) -> None:
        super().__init__()
        options = table.options
        self._options = options
        self._initializer = current_initializer(options.initializer, table.parts[0].resource_handle)
        self._draws = draws
        self._format = format_of(options.value_dtype, options.dim, options.name, quantize)
        # Made while the first function with the table is traced, for all functions.
        with tf.init_scope(), tf.device("/CPU:0"):
            self.keys = _empty(stored_dtype(options.key_dtype), [None])
            self.rows = _empty(self._format.dtype, [None, self._format.width])
            self.index = KeyIndex(self.keys)

    def find(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, with initial rows or defaults for absent keys."""
        numbers = self.index.numbers_of(stored_keys(keys))
        # Row 0 has zeros, for absent keys.
        rows = self._format.restored(tf.gather(self.rows, numbers))
        exists = numbers > 0
        if defaults is not None:
            return tf.where(exists[..., tf.newaxis], rows, defaults), exists
        return self._with_initial_rows(keys, rows, exists), exists

    def find_pooled(
        self, keys: tf.Tensor, pooling: Pooling, defaults: tf.Tensor | None
    ) -> tf.Tensor:
        """Pools the rows of each bag."""
        options, bags = self._options, pooling.bags

        def rows_of(some: tf.Tensor) -> tf.Tensor:
            return tf.cast(self.find(some, defaults)[0], compute_dtype(options.value_dtype))

        pooled = pooling.find_and_pool(keys, rows_of, options.dim)
        if not bags:
            return tf.ensure_shape(pooled, keys.shape[:-1].concatenate([options.dim]))
        rank = 1 if len(bags) == 1 else (bags[1].shape[0] or 2) - 1
        return tf.ensure_shape(pooled, [None] * rank + [options.dim])

    def stored_blocks(self, blocks: RowBlocks) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields the keys [n] and rows [n, width] of each block, in the form of the variables."""
        for keys, rows in blocks:
            yield stored_keys(keys), self._format.stored(rows)

    @property
    def row_of_zeros(self) -> tf.Tensor:
        """The first row of `rows`, [1, width]."""
        zeros = tf.zeros([1, self._options.dim], self._options.value_dtype)
        return self._format.stored(zeros)

    @property
    def _is_of_zeros(self) -> bool:
        """Whether initial rows equal the first row of `rows`: zeros, or empty strings."""
        initializer = self._initializer
        zeros = initializer.kind == "constant" and initializer.values == (0.0,)
        return zeros and not (initializer.is_of_python or initializer.strings)

    def _with_initial_rows(self, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
        """Returns rows, with initial rows for the keys that have none."""
        options, initializer = self._options, self._initializer
        if not self._draws or self._is_of_zeros:
            return rows
        is_there = exists[..., tf.newaxis]
        if initializer.strings:
            return tf.where(is_there, rows, tf.constant(initializer.strings))
        if initializer.is_of_python:
            drawn = drawn_rows(
                initializer,
                keys,
                exists,
                dim=options.dim,
                value_dtype=options.value_dtype,
                name=options.name,
            )
            return rows if drawn is None else tf.where(is_there, rows, drawn)
        if initializer.kind in ("constant", "row"):
            row = tf.constant(initializer.values, tf.float64)
            if options.value_dtype in (tf.float16, tf.bfloat16):
                row = tf.cast(row, tf.float32)  # rounded twice, as the table does
            return tf.where(is_there, rows, tf.cast(row, options.value_dtype))
        # Drawing rows is slow, and most batches have no absent key.
        return tf.cond(
            tf.reduce_all(exists), lambda: rows, lambda: self._with_drawn(keys, rows, exists)
        )

    def _with_drawn(self, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
        """Returns rows, with random initial rows for the keys that have none."""
        options = self._options
        # Flat, because tf.where finds no position in a scalar.
        absent = tf.where(tf.logical_not(tf.reshape(exists, [-1])))
        drawn = random_rows(
            self._initializer,
            stored_keys(tf.gather_nd(tf.reshape(keys, [-1]), absent)),
            dim=options.dim,
            value_dtype=options.value_dtype,
        )
        flat = tf.tensor_scatter_nd_update(tf.reshape(rows, [-1, options.dim]), absent, drawn)
        return tf.ensure_shape(tf.reshape(flat, tf.shape(rows)), rows.shape)


def _empty(dtype: tf.DType, shape: list[int | None]) -> tf.Variable:
    """Returns a variable without rows, whose shape allows any number of rows."""
    value = tf.zeros([0, *shape[1:]], dtype)
    return tf.Variable(value, shape=shape, trainable=False)

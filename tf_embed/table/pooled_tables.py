# SPDX-License-Identifier: Apache-2.0
"""A pooled lookup in many tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops import stock_ops, substitutes, table_batch_ops
from tf_embed.table.table import Table


def find_pooled_tables(
    tables: Sequence[Table],
    indices: tf.Tensor,
    offsets: tf.Tensor,
    pieces: tf.Tensor,
    size: tf.Tensor,
    weights: tf.Tensor | None = None,
    tokens: Sequence[tf.Tensor] = (),
    *,
    dims: Sequence[int],
    combiner: str,
    **options: Any,
) -> tf.Tensor:
    """Looks up rows in many tables, pools the rows of each bag, and changes no row.

    Args:
        tables: The tables, of int64 keys.
        indices: As in `table_batch_ops.find_pooled_tables`, and so are all others.

    Returns:
        The pooled values, float32 [size]. The values of an empty bag are 0.
    """
    if substitutes.are_used():
        return stock_ops.find_pooled_tables(
            [functools.partial(_rows_of, table) for table in tables],
            indices,
            offsets,
            pieces,
            size,
            weights,
            dims=dims,
            combiner=combiner,
        )
    return table_batch_ops.find_pooled_tables(
        [table.resource_handle for table in tables],
        indices,
        offsets,
        pieces,
        size,
        weights,
        tokens,
        row_dtypes=[table.options.value_dtype for table in tables],
        dims=dims,
        combiner=combiner,
        **options,
    )


def _rows_of(table: Table, keys: tf.Tensor) -> tf.Tensor:
    """The rows [n, dim] of keys [n]."""
    stand_in = substitutes.of(table)
    assert stand_in is not None  # because stand-ins are used
    return stand_in.find(keys)[0]

# SPDX-License-Identifier: Apache-2.0
"""Rows of weights in bytes, as in FBGEMM's `SparseType.INT8`.

A row of `dim` weights is `dim + 8` bytes: a code from 0 to 255 for each weight, then the row's
scale and bias, both float32; weight = code * scale + bias. A table stores them as int8. A row of
zero bytes has zero weights. No optimizer trains such rows: a step would be lost between two codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import stock_ops

TAIL = 8  # bytes behind the codes
_SMALLEST = float(np.finfo(np.float32).tiny)


def quantize(rows: Any) -> tf.Tensor:
    """Quantizes rows to the nearest codes.

    The bias of a row is its least weight, and its greatest weight is 255 scales above. So a weight
    changes by at most half a scale, apart from the rounding of float32.

    Args:
        rows: Floating, [..., dim], dim at least 1. The weights, and the difference of the greatest
            and least weight of a row, are finite in float32.

    Returns:
        int8 [..., dim + 8].

    Raises:
        TypeError: If the rows are not floating.
        ValueError: If they have no axis, or no weight on it.

    Example:
        >>> from tf_embed.tbe import quantized_rows
        >>> rows = quantized_rows.quantize([[0.0, 0.5, 1.0]])
        >>> rows.shape, rows.dtype.name
        (TensorShape([1, 11]), 'int8')
    """
    rows = validation.as_tensor(rows, "rows", "quantized_rows")
    if not rows.dtype.is_floating:
        raise TypeError(f"`rows` must be of a floating dtype. Received: {rows.dtype.name}")
    _check_axis(rows)
    rows = tf.cast(rows, tf.float32)
    bias = tf.reduce_min(rows, axis=-1, keepdims=True)
    # In float64, so that the difference of two weights and its quotient are exact enough.
    above = tf.cast(rows, tf.float64) - tf.cast(bias, tf.float64)
    scale = tf.reduce_max(above, axis=-1, keepdims=True) / 255.0
    # A subnormal scale could be off by its own size.
    scale = tf.where(scale > 0.0, tf.maximum(scale, _SMALLEST), 0.0)
    scale = tf.cast(scale, tf.float32)
    codes = tf.math.rint(tf.math.divide_no_nan(above, tf.cast(scale, tf.float64)))
    codes = tf.cast(tf.clip_by_value(codes, 0.0, 255.0), tf.uint8)
    parts = [tf.bitcast(codes, tf.int8)]
    parts += [tf.bitcast(tf.squeeze(number, -1), tf.int8) for number in (scale, bias)]
    return tf.concat(parts, axis=-1)


def dequantize(rows: Any) -> tf.Tensor:
    """Returns the weights of quantized rows.

    Args:
        rows: int8, [..., dim + 8].

    Returns:
        float32 [..., dim].

    Raises:
        TypeError: If the rows are not int8.
        ValueError: If they have no axis, or the last axis is smaller than 9.

    Example:
        >>> from tf_embed.tbe import quantized_rows
        >>> rows = quantized_rows.quantize([[0.0, 255.0, 51.0]])
        >>> quantized_rows.dequantize(rows).numpy().tolist()
        [[0.0, 255.0, 51.0]]
    """
    rows = validation.as_tensor(rows, "rows", "quantized_rows")
    if rows.dtype != tf.int8:
        raise TypeError(f"`rows` must be int8. Received: {rows.dtype.name}")
    _check_axis(rows)
    if rows.shape[-1] is not None and rows.shape[-1] <= TAIL:
        raise ValueError(
            f"`rows` must have at least {TAIL + 1} bytes each. Received: shape={rows.shape}"
        )
    return stock_ops.dequantized(rows)


def _check_axis(rows: tf.Tensor) -> None:
    if rows.shape.rank == 0 or (rows.shape.rank is not None and rows.shape[-1] == 0):
        raise ValueError(f"`rows` must have an axis of weights. Received: shape={rows.shape}")

# SPDX-License-Identifier: Apache-2.0
"""Storage of the rows of a static export: unchanged, in half precision, or in bytes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import stock_ops
from tf_embed.tbe import quantized_rows

QUANTIZATIONS = ("float16", "int8")


class RowFormat:
    """Rows stored unchanged.

    float16 rows are stored as the int16 of their bits, because TensorFlow does not restore slices
    of a float16 tensor.

    Attributes:
        dtype: Dtype in which rows are stored.
        width: Number of values of that dtype in a row.
    """

    def __init__(self, value_dtype: tf.DType, dim: int, name: str) -> None:
        self.value_dtype = value_dtype
        self.dtype = tf.int16 if value_dtype == tf.float16 else value_dtype
        self.width = dim
        self.name = name

    def stored(self, rows: tf.Tensor) -> tf.Tensor:
        """Converts rows [n, dim] to their stored form, [n, width].

        Raises:
            ValueError: If the format can't hold a row.
        """
        return tf.bitcast(rows, tf.int16) if rows.dtype == tf.float16 else rows

    def restored(self, stored: tf.Tensor) -> tf.Tensor:
        """Converts stored rows [..., width] to rows of the table's dtype, [..., dim]."""
        return tf.bitcast(stored, tf.float16) if self.value_dtype == tf.float16 else stored

    def _refuse(self, rows: np.ndarray, must: str) -> ValueError:
        return ValueError(
            f"Rows of {self.name!r} must be {must}. Received: a row with the weight "
            f"{rows.flat[0]}; leave `quantize` out, or remove the row"
        )


class HalfFormat(RowFormat):
    """Rows in float16. A weight w changes by at most |w| / 2048 + 2**-25."""

    def __init__(self, value_dtype: tf.DType, dim: int, name: str) -> None:
        super().__init__(value_dtype, dim, name)
        self.dtype = tf.int16  # as in `RowFormat`

    @override
    def stored(self, rows: tf.Tensor) -> tf.Tensor:
        half = tf.cast(rows, tf.float16)
        lost = tf.math.is_finite(rows) & tf.math.is_inf(half)
        if bool(tf.reduce_any(lost)):
            first = tf.cast(tf.boolean_mask(rows, lost), tf.float64).numpy()
            raise self._refuse(first, "less than 65520 in size to be quantized to float16")
        return tf.bitcast(half, tf.int16)

    @override
    def restored(self, stored: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.bitcast(stored, tf.float16), self.value_dtype)


class ByteFormat(RowFormat):
    """Rows in bytes, each with a scale and a bias; see `tbe.quantized_rows`.

    A weight w of a row changes by at most (maximum - minimum) / 510 + 2**-21 * greatest |w| of the
    row + 2**-126.
    """

    def __init__(self, value_dtype: tf.DType, dim: int, name: str) -> None:
        super().__init__(value_dtype, dim, name)
        self.dtype = tf.int8
        self.width = dim + quantized_rows.TAIL

    @override
    def stored(self, rows: tf.Tensor) -> tf.Tensor:
        single = tf.cast(rows, tf.float32)
        span = tf.reduce_max(single, -1) - tf.reduce_min(single, -1)
        lost = tf.logical_not(tf.math.is_finite(span))
        if bool(tf.reduce_any(lost)):
            of_row = tf.cast(tf.boolean_mask(rows, lost)[0], tf.float64).numpy()
            first = of_row[~np.isfinite(of_row)] if not np.isfinite(of_row).all() else of_row
            raise self._refuse(first, "finite in float32, spans included, to be quantized to int8")
        return quantized_rows.quantize(single)

    @override
    def restored(self, stored: tf.Tensor) -> tf.Tensor:
        return tf.cast(stock_ops.dequantized(stored), self.value_dtype)


def format_of(value_dtype: tf.DType, dim: int, name: str, quantize: str | None) -> RowFormat:
    """Returns the format of a table's rows. Rows that would not get smaller stay unchanged.

    Rows that are not floating stay unchanged, too.

    Args:
        quantize: None, "float16" or "int8".
    """
    exact = RowFormat(value_dtype, dim, name)
    if quantize is None or not value_dtype.is_floating:
        return exact
    kind = HalfFormat if quantize == "float16" else ByteFormat
    quantized = kind(value_dtype, dim, name)
    gains = quantized.width * quantized.dtype.size < dim * value_dtype.size
    return quantized if gains else exact

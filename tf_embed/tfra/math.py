# SPDX-License-Identifier: Apache-2.0
"""TFRA's `dynamic_embedding.math`: aliases of TensorFlow functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]


def sparse_segment_sum(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> tf.Tensor:
    """Calls tf.sparse.segment_sum, with another order of arguments.

    Args:
        data: A tensor of numbers, [rows, ...].
        indices: The rows to sum, int32 or int64 [n].
        segment_ids: The segment of each row in `indices`, int32 or int64 [n], ascending.
        name: Name of the operation.
        num_segments: Number of segments. Default: the last of `segment_ids` plus 1.

    Returns:
        The sums, [num_segments, ...].

    Example:
        >>> from tf_embed.tfra import math
        >>> math.sparse_segment_sum([[1.0], [2.0], [4.0]], [0, 2, 1], [0, 0, 1]).numpy().tolist()
        [[5.0], [2.0]]
    """
    return tf.sparse.segment_sum(data, indices, segment_ids, num_segments, name)


def sparse_fill_empty_rows(
    sp_input: tf.SparseTensor, default_value: Any, name: str | None = None
) -> tuple[tf.SparseTensor, tf.Tensor]:
    """Calls tf.sparse.fill_empty_rows.

    Args:
        sp_input: A tf.SparseTensor of two axes.
        default_value: The value that a row without values gets.
        name: Name of the operation.

    Returns:
        A tf.SparseTensor, and which rows had no value, bool [rows].

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed.tfra import math
        >>> values = tf.SparseTensor([[1, 0]], [5], [2, 1])
        >>> filled, were_empty = math.sparse_fill_empty_rows(values, 9)
        >>> filled.values.numpy().tolist(), were_empty.numpy().tolist()
        ([9, 5], [True, False])
    """
    return tf.sparse.fill_empty_rows(sp_input, default_value, name)


def sparse_reshape(
    sp_input: tf.SparseTensor, shape: Any, name: str | None = None
) -> tf.SparseTensor:
    """Calls tf.sparse.reshape.

    Args:
        sp_input: A tf.SparseTensor.
        shape: The new shape, int64 [axes]; one size may be -1.
        name: Name of the operation.

    Returns:
        A tf.SparseTensor of the same values.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed.tfra import math
        >>> values = tf.SparseTensor([[1, 0]], [5], [2, 2])
        >>> math.sparse_reshape(values, [4]).indices.numpy().tolist()
        [[2]]
    """
    return tf.sparse.reshape(sp_input, shape, name)

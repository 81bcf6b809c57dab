# SPDX-License-Identifier: Apache-2.0
"""What TFRA's `dynamic_embedding.math` has: names of TensorFlow's own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["sparse_fill_empty_rows", "sparse_reshape", "sparse_segment_sum"]


def sparse_segment_sum(
    data: Any, indices: Any, segment_ids: Any, name: str | None = None, num_segments: Any = None
) -> tf.Tensor:
    """tf.sparse.segment_sum, with TFRA's order of arguments."""
    return tf.sparse.segment_sum(data, indices, segment_ids, num_segments, name)


def sparse_fill_empty_rows(
    sp_input: tf.SparseTensor, default_value: Any, name: str | None = None
) -> tuple[tf.SparseTensor, tf.Tensor]:
    """tf.sparse.fill_empty_rows."""
    return tf.sparse.fill_empty_rows(sp_input, default_value, name)


def sparse_reshape(
    sp_input: tf.SparseTensor, shape: Any, name: str | None = None
) -> tf.SparseTensor:
    """tf.sparse.reshape."""
    return tf.sparse.reshape(sp_input, shape, name)

# SPDX-License-Identifier: Apache-2.0
"""`OutputLayout`: the positions of bags' rows in a table-batched layer's output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.tbe.inputs import Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputLayout:
    """The positions of the rows of bags in the output, and its shape.

    Attributes:
        features: The input format of the layer.
        feature_tables: The number of each feature's table.
        dims: Dim of each feature.
        is_pooled: Whether rows of a bag are pooled; otherwise all dims are equal.
        dtype: Dtype of the output.
    """

    features: Features
    feature_tables: Sequence[int]
    dims: Sequence[int]
    is_pooled: bool
    dtype: tf.DType

    def pieces(self, num_bags: tf.Tensor, counts: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the output positions of the rows of each bag.

        Args:
            num_bags: int64 [features].
            counts: None; or int64 [features, ranks], the number of bags of each rank.

        Returns:
            `pieces` and `size` of `table_batch_ops.find_pooled_tables`.
        """
        with tf.device("/CPU:0"):  # as the op takes them
            if not self.is_pooled:
                return _pieces_below_each_other(num_bags, self.feature_tables, self.dims[0])
            if counts is not None:
                return _pieces_by_rank(counts, self.feature_tables, self.dims)
            return _pieces_side_by_side(num_bags, self.feature_tables, self.dims)

    def output(
        self, values: tf.Tensor, counts: tf.Tensor | None, num_offsets: int | None
    ) -> tf.Tensor:
        """The output tensor made of `values`.

        Args:
            values: float32 [size].
            counts: As in `pieces`.
            num_offsets: The number of the batch's offsets, if it is statically known.
        """
        if counts is None:
            values = tf.reshape(values, [-1, self._width])
            if self.is_pooled and num_offsets is not None:
                values.set_shape([(num_offsets - 1) // len(self.feature_tables), self._width])
        return tf.cast(values, self.dtype)

    def shape(
        self, indices_shape: Any, offsets_shape: Any, by_rank: bool
    ) -> tuple[int | None, ...]:
        """The shape of the output, from the shapes of inputs."""
        if not self.is_pooled:
            return (self.features.num_indices(indices_shape, offsets_shape), self._width)
        if by_rank:
            return (None,)
        return (self.features.batch_size(indices_shape, offsets_shape), self._width)

    @property
    def _width(self) -> int:
        return sum(self.dims) if self.is_pooled else self.dims[0]


def _pieces_side_by_side(
    num_bags: tf.Tensor, feature_tables: Sequence[int], dims: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the output positions of rows [B, sum of dims], with features side by side.

    Args:
        num_bags: int64 [features], all equal.

    Returns:
        `pieces` and `size` of `table_batch_ops.find_pooled_tables`.
    """
    width, column, fixed, times = sum(dims), 0, [], []
    for i, (table, dim) in enumerate(zip(feature_tables, dims, strict=True)):
        # A piece: its table, first bag, number of bags, first position, and the distance of its
        # rows.
        fixed.append([table, 0, 0, column, width])
        times.append([0, i, 1, 0, 0])
        column += dim
    count = num_bags[0]
    # Only the number of bags is unknown while tracing, so one product gives all pieces.
    pieces = tf.constant(fixed, tf.int64) + count * tf.constant(times, tf.int64)
    return pieces, count * width


def _pieces_below_each_other(
    num_bags: tf.Tensor, feature_tables: Sequence[int], dim: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the output positions of rows of equal dim, in the order of the bags.

    Returns:
        `pieces` and `size` of `table_batch_ops.find_pooled_tables`.
    """
    first = tf.cumsum(num_bags, exclusive=True)
    tables = tf.constant(feature_tables, tf.int64)
    strides = tf.fill(tf.shape(first), tf.constant(dim, tf.int64))
    pieces = tf.stack([tables, first, num_bags, first * dim, strides])
    return tf.transpose(pieces), tf.reduce_sum(num_bags) * dim


def _pieces_by_rank(
    counts: tf.Tensor, feature_tables: Sequence[int], dims: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the output positions, rank by rank, if bag counts differ by feature and rank.

    Args:
        counts: int64 [features, ranks], the number of bags of each. Bags are ordered by feature,
            and within a feature by rank.

    Returns:
        `pieces` and `size` of `table_batch_ops.find_pooled_tables`.
    """
    shape = tf.shape(counts)
    flat = tf.reshape(counts, [-1])
    first = tf.cumsum(flat, exclusive=True)
    widths = tf.constant(dims, tf.int64)[:, tf.newaxis]
    # The output is ordered by rank, but bags are ordered by feature.
    by_rank = tf.reshape(tf.transpose(counts * widths), [-1])
    begin = tf.reshape(tf.cumsum(by_rank, exclusive=True), tf.stack([shape[1], shape[0]]))
    begin = tf.transpose(begin)
    tables = tf.constant(feature_tables, tf.int64)[:, tf.newaxis]
    of_all = [
        tf.reshape(tf.broadcast_to(tables, shape), [-1]),
        first,
        flat,
        tf.reshape(begin, [-1]),
        tf.reshape(tf.broadcast_to(widths, shape), [-1]),
    ]
    return tf.stack(of_all, 1), tf.reduce_sum(by_rank)

"""From ids in any container to rows, one for each id or pooled over the last axis.

A *bag* is the ids along the last axis: a line of a dense tensor, the innermost list of a ragged
one, a line of a sparse one. Ids come here as keys already, in a tf.Tensor, tf.RaggedTensor or
tf.SparseTensor. Pooling computes in float32 where rows are of half precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed import arguments

COMBINERS = ("sum", "mean", "sqrtn")


@dataclasses.dataclass(frozen=True)
class Embedder:
    """Looks ids up and pools the rows.

    Attributes:
        rows: Takes keys of any shape, gives rows, keys.shape + [dim]; zeros for padding.
        is_padding: Takes keys, tells which are padding; None where none can be.
        dim: Number of weights in a row.
        combiner: None, "sum", "mean" or "sqrtn".
        name: The layer, for messages.
    """

    rows: Callable[[tf.Tensor], tf.Tensor]
    is_padding: Callable[[tf.Tensor], tf.Tensor] | None
    dim: int
    combiner: str | None
    name: str

    def __call__(self, ids: Any, weights: Any = None) -> tf.Tensor | tf.RaggedTensor:
        """Rows of `ids`.

        Args:
            ids: Keys.
            weights: None, or the weight of each id, in the same container.

        Returns:
            ids.shape + [dim], ragged where `ids` is; with a combiner, without the last axis of
            `ids`, and ragged only where an axis that remains is.

        Raises:
            ValueError: `weights` does not go with `ids`, or `ids` has no axis to pool.
        """
        self._check(ids, weights)
        if isinstance(ids, tf.SparseTensor):
            return self._sparse(ids, weights)
        if isinstance(ids, tf.RaggedTensor):
            return self._ragged(ids, weights)
        if self.combiner is None:
            return self.rows(ids)
        return self._pool_lines(ids, weights)

    def _check(self, ids: Any, weights: Any) -> None:
        if self.combiner is not None and ids.shape.rank == 0:
            raise ValueError(
                f"`ids` of {self.name!r} must have an axis to pool over. Received: ids.shape=()"
            )
        if weights is None:
            return
        if self.combiner is None:
            raise ValueError(f"`weights` of {self.name!r} need a combiner. Received: combiner=None")
        containers = [
            one if isinstance(one, (tf.SparseTensor, tf.RaggedTensor)) else None
            for one in (ids, weights)
        ]
        same = type(containers[0]) is type(containers[1])
        if not same or not ids.shape.is_compatible_with(weights.shape):
            raise ValueError(
                f"`weights` of {self.name!r} must be of the kind and shape of `ids`, "
                f"{type(ids).__name__} {ids.shape}. Received: {type(weights).__name__} "
                f"{weights.shape}"
            )

    # Dense: the bags are the lines along the last axis.

    def _pool_lines(self, ids: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        rows = _summable(self.rows(ids))
        if weights is not None:
            same = tf.debugging.assert_equal(
                tf.shape(weights),
                tf.shape(ids),
                f"`weights` of {self.name!r} must have the shape of `ids`.",
            )
            weights = arguments.after(weights, same)
        factors = self._factors(ids, weights, rows.dtype)
        if factors is None:
            total = tf.reduce_sum(rows, axis=-2)
        else:
            total = tf.einsum("...ld,...l->...d", rows, factors)
        return self._divide(total, factors, lambda terms: tf.reduce_sum(terms, axis=-1))

    # Ragged.

    def _ragged(
        self, ids: tf.RaggedTensor, weights: tf.RaggedTensor | None
    ) -> tf.Tensor | tf.RaggedTensor:
        if self.combiner is None:
            return ids.with_flat_values(self.rows(ids.flat_values))
        if weights is not None:
            same = [
                tf.debugging.assert_equal(
                    tf.cast(ours, tf.int64),
                    tf.cast(theirs, tf.int64),
                    f"`weights` of {self.name!r} must have the row lengths of `ids`.",
                )
                for ours, theirs in zip(
                    ids.nested_row_splits, weights.nested_row_splits, strict=True
                )
            ]
            weights = weights.with_flat_values(arguments.after(weights.flat_values, *same))
        flat_weights = None if weights is None else weights.flat_values
        if ids.flat_values.shape.rank != 1:  # the innermost axis is uniform
            return ids.with_flat_values(self._pool_lines(ids.flat_values, flat_weights))
        splits = ids.nested_row_splits
        innermost = tf.RaggedTensor.from_row_splits(ids.flat_values, splits[-1], validate=False)
        pooled = self._pool_segments(
            ids.flat_values, flat_weights, innermost.value_rowids(), innermost.nrows()
        )
        if len(splits) == 1:
            return pooled
        return tf.RaggedTensor.from_nested_row_splits(pooled, splits[:-1], validate=False)

    # Sparse: absent places are zeros, and the bags are the lines along the last axis.

    def _sparse(self, ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> tf.Tensor:
        shape = ids.dense_shape
        static_shape = ids.shape
        if self.combiner is None:
            rows = tf.scatter_nd(
                ids.indices, self.rows(ids.values), tf.concat([shape, [self.dim]], 0)
            )
            return tf.ensure_shape(rows, static_shape.concatenate([self.dim]))
        flat_weights = None
        if weights is not None:
            same = tf.debugging.assert_equal(
                ids.indices,
                weights.indices,
                f"`weights` of {self.name!r} must have the indices of `ids`.",
            )
            flat_weights = arguments.after(weights.values, same)
        inside = tf.debugging.assert_equal(
            tf.reduce_all((ids.indices >= 0) & (ids.indices < shape)),
            True,
            f"`ids` of {self.name!r} must have indices within their dense_shape.",
        )
        lines = arguments.after(shape[:-1], inside)
        strides = tf.math.cumprod(lines, exclusive=True, reverse=True)
        bags = tf.reduce_sum(ids.indices[:, :-1] * strides, axis=-1)
        pooled = self._pool_segments(ids.values, flat_weights, bags, tf.reduce_prod(lines))
        pooled = tf.reshape(pooled, tf.concat([lines, [self.dim]], 0))
        return tf.ensure_shape(pooled, static_shape[:-1].concatenate([self.dim]))

    def _pool_segments(
        self, ids: tf.Tensor, weights: tf.Tensor | None, bags: tf.Tensor, count: tf.Tensor
    ) -> tf.Tensor:
        """Pools flat ids by the number of the bag of each; [count, dim]."""
        rows = _summable(self.rows(ids))
        factors = self._factors(ids, weights, rows.dtype)
        if factors is not None:
            rows *= factors[:, tf.newaxis]
        total = tf.math.unsorted_segment_sum(rows, bags, count)
        return self._divide(
            total, factors, lambda terms: tf.math.unsorted_segment_sum(terms, bags, count)
        )

    def _factors(
        self, ids: tf.Tensor, weights: tf.Tensor | None, dtype: tf.DType
    ) -> tf.Tensor | None:
        """What each row is multiplied by, ids.shape; None where it is 1 and never asked for."""
        if weights is None and self.combiner == "sum":
            return None  # rows of padding are zeros already
        factors = tf.ones_like(ids, dtype) if weights is None else tf.cast(weights, dtype)
        if self.is_padding is None:
            return factors
        return tf.where(self.is_padding(ids), tf.zeros([], dtype), factors)

    def _divide(
        self,
        total: tf.Tensor,
        factors: tf.Tensor | None,
        sum_bags: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """The pooled rows from their sums; an empty bag is 0."""
        if self.combiner == "mean":
            divisor = sum_bags(factors)
        elif self.combiner == "sqrtn":
            divisor = tf.sqrt(sum_bags(tf.square(factors)))
        else:
            return total
        return tf.math.divide_no_nan(total, divisor[..., tf.newaxis])


def _summable(rows: tf.Tensor) -> tf.Tensor:
    """Rows in a dtype in which sums of many keep their digits."""
    return tf.cast(rows, tf.float32) if rows.dtype in (tf.float16, tf.bfloat16) else rows

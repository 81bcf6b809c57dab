# SPDX-License-Identifier: Apache-2.0
"""Lookup of ids in any container: a row for each id, or rows pooled over the last axis.

A *bag* is the ids along the last axis: a row of a dense tensor, an innermost list of a ragged
tensor, or a row of a sparse tensor. Ids are already keys here, in a tf.Tensor, tf.RaggedTensor or
tf.SparseTensor. The table pools, in float32 if rows are of half precision. This module splits each
container into keys and the boundaries of bags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import pooling_ops


@dataclasses.dataclass(frozen=True)
class Embedder:
    """Looks ids up and pools the rows.

    Attributes:
        rows: Takes keys of any shape and returns rows, keys.shape + [dim]; zeros for padding.
        pooled: Takes keys, the bags that they form, and None or the weight of each key. Returns a
            row for each bag.
        combiner: None, "sum", "mean" or "sqrtn".
        name: The layer, for messages.
    """

    rows: Callable[[tf.Tensor], tf.Tensor]
    pooled: Callable[[tf.Tensor, pooling_ops.Bags, tf.Tensor | None], tf.Tensor]
    dim: int
    combiner: str | None
    name: str

    def __call__(self, ids: Any, weights: Any = None) -> tf.Tensor | tf.RaggedTensor:
        """Returns the rows of `ids`.

        Args:
            weights: None, or the weight of each id, in the same container.

        Returns:
            ids.shape + [dim], ragged if `ids` is. A combiner removes the last axis of `ids`, and
            the result is ragged only if a remaining axis is ragged.

        Raises:
            ValueError: If `weights` does not match `ids`, or a combiner has fewer than two axes.
        """
        if weights is not None and not isinstance(weights, (tf.SparseTensor, tf.RaggedTensor)):
            weights = validation.as_tensor(weights, "weights", self.name)
        if self.combiner is not None:
            ids = self._with_two_axes(ids)
        self._check(ids, weights)
        if isinstance(ids, tf.SparseTensor):
            return self._sparse(ids, weights)
        if isinstance(ids, tf.RaggedTensor):
            return self._ragged(ids, weights)
        if self.combiner is None:
            return self.rows(ids)
        return self._pool_lines(ids, weights)

    def _with_two_axes(self, ids: Any) -> Any:
        """Returns ids with at least two axes. An unknown rank is checked at run time."""
        if ids.shape.rank is not None:
            check_axes(ids.shape, self.combiner, self.name)
            return ids
        is_sparse = isinstance(ids, tf.SparseTensor)
        rank = tf.size(ids.dense_shape) if is_sparse else tf.rank(ids)
        check = tf.debugging.assert_greater_equal(
            rank, 2, _too_few_axes(ids.shape, self.combiner, self.name)
        )
        if not is_sparse:
            return validation.with_dependencies(ids, check)
        values = validation.with_dependencies(ids.values, check)
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)

    def _check(self, ids: Any, weights: Any) -> None:
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

    def _flat_weights(
        self,
        ids: tf.SparseTensor | tf.RaggedTensor,
        weights: tf.SparseTensor | tf.RaggedTensor | None,
    ) -> tf.Tensor | None:
        return validation.flat_weights(ids, weights, "`ids`", f"`weights` of {self.name!r}")

    # Dense: bags lie along the last axis.

    def _pool_lines(self, ids: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        if weights is not None and not (
            ids.shape.is_fully_defined() and weights.shape.is_fully_defined()
        ):
            same = tf.debugging.assert_equal(
                tf.shape(weights),
                tf.shape(ids),
                f"`weights` of {self.name!r} must have the shape of `ids`.",
            )
            weights = validation.with_dependencies(weights, same)
        return self.pooled(ids, (), weights)

    # Ragged.

    def _ragged(
        self, ids: tf.RaggedTensor, weights: tf.RaggedTensor | None
    ) -> tf.Tensor | tf.RaggedTensor:
        if self.combiner is None:
            return ids.with_flat_values(self.rows(ids.flat_values))
        splits = ids.nested_row_splits
        flat_weights = self._flat_weights(ids, weights)
        if ids.flat_values.shape.rank != 1:  # the innermost axis is uniform
            return ids.with_flat_values(self._pool_lines(ids.flat_values, flat_weights))
        pooled = self.pooled(ids.flat_values, (splits[-1],), flat_weights)
        if len(splits) == 1:
            return pooled
        return tf.RaggedTensor.from_nested_row_splits(pooled, splits[:-1], validate=False)

    # Sparse: absent positions are zeros, and bags lie along the last axis.

    def _sparse(self, ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> tf.Tensor:
        if self.combiner is None:
            rows = tf.scatter_nd(
                ids.indices, self.rows(ids.values), tf.concat([ids.dense_shape, [self.dim]], 0)
            )
            return tf.ensure_shape(rows, ids.shape.concatenate([self.dim]))
        flat_weights = self._flat_weights(ids, weights)
        pooled = self.pooled(ids.values, (ids.indices, ids.dense_shape), flat_weights)
        return tf.ensure_shape(pooled, ids.shape[:-1].concatenate([self.dim]))


def check_axes(shape: Any, combiner: str | None, owner: str) -> None:
    """Refuses ids without an axis of examples: [batch] would be pooled over the whole batch.

    Raises:
        ValueError: If there is a combiner, and fewer than two axes.
    """
    if combiner is not None and len(shape) < 2:
        raise ValueError(_too_few_axes(tuple(shape), combiner, owner))


def _too_few_axes(shape: Any, combiner: str | None, owner: str) -> str:
    return (
        f"`ids` of {owner!r} must have the shape [batch, ids], or more axes, for a `combiner`, "
        "which pools the last one. For one id an example, give no `combiner`; for a single bag of "
        f"ids, give ids[tf.newaxis]. Received: ids.shape={shape}, combiner={combiner!r}"
    )

# SPDX-License-Identifier: Apache-2.0
"""Lookups of sparse and ragged ids that return one row for each bag.

Both containers are converted to `_Bagged`: ids, and the bag number of each id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import pooling_ops
from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.table.lookups import Lookup
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.lookup import (
    Params,
    clipped,
    norm_of_lookup,
    table_and_anchor,
    token_of,
)


def embedding_lookup_sparse(
    params: Params,
    sp_ids: Any,
    sp_weights: Any = None,
    *,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
    max_norm: float | None = None,
    training: bool = False,
) -> tf.Tensor:
    """Looks up the rows of sparse ids and pools all axes except the first, differentiably.

    Differences from tf.nn.embedding_lookup_sparse: empty rows of ids give zeros anywhere, ids may
    be in any order, and no array with a row for each id is made.

    Args:
        params: As in `tf_embed.embedding_lookup`.
        sp_ids: A tf.SparseTensor or tf.RaggedTensor of at least two axes, [d0, ...]; integers or
            strings.
        sp_weights: None, or the weight of each id, with the indices of `sp_ids`. They are cast to
            float64 if rows are, otherwise to float32. Their gradient is computed from the rows that
            were looked up, even if rows change before the backward pass.
        name: Name of the operation.
        combiner: "sum" of the rows times their weights; "mean", the sum divided by the sum of the
            weights; "sqrtn", the sum divided by the root of the sum of squared weights. None:
            "mean".
        max_norm: As in `tf_embed.embedding_lookup`; rows are scaled down before they are pooled.
        training: As in `tf_embed.embedding_lookup`.

    Returns:
        [d0, dim], float64 if rows are, otherwise float32.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If the combiner is unknown, or shapes do not match.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> v = tf_embed.Variable(dim=1)
        >>> v.upsert([1, 2, 3], [[1.0], [2.0], [3.0]])
        >>> ids = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 3], tf.int64), [2, 0, 1])
        >>> tf_embed.embedding_lookup_sparse(v, ids.to_sparse(), None).numpy().tolist()
        [[1.5], [0.0], [3.0]]
        >>> weights = ids.with_values([1.0, 3.0, 5.0])
        >>> tf_embed.embedding_lookup_sparse(v, ids, weights, combiner="sum").numpy().tolist()
        [[7.0], [0.0], [15.0]]
    """
    table, anchor = table_and_anchor(params)
    max_norm = norm_of_lookup(params, max_norm)
    with validation.name_scope(name, "embedding_lookup_sparse"):
        bagged = _bagged(sp_ids, sp_weights, table, ("sp_ids", "sp_weights"), of_first_axis=True)
        combiner = _combiner_of(combiner)
        pooled = _pool(table, anchor, bagged, combiner, max_norm, training)
        # The pooled lookup of a sparse matrix does not know the static number of bags.
        return tf.ensure_shape(pooled, [sp_ids.shape[0], table.options.dim])


def safe_embedding_lookup_sparse(
    embedding_weights: Params,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str | None = "mean",
    default_id: int | str | None = None,
    *,
    name: str | None = "safe_embedding_lookup_sparse",
    max_norm: float | None = None,
    training: bool = False,
) -> Any:
    """Looks up the rows of sparse ids and pools the last axis, differentiably.

    The same as tf.nn.safe_embedding_lookup_sparse, except that every id is valid, also a negative
    id. Ids whose weight is not positive are ignored, unless the combiner is "sum". A bag without
    ids has the row of `default_id`, or zeros.

    Args:
        embedding_weights: `params` of `tf_embed.embedding_lookup`.
        sparse_ids: A tf.SparseTensor or tf.RaggedTensor [d0, ..., dn], n >= 1; integers or strings.
        sparse_weights: None, or the weight of each id, as in `tf_embed.embedding_lookup_sparse`.
        combiner: As in `tf_embed.embedding_lookup_sparse`.
        default_id: The id that an empty bag has, with the weight 1. Default: none, and the bag
            gives zeros and trains nothing.
        name: Name of the operation.
        max_norm: As in `tf_embed.embedding_lookup`; rows are scaled down before they are pooled.
        training: As in `tf_embed.embedding_lookup`.

    Returns:
        [d0, ..., dn-1, dim], float64 if rows are, otherwise float32; ragged if a remaining axis is
        ragged.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If the combiner is unknown, or shapes do not match.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> v = tf_embed.Variable(dim=1)
        >>> v.upsert([1, 2, 3], [[1.0], [2.0], [3.0]])
        >>> ids = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2], tf.int64), [2, 0])
        >>> tf_embed.safe_embedding_lookup_sparse(v, ids, default_id=3).numpy().tolist()
        [[1.5], [3.0]]
    """
    table, anchor = table_and_anchor(embedding_weights, "embedding_weights")
    max_norm = norm_of_lookup(embedding_weights, max_norm)
    with validation.name_scope(name, "safe_embedding_lookup_sparse"):
        bagged = _bagged(sparse_ids, sparse_weights, table, ("sparse_ids", "sparse_weights"))
        combiner = _combiner_of(combiner)
        if combiner != "sum":
            bagged = bagged.with_positive_weights()
        if default_id is not None:
            default_key = validation.keys_of(
                default_id, table.options.key_dtype, "default_id", table.options.name
            )
            if default_key.shape.rank != 0:
                raise ValueError(
                    f"`default_id` must be one id. "
                    f"Received: default_id={validation.shown(default_id)}"
                )
            bagged = bagged.filled(default_key)
        return bagged.unflatten(_pool(table, anchor, bagged, combiner, max_norm, training))


def _combiner_of(combiner: str | None) -> str:
    """The argument `combiner`.

    Raises:
        ValueError: If it is unknown.
    """
    return validation.one_of(combiner, validation.COMBINERS, "combiner", or_none=True) or "mean"


@dataclasses.dataclass(frozen=True)
class _Bagged:
    """Ids and their bags.

    Attributes:
        keys: [n].
        bags: int64 [n], the bag of each id.
        num_bags: int64 scalar.
        weights: None, or [n].
        unflatten: Takes rows [num_bags, dim] and restores the remaining axes of the ids.
    """

    keys: tf.Tensor
    bags: tf.Tensor
    num_bags: tf.Tensor
    weights: tf.Tensor | None
    unflatten: Callable[[tf.Tensor], Any]

    def with_positive_weights(self) -> _Bagged:
        """Removes the ids whose weight is not positive."""
        if self.weights is None:
            return self
        places = tf.where(self.weights > 0)[:, 0]
        return dataclasses.replace(
            self,
            keys=tf.gather(self.keys, places),
            bags=tf.gather(self.bags, places),
            weights=tf.gather(self.weights, places),
        )

    def filled(self, key: tf.Tensor) -> _Bagged:
        """Adds a key, of weight 1, to each empty bag."""
        ones = tf.ones_like(self.bags)
        counts = tf.math.unsorted_segment_sum(ones, self.bags, self.num_bags)
        empty = tf.where(tf.equal(counts, 0))[:, 0]
        weights = self.weights
        if weights is not None:
            weights = tf.concat([weights, tf.ones(tf.shape(empty), weights.dtype)], 0)
        return dataclasses.replace(
            self,
            keys=tf.concat([self.keys, tf.fill(tf.shape(empty), key)], 0),
            bags=tf.concat([self.bags, empty], 0),
            weights=weights,
        )


def _bagged(
    ids: Any, weights: Any, table: Table, names: tuple[str, str], *, of_first_axis: bool = False
) -> _Bagged:
    """Checked ids and weights, with a bag for each row along the last axis, or of the first axis.

    Raises:
        TypeError: If the container or the dtype is not supported.
        ValueError: If `ids` has too few axes, or the weights another shape.
    """
    if not isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"`{names[0]}` must be a tf.SparseTensor or tf.RaggedTensor; tf_embed.embedding_lookup "
            f"takes dense ids. Received: {names[0]}={validation.shown(ids)}"
        )
    if weights is not None and type(weights) is not type(ids):
        raise TypeError(
            f"`{names[1]}` must be None or of the kind of `{names[0]}`, {type(ids).__name__}. "
            f"Received: {type(weights).__name__}"
        )
    if ids.shape.rank is None or ids.shape.rank < 2:
        raise ValueError(
            f"`{names[0]}` must have at least two axes. Received: {names[0]}.shape={ids.shape}"
        )
    if isinstance(ids, tf.RaggedTensor) and ids.flat_values.shape.rank != 1:
        raise ValueError(
            f"`{names[0]}` must be ragged along the last axis. Received: {names[0]}.shape="
            f"{ids.shape}"
        )
    # Before anything reads the sizes, because TensorFlow aborts the process at a negative size.
    if isinstance(ids, tf.SparseTensor):
        ids = tf.SparseTensor(*pooling_ops.checked_sparse(ids, f"`{names[0]}`"))
    flat_weights = validation.flat_weights(ids, weights, *(f"`{name}`" for name in names))
    of_container = _of_sparse if isinstance(ids, tf.SparseTensor) else _of_ragged
    bagged = of_container(ids, flat_weights, of_first_axis)
    keys = validation.keys_of(bagged.keys, table.options.key_dtype, names[0], table.options.name)
    weights = bagged.weights
    if weights is not None:
        if not (weights.dtype.is_floating or weights.dtype.is_integer):
            raise TypeError(
                f"`{names[1]}` must be floating or integers. Received: dtype={weights.dtype.name}"
            )
        weights = tf.cast(weights, pooling_ops.compute_dtype(table.options.value_dtype))
    return dataclasses.replace(bagged, keys=keys, weights=weights)


def _of_sparse(ids: tf.SparseTensor, weights: tf.Tensor | None, of_first_axis: bool) -> _Bagged:
    outer = ids.dense_shape[:1] if of_first_axis else ids.dense_shape[:-1]
    # The number of a bag is the sum of its indices, each times its stride in bags.
    strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
    count = 1 if of_first_axis else ids.shape.rank - 1
    bags = tf.reduce_sum(ids.indices[:, :count] * strides, axis=1)
    static = ids.shape[:count]

    def unflatten(rows: tf.Tensor) -> tf.Tensor:
        rows_shape = tf.concat([outer, tf.shape(rows, outer.dtype)[1:]], 0)
        return tf.ensure_shape(tf.reshape(rows, rows_shape), static.concatenate(rows.shape[1:]))

    return _Bagged(ids.values, bags, tf.reduce_prod(outer), weights, unflatten)


def _of_ragged(ids: tf.RaggedTensor, weights: tf.Tensor | None, of_first_axis: bool) -> _Bagged:
    outer_splits = ids.nested_row_splits[:-1]
    if of_first_axis and ids.ragged_rank > 1:
        ids = ids.merge_dims(1, -1)
        outer_splits = ()
    innermost = tf.RaggedTensor.from_row_splits(
        ids.flat_values, ids.nested_row_splits[-1], validate=False
    )

    def unflatten(rows: tf.Tensor) -> Any:
        return tf.RaggedTensor.from_nested_row_splits(rows, outer_splits, validate=False)

    return _Bagged(
        keys=ids.flat_values,
        bags=tf.cast(innermost.value_rowids(), tf.int64),
        num_bags=innermost.nrows(tf.int64),
        weights=weights,
        unflatten=unflatten if outer_splits else tf.identity,
    )


def _pool(
    table: Table,
    anchor: Anchor | None,
    bagged: _Bagged,
    combiner: str,
    max_norm: float | None,
    training: bool,
) -> tf.Tensor:
    """A row for each bag, [num_bags, dim]."""
    token = token_of(table, anchor)
    if max_norm is None:
        # A sparse matrix with a column for each id, so that the ids of a bag need not be adjacent.
        indices = tf.stack([bagged.bags, tf.range(tf.size(bagged.bags, tf.int64))], axis=1)
        shape = tf.stack([bagged.num_bags, tf.size(bagged.bags, tf.int64)])
        pooling = Pooling((indices, shape), bagged.weights, combiner, None)
        return table.look_up(Lookup(table, bagged.keys, training, pooling, token))
    # Each row is clipped before the sum, which the pooled lookup of the table can't do.
    rows = table.look_up(Lookup(table, bagged.keys, training, token=token))
    rows = clipped(tf.cast(rows, pooling_ops.compute_dtype(table.options.value_dtype)), max_norm)
    weights = bagged.weights
    weights = tf.ones_like(rows[:, :1]) if weights is None else weights[:, tf.newaxis]

    def summed(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, bagged.bags, bagged.num_bags)

    sums = summed(rows * weights)
    if combiner == "mean":
        # A bag that is empty, or whose weights add up to 0, gives zeros.
        return tf.math.divide_no_nan(sums, summed(weights))
    if combiner == "sqrtn":
        return tf.math.divide_no_nan(sums, tf.sqrt(summed(tf.square(weights))))
    return sums

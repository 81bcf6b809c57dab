# SPDX-License-Identifier: Apache-2.0
"""Lookups with the arguments of TFRA's `dynamic_embedding`."""

from __future__ import annotations

from typing import Any

from tf_embed import validation
from tf_embed.variable import lookup, sparse_lookup
from tf_embed.variable.lookup import Params, table_and_anchor


def embedding_lookup(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """Looks up rows, differentiably; see `tf_embed.embedding_lookup`.

    Args:
        params: A variable, or a list of one; or a `shadow_ops.ShadowVariable` of it, which then
            receives the gradient.
        ids: As in `tf_embed.embedding_lookup`, and so are all others that are not below.
        partition_strategy: Ignored; accepted for TFRA compatibility. The variable's partitioner
            decides.
        validate_indices: Ignored; accepted for TFRA compatibility. Every id is valid.
        return_trainable: Whether to also return the variable for gradients. Default: False.

    Returns:
        Rows, ids.shape + [dim]. With `return_trainable`, a pair of the rows and the variable's
        anchor, or the ShadowVariable.

    Raises:
        TypeError, ValueError: As in `tf_embed.embedding_lookup`.

    Example:
        >>> from tf_embed import tfra as de
        >>> v = de.Variable(dim=1, initializer=2.0)
        >>> rows, anchor = de.embedding_lookup(v, [5, 6], return_trainable=True)
        >>> rows.numpy().tolist(), anchor is v.anchor
        ([[2.0], [2.0]], True)
    """
    del partition_strategy, validate_indices
    rows = lookup.embedding_lookup(params, ids, name=name, max_norm=max_norm, training=training)
    return _with_anchor(rows, params, return_trainable)


def embedding_lookup_unique(
    params: Params,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """The same as `embedding_lookup`, but looks up equal ids only once.

    Args:
        params: As in `embedding_lookup`, and so are all others.

    Returns:
        As in `embedding_lookup`.

    Raises:
        TypeError, ValueError: As in `embedding_lookup`.

    Example:
        >>> from tf_embed import tfra as de
        >>> v = de.Variable(dim=1, initializer=2.0)
        >>> de.embedding_lookup_unique(v, [[7, 7], [8, 7]])[..., 0].numpy().tolist()
        [[2.0, 2.0], [2.0, 2.0]]
    """
    del partition_strategy, validate_indices
    rows = lookup.embedding_lookup_unique(
        params, ids, name=name, max_norm=max_norm, training=training
    )
    return _with_anchor(rows, params, return_trainable)


def embedding_lookup_sparse(
    params: Params,
    sp_ids: Any,
    sp_weights: Any = None,
    partition_strategy: Any = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """Looks up and pools the rows of sparse ids; see `tf_embed.embedding_lookup_sparse`.

    Args:
        params: As in `tf_embed.embedding_lookup_sparse`, and so are all others that are not below.
        partition_strategy: Ignored; accepted for TFRA compatibility.
        return_trainable: As in `embedding_lookup`.

    Returns:
        [d0, dim], float64 if rows are, otherwise float32; with `return_trainable` a pair.

    Raises:
        TypeError, ValueError: As in `tf_embed.embedding_lookup_sparse`.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import tfra as de
        >>> v = de.Variable(dim=1, initializer=2.0)
        >>> ids = tf.ragged.constant([[1, 2], []], dtype=tf.int64).to_sparse()
        >>> de.embedding_lookup_sparse(v, ids, None, combiner="sum").numpy().tolist()
        [[4.0], [0.0]]
    """
    del partition_strategy
    pooled = sparse_lookup.embedding_lookup_sparse(
        *(params, sp_ids, sp_weights),
        name=name,
        combiner=combiner,
        max_norm=max_norm,
        training=training,
    )
    return _with_anchor(pooled, params, return_trainable)


def safe_embedding_lookup_sparse(
    embedding_weights: Params,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str | None = "mean",
    default_id: int | str | None = None,
    name: str | None = "safe_embedding_lookup_sparse",
    partition_strategy: Any = None,
    max_norm: float | None = None,
    return_trainable: bool = False,
    *,
    training: bool = False,
) -> Any:
    """Looks up and pools sparse ids, bag by bag; see `tf_embed.safe_embedding_lookup_sparse`.

    Args:
        embedding_weights: As in `tf_embed.safe_embedding_lookup_sparse`, and so are all others that
            are not below.
        partition_strategy: Ignored; accepted for TFRA compatibility.
        return_trainable: As in `embedding_lookup`.

    Returns:
        [d0, ..., dn-1, dim], float64 if rows are, otherwise float32; ragged if a remaining axis is
        ragged. With `return_trainable` a pair.

    Raises:
        TypeError, ValueError: As in `tf_embed.safe_embedding_lookup_sparse`.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import tfra as de
        >>> v = de.Variable(dim=1, initializer=2.0)
        >>> ids = tf.ragged.constant([[1, 2], []], dtype=tf.int64).to_sparse()
        >>> de.safe_embedding_lookup_sparse(v, ids, default_id=3).numpy().tolist()
        [[2.0], [2.0]]
    """
    del partition_strategy
    pooled = sparse_lookup.safe_embedding_lookup_sparse(
        *(embedding_weights, sparse_ids, sparse_weights, combiner, default_id),
        name=name,
        max_norm=max_norm,
        training=training,
    )
    return _with_anchor(pooled, embedding_weights, return_trainable)


def _with_anchor(rows: Any, params: Params, return_trainable: Any) -> Any:
    """The result of a lookup: rows, or a pair of rows and the variable for gradients."""
    if not validation.flag(return_trainable, "return_trainable"):
        return rows
    _, anchor = table_and_anchor(params)
    return rows, anchor

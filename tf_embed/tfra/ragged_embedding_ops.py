# SPDX-License-Identifier: Apache-2.0
"""Lookups of ragged ids, as TFRA's `dynamic_embedding.ragged_embedding_ops` has them.

They are `tf_embed.embedding_lookup_sparse` and `tf_embed.safe_embedding_lookup_sparse`, which take
both ragged and sparse ids.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed.variable import sparse_lookup

__all__ = ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: tf.RaggedTensor,
    sp_weights: tf.RaggedTensor | None = None,
    name: str | None = "embedding_lookup_sparse",
    combiner: str | None = "mean",
) -> tf.Tensor:
    """Looks up the rows of ragged ids and pools them; `tf_embed.embedding_lookup_sparse`.

    Args:
        params: A `tf_embed.Variable`.
        sp_ids: Integers or strings, [bags, (ids)].
        sp_weights: None, or the weight of each id, floating or integers, [bags, (ids)].
        name: Name of the operation.
        combiner: "sum", "mean" or "sqrtn"; None: "mean".

    Returns:
        [bags, dim].

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> from tf_embed.tfra import ragged_embedding_ops as ops
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> ids = tf.ragged.constant([[5, 6], []], dtype=tf.int64)
        >>> ops.embedding_lookup_sparse(v, ids, combiner="sum").numpy().tolist()
        [[4.0], [0.0]]
    """
    return sparse_lookup.embedding_lookup_sparse(
        params, sp_ids, sp_weights, name=name, combiner=combiner
    )


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: tf.RaggedTensor,
    sparse_weights: tf.RaggedTensor | None = None,
    combiner: str | None = "mean",
    default_id: int | str | None = None,
    name: str | None = None,
) -> Any:
    """Looks up ragged ids, some of them invalid; `tf_embed.safe_embedding_lookup_sparse`.

    Args:
        embedding_weights: A `tf_embed.Variable`.
        sparse_ids: Integers or strings, [bags, (ids)].
        sparse_weights: None, or the weight of each id, floating or integers, [bags, (ids)].
        combiner: "sum", "mean" or "sqrtn"; None: "mean".
        default_id: None, or the id for a bag without ids.
        name: Name of the operation.

    Returns:
        [bags, dim].

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> from tf_embed.tfra import ragged_embedding_ops as ops
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> ids = tf.ragged.constant([[5, 6], []], dtype=tf.int64)
        >>> ops.safe_embedding_lookup_sparse(v, ids, combiner="sum", default_id=7).numpy().tolist()
        [[4.0], [2.0]]
    """
    return sparse_lookup.safe_embedding_lookup_sparse(
        embedding_weights,
        sparse_ids,
        sparse_weights,
        combiner=combiner,
        default_id=default_id,
        name=name,
    )

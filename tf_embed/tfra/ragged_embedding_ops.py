# SPDX-License-Identifier: Apache-2.0
"""Lookups of ragged ids, as TFRA's `dynamic_embedding.ragged_embedding_ops` has them.

They are `tf_embed.embedding_lookup_sparse` and `tf_embed.safe_embedding_lookup_sparse`, which take
ragged ids as well as sparse ones.
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
    combiner: str = "mean",
) -> tf.Tensor:
    """`tf_embed.embedding_lookup_sparse`."""
    return sparse_lookup.embedding_lookup_sparse(
        params, sp_ids, sp_weights, name=name, combiner=combiner
    )


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: tf.RaggedTensor,
    sparse_weights: tf.RaggedTensor | None = None,
    combiner: str = "mean",
    default_id: int | str | None = None,
    name: str | None = None,
) -> Any:
    """`tf_embed.safe_embedding_lookup_sparse`."""
    return sparse_lookup.safe_embedding_lookup_sparse(
        embedding_weights,
        sparse_ids,
        sparse_weights,
        combiner=combiner,
        default_id=default_id,
        name=name,
    )

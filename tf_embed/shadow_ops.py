"""Lookups through a `ShadowVariable`, as TFRA's `dynamic_embedding.shadow_ops` has them.

They are `tf_embed.embedding_lookup` with the gradient going to the shadow variable.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import arguments, lookup
from tf_embed.shadow_variable import ShadowVariable

__all__ = ["ShadowVariable", "embedding_lookup", "embedding_lookup_unique"]


def embedding_lookup(
    shadow: ShadowVariable,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
) -> tf.Tensor:
    """Looks up rows through a shadow variable, differentiably.

    Args:
        shadow: The shadow variable. Its `max_norm` holds.
        ids: Integers, or strings, of any shape.
        partition_strategy: Accepted for the sake of old code.
        name: Name of the operation.
        validate_indices: Accepted for the sake of old code.

    Returns:
        Rows, ids.shape + [dim]. Nothing is inserted.

    Raises:
        TypeError: `shadow` is no ShadowVariable, or `ids` are of a wrong dtype.
    """
    del partition_strategy, validate_indices
    return lookup.embedding_lookup(
        _checked(shadow), ids, name=name or "shadow_embedding_lookup", max_norm=shadow.max_norm
    )


def embedding_lookup_unique(
    shadow: ShadowVariable,
    ids: Any,
    embedding_size: int,
    with_unique: bool = True,
    name: str | None = None,
) -> Any:
    """Looks up rows of dense or ragged ids through a shadow variable.

    Args:
        shadow: The shadow variable. Its `max_norm` holds.
        ids: Integers, or strings: a tensor of any shape, or a tf.RaggedTensor.
        embedding_size: The variable's dim.
        with_unique: Whether equal ids are looked up once. The result is the same, and so is the
            gradient.
        name: Name of the operation.

    Returns:
        Rows, ids.shape + [dim], ragged where the ids are.

    Raises:
        TypeError: `shadow` is no ShadowVariable, or `ids` are of a wrong dtype.
        ValueError: `embedding_size` is not the variable's dim.
    """
    dim = _checked(shadow).params.dim
    if arguments.positive_int(embedding_size, "embedding_size") != dim:
        raise ValueError(
            f"`embedding_size` must be the dim of {shadow.params.name!r}, {dim}. Received: "
            f"embedding_size={embedding_size}"
        )
    look_up = lookup.embedding_lookup_unique if with_unique else lookup.embedding_lookup
    flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
    rows = look_up(shadow, flat, name=name, max_norm=shadow.max_norm)
    return ids.with_flat_values(rows) if isinstance(ids, tf.RaggedTensor) else rows


def _checked(shadow: Any) -> ShadowVariable:
    if not isinstance(shadow, ShadowVariable):
        raise TypeError(
            f"`shadow` must be a tf_embed.shadow_ops.ShadowVariable. Received: shadow={shadow!r}"
        )
    return shadow

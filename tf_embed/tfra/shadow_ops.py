# SPDX-License-Identifier: Apache-2.0
"""Lookups through a `ShadowVariable`, as TFRA's `dynamic_embedding.shadow_ops` has them.

They are `tf_embed.embedding_lookup`, but the gradient goes to the shadow variable.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.tfra.shadow_variable import ShadowVariable
from tf_embed.variable import lookup
from tf_embed.variable.anchor import Anchor

__all__ = ["ShadowVariable", "embedding_lookup", "embedding_lookup_unique"]


def embedding_lookup(
    shadow: Anchor,
    ids: Any,
    partition_strategy: Any = None,
    name: str | None = None,
    validate_indices: Any = None,
) -> tf.Tensor:
    """Looks up rows through a shadow variable, differentiably.

    Args:
        shadow: A ShadowVariable, with its `max_norm`, or the `anchor` of a variable.
        ids: Integers, or strings, of any shape.
        partition_strategy: Ignored; accepted for TFRA compatibility.
        name: Name of the operation.
        validate_indices: Ignored; accepted for TFRA compatibility.

    Returns:
        Rows, ids.shape + [dim]. Nothing is inserted.

    Raises:
        TypeError: If `shadow` is neither of the two, or `ids` have a wrong dtype.

    Example:
        >>> import tf_embed
        >>> from tf_embed.tfra import shadow_ops
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> shadow_ops.embedding_lookup(shadow_ops.ShadowVariable(v), [5, 6]).numpy().tolist()
        [[2.0], [2.0]]
    """
    del partition_strategy, validate_indices
    name = "shadow_embedding_lookup" if name is None else name
    _check(shadow)
    return lookup.embedding_lookup(shadow, ids, name=name)


def embedding_lookup_unique(
    shadow: Anchor,
    ids: Any,
    embedding_size: int,
    with_unique: bool = True,
    name: str | None = None,
) -> Any:
    """Looks up rows of dense or ragged ids through a shadow variable.

    Args:
        shadow: A ShadowVariable, with its `max_norm`, or the `anchor` of a variable.
        ids: Integers, or strings: a tensor of any shape, or a tf.RaggedTensor.
        embedding_size: The variable's dim.
        with_unique: Whether equal ids are looked up once. The result is the same, and so is the
            gradient.
        name: Name of the operation.

    Returns:
        Rows, ids.shape + [dim], ragged if the ids are.

    Raises:
        TypeError: If `shadow` is neither of the two, or `ids` have a wrong dtype.
        ValueError: If `embedding_size` is not the variable's dim.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> from tf_embed.tfra import shadow_ops
        >>> v = tf_embed.Variable(dim=1, initializer=2.0)
        >>> ids = tf.ragged.constant([[5, 6], [5]], dtype=tf.int64)
        >>> shadow_ops.embedding_lookup_unique(shadow_ops.ShadowVariable(v), ids, 1).to_list()
        [[[2.0], [2.0]], [[2.0]]]
    """
    _check(shadow)
    options = shadow.table.options
    if validation.int_in(embedding_size, "embedding_size") != options.dim:
        raise ValueError(
            f"`embedding_size` must be the dim of {options.name!r}, {options.dim}. Received: "
            f"embedding_size={embedding_size}"
        )
    with_unique = validation.flag(with_unique, "with_unique")
    look_up = lookup.embedding_lookup_unique if with_unique else lookup.embedding_lookup
    flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
    rows = look_up(shadow, flat, name=name)
    return ids.with_flat_values(rows) if isinstance(ids, tf.RaggedTensor) else rows


def _check(shadow: Any) -> None:
    """Checks the argument `shadow` of a lookup.

    Raises:
        TypeError: If `shadow` is not an anchor.
    """
    if not isinstance(shadow, Anchor):
        raise TypeError(
            f"`shadow` must be a tf_embed.tfra.shadow_ops.ShadowVariable. "
            f"Received: shadow={validation.shown(shadow)}"
        )

# SPDX-License-Identifier: Apache-2.0
"""`DynamicEmbeddingOptimizer`: makes tf_embed's optimizer, from TFRA's arguments."""

from __future__ import annotations

from typing import Any

from tf_embed import optimizers, validation


def DynamicEmbeddingOptimizer(  # noqa: N802  a function in TFRA too
    keras_optimizer: Any,
    bp_v2: bool = False,
    synchronous: bool = False,
    name: str | None = None,
) -> optimizers.DynamicEmbeddingOptimizer:
    """Makes a `tf_embed.DynamicEmbeddingOptimizer`, which lets a Keras optimizer train tables.

    Args:
        keras_optimizer: A Keras optimizer or its name.
        bp_v2: Whether other optimizers train the tables too, such as one in each thread; the
            `share_slots` of `tf_embed.DynamicEmbeddingOptimizer`.
        synchronous: Ignored; accepted for TFRA compatibility.
        name: Name of the optimizer.

    Returns:
        The optimizer.

    Raises:
        TypeError: If it is not a Keras optimizer, or a flag is not a bool.
        ValueError: If the optimizer, or a pair of its options, can't train tables.

    Example:
        >>> import keras
        >>> from tf_embed import tfra as de
        >>> optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(), bp_v2=True)
        >>> optimizer.share_slots
        True
    """
    validation.flag(synchronous, "synchronous")
    return optimizers.DynamicEmbeddingOptimizer(
        keras_optimizer, share_slots=validation.flag(bp_v2, "bp_v2"), name=name
    )

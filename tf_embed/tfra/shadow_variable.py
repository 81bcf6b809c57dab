# SPDX-License-Identifier: Apache-2.0
"""`ShadowVariable`: TFRA's trainable stand-in for a variable, for code written for TFRA."""

from __future__ import annotations

from typing import Any

from tf_embed import validation
from tf_embed.variable.anchor import ExtraAnchor
from tf_embed.variable.lookup import norm_of
from tf_embed.variable.variable import Variable


class ShadowVariable(ExtraAnchor):
    """Stands for a `tf_embed.Variable` in lookups, on a tape and in an optimizer's var_list.

    TFRA's class holds the rows of the last lookup. This class holds nothing, so it may be looked up
    many times in a step, in several graphs and threads, and its shape stays (0, dim). Each shadow
    variable of a variable has its own gradient; `tf_embed.DynamicEmbeddingOptimizer` combines them
    into one step. A Keras layer lists a shadow variable that is its attribute in
    `trainable_variables`.

    Args:
        params: The variable.
        name: Name; "/" becomes "_". Give each shadow its own name: `trainable_store` of the
            variable has only the last shadow of a name.
        max_norm: None, or the L2 norm to which lookups through it scale down longer rows; see
            `tf_embed.embedding_lookup`.
        trainable: Whether lookups through it have gradients.
        distribute_strategy: Ignored; accepted for TFRA compatibility.
        **kwargs: `ids`, `exists` and `model_mode`. Ignored; accepted for TFRA compatibility.

    Raises:
        TypeError: If `params` is not a variable, or an argument is unknown.

    Example:
        >>> import keras, tensorflow as tf, tf_embed
        >>> v = tf_embed.Variable(dim=2)
        >>> shadow = tf_embed.tfra.shadow_ops.ShadowVariable(v, name="user")
        >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        >>> @tf.function
        ... def step(ids):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_sum(tf_embed.tfra.shadow_ops.embedding_lookup(shadow, ids))
        ...     optimizer.apply_gradients(zip(tape.gradient(loss, [shadow]), [shadow]))
        >>> step(tf.constant([3, 4, 3], tf.int64))
        >>> v.lookup([3, 4]).numpy().tolist()
        [[-2.0, -2.0], [-1.0, -1.0]]
    """

    def __init__(
        self,
        params: Variable,
        name: str = "ShadowVariable",
        max_norm: float | None = None,
        trainable: bool = True,
        distribute_strategy: Any = None,
        **kwargs: Any,
    ) -> None:
        del distribute_strategy
        unknown = set(kwargs) - {"ids", "exists", "model_mode"}
        if unknown:
            raise TypeError(f"ShadowVariable has no argument `{min(unknown)}`.")
        if not isinstance(params, Variable):
            raise TypeError(
                f"`params` must be a tf_embed.Variable. Received: params={validation.shown(params)}"
            )
        is_trained = validation.flag(trainable, "trainable")
        max_norm = norm_of(max_norm)
        super().__init__(
            params.table,
            params.anchor if is_trained else None,
            params.checkpoint,
            validation.name_of(name),
        )
        self.params = params
        self.max_norm = max_norm

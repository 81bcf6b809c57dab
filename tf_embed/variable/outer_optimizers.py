# SPDX-License-Identifier: Apache-2.0
"""Refuses Keras optimizers that would skip tables in a part of their work."""

from __future__ import annotations

import keras

from tf_embed import callers

_OPTIONS = ("loss_scale_factor", "gradient_accumulation_steps", "use_ema")


def check_beside_own(optimizer: keras.optimizers.Optimizer, table_name: str) -> None:
    """Refuses a model's optimizer if it can't be beside a table that has its own.

    Raises:
        ValueError: If its options would reach dense variables only.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            f"{optimizer.name!r} can't take its loss scale off the gradients of {table_name!r}, a "
            "dynamic table of its own optimizer. model.compile and load_model put a "
            "LossScaleOptimizer around the optimizer of a mixed_float16 model: give it "
            "tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), "
            "or use load_model(..., compile=False) and compile(..., auto_scale_loss=False)."
        )
    for option in _OPTIONS:
        if value := getattr(optimizer, option, None):
            raise ValueError(
                f"The optimizer {optimizer.name!r} must not use {option} in a model with a "
                f"dynamic table of its own optimizer, {table_name!r}: Keras applies it to dense "
                f"variables only. Received: {option}={value!r}"
            )


def check_around(wrapper: keras.optimizers.Optimizer) -> None:
    """Refuses a caller that scales the loss around an optimizer of tables.

    Raises:
        ValueError: If a keras.optimizers.LossScaleOptimizer calls it.
    """
    for outer in callers.optimizers():
        if outer is not wrapper and isinstance(outer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                f"{wrapper.name!r} must not be in a LossScaleOptimizer, as model.compile puts it "
                "if the dtype policy is mixed_float16: compile with "
                "tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.LossScaleOptimizer("
                f"optimizer)), or with auto_scale_loss=False. Received: {outer.name!r}"
            )

# SPDX-License-Identifier: Apache-2.0
"""`own_optimizer`: the copy of an optimizer that trains a single table."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import keras
import tensorflow as tf

from tf_embed.optimizers.row_optimizer import config_of, learning_rate_is_number
from tf_embed.optimizers.rules import fused_rule, optimizer_of
from tf_embed.optimizers.trainer import check_optimizer, in_own_thread


def own_optimizer(identifier: Any) -> keras.optimizers.Optimizer:
    """A copy of an optimizer, or the optimizer of that name, for a single table.

    Raises:
        TypeError: If it is not a Keras optimizer.
        ValueError: If it can't train a table, has no config, or has options that need the model's
            optimizer.
    """
    # A layer may be made in the `build` of another layer, which Keras calls symbolically.
    if tf.executing_eagerly():
        return _copy_of(identifier)
    return in_own_thread(lambda: _copy_of(identifier, is_symbolic=True))


def _copy_of(identifier: Any, is_symbolic: bool = False) -> keras.optimizers.Optimizer:
    optimizer = optimizer_of(identifier)
    check_optimizer(optimizer)
    for option in ("use_ema", "loss_scale_factor"):
        value = getattr(optimizer, option)
        if value:
            raise ValueError(
                f"A table's own optimizer must not have `{option}`, which takes the model's: wrap "
                "the model's optimizer, tf_embed.DynamicEmbeddingOptimizer(...). Received: "
                f"{type(optimizer).__name__}({option}={value!r})"
            )
    try:
        config = config_of(optimizer)
    except ValueError as error:
        if not is_symbolic or optimizer is not identifier:
            raise
        raise ValueError(
            "`optimizer` must have values. Keras calls `build` of layers symbolically, and the "
            "variables of an optimizer that is made there have none: make it in `__init__`, or "
            "give its name or config. Received: optimizer="
            f"{type(optimizer).__name__}({optimizer.name!r})"
        ) from error
    if not learning_rate_is_number(config):
        rate = config["learning_rate"]
        if rate.get("class_name") in ("function", "__lambda__"):
            # The function itself, so that files name it. `learning_rate` would call it, and Keras
            # finds only registered functions from the config.
            config["learning_rate"] = optimizer._learning_rate
    # The op of a step takes its numbers on the host. A rule outside of the table takes them where
    # the rows are.
    is_fused = fused_rule(optimizer) is not None
    with tf.device("/CPU:0") if is_fused else contextlib.nullcontext():
        copied = type(optimizer).from_config(config)
    # `exclude_from_weight_decay` is public in Keras, but its result is not, and no config has it.
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, copy.copy(value))
    return copied

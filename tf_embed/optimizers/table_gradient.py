# SPDX-License-Identifier: Apache-2.0
"""The gradients of several tables in one step of their optimizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.optimizers import gradients as row_gradients
from tf_embed.optimizers.steps import TableGradient
from tf_embed.variable.anchor import Anchor


def clip_together(
    tables: list[TableGradient], dense_grads: list[Any], scale: Any, largest: float
) -> tuple[list[TableGradient], list[Any]]:
    """Clips gradients by their global norm, except those of tables with their own optimizer.

    The optimizer of dense variables then clips only by the norm of the dense gradients, which is
    within the bound already.

    Args:
        dense_grads: The gradients of dense variables, with None for a missing gradient.
        scale: The factor of the loss.

    Returns:
        The gradients of tables, summed and without the loss scale, and the dense gradients.
    """
    summed = [table if table.is_own else _summed(table, scale) for table in tables]
    squares = row_gradients.sum_of_squares((one for one in dense_grads if one is not None), scale)
    squares += row_gradients.sum_of_squares(table.values for table in summed if not table.is_own)
    factor = row_gradients.norm_factor(squares, largest)
    tables = [
        table
        if table.is_own
        else dataclasses.replace(table, values=row_gradients.scaled(table.values, factor))
        for table in summed
    ]
    return tables, [
        None if one is None else row_gradients.scaled(one, factor) for one in dense_grads
    ]


def _summed(gradient: TableGradient, scale: Any) -> TableGradient:
    """The gradient with equal keys summed, and without the loss scale."""
    keys, values = gradient.trainer.sums(gradient.keys, gradient.values, scale)
    return dataclasses.replace(gradient, keys=keys, values=values, is_summed=True)


def each_anchor_once(grads: list[Any], variables: list[Any]) -> list[tuple[Any, Any]]:
    """Returns pairs of gradients and variables, without repetitions of an anchor's gradient.

    Raises:
        ValueError: If an anchor has two gradients, and neither is known to include the other.
    """
    pairs = []
    gradient_of: dict[int, Any] = {}
    for gradient, variable in zip(grads, variables, strict=True):
        if isinstance(variable, Anchor):
            if id(variable) not in gradient_of:
                gradient_of[id(variable)] = gradient
            elif gradient_of[id(variable)] is gradient:
                continue
            else:
                raise ValueError(
                    f"{variable.table.options.name!r} must stand once in `trainable_variables`, "
                    "whatever its lookups are called: its gradient is that of all of them. "
                    "Received: two gradients for it"
                )
        pairs.append((gradient, variable))
    return pairs


def check_scale(
    gradients: list[TableGradient], optimizer: keras.optimizers.Optimizer
) -> list[TableGradient]:
    """Refuses a scaled loss if a lookup clips gradients, which still have the scale.

    Returns:
        The gradients. If a table is frozen, a clipped gradient raises the error in a step that runs
        after the table is unfrozen.

    Raises:
        ValueError: If there are both, and the table is not frozen.
    """
    is_outer = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not is_outer and not optimizer.loss_scale_factor:
        return gradients
    return [
        _while_frozen(one, optimizer) if one.anchor.clips_gradient else one for one in gradients
    ]


def _while_frozen(gradient: TableGradient, optimizer: keras.optimizers.Optimizer) -> TableGradient:
    """A gradient that was clipped with the scale, which only a frozen table may have."""
    anchor = gradient.anchor
    refusal = (
        f"`gradient_clipping` of {anchor.table_name!r} must be False if the loss is scaled, "
        "because the lookup would clip the scaled gradient. Received: gradient_clipping=True, "
        f"{type(optimizer).__name__}(loss_scale_factor={optimizer.loss_scale_factor!r})"
    )
    if not anchor.frozen:
        raise ValueError(refusal)
    # A step that is traced now may run after the table is unfrozen.
    check = tf.debugging.assert_equal(anchor.is_trained, False, refusal)
    values = validation.with_dependencies(gradient.values, check)
    return dataclasses.replace(gradient, values=values)


def one_for_each_table(gradients: list[TableGradient]) -> list[TableGradient]:
    """Joins the gradients of each table's anchors, so that the table makes one step.

    The tables are in order of creation, in any graph. So steps of several optimizers that take
    turns on some tables never wait for each other in a circle.
    """
    by_table: dict[int, TableGradient] = {}
    for gradient in gradients:
        first = by_table.setdefault(id(gradient.anchor.table), gradient)
        if first is not gradient:
            by_table[id(gradient.anchor.table)] = dataclasses.replace(
                first,
                keys=tf.concat([first.keys, gradient.keys], 0),
                values=tf.concat([first.values, gradient.values], 0),
            )
    return sorted(by_table.values(), key=lambda one: one.anchor.table.number)

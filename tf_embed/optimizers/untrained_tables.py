# SPDX-License-Identifier: Apache-2.0
"""Warnings about tables that are looked up but not trained, or that have no gradient."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import tensorflow as tf

from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.anchor_tokens import anchors_of_step


class UntrainedTables:
    """The tables that an optimizer warned about. An object, so that Keras does not track them."""

    def __init__(self, optimizer: str) -> None:
        self._optimizer = optimizer
        self._warned: weakref.WeakSet[Table] = weakref.WeakSet()
        self._without_gradient: weakref.WeakSet[Table] = weakref.WeakSet()

    @tf.autograph.experimental.do_not_convert
    def warn(self, variables: list[Any], gradients: list[Any]) -> None:
        """Warns once about each table that the traced step looks up and no optimizer trains.

        Skips frozen tables, and tables that some optimizer has trained or will train. Also warns
        once about each table whose anchors in the step have no gradient, as Keras does for dense
        variables.

        Args:
            variables: The variables that the optimizer trains in this step.
            gradients: The gradient of each of them, or None.
        """
        self._warn_of_no_gradient(variables, gradients)
        trained = {id(one.table) for one in variables if isinstance(one, Anchor)}
        for anchor in anchors_of_step():
            table = anchor.table
            if id(table) in trained or table in self._warned or table.trainers:
                continue
            if anchor.frozen or anchor.own_trainer is not None:
                continue
            self._warned.add(table)
            # Not an error, because a step may omit a table for a good reason: another optimizer,
            # not built yet, may train it, or it may belong to a target network.
            warnings.warn(
                f"Table {anchor.table_name!r} was looked up in a training step, but no optimizer "
                f"has it, so it is not trained. The step's optimizer is {self._optimizer!r}. "
                "A Keras model does not track a tf_embed.Variable: use "
                "tf_embed.layers.DynamicEmbedding, or give the variable's `trainable_variables` "
                "to the optimizer. If another optimizer trains the table, build that one before. "
                "If the table must not be trained, set trainable=False.",
                UserWarning,
                stacklevel=4,
            )

    def _warn_of_no_gradient(self, variables: list[Any], gradients: list[Any]) -> None:
        pairs = [
            one for one in zip(variables, gradients, strict=True) if isinstance(one[0], Anchor)
        ]
        # A table may have several anchors, and a gradient for any of them is enough.
        reached = {id(table) for one, grad in pairs if grad is not None for table in one.tables}
        missing = []
        for anchor, gradient in pairs:
            table = anchor.table
            if gradient is not None or anchor.frozen or id(table) in reached:
                continue
            if table not in self._without_gradient:
                self._without_gradient.add(table)
                missing.append(anchor.table_name)
        if missing:
            # Not an error: with several losses, a step may omit some tables.
            warnings.warn(
                f"Gradients do not exist for tables {missing} when minimizing the loss, so the "
                "step does not train them. Lookups through a ShadowVariable have gradients for "
                "that alone: give it to the optimizer, in place of the table's anchor.",
                UserWarning,
                stacklevel=5,
            )

# SPDX-License-Identifier: Apache-2.0
"""A warning of tables that a step looks up and no optimizer trains."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.anchor_tokens import anchors_of_step


class UntrainedTables:
    """The tables of which an optimizer has warned; in an object, so that Keras does not track it.

    Args:
        optimizer: Name of the optimizer.
    """

    def __init__(self, optimizer: str) -> None:
        self._optimizer = optimizer
        self._warned: weakref.WeakSet[Table] = weakref.WeakSet()

    @tf.autograph.experimental.do_not_convert
    def warn(self, variables: Iterable[Any]) -> None:
        """Warns once of each table that the traced step looks up and no optimizer trains.

        Frozen tables, and tables that some optimizer has trained or will train, are left out.

        Args:
            variables: The variables that the optimizer trains in this step.
        """
        trained = {id(one.table) for one in variables if isinstance(one, Anchor)}
        for anchor in anchors_of_step():
            table = anchor.table
            if id(table) in trained or table in self._warned or table.trainers:
                continue
            if anchor.frozen or anchor.own_trainer is not None:
                continue
            self._warned.add(table)
            # No error: a step may leave a table out with good reason, such as one that another
            # optimizer, which is not built yet, trains in its turn, or one of a target network.
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

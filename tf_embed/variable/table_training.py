# SPDX-License-Identifier: Apache-2.0
"""`TableTraining`: the training side of a table."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor


class TableTraining:
    """A table, its anchor, and the slots of its optimizers.

    Args:
        table: The table.
        anchor: Its anchor; None if its rows are not trained.
    """

    def __init__(self, table: Table, anchor: Anchor | None) -> None:
        self._table = table
        self._anchor = anchor

    @property
    def is_on(self) -> bool:
        """Whether optimizers may change rows."""
        return self._anchor is not None and not self._anchor.frozen

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """The anchor, if optimizers may change rows."""
        return (self._anchor,) if self._anchor is not None and self.is_on else ()

    @property
    def anchors_by_name(self) -> dict[str, Anchor]:
        """The anchor and the anchors of shadow variables, by name; none if rows are not trained."""
        named: dict[str, Anchor] = {anchor.table_name: anchor for anchor in self.anchors}
        return named | self._extras if named else named

    def anchor_of_lookup(self, name: str) -> Anchor | None:
        """The anchor of a shadow variable of this name, otherwise the table's."""
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a str. Received: name={validation.shown(name)}")
        if not tf.executing_eagerly():
            raise RuntimeError(
                "`get_trainable_by_name` is for eager execution: call it outside of the "
                f"tf.function, or take the `anchor` of {self._table.options.name!r}."
            )
        extras = self._extras
        by_own_name = {one.name: one for one in extras.values()}  # which has no "/"
        return extras.get(name, by_own_name.get(name, self._anchor))

    @property
    def _extras(self) -> dict[str, Anchor]:
        """The other anchors of the table, by name."""
        extras = {} if self._anchor is None else self._anchor.extras
        # A copy of a variable has the anchors of the original variable.
        return {name: one for name, one in extras.items() if one.table is self._table}

    def slots_of(self, optimizer: Any) -> list[SlotVariable]:
        """The slots of an optimizer of this table; none if it does not train the table."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer="
                f"{validation.shown(optimizer)}"
            )
        own = None if self._anchor is None else self._anchor.own_trainer
        if own is not None:
            return own.slots if own.optimizer is optimizer else []
        # `DynamicEmbeddingOptimizer`, known by its method: its module may import this one.
        of_table = getattr(optimizer, "slot_variables", None)
        if of_table is not None:
            return of_table(self._table)
        # A trainer refers to the inner optimizer.
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        trainers = (one for one in self._table.trainers if one.optimizer is optimizer)
        trainer = next(trainers, None)
        return [] if trainer is None else trainer.slots

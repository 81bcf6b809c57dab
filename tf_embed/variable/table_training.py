# SPDX-License-Identifier: Apache-2.0
"""`TableTraining`: the training side of a table."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tf_embed import validation
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor


@dataclasses.dataclass(frozen=True)
class TableTraining:
    """A table, its anchor, and the slots of its optimizers."""

    table: Table
    anchor: Anchor | None  # None if its rows are not trained

    @property
    def is_on(self) -> bool:
        """Whether optimizers may change rows."""
        return self.anchor is not None and not self.anchor.frozen

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """The anchor, if optimizers may change rows."""
        return (self.anchor,) if self.anchor is not None and self.is_on else ()

    def slots_of(self, optimizer: Any) -> list[SlotVariable]:
        """The slots of an optimizer of this table; none if it does not train the table."""
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer="
                f"{validation.shown(optimizer)}"
            )
        own = None if self.anchor is None else self.anchor.own_trainer
        if own is not None:
            return own.slots if own.optimizer is optimizer else []
        # `DynamicEmbeddingOptimizer`, known by its method: its module may import this one.
        of_table = getattr(optimizer, "slot_variables", None)
        if of_table is not None:
            return of_table(self.table)
        # A trainer refers to the inner optimizer.
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        trainers = (one for one in self.table.trainers if one.optimizer is optimizer)
        trainer = next(trainers, None)
        return [] if trainer is None else trainer.slots

# SPDX-License-Identifier: Apache-2.0
"""`SlotVariable`: a view of an optimizer slot of the rows of a table."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.table.table import Table


@dataclasses.dataclass(frozen=True)
class SlotVariable:
    """A slot of each row of a variable, such as Adam's velocity. See `Variable.slot_variables`.

    A view: slots belong to the row, and are inserted, changed, removed and saved with it.

    Attributes:
        name: The variable's name, and the slot's.
        dim: Number of slots in a row: the number of weights, or 1 for a slot of the whole row.
        table: The table.
        rule: The optimizer rule that the slot belongs to.
        begin: The offset of the slot among all slots of a row.
        initial_value: The slot's value in a new row. NaN: the row's weights.
    """

    name: str
    dim: int
    table: Table
    rule: str | ExternalRule
    begin: int
    initial_value: float

    @property
    def key_dtype(self) -> tf.DType:
        """Dtype of the keys."""
        return self.table.options.key_dtype

    @property
    def value_dtype(self) -> tf.DType:
        """Dtype of the slots: float64 for float64 rows, otherwise float32."""
        return self.table.options.slot_dtype

    def lookup(
        self, keys: Any, return_exists: bool = False, name: str | None = None
    ) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        """Looks slots up. Keys without a row, and untrained tables, have initial slots.

        Args:
            keys: Integers, or strings, of any shape.
            return_exists: Whether to also return which keys have a row. Default: False.
            name: Name of the operation.

        Returns:
            keys.shape + [dim]; with `return_exists` also a bool tensor, keys.shape.

        Raises:
            TypeError: If `keys` has another dtype.
        """
        with validation.name_scope(name, "slot_lookup"):
            keys = validation.keys_of(keys, self.key_dtype, "keys", self.name)
            slots, exists = self.table.read_slots(keys, self.rule, self.initial_value)
            slots = slots[..., self.begin : self.begin + self.dim]
            # NaN marks a slot that starts at the weights of the row and has had no step yet.
            if math.isnan(self.initial_value):
                rows = tf.cast(self.table.find(keys)[0], slots.dtype)
                slots = tf.where(tf.math.is_nan(slots), rows, slots)
            slots = tf.ensure_shape(slots, keys.shape.concatenate([self.dim]))
        return (slots, exists) if return_exists else slots

    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies the slots of all rows, in no particular order.

        With concurrent writers, slots are read a moment after the keys.

        Args:
            name: Name of the operation.

        Returns:
            Keys [n] and slots [n, dim].
        """
        with validation.name_scope(name, "slot_export"):
            keys = self.table.export(with_slots=False, with_policy=False).keys
            return keys, self.lookup(keys)

    def size(self, name: str | None = None) -> tf.Tensor:
        """Counts the keys of the variable; int64 scalar."""
        with validation.name_scope(name, "slot_size"):
            return self.table.size()

# SPDX-License-Identifier: Apache-2.0
"""The ops of optimizer slots, typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops.new_table_ops import decimal_numbers

_raw = _library.load()


@dataclasses.dataclass(frozen=True)
class ExternalRule:
    """An optimizer that runs outside of the table, on rows that it reads and writes back.

    Two rules with the same `id` and `widths` are the same rule to a table; rows then keep their
    slots.

    Attributes:
        id: Which optimizer, a number of int64.
        widths: Number of slots in each of its groups, at most 16; a group is a variable of the
            optimizer.
        initial_values: The value of each group's slots in a new row. NaN is allowed; its meaning is
            up to the optimizer.
    """

    id: int
    widths: tuple[int, ...]
    initial_values: tuple[float, ...]

    def attributes(self) -> dict[str, Any]:
        """The arguments of the ops."""
        return {
            "rule_id": self.id,
            "slot_widths": list(self.widths),
            "slot_initial_values": decimal_numbers(self.initial_values),
        }


def find_slots(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    defaults: tf.Tensor,
    *,
    dim: int,
    slot_dtype: tf.DType,
    rule: ExternalRule,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads whole rows for an external rule and inserts nothing.

    If the table has another rule, this rule replaces it first: rows keep their weights and get the
    initial slots of this rule.

    Args:
        defaults: As in `find`.
        slot_dtype: float64 for float64 tables, else float32.

    Returns:
        The rows, keys.shape + [dim]; their slots, keys.shape + [slots of a row], the initial slots
        for absent keys; and whether the table holds each key, keys.shape.
    """
    return _raw.tf_embed_find_slots(
        table=handle,
        keys=keys,
        owners=owners,
        defaults=defaults,
        dim=dim,
        slot_dtype=slot_dtype,
        **rule.attributes(),
    )


def assign_slots(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    values: tf.Tensor,
    slots: tf.Tensor,
    *,
    dim: int,
    rule: str | ExternalRule,
    initial_value: float = 0.0,
    scores: Sequence[tf.Tensor] = (),
) -> tf.Operation | None:
    """Writes whole rows of a rule, for distinct keys.

    If the rule is external and the table no longer has it, fails with FailedPrecondition and writes
    nothing. A fused rule becomes the table's; its first group starts at `initial_value`.
    """
    return _raw.tf_embed_assign_slots(
        table=handle,
        keys=keys,
        owners=owners,
        values=values,
        slots=slots,
        scores=list(scores),
        dim=dim,
        # The keys of such a step are distinct, because their gradients were summed.
        distinct=True,
        initial_value=initial_value,
        **_any_rule(rule),
    )


def read_slots(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    *,
    slot_dtype: tf.DType,
    rule: str | ExternalRule,
    initial_value: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The slots that a rule keeps, keys.shape + [slots of a row], and whether keys are present.

    Absent keys have initial slots, and so do all keys if the table has another rule. The first
    group of a fused rule starts at `initial_value`.
    """
    return _raw.tf_embed_read_slots(
        table=handle,
        keys=keys,
        owners=owners,
        slot_dtype=slot_dtype,
        initial_value=initial_value,
        **_any_rule(rule),
    )


def rows_of_other_rule(handle: tf.Tensor, *, rule: str | ExternalRule) -> tf.Tensor:
    """Number of rows whose slots a step of `rule` would replace; int64 scalar."""
    return _raw.tf_embed_rows_of_other_rule(table=handle, **_any_rule(rule))


def largest_slot(handle: tf.Tensor, *, rule: str, slot: int) -> tf.Tensor:
    """The largest of all rows' slots of that number, or 0; float64 scalar."""
    return _raw.tf_embed_largest_slot(table=handle, rule=rule, slot=slot)


def _any_rule(rule: str | ExternalRule) -> dict[str, Any]:
    return {"rule": rule} if isinstance(rule, str) else {"rule": "external", **rule.attributes()}

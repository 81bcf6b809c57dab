# SPDX-License-Identifier: Apache-2.0
"""`Eviction`: rows that leave a table by its policy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.ops import policy_ops
from tf_embed.table.table import Table


class Eviction:
    """Evicts rows in the order of a table's policy, and returns evicted rows."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def restrict(self, num_reserved: Any) -> tf.Tensor | None:
        """Evicts rows by the table's policy until `num_reserved` are left."""
        name, policy = self._table.options.name, self._table.options.policy
        if policy is None:
            # As documented in `Variable.restrict`. No row leaves, so nothing is lost.
            logging.warning("%r has no policy by which it could be restricted.", name)
            return None
        if policy.eviction is None:
            raise ValueError(
                f"The policy of {name!r} does not say which rows leave first. Received: "
                f"policy={policy}"
            )
        return self._table.restrict(number_of_rows(num_reserved, "num_reserved"), policy.eviction)

    def drain(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the keys and rows of the log of evicted rows, and clears it."""
        options = self._table.options
        if options.policy is None or not options.policy.log_evicted:
            raise ValueError(
                f"{options.name!r} keeps no evicted rows: make it with "
                f"policy=tf_embed.TablePolicy(..., log_evicted=True). Received: {options.policy}"
            )
        drained = [
            policy_ops.drain_evicted(
                part.resource_handle,
                key_dtype=options.key_dtype,
                value_dtype=options.value_dtype,
                dim=options.dim,
            )
            for part in self._table.parts
        ]
        keys, rows = zip(*drained, strict=True)
        return tf.concat(keys, 0), tf.concat(rows, 0)


def number_of_rows(value: Any, argument: str) -> tf.Tensor:
    """A number of rows, from a Python int or a tensor; int64 scalar.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is negative.
    """
    if not tf.is_tensor(value):
        return tf.constant(validation.int_in(value, argument, least=0), tf.int64)
    value = validation.scalar_of(value, argument)
    if tf.executing_eagerly():
        validation.int_in(int(value), argument, least=0)
    return value

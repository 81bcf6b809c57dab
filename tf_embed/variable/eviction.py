# SPDX-License-Identifier: Apache-2.0
"""`Eviction`: rows that leave a table by its policy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.ops import policy_ops
from tf_embed.table.restrict_policies import number_of_rows
from tf_embed.table.table import Table


class Eviction:
    """Evicts rows in the order of a table's policy, and returns evicted rows.

    Args:
        table: The table.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def restrict(self, num_reserved: Any, unknown: dict[str, Any]) -> tf.Tensor | None:
        """Evicts rows by the table's policy until `num_reserved` are left.

        Args:
            num_reserved: How many rows stay at most.
            unknown: Other arguments of the caller. A policy takes none.
        """
        name, policy = self._table.options.name, self._table.options.policy
        if policy is None:
            # As documented in `Variable.restrict`. No row leaves, so nothing is lost.
            logging.warning("%r has no policy by which it could be restricted.", name)
            return None
        if unknown:
            raise TypeError(
                f"`restrict` of {name!r} takes `num_reserved` alone, without a restrict_policy. "
                f"Received: {', '.join(unknown)}"
            )
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

    def export_scores(
        self, split_size: int, name: str | None, default_order: str
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Copies all keys and their scores in the eviction order.

        Args:
            split_size: How many rows are copied at a time.
            name: Name of the operation.
            default_order: The order if the policy has none; "" for none.
        """
        policy = self._table.options.policy
        order = None if policy is None else policy.eviction
        if order is None:
            order = default_order
        if not order:
            raise TypeError(
                f"{self._table.options.name!r} keeps no scores: make it with policy="
                "tf_embed.TablePolicy(eviction=...), or with a tf_embed.tfra.HkvHashTableCreator. "
                f"Received: policy={policy}"
            )
        split_size = validation.int_in(split_size, "split_size")
        with validation.name_scope(name, "export_keys_and_scores"):
            return self._table.export_scores(order, split_size)

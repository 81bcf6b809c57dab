# SPDX-License-Identifier: Apache-2.0
"""`BoundsCheck`: ids out of bounds, padding and malformed offsets of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops import bounds_ops, substitutes
from tf_embed.sharded import strategies
from tf_embed.tbe.fbgemm_types import BoundsCheckMode
from tf_embed.tbe.inputs import Batch


class BoundsCheck:
    """Drops out-of-range indices and padding; see TfEmbedCheckBounds.

    Args:
        owner: The layer, for messages.
        rows: The number of rows for each feature, or None if all its indices are valid.
        tables: The name of the table for each feature.
        mode: How faults are handled.
        padding_id: The index of padding, or None.
        num_faults: Counts the faults, int64.
    """

    def __init__(
        self,
        owner: str,
        rows: Sequence[int | None],
        tables: Sequence[str],
        mode: BoundsCheckMode,
        padding_id: int | None,
        num_faults: tf.Variable,
    ) -> None:
        self._owner = owner
        self._rows = [-1 if count is None else count for count in rows]
        self._tables = list(tables)
        self._mode = mode.plain
        self._padding = [] if padding_id is None else [padding_id]
        self._num_faults = num_faults
        self._strategy = tf.distribute.get_strategy()

    def checked(self, batch: Batch) -> Batch:
        """The batch without out-of-range indices and padding. Counts faults if the mode does."""
        checked = self._check(batch, self._rows, self._padding)
        weights = batch.weights
        if weights is not None:
            kept = checked.kept
            # Most batches have no fault, so their weights do not change.
            weights = tf.cond(checked.changed, lambda: _taken(weights, kept), lambda: weights)
        return Batch(checked.checked_indices, checked.checked_offsets, weights, batch.num_bags)

    def with_checked_offsets(self, batch: Batch) -> Batch:
        """The batch with corrected offsets and all its indices. Counts faults as `checked` does."""
        checked = self._check(batch, [-1] * len(self._rows), [])
        return dataclasses.replace(batch, offsets=checked.checked_offsets)

    def _check(self, batch: Batch, rows: Sequence[int], padding: Sequence[int]) -> Any:
        checked = bounds_ops.check_bounds(
            batch.indices,
            batch.offsets,
            batch.num_bags,
            rows=rows,
            tables=self._tables,
            owner=self._owner,
            mode=self._mode.name.lower(),
            padding=padding,
        )
        counts = self._mode in (BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE)
        if counts and not substitutes.are_used():  # a served model keeps no count
            self._count(checked.num_events)
        return checked

    def _count(self, faults: tf.Tensor) -> None:
        """Adds to this replica's count or, outside of a step, to this process's."""
        context, strategy = tf.distribute.get_replica_context(), self._strategy
        count = strategy.num_replicas_in_sync
        if count == 1 or (context is not None and context.strategy is strategy):
            self._num_faults.assign_add(faults)
            return
        # Only the first replica of this process adds the faults; otherwise each would.
        replicas_here = count // strategies.worker_count(strategy)

        def add() -> None:  # TensorFlow adds to a sum only in replicas
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            is_first = tf.equal(replica % replicas_here, 0)
            self._num_faults.assign_add(tf.where(is_first, faults, tf.zeros_like(faults)))

        strategy.run(add)


def _taken(weights: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
    """Gathers weights by position. On the first axis, tf.gather's gradient would be slices."""
    return tf.gather(weights[tf.newaxis], kept, axis=1)[0]

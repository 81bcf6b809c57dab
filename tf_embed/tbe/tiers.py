# SPDX-License-Identifier: Apache-2.0
"""`Tiers`: the caches of tables with several tiers, as FBGEMM's methods name them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_embed import validation
from tf_embed.tbe.fbgemm_types import RecordCacheMetrics
from tf_embed.tbe.inputs import Batch
from tf_embed.tbe.table_specs import Member
from tf_embed.variable.row_statistics import stats_of

_NOT_COUNTED = -1


class Tiers:
    """Promotes rows to the caches, and reports cache hits and misses."""

    def __init__(self, owner: str, members: Sequence[Member], feature_tables: Sequence[int]):
        self._owner = owner
        self._tables = [member.table.table for member in members]
        self._feature_tables = tuple(feature_tables)
        self._before = [(0, 0, 0)] * len(self._tables)

    def prefetch(self, batch: Batch) -> None:
        """Promotes the rows of a batch. Ids without a row are skipped."""
        has_disk = [table.options.has_tiers for table in self._tables]
        if not any(has_disk):
            return
        bags = tf.concat([[0], tf.cumsum(batch.num_bags)], 0)
        count = tf.size(batch.indices, tf.int64)
        # Offsets are not checked here, so they are clipped to the indices.
        places = tf.clip_by_value(tf.gather(batch.offsets, bags), 0, count)
        for number, table in enumerate(self._tables):
            if has_disk[number]:
                keys = [
                    batch.indices[places[feature] : places[feature + 1]]
                    for feature, of_feature in enumerate(self._feature_tables)
                    if of_feature == number
                ]
                table.prefetch(tf.concat(keys, 0))

    def cache_stats(self) -> tf.Tensor:
        """Counts of all caches together, int64 [6], in FBGEMM's order."""
        hits, misses, promoted = (sum(numbers) for numbers in zip(*self._counts(), strict=True))
        requested = hits + misses
        numbers = [_NOT_COUNTED, requested, _NOT_COUNTED, promoted, _NOT_COUNTED, _NOT_COUNTED]
        return tf.constant(numbers, tf.int64)

    def miss_counter(self) -> tf.Tensor:
        """Misses of all caches together, int64 [2], in FBGEMM's order."""
        promoted = sum(rows for _, _, rows in self._counts())
        return tf.constant([_NOT_COUNTED, promoted], tf.int64)

    def misses_by_table(self) -> tf.Tensor:
        """Rows promoted to the cache of each table, int64 [tables]."""
        return tf.constant([promoted for _, _, promoted in self._counts()], tf.int64)

    def reset_stats(self) -> None:
        """Counts from 0 again."""
        self._before = self._totals()

    def _counts(self) -> list[tuple[int, ...]]:
        """Hits, misses and promoted rows of each table since the last reset."""
        return [
            tuple(now - before for now, before in zip(*pair, strict=True))
            for pair in zip(self._totals(), self._before, strict=True)
        ]

    def _totals(self) -> list[tuple[int, int, int]]:
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"The cache statistics of {self._owner!r} must be read in eager execution. "
                "Received: a call in a graph"
            )
        every = [stats_of(table) for table in self._tables]
        return [(one["cache_hits"], one["cache_misses"], one["promoted"]) for one in every]


def check_records(metrics: RecordCacheMetrics | None, field: str, owner: str) -> None:
    """Refuses to report misses that the layer was not asked to record when it was made.

    Raises:
        ValueError: If it is not set.
    """
    if metrics is None or not getattr(metrics, field):
        raise ValueError(
            f"`record_cache_metrics` of {owner!r} must have `{field}` to read misses of its "
            f"caches. Received: record_cache_metrics={validation.shown(metrics)}"
        )


def check_gathers(is_on: bool, argument: str, owner: str) -> None:
    """Refuses to report statistics that were not requested when the layer was made.

    Raises:
        ValueError: If the argument is not set.
    """
    if not is_on:
        raise ValueError(
            f"`{argument}` of {owner!r} must be set to read statistics of its caches. Received: "
            f"{argument}={validation.shown(is_on)}"
        )

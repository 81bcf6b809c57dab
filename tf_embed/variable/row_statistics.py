# SPDX-License-Identifier: Apache-2.0
"""`RowStatistics`: counts of a table, and of the use of its rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_embed import _library, validation
from tf_embed.ops import policy_ops, whole_table_ops
from tf_embed.table import expiry
from tf_embed.table.policies import STATISTICS
from tf_embed.table.table import Table
from tf_embed.variable.row_arguments import RowArguments

# The numbers in the vector that the table returns, in order.
_COUNTS = _library.vocabulary()["stats"]


class RowStatistics:
    """Reads the statistics of a table and of its rows, and sets scores and the clock."""

    def __init__(self, table: Table, row_arguments: RowArguments) -> None:
        self._table = table
        self._arguments = row_arguments

    def of_table(self) -> dict[str, Any]:
        """Counts of the table, and ratios of them; see `stats_of`."""
        return stats_of(self._table)

    def of_rows(self, keys: Any) -> dict[str, tf.Tensor]:
        """Whether each key has a row, and the statistics of the row, by name."""
        numbers, exists = self._table.row_statistics(self._arguments.keys(keys))
        kept = self._table.options.statistics
        by_name = zip(STATISTICS, tf.unstack(numbers, len(STATISTICS), axis=-1), strict=True)
        return {"exists": exists, **{name: one for name, one in by_name if name in kept}}

    def set_scores(self, keys: Any, scores: Any) -> tf.Operation | None:
        """Sets the scores of present keys."""
        options = self._table.options
        if "score" not in options.statistics:
            raise ValueError(
                f"{options.name!r} keeps no scores: make it with policy=tf_embed.TablePolicy("
                f'eviction="score"). Received: {options.policy}'
            )
        keys = self._arguments.keys(keys)
        scores = self._arguments.of_keys(keys, scores, tf.int64, "scores")
        return self._table.set_scores(keys, scores)

    def set_clock(self, step: Any, time_ms: Any, epoch: Any) -> tf.Operation | None:
        """Sets the clock of all parts of the table."""
        # Values of tensors are known only when the op runs, so only their shapes are checked here.
        for argument, value in (("step", step), ("time_ms", time_ms), ("epoch", epoch)):
            if tf.is_tensor(value):
                validation.scalar_of(value, argument)
        # For the op, a step of -1 and a time of -2 mean no change. An epoch of -1 follows the
        # steps, and a time of -1 means the system's time.
        if step is None:
            step = -1
        elif not tf.is_tensor(step):
            step = validation.int_in(step, "step", most=2**62)
        if time_ms is None:
            time_ms = -2
        elif isinstance(time_ms, str) and time_ms == "system":
            time_ms = -1
        elif not tf.is_tensor(time_ms):
            time_ms = validation.int_in(time_ms, "time_ms", least=0, most=2**62)
        if epoch is None:
            epoch = -1
        elif "last_epoch" not in self._table.options.statistics:
            raise ValueError(
                f"{self._table.options.name!r} keeps no epochs: make it with eviction="
                f'"epoch_lru" or "epoch_lfu" in its policy. Received: epoch={epoch}'
            )
        elif not tf.is_tensor(epoch):
            epoch = validation.int_in(epoch, "epoch", least=0, most=2**31 - 1)
        done = [
            policy_ops.set_clock(part.resource_handle, step, time_ms, epoch)
            for part in self._table.parts
        ]
        return None if tf.executing_eagerly() else tf.group(*done)

    def restart_ttl(self) -> tf.Tensor:
        """Begins the time to live of all rows now, and counts the expired rows."""
        options = self._table.options
        if not expiry.has_ttl(self._table):
            raise ValueError(
                f"{options.name!r} has no time to live that it could restart: make it with "
                "policy=tf_embed.TablePolicy(ttl_seconds=...), and not in Redis, where it begins "
                f"with each write. Received: policy={options.policy}, redis={options.redis}"
            )
        return expiry.expired_rows(self._table, renews=True)


def stats_of(table: Table) -> dict[str, Any]:
    """The counts of a table, with the ratios that `Variable.stats` documents."""
    # Each part of a table on servers or on several GPUs has its own counts.
    vector = tf.add_n([whole_table_ops.stats(part.resource_handle) for part in table.parts])
    eager = tf.executing_eagerly()
    numbers = vector.numpy().tolist() if eager else tf.unstack(vector)
    counts = dict(zip(_COUNTS, numbers, strict=True))
    # Raw counts of the index. Only the ratios below are public.
    of_index = ("index_places", "probed_keys", "probed_buckets")
    places, probed, read = (counts.pop(one) for one in of_index)
    found = counts["cache_hits"] + counts["cache_misses"]
    # A row on disk has disk_live_bytes / disk_rows bytes.
    wanted = counts["disk_rows_read"] * counts["disk_live_bytes"]
    return {
        **counts,
        # Places belong to the index in memory. For a table with tiers it is the index of the cache.
        "load": _ratio(counts["cache_rows" if table.options.has_tiers else "rows"], places),
        "mean_probe_length": _ratio(read, probed),
        "cache_hit_rate": _known_ratio(counts["cache_hits"], found),
        "read_amplification": _known_ratio(counts["disk_read_bytes"] * counts["disk_rows"], wanted),
    }


def _known_ratio(part: Any, whole: Any) -> Any:
    """A quotient; if there is nothing to divide by, None, and in a graph NaN."""
    if tf.is_tensor(part):
        return tf.cast(part, tf.float64) / tf.cast(whole, tf.float64)
    return part / whole if whole else None


def _ratio(part: Any, whole: Any) -> Any:
    """A quotient, or 0.0 if the divisor is 0."""
    if tf.is_tensor(part):
        return tf.math.divide_no_nan(tf.cast(part, tf.float64), tf.cast(whole, tf.float64))
    return part / whole if whole else 0.0

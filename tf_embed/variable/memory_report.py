# SPDX-License-Identifier: Apache-2.0
"""`MemoryReport`: memory use and capacity of each tier of a table."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.table.table import Table
from tf_embed.variable.columns import columns
from tf_embed.variable.row_statistics import stats_of

_WORD = 8  # bytes of a statistic, and of a reference to a string
_ROW_ALIGNMENT = 16  # a row begins at a multiple of this many bytes
_KEY = 8  # bytes of a key, or of the number of a string
_BLOCK_FRAME = 20  # bytes of a block on disk that are not of rows
_PAGE = 4096
# The share of a bound on files that rows can fill. Compaction needs the rest.
_DISK_SHARE = 5 / 6
_MARK = 1  # bytes of a row's last use and state, in a tier above another tier


@dataclasses.dataclass(frozen=True)
class TierReport:
    """One tier of a table.

    Attributes:
        name: "gpu", "host", "disk" or "redis".
        bound_bytes: The most bytes that the tier may hold; None: no bound.
        capacity_rows: How many rows fit within the bound, for all shards together; None: no bound.
            For the disk it is approximate: compaction of files needs a part of the bound.
        rows: Rows in the tier now. A row that is in the cache and below it counts in both.
        bytes: Bytes of these rows; for the disk, bytes of files.
    """

    name: str
    bound_bytes: int | None
    capacity_rows: int | None
    rows: int
    bytes: int


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryReport:
    """Memory use and capacity of each tier of a table. `print` shows it as a text table.

    Attributes:
        name: The table's name.
        rows: Number of rows, each counted once.
        weight_bytes: Bytes of the weights of a row.
        slot_bytes: Bytes of the optimizer slots of a row.
        statistics_bytes: Bytes of the statistics of a row.
        mark_bytes: Additional bytes of a row in memory if the table has a cache.
        row_bytes: Bytes that a row takes in memory: these four, padded.
        index_bytes: Bytes of the index from keys to rows. For a table with a `path` it includes the
            statistics of rows on disk, which are in memory.
        slack_bytes: Other bytes of host memory: places of rows that left, unused room, and buffers.
        device: The device of the table; of a table on several, "/GPU:0 and /GPU:1".
        device_reason: Why the table is there.
        tiers: A `TierReport` for each tier, fastest first.
    """

    name: str
    rows: int
    weight_bytes: int
    slot_bytes: int
    statistics_bytes: int
    mark_bytes: int
    row_bytes: int
    index_bytes: int
    slack_bytes: int
    device: str
    device_reason: str
    tiers: tuple[TierReport, ...]

    def __str__(self) -> str:
        lines = [("tier", "bound", "rows that fit", "rows", "bytes")]
        for tier in self.tiers:
            capacity = "any" if tier.capacity_rows is None else f"{tier.capacity_rows:,}"
            bound = "none" if tier.bound_bytes is None else size_text(tier.bound_bytes)
            lines.append((tier.name, bound, capacity, f"{tier.rows:,}", size_text(tier.bytes)))
        lines.append(("index", "none", "", "", size_text(self.index_bytes)))
        lines.append(("slack", "none", "", "", size_text(self.slack_bytes)))
        heading = (
            f"{self.name!r}: {self.rows:,} rows. A row takes {self.row_bytes} bytes: weights "
            f"{self.weight_bytes}, slots {self.slot_bytes}, statistics {self.statistics_bytes}"
            + (f", mark {self.mark_bytes}." if self.mark_bytes else ".")
        )
        return "\n".join([heading, *columns(lines), f"on {self.device}: {self.device_reason}"])

    def __repr__(self) -> str:
        return str(self)


def memory_report(table: Table) -> MemoryReport:
    """Measures a row of a table, and the bytes of each tier.

    Raises:
        RuntimeError: If it is called while a graph is traced.
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"`memory_report` of {table.options.name!r} must be called in eager execution. "
            "Received: a call in a graph"
        )
    stats = stats_of(table)
    weights, slots, statistics = _parts_of_row(table, stats)
    row = bytes_of_row(weights, slots, statistics, is_cached=table.options.has_tiers)
    on_disk = _bytes_on_disk(weights, max(slots, _slot_bytes_of_rule(table)))
    return MemoryReport(
        name=table.options.name,
        rows=stats["rows"],
        weight_bytes=weights,
        slot_bytes=slots,
        statistics_bytes=statistics,
        mark_bytes=_MARK if table.options.has_tiers else 0,
        row_bytes=row,
        index_bytes=stats["index_bytes"],
        slack_bytes=stats["slack_bytes"],
        device=table.options.device_text,
        device_reason=table.options.device_reason,
        tiers=_tiers(table, stats, row, on_disk),
    )


def bytes_of_row(weights: int, slots: int, statistics: int, *, is_cached: bool) -> int:
    """Bytes that a row takes in memory.

    Args:
        weights: Bytes of its weights.
        slots: Bytes of its optimizer slots.
        statistics: Bytes of its statistics.
        is_cached: Whether the memory is a cache, or a tier below a cache.
    """
    row = _padded(_padded(weights, _WORD) + slots, _ROW_ALIGNMENT)
    return row + statistics + (_MARK if is_cached else 0)


def _bytes_on_disk(weights: int, slots: int) -> int:
    """Bytes that a row takes in files, as a part of a block of whole pages."""
    row = _KEY + weights + slots
    block = _padded(row, _PAGE)
    # As in the files: a block grows until rows fill three quarters of it.
    while (rows := (block - _BLOCK_FRAME) // row) * row < block // 4 * 3:
        block += _PAGE
    return block // rows


def size_text(number: float) -> str:
    """A number of bytes, such as "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _parts_of_row(table: Table, stats: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes of the weights, the slots and the statistics of a row in memory."""
    options = table.options
    weights = options.dim * (options.value_dtype.size or _WORD)
    statistics = options.words_of_row * _WORD
    # The table counts the bytes of whole rows. Slots are the rest, if there are rows to measure.
    rows = stats["cache_rows"] if options.has_tiers else stats["rows"]
    slots = 0
    if rows:
        slots = max(0, stats["payload_bytes"] // rows - weights - statistics)
    return weights, slots or _slot_bytes_of_rule(table), statistics


def _slot_bytes_of_rule(table: Table) -> int:
    """Bytes of the slots of a row for the optimizer that is bound to the table."""
    rule, size = table.rule, table.options.slot_dtype.size
    if rule is None:
        return 0
    if isinstance(rule, str):
        slots = _library.vocabulary()["rules"][rule]
        return size * (slots["wide_slots"] * table.options.dim + slots["row_slots"])
    return size * sum(rule.widths)


def _tiers(
    table: Table, stats: dict[str, Any], row: int, row_on_disk: int
) -> tuple[TierReport, ...]:
    options, storage = table.options, table.options.storage

    def tier(name: str, bound: int | None, rows: int, used: int) -> TierReport:
        capacity = None
        if bound is not None:  # each shard has its part of the bound
            of_shard = bound // options.num_shards
            if name == "disk":
                of_shard = int(of_shard * _DISK_SHARE) // row_on_disk
            else:
                of_shard //= row
            capacity = of_shard * options.num_shards
        return TierReport(name, bound, capacity, rows, used)

    payload = stats["payload_bytes"]
    if storage is not None and options.has_tiers:
        name = "gpu" if options.is_on_gpu else "host"
        by_gpu = options.is_on_gpu or storage.host_bytes is None
        bound = storage.gpu_bytes if by_gpu else storage.host_bytes
        tiers = [tier(name, bound, stats["cache_rows"], payload)]
        if options.is_on_gpu and (storage.path is None or storage.host_bytes is not None):
            tiers.append(tier("host", storage.host_bytes, stats["host_rows"], stats["host_bytes"]))
        if storage.path is not None:
            tiers.append(tier("disk", storage.disk_bytes, stats["disk_rows"], stats["disk_bytes"]))
        return tuple(tiers)
    if not options.is_on_gpu:
        name = "host" if options.redis is None else "redis"
        return (tier(name, None, stats["rows"], payload),)
    # Without a storage all rows are in the GPU's memory, without a bound.
    gpu_bytes = None if storage is None else storage.gpu_bytes
    host_bytes = 0 if storage is None else storage.max_host_bytes
    # Freed places count among the pinned bytes, so this is an upper limit.
    pinned = min(payload, stats["pinned_bytes"])
    rows_on_host = min(stats["rows"], pinned // row)
    return (
        tier("gpu", gpu_bytes, stats["rows"] - rows_on_host, payload - pinned),
        tier("host", host_bytes, rows_on_host, pinned),
    )


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple

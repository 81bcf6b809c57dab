# SPDX-License-Identifier: Apache-2.0
"""The text that describes a save."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from tf_embed.inspect.saves import Save, SavedTable
from tf_embed.variable.columns import columns
from tf_embed.variable.memory_report import size_text

_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_NUMBERS = ("rows", "dim", "slots", "step", "size")  # the heads of columns of numbers
_RULES = {"": "-", "external": "of Keras"}


def report(save: Save) -> str:
    """Describes a save, its tables and its chain."""
    parts = [save.kind, size_text(save.bytes)]
    if save.time is not None:
        parts.append(f"{date_text(save.time)} ({age_text(time.time() - save.time)} ago)")
    lines = [save.path, "  " + ", ".join(parts)]
    lines += [f"  {_printable(note)}" for note in save.notes]
    if save.tables:
        lines += ["", *_aligned(_table_heads(), [_table_cells(one) for one in save.tables])]
    elif not save.members:
        lines += ["", "no dynamic table"]
    if save.members:
        heads = (save.members_are, "rows", "size", "saved", "changes since")
        cells = [
            (
                one.name,
                f"{one.rows:,}" if save.kind != "storage" else "-",
                size_text(one.bytes),
                date_text(one.time),
                one.since or "-",
            )
            for one in save.members
        ]
        lines += ["", *_aligned(heads, cells)]
    return "\n".join(lines)


def date_text(seconds: float) -> str:
    """A moment in UTC; seconds since 1970."""
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):  # a year that Python does not have
        return f"{seconds:g} s after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def age_text(seconds: float) -> str:
    """A time span, such as "3 hours"."""
    for size, name in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return "less than a second"


def _table_heads() -> tuple[str, ...]:
    return ("table", "rows", "dim", "keys", "weights", "slots", "optimizer", "step", "size", "use")


def _table_cells(table: SavedTable) -> tuple[str, ...]:
    return (
        table.name,
        f"{table.rows:,}",
        str(table.dim),
        table.key_dtype,
        table.value_dtype,
        str(table.slots),
        _RULES.get(table.rule, table.rule),
        "-" if table.step is None else f"{table.step:,}",
        size_text(table.bytes),
        ", ".join(table.statistics) or "-",
    )


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns: the first to the left, numbers to the right."""
    cells = [list(map(_printable, row)) for row in [heads, *rows]]
    return columns(cells, [i for i, head in enumerate(heads) if head not in _NUMBERS])


def _printable(text: str) -> str:
    """Text from a file without the characters that would control a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)

# SPDX-License-Identifier: Apache-2.0
"""The difference between the rows of two saved tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.inspect.saves import InspectError, Save, SavedTable

PART_BYTES = 2**27  # of rows that are in memory at once
_STRING_BYTES = 64  # of a string in memory, about
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass
class Difference:
    """The difference of two tables.

    Attributes:
        added: Number of rows that only the second has.
        removed: Number of rows that only the first has.
        changed: Number of rows whose weights differ.
        same: Number of rows whose weights are equal, to the last bit.
        largest: The largest change of a weight. None if no change is a number.
        largest_key: The key of that row.
    """

    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    largest: float | None = None
    largest_key: Any = None


def pairs_of(old: Save, new: Save) -> list[tuple[SavedTable, SavedTable]]:
    """Returns the tables of two saves in pairs, by their names, or by their order.

    Raises:
        InspectError: If the tables do not match.
    """
    names = {table.name: table for table in new.tables}
    if len(names) == len(new.tables) and all(table.name in names for table in old.tables):
        pairs = [(table, names[table.name]) for table in old.tables]
    elif len(old.tables) == len(new.tables):
        pairs = list(zip(old.tables, new.tables, strict=True))
    else:
        raise InspectError(
            f"'{old.path}' and '{new.path}' must have the same tables: choose one by `--table`. "
            f"Received: {_names(old.tables)} and {_names(new.tables)}"
        )
    for one, other in pairs:
        kinds = [(each.key_dtype, each.value_dtype, each.dim) for each in (one, other)]
        if kinds[0] != kinds[1]:
            raise InspectError(
                f"{one.name!r} of '{old.path}' and {other.name!r} of '{new.path}' must have rows "
                f"of one kind. Received: {kinds[0]} and {kinds[1]}"
            )
    return pairs


def difference(old: SavedTable, new: SavedTable) -> Difference:
    """Compares the weights of all rows.

    Reads both tables once for each part of the keys, so that the rows in memory are bounded.
    """
    size = tf.as_dtype(old.value_dtype).size or _STRING_BYTES
    parts = max(1, -(-old.count_rows() * (8 + old.dim * size) // PART_BYTES))
    found = Difference()
    for part in range(parts):
        _compare_part(old, new, part, parts, found)
    return found


def _compare_part(
    old: SavedTable, new: SavedTable, part: int, parts: int, found: Difference
) -> None:
    """Compares the rows of a part of the keys."""
    keys, weights = _sorted_part(old, part, parts)
    met = np.zeros(len(keys), bool)
    for some_keys, some_weights in _part_of(new, part, parts):
        places = np.minimum(np.searchsorted(keys, some_keys), max(0, len(keys) - 1))
        there = keys[places] == some_keys if len(keys) else np.zeros(len(some_keys), bool)
        met[places[there]] = True
        found.added += int(np.count_nonzero(~there))
        _compare_rows(some_keys[there], weights[places[there]], some_weights[there], found)
    found.removed += int(np.count_nonzero(~met))


def _compare_rows(keys: np.ndarray, old: np.ndarray, new: np.ndarray, found: Difference) -> None:
    """Compares the rows of keys that both tables have."""
    if not len(keys):
        return
    if old.dtype == object:
        differs = np.any(old != new, axis=1)
    else:
        # Of the bits: NaN equals itself, and -0 differs from 0.
        shape = (len(keys), old.shape[1] * old.dtype.itemsize)
        differs = np.any(
            np.ascontiguousarray(old).view(np.uint8).reshape(shape)
            != np.ascontiguousarray(new).view(np.uint8).reshape(shape),
            axis=1,
        )
    count = int(np.count_nonzero(differs))
    found.changed += count
    found.same += len(keys) - count
    if not count or old.dtype == object:
        return
    with np.errstate(invalid="ignore"):
        changes = np.abs(new[differs].astype(np.float64) - old[differs].astype(np.float64))
    if np.all(np.isnan(changes)):
        return
    place = int(np.nanargmax(changes)) // old.shape[1]
    largest = float(np.nanmax(changes))
    if found.largest is None or largest > found.largest:
        found.largest, found.largest_key = largest, keys[differs][place : place + 1].tolist()[0]


def _sorted_part(table: SavedTable, part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(_part_of(table, part, parts))
    if not blocks:
        return np.zeros([0]), np.zeros([0, table.dim])
    keys = np.concatenate([one for one, _ in blocks])
    weights = np.concatenate([one for _, one in blocks])
    order = np.argsort(keys, kind="stable")
    return keys[order], weights[order]


def _part_of(table: SavedTable, part: int, parts: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows whose keys are in a part, block by block."""
    for block in table.read():
        if parts == 1:
            yield block.keys, block.weights
        else:
            mine = _parts_of_keys(block.keys, parts) == part
            yield block.keys[mine], block.weights[mine]


def _parts_of_keys(keys: np.ndarray, parts: int) -> np.ndarray:
    if keys.dtype == object:
        return np.asarray(tf.strings.to_hash_bucket_fast(keys, parts))
    mixed = keys.astype(np.uint64) * _MIX
    return (mixed >> np.uint64(40)) % np.uint64(parts)


def difference_text(old: SavedTable, found: Difference) -> str:
    """Describes a difference."""
    lines = [
        f"{old.name}: {found.added:,} added, {found.removed:,} removed, {found.changed:,} "
        f"changed, {found.same:,} the same"
    ]
    if found.largest is not None:
        key = found.largest_key
        shown = key.decode(errors="replace") if isinstance(key, bytes) else str(key)
        lines.append(f"  largest change of a weight: {found.largest:g}, in the row of {shown}")
    return "\n".join(lines)


def _names(tables: Sequence[SavedTable]) -> list[str]:
    return [table.name for table in tables]

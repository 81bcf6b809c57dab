# SPDX-License-Identifier: Apache-2.0
"""The rows of some keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.inspect.report import date_text
from tf_embed.inspect.saves import InspectError, SavedTable, of_known_dtype
from tf_embed.saving.row_streams import Block

_MOST_SHOWN = 16  # weights in a line


def parsed_keys(table: SavedTable, words: Sequence[str]) -> np.ndarray:
    """Returns keys of the command line in the dtype of a table's keys.

    Raises:
        InspectError: If a word is no such key.
    """
    if table.key_dtype == "string":
        strings = np.empty(len(words), object)
        strings[:] = [word.encode("utf-8", "surrogateescape") for word in words]
        return strings
    dtype, keys = tf.as_dtype(table.key_dtype), []
    for word in words:
        try:
            number = int(word)
        except ValueError:  # refused below, as a number that is too large
            number = None
        if number is None or not dtype.min <= number <= dtype.max:
            raise InspectError(
                f"`--rows` must be keys of {table.name!r}, which are {dtype.name}. Received: {word}"
            )
        keys.append(number)
    return np.array(keys, dtype.as_numpy_dtype)


def found_rows(table: SavedTable, keys: np.ndarray) -> dict[Any, Block]:
    """Returns the rows of keys, each as a block of one row."""
    found: dict[Any, Block] = {}
    wanted = set(keys.tolist())
    for block in table.read():
        if block.keys.dtype == object:
            places = [i for i, key in enumerate(block.keys.tolist()) if key in wanted]
        else:
            places = np.flatnonzero(np.isin(block.keys, keys.astype(block.keys.dtype))).tolist()
        for place in places:
            some = slice(place, place + 1)
            found[block.keys[place : place + 1].tolist()[0]] = Block(
                block.keys[some].copy(),
                block.weights[some].copy(),
                block.slots[some].copy(),
                {name: numbers[some].copy() for name, numbers in block.statistics.items()},
            )
    return found


def rows_text(table: SavedTable, words: Sequence[str]) -> str:
    """Describes the rows of keys: all weights, and the range of the slots."""
    keys = parsed_keys(table, words)
    found = found_rows(table, keys)
    lines = []
    for word, key in zip(words, keys.tolist(), strict=True):
        if key not in found:
            lines.append(f"{table.name} {word}: no row")
            continue
        row = found[key]
        lines.append(f"{table.name} {word}")
        shown = list(map(str, of_known_dtype(row.weights[0])))
        for begin in range(0, len(shown), _MOST_SHOWN):
            head = "weights" if begin == 0 else ""
            lines.append(f"  {head:<8}{' '.join(shown[begin : begin + _MOST_SHOWN])}")
        if row.slots.shape[1]:
            slots = row.slots[0]
            lines.append(
                f"  {'slots':<8}{slots.size}, from {slots.min():g} to {slots.max():g}, mean "
                f"{slots.astype(np.float64).mean():g}"
            )
        for name, numbers in row.statistics.items():
            value = int(numbers[0])
            text = date_text(value / 1000) if name == "last_time_ms" else f"{value:,}"
            lines.append(f"  {name}: {text}")
    return "\n".join(lines)

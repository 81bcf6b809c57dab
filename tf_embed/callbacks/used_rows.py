# SPDX-License-Identifier: Apache-2.0
"""The most used rows of a table, and the norms of all rows, found block by block."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.saving.row_blocks import blocks_of
from tf_embed.table.policies import STATISTICS
from tf_embed.table.table import Table

NORM = "norm"
# Numbers that say how much a row is used. The first that a table has is the measure.
_MEASURES = ("count", "score", "last_step", "last_time_ms", NORM)
_MOST_BYTES = 2**28  # the largest table that is copied in memory
_MOST_NORMS = 2**20


@dataclasses.dataclass(frozen=True)
class RowsWithNumbers:
    """Rows of a table.

    Attributes:
        keys: [n].
        rows: [n, dim], float32.
        numbers: By name the statistics of each row, and its norm; [n].
    """

    keys: np.ndarray
    rows: np.ndarray
    numbers: dict[str, np.ndarray]

    @property
    def measure(self) -> np.ndarray:
        """How much each row is used."""
        return self.numbers[next(name for name in _MEASURES if name in self.numbers)]

    def most_used(self, count: int) -> RowsWithNumbers:
        """The most used rows, in order. Of equally used rows, the longest come first."""
        return self.at(np.lexsort((self.numbers[NORM], self.measure))[::-1][:count])

    def at(self, places: np.ndarray) -> RowsWithNumbers:
        """The rows at these positions, or of this mask."""
        numbers = {name: one[places] for name, one in self.numbers.items()}
        return RowsWithNumbers(self.keys[places], self.rows[places], numbers)

    def and_also(self, more: RowsWithNumbers) -> RowsWithNumbers:
        """These rows and more rows of the table."""
        numbers = {
            name: np.concatenate([one, more.numbers[name]]) for name, one in self.numbers.items()
        }
        keys, rows = np.concatenate([self.keys, more.keys]), np.concatenate([self.rows, more.rows])
        return RowsWithNumbers(keys, rows, numbers)


def used_rows(
    table: Table, most_rows: int, folder: str
) -> tuple[RowsWithNumbers | None, np.ndarray]:
    """Finds the most used rows of a table.

    Rows with a weight that is not finite are left out. Of a table whose parts are in several
    processes, this process reads its own part.

    Args:
        table: The table.
        most_rows: How many rows to return at most.
        folder: A folder for temporary files; see `blocks_of`.

    Returns:
        The rows, the most used first; None if there are none. And the norms of all rows, or of
        evenly spaced rows of a large table.
    """
    used: RowsWithNumbers | None = None
    norms = [np.zeros([0], np.float32)]
    for part in table.parts:
        done = 0
        with tf.device(part.options.device), blocks_of(part, folder, _MOST_BYTES) as blocks:
            stride = math.ceil(blocks.num_rows * len(table.parts) / _MOST_NORMS)
            for keys, rows in blocks:
                block = _with_numbers(part, keys, rows)
                norms.append(block.numbers[NORM][-done % stride :: stride])
                done += len(block.keys)
                block = block.at(np.isfinite(block.numbers[NORM]))
                if used is not None:
                    if len(used.keys) == most_rows:  # sorted, so the last is the least used
                        block = block.at(block.measure >= used.measure[-1])
                    block = used.and_also(block)
                used = block.most_used(most_rows)
    all_norms = np.concatenate(norms)
    return used, all_norms[np.isfinite(all_norms)]


def _with_numbers(part: Table, keys: Any, rows: Any) -> RowsWithNumbers:
    values = rows.numpy().astype(np.float32)
    numbers = {}
    if kept := part.options.statistics:
        # The method of the base, which reads the rows of this process only.
        statistics = Table.row_statistics(part, keys)[0].numpy()
        by_name = dict(zip(STATISTICS, statistics.T, strict=True))
        numbers = {name: by_name[name] for name in STATISTICS if name in kept}
    numbers[NORM] = np.linalg.norm(values, axis=1)
    return RowsWithNumbers(keys.numpy(), values, numbers)

# SPDX-License-Identifier: Apache-2.0
"""Histograms of the rows of a table: their norm, their last use and how often they were used."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping

import numpy as np

from tf_embed.inspect.report import date_text
from tf_embed.inspect.saves import InspectError, SavedTable, floats_of

_MOST_BARS = 20
_BAR = 40  # characters of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"
_TITLES = {
    "norm": "L2 norm of a row",
    "last_step": "last use, by the step of the clock",
    "last_time_ms": "last use",
    "count": "steps with a use, by powers of two",
    "score": "score",
    "last_epoch": "last epoch with a use",
}


class Histogram:
    """Counts numbers in bars of equal width, of which there are few whatever the numbers.

    The width is a power of two and begins small. Bars are merged in pairs if numbers would need too
    many, so one pass over the numbers is enough.
    """

    def __init__(self, *, of_integers: bool = False) -> None:
        self.counts: collections.Counter[int] = collections.Counter()
        self._exponent = 0 if of_integers else -1074  # of the width, from the least float on
        self.not_finite = 0
        self._lowest, self._highest = math.inf, -math.inf

    def add(self, numbers: np.ndarray) -> None:
        """Counts numbers."""
        finite = numbers[np.isfinite(numbers)]
        self.not_finite += len(numbers) - len(finite)
        if not len(finite):
            return
        self._lowest = min(self._lowest, float(finite.min()))
        self._highest = max(self._highest, float(finite.max()))
        # Halved, because the difference of the largest numbers is infinite.
        half = self._highest / 2 - self._lowest / 2
        largest = max(abs(self._lowest), abs(self._highest), 1e-290)
        # Not so narrow that the number of a bar would not be exact.
        least = max(half / _MOST_BARS * 2, largest * 2.0**-40)
        exponent = math.ceil(math.log2(least))
        if exponent > self._exponent:
            merged: collections.Counter[int] = collections.Counter()
            for place, count in self.counts.items():
                merged[place >> (exponent - self._exponent)] += count
            self.counts, self._exponent = merged, exponent
        places, counts = np.unique(np.floor(finite / self.width), return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            self.counts[int(place)] += count

    @property
    def width(self) -> float:
        """The width of a bar."""
        return math.ldexp(1.0, self._exponent)

    def bars(self) -> list[tuple[float, int]]:
        """The lower bound and the count of each bar, without gaps."""
        if not self.counts:
            return []
        first, last = min(self.counts), max(self.counts)
        return [
            (math.ldexp(float(place), self._exponent), self.counts[place])
            for place in range(first, last + 1)
        ]


def histograms_of(table: SavedTable) -> dict[str, Histogram]:
    """Reads all rows, and counts the norms and the statistics."""
    found: dict[str, Histogram] = {}
    for block in table.read():
        if block.weights.dtype != object:
            norms = np.sqrt(np.square(floats_of(block.weights)).sum(axis=1))
            found.setdefault("norm", Histogram()).add(norms)
        for name, numbers in block.statistics.items():
            of_rows = found.setdefault(name, Histogram(of_integers=True))
            of_rows.add(_scaled(name, numbers.astype(np.float64)))
    return found


def _scaled(name: str, numbers: np.ndarray) -> np.ndarray:
    """The numbers of a statistic, as bars count them."""
    if name == "last_time_ms":
        return numbers / 1000
    # A few rows are used far more often than all others.
    return np.floor(np.log2(np.maximum(numbers, 1))) if name == "count" else numbers


def histogram_text(table: SavedTable, found: Mapping[str, Histogram]) -> str:
    """Draws histograms as text."""
    lines: list[str] = []
    for name, histogram in found.items():
        lines += ["", f"{table.name}: {_TITLES[name]}, from ..."]
        bars = histogram.bars()
        most = max((count for _, count in bars), default=1)
        heads = [_bound_text(name, lower) for lower, _ in bars]
        width = max(map(len, heads), default=0)
        for head, (_, count) in zip(heads, bars, strict=True):
            lines.append(f"  {head:>{width}}  {_bar(count / most):<{_BAR}}  {count:,}")
        if histogram.not_finite:
            lines.append(f"  NaN or infinite: {histogram.not_finite:,}")
    if not found:
        lines = ["", f"{table.name}: no rows"]
    return "\n".join(lines[1:])


def _bar(share: float) -> str:
    eighths = math.ceil(share * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _bound_text(name: str, lower: float) -> str:
    """The text of the least number in a bar."""
    if name == "last_time_ms":
        return date_text(lower)
    if name == "norm":
        return f"{lower:.4g}"
    return f"{2.0**lower if name == 'count' else lower:,.0f}"


def write_png(path: str, all_found: Mapping[str, Mapping[str, Histogram]]) -> None:
    """Draws the histograms of all tables, by the tables' names.

    Raises:
        InspectError: If matplotlib is missing, or the file can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InspectError(
            "`--png` needs matplotlib: install it by `pip install matplotlib`."
        ) from (error)
    parts = [
        (table, name, histogram)
        for table, found in all_found.items()
        for name, histogram in found.items()
    ]
    # Not pyplot, which would keep the figure and choose a window system.
    figure = Figure(figsize=(8, 3 * max(1, len(parts))), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (table, name, histogram) in enumerate(parts):
        axes = figure.add_subplot(len(parts), 1, place + 1)
        bars = histogram.bars()
        axes.bar(range(len(bars)), [count for _, count in bars], 1.0, align="edge")
        axes.set_title(f"{table}: {_TITLES[name]}")
        axes.set_ylabel("rows")
        some = range(0, len(bars), max(1, len(bars) // 4))
        axes.set_xticks(list(some), [_bound_text(name, bars[i][0]) for i in some])
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise InspectError(f"'{path}' can't be written: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""Tables of Markdown pages, from which plots are drawn."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Sequence

FIGURES = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "README.md"


def _tables(text: str) -> Iterator[list[list[str]]]:
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [line.strip().strip("|") for line in block.splitlines()]
        yield [[cell.strip() for cell in row.split("|")] for row in rows]


def table_with(heads: Sequence[str], text: str | None = None) -> list[list[str]]:
    """The rows of the first table that has some columns, and of these the cells.

    Args:
        heads: The heads of the columns.
        text: The page. Default: benchmarks/README.md.

    Returns:
        Of each row the cells of those columns.

    Raises:
        ValueError: If there is no such table.
    """
    for head, _, *rows in _tables(FIGURES.read_text() if text is None else text):
        if set(heads) <= set(head):
            places = [head.index(one) for one in heads]
            return [[row[place] for place in places] for row in rows]
    raise ValueError(f"No table of {FIGURES} has the columns {list(heads)}")


def numbers(cell: str) -> list[float]:
    """The numbers in a cell: of "**1.42**" one, of "114, 124" two."""
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", cell)]

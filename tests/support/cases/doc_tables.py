# SPDX-License-Identifier: Apache-2.0
"""The tables of a page on migrating: another library's name, ours, and the difference."""

from __future__ import annotations

import re


def code_in(cell: str) -> list[str]:
    """The pieces of code in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def rows_of(text: str, library: str) -> list[tuple[str, str, str]]:
    """The three cells of each line of the tables, without their heads.

    Args:
        text: The page.
        library: The other library, which heads the first column.
    """
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in rows if row[0] != library and not row[0].startswith("--")]

# SPDX-License-Identifier: Apache-2.0
"""Text in columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def columns(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Returns lines whose cells are aligned.

    Args:
        lines: The cells of each line, equally many.
        left: The numbers of the columns that are aligned to the left. The others are aligned to the
            right, as numbers are.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]

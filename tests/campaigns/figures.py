# SPDX-License-Identifier: Apache-2.0
"""The options that campaigns share, and the line of figures that each prints at its end."""

from __future__ import annotations

import argparse
import collections
import json
import time
from collections.abc import Sequence


def options(doc: str, plants: Sequence[str], stall: float = 60.0) -> argparse.ArgumentParser:
    """A parser of `--seed`, `--stall` and `--plant`.

    Args:
        doc: The campaign's docstring. `--help` shows its first line.
        plants: The names of faults that can be planted.
        stall: The default of `--stall`, seconds.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stall", type=float, default=stall, help="seconds without a word")
    parser.add_argument("--plant", choices=plants, help=argparse.SUPPRESS)
    return parser


def show(
    campaign: str, count: int, failures: int, begin: float, counts: collections.Counter[str]
) -> int:
    """Prints the count of each outcome, then a line of JSON with all figures.

    Args:
        campaign: The campaign's name.
        count: The number of disturbances.
        failures: The number of findings.
        begin: The start time, of `time.monotonic`.
        counts: The count of each outcome.

    Returns:
        The exit status: 1 if there are findings.
    """
    for what, number in sorted(counts.items()):
        print(f"{what:50} {number:8,}")
    line = {
        "campaign": campaign,
        "count": count,
        "failures": failures,
        "seconds": round(time.monotonic() - begin),
        "figures": dict(sorted(counts.items())),
    }
    print(json.dumps(line), flush=True)
    return 1 if failures else 0

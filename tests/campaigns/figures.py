# SPDX-License-Identifier: Apache-2.0
"""The line of figures with which a campaign ends."""

from __future__ import annotations

import collections
import json
import time


def show(
    campaign: str, count: int, failures: int, begin: float, counts: collections.Counter[str]
) -> int:
    """Prints what happened how often, and a line of JSON with all of it.

    Args:
        campaign: The campaign's name.
        count: How many times something was disturbed.
        failures: How many findings there are.
        begin: When it began, of `time.monotonic`.
        counts: What happened how often.

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

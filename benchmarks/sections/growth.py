# SPDX-License-Identifier: Apache-2.0
"""Growing to 10^7 keys from empty: time, the worst batch, memory at the peak."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from machine import LoadWatch
from rows import OURS, Row
from settings import Settings

TFRA = "TFRA"
GROW = pathlib.Path(__file__).parents[1] / "grow.py"


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Grows tables of both implementations in turn, for several rounds."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    # A median of three ignores a single run in which the host took the cores. TFRA's runs take five
    # times as long, and only its ratios are reported.
    rounds = {OURS: 3, TFRA: 1} if settings.quick else {OURS: 5, TFRA: 5}
    found: dict[str, list[dict[str, Any]]] = {OURS: [], TFRA: []}
    watch = LoadWatch()
    # The first runs touch the memory, and report the memory that each batch takes.
    cold = {name: _grow(name, keys, dim) for name in found}
    for number in range(max(rounds.values())):
        for name in (OURS, TFRA) if number % 2 == 0 else (TFRA, OURS):
            if number < rounds[name]:
                found[name].append(_grow(name, keys, dim, cold[name]["needs"]))
    load = watch.load()
    judged = (keys, dim) == (10**7, 64)

    def medians(of: str) -> dict[str, float]:
        return {name: statistics.median(one[of] for one in runs) for name, runs in found.items()}

    def ratio(of: str) -> float:
        pairs = zip(itertools.cycle(found[TFRA]), found[OURS], strict=False)
        return statistics.median(theirs[of] / ours[of] for theirs, ours in pairs)

    yield Row(
        "growth",
        f"all of {part}, batches of 65536",
        "s",
        medians("seconds"),
        load,
        ratios={TFRA: ratio("seconds")},
        figures={"growth_vs_tfra": ratio("seconds")} if judged else {},
    )
    for name, runs in found.items():
        for one in (cold[name], *runs):
            one["over_median"] = max(one["times"]) / statistics.median(one["times"])
            used = one["final"] - one["before"]
            one["peak_over_final"] = (one["peak"] - one["before"]) / used
            one["overhead"] = used / one["keys"] - 8 - 4 * dim
        if any(one["keys"] < keys for one in runs):
            raise RuntimeError(f"{name} lost keys: {runs}.")
    # The n-th batch does the same in each run: delays by the table repeat, delays by the host do
    # not.
    batches = {
        name: [
            statistics.median(times) for times in zip(*(one["times"] for one in runs), strict=True)
        ]
        for name, runs in found.items()
    }
    worst = {name: max(times) for name, times in batches.items()}
    over = {name: worst[name] / statistics.median(times) for name, times in batches.items()}
    yield Row(
        "growth",
        f"worst batch of {part}, of each number's median over the runs",
        "ms",
        {name: seconds * 1e3 for name, seconds in worst.items()},
        load,
        ratios={TFRA: worst[TFRA] / worst[OURS]},
    )
    yield Row(
        "growth",
        f"worst batch of {part} over the median batch, likewise",
        "x",
        over,
        load,
        figures={"growth_worst_over_median": over[OURS]} if judged else {},
    )
    yield Row(
        "growth",
        "the same, each run by itself",
        "x",
        medians("over_median"),
        load,
        note=", ".join(f"{one['over_median']:.1f}" for one in found[OURS]) + f" of {OURS}",
    )
    yield Row(
        "growth",
        f"the same, with what memory the system has: all of {part}",
        "s",
        {name: one["seconds"] for name, one in cold.items()},
        load,
    )
    yield Row(
        "growth",
        "the same: worst batch over the median batch",
        "x",
        {name: one["over_median"] for name, one in cold.items()},
        load,
    )
    yield Row(
        "growth",
        f"peak memory of {part} over final",
        "x",
        medians("peak_over_final"),
        load,
        figures={"growth_peak_over_final": medians("peak_over_final")[OURS]} if judged else {},
    )
    yield Row("growth", f"bytes beyond key and weights, {part}", "B/key", medians("overhead"), load)


def _grow(name: str, keys: int, dim: int, needs: Sequence[int] | None = None) -> dict[str, Any]:
    """Makes a run. `needs` is the warm memory for each batch."""
    command = [sys.executable, os.fspath(GROW), name, str(keys), str(dim)]
    if needs is not None:
        command.append("--warm")
    done = subprocess.run(
        command, input=json.dumps(needs), stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.strip().rpartition("\n")[2])

# SPDX-License-Identifier: Apache-2.0
"""Loads tables for long, with writers, lookups, growth, eviction, tiers and snapshots at once.

    python tests/campaigns/load.py [--seconds=600] [--kinds=removed,tiers] [--processes=1]

Each kind of `load_tables.KINDS` runs in its own process for its share of the time, so
`--processes=6` ends in a sixth of `--seconds`, with six times as many threads. Keys are
drawn by a Zipf law whose hot set drifts. Two threads look up. Three threads write: by upserts, by
accumulation and by steps of an optimizer. A thread restricts the table or drains its eviction log.
Another thread saves snapshots and loads them. A round runs all threads for four fifths of its time,
then the lookups alone. After each round the threads rest, and these are findings:

- a row of a lookup, a snapshot, the log or the table was never written, is torn, or is older than a
  write that had returned before the read;
- a row is missing, or was removed and is still there;
- the statistics (rows, hits, misses, insertions, evictions, refusals) differ from the counts of the
  campaign;
- memory is not flat, see below;
- the process ends, or is silent for `--stall` seconds.

Resident memory is read after each round, once free memory is returned to the system. The first
quarter of the rounds is warm-up. Of the others, the peak of the last third may be 32 MiB above the
peak of the first third. The limit is 64 MiB if a kind has less than a minute, all of which is
warm-up. Fragmentation also grows resident memory, so allocated bytes have a separate limit of 16
MiB.

Latencies are of lookups of 128 keys, measured in the graph, so without Python's lock.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import ctypes
import gc
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # more arenas retain freed memory

import figures
import numpy as np
from killed_process import Process, Report

KINDS = ("removed", "bounded", "restricted", "refusing", "tiers", "tiers-bounded")
PLANTS = ("leak", "count", "row", "kill")
READERS = 2
ROUND_SECONDS = 20.0  # at most
LEAST_ROUNDS, LEAST_SHORT_ROUNDS = 12, 6
WARM_UP = 1 / 4  # share of the rounds
MORE_BYTES, MORE_BYTES_AT_FIRST = 32 << 20, 64 << 20
MORE_IN_USE = 16 << 20
LONG_SECONDS = 60.0
LEAKED_BYTES = 48 << 20  # a round, if a leak is planted
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_starting = threading.Lock()  # a process must not inherit another process's pipe


class Latencies:
    """A histogram of seconds, within 2%, which takes the same memory however long it counts."""

    def __init__(self) -> None:
        self.counts = np.zeros(1400, np.int64)
        self._one = threading.Lock()

    def add(self, seconds: np.ndarray) -> None:
        places = np.log(np.maximum(seconds, 1e-7) / 1e-7) / np.log(1.02)
        with self._one:
            np.add.at(self.counts, places.astype(int).clip(max=len(self.counts) - 1), 1)

    def microseconds(self, part: float) -> float:
        """The latency at a percentile, given as a part of 1."""
        place = np.searchsorted(np.cumsum(self.counts), part * self.counts.sum())
        return float(0.1 * 1.02 ** (place + 0.5))


def together(works: Sequence[Callable[[], None]], seconds: float) -> None:
    """Calls each work repeatedly, in its own thread.

    Raises:
        Exception: The first error of a work.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def repeat(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=repeat, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class _Allocated(ctypes.Structure):
    """The result of mallinfo2 of the C library."""

    _names = ("arena", "pieces", "small", "maps", "mapped", "most", "small_free", "in_use", "free")
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in (*_names, "at_the_end")]


def in_use() -> int:
    """Bytes that this process has allocated, without the free memory that it retains."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Allocated
    allocated = mallinfo()
    return int(allocated.in_use + allocated.mapped)


def memory() -> int:
    """Bytes that this process holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


def flatness(points: Sequence[tuple[float, int]], more: int) -> tuple[float, str]:
    """The slope after warm-up, in bytes an hour, and a message if memory grew, or "".

    Args:
        points: Seconds and bytes of each round.
        more: The growth in bytes that is allowed.
    """
    all_sizes = ", ".join(str(size >> 20) for _, size in points)
    points = points[round(WARM_UP * len(points)) :]
    slope = float(np.polyfit(*zip(*points, strict=True), 1)[0]) * 3600
    third = len(points) // 3
    first, last = (max(size for _, size in part) for part in (points[:third], points[-third:]))
    if last <= first + more:
        return slope, ""
    return slope, (
        f"memory is not flat: {first >> 20} MiB first, {last >> 20} MiB last, of {all_sizes}"
    )


def load(
    name: str, seconds: float, folder: pathlib.Path, plant: str, seed: int, report: Report
) -> None:
    """Runs a kind, and reports its rounds and figures."""
    import load_tables

    table = load_tables.LoadedTable(load_tables.KINDS[name], folder, seed)
    draws = [load_tables.Draw([seed, 10 + i], table.begin) for i in range(READERS)]
    beside, alone = Latencies(), Latencies()
    kept: list[np.ndarray] = []

    def write(writer: int) -> None:
        table.write(writer)
        if plant == "row" and writer == 0:
            table.plant_row()

    def at_intervals(work: Callable[[], None], pause: float) -> Callable[[], None]:
        def paused() -> None:
            time.sleep(pause)
            work()

        return paused

    def readers(latencies: Latencies) -> list[Callable[[], None]]:
        return [lambda draw=draw: latencies.add(table.read(draw)) for draw in draws]

    is_long = seconds >= LONG_SECONDS
    least = LEAST_ROUNDS if is_long else LEAST_SHORT_ROUNDS
    rounds = max(least, round(seconds / ROUND_SECONDS))
    each = seconds / rounds
    others = [lambda writer=writer: write(writer) for writer in range(len(load_tables.WRITERS))]
    others += [at_intervals(table.evict, 0.05), at_intervals(table.snapshot, min(1.0, each / 4))]
    points: list[tuple[float, int]] = []
    allocated: list[tuple[float, int]] = []
    lookups: collections.Counter[str] = collections.Counter()
    spent: collections.Counter[str] = collections.Counter()
    table.read(draws[0])  # traces the functions
    for number in range(rounds):
        for part, works, share in (
            ("beside", readers(beside) + others, 0.8),
            ("alone", readers(alone), 0.2),
        ):
            begin, before = time.monotonic(), table.counts["lookups"]
            together(works, share * each)
            lookups[part] += table.counts["lookups"] - before
            spent[part] += time.monotonic() - begin
        if plant == "count":
            table.variable.lookup([number])
        if plant == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if plant == "leak":
            kept.append(np.ones(LEAKED_BYTES, np.int8))
        table.check_quiet()
        points.append((time.monotonic(), memory()))
        allocated.append((time.monotonic(), in_use()))
        report("round", number=number)
    said = ("written", "removed", "evicted", "refused", "snapshots")
    found = {what: table.counts[what] for what in said}
    for part, latencies in (("beside", beside), ("alone", alone)):
        found[f"lookups a second, {part}"] = round(lookups[part] / spent[part])
        for percentile, share in PERCENTILES.items():
            found[f"{percentile} of lookups, us, {part}"] = round(latencies.microseconds(share))
    slope, wrong = flatness(points, MORE_BYTES if is_long else MORE_BYTES_AT_FIRST)
    slope_in_use, more_wrong = flatness(allocated, MORE_IN_USE)
    wrong = wrong or more_wrong
    found["allocated, MiB"] = allocated[-1][1] >> 20
    found["allocated, MiB an hour"] = round(slope_in_use / 2**20)
    found["rows"] = int(table.variable.size())
    found["memory, MiB"] = points[-1][1] >> 20
    found["memory at most, MiB"] = max(size for _, size in points) >> 20
    found["memory, MiB an hour"] = round(slope / 2**20)
    report("figures", found=found, wrong=wrong, lookups=sum(lookups.values()))
    report("end")


def run_kind(
    name: str, seconds: float, folder: pathlib.Path, arguments: argparse.Namespace
) -> tuple[str, list[dict[str, Any]]]:
    """Runs a kind in a process.

    Args:
        name: A kind of `load_tables.KINDS`.
        seconds: The length of the load.
        folder: An existing folder for this kind alone.
        arguments: With `plant`, `seed` and `stall`.

    Returns:
        A message of its first finding, or "", and its reports of figures.
    """

    def work(report: Report) -> None:
        load(name, seconds, folder, arguments.plant or "", arguments.seed, report)

    with _starting:
        process = Process(work, folder / "errors")
    wrong = process.finding(arguments.stall)
    said = [more for event, more in process.said if event == "figures"]
    return next((text for text in (wrong, *(more["wrong"] for more in said)) if text), ""), said


def main() -> int:
    parser = figures.options(__doc__, PLANTS, stall=120.0)
    parser.add_argument("--seconds", type=float, default=600.0, help="of all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; default: all")
    parser.add_argument("--processes", type=int, default=1, help="kinds at the same time")
    parser.add_argument(
        "--folder", help="on the disk of tables over disk; default: a temporary one"
    )
    arguments = parser.parse_args()
    names = arguments.kinds.split(",")
    if unknown := sorted(set(names) - set(KINDS)):
        parser.error(f"unknown kinds {unknown}")
    if arguments.processes < 1:
        parser.error(f"`--processes` must be at least 1, not {arguments.processes}")
    begin, failures, total = time.monotonic(), 0, 0
    counts: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as parent,
        concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool,
    ):
        folders = [pathlib.Path(parent) / name for name in names]
        for folder in folders:
            folder.mkdir()
        seconds = arguments.seconds / len(names)
        results = pool.map(
            lambda folder: run_kind(folder.name, seconds, folder, arguments), folders
        )
        for name, (wrong, said) in zip(names, results, strict=True):
            for more in said:
                total += more["lookups"]
                counts.update({f"{name}: {what}": found for what, found in more["found"].items()})
            failures += bool(wrong)
            print(f"{name}: {wrong or 'fine'}", flush=True)
    return figures.show("load", total, failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())

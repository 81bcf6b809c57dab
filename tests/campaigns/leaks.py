# SPDX-License-Identifier: Apache-2.0
"""Measures leaks over many cycles that make, use and drop objects of the library.

    python tests/campaigns/leaks.py [--cycles=300] [--kinds=variables,files]

Each kind runs in its own process. Expensive kinds run fewer cycles. For each kind the campaign
prints the slope of the memory in the second half of the cycles, in bytes a cycle, after garbage
collection and `malloc_trim`. The exit status is 1 if a slope is above its bound.

TensorFlow and Keras leak too: a step of a Keras optimizer whose gradients are all dense is never
freed, each save of weights makes variables with new names, and each loaded SavedModel leaves memory
behind. The bound of such a loop is therefore the leak of the same cycles without this library,
measured in the same run, plus a margin for larger graphs.

`--plant` leaks a number of bytes in each cycle, to show that the campaign notices.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BOUND = 2048  # bytes a cycle
SAMPLES = 40
FEWEST = 20  # cycles
LARGER_GRAPH = 1.25  # a step with dynamic rows, relative to a step with dense rows


@dataclasses.dataclass(frozen=True)
class Kind:
    """The settings of a loop.

    Attributes:
        share: The part of the cycles that it runs.
        plain: The loop without this library that gives its bound; "": the bound is `BOUND`.
    """

    share: float = 1.0
    plain: str = ""


KINDS = {
    "variables": Kind(),
    "sharded": Kind(),
    "settings": Kind(),
    "policies": Kind(),
    "drain": Kind(),
    "restrict": Kind(),
    "strings": Kind(),
    "files": Kind(),
    "checkpoint": Kind(),
    "eager": Kind(),
    "graph": Kind(),
    "growth": Kind(),
    "optimizer": Kind(),
    "table_batched": Kind(),
    "weights": Kind(0.1, "plain_weights"),
    "models": Kind(0.02, "plain_models"),
    "wrapped_models": Kind(0.05, "plain_trained_models"),
    "loaded": Kind(0.2, "plain_loaded"),
}


def memory() -> int:
    """Bytes that this process holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope_of(points: list[tuple[int, int]]) -> float:
    """The median of the slopes between all pairs of points, which a few jumps do not move."""
    pairs = [(one, other) for i, one in enumerate(points) for other in points[i + 1 :]]
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)


def child(arguments: argparse.Namespace) -> None:
    """Runs a loop and prints its slope."""
    import leak_loops

    kept = []
    with tempfile.TemporaryDirectory() as folder:
        cycle = getattr(leak_loops, arguments.child)(folder)
        every = max(1, arguments.cycles // SAMPLES)
        points = []
        for i in range(arguments.cycles):
            cycle(i)
            if arguments.plant:
                kept.append(os.urandom(arguments.plant))
            if i == arguments.cycles // 3:
                gc.freeze()  # objects of the warm-up are not searched at each sample
            if i >= arguments.cycles // 2 and i % every == 0:
                points.append((i, memory()))
    print(json.dumps({"slope": slope_of(points)}), flush=True)


def run(name: str, cycles: int, plant: int) -> float:
    """The slope of a loop.

    Raises:
        RuntimeError: The loop failed.
    """
    command = [sys.executable, __file__, f"--child={name}", f"--cycles={cycles}"]
    command += [f"--plant={plant}"]
    # A single arena: further arenas would retain memory that threads have freed.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["slope"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=300)
    parser.add_argument("--kinds", default="", help="comma-separated; default: all")
    parser.add_argument("--plant", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    names = arguments.kinds.split(",") if arguments.kinds else list(KINDS)
    unknown = sorted(set(names) - set(KINDS))
    if unknown or arguments.cycles < 1:
        parser.error(f"unknown kinds {unknown}, or no cycles: {arguments.cycles}")
    failures, begin = 0, time.monotonic()
    for name in names:
        kind, start = KINDS[name], time.monotonic()
        cycles = max(FEWEST, round(arguments.cycles * kind.share))
        wrong, slope, bound = "", float("nan"), float(BOUND)
        try:
            if kind.plain:
                bound += LARGER_GRAPH * max(0.0, run(kind.plain, cycles, 0))
            slope = run(name, cycles, arguments.plant)
        except RuntimeError as error:
            wrong = str(error)
        if slope > bound:
            wrong = "LEAKS"
        failures += bool(wrong)
        print(
            f"{name:14} {slope:11,.0f} bytes a cycle, bound {bound:11,.0f}, {cycles:5} cycles, "
            f"{time.monotonic() - start:4.0f} s  {wrong or 'fine'}",
            flush=True,
        )
    print(
        f"leaks: {len(names)} loops, {arguments.cycles} cycles, "
        f"{time.monotonic() - begin:.0f} s, {failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the contract of variables, policies and files in processes that are disturbed.

    python tests/campaigns/disturbed_suites.py [--only=DISTURBANCE] [--select=EXPRESSION]

What disturbs them is one of DISTURBANCES: TensorFlow's pools have one thread each, the time of day
jumps by up to a day (clock_jumps.cc), or the address space is bounded. It is a finding if a test
fails, or if none is run. Allocators that fail are the business of
tests/cc/core/table/allocation_failure_test.cc, and calls of the file system that of file_faults.py.

`--plant` bounds the address space so that nothing can run, to show that the campaign notices.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

import figures

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITES = (
    "variable/variable_test.py",
    "table/policies_test.py",
    "saving/row_files_test.py",
    "snapshots/snapshots_test.py",
    "serving/follow_test.py",
    "table/storage_test.py",
)
_ONE = "1"


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """How a process is disturbed.

    Attributes:
        environment: Variables of its environment.
        library: The name of a library that is loaded first; "" for none.
        address_bytes: The bound on its address space; 0 for none.
    """

    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    library: str = ""
    address_bytes: int = 0


DISTURBANCES = {
    "address space": Disturbance(address_bytes=6 << 30),
    "clock jumps": Disturbance(library="clock_jumps"),
    "one thread": Disturbance(
        {"TF_NUM_INTRAOP_THREADS": _ONE, "TF_NUM_INTEROP_THREADS": _ONE, "OMP_NUM_THREADS": _ONE}
    ),
}


def run(
    disturbance: Disturbance, select: str, folder: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Runs the suites."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **disturbance.environment}
    if disturbance.library:
        source = pathlib.Path(__file__).with_name(f"{disturbance.library}.cc")
        library = folder / f"{disturbance.library}.so"
        compiler = os.environ.get("CXX", "g++")
        options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, "-o", library, source, "-ldl"], check=True)
        environment["LD_PRELOAD"] = str(library)

    def bound() -> None:
        if disturbance.address_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (disturbance.address_bytes,) * 2)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-m", "not slow and not sampled", *(["-k", select] if select else [])]
    command += [str(ROOT / "tests" / "python" / suite) for suite in SUITES]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        preexec_fn=bound,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(DISTURBANCES), action="append")
    parser.add_argument("--select", default="", help="an expression of pytest's -k; default: all")
    parser.add_argument("--plant", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    begin, failures, tests = time.monotonic(), 0, 0
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or DISTURBANCES:
            disturbance = DISTURBANCES[name]
            if arguments.plant:
                disturbance = dataclasses.replace(disturbance, address_bytes=1 << 28)
            done = run(disturbance, arguments.select, pathlib.Path(folder))
            passed = sum(map(int, re.findall(r"(\d+) passed", done.stdout)))
            tests += passed
            counts[f"{name}: passed"] = passed
            if done.returncode or not passed:
                failures += 1
                print(f"{name}: status {done.returncode}", done.stdout[-5000:], done.stderr[-2000:])
    return figures.show("disturbed_suites", tests, failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Makes each file-changing call of a save fail, and loads the files that are left.

    python tests/campaigns/file_faults.py [--count=0] [--seed=1] [--only=NAME] [--kind=sync]

The savers are `savers.SAVERS`, except backups: Keras writes these by HDF5, which may end the
process (signal 11) if it can't write. A save is repeated. Its first call of a kind fails, then its
second, and so on, either alone or with all later calls. Kinds are the calls that open, write,
truncate, synchronize, rename, link and remove files and make folders. The errors are ENOSPC, as on
a full disk, and EIO, as on a broken disk. `--count` limits the failed calls of each kind, drawn at
random; 0 fails all. The last runs have short writes and slow calls. These are findings:

- a failed save leaves neither the old rows nor the new rows;
- a save that returned without an error does not leave the new rows;
- the message of an error does not name the folder;
- the next save, on a healthy disk, fails or can't be loaded;
- the process ends, or is silent for `--stall` seconds.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import errno
import os
import pathlib
import random
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import file_calls

if __name__ == "__main__":
    file_calls.start_under()

import figures
import tensorflow as tf
from killed_process import Process, Report
from savers import SAVERS, Saver

NAMES = tuple(name for name in SAVERS if name != "backups")
KINDS = tuple(one for one in file_calls.KINDS if one != "mark")
ERRORS = (errno.ENOSPC, errno.EIO)
PLANTS = ("silent", "lost")


class Faults:
    """A saver, and the number that its folder holds."""

    def __init__(self, saver: Saver, plant: str) -> None:
        self.saver, self.plant = saver, plant
        self.number = 1
        saver.save(1)

    def one(self, kind: str, passes: int, error: int, for_good: bool) -> str | None:
        """Makes a call of a save fail.

        Returns:
            The outcome of the save; None if it made no such call.
        """
        before, number = self.number, self.number + 1
        first = file_calls.count(kind)
        file_calls.fail(kind, passes, error, for_good)
        failure: Exception | None = None
        try:
            self.saver.save(number)
        except (tf.errors.OpError, OSError, RuntimeError, ValueError) as raised:
            failure = raised
        is_hit = file_calls.count(kind) - first > passes
        file_calls.fail(kind, 2**62, 0)
        if failure is not None and not is_hit:
            raise failure
        found = self.saver.load()
        if failure is not None and self.plant == "silent":
            failure, found = None, before
        if self.plant == "lost":
            found = None
        allowed = (number,) if failure is None else (before, number)
        if found not in allowed:
            raise RuntimeError(
                f"it must be of {allowed}. Received: {found}, after {failure!r:.500}"
            )
        if failure is not None and str(self.saver.folder) not in str(failure):
            raise RuntimeError(f"the message names no file: {failure!r:.500}")
        self.save_and_load(number + 1)
        if not is_hit:
            return None
        if failure is None:
            return "saved all the same"
        return "error, the new rows are there" if found == number else "error, the old rows are"

    def save_and_load(self, number: int) -> None:
        """Saves without a fault, and loads."""
        self.saver.save(number)
        self.number = number
        if (found := self.saver.load()) != number:
            raise RuntimeError(f"after one more save it must be {number}. Received: {found}")


def disturb(name: str, folder: pathlib.Path, arguments: argparse.Namespace, report: Report) -> None:
    """Saves repeatedly while calls fail, are short or are slow."""
    draw = random.Random(f"{name} {arguments.seed}")
    folder.mkdir()
    file_calls.watch(folder)
    faults = Faults(SAVERS[name](folder), arguments.plant or "")
    for kind in arguments.kind or KINDS:
        before = file_calls.count(kind)
        faults.save_and_load(faults.number + 1)
        calls = file_calls.count(kind) - before
        places = list(range(calls))
        if arguments.count:
            places = sorted(draw.sample(places, min(calls, arguments.count)))
        for passes in places:
            error, for_good = draw.choice(ERRORS), draw.random() < 0.5
            words = f"{kind} {passes}, {os.strerror(error)}{', all later ones' * for_good}"
            report("trying", words=words)
            outcome = faults.one(kind, passes, error, for_good)
            if outcome is not None:
                report("done", outcome=f"{kind}: {outcome}")
    for words, change in (("short writes", file_calls.shorten), ("slow calls", file_calls.slow)):
        report("trying", words=words)
        change(2000)
        faults.save_and_load(faults.number + 1)
        change(0)
        report("done", outcome=words)
    report("end")


def main() -> int:
    parser = figures.options(__doc__, PLANTS, stall=120.0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of calls; all by default")
    arguments = parser.parse_args()
    begin, failures, tried = time.monotonic(), 0, 0
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent).resolve()
        for name in arguments.only or NAMES:
            process = Process(
                lambda report, name=name: disturb(name, folder / name, arguments, report),
                folder / "errors",
            )
            if finding := process.finding(arguments.stall):
                failures += 1
                words = [more["words"] for event, more in process.said if event == "trying"][-1:]
                print(f"{name}, {words}: {finding}", flush=True)
            done = [more["outcome"] for event, more in process.said if event == "done"]
            tried += len(done)
            counts.update(f"{name}: {one}" for one in done)
    file_calls.remove_library()
    return figures.show("file_faults", tried, failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())

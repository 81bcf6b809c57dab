# SPDX-License-Identifier: Apache-2.0
"""Simulates power failures of machines that save tables, and loads the files that are left.

    python tests/campaigns/power_cuts.py [--count=1000] [--seed=1] [--only=NAME]

A process saves the states of tables, and each of its calls that changes a file is logged. The log
is cut at a random moment. `forgetful_disk` makes a folder that a crash at that moment may leave:
unsynchronized changes are there, missing, or there in part. Another process loads it. The saver is
one of `savers.SAVERS`, or "chains": training that saves, folds and removes snapshots of tables in
memory and on disk, as in kill_snapshots.py. These are findings:

- a load raises an error, or gives other rows than were saved;
- a save that had returned is gone, and no later save replaced it;
- a listed snapshot does not load, or had been removed;
- the next save fails, or does not load;
- the log does not reproduce the actual folder, because a call was not seen.

`--plant` makes the disk lose synchronized changes, to show that the campaign notices.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import file_calls

if __name__ == "__main__":
    file_calls.start_under()

import figures
import kill_snapshots
from file_calls import Record
from forgetful_disk import LOSSES, Disk, content_of, put
from killed_process import Finding, Process, Report
from savers import SAVERS

CHAINS = "chains"
SAVES, STEPS = 6, 40
PLANTS = ("files", "folders")

Event = tuple[str, dict[str, Any]]


def logged(work: Callable[[pathlib.Path, Report], None], folder: pathlib.Path) -> list[Record]:
    """The log of the changes that a process makes to a folder."""
    watched, log = folder / "watched", folder / "log"
    watched.mkdir()

    def run(report: Report) -> None:
        file_calls.watch(watched, log)

        def both(event: str, **more: Any) -> None:
            file_calls.mark(json.dumps([event, more]).encode())
            report(event, **more)

        work(watched, both)

    process = Process(run, folder / "errors")
    process.end(kill=False)
    return list(file_calls.records_in(log))


def events_in(records: Sequence[Record]) -> list[Event]:
    """The reports of the process up to the end of the records."""
    return [tuple(json.loads(one.data)) for one in records if one.kind == "mark"]


def save_numbers(name: str, folder: pathlib.Path, report: Report) -> None:
    """Saves each number in turn."""
    saver = SAVERS[name](folder)
    for number in range(1, SAVES + 1):
        report("saving", number=number)
        saver.save(number)
        report("saved", number=number)
    report("ended")  # before tables delete their files


def load_number(name: str, folder: pathlib.Path, first: int, last: int, report: Report) -> None:
    """Loads a number, saves another number, and loads it."""
    found = SAVERS[name](folder).load()
    if not first <= (found or 0) <= last:
        raise RuntimeError(f"it must be of {first} to {last}. Received: {found}")
    report("loaded", number=found)
    SAVERS[name](folder).save(last + 1)
    again = SAVERS[name](folder).load()
    if again != last + 1:
        raise RuntimeError(f"after one more save it must be {last + 1}. Received: {again}")


class Campaign:
    """The folder, and the counts of outcomes and findings."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.folder, self.arguments = folder, arguments
        self.draw = random.Random(arguments.seed)
        self.names = [arguments.only] if arguments.only else [CHAINS, *SAVERS, CHAINS]
        self.counts: collections.Counter[str] = collections.Counter()
        self.cuts = self.failures = self.sessions = 0

    def run(self) -> None:
        """Cuts the power until there are enough cuts, or five findings."""
        while self.cuts < self.arguments.count and self.failures < 5:
            name = self.names[self.sessions % len(self.names)]
            self.sessions += 1
            records = self._session(name)
            for _ in range(min(self.arguments.cuts, self.arguments.count - self.cuts)):
                self.cuts += 1
                place, loss = self._place(records), self.draw.choice(LOSSES)
                try:
                    self._cut(name, records[:place], loss)
                except Finding as finding:
                    self.failures += 1
                    print(
                        f"{name}, session {self.sessions}, cut {self.cuts}, after {place} of "
                        f"{len(records)} calls, {loss}: {finding}",
                        flush=True,
                    )
                    if self.failures == 5:
                        break
                self.counts[f"{name}, {loss}"] += 1
                shutil.rmtree(self.folder / "found", ignore_errors=True)

    def _session(self, name: str) -> list[Record]:
        """The log of a process that saves."""
        folder = self.folder / "session"
        folder.mkdir()
        seed = self.draw.randrange(2**31)
        if name == CHAINS:
            plan = kill_snapshots.Plan(seed, tracked=seed % 8 > 0, last_step=STEPS)
            records = logged(lambda *rest: kill_snapshots.train(plan, *rest), folder)
        else:
            records = logged(lambda *rest: save_numbers(name, *rest), folder)
        whole = Disk(records).after_crash("all stays", self.draw)
        if whole != content_of(folder / "watched"):
            raise Finding(f"{name}: the log does not give the folder: a call was not seen")
        shutil.rmtree(folder)
        return records

    def _place(self, records: Sequence[Record]) -> int:
        """A random moment, or just after a report."""
        marks = [i + 1 for i, one in enumerate(records) if one.kind == "mark"]
        if self.draw.random() < 0.4:
            return self.draw.choice(marks)
        return self.draw.randint(marks[0], len(records))

    def _cut(self, name: str, records: Sequence[Record], loss: str) -> None:
        found = Disk(records, self.arguments.plant or "").after_crash(loss, self.draw)
        folder = self.folder / "found"
        put(found, folder)
        events = events_in(records)
        if name == CHAINS:
            self._check_chains(folder, events)
            return
        saving = [more["number"] for event, more in events if event == "saving"]
        saved = [more["number"] for event, more in events if event == "saved"]
        first, last = max(saved, default=0), max(saving, default=0)
        process = Process(
            lambda report: load_number(name, folder, first, last, report), self.folder / "errors"
        )
        process.wait_for("loaded", self.arguments.stall)
        process.end(kill=False)
        loaded = process.said[0][1]["number"] or 0
        is_new = loaded > first
        self.counts["loaded: a save that had returned"] += not is_new
        self.counts["loaded: a save under way"] += is_new

    def _check_chains(self, folder: pathlib.Path, events: Sequence[Event]) -> None:
        campaign = kill_snapshots.Campaign(folder, self.arguments)
        for event, more in events:
            campaign.note(event, more)
        known = sorted(campaign.known)
        # All snapshots except three count as loaded before, so that a cut loads few.
        campaign.seen = set(self.draw.sample(known, max(0, len(known) - 3)))
        campaign.counts.clear()
        campaign.check(self.cuts)
        self.counts["chains: snapshots loaded"] += campaign.counts["checked"]
        self.counts["chains: of changes"] += campaign.counts["checked, of changes"]
        self.counts["chains: with links"] += campaign.counts["checked, with links"]


def main() -> int:
    parser = figures.options(__doc__, PLANTS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=20, help="of the log of a process")
    parser.add_argument("--only", choices=(CHAINS, *SAVERS), help="what saves; default: all")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(pathlib.Path(folder).resolve(), arguments)
        campaign.run()
    file_calls.remove_library()
    return figures.show("power_cuts", campaign.cuts, campaign.failures, begin, campaign.counts)


if __name__ == "__main__":
    sys.exit(main())

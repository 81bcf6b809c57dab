# SPDX-License-Identifier: Apache-2.0
"""Kills processes that save, fold, keep and load snapshots while they train, at random moments.

    python tests/campaigns/kill_snapshots.py [--kills=200] [--seed=1]

A process loads a snapshot of two tables, in memory or on disk, and continues to train. It saves
snapshots of all rows or of changes, in the foreground or the background, under new and old names.
It folds them, and removes old snapshots by `keep`. SIGKILL hits it at a random moment. Then another
process loads each snapshot that is new or was under way, and some of the others. These are
findings:

- a snapshot does not load, or has other rows or slots than the tables had at that step;
- a snapshot is missing although its save returned, or is listed although it was never saved;
- a snapshot is listed although `keep` removed it, or is gone although it had to stay;
- `keep` leaves a folder of a killed save;
- a process fails, or is silent for `--stall` seconds.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import os
import pathlib
import random
import shutil
import sys
import time
from collections.abc import Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

from killed_process import Finding, Process, Report, run_campaign
from snapshot_tables import Shadow, Tables, are_equal

import tf_embed

STEPS = 300  # steps in a round; then training begins again
ACTIONS = ("save", "save", "save", "changes", "changes", "changes", "changes", "fold", "keep")
# Names that are saved repeatedly. No snapshot of changes builds on them.
REPLACED, FOLDED = "again", "folded"
PLANTS = ("step", "half", "damage", "gone")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of a process.

    Attributes:
        seed: The seed of its draws.
        name: The snapshot that it loads; "" for none.
        step: The step of that snapshot.
        tracked: Whether its tables keep track of changes.
        plant: How it misbehaves, see PLANTS.
        last_step: The step after which it ends.
    """

    seed: int
    name: str = ""
    step: int = 0
    tracked: bool = True
    plant: str = ""
    last_step: int = STEPS


@dataclasses.dataclass(frozen=True)
class Version:
    """A snapshot that a name may stand for.

    Attributes:
        step: The step after which it was begun.
        since: The snapshot that its changes build on; None if it has all rows.
        time: The time just before it was begun; a folded snapshot has its source's time.
    """

    step: int
    since: str | None
    time: float


@dataclasses.dataclass
class Known:
    """The possible states of a name.

    Attributes:
        versions: The snapshots that it may stand for, the current snapshot first.
        is_sure: Whether a snapshot of this name is there.
    """

    versions: list[Version]
    is_sure: bool


# --- The process that is killed -------------------------------------------------------------------


class Saves:
    """Saves, folds or removes snapshots at random, and reports before and after."""

    def __init__(self, snapshots: tf_embed.Snapshots, plan: Plan, report: Report) -> None:
        self._snapshots, self._plan, self._report = snapshots, plan, report
        self._draw = random.Random(plan.seed)
        self._since = plan.name if plan.name not in ("", REPLACED, FOLDED) else None
        self._pending: tf_embed.snapshots.PendingSnapshot | None = None

    def act(self, step: int) -> None:
        """Takes a random action after half of the steps."""
        if self._pending is not None and self._pending.done():
            self.finish()
        if self._draw.random() < 0.5:
            return
        self.finish()
        action = self._draw.choice(ACTIONS)
        if action == "fold":
            self._fold()
        elif action == "keep":
            self._keep()
        else:
            self._save(step, self._since if action == "changes" and self._plan.tracked else None)

    def finish(self) -> None:
        """Waits for the snapshot under way."""
        if self._pending is not None:
            self._pending.wait()
            self._report("saved", name=self._pending.name)
            self._pending = None

    def _save(self, step: int, since: str | None) -> None:
        needed = {info.since for info in self._snapshots.list_snapshots()}
        name = REPLACED if self._draw.random() < 0.2 else f"step-{step:04d}"
        if name in needed or name == since:
            name = f"{name}-{self._plan.seed}"
        wait = not self._plan.tracked or self._draw.random() < 0.5
        self._report("saving", name=name, step=step, since=since, wait=wait, time=time.time())
        self._pending = self._snapshots.save(name, since=since, wait=wait)
        if name != REPLACED:
            self._since = name
        if wait:
            self.finish()

    def _fold(self) -> None:
        found = self._snapshots.list_snapshots()
        names = [info.name for info in found if info.since is not None]
        if not names:
            return
        name = self._draw.choice(names)
        is_needed = any(info.since == name for info in found)
        to = FOLDED if is_needed or self._draw.random() < 0.3 else name
        self._report("folding", name=name, to=to)
        self._snapshots.fold(name, to)
        self._report("folded", to=to)
        if to == self._since and to != name:
            self._since = None  # the new snapshot is of a moment that tables may not know

    def _keep(self) -> None:
        last = self._draw.randint(2, 5)
        self._report("keeping", last=last)
        removed = list(self._snapshots.keep(last))
        left = {info.name for info in self._snapshots.list_snapshots()}
        path = pathlib.Path(self._snapshots.path)
        present = os.listdir(path) if path.exists() else []
        more = [name for name in present if name not in left]
        self._report("kept", removed=removed, more={name: self._files(name) for name in more})
        if self._since not in left:
            self._since = None

    def _files(self, name: str) -> list[str]:
        return sorted(os.listdir(os.path.join(self._snapshots.path, name)))[:20]


def train(plan: Plan, folder: pathlib.Path, report: Report) -> None:
    tables = Tables(random.Random(plan.seed), folder / "tiers", plan.tracked)
    snapshots = tf_embed.Snapshots(folder / "snapshots", tables.variables)
    if plan.name:
        snapshots.load(plan.name)
    report("loaded")
    saves = Saves(snapshots, plan, report)
    for step in range(plan.step + 1, plan.last_step + 1):
        if plan.plant != "step" or step % 7:
            tables.train(step)
        report("step", step=step)
        saves.act(step)
    saves.finish()
    report("end")


def check(
    wanted: dict[str, list[int]], seen: set[str], seed: int, folder: pathlib.Path, report: Report
) -> None:
    """Loads all new snapshots and a few known snapshots, and reports the step of each."""
    draw, shadow = random.Random(seed), Shadow()
    found = tf_embed.Snapshots(folder / "snapshots", []).list_snapshots()
    report("listed", names=[[info.name, [info.since, info.time]] for info in found])
    others = [info for info in found if info.name in seen]
    for info in found:
        if info in others and info not in draw.sample(others, min(2, len(others))):
            continue
        tables = Tables(draw, folder / "checked", tracked=draw.random() < 0.5)
        tf_embed.Snapshots(folder / "snapshots", tables.variables).load(info.name)
        contents = tables.contents()
        steps = [s for s in wanted.get(info.name, ()) if are_equal(contents, shadow.at(s))]
        has_links = any(pathlib.Path(folder, "snapshots", info.name).glob("*.link*"))
        step = steps[0] if steps else None
        report("checked", name=info.name, step=step, has_links=has_links)
        del tables
        gc.collect()
    report("end")


# --- The parent -----------------------------------------------------------------------------------


def read_for(process: Process, seconds: float) -> bool:
    """Reads reports for some time. Returns False if the process ends first."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not process.read(until - time.monotonic()):
            return False
    return True


def wait_for_next(process: Process, event: str) -> bool:
    """Waits until the process reports `event` again. Returns False if it ends first."""
    before = len(process.said)
    while all(one != event for one, _ in process.said[before:]):
        if not process.read(1.0):
            return False
    return True


class Campaign:
    """The folder, its expected snapshots, and the outcomes so far."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.folder, self.stall, self.plant = folder, arguments.stall, arguments.plant or ""
        self.random = random.Random(arguments.seed)
        self.known: dict[str, Known] = {}
        self.seen: set[str] = set()  # snapshots that were loaded since they were written
        self.counts: collections.Counter[str] = collections.Counter()

    def kill_one(self, number: int) -> None:
        r = self.random
        names = sorted(self.known)
        plan = Plan(seed=number, tracked=r.random() < 0.85, plant=self.plant)
        if names:
            newest = max(names, key=lambda name: self._order(name))
            name = newest if r.random() < 0.8 else r.choice(names)
            plan = dataclasses.replace(plan, name=name, step=self.known[name].versions[0].step)
        process = Process(lambda report: train(plan, self.folder, report), self.folder / "errors")
        alive = process.wait_for("step" if r.random() < 0.9 else "loaded", self.stall)
        alive = alive and read_for(process, r.uniform(0.0, 1.2))
        if r.random() < 0.7:  # in the middle of an action
            alive = alive and wait_for_next(process, r.choice(("saving", "folding", "keeping")))
            alive = alive and read_for(process, r.uniform(0.0, 0.06))
        killed = process.end(kill=alive) != 0
        self.counts["killed"] += killed
        at = "loading"
        for event, more in process.said:
            self.note(event, more)
            at = {"saving": "saving", "folding": "folding", "keeping": "keeping"}.get(event, at)
            if event == "saving":
                at = f"saving {'changes' if more['since'] else 'all'}"
                at += "" if more["wait"] else ", training on"
            if event in ("loaded", "saved", "folded", "kept"):
                at = "training"
        if killed:
            self.counts[f"killed while {at}"] += 1
        self.misbehave()
        self.check(number)
        if any(event == "end" for event, _ in process.said):
            self.counts["rounds"] += 1
            self.start_again()

    def note(self, event: str, more: dict[str, Any]) -> None:
        """Updates the expected snapshots from a report of a process."""
        if event == "saving":
            self._may_be(more["name"], Version(more["step"], more["since"], more["time"]))
        elif event == "folding":
            version = self.known[more["name"]].versions[-1]
            self._may_be(more["to"], dataclasses.replace(version, since=None))
        elif event in ("saved", "folded"):
            known = self.known[more["name" if event == "saved" else "to"]]
            known.versions, known.is_sure = known.versions[-1:], True
            self.counts[event] += 1
        elif event == "keeping":
            for name in self._leaving(more["last"]):
                self.known[name].is_sure = False
        elif event == "kept":
            leaving = {name for name, known in self.known.items() if not known.is_sure}
            if set(more["removed"]) != leaving:
                raise Finding(f"keep removed {more['removed']}, and not {sorted(leaving)}")
            if any(more["more"].values()):
                raise Finding(f"keep has left {more['more']}")
            for name in leaving:
                del self.known[name]
            self.counts["kept"] += 1

    def _may_be(self, name: str, version: Version) -> None:
        self.seen.discard(name)
        known = self.known.setdefault(name, Known([], is_sure=False))
        known.versions.append(version)

    def _order(self, name: str) -> tuple[float, str]:
        return self.known[name].versions[0].time, name

    def _leaving(self, last: int) -> Iterable[str]:
        names = sorted(self.known, key=self._order)
        stay: set[str | None] = set()
        for name in names[-last:]:
            needed: str | None = name
            while needed is not None and needed not in stay:
                stay.add(needed)
                needed = self.known[needed].versions[0].since
        return [name for name in names if name not in stay]

    def check(self, number: int) -> None:
        """Checks all snapshots. Snapshots that load become certain."""
        wanted = {name: [one.step for one in known.versions] for name, known in self.known.items()}
        # A process that was killed in `keep` may have left snapshots that it was to remove.
        self.seen -= {name for name, known in self.known.items() if not known.is_sure}
        process = Process(
            lambda report: check(wanted, self.seen, number, self.folder, report),
            self.folder / "errors",
        )
        found: dict[str, tuple[str | None, float]] = {}
        if process.wait_for("listed", self.stall):
            found = dict(process.said[0][1]["names"])
            try:
                self.check_names(found)
            except Finding:
                process.end(kill=True)
                raise
        if wrong := process.finding(self.stall):
            raise Finding(wrong)
        for event, more in process.said:
            if event != "checked":
                continue
            name = more["name"]
            versions = self.known[name].versions
            since, begun = found[name]
            fits = [v for v in versions if (v.step, v.since) == (more["step"], since)]
            fits = [v for v in fits if v.time <= begun]  # two saves may be of the same step
            if not fits:
                raise Finding(f"{name!r} since {since!r} is none of {versions}: {more}")
            self.known[name] = Known(fits[-1:], is_sure=True)
            self.seen.add(name)
            self.counts["checked"] += 1
            self.counts["checked, of changes"] += since is not None
            self.counts["checked, with links"] += more["has_links"]
        for name in set(self.known) - set(found):
            del self.known[name]
            self.counts["uncertain, and not there"] += 1

    def check_names(self, found: Iterable[str]) -> None:
        """Compares the listed names with the expected names."""
        sure = [name for name, known in self.known.items() if known.is_sure]
        if missing := [name for name in sure if name not in found]:
            raise Finding(f"snapshots that were saved are gone: {missing}")
        if more := [name for name in found if name not in self.known]:
            raise Finding(f"snapshots that nobody saved, or that were removed, are listed: {more}")

    def misbehave(self) -> None:
        folders = sorted((self.folder / "snapshots").glob("*/snapshot.json"))
        if not folders or self.plant not in ("half", "damage", "gone"):
            return
        folder = folders[-1].parent
        if self.plant == "half":  # a snapshot without its rows
            shutil.copytree(folder, folder.parent / "half")
            for file in (folder.parent / "half").glob("*.rows"):
                file.unlink()
        elif self.plant == "gone":
            shutil.rmtree(folder)
        else:
            with next(folder.glob("*.rows")).open("r+b") as opened:
                opened.seek(20)
                opened.write(b"damage" * 4)

    def start_again(self) -> None:
        for name in ("snapshots", "tiers", "checked"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.known, self.seen = {}, set()


if __name__ == "__main__":
    sys.exit(run_campaign("kill_snapshots", __doc__, Campaign, PLANTS, kills=200))

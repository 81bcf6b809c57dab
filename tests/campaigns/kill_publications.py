# SPDX-License-Identifier: Apache-2.0
"""Kills publishers and followers of tables at random moments.

    python tests/campaigns/kill_publications.py [--kills=1000] [--seed=1]

A publisher changes two tables and publishes them with a dense weight that holds the step. A
follower loads them into tables in memory or on disk, while one of its threads looks rows up.
SIGKILL hits either process at a random moment, while the other process runs on. A new process
replaces it. A new publisher continues from the last published step. These are findings:

- after an update, the follower's rows and its weight are of different steps;
- a looked-up row is torn or of another key, or goes back to an earlier step within a run of the
  publisher;
- a version goes back, or has another step than was published under it;
- a follower can't load a published version, or does not reach the last version;
- a process fails, or is silent for `--stall` seconds.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pathlib
import random
import shutil
import sys
import threading
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import keras
import numpy as np
import tensorflow as tf
from killed_process import Finding, Process, Report, run_campaign

import tf_embed
from tf_embed.serving import Follower, Publisher

KEYS, BATCH, DIM, STEPS = 4000, 150, 4, 400  # steps of a round; then training begins again
NAMES = ("items", "users")
PLANTS = ("step", "damage", "row", "torn")
_CACHE_BYTES = 300 * DIM * 4


class Shadow:
    """The expected tables after each number of steps: the step that wrote each key; 0: absent."""

    def __init__(self) -> None:
        self._step = 0
        self._last = np.zeros([len(NAMES), KEYS], np.int64)

    def at(self, step: int) -> np.ndarray:
        """For each table and key number, the step that wrote the row last; 0 if it is absent."""
        if step < self._step:
            self.__init__()
        while self._step < step:
            self._step += 1
            for place in range(len(NAMES)):
                written, removed = step_of(place, self._step)
                self._last[place, written] = self._step
                self._last[place, removed] = 0
        return self._last


def step_of(place: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The key numbers that a step writes, and the key numbers that it then removes."""
    draw = np.random.default_rng([place, step])
    # Every 60 steps most rows leave, so that memory is given back.
    removed = draw.choice(KEYS, KEYS * 3 // 4 if step % 60 == 0 else 20, replace=False)
    return draw.choice(KEYS, BATCH, replace=False), removed


def keys_of(numbers: Any) -> np.ndarray:
    """Key numbers as keys, spread over all of int64."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.int64) * 0x61C8864680B583EB


def rows_of(numbers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The rows that steps write, [number of keys, DIM]."""
    return np.stack([steps, numbers, steps * 2, steps + numbers], axis=1).astype(np.float32)


class Model:
    """Two tables, and a layer whose weight is the step.

    Args:
        draw: Draws how many shards each table has, and which are on disk.
        folder: The folder for rows of tables on disk.
        tracked: Whether the tables track changes.
    """

    def __init__(self, draw: random.Random, folder: pathlib.Path, tracked: bool) -> None:
        storage = tf_embed.Storage(host_bytes=_CACHE_BYTES, path=folder)
        self.tables = [
            tf_embed.Variable(
                dim=DIM,
                name=name,
                initializer=0.0,
                policy=tf_embed.TablePolicy(track_changes=tracked),
                devices=["/CPU:0"] * draw.randint(1, 3),
                storage=draw.choice((None, None, storage)),
            )
            for name in NAMES
        ]
        self._layer = keras.layers.Dense(1, use_bias=False, name="step")
        self._layer.build((None, 1))
        self.step = 0
        self.parts = [*self.tables, self._layer]

    @property
    def step(self) -> int:
        """The step in the weight."""
        return int(self._layer.kernel.numpy()[0, 0])

    @step.setter
    def step(self, step: int) -> None:
        self._layer.kernel.assign([[float(step)]])

    def begin_at(self, last: np.ndarray, step: int) -> None:
        """Writes all rows of the state after a step."""
        for place, table in enumerate(self.tables):
            numbers = np.flatnonzero(last[place])
            table.upsert(keys_of(numbers), rows_of(numbers, last[place, numbers]))
        self.step = step

    def make(self, step: int) -> None:
        for place, table in enumerate(self.tables):
            written, removed = step_of(place, step)
            table.upsert(keys_of(written), rows_of(written, np.full(BATCH, step)))
            table.remove(keys_of(removed))
        self.step = step


# --- The processes that are killed ----------------------------------------------------------------


def publish(seed: int, step: int, plant: str, path: pathlib.Path, report: Report) -> None:
    """Continues training from a step, and publishes."""
    draw = random.Random(seed)
    model = Model(draw, path.parent / "trained", tracked=draw.random() < 0.9)
    if step:
        model.begin_at(Shadow().at(step), step)
    publisher = Publisher(
        model.parts, path, keep=draw.randint(1, 4), whole_every=draw.choice((1, 3, 8))
    )
    tracked = model.tables[0].table.options.tracks_changes
    report("ready")
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the campaign
        wait = not tracked or draw.random() < 0.3
        report("publishing", step=step)
        version = publisher.publish(wait=wait, whole=draw.random() < 0.05)
        if wait or draw.random() < 0.5:
            publisher.wait()
            report("published", version=version, step=step)
        if step >= STEPS:
            publisher.wait()
            report("end")
            return
        for _ in range(draw.randint(1, 4)):
            step = min(step + 1, STEPS)
            if plant != "step" or step % 5:
                model.make(step)
            else:
                model.step = step
        time.sleep(draw.choice((0.0, 0.0, 0.01)))


def follow(seed: int, plant: str, path: pathlib.Path, report: Report) -> None:
    """Follows, and compares its rows with the rows of the published step."""
    draw, shadow = random.Random(seed), Shadow()
    model = Model(draw, path.parent / f"served-{os.getpid()}", tracked=False)
    follower = Follower(model.parts, path)
    report("ready")
    over, failures = threading.Event(), []
    reader = threading.Thread(target=look, args=[model, seed, plant, over, failures], daemon=True)
    reader.start()
    parent = os.getppid()  # it ends with the campaign
    while os.getppid() == parent and not (path.parent / "stop").exists():
        try:
            changed = follower.update()
        except tf.errors.NotFoundError:  # the publisher has just removed it
            report("tried again")
            continue
        if failures:
            raise failures[0]
        if not changed:
            time.sleep(draw.choice((0.0, 0.002, 0.01)))
            continue
        if plant == "row":
            model.tables[0].upsert(keys_of([1, 2, 3]), np.ones([3, DIM]))
        for place, table in enumerate(model.tables):
            compare(table, shadow.at(model.step)[place], model.step)
        report("updated", version=follower.version, step=model.step)
    over.set()
    reader.join()
    if failures:
        raise failures[0]
    report("end", version=follower.version)


def compare(table: tf_embed.Variable, last: np.ndarray, step: int) -> None:
    """Raises if a table has other rows than the shadow."""
    keys, rows = (part.numpy() for part in table.export())
    order = np.argsort(keys)
    numbers = np.flatnonzero(last)
    wanted = keys_of(numbers)
    its_order = np.argsort(wanted)
    numbers = numbers[its_order]
    if not np.array_equal(keys[order], wanted[its_order]):
        more, less = np.setdiff1d(keys, wanted), np.setdiff1d(wanted, keys)
        raise RuntimeError(f"step {step}: {len(more)} keys too many, {len(less)} are missing")
    wrong = (rows[order] != rows_of(numbers, last[numbers])).any(axis=1)
    if wrong.any():
        raise RuntimeError(f"step {step}: {wrong.sum()} wrong rows: {rows[order][wrong][:3]}")


def look(
    model: Model, seed: int, plant: str, over: threading.Event, failures: list[BaseException]
) -> None:
    """Looks rows up. Some step must have written each of them to its key."""
    draw = np.random.default_rng(seed)
    try:
        while not over.is_set():
            place = int(draw.integers(len(NAMES)))
            numbers = draw.choice(KEYS, 100, replace=False)
            rows = model.tables[place].lookup(keys_of(numbers)).numpy()
            if plant == "torn":
                rows[0, 2] += 1
            steps = rows[:, 0].astype(np.int64)
            wanted = np.where(steps[:, None] > 0, rows_of(numbers, steps), 0)
            if not np.array_equal(rows, wanted):
                wrong = (rows != wanted).any(axis=1)
                raise RuntimeError(f"a lookup got rows that nothing wrote: {rows[wrong][:3]}")
            for number, step in zip(numbers[:5], steps[:5], strict=True):
                if step and number not in step_of(place, int(step))[0]:
                    raise RuntimeError(f"a lookup got a row of step {step}, which wrote none")
    except BaseException as error:
        failures.append(error)


# --- The parent -----------------------------------------------------------------------------------


class Campaign:
    """The folder, both processes and their reports."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.folder, self.stall, self.plant = folder, arguments.stall, arguments.plant or ""
        self.kills = arguments.kills
        self.random = random.Random(arguments.seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.seed = arguments.seed * 10**6
        self.path = folder / "published"
        self.publisher: Process | None = None
        self.follower: Process | None = None
        self.steps: dict[int, int] = {}  # by published version
        self.announced = {0}  # steps
        self.version = self.step = 0  # the follower's last report

    def kill_one(self, number: int) -> None:
        """Kills a process while the other runs on."""
        r = self.random
        publisher, follower = self._started()
        # Waits for some progress, so that a killed process leaves files for its successor.
        alive = self._listen(publisher, r.choice(("ready", "publishing", "published")))
        self._listen(follower, r.choice(("ready", "ready", "updated")))
        until = time.monotonic() + r.choice((0.0, r.uniform(0, 0.05), r.uniform(0, 0.4)))
        while time.monotonic() < until:
            self._hear(0.005)
        if not alive or any(event == "end" for event, _ in publisher.said):
            return self._end_round()
        side = "publisher" if r.random() < 0.5 else "follower"
        killed = publisher if side == "publisher" else follower
        number_of_signal = killed.end(kill=True)
        self._note()
        if side == "publisher":
            self.publisher = None
        else:
            self.follower, self.version = None, 0
            for rest in self.folder.glob(f"served-{killed.pid}"):
                shutil.rmtree(rest, ignore_errors=True)
        self.counts["killed"] += number_of_signal != 0
        self.counts[f"killed: {side}s"] += number_of_signal != 0
        self._misbehave()
        is_last = self.counts["killed"] == self.kills
        if is_last or r.random() < 0.05:
            self._settle()
        if is_last:
            self.start_again()
        return None

    def _settle(self) -> None:
        """Waits until the follower reaches the first version published after a kill."""
        publisher, _ = self._started()
        before = len(publisher.said)
        until = time.monotonic() + self.stall
        while True:
            self._hear(0.02)
            if any(event == "end" for event, _ in publisher.said):
                return  # `_end_round` checks a publisher that has finished
            new = [more for event, more in publisher.said[before:] if event == "published"]
            if new and self.version >= new[0]["version"]:
                self.counts["settled"] += 1
                return
            if time.monotonic() > until:
                raise Finding(f"it came to version {self.version}, and these are there: {new}")

    def _started(self) -> tuple[Process, Process]:
        self.seed += 1
        seed, path = self.seed, self.path
        if self.publisher is None:
            step, plant = self._last_step(), self.plant
            self.publisher = Process(
                lambda report: publish(seed, step, plant, path, report),
                self.folder / "publisher-errors",
            )
        if self.follower is None:
            self.follower = Process(
                lambda report: follow(seed, self.plant, path, report),
                self.folder / "follower-errors",
            )
        return self.publisher, self.follower

    def _last_step(self) -> int:
        return self.steps[max(self.steps)] if self.steps else 0

    def _hear(self, seconds: float) -> None:
        assert self.publisher is not None and self.follower is not None
        for process in (self.publisher, self.follower):
            if not process.read(seconds) and not any(one == "end" for one, _ in process.said):
                process.end(kill=False)
                raise Finding("it ended before it was killed")
        self._note()

    def _listen(self, process: Process, event: str) -> bool:
        """Waits until a process has reported `event` or its end."""
        until = time.monotonic() + self.stall
        while all(one not in (event, "end") for one, _ in process.said):
            if time.monotonic() > until:
                raise Finding(f"it said nothing of {event!r} for {self.stall} s: {process.said}")
            self._hear(0.02)
        return True

    def _note(self) -> None:
        for process in (self.publisher, self.follower):
            while process is not None and len(process.said) > getattr(process, "noted", 0):
                noted = getattr(process, "noted", 0)
                event, more = process.said[noted]
                process.noted = noted + 1  # type: ignore[attr-defined]
                if event == "publishing":
                    self.announced.add(more["step"])
                elif event == "published":
                    self.counts["published"] += 1
                    self._agree(**more)
                elif event == "updated":
                    self._check_update(**more)
                elif event == "tried again":
                    self.counts["tried again"] += 1

    def _agree(self, version: int, step: int) -> None:
        if self.steps.setdefault(version, step) != step:
            raise Finding(f"version {version} is of step {self.steps[version]} and of step {step}")

    def _check_update(self, version: int, step: int) -> None:
        self.counts["updated"] += 1
        if version <= self.version:
            raise Finding(f"version {self.version} was followed by version {version}")
        if step not in self.announced:
            raise Finding(f"version {version} has step {step}, which was never published")
        self._agree(version, step)
        self.version, self.step = version, step

    def _end_round(self) -> None:
        """Checks that the follower reaches the last version of a finished publisher."""
        assert self.publisher is not None and self.follower is not None
        self.publisher.end(kill=False)
        self._note()
        last = max(self.steps)
        until = time.monotonic() + self.stall
        while self.version < last:
            if time.monotonic() > until or not self.follower.read(0.05):
                raise Finding(f"it came to version {self.version}, and {last} is there")
            self._note()
        (self.folder / "stop").touch()
        self.follower.end(kill=False)
        self._note()
        if self.step != STEPS:
            raise Finding(f"the last step that was served is {self.step}")
        self.counts["rounds"] += 1
        self.start_again()

    def _misbehave(self) -> None:
        if self.plant != "damage":
            return
        for rows in self.path.glob("*/*.rows"):
            with contextlib.suppress(OSError), rows.open("r+b") as opened:
                opened.seek(20)
                opened.write(b"damage" * 4)

    def start_again(self) -> None:
        """Ends both processes and deletes their files."""
        for process in (self.publisher, self.follower):
            if process is not None:
                with contextlib.suppress(Finding, OSError):
                    process.end(kill=True)
        self.publisher = self.follower = None
        for name in os.listdir(self.folder):
            path = self.folder / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        self.steps, self.announced, self.version, self.step = {}, {0}, 0, 0


if __name__ == "__main__":
    sys.exit(run_campaign("kill_publications", __doc__, Campaign, PLANTS, kills=1000))

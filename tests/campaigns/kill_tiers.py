# SPDX-License-Identifier: Apache-2.0
"""Kills processes that train and save a model with rows on disk, at random moments.

    python tests/campaigns/kill_tiers.py [--kills=100] [--seed=1]

A process trains a Keras model whose table has a small cache over files. The table grows by new
keys, and shrinks by removals of an eighth of all ids. Every few steps the process saves a
checkpoint, the files of `save_rows`, and at times a `.keras` file. SIGKILL comes while it
makes the table, restores, trains, removes or saves. The next process continues from the last
checkpoint in the same folder, with one shard or two. These are findings:

- a restored table, model or file differs in a bit from a table in memory after as many steps;
- a finished save is gone;
- a new table has rows or files of the dead process;
- leftover files are not removed, or not kept unchanged with `keep_leftovers`;
- a process fails, or is silent for `--stall` seconds.

Processes are forked after the import of TensorFlow and before its first op, so they need not repeat
the import.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import hashlib
import os
import pathlib
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import keras
import numpy as np
import tensorflow as tf
from killed_process import Finding, Process, Report, run_campaign

import tf_embed

DIM, FIELDS, BATCH, IDS = 16, 4, 256, 40_000
CACHE_BYTES = 3000 * (DIM * 4 * 3 + 8)  # with Adam's slots
STEPS, SAVE_STEPS = 200, 5  # steps in a round; then training begins again
REMOVE_STEPS, PARTS = 7, 8
KEY_OF_ID = 0x61C8864680B583EB  # the factor from an id to its key
KERAS_EVERY = 4  # saves
PLANTS = ("step", "damage", "files")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of a process.

    Attributes:
        shards: The number of shards of the table.
        keep: Whether it keeps the files of the previous process.
        extra: A second save that it restores and compares: "keras", "files" or "".
        plant: How it misbehaves, see PLANTS.
    """

    shards: int = 1
    keep: bool = False
    extra: str = ""
    plant: str = ""


# --- The process that is killed -------------------------------------------------------------------


def batch_of(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids and labels of a step: a function of its number."""
    ids = tf.random.stateless_uniform([BATCH, FIELDS], [7, step], maxval=IDS, dtype=tf.int64)
    labels = tf.reduce_sum(ids % 7, 1, keepdims=True) > 12
    return ids * KEY_OF_ID, tf.cast(labels, tf.float32)


def model_of(storage: tf_embed.Storage | None, shards: int) -> tuple[keras.Model, Any]:
    keras.utils.set_random_seed(1)
    layer = tf_embed.layers.DynamicEmbedding(
        DIM, optimizer="adam", storage=storage, name="items", devices=["/CPU:0"] * shards
    )
    model = keras.Sequential(
        [
            keras.Input([FIELDS], dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model, layer


def digest(arrays: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def table_of(variable: tf_embed.Variable) -> str:
    """A digest of all rows with their slots."""
    keys, rows, slots = (part.numpy() for part in variable.table.export()[:3])
    order = np.argsort(keys)
    return digest([keys[order], rows[order], slots[order]])


def state_of(model: keras.Model) -> dict[str, str]:
    dense = [*model.layers[-1].weights, *model.optimizer.variables]
    return {"table": table_of(model.layers[0].variable), "dense": digest(map(np.asarray, dense))}


class Removals(keras.callbacks.Callback):
    """Removes an eighth of all ids every few steps, each time the next eighth, and reports it."""

    def __init__(self, report: Report):
        super().__init__()
        self.report = report

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        number, rest = divmod(int(self.model.optimizer.iterations), REMOVE_STEPS)
        if rest:
            return
        variable = self.model.layers[0].variable
        before = int(variable.size())
        self.report("removing")
        variable.remove(tf.range(number % PARTS, IDS, PARTS, dtype=tf.int64) * KEY_OF_ID)
        self.report("removed", rows=before - int(variable.size()))


class Saves(keras.callbacks.Callback):
    """Saves in three ways and reports before and after."""

    def __init__(self, folder: pathlib.Path, report: Report, manager: tf.train.CheckpointManager):
        super().__init__()
        self.folder, self.report, self.manager = folder, report, manager

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations)
        self.report("step", step=step)
        if step % SAVE_STEPS:
            return
        self.save("checkpoint", step, lambda: self.manager.save(checkpoint_number=step))
        variable = self.model.layers[0].variable
        self.save("files", step, lambda: variable.save_rows(self.folder / "files"))
        if step // SAVE_STEPS % KERAS_EVERY == 0:
            self.save("keras", step, self.save_keras)

    def save(self, how: str, step: int, do: Callable[[], Any]) -> None:
        self.report("saving", how=how, step=step)
        do()
        self.report("saved", how=how, step=step)

    def save_keras(self) -> None:  # Keras overwrites in place, so this renames
        self.model.save(self.folder / "unfinished.keras")
        os.replace(self.folder / "unfinished.keras", self.folder / "whole.keras")


def train(plan: Plan, folder: pathlib.Path, report: Report) -> None:
    tf.config.experimental.enable_op_determinism()
    storage = tf_embed.Storage(
        host_bytes=CACHE_BYTES, path=folder / "tiers", keep_leftovers=plan.keep
    )
    report("making")
    model, layer = model_of(storage, plan.shards)
    variable = layer.variable
    if plan.plant == "files":
        (folder / "tiers" / "items-0" / "rows-00000000000000aa.seg").touch()
    files = [str(file) for file in (folder / "tiers").glob("items-[01]/rows-*")]
    mine = [file for file in files if int(pathlib.Path(file).parent.name[-1]) < plan.shards]
    report("made", rows=int(variable.size()), exported=len(variable.export()[0]), files=mine)
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        step = int(model.optimizer.iterations)
        report("restored", how="checkpoint", step=step, state=state_of(model))
    restore_extra(plan.extra, folder, report)
    first = int(model.optimizer.iterations)
    if plan.plant == "step":
        first += 1  # leaves a step out
    batches = tf.data.Dataset.range(first, STEPS).map(batch_of)
    callbacks = [Removals(report), Saves(folder, report, manager)]
    model.fit(layer.prefetch(batches), shuffle=False, verbose=0, callbacks=callbacks)
    report("end", rows=int(variable.size()), stats=variable.stats())


def restore_extra(how: str, folder: pathlib.Path, report: Report) -> None:
    """Restores another kind of save, next to the trained table."""
    if how == "keras" and (folder / "whole.keras").exists():
        model = keras.models.load_model(folder / "whole.keras")
        report("restored", how=how, step=int(model.optimizer.iterations), state=state_of(model))
        del model
        gc.collect()
    if how == "files" and (folder / "files").exists():
        other = tf_embed.Variable(dim=DIM, name="items", devices=["/CPU:0"] * 3)
        try:
            other.load_rows(folder / "files")
        except tf.errors.NotFoundError as error:  # right, if no save was finished
            report("none", how=how, error=str(error)[:300])
            return
        report("restored", how=how, step=None, state={"table": table_of(other)})


def wanted_states(report: Report) -> None:
    """Reports the state of a table in memory after each save of a round."""
    tf.config.experimental.enable_op_determinism()
    model, _ = model_of(None, 1)
    for first in range(0, STEPS, SAVE_STEPS):
        batches = tf.data.Dataset.range(first, first + SAVE_STEPS).map(batch_of)
        model.fit(batches, shuffle=False, verbose=0, callbacks=[Removals(report)])
        report("state", step=first + SAVE_STEPS, state=state_of(model))
    report("end", rows=int(model.layers[0].variable.size()))


# --- The parent -----------------------------------------------------------------------------------


class Campaign:
    """The folder, its saves, and the outcomes so far."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace):
        self.folder, self.stall, self.plant = folder, arguments.stall, arguments.plant
        self.random = random.Random(arguments.seed)
        self.wanted: dict[int, dict[str, str]] = {}
        self.finished: dict[str, int] = {}  # the last step of each kind of save
        self.begun: dict[str, int] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.count_states()

    def count_states(self) -> None:
        process = Process(wanted_states, self.folder / "errors")
        if wrong := process.finding(self.stall):
            raise Finding(wrong)
        for event, more in process.said:
            if event == "state":
                self.wanted[more["step"]] = more["state"]

    def tiers(self) -> dict[str, dict[str, int]]:
        """The files of each table's folder, with their lengths."""
        parent = self.folder / "tiers"
        folders = sorted(parent.iterdir()) if parent.exists() else []
        return {
            one.name: {file.name: file.stat().st_size for file in one.iterdir()} for one in folders
        }

    def kill_one(self, number: int) -> None:
        r = self.random
        plan = Plan(
            shards=r.choice((1, 1, 2)),
            keep=r.random() < 0.3,
            extra=r.choice(("", "", "", "files", "files", "keras")),
            plant=self.plant or "",
        )
        left = self.tiers()
        process = Process(lambda report: train(plan, self.folder, report), self.folder / "errors")
        # Most processes die in training, some before it, and some run to the end of the round.
        chance = r.random()
        event, most = ("step", 1.2) if chance < 0.7 else ("making", 0.8)
        if chance > 0.95:
            event, most = "end", 0.0
        alive = process.wait_for(event, self.stall)
        if not alive and not any(one == "end" for one, _ in process.said):
            process.end(kill=False)
            raise Finding("it ended before it trained")
        until = time.monotonic() + r.uniform(0.0, most)
        while alive and time.monotonic() < until:
            alive = process.read(until - time.monotonic())
        killed = process.end(kill=alive and event != "end") != 0
        self.counts["killed"] += killed
        self.note(process.said, killed)
        self.check_leftovers(plan, left, process.said, killed)
        if any(event == "end" for event, _ in process.said):
            self.start_again()
        if self.plant == "damage":
            self.damage()

    def note(self, said: list[tuple[str, dict[str, Any]]], killed: bool) -> None:
        """Counts the events of a process, and compares its restored states."""
        at = "starting"
        for event, more in said:
            if event == "made" and (more["rows"] or more["exported"] or more["files"]):
                raise Finding(f"a new table has rows or files of a dead process: {more}")
            if event == "restored":
                self.check_restored(more)
            if event == "none" and more["how"] in self.finished:
                raise Finding(f"a finished save is gone: {more}")
            if event == "end":
                self.counts["rounds"] += 1
            if event in ("saving", "saved"):
                (self.begun if event == "saving" else self.finished)[more["how"]] = more["step"]
            self.counts["saves"] += event == "saved"
            self.counts["rows removed"] += more["rows"] if event == "removed" else 0
            at = {"saving": f"saving {more.get('how')}", "making": "making the table"}.get(event)
            at = "removing rows" if event == "removing" else at
            at = at or {"made": "restoring", "restored": "starting to train"}.get(event, "training")
        if killed:
            self.counts[f"while {at}"] += 1

    def check_restored(self, more: dict[str, Any]) -> None:
        how, step, state = more["how"], more["step"], more["state"]
        if step is None:  # files don't know their step
            steps = [s for s, one in self.wanted.items() if one["table"] == state["table"]]
            if not steps:
                raise Finding(f"{how}: rows of no step. Received: {more}")
            step = steps[0]
        elif self.wanted.get(step) != state:
            raise Finding(f"{how}: step {step} must be {self.wanted.get(step)}. Received: {more}")
        first, last = self.finished.get(how, 0), self.begun.get(how, 0)
        if not first <= step <= last:
            raise Finding(f"{how}: it must be of steps {first} to {last}. Received: {more}")
        self.counts[f"restored {how}"] += 1

    def check_leftovers(
        self,
        plan: Plan,
        left: dict[str, dict[str, int]],
        said: list[tuple[str, dict[str, Any]]],
        killed: bool,
    ) -> None:
        """Checks the leftover files of the previous process."""
        now = self.tiers()
        for name in now:
            if ".kept-" in name:
                shutil.rmtree(self.folder / "tiers" / name)
        through = {event if event != "restored" else more["how"] for event, more in said}
        for shard in range(plan.shards):
            self.check_folder(f"items-{shard}", "made" in through, plan, left, now)
            # A restore of a table fills a second folder, and then drops the first.
            self.check_folder(f"items-{shard}.2", "checkpoint" in through, plan, left, now)
        if not killed:
            mine = [name for name in now if name not in left and ".kept-" not in name]
            if mine:
                raise Finding(f"a process that came to its end left {mine}")

    def check_folder(
        self,
        name: str,
        is_through: bool,
        plan: Plan,
        left: dict[str, dict[str, int]],
        now: dict[str, dict[str, int]],
    ) -> None:
        """Checks the leftovers of a folder, if the process has handled them."""
        if not is_through:
            return
        has_rows = any(file.startswith("rows-") for file in left.get(name, {}))
        kept = [now[one] for one in now if one.startswith(f"{name}.kept-")]
        if kept != ([left[name]] if has_rows and plan.keep else []):
            raise Finding(f"{name}: {plan} kept {kept} of {left.get(name)}")
        self.counts["leftovers kept" if plan.keep else "leftovers removed"] += has_rows

    def start_again(self) -> None:
        for name in ("checkpoints", "files"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "whole.keras").unlink(missing_ok=True)
        self.finished, self.begun = {}, {}

    def damage(self) -> None:
        for file in (self.folder / "checkpoints").glob("*.data-*"):
            with file.open("r+b") as opened:
                opened.seek(file.stat().st_size // 2)
                opened.write(b"damage" * 10)


if __name__ == "__main__":
    sys.exit(run_campaign("kill_tiers", __doc__, Campaign, PLANTS, kills=100))

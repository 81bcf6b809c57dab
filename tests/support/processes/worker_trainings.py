# SPDX-License-Identifier: Apache-2.0
"""Trainings of `worker_models` on the workers of a strategy. A program for `worker_programs`.

The setups are in the file plan.json of the folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import tf_embed
from support.processes.worker_models import Setup, Training
from support.processes.worker_programs import run_as_worker
from tf_embed import distributed

SAVE_STEPS = 10  # between two checkpoints of a custom loop


def write_plan(folder: pathlib.Path, setups: Sequence[Setup], **more: Any) -> None:
    """Writes the plan that the workers read."""
    plan = {"setups": [dataclasses.asdict(one) for one in setups], **more}
    (folder / "plan.json").write_text(json.dumps(plan))


def read_plan(folder: str) -> tuple[list[Setup], dict[str, Any]]:
    """Reads the plan in a worker."""
    plan = json.loads((pathlib.Path(folder) / "plan.json").read_text())
    return [Setup(**one) for one in plan.pop("setups")], plan


def parity(strategy: Any, rank: int, folder: str) -> Any:
    """Trains all setups in sequence. Returns the final state and the losses of each."""
    del rank
    setups, _ = read_plan(folder)
    found = []
    for setup in setups:
        training = Training(setup, strategy)
        losses = training.train()
        found.append((training.state(), losses))
    return found


# --- A chain of numbers of workers ----------------------------------------------------------------


class AfterRestore(keras.callbacks.Callback):
    """Records the state when `fit` begins. It must follow BackupAndRestore in the list."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training, self.state = training, None

    def on_train_begin(self, logs: Any = None) -> None:
        self.state = self.training.state()


def link(strategy: Any, rank: int, folder: str) -> Any:
    """Loads the save of another number of workers, continues to train, and saves.

    The plan has the `way` of saving, the number of the `link`, from 0, and the `end`, an epoch.
    """
    (setup,), plan = read_plan(folder)
    _, found = one_link(strategy, rank, pathlib.Path(folder), setup, **plan)
    return found


def one_link(
    strategy: Any, rank: int, folder: pathlib.Path, setup: Setup, way: str, link: int, end: int
) -> tuple[Training, Any]:
    """The final training; its states after the load and at the save, and its losses."""
    before, after = folder / str(link - 1), folder / str(link)
    after.mkdir(exist_ok=True)
    model = None
    if way == "keras" and link:
        with strategy.scope():
            model = keras.saving.load_model(before / "model.keras")
    training = Training(setup, strategy, model)
    found: dict[str, Any] = {}
    if way == "backup":
        backup = tf_embed.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
        begun = AfterRestore(training)
        found["losses"] = training.fit(end, backup, begun)
        found["loaded"] = begun.state
    elif way == "keras":
        found["loaded"] = training.state()
        epoch = training.step_number() // setup.epoch_steps
        found["losses"] = training.fit(end, initial_epoch=epoch)
        training.model.save(after / "model.keras")  # all workers call it; the chief's file stays
    else:
        checkpoint = tf.train.Checkpoint(optimizer=training.optimizer, model=training.model)
        if way == "rows":
            parts = {name: training.model.get_layer(name) for name in ("hidden", "last")}
            checkpoint = tf.train.Checkpoint(optimizer=training.optimizer, **parts)
        if link:
            if way == "rows":
                for table in training.tables().values():
                    table.load_rows(before / "rows")
            checkpoint.read(str(before / "checkpoint-0")).assert_existing_objects_matched()
        found["loaded"] = training.state()
        found["losses"] = training.loop(end * setup.epoch_steps)
        if way == "rows":
            for table in training.tables().values():
                table.save_rows(after / "rows")
        checkpoint.write(str(after / f"checkpoint-{rank}"))  # all call it; that of 0 is read
    found["saved"] = training.state()
    found["here"] = sum(len(table.export()[0]) for table in training.tables().values())
    return training, found


# --- Workers that are killed ----------------------------------------------------------------------


class Progress(keras.callbacks.Callback):
    """Reports this worker's number of steps to the campaign."""

    def __init__(self, path: pathlib.Path, training: Training) -> None:
        super().__init__()
        self._training = training
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self.tell(0)

    def tell(self, step: int) -> None:
        os.pwrite(self._file, f"{os.getpid()} {step:8}\n".encode(), 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.tell(self._training.step_number())


def resumed(strategy: Any, rank: int, folder: str) -> Any:
    """Trains from the last checkpoint to the end, or until another worker is lost."""
    (setup,), _ = read_plan(folder)
    home = pathlib.Path(folder)
    training = Training(setup, strategy)
    progress = Progress(home / f"progress.{rank}", training)
    begun = training.step_number()
    try:
        if setup.way == "fit":
            backup = tf_embed.callbacks.BackupAndRestore(home / "backup")
            losses = training.fit(setup.epochs, backup, progress)
            begun = (min(losses, default=setup.epochs)) * setup.epoch_steps
        else:
            losses = loop_with_checkpoints(training, strategy, rank, home, progress)
            begun = min(losses, default=setup.steps + 1) - 1
    except (distributed.WorkerLostError, tf.errors.OpError) as error:
        return {"lost": f"{type(error).__name__}: {error}", "time": time.time()}
    return {"state": training.state(), "losses": losses, "begun": begun}


def loop_with_checkpoints(
    training: Training, strategy: Any, rank: int, home: pathlib.Path, progress: Progress
) -> Any:
    """A custom loop that saves checkpoints. All workers read the chief's checkpoint."""
    checkpoint = tf.train.Checkpoint(optimizer=training.optimizer, model=training.model)
    chiefs = home / "checkpoints"
    own = chiefs if tf_embed.distributed.is_chief(strategy) else home / f"unused-{rank}"
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
    if latest := tf.train.latest_checkpoint(str(chiefs)):
        checkpoint.restore(latest).assert_existing_objects_matched()

    def after_step(step: int) -> None:
        progress.tell(step)
        if step % SAVE_STEPS == 0:
            with tf_embed.distributed.timeout(60):
                manager.save(checkpoint_number=step)

    return training.loop(training.setup.steps, after_step)


if __name__ == "__main__":
    run_as_worker(globals())

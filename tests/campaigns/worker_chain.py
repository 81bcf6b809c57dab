# SPDX-License-Identifier: Apache-2.0
"""Trains with a changing number of workers: 4, then 2, then 3, then one process that serves.

    python tests/campaigns/worker_chain.py [--workers 4 2 3] [--epoch-steps=25] [--data=made]

Each link of the chain loads the save of the previous link, trains an epoch of flights, real or
synthetic, and saves. The last link runs in this process, without a strategy. The ways of saving are

    rows        row files of the tables, and a tf.train.Checkpoint of dense weights and optimizer,
                in a custom loop
    checkpoint  a tf.train.Checkpoint of everything, in a custom loop
    backup      BackupAndRestore, in `fit`
    keras       a .keras file, in `fit`

On each worker a load must restore the saved rows, slots and dense weights bit for bit. The final
losses and rows must equal the results of one process that trained without a break, by rtol 2e-5 and
atol 2e-6. The last link exports a SavedModel, which must predict the same.

It prints a line for each link. The exit status is 1 if a comparison fails.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf

from support.processes import worker_models, worker_programs, worker_trainings
from support.processes.worker_models import Setup, State, Training

SAVES = {"rows": "loop", "checkpoint": "loop", "backup": "fit", "keras": "fit"}
SECONDS = 240  # far more than a link takes


def changed(state: State, expected: State) -> list[str]:
    """The names of values that differ in a bit."""
    names = state.keys() & expected.keys()
    different = [name for name in names if not np.array_equal(state[name], expected[name])]
    return sorted([*different, *(state.keys() ^ expected.keys())])


def served_gap(training: Training, folder: pathlib.Path) -> float:
    """The greatest difference between predictions of a SavedModel and of `predict`."""
    ids, _ = worker_models.read(training.setup)
    predicted = training.model.predict(worker_models.dataset(training.setup), verbose=0)
    training.model.export(folder / "served", verbose=False)
    loaded = tf.saved_model.load(str(folder / "served"))
    served = loaded.serve({name: tf.constant(column) for name, column in ids.items()})
    return worker_models.gap(served, predicted)


class Chain:
    """A chain of links that save in the same way."""

    def __init__(self, way: str, setup: Setup, workers: list[int], folder: pathlib.Path) -> None:
        self.way, self.setup, self.workers, self.folder = way, setup, workers, folder
        self.losses: dict[int, float] = {}
        self.saved: State | None = None

    def run(self, expected: State, expected_losses: Any) -> bool:
        """Runs all links, and returns whether all comparisons hold."""
        good = True
        for number in range(len(self.workers)):
            good &= self._link(number)
        strategy = tf.distribute.get_strategy()
        number = len(self.workers)
        plan = {"way": self.way, "link": number, "end": number + 1}
        training, found = worker_trainings.one_link(strategy, 0, self.folder, self.setup, **plan)
        good &= self._check(1, [found])
        end = worker_models.compare(found["saved"], self.losses, expected, expected_losses)
        complete = len(self.losses) == len(expected_losses)
        served = served_gap(training, self.folder)
        good &= not end.wrong and complete and served <= worker_models.ATOL
        print(
            f"{self.way:10} the end: loss {end.loss:.1e}  rows {end.rows:.1e}  dense "
            f"{end.dense:.1e}  of {worker_models.rows_of(expected)} rows, {len(self.losses)} losses"
            f"  served {served:.1e}  {'ok' if good else 'NOT THE SAME: ' + ', '.join(end.wrong)}",
            flush=True,
        )
        return good

    def _link(self, number: int) -> bool:
        workers = self.workers[number]
        worker_trainings.write_plan(
            self.folder, [self.setup], way=self.way, link=number, end=number + 1
        )
        program, name = worker_trainings.__file__, str(self.folder)
        launched = worker_programs.launch(program, ["link"], workers, name, SECONDS)
        if launched.code or len(launched.results) != workers:
            print(launched.printed[-5000:])
            raise SystemExit(f"{self.way}: {workers} workers ended with {launched.code}")
        return self._check(workers, [one["link"] for one in launched.results.values()])

    def _check(self, workers: int, found: list[Any]) -> bool:
        """Compares each worker's loaded state with the save, and the workers' new states."""
        wrong = []
        for one in found:
            if self.saved is not None:
                wrong += changed(one["loaded"], self.saved)
            wrong += changed(one["saved"], found[0]["saved"])
        before, self.saved = self.saved, found[0]["saved"]
        self.losses |= found[0]["losses"]
        rows = worker_models.rows_of(self.saved)
        here = [one["here"] for one in found]
        if sum(here) != rows or min(here) == 0:
            wrong.append(f"rows of workers: {here}")
        loaded = "nothing" if before is None else f"{worker_models.rows_of(before)} rows"
        print(
            f"{self.way:10} workers {workers}: loaded {loaded}, saved {rows} rows {here}  "
            f"{'ok' if not wrong else 'NOT THE SAME: ' + ', '.join(sorted(set(wrong)))}",
            flush=True,
        )
        return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 2, 3])
    parser.add_argument("--epoch-steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--data", choices=worker_models.FLIGHTS_DATA, default="flights")
    parser.add_argument("--saves", nargs="+", choices=SAVES, default=list(SAVES))
    arguments = parser.parse_args()
    begin = time.monotonic()
    good = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = folder / "flights.npz"
        worker_models.FLIGHTS_DATA[arguments.data](data, arguments.batch * arguments.epoch_steps)
        unbroken: dict[str, Any] = {}
        for save in arguments.saves:
            setup = Setup(
                str(data),
                SAVES[save],
                batch=arguments.batch,
                epochs=len(arguments.workers) + 1,
                epoch_steps=arguments.epoch_steps,
            )
            if setup.way not in unbroken:
                training = Training(setup, tf.distribute.get_strategy())
                losses = training.train()
                unbroken[setup.way] = (training.state(), losses)
            (folder / save).mkdir()
            chain = Chain(save, setup, arguments.workers, folder / save)
            good += chain.run(*unbroken[setup.way])
    print(
        f"worker_chain: {good} of {len(arguments.saves)} ways the same as an unbroken run, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 0 if good == len(arguments.saves) else 1


if __name__ == "__main__":
    sys.exit(main())

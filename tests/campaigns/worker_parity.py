# SPDX-License-Identifier: Apache-2.0
"""Trains a model of real data on 1, 2 and 4 workers, and compares the losses and the rows.

    python tests/campaigns/worker_parity.py [--movielens=FOLDER] [--workers 2 4] [--data=made]

Trains on flights of 2013, or on synthetic flights (`--data=made`), and on ratings of
MovieLens 100K if there is a folder with u.data. Training is by `fit` and by a custom loop, with
Adam and with row-wise Adagrad. This process computes the expected losses and rows without a
strategy. Tables have

    none    no bound,
    wide    a bound that no table reaches,
    tight   a bound at which rows are evicted.

Each worker bounds its own share of the rows. With a tight bound, the reference is therefore one
process with a shard for each worker. One process with a single shard evicts other rows, because it
looks for the lowest score of all rows. The line "one shard" shows how its losses differ from the
reference; they need not be equal.

It prints a line for each combination. The exit status is 1 if a loss, a row, a slot or a dense
weight differs by more than rtol 2e-5 and atol 2e-6.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf

from support.processes import worker_models, worker_programs, worker_trainings
from support.processes.worker_models import Setup

EPOCHS = 2
SECONDS = 1800  # for all combinations of a number of workers


class Expected:
    """The results of a single process. Each training runs once."""

    def __init__(self) -> None:
        self._found: dict[Setup, Any] = {}

    def of(self, setup: Setup) -> Any:
        if setup not in self._found:
            training = worker_models.Training(setup, tf.distribute.get_strategy())
            losses = training.train()
            self._found[setup] = (training.state(), losses)
        return self._found[setup]


def with_shards(setup: Setup, workers: int) -> Setup:
    """The setup of the single process that must get the same results."""
    return dataclasses.replace(setup, shards=workers if setup.bound == "tight" else 1)


def line(setup: Setup, workers: int, what: str) -> str:
    name = pathlib.Path(setup.data).stem
    parts = f"{name:9} {setup.way:4} {setup.optimizer:7} {setup.bound:5}"
    return f"{parts} workers {workers}: {what}"


def check(setup: Setup, workers: int, results: dict[int, Any], place: int, known: Expected) -> bool:
    """Compares each worker's results with the results of a single process, and prints a line."""
    state, losses = known.of(with_shards(setup, workers))
    found = [
        worker_models.compare(*results[rank][place], state, losses) for rank in sorted(results)
    ]
    wrong = sorted({name for one in found for name in one.wrong})
    if setup.bound == "tight" and not any(
        int(size) == worker_models.BOUNDS["tight"]
        for name, size in state.items()
        if name.endswith(" size")
    ):
        wrong.append("no table is full")
    print(
        line(
            setup,
            workers,
            f"loss {max(one.loss for one in found):.1e}  rows {max(one.rows for one in found):.1e}"
            f"  dense {max(one.dense for one in found):.1e}  of {worker_models.rows_of(state)} rows"
            f"  {'ok' if not wrong else 'NOT THE SAME: ' + ', '.join(wrong)}",
        ),
        flush=True,
    )
    if setup.bound == "tight":
        one_state, one_losses = known.of(setup)
        apart = worker_models.compare(one_state, one_losses, state, losses)
        sizes = worker_models.rows_of(one_state)
        print(line(setup, workers, f"one shard: loss {apart.loss:.1e}, {sizes} rows"), flush=True)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--movielens", type=pathlib.Path, help="a folder with u.data")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--data", choices=worker_models.FLIGHTS_DATA, default="flights")
    parser.add_argument("--ways", nargs="+", default=worker_models.WAYS)
    parser.add_argument("--optimizers", nargs="+", default=worker_models.OPTIMIZERS)
    parser.add_argument("--bounds", nargs="+", default=list(worker_models.BOUNDS))
    arguments = parser.parse_args()
    begin = time.monotonic()
    known, good, count = Expected(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = arguments.batch * arguments.steps // EPOCHS
        data = [folder / "flights.npz"]
        worker_models.FLIGHTS_DATA[arguments.data](data[0], rows)
        if arguments.movielens is None:
            print("movielens is left out: --movielens was not given")
        else:
            data.append(folder / "movielens.npz")
            worker_models.save_movielens(data[1], arguments.movielens, rows)
        setups = [
            Setup(str(path), *rest, arguments.batch, EPOCHS, arguments.steps // EPOCHS)
            for path, *rest in itertools.product(
                data, arguments.ways, arguments.optimizers, arguments.bounds
            )
        ]
        worker_trainings.write_plan(folder, setups)
        for workers in arguments.workers:
            program = worker_trainings.__file__
            launched = worker_programs.launch(program, ["parity"], workers, name, SECONDS)
            if launched.code or len(launched.results) != workers:
                print(launched.printed[-5000:])
                print(f"{workers} workers ended with {launched.code}")
                return 1
            results = {rank: one["parity"] for rank, one in launched.results.items()}
            for place, setup in enumerate(setups):
                count += 1
                good += check(setup, workers, results, place, known)
    print(
        f"worker_parity: {good} of {count} the same as one process, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 0 if good == count else 1


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Kills workers that train with tables, at random moments, and compares the final state.

    python tests/campaigns/worker_kills.py [--kills=10] [--seed=1] [--workers 2 4] [--ways fit loop]

Workers train on flights, real or synthetic (`--data=made`): by `fit` with tf_embed's
BackupAndRestore, or by a custom loop that saves a checkpoint every ten steps. SIGKILL hits a random
worker at a random moment of a step, of a save, or of its start. All workers restart and continue.
The kills are spread over the ways and the numbers of workers. These are findings:

- the other workers have not ended ten seconds after a kill (`--patience`), which leaves a worker
  time to report a lost peer, and the launcher time to end it;
- the workers restart at a step without a checkpoint;
- the final losses, rows, slots or dense weights differ from the results of one process that was
  never killed, by rtol 2e-5 and atol 2e-6;
- a process stays behind.

It prints a line for each kill and each end. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf

from support.processes import worker_models, worker_programs, worker_trainings
from support.processes.worker_models import Setup, Training

SECONDS = 240  # far more than a launch takes
GRACE_SECONDS = 8  # from the launcher's SIGTERM to its SIGKILL
EPOCHS = 10


class Killer(threading.Thread):
    """Kills a worker once it has done some steps.

    Args:
        path: The file in which the worker reports its process id and its step.
        step: The number of steps before the kill; 0 kills once the tables are made.
        delay: Further seconds before the kill.
    """

    def __init__(self, path: pathlib.Path, step: int, delay: float) -> None:
        super().__init__(daemon=True)
        self._path, self._step, self._delay = path, step, delay
        self.killed_at: float | None = None
        self.step = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.002):
            words = self._path.read_text().split() if self._path.exists() else []
            if len(words) == 2 and int(words[1]) >= self._step:
                self.done.wait(self._delay)
                # Until the launcher reaps the worker, no other process can have its id.
                os.kill(int(words[0]), signal.SIGKILL)
                self.killed_at = time.time()
                self.step = int(words[1])
                return


@dataclasses.dataclass
class Series:
    """Launches of the same way and number of workers. All except the last are killed."""

    setup: Setup
    workers: int
    folder: pathlib.Path
    draw: random.Random
    patience: float

    def __post_init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.findings: list[str] = []
        worker_trainings.write_plan(self.folder, [self.setup])

    def _launch(self) -> worker_programs.Launched:
        for path in self.folder.glob("progress.*"):
            path.unlink()
        program, name = worker_trainings.__file__, str(self.folder)
        return worker_programs.launch(
            program, ["resumed"], self.workers, name, SECONDS, grace_seconds=GRACE_SECONDS
        )

    def _say(self, what: str, wrong: list[str]) -> None:
        self.findings += wrong
        name = f"{self.setup.way:4} workers {self.workers}: "
        print(f"{name}{what}  {'; '.join(wrong) or 'ok'}", flush=True)

    def kill(self, number: int, kills: int) -> None:
        """Runs a launch and kills it. Kills are spread over the training, so each hits a worker."""
        rank = self.draw.randrange(self.workers)
        first, last = (self.setup.steps * one // kills for one in (number, number + 1))
        step = self.draw.randrange(first + 1, max(first + 2, last))
        moment = self.draw.choice(["step", "step", "save", "start"])
        if moment == "save":  # every SAVE_STEPS steps
            each = worker_trainings.SAVE_STEPS
            step = max(each, step // each * each)
        elif moment == "start":
            step = 0
        killer = Killer(self.folder / f"progress.{rank}", step, self.draw.uniform(0, 0.1))
        killer.start()
        launched = self._launch()
        killer.done.set()
        killer.join()
        if killer.killed_at is None:
            self._say(f"kill {number + 1} found no worker", [launched.printed[-3000:]])
            return
        results = [one["resumed"] for one in launched.results.values()]
        lost = [one for one in results if "lost" in one]
        wrong = []
        if launched.code != 128 + signal.SIGKILL:
            wrong.append(f"the launcher ended with {launched.code}")
        late = time.time() - killer.killed_at
        if late > self.patience:
            wrong.append(f"the last worker ended {late:.1f} s after the kill")
        kinds = sorted({one["lost"].partition(":")[0] for one in lost})
        if self.setup.way == "fit" and any(kind != "WorkerLostError" for kind in kinds):
            wrong.append(lost[0]["lost"][:1000])
        self._say(
            f"kill {number + 1}, at a {moment}: worker {rank} after step {killer.step}, "
            f"{len(lost)} of {self.workers - 1} others raised {' and '.join(kinds) or 'nothing'}, "
            f"all ended after {late:.1f} s",
            wrong,
        )

    def end(self, expected: Any, expected_losses: Any) -> None:
        """Runs the last launch to its end, and compares its results."""
        launched = self._launch()
        if launched.code or len(launched.results) != self.workers:
            self._say("the end", [launched.printed[-3000:]])
            return
        for rank, one in launched.results.items():
            found = one["resumed"]
            if "lost" in found:
                self._say("the end", [found["lost"]])
                return
            gap = worker_models.compare(found["state"], found["losses"], expected, expected_losses)
            wrong = [f"not the same: {', '.join(gap.wrong)}"] if gap.wrong else []
            if found["begun"] % worker_trainings.SAVE_STEPS:
                wrong.append("there is no checkpoint of that step")
            self._say(
                f"the end of worker {rank}, which began after step {found['begun']}: loss "
                f"{gap.loss:.1e}  rows {gap.rows:.1e}  dense {gap.dense:.1e}  of "
                f"{worker_models.rows_of(expected)} rows",
                wrong,
            )


def left_behind(folder: str) -> list[str]:
    """Worker processes that still run. The folder is among their arguments."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if int(path.parent.name) != os.getpid() and folder.encode() in path.read_bytes():
                found.append(f"process {path.parent.name} stays behind")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ways", nargs="+", default=worker_models.WAYS)
    parser.add_argument("--patience", type=float, default=10, help="seconds from a kill to the end")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--data", choices=worker_models.FLIGHTS_DATA, default="flights")
    arguments = parser.parse_args()
    begin = time.monotonic()
    series = [(way, workers) for workers in arguments.workers for way in arguments.ways]
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = folder / "flights.npz"
        worker_models.FLIGHTS_DATA[arguments.data](
            data, arguments.batch * worker_trainings.SAVE_STEPS
        )
        unbroken: dict[str, Any] = {}
        for place, (way, workers) in enumerate(series):
            steps = worker_trainings.SAVE_STEPS
            setup = Setup(str(data), way, batch=arguments.batch, epochs=EPOCHS, epoch_steps=steps)
            if way not in unbroken:
                training = Training(setup, tf.distribute.get_strategy())
                losses = training.train()
                unbroken[way] = (training.state(), losses)
            home = folder / f"{way}-{workers}"
            home.mkdir()
            one = Series(
                setup, workers, home, random.Random(f"{arguments.seed} {place}"), arguments.patience
            )
            kills = len(range(place, arguments.kills, len(series)))
            for number in range(kills):
                one.kill(number, kills)
            one.end(*unbroken[way])
            findings += one.findings + left_behind(name)
    for finding in findings:
        print(finding)
    print(
        f"worker_kills: {arguments.kills} kills, {time.monotonic() - begin:.0f} s, "
        f"{len(findings)} findings"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

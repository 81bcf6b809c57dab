# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a cluster with parameter servers at random moments, and counts steps.

    python tests/campaigns/server_kills.py [--count=100] [--seed=1]

A chief trains a table on two servers by two workers (`counted_steps.py`). In the first half SIGKILL
hits workers alone, and there are no checkpoints. In the second half it hits any process, and the
chief saves every seven steps. The killed process starts again after up to two seconds. A server
starts again with the chief, as under `launch_with_servers`. These are findings:

- the chief ends, unless it was killed, or ends with code 75 after the kill of a server;
- no epoch ends within `--stall` seconds;
- the metrics of an epoch count another number of steps than an unbroken epoch has;
- a row was trained less often than its id occurred. If workers alone were killed: or more often;
- rows were trained more often than the steps since the checkpoints of killed chiefs explain.

It prints a line for each kill, and a line of JSON with all figures at the end. The exit status is 1
if there is a finding. `--plant=copy` takes each failed copy of a worker's result for a lost server.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import figures
import numpy as np
from killed_process import Finding

from support.processes import counted_steps
from support.processes.server_cluster import Cluster, cluster

_LOST_SERVER = 75
_CHIEF_SECONDS = 60.0  # after which the launcher ends a chief that has not noticed a lost server
_WORKERS = 2
_SERVERS = 2
_PENDING = 4 * _WORKERS  # steps that the chief has begun and not fetched


class Training:
    """A training in a cluster, with kills of its processes.

    Args:
        made: The cluster.
        folder: The folder of its files.
        saves: Whether the chief saves checkpoints.
        plant: A fault to plant, or "".
        stall: Seconds within which an epoch must end.
    """

    def __init__(
        self, made: Cluster, folder: pathlib.Path, saves: bool, plant: str, stall: float
    ) -> None:
        self._made, self._folder, self._stall = made, folder, stall
        self._arguments = [str(folder), str(folder / "checkpoints") if saves else "", plant]
        self.resumed = self.unnoticed = 0
        made.start_chief(*self._arguments)
        self.wait_for_epoch()

    def epochs(self) -> list[Any]:
        """The epochs so far, each as its number and the least and the most steps counted."""
        path = self._folder / "epochs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_epoch(self) -> None:
        """Waits until another epoch has ended."""
        count = len(self.epochs())
        self._wait(lambda: len(self.epochs()) > count)

    def kill_worker(self, number: int, seconds: float) -> None:
        """Kills a worker, and starts it again after some seconds."""
        self._made.kill("worker", number)
        time.sleep(seconds)
        self._made.start("worker", number)

    def kill_server(self, number: int) -> None:
        """Kills a server, and starts it and the chief again, as the launcher does."""
        self._made.kill("ps", number)
        chief = self._made.processes["chief", 0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            chief.wait(_CHIEF_SECONDS)
        if chief.poll() is None:
            self._made.kill("chief", 0)
            self.unnoticed += 1
        elif chief.returncode != _LOST_SERVER:
            code = chief.returncode
            raise Finding(f"the chief of a lost server ended with {code}\n{self._log()}")
        self._made.start("ps", number)
        self._resume()

    def kill_chief(self, seconds: float) -> None:
        """Kills the chief, and starts it again after some seconds."""
        self._made.kill("chief", 0)
        time.sleep(seconds)
        self._resume()

    def end(self) -> Any:
        """Lets the training end, and returns the chief's result."""
        (self._folder / "stop").touch()
        chief = self._made.processes["chief", 0]
        self._wait(lambda: chief.poll() is not None, ends=True)
        if chief.returncode:
            raise Finding(f"the chief ended with {chief.returncode}\n{self._log()}")
        return self._made.result()

    def _resume(self) -> None:
        self.resumed += 1
        self._made.start_chief(*self._arguments)

    def _wait(self, happened: Callable[[], bool], *, ends: bool = False) -> None:
        deadline = time.monotonic() + self._stall
        while not happened():
            code = self._made.processes["chief", 0].poll()
            if code is not None and not ends:
                raise Finding(f"the chief ended with {code}\n{self._log()}")
            if time.monotonic() > deadline:
                raise Finding(f"nothing happened for {self._stall} s\n{self._log()}")
            time.sleep(0.02)

    def _log(self) -> str:
        return self._made.log("chief", 0)[-3000:]


def check(training: Training, result: Any) -> None:
    """Compares the final rows with the ids of the steps.

    Raises:
        Finding: If they differ.
    """
    epochs = training.epochs()
    steps = counted_steps.STEPS
    of_epoch = np.bincount(counted_steps.ids_of_an_epoch().ravel(), minlength=counted_steps.IDS)
    expected = of_epoch * (result["steps"] // steps)
    trained = -np.asarray(result["rows"])
    if result["steps"] % steps or not result["equal"]:
        raise Finding(f"{result['steps']} steps, elements of a row are equal: {result['equal']}")
    if not training.resumed and any(one[1:] != [steps, steps] for one in epochs):
        raise Finding(f"an epoch of {steps} steps counted others: {epochs}")
    if (trained < expected).any():
        raise Finding(f"steps are lost: rows {trained.tolist()}, expected {expected.tolist()}")
    # A checkpoint that was being written may be lost with the chief.
    again = training.resumed * (2 * counted_steps.SAVE_STEPS + _PENDING) * 24
    if trained.sum() > expected.sum() + again:
        raise Finding(f"{trained.sum()} lookups were trained, expected {expected.sum()} + {again}")


def run(count: int, saves: bool, arguments: Any, counts: collections.Counter[str]) -> None:
    """Runs a training with a number of kills.

    Raises:
        Finding: If a check fails.
    """
    draw = random.Random(f"{arguments.seed} {saves}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with cluster(folder, counted_steps.__file__, workers=_WORKERS, servers=_SERVERS) as made:
            training = Training(made, folder, saves, arguments.plant or "", arguments.stall)
            for number in range(count):
                time.sleep(draw.uniform(0, 1))
                seconds = draw.choice([0.0, draw.uniform(0, 2)])
                kind = draw.choice(["worker", "server", "chief"]) if saves else "worker"
                if kind == "worker":
                    training.kill_worker(draw.randrange(_WORKERS), seconds)
                elif kind == "server":
                    training.kill_server(draw.randrange(_SERVERS))
                else:
                    training.kill_chief(seconds)
                counts[kind] += 1
                print(f"kill {number + 1} of {count}: {kind}", flush=True)
                if draw.random() < 0.25:  # the next kill hits a start
                    time.sleep(draw.uniform(0, 5))
                else:
                    training.wait_for_epoch()
            training.wait_for_epoch()
            result = training.end()
            check(training, result)
            counts["steps"] += result["steps"]
            counts["chiefs that did not notice a lost server"] += training.unnoticed


def main() -> int:
    parser = figures.options(__doc__, ["copy"], stall=120.0)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    begin, failures = time.monotonic(), 0
    counts: collections.Counter[str] = collections.Counter()
    for saves, count in ((False, arguments.count // 2), (True, (arguments.count + 1) // 2)):
        try:
            run(count, saves, arguments, counts)
        except Finding as finding:
            failures += 1
            print(f"finding: {finding}", flush=True)
    return figures.show("server_kills", arguments.count, failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())

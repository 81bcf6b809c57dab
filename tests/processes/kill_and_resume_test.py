# SPDX-License-Identifier: Apache-2.0
"""Training that is killed and resumed equals unbroken training, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support import TESTS

EXAMPLES = TESTS.parent / "examples"
STEPS = 40  # as in killed_training.py, with a checkpoint every 10 steps


@dataclasses.dataclass(frozen=True)
class Death:
    """The end of a process, and the step at which the next process must continue.

    Attributes:
        kill_at: the step after which it is killed; 0 for never.
        cut_at: the step with a checkpoint that is not written to the end; 0 for none.
        most_bytes: the number of written bytes of that checkpoint.
        next_step: the first step of the next process.
    """

    kill_at: int = 0
    cut_at: int = 0
    most_bytes: int = 0
    next_step: int = 1

    @property
    def signal(self) -> int:
        return signal.SIGKILL if self.kill_at else signal.SIGXFSZ


BETWEEN_STEPS = Death(kill_at=17, next_step=11)
WHILE_SAVING = Death(cut_at=20, most_bytes=20_000, next_step=11)
DEATHS = (
    Death(kill_at=7),  # nothing is saved yet
    Death(cut_at=10, most_bytes=1),
    Death(cut_at=10, most_bytes=100_000),
    BETWEEN_STEPS,
    WHILE_SAVING,
    Death(cut_at=20, most_bytes=300_000, next_step=11),
    Death(kill_at=20, next_step=11),  # the step is done, its checkpoint not begun
    Death(kill_at=21, next_step=21),
    Death(kill_at=40, next_step=31),
)


def environment() -> dict[str, str]:
    paths = [str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def losses_in(log: pathlib.Path) -> dict[int, str]:
    lines = map(str.split, log.read_text().splitlines())
    return {int(step): loss for step, loss in lines}


class KilledTrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("loop", "wrapper"), ("fit", "own"))
    @pytest.mark.smoke
    def test_resumed_training_equals_unbroken_training(self, method, tables):
        self.check(method, tables, (BETWEEN_STEPS, WHILE_SAVING))

    @parameterized.product(method=("loop", "fit"), tables=("wrapper", "own"))
    def test_it_may_be_killed_at_any_moment_and_many_times(self, method, tables):
        self.check(method, tables, DEATHS)

    def check(self, method: str, tables: str, deaths: tuple[Death, ...]) -> None:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        plans = [self.plan(folder, "unbroken", "unbroken.log")]
        for number, death in enumerate((*deaths, Death())):
            plans.append(self.plan(folder, "resumed", f"resumed{number}.log", death))
        for plan in plans:
            plan.update(method=method, tables=tables)
        runner = subprocess.run(
            [sys.executable, TESTS / "support" / "faults" / "killed_training.py"],
            env=environment(),
            input=json.dumps(plans),
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(runner.returncode, 0, runner.stderr)
        self.assertEqual(json.loads(runner.stdout), [0, *(one.signal for one in deaths), 0])

        unbroken = losses_in(folder / "unbroken.log")
        self.assertEqual(list(unbroken), [*range(1, STEPS + 1)])
        first_step = 1
        for number, death in enumerate(deaths):
            last_step = death.kill_at or death.cut_at
            self.check_losses(folder / f"resumed{number}.log", unbroken, first_step, last_step)
            first_step = death.next_step
        self.check_losses(folder / f"resumed{len(deaths)}.log", unbroken, first_step, STEPS)
        self.check_states(folder)

    def plan(
        self, folder: pathlib.Path, run: str, log: str, death: Death | None = None
    ) -> dict[str, Any]:
        death = dataclasses.asdict(death or Death())
        return {**death, "folder": str(folder / run), "log": str(folder / log)}

    def check_losses(
        self, log: pathlib.Path, unbroken: dict[int, str], first_step: int, last_step: int
    ) -> None:
        steps = range(first_step, last_step + 1)
        self.assertEqual(losses_in(log), {step: unbroken[step] for step in steps})

    def check_states(self, folder: pathlib.Path) -> None:
        with (
            np.load(folder / "unbroken" / "end.npz") as unbroken,
            np.load(folder / "resumed" / "end.npz") as resumed,
        ):
            self.assertContainsSubset(["user keys", "user rows", "item slots"], unbroken.files)
            self.assertEqual(unbroken.files, resumed.files)
            for name in unbroken.files:
                self.assertNotEmpty(unbroken[name].ravel(), name)
                self.assertAllEqual(unbroken[name], resumed[name], name)


class KillAndResumeTest(tf.test.TestCase):
    def test_the_example_kills_its_children_and_finds_no_difference(self):
        program = subprocess.run(
            [sys.executable, EXAMPLES / "kill_and_resume.py", "--kills=2"],
            cwd=self.get_temp_dir(),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(program.returncode, 0, program.stderr)
        self.assertLen(re.findall("and was killed\n", program.stdout), 4)
        self.assertEndsWith(program.stdout, "resumed == unbroken\n")


if __name__ == "__main__":
    tf.test.main()

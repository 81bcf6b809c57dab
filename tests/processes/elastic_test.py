# SPDX-License-Identifier: Apache-2.0
"""Workers that die and restart, in real processes."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import tempfile
from typing import Any

import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from support import PYTHONPATH
from support.processes import elastic_training, worker_models
from support.processes.launched_scripts import TIMEOUT, LauncherTestCase, printed_by
from tf_embed.distributed import run

# `once(name)` is true for the first process that asks.
OPENING = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]
workers = len(config["cluster"]["worker"])
folder = pathlib.Path(__file__).parent
def once(name):
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
def die():
    os.kill(os.getpid(), signal.SIGKILL)
print("begun", workers, os.getpid(), flush=True)
"""


class ElasticTest(LauncherTestCase):
    opening = OPENING

    def launch(self, script: str, *arguments: str, workers: int = 3, **options: Any) -> Any:
        """Returns the outcome, and the text that the launcher printed to stdout and stderr."""
        options = {"timeout_seconds": TIMEOUT, "grace_seconds": 1, **options}
        command = [script, *arguments]
        return printed_by(lambda: run.launch_elastic(command, workers=workers, **options))

    @pytest.mark.smoke
    def test_the_workers_that_are_left_start_again(self):
        script = self.script(
            """
            if workers == 3 and rank == 1:
                die()
            if workers == 3:
                time.sleep(300)
            """
        )
        outcome, out, err = self.launch(script, log_dir=self.folder / "logs")
        self.assertEqual(outcome, run.ElasticOutcome(sizes=(3, 2)))
        said = "worker 1 was ended by signal 9 (SIGKILL); going on with workers: 2"
        self.assertIn(f"[launcher] {said}.", err)
        self.assertLen(re.findall(r"begun 3", out), 3)
        self.assertLen(re.findall(r"begun 2", out), 2)
        log = (self.folder / "logs" / "worker-0.log").read_text()
        self.assertEqual(re.findall(r"begun (\d)", log), ["3", "2"])

    def test_as_many_are_left_as_signals_have_not_ended(self):
        launcher = self.started(
            """
            if workers == 3:
                time.sleep(300)
            """
        )
        pids = [self.line(launcher, "begun 3") for _ in range(3)]
        for pid in pids[:2]:
            os.kill(pid, signal.SIGKILL)
        self.line(launcher, "begun 1")
        self.assertEqual(launcher.wait(), 0)

    def test_a_worker_that_fails_or_hangs_counts_as_one(self):
        # If a worker hangs, the other workers give up, and SIGKILL ends the hanging worker.
        script = self.script(
            """
            if workers == 2:
                sys.exit(0)
            if rank == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(300)
            sys.exit(1)
            """
        )
        outcome, _, _ = self.launch(script, grace_seconds=0.2)
        self.assertEqual((outcome.code, outcome.sizes), (0, (3, 2)))

    def test_there_are_never_fewer_than_the_least(self):
        script = self.script(
            """
            if rank == 0 and any(once(f"death {i}") for i in range(4)):
                die()
            if not (folder / "death 3").exists():
                time.sleep(300)
            """
        )
        outcome, _, _ = self.launch(script, min_workers=2, max_restarts=4)
        self.assertEqual((outcome.code, outcome.sizes), (0, (3, 2, 2, 2, 2)))

    @parameterized.parameters(0, 2)
    def test_failures_beyond_the_bound_end_all(self, most):
        outcome, _, err = self.launch(self.script("sys.exit(5)"), max_restarts=most)
        self.assertEqual(outcome.code, 5)
        self.assertEqual(outcome.sizes, (3, 2, 1)[: most + 1])
        self.assertEqual(err.count("going on"), most)

    @parameterized.parameters(
        {"rejoin_after_seconds": 0.3},
        {"rejoin_on": "checkpoint"},
        {"rejoin_on": "checkpoint", "rejoin_after_seconds": 0.3},
    )
    def test_a_worker_comes_back(self, **options):
        script = self.script(
            """
            if workers == 3 and rank == 2 and once("death"):
                die()
            if workers == 2:
                time.sleep(0.5)
                (folder / "checkpoint").touch()
                time.sleep(300)
            if not (folder / "checkpoint").exists() and "now" not in sys.argv:
                time.sleep(300)
            """
        )
        waits = "rejoin_on" in options
        if waits:
            options["rejoin_on"] = self.folder / options["rejoin_on"]
        more = [] if waits else ["now"]
        outcome, _, err = self.launch(script, *more, max_restarts=1, **options)
        self.assertEqual((outcome.code, outcome.sizes), (0, (3, 2, 3)), err)
        self.assertIn("[launcher] workers come back; going on with workers: 3.", err)

    def test_time_is_that_of_all_starts(self):
        script = self.script("die() if rank == 0 and workers == 3 else time.sleep(300)")
        outcome, _, _ = self.launch(script, timeout_seconds=2, grace_seconds=0.1)
        self.assertEqual((outcome.code, outcome.sizes), (run.TIMED_OUT, (3, 2)))

    def started(self, body: str, *options: str) -> subprocess.Popen:
        """Starts the command line."""
        limits = ["--workers", "3", "--timeout", str(TIMEOUT)]
        return self.command(*limits, "--elastic", *options, self.script(body))

    def line(self, launcher: subprocess.Popen, words: str) -> int:
        """The number after `words`, in the next line of output that has them."""
        for line in launcher.stdout:
            if match := re.search(rf"{words} (\d+)", line):
                return int(match[1])
        raise AssertionError(f"The output ended before a line had {words}.")

    def test_a_signal_ends_all_also_after_a_restart(self):
        launcher = self.started("die() if rank == 0 and workers == 3 else time.sleep(300)")
        pids = [self.line(launcher, "begun 2") for _ in range(2)]
        launcher.terminate()
        self.assertEqual(launcher.wait(), 128 + signal.SIGTERM)
        for pid in pids:
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    @parameterized.parameters(
        ("--min-workers: must be at most --workers, 3", ["--elastic", "--min-workers", "4"]),
        ("--min-workers", ["--elastic", "--min-workers", "0"]),
        ("--max-restarts", ["--elastic", "--max-restarts", "-1"]),
        ("--rejoin-after", ["--elastic", "--rejoin-after", "0"]),
        ("--min-workers", ["--min-workers", "1"]),
        ("--max-restarts", ["--max-restarts", "1"]),
        ("--rejoin-after", ["--rejoin-after", "1"]),
        ("--rejoin-on", ["--rejoin-on", "x"]),
    )
    def test_a_bad_argument_is_one_sentence_that_names_it(self, name, arguments):
        self.assert_refused(name, ["--workers", "3", *arguments, __file__])

    @parameterized.parameters(
        (TypeError, {"min_workers": 1.0}, "`min_workers`"),
        (ValueError, {"min_workers": 3}, "`min_workers`"),
        (ValueError, {"max_restarts": -1}, "`max_restarts`"),
        (ValueError, {"rejoin_after_seconds": -1}, "`rejoin_after_seconds`"),
        (TypeError, {"rejoin_after_seconds": "1"}, "`rejoin_after_seconds`"),
        (TypeError, {"rejoin_on": 3}, "`rejoin_on` must be a path. Received: rejoin_on=3"),
    )
    def test_the_function_refuses_a_bad_argument(self, kind, options, name):
        with self.assertRaisesRegex(kind, name):
            run.launch_elastic([__file__], workers=2, **options)


class TrainingTest(absltest.TestCase):
    def test_three_then_two_then_three_workers_come_to_the_end_of_one_process(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
        outcome, out, err = printed_by(
            lambda: run.launch_elastic(
                [elastic_training.__file__, str(folder)],
                workers=3,
                rejoin_on=folder / elastic_training.CHECKPOINTS / "checkpoint",
                timeout_seconds=600,
                grace_seconds=1,
                environment=environment,
            )
        )
        self.assertEqual((outcome.code, outcome.sizes), (0, (3, 2, 3)), err[-5000:])
        found = [json.loads(line) for line in re.findall(r"\{.*\}", out)]
        self.assertLen(found, 3)
        # The smaller cluster has continued, and the larger cluster has continued from there.
        self.assertGreater(found[0]["began"], elastic_training.KILLED_STEP)
        state, losses = pickle.loads((folder / "end.pickle").read_bytes())
        setup = elastic_training.write_data(folder / "data.npz")
        training = worker_models.Training(setup, tf.distribute.get_strategy())
        expected = training.train()
        gap = worker_models.compare(state, losses, training.state(), expected)
        self.assertEqual(gap.wrong, ())
        self.assertIn(elastic_training.STEPS, losses)


if __name__ == "__main__":
    absltest.main()

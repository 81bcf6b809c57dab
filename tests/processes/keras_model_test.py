# SPDX-License-Identifier: Apache-2.0
"""Keras models under a multi-worker strategy, in real processes, against one process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any

import keras
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support import PYTHONPATH
from support.processes import multi_worker_training
from tf_embed.distributed import run

SCRIPT = multi_worker_training.__file__
SECONDS = 240  # far more than any case takes


class WorkersTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def launched(
        self, case: str, workers: int, grace_seconds: float = 10
    ) -> tuple[run.Outcome, list[Any], str]:
        """Returns the outcome, the results of the workers that have a result, and their output."""
        for path in self.folder.glob("result-*.json"):
            path.unlink()
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcome = run.launch(
                [SCRIPT, case, str(self.folder)],
                workers=workers,
                timeout_seconds=SECONDS,
                grace_seconds=grace_seconds,
                environment=environment,
            )
        paths = sorted(self.folder.glob("result-*.json"))
        if outcome.code and not paths:
            print(err.getvalue()[-5000:])
        return (
            outcome,
            [json.loads(path.read_text()) for path in paths],
            out.getvalue() + err.getvalue(),
        )

    def oracle(self, case: str) -> Any:
        """Runs the case in this process, without a strategy."""
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        strategy = tf.distribute.get_strategy()
        with contextlib.redirect_stdout(io.StringIO()):
            found = multi_worker_training.CASES[case](strategy, 0, 0, folder)
        return json.loads(json.dumps(found))

    def assert_near(self, found: Any, expected: Any, what: str = "") -> None:
        """Asserts that numbers are equal, except for rounding in sums in another order."""
        if isinstance(expected, dict):
            self.assertEqual(found.keys(), expected.keys(), what)
            for key in expected:
                self.assert_near(found[key], expected[key], f"{what}.{key}")
        elif isinstance(expected, list) and expected and isinstance(expected[0], (dict, list)):
            self.assertLen(found, len(expected), what)
            for one, other in zip(found, expected, strict=True):
                self.assert_near(one, other, what)
        else:
            self.assertAllClose(found, expected, rtol=2e-5, atol=2e-6, msg=what)

    @pytest.mark.smoke
    def test_training_equals_one_process(self):
        self.check_training(2)

    @parameterized.parameters(1, 4)
    def test_training_of_other_numbers_of_workers_equals_one_process(self, workers):
        self.check_training(workers)

    def check_training(self, workers: int) -> None:
        expected = self.oracle("fits")
        outcome, results, out = self.launched("fits", workers)
        self.assertEqual(outcome.code, 0)
        self.assertLen(results, workers)
        self.assertEqual(expected["iterations"], 10)
        for result in results:
            self.assert_near(result, expected)
        self.assertCountEqual(
            os.listdir(self.folder / "models"), ["saved.keras", "saved.weights.h5"]
        )
        saved = keras.saving.load_model(self.folder / "models" / "saved.keras")
        self.assert_near([one.tolist() for one in saved.get_weights()], expected["weights"])
        self.assertIn("[worker 0] Epoch 1/2", out)
        for rank in range(1, workers):
            lines = [line for line in out.splitlines() if line.startswith(f"[worker {rank}] ")]
            between = lines[lines.index(f"[worker {rank}] begin-of-fit") + 1 :]
            self.assertEqual(between[0], f"[worker {rank}] end-of-fit")

    def test_shards_of_unequal_length_end_together_and_mistakes_are_refused(self):
        expected = self.oracle("uneven")
        outcome, results, printed = self.launched("uneven", 2)
        self.assertEqual(outcome.code, 0)
        self.assertNotIn("Your input ran out of data", printed)
        self.assertLen(results, 2)
        for result in results:
            refused = result.pop("refused")
            self.assert_near(result, expected)
            for case, words in {
                "keras.distribution": ("ValueError", "must not run under `keras.distribution`"),
                "arrays": (
                    "ValueError",
                    "`x` of",
                    "must be a tf.data.Dataset with several",
                    "ndarray",
                ),
                "predict": ("ValueError", "`x` of `predict`", "tf.data.Dataset"),
                "validation": ("ValueError", "`validation_data`", "tf.data.Dataset"),
                "steps": ("ValueError", "All workers must call", "`steps_per_epoch`", "[2, 3]"),
                "endless": ("ValueError", "`x.repeat()`", "[0, 1]"),
                "no validation": ("ValueError", "`validation_data`", "[0, 1]"),
                "train_on_batch": ("ValueError", "`test_on_batch` must not be called with several"),
                "backup": ("ValueError", "[100, 101]", "All workers must begin at the same step"),
                "run_eagerly": ("ValueError", "`run_eagerly` must be False with several"),
                "callback list": ("ValueError", "must be a list of callbacks with several"),
                "reduction": (
                    "ValueError",
                    "`loss` must have the reduction",
                    "mean_with_sample_weight",
                ),
            }.items():
                for word in words:
                    self.assertIn(word, refused[case], case)

    def test_training_goes_on_after_a_worker_was_killed(self):
        self.check_killed(1)

    def test_training_goes_on_after_the_chief_was_killed(self):
        self.check_killed(0)

    def check_killed(self, rank: int) -> None:
        expected = self.oracle("resume")
        (self.folder / "killer").write_text(str(rank))
        # TensorFlow reports most deaths at once. In rare cases it waits for the time-out.
        outcome, results, _ = self.launched("resume", 2, grace_seconds=90)
        self.assertEqual((outcome.code, outcome.worker), (137, rank))
        self.assertLen(results, 1)
        self.assertIn("restart all workers from the last checkpoint", results[0]["lost"])
        self.assertNotEmpty(os.listdir(self.folder / "backup"))

        (self.folder / "killer").unlink()
        outcome, results, _ = self.launched("resume", 2)
        self.assertEqual(outcome.code, 0)
        self.assertLen(results, 2)
        for result in results:
            self.assertEqual(result["epochs"], [2, 3])
            self.assert_near(result["weights"], expected["weights"])
        self.assertFalse((self.folder / "backup").exists())
        names = ["best.keras", *(f"{epoch}.weights.h5" for epoch in range(1, 5))]
        self.assertCountEqual(os.listdir(self.folder / "models"), names)

    def test_a_worker_that_hangs_is_an_error_of_the_others(self):
        outcome, results, _ = self.launched("hang", 2, grace_seconds=0.5)
        self.assertEqual((outcome.code, outcome.worker), (1, 0))
        self.assertLen(results, 1)
        self.assertIn("WorkerLostError", results[0]["refused"])
        self.assertIn("has died, or did not answer within `timeout_seconds`", results[0]["refused"])


if __name__ == "__main__":
    tf.test.main()

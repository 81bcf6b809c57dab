# SPDX-License-Identifier: Apache-2.0
"""Training of tables that workers share, in real processes, against one process."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.processes import worker_programs, worker_steps


@functools.cache
def launched(workers: int) -> worker_programs.Launched:
    return worker_programs.launch(worker_steps.__file__, ["training", "threads"], workers)


class WorkerTrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*worker_steps.SETUPS)
    def test_two_workers_train_as_one_process(self, name):
        self.check(name, 2)

    @parameterized.parameters(*worker_steps.SETUPS)
    def test_four_workers_train_as_one_process(self, name):
        self.check(name, 4)

    def check(self, name: str, workers: int) -> None:
        self.assertEqual(launched(workers).code, 0, launched(workers).printed)
        setup = worker_steps.SETUPS[name]
        expected = worker_steps.oracle(setup.optimizer, setup.own, workers)
        # The check is meaningful only if rows were inserted and removed.
        self.assertEqual(expected["bounded size"], 16)
        for policy in ("ttl", "admission"):
            rows = (np.sum(expected[f"{one} exists"]) for one in (policy, "unbounded"))
            self.assertLess(*rows)
        for rank, result in launched(workers).results.items():
            found = result["training"][name]
            self.assertEqual(found.keys(), expected.keys())
            for what, value in expected.items():
                self.assertAllClose(
                    found[what], value, rtol=2e-5, atol=2e-6, msg=f"{what} of worker {rank}"
                )

    def test_steps_leave_no_threads(self):
        self.assertEqual(launched(2).code, 0, launched(2).printed)
        for result in launched(2).results.values():
            after_50, after_150, _ = result["threads"]
            # TensorFlow's thread pools may still grow a little.
            self.assertLess(after_150, after_50 + 10)


if __name__ == "__main__":
    tf.test.main()

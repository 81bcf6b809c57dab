# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers whose tables workers share, in real processes, against one process."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
import worker_batches
import worker_programs
from absl.testing import parameterized


@functools.cache
def launched() -> worker_programs.Launched:
    return worker_programs.launch(worker_batches.__file__, ["training", "local"], 2)


class WorkerBatchesTest(tf.test.TestCase, parameterized.TestCase):
    def results(self, case: str) -> list:
        self.assertEqual(launched().code, 0, launched().printed)
        return [launched().results[rank][case] for rank in (0, 1)]

    @parameterized.parameters(*worker_batches.KINDS)
    def test_two_workers_train_as_one_process(self, name):
        expected = worker_batches.oracle(name, 2)
        rtol = 2e-2 if name in ("wire bfloat16", "half") else 2e-5
        for found in self.results("training"):
            self.assertEqual(found[name].keys(), expected.keys())
            for what, value in expected.items():
                self.assertAllClose(found[name][what], value, rtol=rtol, atol=rtol / 10, msg=what)
        # It says something only if rows have changed.
        self.assertGreater(np.ptp(expected["losses"][:, 0]), 0.01)
        self.assertTrue(all(np.any(expected[f"exists {i}"]) for i in range(3)))

    def test_faults_of_all_workers_are_counted(self):
        (faults,) = {found["bounds"]["faults"] for found in self.results("training")}
        self.assertGreater(faults, 5)

    def test_local_tables_are_of_one_worker(self):
        self.assertEqual(self.results("local"), [([[0.0]], 2), ([[2.0]], 2)])


if __name__ == "__main__":
    tf.test.main()

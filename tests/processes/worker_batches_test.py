# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers whose tables workers share, in real processes, against one process."""

from __future__ import annotations

import functools
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.processes import worker_batches, worker_programs

FOLDER = tempfile.TemporaryDirectory()


def tearDownModule():
    FOLDER.cleanup()


@functools.cache
def launched() -> worker_programs.Launched:
    return worker_programs.launch(
        worker_batches.__file__, ["training", "local", "fit", "methods"], 2, FOLDER.name
    )


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
        # The check is meaningful only if rows have changed.
        losses = expected["losses"][:, 0]
        self.assertGreater(np.ptp(losses), 0.1 * np.max(losses))
        self.assertTrue(all(np.any(expected[f"exists {i}"]) for i in range(3)))

    def assert_same(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for what, value in expected.items():
            self.assertAllClose(found[what], value, rtol=2e-5, atol=2e-6, msg=what)

    def test_fit_of_two_workers_is_that_of_one_process(self):
        expected = worker_batches.fitted(worker_batches.model_of())
        for found in self.results("fit"):
            self.assert_same(found["fitted"], expected)
            self.assert_same(found["loaded"], worker_batches.contents_of(expected))

    def test_one_process_loads_what_workers_save(self):
        expected = worker_batches.contents_of(self.results("fit")[0]["fitted"])
        model = keras.saving.load_model(f"{FOLDER.name}/model.keras")
        self.assert_same(worker_batches.contents(model), expected)
        for rank in (0, 1):
            model = worker_batches.model_of()
            tf.train.Checkpoint(model=model).read(f"{FOLDER.name}/checkpoint-{rank}")
            self.assert_same(worker_batches.contents(model), expected)

    def test_faults_of_all_workers_are_counted(self):
        (faults,) = {found["bounds"]["faults"] for found in self.results("training")}
        self.assertGreater(faults, 5)

    def test_methods_write_what_other_workers_own(self):
        initial = worker_batches.one_row_layer().tables[0].lookup([5]).numpy().tolist()
        self.assertEqual(self.results("methods"), [[[[0.5, 0.5]], initial, 1]] * 2)

    def test_local_tables_are_of_one_worker(self):
        self.assertEqual(self.results("local"), [([[0.0]], 2), ([[2.0]], 2)])


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups in tables that workers share, in real processes, against one process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.processes import worker_pools, worker_programs
from support.processes.worker_pools import KINDS, QUICK

OTHERS = [name for name in KINDS if name not in QUICK]
# For each number of workers, the cases of each launch.
LAUNCHES = {
    2: [("quick", "second", "slots", "fit", "sent"), ("others",)],
    3: [("quick",), ("others",)],
}


@functools.cache
def launched(workers: int, *cases: str) -> worker_programs.Launched:
    return worker_programs.launch(worker_pools.__file__, cases, workers)


class WorkerPoolsTest(tf.test.TestCase, parameterized.TestCase):
    def results(self, case: str, workers: int = 2) -> list[Any]:
        """The results of each worker."""
        (cases,) = (cases for cases in LAUNCHES[workers] if case in cases)
        found = launched(workers, *cases)
        self.assertEqual(found.code, 0, found.printed)
        return [found.results[rank][case] for rank in range(workers)]

    def check_training(self, name: str, workers: int) -> None:
        kind, expected = KINDS[name], worker_pools.oracle(name, workers)
        results = [
            one[name] for one in self.results("quick" if name in QUICK else "others", workers)
        ]
        for found in results:
            for what, value in expected.items():
                if what not in ("asked", "served"):
                    self.assertAllClose(
                        found[what], value, rtol=kind.rtol, atol=kind.rtol / 10, msg=what
                    )
        served = np.concatenate([found["served"] for found in results])
        self.assertAllClose(served, expected["served"], rtol=kind.rtol, atol=kind.rtol)
        # The check is meaningful only if rows have changed by far more than the tolerance.
        self.assertGreater(np.max(np.abs(expected["moved"])), 2 * kind.rtol)
        self.assertTrue(np.any(expected["exists"]))
        if workers == 2:
            self.assertEqual([found["asked"] for found in results], ways_of(name))

    @parameterized.parameters(*QUICK)
    def test_workers_train_as_one_process_and_send_less(self, name):
        self.check_training(name, 2)

    @parameterized.parameters(*OTHERS)
    def test_workers_train_other_kinds_as_one_process(self, name):
        self.check_training(name, 2)

    @parameterized.parameters(*KINDS)
    def test_three_workers_train_as_one_process(self, name):
        self.check_training(name, 3)

    def test_gradients_of_gradients_are_those_of_one_process(self):
        found = np.concatenate(self.results("second"))
        expected = worker_pools.squared_gradients(range(2), 2)
        self.assertGreater(np.max(expected), 0.1)
        self.assertAllClose(found, expected, rtol=2e-5, atol=2e-6)

    def test_the_pooled_layer_of_sok_is_that_of_one_process(self):
        expected = worker_pools.slots_of(range(2), 2)
        results = self.results("slots")
        for found in results:
            self.assertEqual(found["asked"], ["bags"])
            self.assertAllClose(found["rows"], expected["rows"], rtol=2e-5, atol=2e-6)
        pooled = np.concatenate([found["pooled"] for found in results])
        self.assertAllClose(pooled, expected["pooled"], rtol=2e-5, atol=2e-6)

    def test_a_model_shares_the_exchanges_of_rows_and_of_bags(self):
        expected = worker_pools.fitted(worker_pools.model_of())
        for found in self.results("fit"):
            for what, value in expected.items():
                if what != "exchanges":
                    self.assertAllClose(found[what], value, rtol=2e-5, atol=2e-6, msg=what)
            # Shared exchanges: keys, rows and sums, gradients of sums, gradients of rows. The layer
            # with learned weights has its own: keys, sums, gradients of sums and of weights. Before
            # that, Keras traces the model to build it, with separate exchanges for each table.
            self.assertEqual(found["exchanges"], 4 + 4 + 4 * 2)

    def test_long_bags_send_less(self):
        for rank, found in enumerate(self.results("sent")):
            print(f"worker {rank} sends {found['bags']} bytes by bags, {found['rows']} by rows")
            self.assertLess(found["bags"], found["rows"] / 2)


def ways_of(name: str) -> list[list[str]]:
    """The kinds of requests of each of two workers."""
    if name == "wire float16":
        return [[], []]  # rows are sent, and the batch's worker pools them
    if name == "uneven":
        return [["keys"], ["bags"]]
    way = "bags" if name in worker_pools.BY_BAGS else "keys"
    return [[way] * (2 if KINDS[name].in_loop else 1)] * 2


if __name__ == "__main__":
    tf.test.main()

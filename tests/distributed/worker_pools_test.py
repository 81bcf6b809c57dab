# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups in tables that workers share, in real processes, against one process."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
import worker_pools
import worker_programs
from absl.testing import parameterized

CASES = {2: ["training", "second", "slots", "fit", "sent"], 3: ["training"]}


@functools.cache
def launched(workers: int) -> worker_programs.Launched:
    return worker_programs.launch(worker_pools.__file__, CASES[workers], workers)


@functools.cache
def oracle(name: str, workers: int) -> dict:
    return worker_pools.oracle(name, workers)


class WorkerPoolsTest(tf.test.TestCase, parameterized.TestCase):
    def results(self, case: str, workers: int = 2) -> list:
        found = launched(workers)
        self.assertEqual(found.code, 0, found.printed)
        return [found.results[rank][case] for rank in range(workers)]

    @parameterized.product(name=tuple(worker_pools.KINDS), workers=tuple(CASES))
    def test_workers_train_as_one_process(self, name, workers):
        expected, rtol = oracle(name, workers), worker_pools.KINDS[name].rtol
        results = self.results("training", workers)
        for found in results:
            for what, value in expected.items():
                if what not in ("asked", "served"):
                    self.assertAllClose(
                        found[name][what], value, rtol=rtol, atol=rtol / 10, msg=what
                    )
        served = np.concatenate([found[name]["served"] for found in results])
        self.assertAllClose(served, expected["served"], rtol=rtol, atol=rtol)
        # It says something only if rows have changed.
        self.assertGreater(np.ptp(expected["losses"][:, 0]), 0)
        self.assertTrue(np.any(expected["exists"]))

    @parameterized.parameters(*worker_pools.KINDS)
    def test_each_worker_asks_in_the_way_that_sends_less(self, name):
        ways = [found[name]["asked"] for found in self.results("training")]
        loops = 2 if worker_pools.KINDS[name].in_loop else 1
        if name == "wire float16":
            self.assertEqual(ways, [[], []])  # as rows, which are pooled where the batch is
        elif name == "uneven":
            self.assertEqual(ways, [["keys"], ["bags"]])
        else:
            expected = "bags" if name in worker_pools.BY_BAGS else "keys"
            self.assertEqual(ways, [[expected] * loops] * 2)

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
            # Of keys, of rows and sums, of gradients of sums, of gradients of rows. Keras traces
            # the model once before, to build it: three tables by themselves, by two each.
            self.assertEqual(found["exchanges"], 4 + 3 * 2)

    def test_long_bags_send_less(self):
        for rank, found in enumerate(self.results("sent")):
            print(f"worker {rank} sends {found['bags']} bytes by bags, {found['rows']} by rows")
            self.assertLess(found["bags"], found["rows"] / 2)


if __name__ == "__main__":
    tf.test.main()

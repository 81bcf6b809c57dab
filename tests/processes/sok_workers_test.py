# SPDX-License-Identifier: Apache-2.0
"""The layers of tf_embed.sok on two workers, in real processes, against one process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support import PYTHONPATH
from support.processes import sok_workers
from tf_embed import sok
from tf_embed.distributed import run

WORKERS = 2
SECONDS = 120  # far more than a launch takes


class WorkersTest(tf.test.TestCase, parameterized.TestCase):
    """All tests share a single launch."""

    folder: pathlib.Path
    results: list[dict[str, Any]]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enter_context(tempfile.TemporaryDirectory()))
        saved = sok_workers.layer(name="loaded")
        saved.build()
        sok.assign(saved, range(7), [[0.0]] * 7)
        sok.dump(cls.folder / "load", saved)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcome = run.launch(
                [sok_workers.__file__, str(cls.folder)],
                workers=WORKERS,
                timeout_seconds=SECONDS,
                environment={**os.environ, "PYTHONPATH": PYTHONPATH},
            )
        if outcome.code:
            raise AssertionError(f"{outcome}\n{err.getvalue()[-5000:]}")
        paths = [cls.folder / f"result-{rank}.json" for rank in range(WORKERS)]
        cls.results = [json.loads(path.read_text()) for path in paths]

    @parameterized.parameters(*sok_workers.KEYS)
    def test_a_key_is_on_the_worker_of_its_remainder(self, dtype):
        for rank, result in enumerate(self.results):
            expected = [key for key in sok_workers.KEYS[dtype] if key % WORKERS == rank]
            self.assertNotEmpty(expected)
            self.assertEqual(result["homes"][dtype], expected)

    def test_each_worker_refuses_and_counts_what_is_beyond_its_bound(self):
        for rank, result in enumerate(self.results):
            # The keys of the steps: [0 to 5], [6 to 11, 0], [8, 8, 9], [0 to 7].
            three = [rank, rank + 2, rank + 4]
            four = [*three, rank + 6]
            found = result["bound"]
            self.assertEqual(found["keys"], [three, four, four, four])
            self.assertEqual(found["refused"], [0, 2, 3, 3])
            self.assertEqual(found["evicted"], [0, 0, 0, 0])

    def test_numbers_of_rows_are_those_of_all_workers(self):
        for result in self.results:
            self.assertIn("`inputs` of 'row_numbers'", result["row_numbers"])
            self.assertIn(f"= {WORKERS * sok_workers.BOUND - 1},", result["row_numbers"])

    def test_models_have_the_losses_of_one_process(self):
        expected = sok_workers.losses(tf.distribute.get_strategy())
        for result in self.results:
            self.assertEqual(result["losses"].keys(), expected.keys())
            for name, losses in expected.items():
                self.assertLess(losses[-1], losses[0])
                # The sums are in another order.
                self.assertAllClose(result["losses"][name], losses, rtol=2e-5, atol=2e-6)

    def test_an_incremental_dump_has_the_rows_of_all_workers(self):
        for result in self.results:
            for found, first in zip(result["since"], (0, 10, 20, 30), strict=True):
                expected = {str(key): [key, -key] for key in range(first, 30)}
                self.assertEqual(found, expected)

    def test_workers_load_what_one_process_dumped(self):
        self.assertEqual([one["loaded"] for one in self.results], [[0, 2, 4, 6], [1, 3, 5]])

    def test_one_process_loads_what_the_workers_dumped(self):
        layer = sok_workers.layer(dim=2, name="dumped")
        layer.build()
        sok.load(self.folder / "dump", layer)
        keys, rows = sok.export(layer)
        self.assertCountEqual(keys.numpy(), range(10 * WORKERS))
        self.assertAllEqual(rows, tf.cast(tf.stack([keys, -keys], 1), tf.float32))


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Verbs of tables that two workers share, in real processes, against one table."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import worker_programs
import worker_verbs
from absl.testing import parameterized

# Of numbers below 3, which travel as floats of 16 bits.
TOLERANCES = {"wire bfloat16": 2.0**-7, "wire float16": 2.0**-10}


@functools.cache
def launched() -> worker_programs.Launched:
    return worker_programs.launch(worker_verbs.__file__, ["verbs", "local"], 2)


class WorkerTableTest(tf.test.TestCase, parameterized.TestCase):
    def results(self) -> dict[int, Any]:
        self.assertEqual(launched().code, 0, launched().printed)
        return launched().results

    @parameterized.parameters(*worker_verbs.KINDS)
    def test_every_verb_does_what_it_does_on_one_table(self, name):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        expected = worker_verbs.oracle(name, folder)
        found = [self.results()[rank]["verbs"][name] for rank in (0, 1)]
        names = set(expected)
        self.assertEqual(found[0].keys() | found[1].keys(), names)
        tolerance = TOLERANCES.get(name, 1e-6)
        for what in sorted(names):
            if what.startswith("rows "):
                rows = [part[what] for part in found]
                self.assertEmpty(rows[0].keys() & rows[1].keys(), what)
                self.assert_same(rows[0] | rows[1], expected[what], tolerance, what)
            elif what.startswith("size "):
                self.assertEqual([part[what] for part in found], [expected[what]] * 2, what)
            else:
                (got,) = (part[what] for part in found if what in part)
                self.assert_same(got, expected[what], tolerance, what)
        if name != "bool rows":
            spread = [len(part["rows after upsert"]) for part in found]
            self.assertGreater(min(spread), 5)

    def assert_same(self, found: Any, expected: Any, tolerance: float, what: str) -> None:
        if isinstance(expected, dict):
            self.assertEqual(found.keys(), expected.keys(), what)
            for key in expected:
                self.assert_same(found[key], expected[key], tolerance, f"{what} {key!r}")
            return
        if isinstance(expected, tuple):
            for one, other in zip(found, expected, strict=True):
                self.assert_same(one, other, tolerance, what)
            return
        found, expected = np.asarray(found), np.asarray(expected)
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), what)
        if found.dtype == object or found.dtype.kind in "iub":
            self.assertEqual(found.tolist(), expected.tolist(), what)
        else:
            self.assertAllClose(found, expected, rtol=tolerance, atol=tolerance, msg=what)

    def test_a_local_table_is_of_one_worker(self):
        results = self.results()
        self.assertEqual(results[0]["local"], ({0: [0.0], 7: [0.0]}, 2))
        self.assertEqual(results[1]["local"], ({1: [1.0], 7: [1.0]}, 2))


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Compares results of `table_verbs.run_verbs` on several processes with a single table's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_FIRST = "lookup 1 of 0"
# For numbers below 3, which are sent as 16-bit floats.
_TOLERANCES = {"wire bfloat16": 2.0**-7, "wire float16": 2.0**-10}


class VerbsTestCase(tf.test.TestCase):
    """Tests that compare results of verbs."""

    def assert_results(
        self, found: Sequence[Mapping[str, Any]], expected: Mapping[str, Any], kind: str
    ) -> None:
        """Asserts that the results of several processes equal a single table's.

        Args:
            found: For each process: its rows, the results of its own batches, the sizes of the
                whole table.
            expected: The results of a single table.
            kind: The name of the kind of table.
        """
        self.assertEqual(set().union(*found), set(expected))
        tolerance = _TOLERANCES.get(kind, 1e-6)
        for what in sorted(expected):
            if what.startswith("rows "):
                together: dict[Any, Any] = {}
                for part in found:
                    self.assertEmpty(together.keys() & part[what].keys(), what)
                    together |= part[what]
                self.assert_same(together, expected[what], tolerance, what)
            elif what.startswith("size "):
                sizes = [part[what] for part in found]
                self.assertEqual(sizes, [expected[what]] * len(found), what)
            else:
                (got,) = (part[what] for part in found if what in part)
                self.assert_same(got, expected[what], tolerance, what)
        if kind in _TOLERANCES:
            wire = tf.as_dtype(kind.removeprefix("wire ")).as_numpy_dtype
            (rows,) = (part[_FIRST][0] for part in found if _FIRST in part)
            exact = expected[_FIRST][0]
            narrow = exact.astype(wire).astype(np.float32)
            # A worker's own rows are not sent.
            self.assertTrue(((rows == narrow) | (rows == exact)).all())
            self.assertGreater((rows != exact).mean(), 0.3)

    def assert_same(self, found: Any, expected: Any, tolerance: float, what: str) -> None:
        """Asserts that two results are the same: arrays, or tuples or dicts of arrays."""
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

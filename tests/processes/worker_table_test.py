# SPDX-License-Identifier: Apache-2.0
"""Verbs of tables that two workers share, in real processes, against tables in one process."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support.oracles.verb_results import VerbsTestCase
from support.processes import table_verbs, worker_programs


@functools.cache
def launched() -> worker_programs.Launched:
    return worker_programs.launch(table_verbs.__file__, ["verbs", "local"], 2)


class WorkerTableTest(VerbsTestCase, parameterized.TestCase):
    def results(self) -> dict[int, Any]:
        self.assertEqual(launched().code, 0, launched().printed)
        return launched().results

    @parameterized.parameters(*table_verbs.KINDS)
    def test_every_verb_does_what_it_does_on_one_table(self, name):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        expected = table_verbs.oracle(name, folder)
        found = [self.results()[rank]["verbs"][name] for rank in (0, 1)]
        self.assert_results(found, expected, name)
        if name != "bool rows":
            spread = [len(part["rows after upsert"]) for part in found]
            self.assertGreater(min(spread), 5)

    def test_a_local_table_is_of_one_worker(self):
        results = self.results()
        self.assertEqual(results[0]["local"], ({0: [0.0], 7: [0.0]}, 2))
        self.assertEqual(results[1]["local"], ({1: [1.0], 7: [1.0]}, 2))


if __name__ == "__main__":
    tf.test.main()

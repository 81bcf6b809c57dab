# SPDX-License-Identifier: Apache-2.0
"""Layers on two workers that look up in their own tf.functions, which keep their traces."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf
from absl.testing import absltest

from support.processes import worker_functions, worker_programs


@functools.cache
def launched() -> worker_programs.Launched:
    return worker_programs.launch(worker_functions.__file__, ["functions"], 2)


class WorkerFunctionsTest(tf.test.TestCase):
    def results(self) -> list[dict]:
        self.assertEqual(launched().code, 0, launched().printed)
        return [launched().results[rank]["functions"] for rank in (0, 1)]

    @pytest.mark.smoke
    def test_layers_called_together_answer_as_alone(self):
        for found in self.results():
            (rows, others) = found["alone"]
            self.assertNotAllClose(rows[0], rows[1])
            for name in ("together", "again"):
                self.assertAllEqual(found[name][0], rows)
                self.assertAllEqual(found[name][1], others)

    @pytest.mark.smoke
    def test_a_model_is_trained_as_without_a_function(self):
        for found in self.results():
            self.assertEqual(found["apart"]["sizes"], [8, 8])
            for name, wanted in found["in place"].items():
                self.assertAllClose(found["apart"][name], wanted, msg=name)


if __name__ == "__main__":
    absltest.main()

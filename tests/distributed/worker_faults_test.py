# SPDX-License-Identifier: Apache-2.0
"""What workers do if one of them hangs, dies, or does not do as the others. In real processes."""

from __future__ import annotations

import tensorflow as tf
import worker_faults
import worker_programs
from absl.testing import parameterized

# What a busy machine may add to a time-out.
PATIENCE = 15


def launch(case: str, workers: int = 2) -> worker_programs.Launched:
    return worker_programs.launch(worker_faults.__file__, [case], workers)


class WorkerFaultsTest(tf.test.TestCase, parameterized.TestCase):
    def test_other_workers_raise_if_one_does_not_answer(self):
        launched = launch("hang")
        (said, seconds), again = launched.results[0]["hang"]
        print(said)
        print(again)
        print(seconds)
        raise ValueError

    def test_other_workers_raise_if_one_is_killed(self):
        launched = launch("killed", 3)
        self.fail(launched)

    @parameterized.parameters("order", "steps", "missing")
    def test_it(self, case):
        launched = launch(case)
        self.fail(launched)

    def test_what_can_not_be_done_is_refused_by_name(self):
        launched = launch("refusals")
        print(launched.code, launched.printed)
        for name, said in launched.results[0]["refusals"].items():
            print(name, "|", said)
        raise ValueError


if __name__ == "__main__":
    tf.test.main()

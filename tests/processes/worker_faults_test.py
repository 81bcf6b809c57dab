# SPDX-License-Identifier: Apache-2.0
"""Workers, one of which hangs, dies, or deviates from the others, in real processes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support.faults import worker_faults
from support.processes import worker_programs

TRAINED = ("ValueError", "MultiWorkerMirroredStrategy")
OUTSIDE = ", whose rule runs outside of the table"
ADVICE = 'distribution="local" gives each worker a table of its own.'
REFUSED = {
    "name": ("ValueError", "same tables in the same order", '"table_0"', '"table_1"'),
    "dim": ("ValueError", "dim 2", "dim 3"),
    "dtype": ("ValueError", "value float32", "value float64"),
    "key dtype": ("ValueError", "key int32", "key int64"),
    "policy": ("ValueError", "max_rows=10", "max_rows=11"),
    "long": ("ValueError", "dim 701", "... ("),
    "score_fn": ("no error",),
    "order": ("ValueError", 'worker 0 makes {"table": "b"', 'worker 1 makes {"table": "a"'),
    "restrict_policy": ("ValueError", "restrict_policy=", "OwnPolicy", ADVICE),
    "strings": ("ValueError", "is sharded over workers", "value_dtype=string"),
    "max_rows": ("ValueError", "`max_rows`", "at least 2", "max_rows=1"),
    "owner": ("InvalidArgumentError", "`owner`", "must give workers from 0 to 1", "10"),
    "string remainder": ("ValueError", 'owner="remainder"', "key_dtype=string"),
    "restrict": ("InvalidArgumentError", "`num_reserved`", "the same on all workers", "'good'"),
    **{
        f"{name}, {case}": ("InvalidArgumentError", *words, "the same on all workers", name)
        for name in worker_faults.RESTRICTED
        for case, words in {
            "trigger": ("`trigger`", "3, 1000"),
            "in a graph": ("`trigger`", "[3 1000]"),
            "one trigger": ("`trigger`", "-1, 2"),
            "num_reserved": ("`num_reserved`", "1, 2"),
        }.items()
    },
    **{f"{name}, rows": ("(4, 0, 1, 3)",) for name in worker_faults.RESTRICTED},
    "prefetch": ("ValueError", "'ahead' can't prefetch for a dataset", "on all workers"),
    "filters": (
        *("ValueError", "'filters' is sharded over 2 workers, which does not work with", ADVICE),
        "files of Keras if its policy has a `BloomAdmission`, or an `admission` of strings",
    ),
    "slots": ("ValueError", "slots that are written from outside"),
    "copy": ("ValueError", "can't be copied: it is sharded over 2 workers"),
    **{
        f"{name}{where}": (*TRAINED, name)
        for name in (
            *("Nadam", "Lion", "clipnorm=1.0", "global_clipnorm=1.0", "use_ema=True"),
            *("gradient_accumulation_steps=2", "LossScaleOptimizer"),
        )
        for where in ("", ", own", ", out of the scope")
    },
    **{
        f"clipnorm=1.0{where}": (*TRAINED, "=1.0, of the rows of all workers")
        for where in ("", ", own")
    },
    **{f"Nadam{where}": (*TRAINED, f"Nadam{OUTSIDE}") for where in ("", ", own")},
    # Refused without workers too.
    "use_ema=True, own": ("ValueError", "use_ema=True"),
    "LossScaleOptimizer, own": ("ValueError", "LossScaleOptimizer"),
    "at last": ("[[1.0], [1.0], [1.0], [0.0]]",),
}


def launch(case: str, workers: int = 2) -> worker_programs.Launched:
    return worker_programs.launch(worker_faults.__file__, [case], workers)


class WorkerFaultsTest(tf.test.TestCase, parameterized.TestCase):
    def found(self, case: str, workers: int, survivors: int) -> list[Any]:
        launched = launch(case, workers)
        self.assertLen(launched.results, survivors, launched.printed)
        return [result[case] for result in launched.results.values()]

    def assert_timed_out(self, found: dict[str, Any]) -> None:
        self.assertIn("DeadlineExceededError", found["said"])
        self.assertRegex(
            found["said"],
            r"Another worker did not take part in .* within \d+ s \(`timeout_seconds`\). "
            "Collective has timed out: restart all workers from the last checkpoint",
        )
        self.assertRegex(found["said"], r"exchange \d+ of sharded tables")
        # Every later call fails at once.
        self.assertNotEqual(found["said later"], "no error")

    @parameterized.parameters("hang", "steps", "missing")
    def test_the_others_raise_if_a_worker_does_not_take_part(self, case):
        (found,) = self.found(case, 2, 1)
        self.assert_timed_out(found)

    def test_all_survivors_raise_if_a_worker_is_killed(self):
        for found in self.found("killed", 3, 2):
            self.assertRegex(found["said"], "^(Unavailable|Internal|Aborted|Cancelled)Error: ")

    def test_another_order_of_calls_is_right_or_an_error_in_time(self):
        for found in self.found("order", 2, 2):
            if found["said"] != "no error":
                self.assert_timed_out(found)

    def test_what_can_not_be_done_is_refused_by_name(self):
        for said in self.found("refusals", 2, 2):
            self.assertEqual(said.keys(), REFUSED.keys())
            for name, words in REFUSED.items():
                for word in words:
                    self.assertIn(word, said[name], name)


if __name__ == "__main__":
    tf.test.main()

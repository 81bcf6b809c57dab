# SPDX-License-Identifier: Apache-2.0
"""`restrict` and `prefetch` of tables that two workers share, in real processes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.oracles.policy_oracle import tie_of
from support.processes import worker_evictions, worker_programs

RANKS = {
    "lru": ("last_step",),
    "lfu": ("count", "last_step"),
    "ttl": ("last_time_ms", "last_step"),
}


@functools.cache
def launched() -> worker_programs.Launched:
    cases = ["restrict", "trigger", "prefetch"]
    return worker_programs.launch(worker_evictions.__file__, cases, 2)


class WorkerEvictionsTest(tf.test.TestCase, parameterized.TestCase):
    def found(self, case: str) -> list[Any]:
        self.assertEqual(launched().code, 0, launched().printed)
        return [launched().results[rank][case] for rank in (0, 1)]

    @parameterized.parameters(*worker_evictions.ORDERS)
    def test_restrict_leaves_as_many_rows_of_all_workers_the_last_in_order_of_each(self, name):
        order, _ = worker_evictions.ORDERS[name]
        states = list(zip(*(one[name] for one in self.found("restrict")), strict=True))
        rows = [one[1] for one in states[0]]
        self.assertGreater(len(rows[0]), 2 * len(rows[1]))
        self.assertGreater(len(rows[1]), 5)
        for reserved, state in zip(worker_evictions.RESERVED, states[1:], strict=True):
            before = sum(map(len, rows))
            if name == "expiring":
                # The clock is at 110 ms.
                rows = [
                    {key: use for key, use in one.items() if use["last_time_ms"] > 60}
                    for one in rows
                ]
            sizes = [len(one) for one in rows]
            first = min(reserved, sum(sizes)) * sizes[0] // max(1, sum(sizes))
            shares = [first, min(reserved, sum(sizes)) - first]
            for rank, share in enumerate(shares):
                ranked = sorted(
                    rows[rank],
                    key=lambda key, of=rows[rank]: (
                        *(of[key][name] for name in RANKS[order]),
                        tie_of(key),
                    ),
                )
                expected = ranked[len(ranked) - share :]
                self.assertCountEqual(state[rank][1], expected, f"{reserved} rows, worker {rank}")
            rows = [one[1] for one in state]
            self.assertEqual([one[0] for one in state], [before - sum(shares)] * 2)
            self.assertEqual([one[2] for one in state], [sum(shares)] * 2)

    def test_a_refusing_bound_has_room_again(self):
        found = [one["room"] for one in self.found("restrict")]
        # Each worker has at most 75 rows. The workers wrote the same 400 keys. Worker 0 owns 320.
        self.assertEqual([size for size, _ in found], [150, 150])
        self.assertGreaterEqual(found[0][1], 320 - 75)

    def test_a_trigger_is_of_the_rows_of_all_workers(self):
        for found in self.found("trigger"):
            self.assertEqual(found, ([(0, 80), (30, 50), (0, 50)], 50))

    def test_prefetch_brings_rows_up_where_they_are(self):
        found = self.found("prefetch")
        for name, promoted in {"prefetch": 4, "empty": 3, "graph": 4}.items():
            self.assertEqual(sum(one[name]["promoted"] for one in found), promoted, name)
            self.assertEqual([one[name]["rows"] for one in found], [0, 0])
        self.assertGreater(min(one["prefetch"]["promoted"] for one in found), 0)
        self.assertEqual([one["lookup"]["cache_misses"] for one in found], [0, 0])
        for rank, expected in enumerate(([5, 2, 7], [0, 2, 0])):
            self.assertAllEqual(found[rank]["rows"][: 3 - rank, 0], np.array(expected)[: 3 - rank])

    def test_prefetch_may_run_beside_steps_in_another_thread(self):
        for found in self.found("prefetch"):
            self.assertEqual(found["beside steps"], (True, [], 3000))

# SPDX-License-Identifier: Apache-2.0
"""Restricts a table to half of its rows, in its own process.

    python benchmarks/restrict.py tf_embed|TFRA frequency|timestamp KEYS DIM

Every second key is used once more than the others, so the rows of these keys must stay. Prints an
object of JSON: seconds, rows before and after, the number of those rows that stayed, and bytes of
resident memory without the table, before, at the peak and after.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import machine
from grow import BATCH, give_back
from ids import keys_of
from warm_memory import WarmMemory

PAUSE_SECONDS = {"frequency": 0.0, "timestamp": 1.1}  # TFRA records times in whole seconds


class Table:
    """A table with a policy, and a use of keys as a graph function."""

    def __init__(self, implementation: str, policy: str, dim: int) -> None:
        if implementation == "TFRA":
            from peers import tfra

            self.variable: Any = tfra.restricted(policy, dim)
            update = self.variable.restrict_policy.apply_update
        else:
            from peers import ours

            self.variable = ours.restricted(policy, dim)
            update = None  # the table records the use of inserted keys
        self._pause_seconds = PAUSE_SECONDS[policy]

        @tf.function
        def use(ids: tf.Tensor, rows: tf.Tensor) -> None:
            self.variable.upsert(ids, rows)
            if update is not None:
                update(ids)

        self._use = use

    def fill(self, keys: int, dim: int) -> None:
        """Uses all keys, and later the even keys again."""
        rows = tf.random.stateless_normal([BATCH, dim], seed=[1, 2])
        for step in (1, 2):
            for first in range(0, keys, step * BATCH):
                ids = keys_of(np.arange(first, min(keys, first + step * BATCH), step))
                self._use(tf.constant(ids), rows[: len(ids)])
            time.sleep(self._pause_seconds)

    def count(self, numbers: np.ndarray) -> int:
        """The number of these keys that have a row."""
        _, exists = self.variable.lookup(tf.constant(keys_of(numbers)), return_exists=True)
        return int(tf.math.count_nonzero(exists))


def main() -> None:
    parser = argparse.ArgumentParser(description="Restricts one table to half of its rows.")
    parser.add_argument("implementation", choices=("tf_embed", "TFRA"))
    parser.add_argument("policy", choices=("frequency", "timestamp"))
    parser.add_argument("keys", type=int)
    parser.add_argument("dim", type=int)
    options = parser.parse_args()
    # A first table allocates the memory that a process needs only once.
    first = Table(options.implementation, options.policy, options.dim)
    first.fill(2 * BATCH, options.dim)
    first.variable.restrict(BATCH)
    give_back()
    without = machine.resident_bytes()
    # Twice the size of all rows, which is more than either implementation takes.
    room = 2 * options.keys * (8 + 4 * options.dim)
    warm = WarmMemory(room)
    table = Table(options.implementation, options.policy, options.dim)
    table.fill(options.keys, options.dim)
    rows = int(table.variable.size())
    give_back()
    before = machine.resident_bytes()
    machine.forget_peak()
    warm.release(room)
    begin = time.perf_counter()
    table.variable.restrict(options.keys // 2)
    left = int(table.variable.size())
    seconds = time.perf_counter() - begin
    peak = machine.peak_resident_bytes()
    warm.close()
    give_back()
    after = machine.resident_bytes()
    found = {
        "seconds": seconds,
        "rows": rows,
        "left": left,
        "wanted_left": table.count(np.arange(0, options.keys, 2)),
        "without": without,
        "before": before,
        "peak": peak,
        "after": after,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

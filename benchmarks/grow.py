# SPDX-License-Identifier: Apache-2.0
"""Grows a table from empty, in its own process, without a reserve.

    python benchmarks/grow.py tf_embed|TFRA KEYS DIM [--warm < NEEDS]

Prints an object of JSON: seconds of all batches, and of each batch in `times`; bytes of resident
memory before, at the peak and at the end, and `needs`, the bytes that each batch took at its peak.
With `--warm` it reads such a list, and frees that much memory before each batch. The host of a
virtual machine has already provided this memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import machine
from ids import keys_of
from warm_memory import WarmMemory

BATCH = 65536
AHEAD_BYTES = 32 << 20  # warm memory for the system


def table(implementation: str, dim: int) -> Any:
    if implementation == "TFRA":
        from peers import tfra

        return tfra.Table(dim)
    from peers import ours

    return ours.Table(dim)


def give_back() -> None:
    """Makes the C library return free memory, so that all resident memory is in use."""
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Grows one table from empty.")
    parser.add_argument("implementation", choices=("tf_embed", "TFRA"))
    parser.add_argument("keys", type=int)
    parser.add_argument("dim", type=int)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    warm, given = None, []
    if options.warm:
        given = json.load(sys.stdin)
        warm = WarmMemory(sum(given) + AHEAD_BYTES)
    rows = tf.random.stateless_normal([BATCH, options.dim], seed=[1, 2])
    # A first table allocates the memory that a process needs only once.
    table(options.implementation, options.dim).upsert(tf.constant(keys_of(np.arange(BATCH))), rows)
    grown = table(options.implementation, options.dim)
    grown.upsert.get_concrete_function(
        tf.TensorSpec([BATCH], tf.int64), tf.TensorSpec([BATCH, options.dim], tf.float32)
    )
    give_back()
    before = machine.resident_bytes()
    if warm is not None:
        warm.release(AHEAD_BYTES)
    times, peaks, needs = [], [], []
    for number, first in enumerate(range(0, options.keys, BATCH)):
        ids = tf.constant(keys_of(np.arange(first, first + BATCH)))
        machine.forget_peak()
        held = machine.peak_resident_bytes()
        if warm is not None:
            warm.release(given[number])
        begin = time.perf_counter()
        grown.upsert(ids, rows)
        times.append(time.perf_counter() - begin)
        peaks.append(machine.peak_resident_bytes())
        needs.append(max(0, peaks[-1] - held))
    if warm is not None:
        warm.close()
    give_back()
    found = {
        "keys": int(grown.variable.size()),
        "seconds": sum(times),
        "times": times,
        "before": before,
        "peak": max(peaks),
        "final": machine.resident_bytes(),
        "needs": needs,
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

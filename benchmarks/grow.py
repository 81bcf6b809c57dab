"""Grows one table from empty, in a process of its own, without making room beforehand.

    python benchmarks/grow.py tf_embed|TFRA KEYS DIM

Prints an object of JSON: seconds of all batches, of the median and of the worst one, and bytes of
resident memory before, at the peak and at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import machine
from ids import keys_of

BATCH = 65536


def table(implementation: str, dim: int) -> Any:
    if implementation == "TFRA":
        from peers import tfra

        return tfra.Table(dim)
    from peers import ours

    return ours.Table(dim)


def give_back() -> None:
    """Has the C library give free memory back, so that what remains resident is in use."""
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Grows one table from empty.")
    parser.add_argument("implementation", choices=("tf_embed", "TFRA"))
    parser.add_argument("keys", type=int)
    parser.add_argument("dim", type=int)
    options = parser.parse_args()
    rows = tf.random.stateless_normal([BATCH, options.dim], seed=[1, 2])
    # What a process needs once, a first table takes.
    table(options.implementation, options.dim).upsert(tf.constant(keys_of(np.arange(BATCH))), rows)
    grown = table(options.implementation, options.dim)
    grown.upsert.get_concrete_function(
        tf.TensorSpec([BATCH], tf.int64), tf.TensorSpec([BATCH, options.dim], tf.float32)
    )
    give_back()
    before = machine.resident_bytes()
    machine.forget_peak()
    times = []
    for first in range(0, options.keys, BATCH):
        ids = tf.constant(keys_of(np.arange(first, first + BATCH)))
        begin = time.perf_counter()
        grown.upsert(ids, rows)
        times.append(time.perf_counter() - begin)
    peak = machine.peak_resident_bytes()
    give_back()
    found = {
        "keys": int(grown.variable.size()),
        "seconds": sum(times),
        "median": statistics.median(times),
        "worst": max(times),
        "before": before,
        "peak": peak,
        "final": machine.resident_bytes(),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

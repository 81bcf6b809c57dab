# SPDX-License-Identifier: Apache-2.0
"""Saves a table as files and loads it, in its own process.

    python benchmarks/files.py ROWS DIM [FOLDER]

Rows have Adam's slots. Prints an object of JSON: bytes of the files, seconds of the save and of the
load into an empty table, and, in bytes, the table's resident memory and the peak memory of save and
load beyond the tables. The folder should be on the disk to measure; written files are removed.
Files and the second table use memory that the host has already provided, see warm_memory.py.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import machine
import tf_embed
from grow import give_back
from warm_memory import WarmMemory

BATCH = 65536


def table(dim: int) -> tuple[tf_embed.Variable, Any]:
    """A variable to train with Adam."""
    variable = tf_embed.Variable(dim=dim, name="files", initializer="random_normal")
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    optimizer.build([variable.anchor])
    return variable, optimizer


def measure(rows: int, dim: int, folder: str) -> dict[str, float]:
    """Saves and loads a table of `rows` rows."""
    variable, optimizer = table(dim)
    gradients = tf.random.stateless_normal([BATCH, dim], seed=[1, 2])
    for first in range(0, rows, BATCH):
        keys = tf.range(first, min(rows, first + BATCH), dtype=tf.int64) * 0x61C8864680B583EB
        slices = tf.IndexedSlices(gradients[: len(keys)], keys)
        optimizer.apply([slices], [variable.anchor])
    give_back()
    row_bytes = 3 * dim * 4  # weights and two slots
    warm = WarmMemory(int(2.5 * rows * row_bytes))
    with_table = machine.resident_bytes()
    machine.forget_peak()
    warm.release(int(1.1 * rows * row_bytes))  # for the system's copy of the files
    begin = time.perf_counter()
    variable.save_rows(folder)
    saved = time.perf_counter() - begin
    save_peak = machine.peak_resident_bytes()
    size = sum(path.stat().st_size for path in pathlib.Path(folder).iterdir())

    other, _ = table(dim)
    give_back()
    machine.forget_peak()
    warm.close()
    begin = time.perf_counter()
    other.load_rows(folder)
    loaded = time.perf_counter() - begin
    load_peak = machine.peak_resident_bytes()
    give_back()
    with_both = machine.resident_bytes()
    assert int(other.size()) == int(variable.size()) == rows
    return {
        "file_bytes": size,
        "save_seconds": saved,
        "load_seconds": loaded,
        "save_extra_bytes": save_peak - with_table,
        "load_extra_bytes": load_peak - with_both,
        "second_table_bytes": with_both - with_table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Saves a table as files and loads it.")
    parser.add_argument("rows", type=int)
    parser.add_argument("dim", type=int)
    parser.add_argument("folder", nargs="?", help="where a folder for the files is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measure(options.rows, options.dim, folder)))


if __name__ == "__main__":
    main()

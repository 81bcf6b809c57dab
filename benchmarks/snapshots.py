# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a trained table: of all rows, of changes, and during training.

    python benchmarks/snapshots.py ROWS DIM [FOLDER] [--cache-mb=MB]

Rows have Adam's slots. Prints an object of JSON:

    whole_seconds, whole_bytes          a snapshot of all rows, and its files
    changes_seconds, changes_bytes      a snapshot of the changes since, with 1% of the rows trained
    load_seconds                        the chain of both, into an empty table
    steps_before, _meanwhile, _after    steps a second, of 4,096 random keys, before a snapshot of
                                        all rows, while a thread writes it, and after it
    longest_before, longest_meanwhile   seconds of the longest step
    begin_seconds                       until `save(wait=False)` returns

With `--cache-mb` the rows are on disk, under a cache of that size. The folder should be on the disk
in question; written files are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import tf_embed

BATCH = 65536
STEP = 4096
STEPS = 200


class Trained:
    """A table, and steps of Adam on it."""

    def __init__(self, rows: int, dim: int, storage: tf_embed.Storage | None) -> None:
        policy = tf_embed.TablePolicy(eviction=None, track_changes=True)
        self.variable = tf_embed.Variable(dim=dim, policy=policy, storage=storage, init_size=rows)
        self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        self._optimizer.build([self.variable.anchor])
        self._gradients = tf.random.stateless_normal([BATCH, dim], seed=[1, 2])
        self._keys = tf.random.stateless_uniform([64, STEP], [3, 4], 0, rows, tf.int64)
        self._taken = 0

    def train(self, first: int, end: int) -> None:
        """Trains each key once."""
        for begin in range(first, end, BATCH):
            self._apply(tf.range(begin, min(end, begin + BATCH), dtype=tf.int64))

    def step(self) -> float:
        """Makes a step on random keys, and returns its seconds."""
        begin = time.perf_counter()
        self._apply(self._keys[self._taken % len(self._keys)])
        self._taken += 1
        return time.perf_counter() - begin

    def _apply(self, keys: tf.Tensor) -> None:
        slices = tf.IndexedSlices(self._gradients[: len(keys)], keys)
        self._optimizer.apply([slices], [self.variable.anchor])


def measure(rows: int, dim: int, folder: str, cache_mb: int | None) -> dict[str, Any]:
    """Makes snapshots of a table of `rows` rows."""
    storage = None
    if cache_mb is not None:
        storage = tf_embed.Storage(host_bytes=cache_mb * 2**20, path=os.path.join(folder, "rows"))
    trained = Trained(rows, dim, storage)
    trained.train(0, rows)
    snapshots = tf_embed.Snapshots(os.path.join(folder, "snapshots"), trained.variable)
    result: dict[str, Any] = {"rows": rows, "dim": dim}
    begin = time.perf_counter()
    whole = snapshots.save("whole").wait()
    result["whole_seconds"] = time.perf_counter() - begin
    result["whole_bytes"] = whole.bytes
    trained.train(0, rows // 100)
    begin = time.perf_counter()
    changes = snapshots.save("changes", since="whole").wait()
    result["changes_seconds"] = time.perf_counter() - begin
    result["changes_bytes"] = changes.bytes
    result["changes_of_whole"] = changes.bytes / whole.bytes

    before = [trained.step() for _ in range(STEPS)]
    begin = time.perf_counter()
    pending = snapshots.save("background", wait=False)
    result["begin_seconds"] = time.perf_counter() - begin
    meanwhile = []
    while not pending.done():
        meanwhile.append(trained.step())
    result["background_seconds"] = time.perf_counter() - begin
    pending.wait()
    after = [trained.step() for _ in range(STEPS)]
    result["steps_before"] = len(before) / sum(before)
    result["steps_meanwhile"] = len(meanwhile) / sum(meanwhile)
    result["steps_after"] = len(after) / sum(after)
    result["meanwhile_of_before"] = result["steps_meanwhile"] / result["steps_before"]
    result["longest_before"] = max(before)
    result["longest_meanwhile"] = max(meanwhile)

    other = tf_embed.Variable(dim=dim, policy=trained.variable.table.options.policy)
    begin = time.perf_counter()
    tf_embed.Snapshots(snapshots.path, other).load("changes")
    result["load_seconds"] = time.perf_counter() - begin
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=int)
    parser.add_argument("dim", type=int)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--cache-mb", type=int)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=arguments.folder)
    try:
        print(
            json.dumps(measure(arguments.rows, arguments.dim, folder, arguments.cache_mb), indent=1)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables that workers share, compared with a dict of rows.

A program for `worker_programs`; a test runs the same code in its own process, without a strategy.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker, said_by
from tf_embed.ops import snapshot_ops
from tf_embed.serving import Publisher

NAMES, DIM, KEYS = ("items", "users"), 3, 400
FACTORS = np.arange(1.0, DIM + 1.0, dtype=np.float32)  # so that a torn or shifted row shows
WORKERS = 2  # a step has the batches of all of them
TRACKED = tf_embed.TablePolicy(eviction="lfu", track_changes=True)
LFU = tf_embed.TablePolicy(eviction="lfu")


def step_of(place: int, step: int, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys that a worker trains in a step, their gradients, and the keys that it removes."""
    draw = np.random.default_rng([place, step, rank])
    keys = draw.choice(KEYS, 40, replace=False) * 7_919_000_000_007
    removed = draw.choice(keys, 3, replace=False) if step % 3 == 0 else keys[:0]
    return keys, draw.integers(-3, 4, len(keys)), removed


class Shadow:
    """The expected tables after some steps: a dict of rows and slots for each.

    Args:
        steps: The number of steps.
    """

    def __init__(self, steps: int) -> None:
        self.tables: list[dict[int, tuple[int, int]]] = [{} for _ in NAMES]
        for step in range(1, steps + 1):
            for place, table in enumerate(self.tables):
                self._make(table, [step_of(place, step, rank) for rank in range(WORKERS)])

    def _make(self, table: dict[int, tuple[int, int]], parts: list[Any]) -> None:
        sums: dict[int, int] = {}
        for keys, gradients, _ in parts:
            for key, gradient in zip(keys.tolist(), gradients.tolist(), strict=True):
                sums[key] = sums.get(key, 0) + gradient
        for key, gradient in sums.items():
            row, slot = table.get(key, (0, 0))
            table[key] = (row + slot - gradient, slot - gradient)
        for _, _, removed in parts:
            for key in removed.tolist():
                table.pop(key, None)

    def contents(self) -> list[dict[int, list[float]]]:
        return [
            {key: [*(row * FACTORS), *(slot * FACTORS)] for key, (row, slot) in table.items()}
            for table in self.tables
        ]


class Tables:
    """The tables, trained by SGD with a momentum and a rate of 1, so rows are integers.

    Args:
        ranks: The workers whose batches this process trains.
        policy: The policy of the tables.
        shards: The number of shards in this process.
        folder: The folder for rows on disk; None for rows in memory.
    """

    def __init__(
        self, ranks: list[int], policy: Any = TRACKED, shards: int = 1, folder: str | None = None
    ) -> None:
        self._ranks = ranks
        storage = None if folder is None else tf_embed.Storage(host_bytes=8000, path=folder)
        self.variables = [
            tf_embed.Variable(
                dim=DIM, devices=["/CPU:0"] * shards, name=name, policy=policy, storage=storage
            )
            for name in NAMES
        ]
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, momentum=1.0))
        self.anchors = [one for v in self.variables for one in v.trainable_variables]
        self.optimizer.build(self.anchors)

    def train(self, step: int) -> None:
        """Makes a step. Workers call it within `strategy.run`."""
        parts = [
            [step_of(place, step, rank) for rank in self._ranks] for place in range(len(NAMES))
        ]
        with tf.GradientTape() as tape:
            losses = []
            for v, some in zip(self.variables, parts, strict=True):
                keys = np.concatenate([one[0] for one in some])
                gradients = np.concatenate([one[1] for one in some])[:, None] * FACTORS
                rows = tf_embed.embedding_lookup(v, tf.constant(keys))
                losses.append(tf.reduce_sum(rows * tf.constant(gradients, tf.float32)))
            loss = tf.add_n(losses)
        gradients = tape.gradient(loss, self.anchors)
        self.optimizer.apply_gradients(zip(gradients, self.anchors, strict=True))
        for v, some in zip(self.variables, parts, strict=True):
            v.remove(np.concatenate([one[2] for one in some]))

    def contents(self) -> list[dict[int, list[float]]]:
        """The rows of this process, with their slots."""
        found = []
        for v in self.variables:
            exported = v.table.export()
            rows = np.concatenate([exported.values, exported.slots], axis=1)
            found.append(dict(zip(exported.keys.numpy().tolist(), rows.tolist(), strict=True)))
        return found

    def clear(self) -> None:
        for v in self.variables:
            v.clear()


def new_tables(strategy: Any, rank: int, **options: Any) -> Tables:
    with strategy.scope():
        return Tables([rank] if rank < WORKERS else [], **options)


def train(strategy: Any, tables: Tables, first: int, last: int) -> None:
    for step in range(first, last + 1):
        strategy.run(lambda step=step: tables.train(step))


def path_of(folder: str, name: str = "snapshots") -> str:
    return os.path.join(folder, name)


def listed(snapshots: tf_embed.Snapshots) -> list[tuple[str, str | None]]:
    return [(info.name, info.since) for info in snapshots.list_snapshots()]


def write(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Saves snapshots of all rows and of changes, before and during training, and loads them."""
    found: dict[str, Any] = {}
    tables = new_tables(strategy, rank)
    snapshots = tf_embed.Snapshots(path_of(folder), tables.variables)
    if rank == 0:  # no other worker takes part
        assert tf_embed.Snapshots(path_of(folder), tables.variables).latest() is None
    train(strategy, tables, 1, 3)
    whole = snapshots.save("whole").wait()
    found["whole"] = (whole.name, whole.since, [one.rows for one in whole.tables], whole.time)
    train(strategy, tables, 4, 5)
    pending = snapshots.save("changes", since="whole", wait=False)
    train(strategy, tables, 6, 8)
    changes = pending.wait()
    found["changes"] = (changes.name, changes.since, [one.rows for one in changes.tables])
    snapshots.save("more", since="changes")
    found["apart"] = tables.contents()
    loaded = new_tables(strategy, rank)
    others = tf_embed.Snapshots(path_of(folder), loaded.variables)
    found["not empty"] = said_by(snapshots.load, "more")
    others.load("more")
    found["loaded"] = loaded.contents()
    train(strategy, loaded, 9, 9)
    others.save("after load", since="more")
    found["listed"] = listed(others)
    disk = new_tables(strategy, rank, folder=f"{folder}/tiers-{rank}", shards=2, policy=LFU)
    train(strategy, disk, 1, 5)
    plain = tf_embed.Snapshots(path_of(folder, "plain"), disk.variables)
    plain.save("plain")
    found["plain files"] = sorted(os.listdir(path_of(folder, "plain/plain")))
    found["plain changes"] = said_by(plain.save, "other", since="plain")
    return found


def faults(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """If one worker fails, all refuse, and no snapshot appears."""
    found: dict[str, Any] = {}
    tables = new_tables(strategy, rank)
    snapshots = tf_embed.Snapshots(path_of(folder, "faults"), tables.variables)
    train(strategy, tables, 1, 2)
    found["names"] = said_by(snapshots.save, f"name-{rank}")
    found["argument"] = said_by(snapshots.save, "one" if rank else "a/b")
    found["fold"] = said_by(snapshots.fold, "one", to=f"name-{rank}")
    found["remove"] = said_by(snapshots.remove, f"name-{rank}")
    found["keep"] = said_by(snapshots.keep, 1 + rank)
    found["publish"] = said_by(Publisher, tables.variables, path_of(folder, "published"))
    found["missing"] = said_by(snapshots.load, "missing")
    with fails_at_second_table(rank == 1):
        found["write"] = said_by(snapshots.save, "one")
        found["write, later"] = said_by(lambda: snapshots.save("one", wait=False).wait())
    found["left"] = sorted(os.listdir(snapshots.path))
    snapshots.save("one")
    if rank == 0:
        tables.variables[0].clear()  # only this worker's rows
    train(strategy, tables, 3, 3)
    found["unknown"] = said_by(snapshots.save, "two", since="one")
    with strategy.scope():
        local = tf_embed.Variable(dim=DIM, devices="/CPU:0", distribution="local")
    mixed = [*tables.variables, local]
    found["mixed"] = said_by(tf_embed.Snapshots, snapshots.path, mixed)
    found["apart"] = said_by(apart, strategy, rank, folder)
    tables.clear()
    with mock.patch("tf_embed.snapshots.loading.RowFiles.load_all", side_effect=damaged(rank)):
        found["damaged"] = said_by(snapshots.load, "one")
    found["damaged rows"] = [len(one) for one in tables.contents()]
    snapshots.load("one")
    found["rows"] = tables.contents()
    busy(snapshots, rank, found)
    found["listed"] = listed(snapshots)
    return found


@contextlib.contextmanager
def fails_at_second_table(here: bool) -> Iterator[None]:
    write_rows = snapshot_ops.write_snapshot

    def write(*args: Any, **options: Any) -> int:
        if here and args[1] == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "The disk is full.")
        return write_rows(*args, **options)

    with mock.patch.object(snapshot_ops, "write_snapshot", write):
        yield


def full_disk(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Saves to a disk with room for the rows of a single worker, if the folder has such a disk."""
    path = path_of(folder, "small_disk")
    if not os.path.islink(path):
        return {}
    tables = new_tables(strategy, rank)
    snapshots = tf_embed.Snapshots(path, tables.variables)
    train(strategy, tables, 1, 2)
    snapshots.save("before")
    filler = pathlib.Path(path, "filler")
    if rank == 0:
        bytes_of_one = sum(one.bytes for one in snapshots.list_snapshots())
        free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
        filler.write_bytes(bytes(free - bytes_of_one // 2))
    tables.variables[0].table.spread.barrier()
    found = {"full": said_by(snapshots.save, "after"), "listed": listed(snapshots)}
    tables.variables[0].table.spread.barrier()
    if rank == 0:
        filler.unlink()
    tables.variables[0].table.spread.barrier()
    snapshots.save("after")
    tables.clear()
    snapshots.load("before")
    found["rows"] = tables.contents()
    found["listed, later"] = listed(snapshots)
    return found


def apart(strategy: Any, rank: int, folder: str) -> None:
    """The workers do not see the same folder."""
    tables = new_tables(strategy, rank)
    tf_embed.Snapshots(path_of(folder, f"apart-{rank}"), tables.variables).save("one")


def damaged(rank: int) -> Any:
    error = tf.errors.DataLossError(None, None, "A file is damaged.")
    return error if rank == 0 else lambda *args: None


def busy(snapshots: tf_embed.Snapshots, rank: int, found: dict[str, Any]) -> None:
    """Begins a second snapshot while the first is finished on only one worker."""
    write_rows, goes_on = snapshot_ops.write_snapshot, threading.Event()

    def write(*args: Any, **options: Any) -> int:
        goes_on.wait()
        return write_rows(*args, **options)

    with mock.patch.object(snapshot_ops, "write_snapshot", write if rank else write_rows):
        snapshots.save("slow", wait=False)
        found["busy"] = said_by(snapshots.save, "two", if_busy="raise")
        goes_on.set()
        snapshots.wait()


def order(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Folds, removes and keeps the saves of `write`, and continues from a single process's save."""
    found: dict[str, Any] = {}
    tables = new_tables(strategy, rank)
    snapshots = tf_embed.Snapshots(path_of(folder), tables.variables)
    snapshots.load("single")
    found["single"] = tables.contents()
    train(strategy, tables, 11, 11)
    snapshots.save("joint", since="single")
    found["remove"] = said_by(snapshots.remove, "single")
    snapshots.fold("joint")
    snapshots.remove("after load")
    found["kept"] = (snapshots.keep(1), listed(snapshots))
    train(strategy, tables, 12, 12)
    snapshots.save("since the fold", since="joint")
    return found


def read(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Loads the saves of `write`, on any number of workers."""
    found: dict[str, Any] = {}
    for name in ("whole", "changes", "after load"):
        tables = new_tables(strategy, rank)
        tf_embed.Snapshots(path_of(folder), tables.variables).load(name)
        found[name] = tables.contents()
    return found


def model() -> keras.Model:
    inputs = keras.Input([], dtype="int64")
    rows = tf_embed.layers.DynamicEmbedding(
        DIM, devices="/CPU:0", optimizer="adagrad", policy=TRACKED, name="rows"
    )(inputs)
    result = tf_embed.distributed.Model(inputs, keras.layers.Dense(1)(rows))
    result.compile("sgd", "mse")
    return result


def callback(strategy: Any, rank: int, folder: str) -> Any:
    """Saves while a model is trained by `fit`."""
    with strategy.scope():
        trained = model()
    ids = np.arange(96, dtype=np.int64) % 31
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((ids, ids[:, None] / 31.0))
    saves = tf_embed.callbacks.Snapshot(
        path_of(folder, "callback"), every_n_batches=5, keep=2, whole_every=3
    )
    trained.fit(data.batch(8).with_options(options), epochs=2, callbacks=[saves], verbose=0)
    keys, rows = trained.layers[1].variable.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


def killed(strategy: Any, rank: int, folder: str, victim: int = 1) -> Any:
    """A worker is killed while a snapshot is written."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it once a worker has failed
    tables = new_tables(strategy, rank)
    snapshots = tf_embed.Snapshots(path_of(folder), tables.variables)
    train(strategy, tables, 1, 3)
    snapshots.save("before")
    train(strategy, tables, 4, 4)
    write_rows = snapshot_ops.write_snapshot

    def write(*args: Any, **options: Any) -> int:
        if rank == victim and args[1] == 1:  # the first table is written
            os.kill(os.getpid(), signal.SIGKILL)
        return write_rows(*args, **options)

    with mock.patch.object(snapshot_ops, "write_snapshot", write):
        return said_by(snapshots.save, "before" if victim else "after")


def killed_chief(strategy: Any, rank: int, folder: str) -> Any:
    """The worker that turns files into a snapshot is killed before it does."""
    return killed(strategy, rank, folder, victim=0)


if __name__ == "__main__":
    run_as_worker(globals(), code=3 if "killed" in sys.argv[1] else 0)

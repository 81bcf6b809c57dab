# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables over a disk, which link sealed segments of the store."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import tempfile
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.snapshots import Snapshots

DIM, ROWS, STEP = 4, 40_000, 4_000

Rows = dict[int, tuple[list[float], list[float]]]


class Trained:
    """A variable that Adam trains, over disk or in memory."""

    def __init__(self, storage: tf_embed.Storage | None, tracked: bool = True, shards: int = 1):
        self.variable = tf_embed.Variable(
            dim=DIM,
            devices=["/CPU:0"] * shards,
            storage=storage,
            policy=tf_embed.TablePolicy(track_changes=tracked),
        )
        self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        self._optimizer.build(self.variable.trainable_variables)

    def train(self, keys, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        for begin in range(0, len(keys), STEP):
            some = np.asarray(keys[begin : begin + STEP], np.int64)
            with tf.GradientTape() as tape:
                rows = tf_embed.embedding_lookup(self.variable, some)
                loss = tf.reduce_sum(rows * draw.normal(size=rows.shape).astype(np.float32))
            variables = self.variable.trainable_variables
            self._optimizer.apply(tape.gradient(loss, variables), variables)

    def content(self) -> Rows:
        """The row and its slots, by key."""
        exported = self.variable.table.export()
        parts = (exported.keys, exported.values, exported.slots)
        keys, rows, slots = (part.numpy().tolist() for part in parts)
        return dict(zip(keys, zip(rows, slots, strict=True), strict=True))


class LinkedSnapshotsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder()
        self.live = self.folder()

    def folder(self, **where) -> str:
        path = tempfile.mkdtemp(**where)
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        return path

    def over_disk(self, tracked: bool = True, shards: int = 1) -> Trained:
        storage = tf_embed.Storage(host_bytes=600_000, path=self.live)
        return Trained(storage, tracked, shards)

    def files(self, name: str) -> list[pathlib.Path]:
        return sorted(pathlib.Path(self.path, name).iterdir())

    def links(self, name: str) -> list[pathlib.Path]:
        return [path for path in self.files(name) if ".link" in path.name]

    def expect(self, name: str, rows: Rows, shards: int = 1) -> None:
        loaded = Trained(None, shards=shards)
        Snapshots(self.path, loaded.variable).load(name)
        self.assertEqual(loaded.content(), rows)

    @parameterized.product(tracked=(True, False), shards=(1, 3))
    def test_most_of_the_rows_are_linked(self, tracked, shards):
        trained = self.over_disk(tracked, shards)
        trained.train(range(ROWS))
        trained.train(range(0, ROWS, 3), 1)
        info = Snapshots(self.path, trained.variable).save("one").wait()
        self.assertEqual(info.rows, ROWS)
        sizes = {path: path.stat().st_size for path in self.files("one")}
        rows = [size for path, size in sizes.items() if path.name.endswith(".rows")]
        self.assertEqual(info.bytes, sum(rows))
        links = self.links("one")
        self.assertGreater(sum(sizes[path] for path in links), info.bytes / 2)
        live = {path.stat().st_ino for path in pathlib.Path(self.live).rglob("*.seg")}
        for path in links:
            self.assertIn(path.stat().st_ino, live)
        for loaded in (1, 2, 4):
            self.expect("one", trained.content(), loaded)

    @parameterized.parameters(True, False)
    def test_a_snapshot_outlives_the_live_folder(self, tracked):
        trained = self.over_disk(tracked)
        trained.train(range(ROWS))
        Snapshots(self.path, trained.variable).save("one")
        rows = trained.content()
        del trained
        gc.collect()
        self.assertEmpty(list(pathlib.Path(self.live).rglob("*.seg")))
        self.assertEqual({path.stat().st_nlink for path in self.links("one")}, {1})
        self.expect("one", rows)

    def test_a_snapshot_is_of_one_moment_while_training_goes_on(self):
        trained = self.over_disk()
        trained.train(range(ROWS))
        snapshots = Snapshots(self.path, trained.variable)
        go_on = threading.Event()
        go_on.set()

        def train() -> None:
            draw = np.random.default_rng(5)
            while go_on.is_set():
                trained.train(draw.permutation(ROWS)[: 3 * STEP], 7)
                trained.variable.remove(draw.integers(0, ROWS, 50))

        for number in range(3):
            expected = trained.content()
            pending = snapshots.save(f"s{number}", wait=False)
            thread = threading.Thread(target=train)
            go_on.set()
            thread.start()
            pending.wait()
            go_on.clear()
            thread.join()
            self.assertNotEmpty(self.links(f"s{number}"))
            self.expect(f"s{number}", expected)

    @parameterized.parameters(True, False)
    def test_a_snapshot_is_what_there_was_after_a_write_while_compaction_goes_on(self, tracked):
        variable = self.over_disk(tracked).variable
        state = np.zeros(ROWS, np.float32)
        states = {state.tobytes()}
        variable.upsert(np.arange(ROWS), tf.zeros([ROWS, DIM]))
        snapshots = Snapshots(self.path, variable)
        go_on = threading.Event()
        go_on.set()

        def write() -> None:
            draw = np.random.default_rng(4)
            while go_on.is_set():
                some = draw.permutation(ROWS)[: ROWS // 3]
                state[some] += 1
                states.add(state.tobytes())
                variable.upsert(some, np.repeat(state[some, None], DIM, axis=1))

        thread = threading.Thread(target=write)
        thread.start()
        end = time.monotonic() + 60
        try:
            while not variable.stats()["disk_compacted_bytes"] and time.monotonic() < end:
                time.sleep(0.01)
            for number in range(6):
                snapshots.save(f"s{number}", wait=not tracked).wait()
        finally:
            go_on.clear()
            thread.join()
        self.assertLess(time.monotonic(), end, "nothing was compacted")
        linked = 0
        for number in range(6):
            linked += len(self.links(f"s{number}"))
            loaded = Trained(None).variable
            Snapshots(self.path, loaded).load(f"s{number}")
            keys, rows = (array.numpy() for array in loaded.export())
            self.assertLen(keys, ROWS)
            self.assertIn(rows[np.argsort(keys), 0].tobytes(), states)
        self.assertGreater(linked, 0)

    def test_changes_are_linked_if_most_of_a_segment_changed(self):
        trained = self.over_disk()
        trained.train(range(ROWS))
        snapshots = Snapshots(self.path, trained.variable)
        snapshots.save("all")
        trained.train(range(0, ROWS, 200), 1)
        snapshots.save("few", since="all")
        few = trained.content()
        self.assertEmpty(self.links("few"))
        trained.train(range(ROWS // 4, ROWS), 2)
        trained.variable.remove(range(10))
        snapshots.save("most", since="few")
        self.assertNotEmpty(self.links("most"))
        self.expect("few", few)
        self.expect("most", trained.content(), 3)
        snapshots.fold("most", "folded")
        self.assertEmpty(self.links("folded"))
        for name in ("most", "few", "all"):
            snapshots.remove(name)
            self.assertFalse(os.path.exists(os.path.join(self.path, name)))
        self.expect("folded", trained.content())

    def test_rows_keep_their_statistics(self):
        policy = tf_embed.TablePolicy(eviction="lfu", max_rows=10 * ROWS, track_changes=True)
        storage = tf_embed.Storage(host_bytes=600_000, path=self.live)
        one, two = (
            tf_embed.Variable(dim=DIM, policy=policy, storage=where) for where in (storage, None)
        )
        keys = np.arange(ROWS)
        for part in range(4):
            some = keys[: ROWS // (part + 1)]
            one.upsert(some, np.full((len(some), DIM), part, np.float32))
        Snapshots(self.path, one).save("one")
        self.assertNotEmpty(self.links("one"))
        Snapshots(self.path, two).load("one")
        expected, loaded = one.row_statistics(keys), two.row_statistics(keys)
        self.assertSameElements(expected, loaded)
        for name, words in expected.items():
            np.testing.assert_array_equal(words, loaded[name], name)

    def test_a_changed_optimizer_leaves_older_segments_unlinked(self):
        trained = self.over_disk()
        trained.train(range(ROWS))
        other = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        other.build(trained.variable.trainable_variables)
        rows = tf_embed.embedding_lookup(trained.variable, range(100))
        gradient = tf.IndexedSlices(tf.ones_like(rows), tf.range(100, dtype=tf.int64))
        trained.variable.table.export()
        other.apply([gradient], trained.variable.trainable_variables)
        Snapshots(self.path, trained.variable).save("one")
        self.expect("one", trained.content())

    def test_damage_is_an_error_that_names_the_file(self):
        trained = self.over_disk()
        trained.train(range(ROWS))
        Snapshots(self.path, trained.variable).save("one")
        loaded = Trained(None)
        snapshots = Snapshots(self.path, loaded.variable)
        links = self.links("one")
        draw = np.random.default_rng(2)
        for path in (links[0], links[-1]):
            whole = path.read_bytes()
            path.unlink()  # only the link, not the table's file
            place = int(draw.integers(len(whole)))
            flipped = bytes([whole[place] ^ (1 << int(draw.integers(8)))])
            for damaged in (
                None,
                whole[:-1],
                whole + b"\0",
                whole[:place] + flipped + whole[place + 1 :],
            ):
                if damaged is not None:
                    path.write_bytes(damaged)
                with self.assertRaisesRegex(tf.errors.OpError, path.name):
                    snapshots.load("one")
                self.assertEqual(int(loaded.variable.size()), 0)
            path.write_bytes(whole)
        first, last = links[0].read_bytes(), links[-1].read_bytes()
        for path in (links[0], links[-1]):
            path.unlink()
        links[0].write_bytes(last)
        links[-1].write_bytes(first)
        with self.assertRaisesRegex(tf.errors.DataLossError, "is damaged"):
            snapshots.load("one")

    def test_a_replaced_snapshot_leaves_no_links(self):
        trained = self.over_disk()
        trained.train(range(ROWS))
        snapshots = Snapshots(self.path, trained.variable)
        snapshots.save("one")
        before = set(self.links("one"))
        trained.train(range(ROWS), 3)
        snapshots.save("one")
        self.assertEmpty(before & set(self.files("one")))
        self.expect("one", trained.content())

    def test_rows_are_copied_to_another_file_system(self):
        if os.stat("/dev/shm").st_dev == os.stat(self.live).st_dev:
            self.skipTest("there is one file system")
        self.path = self.folder(dir="/dev/shm")
        for tracked in (True, False):
            trained = self.over_disk(tracked)
            trained.train(range(ROWS))
            info = Snapshots(self.path, trained.variable).save("one").wait()
            self.assertEqual(info.rows, ROWS)
            self.assertEmpty(self.links("one"))
            self.expect("one", trained.content())


if __name__ == "__main__":
    absltest.main()

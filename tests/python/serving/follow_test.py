# SPDX-License-Identifier: Apache-2.0
"""Tests of a `Follower` that follows in a thread while other threads look rows up."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import unittest.mock
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.oracles.reference import SEED
from support.processes.published_tables import DIM, TRACKED, Change, fit, model_of, rows_of
from tf_embed.serving import Follower, Publisher
from tf_embed.serving.reading_lock import ReadingLock

_SECONDS = 60
_KEYS = np.arange(500) * 7919


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


class FollowTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.path, ignore_errors=True)
        self.trained = tf_embed.Variable(dim=DIM, policy=TRACKED, name="table")
        self.served = tf_embed.Variable(dim=DIM, name="table")


class ThreadTest(FollowTestCase):
    def test_it_follows_until_it_is_stopped(self):
        publisher, change = Publisher(self.trained, self.path), Change(SEED)
        with Follower(self.served, self.path).follow(every_seconds=0.01) as follower:
            for _ in range(5):
                change(self.trained)
                follower.wait_for(publisher.publish())
                self.assertEqual(rows_of(self.served), rows_of(self.trained))
                self.assertLess(follower.lag, _SECONDS)
                self.assertIsNone(follower.error)
        before = rows_of(self.served)
        change(self.trained)
        publisher.publish()
        self.assertEqual(rows_of(self.served), before)
        follower.follow(0.01)  # the first update is over when it returns
        self.assertEqual(rows_of(self.served), rows_of(self.trained))
        with self.assertRaisesRegex(RuntimeError, "once before `stop`"):
            follower.follow()
        follower.stop()

    def test_what_was_published_before_is_there_at_once(self):
        Change(SEED)(self.trained)
        Publisher(self.trained, self.path).publish()
        with Follower(self.served, self.path).follow(every_seconds=1000):
            self.assertEqual(rows_of(self.served), rows_of(self.trained))

    @parameterized.parameters(1, 3, 4)
    def test_waiting_is_for_the_publisher_whose_numbers_begin_again(self, version):
        Change(SEED)(self.trained)
        publisher = Publisher(self.trained, self.path)
        for _ in range(3):
            publisher.publish()
        with Follower(self.served, self.path).follow(every_seconds=0.3) as follower:
            follower.wait_for(3)
            for name in os.listdir(self.path):
                shutil.rmtree(os.path.join(self.path, name))
            follower.wait_for(3)  # the version is still served
            trained = tf_embed.Variable(dim=DIM, policy=TRACKED, name="table")
            publisher, change = Publisher(trained, self.path), Change(SEED + 1)
            for _ in range(version):
                change(trained)
                publisher.publish()
            follower.wait_for(version)
            self.assertEqual(rows_of(self.served), rows_of(trained))

    def test_publishers_that_begin_again_are_waited_for_while_the_thread_looks(self):
        with Follower(self.served, self.path).follow(every_seconds=0.002) as follower:
            for number in range(12):
                trained = tf_embed.Variable(dim=DIM, policy=TRACKED, name="table")
                publisher, change = Publisher(trained, self.path), Change(SEED + number)
                for _ in range(1 + number % 4):
                    change(trained)
                    version = publisher.publish()
                follower.wait_for(version)
                self.assertEqual(rows_of(self.served), rows_of(trained))
                for name in os.listdir(self.path):
                    shutil.rmtree(os.path.join(self.path, name))

    def test_what_is_served_is_not_waited_for(self):
        publisher = Publisher(self.trained, self.path, keep=1)
        publisher.publish()
        with Follower(self.served, self.path).follow(every_seconds=1000) as follower:
            follower.wait_for(1, timeout_seconds=0.001)
            publisher.publish(whole=True)
            self.assertLen(os.listdir(self.path), 1)
            follower.wait_for(1, timeout_seconds=0.001)

    def test_damage_is_told_and_tried_again(self):
        publisher, change = Publisher(self.trained, self.path), Change(SEED)
        with (
            self.assertLogs(level="WARNING") as logs,
            Follower(self.served, self.path).follow(every_seconds=0.01) as follower,
        ):
            change(self.trained)
            follower.wait_for(publisher.publish())
            before = rows_of(self.served)
            change(self.trained)
            staged = tempfile.mkdtemp()
            self.addCleanup(shutil.rmtree, staged)
            Publisher(self.trained, staged).publish()
            name = "publication-0000000002"
            os.rename(os.path.join(staged, "publication-0000000001"), os.path.join(staged, name))
            shutil.copytree(os.path.join(staged, name), os.path.join(self.path, name))
            wait_until(lambda: follower.error is not None)
            self.assertIn(name, str(follower.error))
            self.assertEqual(rows_of(self.served), before)
            shutil.rmtree(os.path.join(self.path, name))
            follower.wait_for(publisher.publish())
            self.assertIsNone(follower.error)
            self.assertEqual(rows_of(self.served), rows_of(self.trained))
        self.assertIn(f"The follower of {self.path!r} tries again: ", logs.output[0])
        self.assertIn(name, logs.output[0])

    def failing(self) -> Follower:
        """A follower whose thread ends, because another model was published."""
        follower = Follower(self.served, self.path).follow(every_seconds=0.01)
        other = tf_embed.Variable(dim=DIM + 1, name="table")
        other.upsert([1], np.ones([1, DIM + 1]))
        Publisher(other, self.path).publish()
        return follower

    @parameterized.parameters("stop", "wait_for", "__exit__")
    def test_what_ends_the_thread_is_raised(self, method):
        arguments = {"stop": [], "wait_for": [], "__exit__": [None, None, None]}[method]
        with self.assertLogs(level="ERROR") as logs:
            follower = self.failing()
            if method != "wait_for":
                wait_until(lambda: not follower._thread.is_alive())
            with self.assertRaisesRegex(ValueError, "dim 5.*Received: 'table'.*dim 4"):
                getattr(follower, method)(*arguments)
        self.assertIn(f"The follower of {self.path!r} ends.", logs.output[0])
        follower.stop()  # the error is raised only once

    def test_the_error_of_a_block_is_raised_and_that_of_the_thread_is_logged(self):
        with (
            self.assertLogs(level="ERROR") as logs,
            self.assertRaisesRegex(KeyError, "its own"),
            self.failing() as follower,
        ):
            wait_until(lambda: not follower._thread.is_alive())
            raise KeyError("its own")
        self.assertIn(f"Follower of {self.path!r} ends with an error.", logs.output[1])

    def test_waiting_for_what_does_not_come_ends(self):
        with (
            Follower(self.served, self.path).follow() as follower,
            self.assertRaisesRegex(
                tf.errors.DeadlineExceededError, "`version` 3 .* within 0.1 s. Received: version 0"
            ),
        ):
            follower.wait_for(3, timeout_seconds=0.1)


class LookupsMeanwhileTest(FollowTestCase):
    def run_readers(self, look: Callable[[Follower], None], publish: Callable[[int], None]) -> None:
        """Looks rows up in two threads during publications."""
        over, failures, looks = threading.Event(), [], [0, 0]

        def run(follower: Follower, number: int) -> None:
            try:
                while not over.is_set():
                    look(follower)
                    looks[number] += 1
            except BaseException as error:
                failures.append(error)

        publish(1)
        with Follower(self.model, self.path).follow(every_seconds=0.001) as follower:
            threads = [threading.Thread(target=run, args=[follower, number]) for number in range(2)]
            for thread in threads:
                thread.start()
            for number in range(2, 14):
                follower.wait_for(publish(number))
            over.set()
            for thread in threads:
                thread.join()
        self.assertEmpty(failures)
        self.assertGreater(min(looks), 5)

    @parameterized.parameters(
        ({}, TRACKED), ({"devices": ["/CPU:0"] * 2}, TRACKED), ({}, None), ({"disk": True}, TRACKED)
    )
    def test_each_row_is_the_old_or_the_new_one(self, options, policy):
        if options.pop("disk", False):
            folder = tempfile.mkdtemp()
            self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            options["storage"] = tf_embed.Storage(host_bytes=6000, path=folder)
        trained = tf_embed.Variable(dim=DIM, policy=policy, name="table")
        self.model = tf_embed.Variable(dim=DIM, name="table", **options)
        publisher = Publisher(trained, self.path, whole_every=5)
        coming = np.arange(-600, 0)

        def publish(number: int) -> int:
            keys = np.concatenate([_KEYS, coming[number * 40 :]])
            trained.upsert(keys, np.full([len(keys), DIM], float(number)))
            trained.remove(coming[: number * 40])  # other rows leave
            trained.remove(_KEYS[:100])  # some rows leave and return at once
            trained.upsert(_KEYS[:100], np.full([100, DIM], float(number)))
            return publisher.publish()

        local = threading.local()

        def look(follower: Follower) -> None:
            rows, exists = self.model.lookup(_KEYS, return_exists=True)
            assert exists.numpy().all(), "a row that stays was absent"
            rows = rows.numpy()
            assert (rows == rows[:, :1]).all(), f"a torn row: {rows[(rows != rows[:, :1]).any(1)]}"
            last = getattr(local, "rows", rows)
            assert (rows >= last).all(), "a row went back"
            local.rows = rows

        self.run_readers(look, publish)

    def test_within_reading_all_is_of_one_version(self):
        def new(policy: tf_embed.TablePolicy | None) -> keras.Model:
            layers = [
                tf_embed.layers.DynamicEmbedding(1, name=name, policy=policy, initializer="zeros")
                for name in ("a", "b")
            ]
            inputs = keras.Input((1,), dtype="int64")
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="dense")
            return keras.Model(inputs, [dense(layers[0](inputs)), layers[1](inputs)])

        trained, self.model = new(TRACKED), new(None)
        publisher = Publisher(trained, self.path)

        def publish(number: int) -> int:
            for name in ("a", "b"):
                rows = np.full([len(_KEYS), 1], float(number))
                trained.get_layer(name).variable.upsert(_KEYS, rows)
            trained.get_layer("dense").kernel.assign([[float(number)]])
            return publisher.publish(wait=False)

        def look(follower: Follower) -> None:
            with follower.reading():
                a = self.model.get_layer("a").variable.lookup(_KEYS).numpy()
                kernel = float(self.model.get_layer("dense").kernel.numpy()[0, 0])
                time.sleep(0.0005)
                b = self.model.get_layer("b").variable.lookup(_KEYS).numpy()
            assert (a == kernel).all() and (b == kernel).all(), (a.min(), a.max(), kernel, b.min())

        self.run_readers(look, publish)


class ReadingLockTest(FollowTestCase):
    def test_an_update_waits_for_readers_and_readers_for_it(self):
        lock, order, inside = ReadingLock(), [], threading.Event()

        def update() -> None:
            with lock.updating():
                order.append("update")

        def read() -> None:
            with lock.reading():
                order.append("reader")

        with lock.reading():
            updates = threading.Thread(target=update)
            updates.start()
            wait_until(lambda: lock._waiting == 1)
            reads = threading.Thread(target=read)
            reads.start()
            with lock.reading():  # this thread already holds a read lock
                inside.set()
            time.sleep(0.05)
            order.append("first reader")
        updates.join()
        reads.join()
        self.assertTrue(inside.is_set())
        self.assertEqual(order, ["first reader", "update", "reader"])

    def test_an_update_that_is_interrupted_lets_readers_in(self):
        lock = ReadingLock()
        with (
            unittest.mock.patch.object(lock._changed, "wait_for", side_effect=KeyboardInterrupt),
            self.assertRaises(KeyboardInterrupt),
            lock.updating(),
        ):
            self.fail("An update has begun.")
        reader = threading.Thread(target=lambda: lock.reading().__enter__(), daemon=True)
        reader.start()
        reader.join(30)
        self.assertFalse(reader.is_alive())

    def test_an_update_within_reading_is_refused(self):
        self.trained.upsert([1], np.ones([1, DIM]))
        Publisher(self.trained, self.path).publish()
        follower = Follower(self.served, self.path)
        with (
            follower.reading(),
            self.assertRaisesRegex(
                RuntimeError, "must not be called within `reading`, which keeps updates out"
            ),
        ):
            follower.update()
        self.assertTrue(follower.update())

    @parameterized.parameters("update", "stop")
    def test_a_reader_does_not_wait_for_the_thread_that_waits_for_it(self, method):
        publisher = Publisher(self.trained, self.path)
        self.trained.upsert([1], np.ones([1, DIM]))
        publisher.publish()
        follower = Follower(self.served, self.path).follow(every_seconds=0.01)
        self.addCleanup(follower.stop)
        raised = []

        def read() -> None:
            with follower.reading():
                self.trained.upsert([2], np.ones([1, DIM]))
                publisher.publish()
                wait_until(lambda: follower._lock._waiting == 1)
                try:
                    getattr(follower, method)()
                except RuntimeError as error:
                    raised.append(str(error))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(_SECONDS)
        self.assertFalse(reader.is_alive())
        self.assertRegex(raised[0], f"`{method}` must not be called within `reading`")
        follower.wait_for(2)


class RefusedTest(FollowTestCase):
    def test_another_model_is_refused_by_name(self):
        model = model_of(TRACKED)
        fit(model, 1)
        Publisher(model, self.path).publish()
        cases = {
            "the tables that are published in .*: 'a' .* Received: 'b' ": model_of(
                names=("b", "a")
            ),
            "Received: 'a' .*; 'c' ": model_of(names=("a", "c")),
            r"Received: 6 weights, .*shape=\(8, 4\)|first that differs": model_of(units=4),
            "Received: 'table'": self.served,
        }
        for words, other in cases.items():
            with self.assertRaisesRegex(ValueError, words):
                Follower(other, self.path).update()
        served = model_of()
        Follower(served, self.path).update()

    def test_names_that_keras_numbered_may_differ(self):
        trained, served = (
            keras.Sequential(
                [keras.Input((1,), dtype="int64"), tf_embed.layers.DynamicEmbedding(2)]
            )
            for _ in range(2)
        )
        self.assertNotEqual(trained.layers[0].name, served.layers[0].name)
        trained.layers[0].variable.upsert([4], [[1.0, 2.0]])
        Publisher(trained, self.path).publish()
        Follower(served, self.path).update()
        self.assertEqual(rows_of(served.layers[0].variable), {4: [1.0, 2.0]})

    def test_models_without_tables_are_refused(self):
        layer = tf_embed.layers.DynamicEmbedding(2)
        with self.assertRaisesRegex(ValueError, "`model` must have a table"):
            Follower(layer, self.path)
        with self.assertRaisesRegex(ValueError, "`model` must have a table"):
            Publisher(layer, self.path).publish()

    def test_threads_are_for_tables_that_keep_track(self):
        with self.assertRaisesRegex(ValueError, "track_changes=True. Received: wait=False"):
            Publisher(self.served, self.path).publish(wait=False)

    def test_graphs_are_refused(self):
        publisher, follower = Publisher(self.trained, self.path), Follower(self.served, self.path)
        for method, words in (
            (publisher.publish, "`Publisher.publish` runs in eager execution. Received: a call"),
            (follower.update, "`Follower.update` runs in eager execution. Received: a call"),
        ):
            with self.assertRaisesRegex(RuntimeError, words):
                tf.function(method, autograph=False)()


class BesideSnapshotsTest(FollowTestCase):
    def test_snapshots_of_changes_go_on_after_many_publications(self):
        publisher, follower = Publisher(self.trained, self.path), Follower(self.served, self.path)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        snapshots, change = tf_embed.Snapshots(folder, self.trained), Change(SEED)
        change(self.trained)
        snapshots.save("one")
        for number in range(70):
            change(self.trained)
            if number % 4 == 0:
                snapshots.save("meanwhile", wait=False)
            publisher.publish(wait=bool(number % 2))
        publisher.wait()
        snapshots.save("two", since="one")
        follower.update()
        loaded = tf_embed.Variable(dim=DIM)
        tf_embed.Snapshots(folder, loaded).load("two")
        self.assertEqual(rows_of(loaded), rows_of(self.trained))
        self.assertEqual(rows_of(self.served), rows_of(self.trained))


if __name__ == "__main__":
    absltest.main()

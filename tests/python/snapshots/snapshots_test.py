# SPDX-License-Identifier: Apache-2.0
"""Tests of `Snapshots` against NumPy shadows of tables."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import tempfile
import threading
import time
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.ops import snapshot_ops
from tf_embed.snapshots import Snapshots, manifest

DIM = 4

TRACKED = tf_embed.TablePolicy(track_changes=True)


def rows_of(variable: tf_embed.Variable) -> dict[int, list[float]]:
    """All rows, with weights and slots."""
    exported = variable.table.export()
    keys = exported.keys.numpy().tolist()
    rows = np.concatenate([exported.values.numpy(), exported.slots.numpy()], axis=1)
    return dict(zip(keys, rows.tolist(), strict=True))


class SnapshotsTestCase(parameterized.TestCase):
    """Makes a folder and variables, and compares variables."""

    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.path, ignore_errors=True)

    def storage(self) -> tf_embed.Storage:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return tf_embed.Storage(host_bytes=20_000, path=folder)


def layer_of(**options) -> tf_embed.layers.DynamicEmbedding:
    """A built layer with Adam's slots."""
    options = {"policy": TRACKED, "optimizer": "adam", **options}
    layer = tf_embed.layers.DynamicEmbedding(DIM, **options)
    layer.build((None, 1))
    return layer


def train(layer: tf_embed.layers.DynamicEmbedding, keys, seed: int = 0) -> None:
    """Makes a step on several keys."""
    keys = np.asarray(keys, np.int64).reshape(-1, 1)
    target = np.random.default_rng(seed).normal(size=(len(keys), 1, DIM)).astype(np.float32)
    if layer not in _models:
        inputs = keras.Input((1,), dtype="int64")
        _models[layer] = keras.Model(inputs, layer(inputs))
        _models[layer].compile("sgd", "mse")
    _models[layer].train_on_batch(keys, target)


_models: dict[keras.layers.Layer, keras.Model] = {}


class WholeTest(SnapshotsTestCase):
    @parameterized.product(
        saved=({}, {"num_shards": 3}, {"on_disk": True}),
        loaded=({}, {"num_shards": 2}, {"on_disk": True}),
        tracked=(True, False),
    )
    def test_rows_and_slots_come_back(self, saved, loaded, tracked):
        policy = TRACKED if tracked else None
        first, second = (self._layer(policy=policy, **one) for one in (saved, loaded))
        for step in range(5):
            train(first, range(step * 50, step * 50 + 120), step)
        expected = rows_of(first.variable)
        info = Snapshots(self.path, first).save("one").wait()
        self.assertEqual(info.rows, len(expected))
        self.assertIsNone(info.since)
        train(second, [1])
        second.variable.clear()
        Snapshots(self.path, second).load("one")
        self.assertEqual(rows_of(second.variable), expected)

    def _layer(self, on_disk=False, num_shards=1, **options):
        storage = self.storage() if on_disk else None
        devices = None if num_shards == 1 else ["/CPU:0"] * num_shards
        return layer_of(storage=storage, devices=devices, **options)

    def test_several_tables_are_of_one_moment_and_come_back_in_order(self):
        layers = [layer_of(), layer_of()]
        for number, layer in enumerate(layers):
            train(layer, range(number * 10, number * 10 + 10))
        Snapshots(self.path, layers).save("both")
        others = [layer_of(), layer_of()]
        Snapshots(self.path, others).load("both")
        for one, other in zip(layers, others, strict=True):
            self.assertEqual(rows_of(one.variable), rows_of(other.variable))

    def test_of_several_tables_all_are_loaded_or_none(self):
        layers = [layer_of(), layer_of()]
        for layer in layers:
            train(layer, range(40))
        Snapshots(self.path, layers).save("both")
        for name in sorted(os.listdir(os.path.join(self.path, "both"))):
            path = pathlib.Path(self.path, "both", name)
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            others = [layer_of(), layer_of()]
            with self.assertRaises(tf.errors.OpError):
                Snapshots(self.path, others).load("both")
            self.assertEqual([int(one.variable.size()) for one in others], [0, 0], name)
            path.write_bytes(whole)
        Snapshots(self.path, others).load("both")
        for one, other in zip(layers, others, strict=True):
            self.assertEqual(rows_of(one.variable), rows_of(other.variable))

    def test_a_snapshot_is_replaced_at_once(self):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        snapshots.save("one")
        train(layer, range(10, 20))
        snapshots.save("one")
        files = os.listdir(os.path.join(self.path, "one"))
        self.assertLen(files, 3, files)
        other = layer_of()
        Snapshots(self.path, other).load("one")
        self.assertEqual(rows_of(other.variable), rows_of(layer.variable))

    def test_what_a_crash_left_is_no_snapshot(self):
        layer = layer_of()
        train(layer, range(10))
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        snapshots.save("two")
        os.remove(os.path.join(self.path, "two", manifest.FILE))
        self.assertEqual([info.name for info in snapshots.list_snapshots()], ["one"])
        with self.assertRaisesRegex(
            ValueError, f"`name` must be the name of a snapshot in '{self.path}'. Received: .*'two'"
        ):
            snapshots.load("two")
        self.assertEqual(list(snapshots.keep(1)), [])
        self.assertEqual(os.listdir(self.path), ["one"])

    def test_other_folders_stay(self):
        layer = layer_of()
        train(layer, range(10))
        os.makedirs(os.path.join(self.path, "notes"))
        pathlib.Path(self.path, "notes", "rows.txt").write_text("mine")
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        snapshots.save("two")
        self.assertEqual(list(snapshots.keep(1)), ["one"])
        self.assertCountEqual(os.listdir(self.path), ["notes", "two"])


class ChangesTest(SnapshotsTestCase):
    @parameterized.parameters(False, True)
    def test_a_chain_is_loaded_as_one(self, on_disk):
        layer = layer_of(storage=self.storage() if on_disk else None)
        snapshots = Snapshots(self.path, layer)
        draw = random.Random(3)
        train(layer, range(300))
        snapshots.save("s0")
        shadows = [rows_of(layer.variable)]
        for number in range(1, 6):
            train(layer, draw.sample(range(400), 20), number)
            layer.variable.remove(tf.constant(draw.sample(range(400), 10), tf.int64))
            info = snapshots.save(f"s{number}", since=f"s{number - 1}").wait()
            self.assertLessEqual(info.rows, 20)
            shadows.append(rows_of(layer.variable))
        for number, shadow in enumerate(shadows):
            other = layer_of()
            Snapshots(self.path, other).load(f"s{number}")
            self.assertEqual(rows_of(other.variable), shadow, number)
        folded = snapshots.fold("s5", "all")
        self.assertIsNone(folded.since)
        self.assertEqual(folded.rows, len(shadows[5]))
        other = layer_of(devices=["/CPU:0"] * 2)
        Snapshots(self.path, other).load("all")
        self.assertEqual(rows_of(other.variable), shadows[5])

    def test_changes_go_on_from_a_loaded_snapshot(self):
        layer = layer_of()
        train(layer, range(100))
        Snapshots(self.path, layer).save("one")
        other = layer_of()
        snapshots = Snapshots(self.path, other)
        snapshots.load("one")
        train(other, [5, 200])
        self.assertEqual(snapshots.save("two", since="one").wait().rows, 2)
        third = layer_of()
        Snapshots(self.path, third).load("two")
        self.assertEqual(rows_of(third.variable), rows_of(other.variable))

    def test_rows_that_a_policy_takes_out_are_gone(self):
        policy = tf_embed.TablePolicy(max_rows=50, track_changes=True)
        layer = layer_of(policy=policy)
        snapshots = Snapshots(self.path, layer)
        for step in range(6):
            train(layer, range(step * 20, step * 20 + 30), step)
            snapshots.save(f"s{step}", since=f"s{step - 1}" if step else None)
        other = layer_of()
        Snapshots(self.path, other).load("s5")
        self.assertLen(rows_of(other.variable), 50)
        self.assertEqual(rows_of(other.variable), rows_of(layer.variable))

    def test_a_table_that_has_no_room_for_a_snapshot_needs_a_whole_one(self):
        layer = layer_of()
        train(layer, range(100))
        Snapshots(self.path, layer).save("one")
        other = layer_of(policy=tf_embed.TablePolicy(max_rows=30, track_changes=True))
        snapshots = Snapshots(self.path, other)
        snapshots.load("one")
        self.assertEqual(int(other.variable.size()), 30)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "save a whole one"):
            snapshots.save("two", since="one")

    def test_a_cleared_table_needs_a_whole_one(self):
        layer = layer_of()
        train(layer, range(10))
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        layer.variable.clear()
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "save a whole one"):
            snapshots.save("two", since="one")
        train(layer, range(3))
        snapshots.save("two")
        self.assertEqual([info.name for info in snapshots.list_snapshots()], ["one", "two"])

    def test_the_newest_one_is_the_last_saved_although_the_clock_was_set_back(self):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        names = ("first", "second", "an old clock", "third")
        for name, clock in zip(names, (5e9, 4e9, 1e9, 1e9), strict=True):
            with mock.patch.object(time, "time", return_value=clock):
                snapshots.save(name)
        found = snapshots.list_snapshots()
        self.assertEqual(tuple(info.name for info in found), names)
        self.assertEqual(snapshots.latest(), "third")
        for info in found:
            self.assertAlmostEqual(info.time, 5e9, delta=1e-3)
        snapshots.save("first")
        self.assertEqual(snapshots.latest(), "first")
        self.assertEqual(snapshots.keep(1), ["third", "an old clock", "second"])

    @parameterized.parameters("remove", "keep")
    def test_a_table_remembers_nothing_for_a_snapshot_that_was_removed(self, how):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        for name in ("one", "two"):
            snapshots.save(name)
        one, two = self.saves(snapshots)
        if how == "remove":
            snapshots.remove("one")
        else:
            snapshots.keep(1)
        self.assert_forgotten(layer, one)
        self.assert_known(layer, two)

    @parameterized.parameters(True, False)
    def test_a_table_remembers_nothing_for_a_snapshot_that_was_replaced(self, wait):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        snapshots.save("one")
        (before,) = self.saves(snapshots)
        snapshots.save("one", wait=wait).wait()
        (after,) = self.saves(snapshots)
        self.assert_forgotten(layer, before)
        self.assert_known(layer, after)
        train(layer, range(5))
        snapshots.save("two", since="one")
        _, changes = self.saves(snapshots)
        snapshots.fold("two")
        self.assert_known(layer, changes)
        snapshots.remove("two")
        self.assert_forgotten(layer, changes)
        self.assert_known(layer, after)

    def test_a_table_remembers_a_snapshot_whose_replacement_failed(self):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        snapshots.save("one")
        (before,) = self.saves(snapshots)
        error = tf.errors.DataLossError(None, None, "x")
        fails = mock.patch("tf_embed.snapshots.files.commit", side_effect=error)
        with fails, self.assertRaises(tf.errors.DataLossError):
            snapshots.save("one")
        self.assertEqual(self.saves(snapshots), [before])
        self.assert_known(layer, before)

    def saves(self, snapshots):
        """The signed numbers of the saves of the first table."""
        saves = [info.tables[0].save for info in snapshots.list_snapshots()]
        return [save - 2**64 if save >= 2**63 else save for save in saves]

    def assert_known(self, layer, save):
        snapshot_ops.begin_snapshot([layer.variable.table.handle_on_host], [save])

    def assert_forgotten(self, layer, save):
        with self.assertRaisesRegex(
            tf.errors.FailedPreconditionError, "does not know what changed"
        ):
            self.assert_known(layer, save)

    def test_a_chain_whose_beginning_is_gone_is_an_error(self):
        layer = layer_of()
        train(layer, range(10))
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        train(layer, [3])
        snapshots.save("two", since="one")
        shutil.rmtree(os.path.join(self.path, "one"))
        with self.assertRaisesRegex(tf.errors.DataLossError, "one.*not there any more"):
            Snapshots(self.path, layer_of()).load("two")

    def test_keep_leaves_what_others_are_changes_of(self):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        for name, since in (("a", None), ("b", None), ("c", "b"), ("d", "c")):
            train(layer, [3])
            snapshots.save(name, since=since)
        self.assertEqual(list(snapshots.keep(1)), ["a"])
        self.assertEqual([info.name for info in snapshots.list_snapshots()], ["b", "c", "d"])
        with self.assertRaisesRegex(
            ValueError, "'d' has the changes: fold that one, or remove it first. .*name='c'"
        ):
            snapshots.remove("c")
        words = "must not be the name of a snapshot since which 'c' has the changes. Received: "
        with self.assertRaisesRegex(ValueError, f"`name` {words}name='b'"):
            snapshots.save("b")
        with self.assertRaisesRegex(ValueError, f"`to` {words}to='b'"):
            snapshots.fold("d", to="b")
        snapshots.fold("d")
        self.assertEqual(list(snapshots.keep(1)), ["c", "b"])
        other = layer_of()
        Snapshots(self.path, other).load("d")
        self.assertEqual(rows_of(other.variable), rows_of(layer.variable))

    def test_in_place_of_another_snapshot_changes_are_refused(self):
        layer = layer_of()
        snapshots = Snapshots(self.path, layer)
        train(layer, range(10))
        snapshots.save("one")
        train(layer, [3])
        snapshots.save("two", since="one")
        info = manifest.read(os.path.join(self.path, "one"))
        shutil.rmtree(os.path.join(self.path, "one"))
        snapshots.save("one2")
        os.rename(os.path.join(self.path, "one2"), os.path.join(self.path, "one"))
        self.assertNotEqual(manifest.read(os.path.join(self.path, "one")).tables, info.tables)
        with self.assertRaisesRegex(tf.errors.OpError, "not there any more"):
            Snapshots(self.path, layer_of()).load("two")

    def test_a_score_that_is_set_is_a_change(self):
        policy = tf_embed.TablePolicy(2, eviction="score", track_changes=True)
        v, w = (tf_embed.Variable(dim=1, name="t", policy=policy) for _ in range(2))
        v.upsert([1, 2], [[1.0], [2.0]])
        v.set_scores([1, 2], [1, 2])
        snapshots = Snapshots(self.path, v)
        snapshots.save("one")
        v.set_scores([1, 9], [100, 9])
        self.assertEqual(snapshots.save("two", since="one").wait().rows, 1)
        self.assertEqual(snapshots.save("three", since="two").wait().rows, 0)
        Snapshots(self.path, w).load("three")
        for variable in (v, w):
            scores = variable.row_statistics([1, 2])["score"]
            self.assertEqual(scores.numpy().tolist(), [100, 2])


class BackgroundTest(SnapshotsTestCase):
    @parameterized.parameters(False, True)
    def test_it_has_the_rows_of_its_moment(self, on_disk):
        layer = layer_of(storage=self.storage() if on_disk else None)
        snapshots = Snapshots(self.path, layer)
        since = None
        for number in range(8):
            for step in range(3):
                train(layer, range(number * 30, number * 30 + 200), step)
            expected = rows_of(layer.variable)
            pending = snapshots.save(f"s{number}", since=since, wait=False)
            step = 0
            while not pending.done() or step < 3:
                train(layer, range(step * 40, step * 40 + 300), step)
                layer.variable.remove(tf.constant([step, step + 1], tf.int64))
                step += 1
            pending.wait()
            other = layer_of()
            Snapshots(self.path, other).load(f"s{number}")
            self.assertEqual(rows_of(other.variable), expected)
            since = f"s{number}"

    def test_a_second_one_waits_or_is_refused(self):
        layer = layer_of()
        train(layer, range(20))
        snapshots = Snapshots(self.path, layer)
        go_on = threading.Event()
        snapshots._pending = _Stuck(go_on)
        with self.assertRaisesRegex(RuntimeError, "'stuck' is still being written"):
            snapshots.save("two", if_busy="raise")
        threading.Timer(0.2, go_on.set).start()
        snapshots.save("two")
        self.assertTrue(go_on.is_set())

    def test_a_table_that_is_cleared_meanwhile_is_an_error_and_no_snapshot(self):
        layer = layer_of()
        train(layer, range(20))
        snapshots = Snapshots(self.path, layer)
        begun = snapshot_ops.begin_snapshot([layer.variable.table.handle_on_host], [0])
        layer.variable.clear()
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "was cleared"):
            snapshot_ops.write_snapshot(begun, 0, self.path + "/one", "rows", "")
        self.assertEmpty(snapshots.list_snapshots())
        self.assertEmpty(os.listdir(self.path + "/one"))
        snapshots.save("one")

    def test_clear_and_restore_wait_until_it_is_written(self):
        layer = layer_of()
        train(layer, range(1000))
        expected = rows_of(layer.variable)
        other = layer.variable.table.export()
        snapshots = Snapshots(self.path, layer)
        for number, replace in enumerate(
            (layer.variable.clear, lambda: layer.variable.table.import_(other)) * 5
        ):
            pending = snapshots.save(f"s{number}", wait=False)
            replace()
            self.assertTrue(pending.done())
            self.assertEqual(pending.wait().rows, len(expected))
            layer.variable.table.import_(other)

    def test_one_that_is_dropped_makes_way(self):
        layer = layer_of()
        train(layer, range(20))
        handles = [layer.variable.table.handle_on_host]
        begun = snapshot_ops.begin_snapshot(handles, [0])
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "is under way"):
            snapshot_ops.begin_snapshot(handles, [0])
        del begun
        Snapshots(self.path, layer).save("one")


class _Stuck:
    """A snapshot that is under way until an event is set."""

    name = "stuck"

    def __init__(self, go_on: threading.Event) -> None:
        self._go_on = go_on

    def done(self) -> bool:
        return self._go_on.is_set()

    def join(self) -> None:
        self._go_on.wait()


class RefusedTest(SnapshotsTestCase):
    def test_arguments(self):
        layer = layer_of()
        train(layer, [1])
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        cases = (
            (lambda: snapshots.save("a/b"), ValueError, "`name` must be the name of a folder"),
            (lambda: snapshots.save(3), TypeError, "`name` must be a"),
            (
                lambda: snapshots.save("n" * 256),
                ValueError,
                "`name` must fit the name of a folder, 255 bytes of UTF-8. Received: "
                "name='n+[.]{3}n+' of 256 bytes",
            ),
            (lambda: snapshots.fold("one", "n" * 256), ValueError, "`to` must fit the name of a"),
            (lambda: snapshots.save("x", since="no"), ValueError, "`since` must be the name of"),
            (lambda: snapshots.save("one", since="one"), ValueError, "`since` must not be"),
            (lambda: snapshots.save("x", if_busy="no"), ValueError, "`if_busy` must be"),
            (lambda: snapshots.keep(0), ValueError, "`last` must be"),
            (
                lambda: snapshots.load("one"),
                RuntimeError,
                "rows that came after the snapshot would stay: clear it. Received: 1 rows",
            ),
            (
                lambda: snapshots.remove("no"),
                ValueError,
                "`name` must be the name of a snapshot in",
            ),
            (lambda: Snapshots(self.path, [3]), TypeError, "`tables` must be"),
            (lambda: Snapshots("", layer), ValueError, "`path` must"),
            (
                lambda: Snapshots(self.path, [layer_of(), layer_of()]).load("one"),
                ValueError,
                "must have as many tables as are to be loaded, 2. Received: 1 tables",
            ),
            (
                lambda: Snapshots(self.path, keras.layers.Dense(1)).save("x"),
                ValueError,
                "`tables` must have a table",
            ),
        )
        for call, error, message in cases:
            with self.assertRaisesRegex(error, message):
                call()

    def test_tables_that_do_not_keep_track(self):
        layer = layer_of(policy=None)
        train(layer, [1])
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        with self.assertRaisesRegex(ValueError, "`wait` is for tables that keep track of changes"):
            snapshots.save("two", wait=False)
        with self.assertRaisesRegex(ValueError, "`since` is for tables that keep track"):
            snapshots.save("two", since="one")

    def test_a_graph_is_refused_and_changes_no_file(self):
        layer = layer_of()
        train(layer, [1])
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        train(layer, [2])
        snapshots.save("two", since="one")
        snapshots.save("three", since="one")
        calls = {
            "save": lambda: snapshots.save("four"),
            "load": lambda: snapshots.load("two"),
            "fold": lambda: snapshots.fold("two"),
            "remove": lambda: snapshots.remove("two"),
            "keep": lambda: snapshots.keep(1),
        }
        for method, call in calls.items():
            words = "runs in eager execution. Received: a call in a graph"
            with self.assertRaisesRegex(RuntimeError, f"`Snapshots.{method}` {words}"):
                tf.function(call)()
        names = [(info.name, info.since) for info in snapshots.list_snapshots()]
        self.assertEqual(names, [("one", None), ("two", "one"), ("three", "one")])

    def test_strings_are_refused_by_name(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "track_changes"):
            tf_embed.Variable(dim=1, key_dtype=tf.string, policy=TRACKED)

    def test_damage_names_the_file(self):
        layer = layer_of()
        train(layer, range(40))
        snapshots = Snapshots(self.path, layer)
        snapshots.save("one")
        train(layer, [3])
        layer.variable.remove(tf.constant([4], tf.int64))
        snapshots.save("two", since="one")
        draw = random.Random(5)
        files = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.path)
            for name in sorted(names)
        ]
        self.assertLen(files, 6)
        other = layer_of()
        for _ in range(60):
            path = pathlib.Path(draw.choice(files))
            whole = path.read_bytes()
            place = draw.randrange(8 * len(whole))
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(bytes(damaged))
            with self.assertRaises((tf.errors.OpError, ValueError)) as caught:
                Snapshots(self.path, other).load("two")
            self.assertIn(self.path, str(caught.exception))
            self.assertEqual(int(other.variable.size()), 0)
            path.write_bytes(whole)
        Snapshots(self.path, other).load("two")
        self.assertEqual(rows_of(other.variable), rows_of(layer.variable))


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Rows saved as files and loaded: dtypes, shards, processes, policies, moments."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.dtype_pairs import KEYS, VALUES, as_dict, rows_of
from support.cases.saved_files import CPU, FilesTestCase, content
from support.oracles.reference import SEED
from tf_embed.variable import row_files


def adam(v: tf_embed.Variable, steps: int = 0) -> Any:
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    optimizer.build([v.anchor])
    optimizer.iterations.assign(steps)
    return optimizer


def train(v: tf_embed.Variable, optimizer: Any, steps: range) -> None:
    for number in steps:
        rng = np.random.default_rng([SEED, number])
        gradient = tf.IndexedSlices(
            tf.constant(rng.normal(size=[25, v.dim]), v.value_dtype),
            tf.constant(rng.integers(-30, 30, 25)),
        )
        optimizer.apply([gradient], [v.anchor])


class RoundTripTest(FilesTestCase):
    @parameterized.product(key_dtype=tuple(KEYS), value_dtype=VALUES)
    @pytest.mark.smoke
    def test_every_dtype_pair_comes_back(self, key_dtype, value_dtype):
        rng, folder = np.random.default_rng(SEED), self.folder()
        keys = np.array(KEYS[key_dtype], object if key_dtype == "string" else key_dtype)
        v = tf_embed.Variable(key_dtype, value_dtype, 3, devices=CPU * 2, name="pair")
        v.upsert(keys, rows_of(value_dtype, len(keys), 3, rng))
        v.save_rows(folder, buffer_bytes=100)
        w = tf_embed.Variable(key_dtype, value_dtype, 3, name="pair")
        w.load_rows(folder)
        self.assertEqual(as_dict(w), as_dict(v))

    def test_a_table_without_rows_is_saved_and_loaded(self):
        folder = self.folder()
        tf_embed.Variable(name="v").save_rows(folder)
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[2.0]])
        v.load_rows(folder)
        self.assertEqual(as_dict(v), {1: [2.0]})

    def test_a_load_replaces_rows_and_leaves_others(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v")
        v.upsert([1, 2], [[1.0], [2.0]])
        v.save_rows(folder)
        v.upsert([2, 3], [[20.0], [30.0]])
        v.load_rows(folder)
        self.assertEqual(as_dict(v), {1: [1.0], 2: [2.0], 3: [30.0]})

    def test_a_save_takes_the_place_of_the_one_before(self):
        folder = self.folder()
        v, other = tf_embed.Variable(name="v"), tf_embed.Variable(name="v.1")
        other.upsert([9], [[9.0]])
        other.save_rows(folder)
        v.upsert([1], [[1.0]])
        v.save_rows(folder)
        v.remove([1])
        v.upsert([2], [[2.0]])
        v.save_rows(folder)
        w = tf_embed.Variable(name="v")
        w.load_rows(folder)
        self.assertEqual(as_dict(w), {2: [2.0]})
        self.assertLen(os.listdir(folder), 4)  # a manifest and a shard each
        other.clear()
        other.load_rows(folder)
        self.assertEqual(as_dict(other), {9: [9.0]})

    def test_it_runs_in_a_graph_where_the_folder_is_a_tensor(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=2, devices=CPU * 2, name="v")
        v.upsert(range(500), np.arange(1000.0).reshape(500, 2))
        before = content(v)

        @tf.function
        def save_clear_load(path):
            v.save_rows(path, buffer_bytes=500)
            v.clear()
            gone = v.size()
            v.load_rows(path)
            return gone, v.size()

        self.assertEqual([int(size) for size in save_clear_load(tf.constant(folder))], [0, 500])
        self.assertEqual(content(v), before)

    def test_a_save_has_the_name_that_the_user_gives(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[1.0]])
        v.save_rows(folder, file_name="a b/c")
        w = tf_embed.Variable(name="w")
        w.load_rows(folder, file_name="a b/c")
        self.assertEqual(as_dict(w), {1: [1.0]})

    @parameterized.parameters("n" * 200, "n" * 1024, "/" * 100, "\u540d" * 341)
    def test_a_name_of_any_length_can_be_saved_and_is_found_again(self, name):
        v = tf_embed.Variable(dim=1, name=name)
        # Names with a common beginning have separate files.
        other = tf_embed.Variable(dim=1, name=name[:-1] + "x")
        v.upsert([1], [[2.0]])
        other.upsert([1], [[3.0]])
        folder = self.folder()
        for one in (v, other):
            one.save_rows(folder)
            one.save_rows(folder)  # replaces the first one
            one.clear()
            one.load_rows(folder)
        self.assertAllEqual(v.lookup([1]), [[2.0]])
        self.assertAllEqual(other.lookup([1]), [[3.0]])
        self.assertLen(os.listdir(folder), 4)

    def test_a_long_name_that_an_earlier_version_kept_whole_is_found(self):
        v = tf_embed.Variable(dim=1, name="n" * 205)
        v.upsert([1], [[2.0]])
        folder = self.folder()
        v.save_rows(folder, file_name="files")
        whole = pathlib.Path(folder, f"{v.name}.rank0of1.manifest")
        pathlib.Path(folder, "files.rank0of1.manifest").rename(whole)
        v.clear()
        v.load_rows(folder)
        self.assertAllEqual(v.lookup([1]), [[2.0]])

    def test_variables_that_nobody_named_do_not_replace_each_other(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        for one, key in ((v, 1), (w, 2)):
            one.upsert([key], [[float(key)]])
        v.save_rows(folder)
        v.save_rows(tf.constant(folder))
        for dirpath in (folder, folder + "/", pathlib.Path(folder), tf.constant(folder)):
            with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
                w.save_rows(dirpath)
        w.save_rows(folder, file_name="w")
        w.load_rows(folder)
        self.assertAllEqual(tf.sort(w.export()[0]), [1, 2])
        del v  # the same variable, re-created
        w.save_rows(folder)

    def test_another_name_of_the_folder_does_not_hide_it(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        v.save_rows(folder)
        link = os.path.join(self.get_temp_dir(), "link")
        os.symlink(folder, link)
        self.addCleanup(os.remove, link)  # TensorFlow's own cleanup fails on a link
        with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
            w.save_rows(link)
        with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
            w.save_rows(os.path.relpath(folder))

    def test_a_save_that_failed_takes_no_folder(self):
        path = os.path.join(self.get_temp_dir(), "file")
        pathlib.Path(path).touch()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        with self.assertRaises(tf.errors.OpError):
            v.save_rows(os.path.join(path, "folder"))
        os.remove(path)
        w.save_rows(os.path.join(path, "folder"))

    def test_folders_of_variables_that_are_gone_are_not_remembered(self):
        gc.collect()
        before = len(row_files._nameless)
        for _ in range(3):
            v = tf_embed.Variable(dim=1)
            v.save_rows(self.folder())
            self.assertLen(row_files._nameless, before + 1)
            del v
            gc.collect()
        self.assertLen(row_files._nameless, before)

    def test_a_save_in_a_graph_is_that_of_a_name(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=1)

        @tf.function
        def save(dirpath):
            v.save_rows(dirpath)

        save(tf.constant(folder))
        self.assertNotEmpty(os.listdir(folder))


class TrainingTest(FilesTestCase):
    @parameterized.parameters((1, 1), (1, 3), (3, 1), (3, 2))
    @pytest.mark.smoke
    def test_training_goes_on_bit_for_bit_in_another_number_of_shards(self, before, after):
        initializer = keras.initializers.RandomNormal()  # each variable gets its own seed
        policy = tf_embed.TablePolicy(eviction="lfu", admission=tf_embed.CounterAdmission(2))

        def variable(shards):
            return tf_embed.Variable(
                dim=4, name="v", devices=CPU * shards, initializer=initializer, policy=policy
            )

        folder, v = self.folder(), variable(before)
        optimizer = adam(v)
        train(v, optimizer, range(6))
        v.save_rows(folder, buffer_bytes=256)
        w = variable(after)
        resumed = adam(w, steps=6)
        w.load_rows(folder)
        self.assertEqual(content(w), content(v))
        self.assertNotEmpty(content(w))
        train(v, optimizer, range(6, 12))
        train(w, resumed, range(6, 12))
        self.assertEqual(content(w), content(v))

    def test_shards_from_1_to_3_to_2_keep_rows_slots_and_statistics(self):
        folder = self.folder()
        policy = tf_embed.TablePolicy(eviction="lru", ttl_seconds=60)
        v = tf_embed.Variable(dim=4, name="v", policy=policy)
        train(v, adam(v), range(3))
        wanted = content(v)
        for shards in (3, 2):
            v.save_rows(folder)
            v = tf_embed.Variable(dim=4, name="v", policy=policy, devices=CPU * shards)
            v.load_rows(folder)
            self.assertEqual(content(v), wanted)

    def test_rows_with_slots_of_another_optimizer_are_refused(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=4, name="v"), tf_embed.Variable(dim=4, name="v")
        train(v, adam(v), range(2))
        v.save_rows(folder)
        adagrad = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
        train(w, adagrad, range(2))
        before = content(w)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "another optimizer"):
            w.load_rows(folder)
        self.assertEqual(content(w), before)
        w.clear()
        w.load_rows(folder)
        self.assertEqual(content(w), content(v))

    def test_rows_without_slots_leave_the_slots_of_present_ones(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=4, name="v"), tf_embed.Variable(dim=4, name="v")
        v.upsert(range(-30, 40), np.ones([70, 4]))
        v.save_rows(folder)
        train(w, adam(w), range(2))
        before = content(w)
        w.load_rows(folder)
        after = content(w)
        self.assertLen(after, 70)
        for key, (weights, slots, _) in after.items():
            self.assertEqual(weights, [1.0] * 4)
            self.assertEqual(slots, before[key][1] if key in before else [0.0] * 8)


class PolicyTest(FilesTestCase):
    def test_more_rows_than_the_bound_lose_those_that_are_lowest(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v", policy=tf_embed.TablePolicy(eviction="score"))
        v.upsert(range(100), np.arange(100.0)[:, None])
        scores = np.random.default_rng(SEED).permutation(100)
        v.set_scores(range(100), scores)
        v.save_rows(folder, buffer_bytes=64)
        bound = tf_embed.TablePolicy(10, eviction="score", log_evicted=True)
        w = tf_embed.Variable(name="v", policy=bound)
        w.upsert([1000, 1001], [[0.5], [1.5]])
        w.set_scores([1000, 1001], [1000, -1])
        w.load_rows(folder)
        best = {int(key) for key in np.argsort(scores)[-9:]}
        self.assertEqual(set(as_dict(w)), {1000} | best)
        gone = set(w.drain_evicted()[0].numpy().tolist())
        self.assertEqual(gone, {1001, *range(100)} - best)
        w.upsert([7777], [[0.0]])  # replaces the row of the lowest rank, as usual
        self.assertEqual(int(w.size()), 10)

    def test_strings_that_left_for_the_bound_are_forgotten(self):
        folder = self.folder()
        v = tf_embed.Variable("string", name="v", policy=tf_embed.TablePolicy(eviction="lru"))
        for number in range(50):
            v.upsert([f"key {number}"], [[float(number)]])
        v.save_rows(folder, buffer_bytes=1)
        w = tf_embed.Variable("string", name="v", policy=tf_embed.TablePolicy(5))
        w.load_rows(folder)
        wanted = {f"key {number}".encode(): [float(number)] for number in range(45, 50)}
        self.assertEqual(as_dict(w), wanted)


class MomentTest(FilesTestCase):
    def test_a_save_among_writers_has_each_key_once_and_each_row_whole(self):
        dim, keys = 33, np.arange(2000)
        v = tf_embed.Variable(dim=dim, name="v", devices=CPU * 2)
        stop, failures = threading.Event(), []

        def work(seed):
            rng = np.random.default_rng([SEED, seed])
            try:
                while not stop.is_set():
                    some = rng.choice(keys, 500, replace=False)
                    # All rows of an upsert consist of the same number.
                    v.upsert(some, np.full([500, dim], rng.integers(1 << 20), np.float32))
                    v.remove(rng.choice(keys, 100))
                    rows = v.lookup(rng.choice(keys, 50)).numpy()
                    assert (rows == rows[:, :1]).all()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(20):
                folder = self.folder(str(number))
                v.save_rows(folder, buffer_bytes=4096)
                (manifest,) = pathlib.Path(folder).glob("*.manifest")
                lines = [line.split() for line in manifest.read_text().splitlines()]
                saved = sum(int(line[3]) for line in lines if line[0] == "file")
                w = tf_embed.Variable(dim=dim, name="v")
                w.load_rows(folder)
                rows = w.export()[1].numpy()
                self.assertLen(rows, saved)
                self.assertTrue((rows == rows[:, :1]).all())
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEmpty(failures)

    def test_loads_beside_saves_in_one_folder_meet_whole_saves_alone(self):
        # The lengths of their manifests are different.
        folder, stop, failures = self.folder(), threading.Event(), []
        few, many = (tf_embed.Variable(dim=2, name="v", devices=CPU * 2) for _ in range(2))
        few.upsert(range(5), np.ones([5, 2]))
        many.upsert(range(5000), np.ones([5000, 2]))
        few.save_rows(folder)

        def save() -> None:
            try:
                while not stop.is_set():
                    many.save_rows(folder)
                    few.save_rows(folder)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        try:
            for _ in range(150):
                v = tf_embed.Variable(dim=2, name="v")
                v.load_rows(folder)
                self.assertIn(int(v.size()), (5, 5000))
        finally:
            stop.set()
            thread.join()
        self.assertEmpty(failures)

    def test_saves_of_many_threads_leave_one_that_is_whole(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=8, name="v", devices=CPU * 2)
        v.upsert(range(1000), np.ones([1000, 8]))
        threads = [threading.Thread(target=v.save_rows, args=(folder,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(os.listdir(folder), 3)
        w = tf_embed.Variable(dim=8, name="v")
        w.load_rows(folder)
        self.assertEqual(as_dict(w), as_dict(v))


class ArgumentsTest(FilesTestCase):
    @parameterized.parameters(
        ({"file_name": ""}, TypeError, "`file_name` must be a non-empty string"),
        ({"file_name": ["a"]}, TypeError, "`file_name` must be a non-empty string"),
        ({"path": 3}, TypeError, "`path` must be a str, a path or a string tensor. Received: .*3"),
        ({"path": ["a"]}, TypeError, "`path` must be a str, a path"),
        ({"path": tf.constant(3)}, TypeError, "tensor. Received: path of dtype int32"),
        ({"path": tf.constant(["a"])}, ValueError, "`path` must be a scalar. Received"),
        ({"path": ""}, ValueError, "`path` must"),
    )
    def test_a_bad_argument_is_named(self, options, error, message):
        v, options = tf_embed.Variable(name="v"), {"path": self.folder(), **options}
        with self.assertRaisesRegex(error, message):
            v.save_rows(**options)
        with self.assertRaisesRegex(error, message):
            v.load_rows(**options)

    def test_a_block_has_a_byte_or_more(self):
        v = tf_embed.Variable(name="v")
        with self.assertRaisesRegex(ValueError, "`buffer_bytes` must be at least 1"):
            v.save_rows(self.folder(), buffer_bytes=0)

    def test_the_environment_of_tfra_has_no_effect(self):
        v, here, there = tf_embed.Variable(name="v"), self.folder("here"), self.folder("there")
        with mock.patch.dict(os.environ, {"TFRA_SAVED_KV": there}):
            v.save_rows(here)
        self.assertFalse(os.path.exists(there))


if __name__ == "__main__":
    tf.test.main()

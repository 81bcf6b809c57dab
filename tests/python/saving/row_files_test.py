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
        v.save_to_file_system(folder, buffer_size=100)
        w = tf_embed.Variable(key_dtype, value_dtype, 3, name="pair")
        w.load_from_file_system(folder)
        self.assertEqual(as_dict(w), as_dict(v))

    def test_a_table_without_rows_is_saved_and_loaded(self):
        folder = self.folder()
        tf_embed.Variable(name="v").save_to_file_system(folder)
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[2.0]])
        v.load_from_file_system(folder)
        self.assertEqual(as_dict(v), {1: [2.0]})

    def test_a_load_replaces_rows_and_leaves_others(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v")
        v.upsert([1, 2], [[1.0], [2.0]])
        v.save_to_file_system(folder)
        v.upsert([2, 3], [[20.0], [30.0]])
        v.load_from_file_system(folder)
        self.assertEqual(as_dict(v), {1: [1.0], 2: [2.0], 3: [30.0]})

    def test_a_save_takes_the_place_of_the_one_before(self):
        folder = self.folder()
        v, other = tf_embed.Variable(name="v"), tf_embed.Variable(name="v.1")
        other.upsert([9], [[9.0]])
        other.save_to_file_system(folder)
        v.upsert([1], [[1.0]])
        v.save_to_file_system(folder)
        v.remove([1])
        v.upsert([2], [[2.0]])
        v.save_to_file_system(folder)
        w = tf_embed.Variable(name="v")
        w.load_from_file_system(folder)
        self.assertEqual(as_dict(w), {2: [2.0]})
        self.assertLen(os.listdir(folder), 4)  # a manifest and a shard each
        other.clear()
        other.load_from_file_system(folder)
        self.assertEqual(as_dict(other), {9: [9.0]})

    def test_it_runs_in_a_graph_where_the_folder_is_a_tensor(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=2, devices=CPU * 2, name="v")
        v.upsert(range(500), np.arange(1000.0).reshape(500, 2))
        before = content(v)

        @tf.function
        def save_clear_load(path):
            v.save_to_file_system(path, buffer_size=500)
            v.clear()
            gone = v.size()
            v.load_from_file_system(path)
            return gone, v.size()

        self.assertEqual([int(size) for size in save_clear_load(tf.constant(folder))], [0, 500])
        self.assertEqual(content(v), before)

    def test_the_environment_may_name_the_folder(self):
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[1.0]])
        here, there = self.folder("here"), self.folder("there")
        os.environ["TFRA_SAVED_KV"] = there
        try:
            v.save_to_file_system(here)
        finally:
            del os.environ["TFRA_SAVED_KV"]
        self.assertFalse(os.path.exists(here))
        w = tf_embed.Variable(name="v")
        w.load_from_file_system(pathlib.Path(there))
        self.assertEqual(as_dict(w), {1: [1.0]})

    def test_a_save_has_the_name_that_the_user_gives(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[1.0]])
        v.save_to_file_system(folder, file_name_list=["a b/c"])
        w = tf_embed.Variable(name="w")
        w.load_from_file_system(folder, file_name_list=["a b/c"])
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
            one.save_to_file_system(folder)
            one.save_to_file_system(folder)  # replaces the first save
            one.clear()
            one.load_from_file_system(folder)
        self.assertAllEqual(v.lookup([1]), [[2.0]])
        self.assertAllEqual(other.lookup([1]), [[3.0]])
        self.assertLen(os.listdir(folder), 4)

    def test_a_long_name_that_an_earlier_version_kept_whole_is_found(self):
        v = tf_embed.Variable(dim=1, name="n" * 205)
        v.upsert([1], [[2.0]])
        folder = self.folder()
        v.save_to_file_system(folder, file_name_list=["files"])
        whole = pathlib.Path(folder, f"{v.name}.rank0of1.manifest")
        pathlib.Path(folder, "files.rank0of1.manifest").rename(whole)
        v.clear()
        v.load_from_file_system(folder)
        self.assertAllEqual(v.lookup([1]), [[2.0]])

    def test_variables_that_nobody_named_do_not_replace_each_other(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        for one, key in ((v, 1), (w, 2)):
            one.upsert([key], [[float(key)]])
        v.save_to_file_system(folder)
        v.save_to_file_system(tf.constant(folder))
        for dirpath in (folder, folder + "/", pathlib.Path(folder), tf.constant(folder)):
            with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
                w.save_to_file_system(dirpath)
        w.save_to_file_system(folder, file_name_list=["w"])
        w.load_from_file_system(folder)
        self.assertAllEqual(tf.sort(w.export()[0]), [1, 2])
        del v  # the same variable, re-created
        w.save_to_file_system(folder)

    def test_another_name_of_the_folder_does_not_hide_it(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        v.save_to_file_system(folder)
        link = os.path.join(self.get_temp_dir(), "link")
        os.symlink(folder, link)
        self.addCleanup(os.remove, link)  # TensorFlow's own cleanup fails on a link
        with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
            w.save_to_file_system(link)
        with self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"):
            w.save_to_file_system(os.path.relpath(folder))
        with (
            mock.patch.dict(os.environ, {"TFRA_SAVED_KV": folder}),
            self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"),
        ):
            w.save_to_file_system(self.folder())

    def test_a_save_that_failed_takes_no_folder(self):
        path = os.path.join(self.get_temp_dir(), "file")
        pathlib.Path(path).touch()
        v, w = tf_embed.Variable(dim=1), tf_embed.Variable(dim=1)
        with self.assertRaises(tf.errors.OpError):
            v.save_to_file_system(os.path.join(path, "folder"))
        os.remove(path)
        w.save_to_file_system(os.path.join(path, "folder"))

    def test_folders_of_variables_that_are_gone_are_not_remembered(self):
        gc.collect()
        before = len(row_files._nameless)
        for _ in range(3):
            v = tf_embed.Variable(dim=1)
            v.save_to_file_system(self.folder())
            self.assertLen(row_files._nameless, before + 1)
            del v
            gc.collect()
        self.assertLen(row_files._nameless, before)

    def test_a_save_in_a_graph_is_that_of_a_name(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=1)

        @tf.function
        def save(dirpath):
            v.save_to_file_system(dirpath)

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
        v.save_to_file_system(folder, buffer_size=256)
        w = variable(after)
        resumed = adam(w, steps=6)
        w.load_from_file_system(folder)
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
            v.save_to_file_system(folder)
            v = tf_embed.Variable(dim=4, name="v", policy=policy, devices=CPU * shards)
            v.load_from_file_system(folder)
            self.assertEqual(content(v), wanted)

    def test_rows_with_slots_of_another_optimizer_are_refused(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=4, name="v"), tf_embed.Variable(dim=4, name="v")
        train(v, adam(v), range(2))
        v.save_to_file_system(folder)
        adagrad = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
        train(w, adagrad, range(2))
        before = content(w)
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "another optimizer"):
            w.load_from_file_system(folder)
        self.assertEqual(content(w), before)
        w.clear()
        w.load_from_file_system(folder)
        self.assertEqual(content(w), content(v))

    def test_rows_without_slots_leave_the_slots_of_present_ones(self):
        folder = self.folder()
        v, w = tf_embed.Variable(dim=4, name="v"), tf_embed.Variable(dim=4, name="v")
        v.upsert(range(-30, 40), np.ones([70, 4]))
        v.save_to_file_system(folder)
        train(w, adam(w), range(2))
        before = content(w)
        w.load_from_file_system(folder)
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
        v.save_to_file_system(folder, buffer_size=64)
        bound = tf_embed.TablePolicy(10, eviction="score", log_evicted=True)
        w = tf_embed.Variable(name="v", policy=bound)
        w.upsert([1000, 1001], [[0.5], [1.5]])
        w.set_scores([1000, 1001], [1000, -1])
        w.load_from_file_system(folder)
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
        v.save_to_file_system(folder, buffer_size=1)
        w = tf_embed.Variable("string", name="v", policy=tf_embed.TablePolicy(5))
        w.load_from_file_system(folder)
        wanted = {f"key {number}".encode(): [float(number)] for number in range(45, 50)}
        self.assertEqual(as_dict(w), wanted)

    def test_a_policy_of_the_users_own_is_told_of_the_keys(self):
        told = []

        class Told(tf_embed.RestrictPolicy):
            def apply_update(self, keys):
                told.extend(keys.numpy().tolist())

            def apply_restriction(self, num_reserved, **kwargs):
                pass

        folder = self.folder()
        v = tf_embed.Variable(name="v", restrict_policy=Told)
        v.upsert([3, 1, 2], [[0.0]] * 3)
        v.save_to_file_system(folder)
        told.clear()
        v.load_from_file_system(folder)
        self.assertCountEqual(told, [1, 2, 3])


class ProcessesTest(FilesTestCase):
    def saved_by(self, count: int, folder: str, **options: Any) -> dict[Any, Any]:
        """Saves as `count` processes, each with different rows, and returns all rows."""
        together = {}
        for rank in range(count):
            v = tf_embed.Variable(name="v", devices=CPU * 2, **options)
            keys = [key for key in range(-40, 40) if key % count == rank]
            v.upsert(list(map(str, keys)) if options else keys, [[float(key)] for key in keys])
            v.save_to_file_system(folder, proc_size=count, proc_rank=rank)
            together.update(as_dict(v))
        return together

    def test_each_process_loads_what_it_saved(self):
        folder = self.folder()
        self.saved_by(3, folder)
        for rank in range(3):
            v = tf_embed.Variable(name="v")
            v.load_from_file_system(folder, proc_size=3, proc_rank=rank)
            self.assertEqual(set(as_dict(v)), {k for k in range(-40, 40) if k % 3 == rank})

    @parameterized.product(before=(1, 2, 3), after=(2, 4), strings=(False, True))
    def test_another_number_of_processes_shares_the_rows_by_key(self, before, after, strings):
        folder, options = self.folder(), {"key_dtype": "string"} if strings else {}
        wanted, found = self.saved_by(before, folder, **options), {}
        for rank in range(after):
            v = tf_embed.Variable(name="v", devices=CPU * 3, **options)
            v.load_from_file_system_with_restore_function(folder, after, rank)
            mine = as_dict(v)
            if before != after and not strings:
                self.assertEqual(set(mine), {key for key in wanted if key % after == rank})
            self.assertNoCommonElements(found, mine)
            found.update(mine)
        self.assertEqual(found, wanted)

    @parameterized.parameters(1, 3)
    def test_one_process_may_load_all(self, processes):
        folder = self.folder()
        wanted = self.saved_by(2, folder)
        v = tf_embed.Variable(name="v")
        v.load_from_file_system(folder, proc_size=processes, load_entire_dir=True)
        self.assertEqual(as_dict(v), wanted)

    def test_a_partitioner_of_the_users_own_chooses_process_and_shard(self):
        def halves(keys, count):
            return tf.cast(keys >= 0, tf.int32) * (count - 1)

        folder = self.folder()
        wanted = self.saved_by(2, folder)
        for rank in range(3):
            v = tf_embed.Variable(name="v", devices=CPU * 2, partitioner=halves)
            v.load_from_file_system(folder, proc_size=3, proc_rank=rank)
            mine = {key: row for key, row in wanted.items() if (key >= 0) * 2 == rank}
            self.assertEqual(as_dict(v), mine)
            self.assertEqual(int(v.size(1)), len(mine) if rank == 2 else 0)

    def test_each_process_may_have_a_folder_of_its_own(self):
        folder = self.folder()
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[1.0]])
        v.save_to_file_system(folder, proc_size=2, proc_rank=1)
        w = tf_embed.Variable(name="v")
        w.load_from_file_system(folder, proc_size=2, proc_rank=1)
        self.assertEqual(as_dict(w), {1: [1.0]})
        for options in ({"proc_size": 2, "proc_rank": 0}, {"load_entire_dir": True}, {}):
            with self.assertRaisesRegex(tf.errors.NotFoundError, "the processes 1 of 2"):
                w.load_from_file_system(folder, **options)

    def test_a_save_of_another_number_of_processes_replaces_when_it_is_whole(self):
        folder = self.folder()
        self.saved_by(2, folder)
        old = set(os.listdir(folder))
        v = tf_embed.Variable(name="v")
        v.upsert([1000], [[1.0]])
        for rank in range(3):
            w = tf_embed.Variable(name="v")
            w.load_from_file_system(folder, load_entire_dir=True)
            self.assertEqual(int(w.size()), 80)
            self.assertContainsSubset(old, os.listdir(folder))
            v.save_to_file_system(folder, proc_size=3, proc_rank=rank)
        self.assertNoCommonElements(old, os.listdir(folder))
        w = tf_embed.Variable(name="v")
        w.load_from_file_system(folder, load_entire_dir=True)
        self.assertEqual(as_dict(w), {1000: [1.0]})


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
                v.save_to_file_system(folder, buffer_size=4096)
                (manifest,) = pathlib.Path(folder).glob("*.manifest")
                lines = [line.split() for line in manifest.read_text().splitlines()]
                saved = sum(int(line[3]) for line in lines if line[0] == "file")
                w = tf_embed.Variable(dim=dim, name="v")
                w.load_from_file_system(folder)
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
        few.save_to_file_system(folder)

        def save() -> None:
            try:
                while not stop.is_set():
                    many.save_to_file_system(folder)
                    few.save_to_file_system(folder)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        try:
            for _ in range(150):
                v = tf_embed.Variable(dim=2, name="v")
                v.load_from_file_system(folder)
                self.assertIn(int(v.size()), (5, 5000))
        finally:
            stop.set()
            thread.join()
        self.assertEmpty(failures)

    def test_saves_of_many_threads_leave_one_that_is_whole(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=8, name="v", devices=CPU * 2)
        v.upsert(range(1000), np.ones([1000, 8]))
        threads = [threading.Thread(target=v.save_to_file_system, args=(folder,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(os.listdir(folder), 3)
        w = tf_embed.Variable(dim=8, name="v")
        w.load_from_file_system(folder)
        self.assertEqual(as_dict(w), as_dict(v))


class ArgumentsTest(FilesTestCase):
    @parameterized.parameters(
        ({"proc_size": 0}, ValueError, "`proc_size` must be at least 1"),
        ({"proc_rank": 1}, ValueError, "`proc_rank` must be at most 0"),
        ({"proc_rank": "0"}, TypeError, "`proc_rank` must be an int"),
        ({"buffer_size": 0}, ValueError, "`buffer_size` must be at least 1"),
        ({"file_name_list": ["a", "b"]}, ValueError, "a list of one name"),
        ({"file_name_list": "a"}, ValueError, "a list of one name"),
        ({"dirpath_env": None}, TypeError, "`dirpath_env` must be a str"),
        (
            {"dirpath": 3},
            TypeError,
            "`dirpath` must be a str, a path or a string tensor. Received: dirpath=.*3",
        ),
        ({"dirpath": tf.constant(3)}, TypeError, "tensor. Received: dirpath of dtype int32"),
        ({"dirpath": tf.constant(["a"])}, ValueError, "`dirpath` must be a scalar. Received"),
    )
    def test_a_bad_argument_is_named(self, options, error, message):
        v, options = tf_embed.Variable(name="v"), {"dirpath": self.folder(), **options}
        with self.assertRaisesRegex(error, message):
            v.save_to_file_system(**options)
        with self.assertRaisesRegex(error, message):
            v.load_from_file_system(**options)

    def test_appending_is_refused(self):
        v, folder = tf_embed.Variable(name="v"), self.folder()
        with self.assertRaisesRegex(ValueError, "`append_to_file` must be False"):
            v.save_to_file_system(folder, append_to_file=True)
        self.assertFalse(os.path.exists(folder))

    def test_a_folder_must_be_one_and_have_a_name(self):
        v = tf_embed.Variable(name="v")
        for folder, message in (("", "`dirpath` must name a folder"), (["a"], "str, a path")):
            with self.assertRaisesRegex((TypeError, tf.errors.InvalidArgumentError), message):
                v.save_to_file_system(folder)
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), "scalar|rank 0"):
            v.save_to_file_system(tf.constant(["a", "b"]))


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""TFRA's arguments of saves and loads: processes, names, the environment."""

from __future__ import annotations

import os
import pathlib
from typing import Any
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from support.cases.dtype_pairs import as_dict
from support.cases.saved_files import CPU, FilesTestCase
from tf_embed import tfra


class PlaceTest(FilesTestCase):
    def test_the_environment_may_name_the_folder(self):
        v = tfra.Variable(name="v")
        v.upsert([1], [[1.0]])
        here, there = self.folder("here"), self.folder("there")
        os.environ["TFRA_SAVED_KV"] = there
        try:
            v.save_to_file_system(here)
        finally:
            del os.environ["TFRA_SAVED_KV"]
        self.assertFalse(os.path.exists(here))
        w = tfra.Variable(name="v")
        w.load_from_file_system(pathlib.Path(there))
        self.assertEqual(as_dict(w), {1: [1.0]})

    def test_a_folder_that_the_environment_names_is_taken_too(self):
        folder = self.folder()
        v, w = tfra.Variable(dim=1), tfra.Variable(dim=1)
        v.save_to_file_system(folder)
        with (
            mock.patch.dict(os.environ, {"TFRA_SAVED_KV": folder}),
            self.assertRaisesRegex(ValueError, "`name` of each variable that saves into"),
        ):
            w.save_to_file_system(self.folder())

    def test_a_save_has_the_name_that_the_user_gives(self):
        folder = self.folder()
        v = tfra.Variable(name="v")
        v.upsert([1], [[1.0]])
        v.save_to_file_system(folder, file_name_list=["a b/c"])
        w = tfra.Variable(name="w")
        w.load_from_file_system(folder, file_name_list=["a b/c"])
        self.assertEqual(as_dict(w), {1: [1.0]})

    def test_both_run_in_a_graph(self):
        folder = self.folder()
        v = tfra.Variable(name="v", devices=CPU * 2)
        v.upsert(range(500), [[float(key)] for key in range(500)])

        @tf.function
        def save_clear_load(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            v.save_to_file_system(path, buffer_size=500, name="save")
            v.clear()
            gone = v.size()
            v.load_from_file_system(path, name="load")
            return gone, v.size()

        self.assertEqual([int(size) for size in save_clear_load(tf.constant(folder))], [0, 500])

    def test_a_policy_of_the_users_own_is_told_of_the_keys(self):
        told = []

        class Told(tfra.RestrictPolicy):
            def apply_update(self, keys):
                told.extend(keys.numpy().tolist())

            def apply_restriction(self, num_reserved, **kwargs):
                pass

        folder = self.folder()
        v = tfra.Variable(name="v", restrict_policy=Told)
        v.upsert([3, 1, 2], [[0.0]] * 3)
        v.save_to_file_system(folder)
        told.clear()
        v.load_from_file_system(folder)
        self.assertCountEqual(told, [1, 2, 3])


class ProcessesTest(FilesTestCase):
    def saved_by(self, count: int, folder: str, **options: Any) -> dict[Any, Any]:
        """Saves as `count` processes, each with rows of its own, and returns all rows."""
        together = {}
        for rank in range(count):
            v = tfra.Variable(name="v", devices=CPU * 2, **options)
            keys = [key for key in range(-40, 40) if key % count == rank]
            v.upsert(list(map(str, keys)) if options else keys, [[float(key)] for key in keys])
            v.save_to_file_system(folder, proc_size=count, proc_rank=rank)
            together.update(as_dict(v))
        return together

    def test_each_process_loads_what_it_saved(self):
        folder = self.folder()
        self.saved_by(3, folder)
        for rank in range(3):
            v = tfra.Variable(name="v")
            v.load_from_file_system(folder, proc_size=3, proc_rank=rank)
            self.assertEqual(set(as_dict(v)), {k for k in range(-40, 40) if k % 3 == rank})

    @parameterized.product(before=(1, 2, 3), after=(2, 4), strings=(False, True))
    def test_another_number_of_processes_shares_the_rows_by_key(self, before, after, strings):
        folder, options = self.folder(), {"key_dtype": "string"} if strings else {}
        wanted, found = self.saved_by(before, folder, **options), {}
        for rank in range(after):
            v = tfra.Variable(name="v", devices=CPU * 3, **options)
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
        v = tfra.Variable(name="v")
        v.load_from_file_system(folder, proc_size=processes, load_entire_dir=True)
        self.assertEqual(as_dict(v), wanted)

    def test_a_partitioner_of_the_users_own_chooses_process_and_shard(self):
        def halves(keys, count):
            return tf.cast(keys >= 0, tf.int32) * (count - 1)

        folder = self.folder()
        wanted = self.saved_by(2, folder)
        for rank in range(3):
            v = tfra.Variable(name="v", devices=CPU * 2, partitioner=halves)
            v.load_from_file_system(folder, proc_size=3, proc_rank=rank)
            mine = {key: row for key, row in wanted.items() if (key >= 0) * 2 == rank}
            self.assertEqual(as_dict(v), mine)
            self.assertEqual(int(v.size(1)), len(mine) if rank == 2 else 0)

    def test_each_process_may_have_a_folder_of_its_own(self):
        folder = self.folder()
        v = tfra.Variable(name="v")
        v.upsert([1], [[1.0]])
        v.save_to_file_system(folder, proc_size=2, proc_rank=1)
        w = tfra.Variable(name="v")
        w.load_from_file_system(folder, proc_size=2, proc_rank=1)
        self.assertEqual(as_dict(w), {1: [1.0]})
        for options in ({"proc_size": 2, "proc_rank": 0}, {"load_entire_dir": True}, {}):
            with self.assertRaisesRegex(tf.errors.NotFoundError, "the processes 1 of 2"):
                w.load_from_file_system(folder, **options)

    def test_a_save_of_another_number_of_processes_replaces_when_it_is_whole(self):
        folder = self.folder()
        self.saved_by(2, folder)
        old = set(os.listdir(folder))
        v = tfra.Variable(name="v")
        v.upsert([1000], [[1.0]])
        for rank in range(3):
            w = tfra.Variable(name="v")
            w.load_from_file_system(folder, load_entire_dir=True)
            self.assertEqual(int(w.size()), 80)
            self.assertContainsSubset(old, os.listdir(folder))
            v.save_to_file_system(folder, proc_size=3, proc_rank=rank)
        self.assertNoCommonElements(old, os.listdir(folder))
        w = tfra.Variable(name="v")
        w.load_from_file_system(folder, load_entire_dir=True)
        self.assertEqual(as_dict(w), {1000: [1.0]})


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
        v, options = tfra.Variable(name="v"), {"dirpath": self.folder(), **options}
        with self.assertRaisesRegex(error, message):
            v.save_to_file_system(**options)
        with self.assertRaisesRegex(error, message):
            v.load_from_file_system(**options)

    def test_appending_is_refused(self):
        v, folder = tfra.Variable(name="v"), self.folder()
        with self.assertRaisesRegex(ValueError, "`append_to_file` must be False"):
            v.save_to_file_system(folder, append_to_file=True)
        self.assertFalse(os.path.exists(folder))

    def test_a_folder_must_be_one_and_have_a_name(self):
        v = tfra.Variable(name="v")
        for folder, message in (("", "`dirpath` must name a folder"), (["a"], "str, a path")):
            with self.assertRaisesRegex((TypeError, tf.errors.InvalidArgumentError), message):
                v.save_to_file_system(folder)
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), "scalar|rank 0"):
            v.save_to_file_system(tf.constant(["a", "b"]))


if __name__ == "__main__":
    tf.test.main()

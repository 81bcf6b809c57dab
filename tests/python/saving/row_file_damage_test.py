# SPDX-License-Identifier: Apache-2.0
"""Saves that are damaged, foreign or cut off: refused by name, without a change of the table."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import TESTS
from support.cases.saved_files import CPU, FilesTestCase, content

# A variable "v" of two shards, dim 2, with rows {key: [key, -key] for key in range(-3, 3)}.
GOLDEN = TESTS / "golden" / "rows"


class DamageTest(FilesTestCase):
    def saved(self) -> pathlib.Path:
        folder = pathlib.Path(self.folder())
        v = tf_embed.Variable(dim=2, name="v", devices=CPU * 2)
        v.upsert(range(20), np.ones([20, 2]))
        v.save_rows(folder, buffer_bytes=100)
        return folder

    def check_refused(self, folder: pathlib.Path, error: type[Exception], message: str) -> None:
        v = tf_embed.Variable(dim=2, name="v")
        v.upsert([3, 100], [[5.0] * 2] * 2)
        before = content(v)
        with self.assertRaisesRegex(error, message):
            v.load_rows(folder)
        self.assertEqual(content(v), before)

    def test_a_damaged_file_is_named_and_nothing_changes(self):
        # Flips a few bits of each file; tests/cc/core/files/row_file_test.cc flips every bit.
        folder = self.saved()
        for path in sorted(folder.iterdir()):
            good = path.read_bytes()
            for place in np.linspace(0, len(good) - 1, 12).astype(int):
                damaged = bytearray(good)
                damaged[place] ^= 4
                path.write_bytes(damaged)
                self.check_refused(
                    folder,
                    tf.errors.DataLossError,
                    f"{path.name}' is damaged|{path.name}' has rows in the format",
                )
            path.write_bytes(good)

    def test_a_file_of_another_length_is_named(self):
        folder = self.saved()
        for path in sorted(folder.iterdir()):
            good = path.read_bytes()
            for other in (b"", good[:-1], good + b"\0"):
                path.write_bytes(other)
                self.check_refused(folder, tf.errors.DataLossError, f"{path.name}' is damaged")
            path.write_bytes(good)

    def test_a_missing_file_is_named(self):
        folder = self.saved()
        path = next(folder.glob("*.rows"))
        path.unlink()
        self.check_refused(folder, tf.errors.NotFoundError, path.name)

    def test_without_a_manifest_there_is_no_save(self):
        folder = self.saved()
        next(folder.glob("*.manifest")).unlink()
        self.check_refused(folder, tf.errors.NotFoundError, "holds no whole save of 'v'")
        self.check_refused(folder / "nowhere", tf.errors.NotFoundError, "no whole save of 'v'")

    def test_a_file_of_another_save_is_not_mixed_in(self):
        folder, other = self.saved(), self.saved()
        for mine, its in zip(
            sorted(folder.glob("*shard0of2.rows")),
            sorted(other.glob("*shard0of2.rows")),
            strict=True,
        ):
            shutil.copy(its, mine)
        self.check_refused(folder, tf.errors.DataLossError, "is not what was saved")

    @parameterized.parameters(
        ({"dim": 3}, "dim 3, and the rows in the file have .* dim 2"),
        ({"dim": 2, "value_dtype": "float16"}, "value float16, .* value float32"),
        ({"dim": 2, "key_dtype": "uint64"}, "key uint64, .* key int64"),
        ({"dim": 2, "key_dtype": "string"}, "key string, .* key int64"),
    )
    def test_rows_of_another_kind_are_refused(self, options, message):
        folder, v = self.saved(), tf_embed.Variable(name="v", **options)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
            v.load_rows(folder)
        self.assertEqual(int(v.size()), 0)

    def test_a_folder_that_can_not_be_written_fails_and_changes_nothing(self):
        v = tf_embed.Variable(name="v")
        v.upsert([1], [[1.0]])
        file = pathlib.Path(self.folder("file"))
        file.write_text("no folder")
        for folder in (file, "/proc/nowhere", "unknown://somewhere"):
            with self.assertRaises(tf.errors.OpError):
                v.save_rows(folder)
        self.assertEqual(file.read_text(), "no folder")
        v.upsert([2], [[2.0]])  # writers still work
        self.assertEqual(int(v.size()), 2)


class CrashTest(FilesTestCase):
    @parameterized.parameters("cut", "kill")
    @pytest.mark.smoke
    def test_a_crash_leaves_the_old_save_or_the_new_one(self, how):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        runner = subprocess.run(
            [sys.executable, TESTS / "support" / "faults" / "killed_saves.py", how, folder],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(runner.returncode, 0, runner.stderr)
        rounds = json.loads(runner.stdout)
        self.assertNotEmpty(rounds)
        self.assertTrue(all(one["died"] for one in rounds), rounds)
        for number, one in enumerate(rounds):
            v = tf_embed.Variable(dim=4, name="v")
            v.load_rows(os.path.join(folder, str(number)))
            rows = v.export()[1].numpy()
            self.assertLen(rows, 200, one)
            self.assertIn(float(rows[0, 0]), one["values"])
            self.assertAllEqual(rows, np.full([200, 4], rows[0, 0]))
            # The next save clears away the remains.
            v.save_rows(os.path.join(folder, str(number)))
            self.assertLen(os.listdir(os.path.join(folder, str(number))), 2)


class GoldenTest(FilesTestCase):
    @parameterized.parameters(1, 2, 3)
    @pytest.mark.smoke
    def test_what_was_saved_once_can_be_loaded(self, shards):
        v = tf_embed.Variable(dim=2, name="v", devices=CPU * shards)
        v.load_rows(GOLDEN)
        keys, rows = v.export()
        wanted = {key: [key, -key] for key in range(-3, 3)}
        found = zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True)
        self.assertEqual(dict(found), wanted)


if __name__ == "__main__":
    tf.test.main()

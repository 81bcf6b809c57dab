# SPDX-License-Identifier: Apache-2.0
"""Parts of a save that several processes write, joined to a single save."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.ops import row_file_ops, snapshot_ops
from tf_embed.ops.row_file_ops import Part
from tf_embed.snapshots import loading, manifest
from tf_embed.table.collective_calls import OneProcess
from tf_embed.variable.row_files import RowFiles

SAVE, PROCESSES, KEYS = -5, 3, 60
TRACKED = tf_embed.TablePolicy(track_changes=True)


def variable(dim: int = 2, shards: int = 2, policy: Any = None) -> tf_embed.Variable:
    return tf_embed.Variable(dim=dim, devices=["/CPU:0"] * shards, name="items", policy=policy)


def row_of(key: int, dim: int = 2) -> list[float]:
    return [float(key)] * dim


def table_of(rank: int, policy: Any = None) -> tf_embed.Variable:
    """A table with the rows of one process."""
    v = variable(policy=policy)
    keys = np.arange(rank, KEYS, PROCESSES)
    v.upsert(keys, [row_of(int(key)) for key in keys])
    return v


class PartsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enter_context(tempfile.TemporaryDirectory())

    def write(self, v: tf_embed.Variable, rank: int, save: int = SAVE, count: int = PROCESSES):
        handle, part = v.table.handle_on_host, Part(save, rank, count)
        if v.table.options.tracks_changes:
            begun = snapshot_ops.begin_snapshot([handle], [0])
            snapshot_ops.write_snapshot(begun, 0, self.folder, "rows", "", part)
        else:
            row_file_ops.save_part(handle, self.folder, "rows", part, buffer_bytes=100)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder))

    def loaded(self, v: tf_embed.Variable) -> dict[int, list[float]]:
        RowFiles(v.table).load_all(self.folder, "rows")
        keys, rows = v.export()
        return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))

    @parameterized.parameters(None, TRACKED)
    def test_parts_are_read_as_a_save_of_more_shards(self, policy):
        for rank in (2, 0, 1):
            self.write(table_of(rank, policy), rank)
        with self.assertRaisesRegex(tf.errors.DataLossError, "rank0of3"):  # a part is not a save
            self.loaded(variable(shards=4))
        manifests = {
            name: pathlib.Path(self.folder, name).read_bytes()
            for name in self.names()
            if name.endswith(".manifest")
        }
        self.assertLen(manifests, PROCESSES)
        self.assertEqual(snapshot_ops.join_rows(self.folder, "rows", PROCESSES), SAVE)
        left = [name for name in self.names() if name.endswith(".manifest")]
        self.assertEqual(left, ["rows.rank0of1.manifest"])
        self.assertLen(self.names(), 1 + 2 * PROCESSES)
        expected = {key: row_of(key) for key in range(KEYS)}
        self.assertEqual(self.loaded(variable(shards=4)), expected)
        # A killed process may leave the manifests of parts. The joined save has precedence.
        for name, text in manifests.items():
            pathlib.Path(self.folder, name).write_bytes(text)
        self.assertEqual(self.loaded(variable(shards=1)), expected)

    def test_a_missing_part_is_an_error(self):
        for rank in (0, 2):
            self.write(table_of(rank), rank)
        before = self.names()
        with self.assertRaisesRegex(tf.errors.NotFoundError, "rank1of3"):
            snapshot_ops.join_rows(self.folder, "rows", PROCESSES)
        self.assertEqual(self.names(), before)

    @parameterized.parameters("save", "dim", "since", "file")
    def test_parts_of_different_saves_are_refused(self, what):
        self.write(table_of(0), 0, count=2)
        other = variable(dim=3 if what == "dim" else 2, policy=TRACKED)
        self.write(other, 1, save=SAVE + (what == "save"), count=2)
        if what == "since":
            path = pathlib.Path(self.folder, "rows.rank1of2.manifest")
            earlier = snapshot_ops.begin_snapshot([other.table.handle_on_host], [SAVE])
            part = Part(SAVE, 1, 2)
            snapshot_ops.write_snapshot(earlier, 0, self.folder, "rows", "base", part)
            self.assertIn("since", path.read_text())
        error, words = tf.errors.FailedPreconditionError, "is not a part of the save of which "
        if what == "file":
            (rows, *_) = [name for name in self.names() if "rank1of2" in name and "shard" in name]
            os.remove(os.path.join(self.folder, rows))
            error, words = tf.errors.NotFoundError, rows
        before = self.names()
        with self.assertRaisesRegex(error, words):
            snapshot_ops.join_rows(self.folder, "rows", 2)
        self.assertEqual(self.names(), before)

    @parameterized.parameters((0, 0, 2), (1, 2, 2), (1, -1, 2), (1, 0, 0), (1, 0, 2**40))
    def test_numbers_out_of_range_are_refused(self, save, rank, count):
        with self.assertRaises(tf.errors.InvalidArgumentError):
            self.write(table_of(0), rank, save, count)
        self.assertEmpty(self.names())


class OtherWorker:
    """The calls of two workers. The other worker has read other files."""

    count, rank = 2, 0

    def run(self, function: Any) -> list[Any]:
        value = function()
        return [value, None if value is None else f"not {value}"]


class AgreedTest(tf.test.TestCase):
    def test_workers_load_one_snapshot_or_none(self):
        path = self.enter_context(tempfile.TemporaryDirectory())
        tf_embed.Snapshots(path, table_of(0)).save("one")
        folder = os.path.join(path, "one")
        info, empty = manifest.read(folder), variable()
        part = loading.Part(empty.table, info.tables[0])
        with self.assertRaisesRegex(ValueError, "All workers must have the same snapshot in"):
            loading.load_parts(folder, info, [part], OtherWorker())
        self.assertEqual(int(empty.size()), 0)
        loading.load_parts(folder, info, [part], OneProcess())
        self.assertEqual(int(empty.size()), KEYS // PROCESSES)


if __name__ == "__main__":
    absltest.main()

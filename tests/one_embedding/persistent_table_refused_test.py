# SPDX-License-Identifier: Apache-2.0
"""Arguments that `make_persistent_table_reader` and `make_persistent_table_writer` refuse."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import layer, store, train, uniform_tables
from support.cases.persistent_tables import files_in, read, reader, write, writer
from support.oracles.reference import SEED


class RefusedTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def emb(self, folder: str, dtype: str = "float32"):
        """A layer with rows of 2 weights and 4 slots."""
        options = {"optimizer": "adam", "devices": "/CPU:0", "dtype": dtype}
        emb = layer(uniform_tables(1.0), store_options=store(folder), **options)
        train(emb, tf.constant(np.random.default_rng(SEED).integers(-50, 50, 20)))
        return emb

    def test_another_storage_dim_is_named(self):
        folder = self.folder()
        self.emb(folder).save_snapshot("s")
        wanted = "`storage_dim` must be 6: .*2 weights and 4 numbers of an optimizer.*storage_dim=2"
        with self.assertRaisesRegex(ValueError, wanted):
            reader(folder, storage_dim=2)
        source = reader(folder, storage_dim=6)
        with self.assertRaisesRegex(ValueError, wanted):
            writer(folder, "t", storage_dim=2, like=source)
        self.assertLen(files_in(folder), 3)

    def test_another_value_type_is_named(self):
        folder = self.folder()
        write(folder, [1], np.ones([1, 3]), value_type="float16")
        with self.assertRaisesRegex(ValueError, "`value_type` must be float16.*=float32"):
            reader(folder)
        source = reader(folder, value_type="float16")
        with self.assertRaisesRegex(ValueError, "`value_type` must be float16.*=float32"):
            writer(folder, "t", like=source)

    def test_tables_of_several_kinds_are_not_read_as_one(self):
        path = self.folder()
        variables = [tf_embed.Variable(dim=3, name="a"), tf_embed.Variable(dim=2, name="b")]
        snapshots = tf_embed.Snapshots(f"{path}/snapshots", variables)
        snapshots.save("s")
        with self.assertRaisesRegex(ValueError, "`storage_dim` must be 2.*=3"):
            reader(path)
        emb = self.emb(path)
        tf_embed.Snapshots(f"{path}/snapshots", [tf_embed.Variable(dim=6, name="c"), emb]).save("s")
        with self.assertRaisesRegex(
            ValueError, r"a snapshot of one kind of rows.*'s'.*\[2, 6\] weights"
        ):
            reader(path, storage_dim=6)

    @parameterized.parameters(
        ({"paths": []}, ValueError, "`paths`"),
        ({"paths": ["a", "./a"]}, ValueError, "`paths`"),
        ({"paths": 3}, TypeError, "`paths`"),
        ({"name": "a/b"}, ValueError, "`snapshot_name`"),
        ({"name": None}, TypeError, "`snapshot_name`"),
        ({"name": "snapshot.json"}, ValueError, "`snapshot_name`"),
        ({"key_type": "string"}, TypeError, "`key_type`"),
        ({"value_type": "int8"}, TypeError, "`value_type`"),
        ({"storage_dim": 0}, ValueError, "`storage_dim`"),
        ({"storage_dim": 2.0}, TypeError, "`storage_dim`"),
        ({"physical_block_size": 100}, ValueError, "`physical_block_size`"),
        ({"physical_block_size": "4096"}, TypeError, "`physical_block_size`"),
        ({"layer_name": 3}, TypeError, "`layer_name`"),
    )
    def test_a_wrong_argument_is_named(self, options, error, message):
        for make in (reader, writer):
            with self.assertRaisesRegex(error, message):
                make(**{"paths": [self.folder()], **options})

    @parameterized.parameters(
        ([1.5], np.ones([1, 3]), TypeError, "`keys`"),
        ([2**63], np.ones([1, 3]), ValueError, "`keys`"),
        ([[1]], np.ones([1, 3]), ValueError, "`keys`"),
        ([1, 2], np.ones([1, 3]), ValueError, "`values` of .* must be of shapes"),
        ([1], np.ones([1, 2]), ValueError, "`values`"),
        ([1], np.ones([3]), ValueError, "`values`"),
        ([1], np.full([1, 3], 1e300), ValueError, "`values`.*float32"),
        ([1], [["a"] * 3], TypeError, "`values`"),
    )
    def test_wrong_rows_are_refused_and_the_others_stay(self, keys, values, error, message):
        folder = self.folder()
        with writer(folder) as one:
            one.write([1], np.ones([1, 3]))
            with self.assertRaisesRegex(error, message):
                one.write(keys, values)
        self.assertEqual(read(folder), {1: [1.0] * 3})

    def test_narrow_weights_must_fit_beside_slots_that_need_not(self):
        folder = self.folder()
        self.emb(folder, dtype="float16").save_snapshot("s")
        kind = {"value_type": "float16", "storage_dim": 6}
        with reader(folder, **kind) as source, writer(folder, "t", **kind, like=source) as one:
            with self.assertRaisesRegex(ValueError, "`values`.*float16"):
                one.write([1], np.array([[1e6, 0, 0, 0, 0, 0]]))
            one.write([1], np.array([[1, 0, 1e6, 0, 0, 0]]))
        self.assertEqual(read(folder, "t", **kind), {1: [1.0, 0.0, 1e6, 0.0, 0.0, 0.0]})

    def test_what_is_closed_is_of_no_use(self):
        folder = self.folder()
        with writer(folder) as one:
            one.write([1], np.ones([1, 3]))
        with self.assertRaisesRegex(ValueError, "The writer of .* is closed"):
            one.write([1], np.ones([1, 3]))
        with reader(folder) as source:
            pass
        with self.assertRaisesRegex(ValueError, "The reader of .* is closed"):
            next(source)
        write(folder, [2], np.ones([1, 3]), "t", like=source)  # a closed reader keeps its kind
        with self.assertRaisesRegex(
            TypeError, "`like` must be what make_persistent_table_reader gives"
        ):
            writer(folder, like=folder)

    def test_a_graph_is_refused(self):
        folder = self.folder()
        for make in (reader, writer):
            with self.assertRaisesRegex(
                RuntimeError, "tables are read and written in eager execution"
            ):
                tf.function(lambda make=make: make(folder))()
        self.assertEmpty(os.listdir(folder))

    def test_another_key_type_is_named(self):
        folder = self.folder()
        table = tf_embed.Variable("int32", dim=3, name="v")
        tf_embed.Snapshots(f"{folder}/snapshots", table).save("s")
        with self.assertRaisesRegex(ValueError, "`key_type` must be int32, as keys in .*=uint32"):
            reader(folder, key_type="uint32")

    def test_rows_of_strings_are_refused_by_name(self):
        for number, types in enumerate((("string", "float32"), ("int64", "string"))):
            table = tf_embed.Variable(*types, dim=3, name="v")
            path = f"{self.folder()}/{number}"
            tf_embed.Snapshots(f"{path}/snapshots", table).save("s")
            with self.assertRaisesRegex(TypeError, "string"):
                reader(path)


if __name__ == "__main__":
    tf.test.main()

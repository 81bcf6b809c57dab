# SPDX-License-Identifier: Apache-2.0
"""Writers of several tables of rows, for layers with several tables and 64-bit ids."""

from __future__ import annotations

import gc
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import edges, layer, store, train, uniform_tables
from support.cases.persistent_tables import files_in, reader, write, writer
from support.oracles.reference import SEED
from tf_embed.one_embedding import persistent_table

ADAM = {"storage_dim": 6}


def content(emb) -> list[dict[int, list[float]]]:
    """Weights and slots by key, of each table, over all of its folders."""
    tables: dict[str, dict[int, list[float]]] = {}
    for member in emb.row_tables:
        exported = member.table.export()
        rows = np.concatenate([exported.values.numpy(), exported.slots.numpy()], axis=1)
        of_table = tables.setdefault(member.table.options.name, {})
        of_table.update(zip(exported.keys.numpy().tolist(), rows.tolist(), strict=True))
    return list(tables.values())


class PersistentTablesTest(tf.test.TestCase, parameterized.TestCase):
    def folders(self, count: int = 1) -> list[str]:
        return [tempfile.mkdtemp(dir=self.get_temp_dir()) for _ in range(count)]

    def emb(self, folders: list[str], num_tables: int = 2, key_type: str = "int64", **options):
        options = {"optimizer": "adam", "devices": None, **options}
        tables = uniform_tables(*[1.0] * num_tables)
        return layer(tables, key_type, store_options=store(folders), **options)

    @parameterized.product(key_type=["int64", "uint64"], folders=[1, 3], name=[None, "emb"])
    def test_a_layer_loads_the_rows_of_each_table(self, key_type, folders, name):
        paths, ids = self.folders(folders), edges(key_type)
        values = np.random.default_rng(SEED).normal(size=[3, len(ids), 2]).astype(np.float32)
        kind = {"key_type": key_type, "storage_dim": 2, "layer_name": name}
        with writer(paths, **kind, num_tables=3) as one:
            for begin in range(0, len(ids), 2):
                for table in (2, 0, 1):
                    some = slice(begin, begin + 2)
                    one.write(ids[some], values[table, some], table=table)
        emb = self.emb(paths, 3, key_type)
        emb.load_snapshot("s")
        self.assertAllEqual(emb(np.stack([ids] * 3, 1)), values.transpose([1, 0, 2]))
        self.assertEqual(int(emb.size()), 3 * len(ids))
        unseen = np.full([1, 3], 12345, ids.dtype)
        self.assertAllEqual(emb(unseen), self.emb(paths, 3, key_type)(unseen))  # the layer's seed
        train(emb, unseen)
        with reader(paths, **kind) as one:
            self.assertEqual((one.num_tables, one.num_rows), (3, 3 * len(ids)))
            found = {
                (one.table, key): row
                for keys, rows in one
                for key, row in zip(keys, rows, strict=True)
            }
        for table in range(3):
            for place, key in enumerate(ids):
                self.assertAllEqual(found[table, key], values[table, place])

    @parameterized.product(saved=[1, 2], loaded=[1, 3])
    def test_what_is_read_can_be_written_and_loaded(self, saved, loaded):
        paths = self.folders(3)
        emb = self.emb(paths[:saved])
        rng = np.random.default_rng(SEED)
        for _ in range(3):
            train(emb, tf.constant(rng.integers(-20, 20, [16, 2])))
        emb.save_snapshot("s")
        with (
            reader(paths, **ADAM, layer_name="emb") as source,
            writer(paths, "t", **ADAM, like=source) as target,
        ):
            self.assertEqual((source.num_tables, source.dim), (2, 2))
            for keys, values in source:
                target.write(keys, values, table=source.table)
        again = self.emb(paths[:loaded], seed=7)
        again.load_snapshot("t")
        self.assertEqual(content(again), content(emb))
        unseen = tf.constant([[100, 100]])
        self.assertAllEqual(again(unseen), emb(unseen))  # the snapshot has the seeds

    def test_a_table_without_rows_is_one(self):
        paths = self.folders()
        with writer(paths, num_tables=3, storage_dim=2) as one:
            one.write([5], np.ones([1, 2]), table=1)
        emb = self.emb(paths, 3)
        emb.load_snapshot("s")
        self.assertEqual([sorted(rows) for rows in content(emb)], [[], [5], []])

    def test_a_snapshot_of_fewer_tables_takes_the_place_of_one_of_more(self):
        (folder,) = self.folders()
        for count in (4, 2, 1):
            with writer(folder, num_tables=count, storage_dim=2) as one:
                one.write([5], np.ones([1, 2]), table=count - 1)
            self.assertLen(files_in(folder), 1 + 2 * count)
            self.assertEqual(reader(folder, storage_dim=2).num_tables, count)

    @parameterized.parameters("dropped", "left by an exception", "no file", "no manifest")
    def test_a_writer_that_is_not_closed_leaves_nothing(self, how):
        (folder,) = self.folders()
        if how == "no file":
            made = []

            class Fails(persistent_table.RowWriter):
                def __init__(self, *arguments):
                    if len(made) == 2:
                        raise tf.errors.ResourceExhaustedError(None, None, "no file is left")
                    super().__init__(*arguments)
                    made.append(self)

            with (
                mock.patch.object(persistent_table, "RowWriter", Fails),
                self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "no file is left"),
            ):
                writer(folder, num_tables=3)
            self.assertEmpty(files_in(folder))
            return
        one = writer(folder, num_tables=3)
        for table in range(3):
            one.write(np.arange(5), np.ones([5, 3]), table=table)
        self.assertLen(files_in(folder), 3)
        if how == "dropped":
            del one
            gc.collect()
        elif how == "left by an exception":
            with self.assertRaisesRegex(KeyError, "mine"), one:
                raise KeyError("mine")
        else:
            fails = mock.Mock(side_effect=tf.errors.ResourceExhaustedError(None, None, "full"))
            with (
                mock.patch.object(persistent_table, "commit", fails),
                self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "full"),
            ):
                one.close()  # by then, all row files are finished
            with self.assertRaisesRegex(ValueError, "given up"):
                one.close()
        self.assertEmpty(files_in(folder))

    @parameterized.parameters(
        ({"num_tables": 0}, ValueError, "`num_tables` must be .*=0"),
        ({"num_tables": 2.0}, TypeError, "`num_tables` must be .*=2.0"),
        ({"num_tables": True}, TypeError, "`num_tables` must be .*True"),
        ({"num_tables": 10**6}, ValueError, "`num_tables` must be .*=1000000"),
    )
    def test_a_wrong_number_of_tables_is_named(self, options, error, message):
        (folder,) = self.folders()
        with self.assertRaisesRegex(error, message):
            writer(folder, **options)
        self.assertEmpty(files_in(folder))

    @parameterized.parameters((2, ValueError), (-1, ValueError), (0.0, TypeError), ([0], TypeError))
    def test_a_table_that_is_not_there_is_named_and_the_others_stay(self, table, error):
        (folder,) = self.folders()
        with writer(folder, num_tables=2) as one:
            one.write([1], np.ones([1, 3]), 1)
            with self.assertRaisesRegex(error, "`table` must be"):
                one.write([1], np.ones([1, 3]), table)
        self.assertEqual(reader(folder).num_rows, 1)

    def test_a_writer_like_a_reader_has_its_tables(self):
        (folder,) = self.folders()
        with writer(folder, num_tables=2) as one:
            one.write([1], np.ones([1, 3]))
        source = reader(folder)
        for count in (1, 3):
            with self.assertRaisesRegex(ValueError, f"`num_tables` must be 2.*={count}"):
                writer(folder, "t", like=source, num_tables=count)
        for options in ({}, {"num_tables": 2}):
            writer(folder, "t", like=source, **options).close()
            self.assertEqual(reader(folder, "t").num_tables, 2)

    def test_a_snapshot_since_which_others_have_the_changes_is_not_replaced(self):
        paths = self.folders()
        tracked = tf_embed.TablePolicy(eviction=None, track_changes=True)
        emb = self.emb(paths, policy=tracked, devices="/CPU:0")
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("a")
        kind = {"layer_name": "emb", "num_tables": 2, **ADAM}
        early = writer(paths, "a", **kind)
        train(emb, tf.constant([[3, 2]]))
        emb.save_snapshot("b", since="a")
        message = "`snapshot_name` .* since which 'b' has the changes.*'a'"
        for make in (early.close, lambda: writer(paths, "a", **kind)):
            with self.assertRaisesRegex(ValueError, message):
                make()
        again = self.emb(paths)
        again.load_snapshot("b")
        self.assertEqual(content(again), content(emb))
        self.assertLen(files_in(paths[0]), 2 * 5)

    def test_a_layer_of_another_number_of_tables_says_how_they_are_written(self):
        paths = self.folders()
        write(paths, [1], np.ones([1, 2]))
        emb = self.emb(paths)
        with self.assertRaisesRegex(
            ValueError,
            "2 tables .*which has 1. make_persistent_table_writer writes them by num_tables=2",
        ):
            emb.load_snapshot("s")
        with writer(paths, "two", storage_dim=2, num_tables=2) as one:
            one.write([1], np.ones([1, 2]))
        with self.assertRaisesRegex(ValueError, "`snapshot_name` .* 1 tables .*which has 2$"):
            self.emb(paths, 1).load_snapshot("two")
        emb.load_snapshot("two")
        self.assertEqual(int(emb.size()), 1)


if __name__ == "__main__":
    tf.test.main()

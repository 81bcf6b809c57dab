# SPDX-License-Identifier: Apache-2.0
"""`MultiTableEmbedding` over each store: folders, budgets, prefetch, snapshots."""

from __future__ import annotations

import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from one_embedding_cases import constant_tables, layer, store, uniform_tables
from reference import SEED, sorted_rows

import tf_embed
from tf_embed import one_embedding

KINDS = ("int32", "int64")


def ssd(path, budget: int = 1, **options):
    return one_embedding.make_cached_ssd_store_options(budget, path, **options)


def host(path):
    return one_embedding.make_cached_host_mem_store_options(1, path, 100)


def train(emb, ids, factor: float = 1.0) -> float:
    optimizer = keras.optimizers.SGD()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(emb(ids, training=True)) * factor)
    variables = emb.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return float(loss)


class StoresTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.product(key_type=KINDS, mixed=[False, True])
    def test_all_stores_and_any_number_of_folders_give_the_same_rows(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0) if mixed else uniform_tables(1.0) * 2
        folders = [self.folder() for _ in range(3)]
        options = {
            "device": store(self.folder()),
            "host": host(self.folder()),
            "disk": ssd(self.folder()),
            "folders of a device": store(folders),
            "folders of a disk": ssd(folders),
        }
        rng = np.random.default_rng(SEED)
        # More rows than a MiB of them: 50,000 of 3 * 16 bytes and more.
        batches = [rng.integers(-(2**31), 2**31, [5000, 2]) for _ in range(5)]
        seen = {}
        for name, chosen in options.items():
            emb = layer(tables, key_type, dim=4, optimizer="adam", store_options=chosen)
            losses = [train(emb, tf.constant(ids, key_type)) for ids in (*batches, *batches)]
            rows = emb(tf.constant(np.concatenate(batches), key_type)).numpy()
            seen[name] = (losses, rows, int(emb.size()))
            if "disk" in name:
                stats = [one.stats() for one in emb.row_tables]
                self.assertGreater(sum(one["demoted"] for one in stats), 1000)
                self.assertGreater(sum(one["promoted"] for one in stats), 1000)
            parts = 3 if "folders" in name else 1
            self.assertLen(emb.row_tables, parts * (2 if key_type == "int64" else 1))
        for name, (losses, rows, size) in seen.items():
            with self.subTest(name):
                self.assertEqual(losses, seen["device"][0])
                self.assertAllEqual(rows, seen["device"][1])
                self.assertEqual(size, seen["device"][2])

    def test_each_folder_has_the_rows_of_a_shard(self):
        folders = [self.folder() for _ in range(2)]
        emb = layer(store_options=ssd(folders), optimizer="sgd")
        train(emb, tf.constant(np.arange(10)))
        found = [sorted(one.export()[0].numpy()) for one in emb.row_tables]
        self.assertEqual(found, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]])
        for folder in folders:
            self.assertNotEmpty(os.listdir(folder))

    def test_devices_are_shards_of_a_folder_or_one_for_each(self):
        emb = layer(devices=["/CPU:0"] * 3, optimizer="sgd")
        train(emb, tf.constant(np.arange(10)))
        (rows,) = emb.row_tables
        self.assertEqual(rows.shard_num, 3)
        folders = [self.folder() for _ in range(2)]
        self.assertLen(layer(store_options=store(folders), devices=["/CPU:0"] * 2).row_tables, 2)
        with self.assertRaisesRegex(ValueError, "`persistent_path`.*`devices`"):
            layer(store_options=store(folders), devices=["/CPU:0"] * 3)

    @parameterized.parameters(*KINDS)
    def test_budgets_are_divided_among_tables_of_wide_ids(self, key_type):
        emb = layer(constant_tables(0.0, 0.0), key_type, store_options=ssd(self.folder(), 6))
        found = [one.storage.host_bytes for one in emb.row_tables]
        wanted = [6 * 2**20] if key_type == "int32" else [3 * 2**20] * 2
        self.assertEqual(found, wanted)

    def test_capacity_of_a_disk_is_a_bound_for_a_policy_alone(self):
        for policy, size in ((None, 10), (tf_embed.TablePolicy(), 4)):
            options = ssd(self.folder(), capacity=4)
            emb = layer(store_options=options, policy=policy, optimizer="sgd")
            train(emb, tf.constant(np.arange(10)))
            self.assertEqual(int(emb.size()), size)

    @parameterized.product(key_type=KINDS, mixed=[False, True])
    def test_prefetch_brings_rows_up_and_changes_no_element(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0) if mixed else uniform_tables(1.0) * 2
        emb = layer(tables, key_type, dim=32, store_options=ssd(self.folder()), padding_idx=0)
        ids = np.arange(1, 40_001).reshape([-1, 2])
        for member in emb.row_tables:
            keys = np.concatenate([ids[:, 0], ids[:, 1] + (2**32 if key_type == "int32" else 0)])
            member.upsert(keys, np.ones([len(keys), 32], np.float32))
        before = sum(one.stats()["promoted"] for one in emb.row_tables)
        batches = tf.data.Dataset.from_tensor_slices(tf.constant(ids[:200], key_type)).batch(50)
        seen = np.concatenate([one.numpy() for one in emb.prefetch(batches)])
        self.assertAllEqual(seen, ids[:200])
        self.assertGreater(sum(one.stats()["promoted"] for one in emb.row_tables), before + 200)
        pairs = batches.map(lambda one: {"ids": one[:, :1], "tables": tf.ones_like(one[:, :1])})
        again = emb.prefetch(pairs, ids=lambda one: (one["ids"], one["tables"]))
        self.assertLen(list(again), 4)

    def test_a_memory_report_has_the_budget(self):
        emb = layer(store_options=ssd(self.folder(), 2), optimizer="adam")
        (report,) = emb.memory_report()
        self.assertEqual(report.tiers[0].bound_bytes, 2 * 2**20)
        self.assertEqual(report.slot_bytes, 2 * report.weight_bytes)


class SnapshotsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def emb(self, folder: str, on_disk: bool = False, **options):
        chosen = ssd(folder) if on_disk else store(folder)
        options = {"optimizer": "adam", "devices": "/CPU:0", **options}
        return layer(uniform_tables(1.0, 2.0), "int32", store_options=chosen, **options)

    @parameterized.product(on_disk=[False, True], shards=[1, 3])
    def test_a_snapshot_brings_rows_and_slots_back(self, on_disk, shards):
        folder = self.folder()
        emb = self.emb(folder, on_disk)
        ids = tf.constant([[1, 2], [3, 1]])
        train(emb, ids)
        rows = emb(ids).numpy()
        emb.save_snapshot("first")
        train(emb, ids + 1)
        emb.save_snapshot("second")
        del emb  # and with it its files on disk
        again = self.emb(folder, on_disk, devices=["/CPU:0"] * shards)
        again.load_snapshot("first")
        self.assertEqual(int(again.size()), 4)
        self.assertAllEqual(again(ids), rows)
        (member,) = again.row_tables
        slots = member.get_slot_variables(again.optimizers[0])
        self.assertLen(slots, 2)
        for slot in slots:
            self.assertTrue(np.any(slot.lookup(tf.constant([1], tf.int64)).numpy()))

    def test_a_snapshot_has_rows_of_several_columns_that_went_to_the_disk(self):
        folder, ids = self.folder(), np.arange(200_000).reshape([-1, 2])
        makers = one_embedding.make_uniform_initializer, one_embedding.make_normal_initializer
        columns = [one_embedding.make_column_options(make()) for make in makers]
        tables = [one_embedding.make_table(columns)] * 2
        emb = layer(tables, "int32", [3, 1], store_options=ssd(folder), optimizer="sgd")
        train(emb, tf.constant(ids, tf.int32))
        (member,) = emb.row_tables
        self.assertGreater(member.stats()["demoted"], 1000)
        emb.save_snapshot("s")
        kind = (folder, "s", "int64", "float32", 4)
        blocks = list(one_embedding.make_persistent_table_reader(*kind))
        read = sorted_rows(*(tf.concat(parts, 0) for parts in zip(*blocks, strict=True)))
        wanted = sorted_rows(*member.export())
        self.assertLen(wanted[0], 200_000)
        self.assertAllEqual(read[0], wanted[0])
        self.assertAllEqual(read[1], wanted[1])

    def test_a_snapshot_takes_the_place_of_an_earlier_one(self):
        folder = self.folder()
        emb = self.emb(folder)
        for ids in ([[1, 2]], [[3, 4]]):
            train(emb, tf.constant(ids))
            emb.save_snapshot("rows")
        again = self.emb(folder)
        again.load_snapshot("rows")
        self.assertEqual(int(again.size()), 4)

    def test_an_empty_layer_has_snapshots_too(self):
        folder = self.folder()
        self.emb(folder).save_snapshot("none")
        again = self.emb(folder)
        again.load_snapshot("none")
        self.assertEqual(int(again.size()), 0)

    def test_what_is_not_there_is_an_error_and_not_an_empty_table(self):
        emb = self.emb(self.folder())
        with self.assertRaisesRegex(ValueError, "`snapshot_name`.*'emb'.*'never'"):
            emb.load_snapshot("never")
        os.makedirs(pathlib.Path(emb._paths[0], "snapshots", "emb", "hollow"))
        with self.assertRaises(tf.errors.OpError):
            emb.load_snapshot("hollow")

    def test_each_damaged_file_is_an_error_and_leaves_the_layer_empty(self):
        folder = self.folder()
        emb = self.emb(folder)
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("rows")
        files = [one for one in pathlib.Path(folder).rglob("*") if one.is_file()]
        self.assertNotEmpty(files)
        for file in files:
            whole = file.read_bytes()
            for bad in (whole[: len(whole) // 2], whole[:9] + b"?" + whole[10:]):
                file.write_bytes(bad)
                again = self.emb(folder)
                with self.assertRaises(tf.errors.OpError):
                    again.load_snapshot("rows")
                self.assertEqual(int(again.size()), 0)
            file.write_bytes(whole)

    def test_a_layer_with_rows_loads_none(self):
        emb = self.emb(self.folder())
        train(emb, tf.constant([[1, 2]]))
        emb.save_snapshot("rows")
        with self.assertRaisesRegex(RuntimeError, "'emb' must have no rows.*2 rows"):
            emb.load_snapshot("rows")

    def test_layers_and_snapshots_are_apart_in_one_folder(self):
        folder = self.folder()
        for name in ("a", "a_", "a."):
            emb = self.emb(folder, name=name)
            train(emb, tf.constant([[len(name), 2]]))
            emb.save_snapshot("s")
            emb.save_snapshot("s.")
        for name in ("a", "a_", "a."):
            emb = self.emb(folder, name=name)
            emb.load_snapshot("s")
            (member,) = emb.row_tables
            self.assertIn(len(name), member.export()[0].numpy())

    @parameterized.parameters("a/b", "..", ".")
    def test_a_path_is_no_name(self, name):
        with self.assertRaisesRegex(ValueError, "snapshot_name"):
            self.emb(self.folder()).save_snapshot(name)

    def test_several_tables_of_rows_have_none(self):
        emb = layer(constant_tables(1.0, 2.0), "int64", store_options=store(self.folder()))
        for method in (emb.save_snapshot, emb.load_snapshot):
            with self.assertRaisesRegex(ValueError, "model.save.*2 tables"):
                method("rows")


if __name__ == "__main__":
    tf.test.main()

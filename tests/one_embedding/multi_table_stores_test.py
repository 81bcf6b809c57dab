# SPDX-License-Identifier: Apache-2.0
"""`MultiTableEmbedding` over each store: folders, budgets, prefetch, snapshots."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import constant_tables, layer, store, train, uniform_tables
from support.oracles.reference import SEED
from tf_embed import one_embedding

KINDS = ("int32", "int64")


def ssd(path, budget: int = 1, **options):
    return one_embedding.make_cached_ssd_store_options(budget, path, **options)


def host(path):
    return one_embedding.make_cached_host_mem_store_options(1, path, 100)


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
        # More than a MiB of rows: 50,000 rows, each of 3 * 16 bytes or more.
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
        self.assertLen(rows.devices, 3)
        folders = [self.folder() for _ in range(2)]
        self.assertLen(layer(store_options=store(folders), devices=["/CPU:0"] * 2).row_tables, 2)
        with self.assertRaisesRegex(ValueError, "a list with one for each of `devices`"):
            layer(store_options=store(folders), devices=["/CPU:0"] * 3)

    @parameterized.parameters(*KINDS)
    def test_budgets_are_divided_among_tables_of_wide_ids(self, key_type):
        emb = layer(constant_tables(0.0, 0.0), key_type, store_options=ssd(self.folder(), 6))
        found = [one.storage.gpu_bytes for one in emb.row_tables]
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


if __name__ == "__main__":
    tf.test.main()

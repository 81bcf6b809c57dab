# SPDX-License-Identifier: Apache-2.0
"""Defects of OneFlow's OneEmbedding, and of similar systems, that the layers must not have.

Defects with a test elsewhere are not repeated here: ids that tables share,
writes beyond the capacity, the linear term of Ftrl, snapshots that are cut, damaged or missing,
files that grow without bound.
"""

from __future__ import annotations

import math
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import constant_tables, layer, store, train, uniform_tables
from support.oracles.reference import SEED
from tf_embed import one_embedding

INITIALIZERS = {
    "uniform": one_embedding.make_uniform_initializer(-1.0, 1.0),
    "normal": one_embedding.make_normal_initializer(0.0, 1.0),
    "trunc_normal": one_embedding.make_trunc_normal_initializer(0.0, 1.0),
}


def content(emb, names: tuple[str, ...] = ()) -> dict[tuple[int, int], tuple]:
    """The row, its slots and some of its statistics, by table and key, over all folders."""
    found: dict[tuple[int, int], tuple] = {}
    tables: dict[str, int] = {}
    for member in emb.row_tables:
        table = tables.setdefault(member.table.options.name, len(tables))
        exported = member.table.export()
        keys = exported.keys.numpy().tolist()
        columns = [exported.values.numpy().tolist(), exported.slots.numpy().tolist()]
        if names:
            statistics = member.row_statistics(exported.keys)
            columns += [statistics[name].numpy().tolist() for name in names]
        parts = zip(*columns, strict=True)
        found.update(zip(((table, key) for key in keys), parts, strict=True))
    return found


class UpstreamDefectsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.product(key_type=["int32", "int64"], mixed=[False, True])
    def test_evaluation_over_a_cache_and_a_disk_stores_nothing(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0) if mixed else uniform_tables(1.0) * 2
        folder = self.folder()
        options = one_embedding.make_cached_ssd_store_options(1, folder)
        emb = layer(tables, key_type, 16, store_options=options, optimizer="adam")
        ids = np.arange(20_000).reshape([-1, 2])
        train(emb, tf.constant(ids, key_type))
        rows = emb(tf.constant(ids, key_type)).numpy()
        self.assertGreater(sum(one.stats()["demoted"] for one in emb.row_tables), 1000)
        before = content(emb)
        size = sum(one.stat().st_size for one in pathlib.Path(folder).rglob("*") if one.is_file())
        for begin in range(10_000, 40_000, 10_000):  # half of the first ids exist
            unseen = tf.constant(np.arange(begin, begin + 20_000).reshape([-1, 2]), key_type)
            seen = emb(unseen)
            self.assertAllEqual(seen, emb(unseen))
            self.assertEqual(int(emb.size()), 20_000)
        self.assertEqual(content(emb), before)
        self.assertAllEqual(emb(tf.constant(ids, key_type)), rows)
        files = [one for one in pathlib.Path(folder).rglob("*") if one.is_file()]
        self.assertLess(sum(one.stat().st_size for one in files), 1.5 * size)

    @parameterized.product(
        kind=list(INITIALIZERS), mixed=[False, True], key_type=["int32", "int64"]
    )
    def test_each_weight_is_drawn_by_itself(self, kind, mixed, key_type):
        tables = [one_embedding.make_table(INITIALIZERS[kind])] * 2
        if mixed:
            tables += constant_tables(0.0)
        emb = layer(tables, key_type, 4)
        count = 20_000
        samples = [
            emb(tf.constant(np.arange(count), key_type), np.full(count, table)).numpy()
            for table in (0, 1)
        ]
        # The weights of each id, of the next id, and of the id in the other table.
        lanes = np.concatenate([samples[0][:-1].T, samples[0][1:].T, samples[1][:-1].T])
        correlations = np.corrcoef(lanes)
        np.fill_diagonal(correlations, 0.0)
        self.assertLess(np.abs(correlations).max(), 5 / math.sqrt(count))
        squares = np.corrcoef(lanes**2)
        np.fill_diagonal(squares, 0.0)
        self.assertLess(np.abs(squares).max(), 5 / math.sqrt(count))

    @parameterized.product(key_type=["int32", "int64"], mixed=[False, True])
    def test_an_evicted_id_that_comes_back_has_fresh_slots(self, key_type, mixed):
        tables = constant_tables(1.0, 2.0) if mixed else constant_tables(1.0, 1.0)
        options = {"optimizer": keras.optimizers.Adam(0.1), "policy": tf_embed.TablePolicy()}
        emb = layer(tables, key_type, store_options=store(capacity=4), **options)
        first = tf.constant([[7, 7]], key_type)
        train(emb, first)
        fresh = {key: row[1] for key, row in content(emb).items()}
        for one in ([[7, 7]], [[7, 7]], [[1, 1]], [[2, 2]], [[3, 3]]):
            train(emb, tf.constant(one, key_type))
        self.assertNoCommonElements(fresh, content(emb))
        train(emb, first)
        self.assertEqual(int(emb.size()), 4)
        again = {key: row[1] for key, row in content(emb).items() if key in fresh}
        self.assertEqual(again, fresh)

    @parameterized.product(key_type=["int32", "int64"], folders=[(1, 3), (3, 2)])
    def test_the_use_of_rows_is_in_a_snapshot_whatever_the_folders(self, key_type, folders):
        paths = [self.folder() for _ in range(3)]
        names = ("last_step", "count", "last_epoch")
        policy = tf_embed.TablePolicy(eviction="epoch_lfu", steps_per_epoch=3)

        def made(count: int):
            options = {"policy": policy, "optimizer": "adam", "devices": "/CPU:0"}
            return layer(
                uniform_tables(1.0, 1.0), key_type, store_options=store(paths[:count]), **options
            )

        emb, rng = made(folders[0]), np.random.default_rng(SEED)
        for _ in range(7):
            train(emb, tf.constant(rng.integers(0, 40, [10, 2]), key_type))
        emb.save_snapshot("s")
        again = made(folders[1])
        again.load_snapshot("s")
        self.assertEqual(content(again, names), content(emb, names))
        self.assertGreater(len({row[3] for row in content(emb, names).values()}), 2)

    @parameterized.product(key_type=["int32", "int64"], shards=[1, 3])
    def test_steps_with_many_equal_ids_have_the_same_bits_each_time(self, key_type, shards):
        seen = []
        for _ in range(3):
            options = {"optimizer": "adam", "devices": ["/CPU:0"] * shards}
            emb = layer(uniform_tables(1.0, 1.0), key_type, 8, **options)
            rng = np.random.default_rng(SEED)
            for _ in range(5):
                train(emb, tf.constant(rng.zipf(1.5, [4000, 2]) % 50, key_type))
            seen.append(content(emb))
        self.assertLessEqual(len(seen[0]), 100)
        self.assertEqual(seen[0], seen[1])
        self.assertEqual(seen[0], seen[2])

    def test_layers_whose_names_differ_by_marks_alone_are_apart_on_a_disk(self):
        folder = self.folder()
        options = one_embedding.make_cached_ssd_store_options(1, folder)
        embs = [
            layer(uniform_tables(1.0), name=name, store_options=options, optimizer="sgd")
            for name in ("a b", "a_b", "a.b", "a-b", "a:b")
        ]
        for number, emb in enumerate(embs):
            train(emb, tf.constant([number]))
            emb.save_snapshot("s")
        for number, emb in enumerate(embs):
            self.assertEqual([key for _, key in content(emb)], [number])
            again = layer(uniform_tables(1.0), name=emb.name, store_options=store(folder))
            again.load_snapshot("s")
            self.assertEqual([key for _, key in content(again)], [number])

    def test_two_layers_of_one_name_share_no_files(self):
        options = one_embedding.make_cached_ssd_store_options(1, self.folder())
        one, two = (
            layer(uniform_tables(1.0), "int64", 16, store_options=options, optimizer="sgd")
            for _ in range(2)
        )
        train(one, tf.constant(np.arange(30_000)))
        rows = content(one)
        train(two, tf.constant(np.arange(10_000, 40_000)))
        for emb in (one, two):
            self.assertGreater(emb.row_tables[0].stats()["demoted"], 1000)
        self.assertEqual(content(one), rows)
        self.assertEqual(int(two.size()), 30_000)


if __name__ == "__main__":
    tf.test.main()

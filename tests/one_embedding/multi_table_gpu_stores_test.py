# SPDX-License-Identifier: Apache-2.0
"""`MultiTableEmbedding` over stores with a cache in a GPU's memory behaves as in host memory.

`make test-gpu` runs this; see tests/python/table/gpu_tables_test.py.
"""

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.cases.gpus import CPU, GPU, NEEDS_GPU
from support.cases.one_embedding_cases import layer, store, train, uniform_tables
from support.oracles.reference import SEED
from tf_embed import one_embedding

pytestmark = NEEDS_GPU

STORES = {
    "cached_host_mem": {"cache_budget_mb": 1},
    "cached_ssd": {"cache_budget_mb": 1},
    "cached_ssd over host": {"cache_budget_mb": 1, "host_cache_budget_mb": 1},
}


class GpuStoresTest(tf.test.TestCase, parameterized.TestCase):
    def layer(self, name: str, folders: int = 1, **options):
        make = getattr(one_embedding, f"make_{name.split()[0]}_store_options")
        paths = [tempfile.mkdtemp(dir=self.get_temp_dir()) for _ in range(folders)]
        path = paths[0] if folders == 1 else paths
        chosen = make(persistent_path=path, capacity=100, **STORES[name])
        return layer(store_options=chosen, **options)

    @parameterized.product(name=tuple(STORES), folders=[1, 2], key_type=["int32", "int64"])
    def test_rows_move_through_the_cache_and_train_as_in_host_memory(self, name, folders, key_type):
        options = {"tables": uniform_tables(1.0) * 2, "key_type": key_type}
        options |= {"dim": 4, "optimizer": "adam"}
        one = self.layer(name, folders, **options)
        other = layer(store_options=store(), devices=CPU, **options)
        rng = np.random.default_rng(SEED)
        # A MiB has no room for all rows, each of 3 * 16 bytes or more.
        batches = [rng.integers(-(2**31), 2**31, [5000, 2]) for _ in range(5)]
        for ids in (*batches, *batches):
            ids = tf.constant(ids, key_type)
            self.assertAllClose(train(one, ids), train(other, ids), rtol=1e-5)
        ids = tf.constant(np.concatenate(batches), key_type)
        self.assertAllClose(one(ids), other(ids), rtol=1e-5, atol=1e-6)
        self.assertEqual(int(one.size()), int(other.size()))
        stats = [variable.stats() for variable in one.row_tables]
        for verb in ("promoted", "demoted"):
            self.assertGreater(sum(each[verb] for each in stats), 1000)
        self.assertTrue(all(GPU in variable.devices for variable in one.row_tables))

    def test_prefetch_for_a_dataset_brings_rows_up(self):
        emb = self.layer("cached_ssd", dim=64)
        (rows,) = emb.row_tables
        rows.upsert(np.arange(20_000), np.ones([20_000, 64], np.float32))
        before = rows.stats()["promoted"]
        ids = np.arange(200).reshape([100, 2])
        seen = list(emb.prefetch(tf.data.Dataset.from_tensor_slices(ids).batch(50)))
        self.assertAllEqual(np.concatenate(seen), ids)
        self.assertEqual(rows.stats()["promoted"] - before, 200)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Tables with a cache in a GPU's memory, over host memory, files or both, equal tables in memory.

`make test-gpu` runs this; see gpu_tables_test.py.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.gpus import CPU, DIM, GPU, NEEDS_GPU
from tf_embed.layers import DynamicEmbedding

pytestmark = NEEDS_GPU

ROW_BYTES = 4 * 3 * DIM + 16  # with the slots of Adam and a mark
TIERS = ("disk", "host", "host and disk")  # below the cache


class GpuTiersTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def storage(self, tiers: str = "disk", rows: int = 100) -> tf_embed.Storage:
        """A cache of `rows` rows over the named tiers, small enough that rows use all tiers."""
        size = rows * ROW_BYTES
        if tiers == "host":
            return tf_embed.Storage(gpu_bytes=size, gpu_cache=True)
        host_bytes = 2 * size if tiers == "host and disk" else None
        return tf_embed.Storage(gpu_bytes=size, host_bytes=host_bytes, path=self.folder())

    def pair(self, tiers: str = "disk", **options) -> tuple[tf_embed.Variable, tf_embed.Variable]:
        """A variable over a GPU's memory and other tiers, and a variable in host memory."""
        options = {
            "dim": DIM,
            "name": "mine",
            "initializer": keras.initializers.RandomNormal(seed=1),
        } | options
        return (
            tf_embed.Variable(devices=GPU, storage=self.storage(tiers), **options),
            tf_embed.Variable(devices=CPU, **options),
        )

    def expect_equal(self, one: tf_embed.Variable, other: tf_embed.Variable) -> None:
        contents = []
        for variable in (one, other):
            exported = variable.table.export()
            order = np.argsort(exported.keys.numpy())
            contents.append([part.numpy()[order] for part in exported[:3]])
        for first, second in zip(*contents, strict=True):
            self.assertAllEqual(first, second)

    def expect_all_tiers_used(self, variable: tf_embed.Variable, tiers: str) -> None:
        stats = variable.stats()
        self.assertGreater(stats["cache_rows"], 0)
        self.assertGreater(stats["promoted"], 0)
        self.assertGreater(stats["demoted"], 0)
        for tier in ("host", "disk"):
            self.assertEqual(stats[f"{tier}_rows"] > 0, tier in tiers, tier)

    @parameterized.product(
        case=(("sgd", False, 1), ("adagrad", True, 1), ("adam", False, 2), ("adam", True, 1)),
        tiers=TIERS,
    )
    def test_training_gives_the_same_rows(self, case, tiers):
        optimizer, in_graph, shards = case
        draw = np.random.default_rng(3)
        batches = [draw.integers(0, 1000, 60) for _ in range(60)]
        options = {"dim": DIM, "name": "mine"}
        variables = (
            tf_embed.Variable(devices=[GPU] * shards, storage=self.storage(tiers), **options),
            tf_embed.Variable(devices=[CPU] * shards, **options),
        )
        for variable in variables:
            inner = keras.optimizers.get(
                {"class_name": optimizer, "config": {"learning_rate": 0.05}}
            )
            trainer = tf_embed.DynamicEmbeddingOptimizer(inner)

            def step(keys, variable=variable, trainer=trainer):
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(variable, keys)
                    loss = tf.reduce_sum((rows - 1.0) ** 2)
                trainer.apply(tape.gradient(loss, [variable.anchor]), [variable.anchor])

            run = tf.function(step, reduce_retracing=True) if in_graph else step
            for batch in batches:
                run(tf.constant(batch, tf.int64))
        self.expect_equal(*variables)
        self.expect_all_tiers_used(variables[0], tiers)
        self.assertIn("GPU:0", variables[0].lookup([1]).device)

    @parameterized.parameters(*TIERS)
    def test_verbs_do_what_they_do_in_memory(self, tiers):
        draw = np.random.default_rng(4)
        outputs = []
        for variable in self.pair(tiers):
            draw = np.random.default_rng(4)
            given = []
            for _ in range(40):
                keys = draw.integers(0, 400, 50)
                rows = draw.normal(size=[50, DIM]).astype(np.float32)
                found, exists = variable.lookup(keys, return_exists=True)
                variable.upsert(keys[:20], rows[:20])
                variable.accum(keys[20:], found[20:], rows[20:], exists[20:])
                variable.remove(keys[:3])
                given += [found, exists, variable.lookup(keys), variable.size()]
            outputs.append(given)
        for one, other in zip(*outputs, strict=True):
            self.assertAllEqual(one, other)

    @parameterized.parameters(*TIERS)
    def test_pooled_lookups(self, tiers):
        draw = np.random.default_rng(5)
        keys = draw.integers(0, 500, [30, 7])
        weights = draw.normal(size=[30, 7]).astype(np.float32)
        pooled = []
        for variable in self.pair(tiers):
            variable.upsert(np.arange(400), np.random.default_rng(6).normal(size=[400, DIM]))
            ragged = tf.RaggedTensor.from_tensor(tf.constant(keys, tf.int64))
            pooled.append(
                [
                    tf_embed.embedding_lookup_sparse(variable, ragged.to_sparse(), None),
                    tf_embed.safe_embedding_lookup_sparse(
                        variable,
                        ragged.to_sparse(),
                        tf.RaggedTensor.from_tensor(tf.constant(weights)).to_sparse(),
                        combiner="sum",
                    ),
                ]
            )
        for one, other in zip(*pooled, strict=True):
            self.assertAllEqual(one, other)

    @parameterized.product(eviction=("lru", "lfu"), tiers=TIERS)
    def test_bounds_are_those_of_all_tiers(self, eviction, tiers):
        policy = tf_embed.TablePolicy(eviction=eviction, max_rows=300)
        variables = self.pair(tiers, policy=policy)
        for variable in variables:
            draw = np.random.default_rng(7)
            for _ in range(30):
                keys = draw.zipf(1.3, 80) % 2000
                variable.upsert(keys, np.repeat(keys[:, None], DIM, 1).astype(np.float32))
        self.expect_equal(*variables)
        self.assertEqual(int(variables[0].size()), 300)

    @parameterized.parameters(*TIERS)
    def test_a_model_trains_and_is_saved(self, tiers):
        losses = []
        ids = np.random.default_rng(8).integers(0, 2000, [512, 3])
        targets = (ids.sum(1, keepdims=True) % 7).astype(np.float32)
        for place in ("gpu", "cpu"):
            keras.utils.set_random_seed(1)
            storage = self.storage(tiers) if place == "gpu" else None
            layer = DynamicEmbedding(
                DIM,
                name="items",
                devices=GPU if place == "gpu" else CPU,
                storage=storage,
                optimizer=keras.optimizers.Adam(0.05),
            )
            model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
            model.add(keras.layers.Flatten())
            model.add(keras.layers.Dense(1))
            model.compile("sgd", "mse")
            history = model.fit(ids, targets, batch_size=64, epochs=2, verbose=0, shuffle=False)
            losses.append(history.history["loss"])
            path = os.path.join(self.folder(), "m.weights.h5")
            model.save_weights(path)
            rows = layer.variable.lookup(ids)
            layer.variable.clear()
            model.load_weights(path)
            self.assertAllEqual(layer.variable.lookup(ids), rows)
            prefix = tf.train.Checkpoint(model=model).write(os.path.join(self.folder(), "c"))
            layer.variable.clear()
            tf.train.Checkpoint(model=model).read(prefix)
            self.assertAllEqual(layer.variable.lookup(ids), rows)
        self.assertAllClose(*losses, rtol=1e-6)

    @parameterized.parameters(*TIERS)
    def test_rows_go_to_files_and_come_back_in_another_table(self, tiers):
        one, other = self.pair(tiers)
        one.upsert(np.arange(900), np.random.default_rng(9).normal(size=[900, DIM]))
        folder = self.folder()
        one.save_rows(folder)
        other.load_rows(folder)
        self.expect_equal(one, other)
        tf_embed.Snapshots(folder, one).save("s")
        other.clear()
        tf_embed.Snapshots(folder, other).load("s")
        self.expect_equal(one, other)
        self.assertNotEmpty(list(pathlib.Path(folder, "s").iterdir()))

    @parameterized.parameters(*TIERS)
    def test_prefetch_brings_rows_up(self, tiers):
        one, _ = self.pair(tiers)
        one.upsert(np.arange(900), np.zeros([900, DIM], np.float32))
        before = one.stats()["promoted"]
        one.prefetch(np.arange(20))
        after = one.stats()["promoted"]
        self.assertGreater(after, before)

        def brought_up(keys: tf.Tensor) -> tf.Tensor:
            one.prefetch(keys)
            return keys

        self.assertLen(list(tf.data.Dataset.from_tensors(np.arange(20, 40)).map(brought_up)), 1)
        self.assertGreater(one.stats()["promoted"], after)

    @parameterized.parameters(
        ({"host_bytes": 1000}, "`path` and no `gpu_bytes`"),
        ({"gpu_bytes": 3}, "`gpu_bytes` .*=3"),
    )
    def test_bounds_that_do_not_fit_are_named(self, bounds, message):
        storage = tf_embed.Storage(path=self.folder(), **bounds)
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), message):
            tf_embed.Variable(dim=DIM, devices=GPU, storage=storage).size()

    def test_a_cache_for_a_gpu_is_one_in_host_memory_on_a_cpu(self):
        storage = tf_embed.Storage(path=self.folder(), gpu_bytes=16 * 4 * DIM)
        v = tf_embed.Variable(dim=DIM, devices=CPU, storage=storage)
        v.upsert(np.arange(100), np.zeros([100, DIM], np.float32))
        host, disk = v.memory_report().tiers
        self.assertEqual((host.name, host.bound_bytes), ("host", storage.gpu_bytes))
        self.assertGreaterEqual(disk.rows, 80)

    def test_gpu_memory_is_no_cache_over_a_bounded_host(self):
        with self.assertRaisesRegex(ValueError, "`host_bytes` must be None with `gpu_cache`.*=9"):
            tf_embed.Storage(gpu_bytes=9000, gpu_cache=True, host_bytes=9)
        with self.assertRaisesRegex(ValueError, "`gpu_cache` must be False without `gpu_bytes`"):
            tf_embed.Storage(gpu_cache=True)
        with self.assertRaisesRegex(TypeError, "gpu_cache"):
            tf_embed.Storage(gpu_bytes=9000, gpu_cache=1)

    def test_a_cache_of_a_gpu_means_nothing_on_a_cpu(self):
        storage = tf_embed.Storage(gpu_bytes=1, gpu_cache=True)
        variable = tf_embed.Variable(dim=DIM, devices=CPU, storage=storage)
        variable.upsert([1], np.ones([1, DIM], np.float32))
        self.assertEqual(variable.stats()["cache_rows"], 0)
        self.assertEqual([tier.name for tier in variable.memory_report().tiers], ["host"])

    @parameterized.parameters(*TIERS)
    def test_the_report_has_all_tiers(self, tiers):
        variable, _ = self.pair(tiers)
        variable.upsert(np.arange(2000), np.zeros([2000, DIM], np.float32))
        report = variable.memory_report()
        self.assertEqual([tier.name for tier in report.tiers], ["gpu", *tiers.split(" and ")])
        self.assertEqual(report.rows, 2000)
        self.assertGreaterEqual(sum(tier.rows for tier in report.tiers), 2000)
        for tier in report.tiers:
            self.assertGreater(tier.rows, 0)
            if tier.capacity_rows is not None:
                self.assertLessEqual(tier.rows, tier.capacity_rows)
        self.assertEqual(report.tiers[0].capacity_rows, 100 * ROW_BYTES // report.row_bytes)


if __name__ == "__main__":
    tf.test.main()

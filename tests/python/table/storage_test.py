# SPDX-License-Identifier: Apache-2.0
"""`Storage`: its arguments; and on a GPU, the memory of the rows and of the rest.

`make test-gpu` runs the tests of tables on a GPU; see gpu_tables_test.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed import tbe, tfra
from tf_embed.layers import DynamicEmbedding
from tf_embed.ops import process_ops

GPU, CPU = "/GPU:0", "/CPU:0"
DIM = 8
ROW_BYTES = 4 * DIM
ON_HOST = tf_embed.Storage(gpu_bytes=0)

needs_gpu = pytest.mark.skipif(
    not (tf.config.list_physical_devices("GPU") and process_ops.has_gpu_tables()),
    reason="TensorFlow has no GPU, or this build no support for one",
)


def variable(storage: Any = None, **options: Any) -> tf_embed.Variable:
    """A variable with random rows."""
    options = {
        "dim": DIM,
        "name": "mine",
        "initializer": keras.initializers.RandomNormal(seed=1),
    } | options
    return tf_embed.Variable(storage=storage, **options)


def fill(v: tf_embed.Variable, count: int, first: int = 0) -> None:
    keys = np.arange(first, first + count)
    v.upsert(keys, np.tile(keys[:, None], [1, DIM]).astype("f"))


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"gpu_total_bytes": 1.5}, TypeError, "`gpu_total_bytes` must be an int. Received: gpu_"),
        ({"gpu_total_bytes": 0}, ValueError, "`gpu_total_bytes` must be at least 1. Received"),
        ({"gpu_bytes": -1}, ValueError, "`gpu_bytes` must be at least 0. Received: gpu_bytes=-1"),
        ({"gpu_bytes": True}, TypeError, "`gpu_bytes` must be an int. Received: gpu_bytes=True"),
        ({"gpu_bytes": 1, "host_bytes": -5}, ValueError, "`host_bytes` must be at least 0. .*=-5"),
        (
            {"gpu_bytes": 0, "host_bytes": 0},
            ValueError,
            "`host_bytes` must be above 0, or None, .* Received: host_bytes=0",
        ),
        ({"host_bytes": 10}, ValueError, "`host_bytes` must be used with a `path`, .*=10"),
        ({"host_bytes": 1}, ValueError, "`host_bytes` must be used with a `path`, .*=1"),
        ({"gpu_cache": True}, ValueError, "`gpu_cache` must be False without `gpu_bytes`"),
        (
            {"path": "/tmp", "gpu_bytes": 9, "gpu_total_bytes": 8},
            ValueError,
            "`gpu_total_bytes` must be None with a `path` or `gpu_cache`: .*=8",
        ),
        (
            {"gpu_cache": True, "gpu_bytes": 9, "host_bytes": 9},
            ValueError,
            "`host_bytes` must be None with `gpu_cache` and without a `path`.*=9",
        ),
        (
            {"path": "x", "host_bytes": 0},
            ValueError,
            "at least 1 with a `path`: the bytes of rows in host .*=0",
        ),
        (
            {"path": "", "host_bytes": 9},
            ValueError,
            "must be a path in UTF-8, neither empty nor with zeros. .*''",
        ),
        ({"path": 3, "host_bytes": 9}, TypeError, "`path` must be a str or a path. .* path=3"),
        (
            {"path": "s3://b/x", "host_bytes": 9},
            ValueError,
            "`path` must be a folder of this machine, not a URL.*=.s3://b",
        ),
        ({"disk_bytes": 9}, ValueError, "`disk_bytes` must be None without a `path`. .*=9"),
        ({"path": "x", "host_bytes": 9, "disk_bytes": 0}, ValueError, "`disk_bytes` must be at le"),
        ({"keep_leftovers": True}, ValueError, "`keep_leftovers` must be False without a `path`"),
        ({"keep_leftovers": 1}, TypeError, "`keep_leftovers` must be a bool. Received: .*=1"),
    )
    def test_what_makes_no_sense_is_refused(self, given, error, message):
        with self.assertRaisesRegex(error, message):
            tf_embed.Storage(**given)

    def test_arguments_are_by_keyword_and_fixed(self):
        with self.assertRaises(TypeError):
            tf_embed.Storage(10)
        storage = tf_embed.Storage(gpu_bytes=10)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            storage.gpu_bytes = 11

    @parameterized.parameters(
        ({}, (None, None, 0, None)),
        ({"gpu_bytes": 7}, (None, 7, -1, None)),
        ({"gpu_bytes": 7, "host_bytes": 0}, (None, 7, 0, None)),
        ({"gpu_total_bytes": 8, "host_bytes": 9}, (8, None, 9, None)),
        ({"path": "x", "host_bytes": 9, "disk_bytes": 10}, (None, None, 9, 10)),
    )
    def test_the_op_takes_bounds_as_numbers(self, given, bounds):
        settings = tf_embed.Storage(**given).settings()
        names = ("gpu_total_bytes", "gpu_bytes", "host_bytes", "disk_bytes")
        self.assertEqual(tuple(settings[name] for name in names), bounds)
        self.assertEqual(settings["path"], given.get("path"))
        self.assertIsNone(settings["keep_leftovers"])

    @parameterized.parameters(
        ({}, False),
        ({"gpu_bytes": 7}, False),
        ({"gpu_bytes": 7, "host_bytes": 9}, True),
        ({"gpu_total_bytes": 8}, True),
        ({"gpu_total_bytes": 8, "host_bytes": 9}, True),
        ({"gpu_bytes": 7, "gpu_cache": True}, False),
        ({"gpu_bytes": 7, "host_bytes": 9, "path": "x"}, False),
    )
    def test_a_table_may_lack_room_if_all_its_memory_has_a_bound(self, given, is_bounded):
        self.assertEqual(tf_embed.Storage(**given).is_bounded, is_bounded)

    def test_a_path_may_have_any_characters(self):
        path = pathlib.Path(self.get_temp_dir()) / "a=b\nc\\d 'é"
        storage = tf_embed.Storage(path=path, host_bytes=2**20)
        variable = tf_embed.Variable(name="rows", storage=storage)
        self.assertEqual([folder.name for folder in path.iterdir()], ["rows-0"])
        del variable

    def test_a_config_is_json(self):
        path = pathlib.Path("rows") / "of_tables"
        storage = tf_embed.Storage(
            path=path, host_bytes=np.int64(2**20), disk_bytes=2**40, keep_leftovers=True
        )
        self.assertEqual(storage.path, os.fspath(path))
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(storage)))
        self.assertEqual(saved["registered_name"], "tf_embed>Storage")
        self.assertEqual(keras.saving.deserialize_keras_object(saved), storage)

    def test_what_is_no_storage_is_refused(self):
        for make in (tf_embed.Variable, lambda **given: DynamicEmbedding(2, **given)):
            with self.assertRaisesRegex(TypeError, "`storage` must be a tf_embed.Storage. Rec"):
                make(storage=10**9)

    def test_a_cache_without_a_size_is_refused(self):
        storage = tf_embed.Storage(path="x")
        for make in (tf_embed.Variable, lambda **given: DynamicEmbedding(2, **given)):
            with self.assertRaisesRegex(
                ValueError, "`host_bytes` or `gpu_bytes` of `storage` must"
            ):
                make(storage=storage)
        with self.assertRaisesRegex(ValueError, "`gpu_bytes` of the `storage` of 'mine' must be"):
            tbe.TableBatchedEmbeddingBags([(9, 2)], storage=storage, table_names=["mine"])

    def test_a_table_on_the_cpu_makes_nothing_of_bounds_of_a_gpu(self):
        v = variable(tf_embed.Storage(gpu_total_bytes=1), devices=CPU)
        fill(v, 1000)
        stats = v.stats()
        self.assertEqual((stats["rows"], stats["refused"], stats["pinned_bytes"]), (1000, 0, 0))
        v = variable(
            tf_embed.Storage(gpu_total_bytes=1),
            devices=CPU,
            policy=tf_embed.TablePolicy(max_rows=10, eviction="score"),
        )
        fill(v, 1000)
        self.assertEqual(v.size(), 10)

    def test_layers_are_saved_with_it(self):
        storage = tf_embed.Storage(gpu_total_bytes=10**9, gpu_bytes=10**6, host_bytes=10**7)
        for make in (DynamicEmbedding, tfra.keras.layers.Embedding):
            layer = make(DIM, storage=storage)
            copied = type(layer).from_config(layer.get_config())
            self.assertEqual(copied.storage, storage)
        model = keras.Sequential(
            [keras.Input([2], dtype="int64"), DynamicEmbedding(DIM, storage=storage)]
        )
        with tempfile.TemporaryDirectory() as folder:
            model.save(os.path.join(folder, "m.keras"))
            loaded = keras.models.load_model(os.path.join(folder, "m.keras"))
        self.assertEqual(loaded.layers[-1].variable.storage, storage)

    def test_table_batched_layers_take_one_for_all_or_one_for_each(self):
        one = tf_embed.Storage(gpu_bytes=10**6)
        for given, wanted in ((one, [one, one]), ([one, None], [one, None])):
            layer = tbe.TableBatchedEmbeddingBags([(5, 2), (None, 2)], storage=given)
            self.assertEqual([table.storage for table in layer.tables], wanted)
            config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
            copied = keras.saving.deserialize_keras_object(config)
            self.assertEqual([table.storage for table in copied.tables], wanted)
        with self.assertRaisesRegex(TypeError, "`storage` must be a tf_embed.Storage"):
            tbe.TableBatchedEmbeddingBags([(5, 2)], storage=3)

    def test_by_default_there_is_none(self):
        self.assertIsNone(variable().storage)


@pytest.mark.gpu
@needs_gpu
class OnGpuTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 3)
    def test_rows_beyond_a_bound_are_on_the_host(self, shards):
        storage = tf_embed.Storage(gpu_bytes=shards * 1000 * ROW_BYTES)
        v = variable(storage, devices=[GPU] * shards, init_size=shards)
        fill(v, 500 * shards)
        self.assertEqual(v.stats()["pinned_bytes"], 0)
        fill(v, 9500 * shards, first=500 * shards)
        stats = v.stats()
        self.assertEqual(stats["rows"], 10000 * shards)
        self.assertGreaterEqual(stats["pinned_bytes"], 9000 * shards * ROW_BYTES)
        self.assertLess(
            stats["pinned_bytes"],
            stats["payload_bytes"] + stats["slack_bytes"] - 500 * shards * ROW_BYTES,
        )
        keys = np.arange(10000 * shards)[::-7]
        self.assertAllEqual(v.lookup(keys), np.tile(keys[:, None], [1, DIM]))

    @parameterized.product(
        optimizer=("sgd", "adam"),
        storage=(ON_HOST, tf_embed.Storage(gpu_bytes=9000)),
    )
    def test_steps_give_the_rows_of_the_cpu(self, optimizer, storage):
        rng = np.random.default_rng(SEED)
        batches = [rng.integers(0, 3000, 800) for _ in range(4)]
        exported = []
        for device in (GPU, CPU):
            v = variable(storage, devices=device)
            trainer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.get(optimizer))
            for batch in batches:
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(v, tf.constant(batch))
                    loss = tf.reduce_sum(rows**2)
                trainer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            keys, rows = v.export()
            exported.append((keys.numpy(), rows.numpy()))
            self.assertEqual(v.stats()["pinned_bytes"] > 0, device == GPU)
        (keys, rows), (wanted_keys, wanted) = exported
        self.assertAllEqual(np.sort(keys), np.sort(wanted_keys))
        self.assertAllClose(
            rows[np.argsort(keys)], wanted[np.argsort(wanted_keys)], rtol=2e-5, atol=2e-6
        )

    @parameterized.parameters(
        {"gpu_total_bytes": 100_000, "host_bytes": 0},
        {"gpu_bytes": 60_000, "host_bytes": 0},
        {"gpu_bytes": 20_000, "host_bytes": 40_000},
    )
    def test_without_an_eviction_new_rows_are_refused(self, **bounds):
        for policy in (None, tf_embed.TablePolicy(eviction=None)):
            v = variable(tf_embed.Storage(**bounds), devices=GPU, policy=policy)
            for first in range(0, 5000, 500):
                fill(v, 500, first)
            stats = v.stats()
            self.assertEqual(stats["rows"] + stats["refused"], 5000)
            self.assertBetween(stats["rows"], 500, 3000)
            self.assertTrue(v.lookup([0], return_exists=True)[1])
            self.assertFalse(v.lookup([4999], return_exists=True)[1])

    @parameterized.product(
        eviction=("lru", "lfu", "ttl", "score", "epoch_lru"), max_rows=(None, 10**6)
    )
    def test_with_one_others_leave_for_them(self, eviction, max_rows):
        policy = tf_embed.TablePolicy(eviction=eviction, max_rows=max_rows)
        v = variable(
            tf_embed.Storage(gpu_bytes=20_000, host_bytes=80_000),
            devices=GPU,
            policy=policy,
        )
        for first in range(0, 10_000, 500):
            fill(v, 500, first)
        stats = v.stats()
        self.assertEqual(stats["refused"], 0)
        self.assertEqual(stats["rows"] + stats["evicted"], 10_000)
        self.assertGreater(stats["evicted"], 5000)
        self.assertTrue(v.lookup([9999], return_exists=True)[1])
        keys, rows = v.export()
        self.assertAllEqual(rows[:, 0], tf.cast(keys, tf.float32))

    def test_max_hbm_for_values_bounds_rows_of_the_gpu(self):
        for bytes_there, on_host in ((2**30, False), (0, True)):
            config = tfra.HkvHashTableConfig(max_hbm_for_values=bytes_there)
            creator = tfra.HkvHashTableCreator(config)
            v = tfra.Variable(dim=DIM, devices=GPU, kv_creator=creator)
            fill(v, 1000)
            self.assertEqual(v.stats()["pinned_bytes"] > 0, on_host)

    @parameterized.parameters(*[(a, b) for a in range(3) for b in range(3) if a != b])
    def test_checkpoints_go_from_one_memory_into_the_other(self, saved, loaded):
        options = ({"storage": ON_HOST}, {}, {"devices": CPU})
        v = variable(**({"devices": GPU} | options[saved]))
        fill(v, 2000)
        other = variable(**({"devices": GPU} | options[loaded]))
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(v=v).write(os.path.join(folder, "c"))
            tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertEqual(other.stats()["pinned_bytes"] > 0, loaded == 0)
        keys = np.arange(0, 3000)
        self.assertAllEqual(other.lookup(keys), v.lookup(keys))

    def test_a_saved_model_has_it(self):
        module = tf.Module()
        module.v = variable(ON_HOST, devices=GPU)
        fill(module.v, 2000)
        module.pinned = tf.function(lambda: module.v.stats()["pinned_bytes"], input_signature=[])
        module.rows = tf.function(
            lambda keys: module.v.lookup(keys), input_signature=[tf.TensorSpec([None], tf.int64)]
        )
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(module, folder)
            loaded = tf.saved_model.load(folder)
        self.assertGreaterEqual(int(loaded.pinned()), 2000 * ROW_BYTES)
        keys = tf.range(0, 3000, 2, tf.int64)
        self.assertAllEqual(loaded.rows(keys), module.v.lookup(keys))

    def test_rows_of_a_managed_location_are_on_the_host(self):
        location = tbe.EmbeddingLocation
        layer = tbe.TableBatchedEmbeddingBags(
            [(500, 4, location.DEVICE), (500, 4, location.MANAGED), (500, 4, location.MANAGED)]
        )
        wanted = tbe.TableBatchedEmbeddingBags([(500, 4, location.HOST)] * 3)
        ids = np.random.default_rng(SEED).integers(0, 500, 90)
        for one in (layer, wanted):
            for number, table in enumerate(one.tables):
                table.upsert(tf.range(500, dtype=tf.int64), tf.fill([500, 4], number + 0.5))
        pinned = [table.stats()["pinned_bytes"] > 0 for table in layer.tables]
        self.assertEqual(pinned, [False, True, True])
        offsets = tf.range(0, 91, 5)
        self.assertAllEqual(layer(tf.constant(ids), offsets), wanted(tf.constant(ids), offsets))


if __name__ == "__main__":
    tf.test.main()

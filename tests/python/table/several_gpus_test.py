# SPDX-License-Identifier: Apache-2.0
"""Tables on two GPUs: the same bits as tables on one, saves in both directions, and the limits.

`make test-gpu` runs this on two fake GPUs, which are the host; see
tests/cc/gpu/fake_gpu_plugin.cc.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.gpus import CPU, DIM, GPU, NEEDS_GPU, rows_of
from support.oracles.reference import SEED
from tf_embed import one_embedding
from tf_embed.layers import DynamicEmbedding

OTHER = "/GPU:1"
TWO = [GPU, OTHER]
KEYS = np.array([3, -1, 7, 3, 2**62, 0, -(2**63)])

pytestmark = [
    *NEEDS_GPU,
    pytest.mark.skipif(
        len(tf.config.list_physical_devices("GPU")) < 2, reason="TensorFlow has fewer than two GPUs"
    ),
]


def variable(devices: object, **options: object) -> tf_embed.Variable:
    options = {
        "dim": DIM,
        "name": "mine",
        "initializer": keras.initializers.RandomNormal(seed=1),
    } | options
    return tf_embed.Variable(devices=devices, **options)


def last_digit(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """A partitioner that is not the default."""
    return tf.cast(tf.abs(keys % 10) % shard_num, tf.int32)


def train(v: tf_embed.Variable, optimizer: keras.Optimizer, steps: int = 4, last: int = 9) -> list:
    """Trains a variable by lookups, also in a loop, in a tf.function; returns the losses."""
    trainer = tf_embed.DynamicEmbeddingOptimizer(optimizer)

    @tf.function
    def step(keys: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            plain = tf_embed.embedding_lookup(v, keys)
            loss = tf.reduce_sum(plain**2)
            for again in tf.range(2):  # a token crosses a loop
                pooled = tf_embed.embedding_lookup(v, keys[again::2])
                loss += tf.reduce_sum(tf.abs(pooled))
        trainer.apply(tape.gradient(loss, [v.anchor]), [v.anchor])
        return loss

    rng = np.random.default_rng(SEED)
    return [float(step(tf.constant(rng.integers(-last, last, 40)))) for _ in range(steps)]


def slots_of(v: tf_embed.Variable) -> dict[int, list[float]]:
    exported = v.table.export()
    return dict(zip(exported.keys.numpy().tolist(), exported.slots.numpy().tolist(), strict=True))


class VerbsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("int64", tf_embed.default_partition_fn, TWO),
        ("int64", tf_embed.default_partition_fn, [GPU, OTHER, GPU]),
        ("int64", last_digit, [GPU, OTHER, GPU]),
        ("uint32", tf_embed.default_partition_fn, TWO),
    )
    @pytest.mark.smoke
    def test_verbs_do_what_they_do_on_one_gpu(self, dtype, partitioner, devices):
        keys = KEYS.astype(dtype)
        rows = np.random.default_rng(SEED).normal(size=[len(keys), DIM]).astype("f")
        outputs = []
        for places in (devices, [GPU] * len(devices)):
            policy = tf_embed.TablePolicy(eviction="score")
            options = {"key_dtype": dtype, "partitioner": partitioner, "policy": policy}
            v = variable(places, **options)
            first, absent = v.lookup(keys, return_exists=True)
            v.upsert(keys[:4], rows[:4])
            second, exists = v.lookup(keys[None], return_exists=True)
            v.accum(keys[:5], second[0, :5], rows[:5], exists[0, :5])
            v.set_scores(keys, np.arange(len(keys)))
            v.prefetch(keys)
            v.remove(keys[2:3])
            statistics = list(v.row_statistics(keys).values())
            sizes = [v.table.size(shard) for shard in range(len(places))]
            inserted = v.table.find_or_insert(tf.constant(keys))
            last = v.lookup(keys)
            again = tf.constant(np.array([50, 51, 50], dtype))  # the first default counts
            inserted += v.table.find_or_insert(again, tf.constant(rows[:3]))
            sizes += [v.size(), v.restrict(2)]
            outputs.append([first, absent, second, exists, last, *inserted, *statistics, *sizes])
            self.assertEqual(int(v.size()), 2)
            self.assertEqual(v.devices, list(places))
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)

    @pytest.mark.smoke
    def test_rows_are_on_their_gpus(self):
        v = variable(TWO)
        v.upsert(np.arange(10), np.ones([10, DIM]))
        on_first, on_other = v.table.parts
        self.assertEqual(sorted(rows_of(v)), list(range(10)))
        self.assertAllEqual(np.sort(on_first.export().keys), np.arange(0, 10, 2))
        self.assertIn("GPU:1", on_other.find(tf.constant([1], tf.int64))[0].device)
        self.assertIn("device=/GPU:0 and /GPU:1, shards=2", repr(v))
        report = v.memory_report()
        self.assertEqual((report.rows, report.device), (10, "/GPU:0 and /GPU:1"))
        self.assertEqual(v.stats()["rows"], 10)
        v.clear()
        self.assertEqual(int(v.size()), 0)

    def test_a_write_tells_its_distinct_keys_once(self):
        v, told = variable(TWO), []
        v.table.on_update = lambda keys: told.append(sorted(keys.numpy().tolist()))
        v.upsert([1, 2, 3, 1], np.zeros([4, DIM]))
        folder = tempfile.mkdtemp()
        v.save_rows(folder)
        v.load_rows(folder)
        self.assertEqual([keys for keys in told if keys], [[1, 2, 3], [2], [1, 3]])

    def test_a_table_whose_counts_can_not_be_split_is_copied_and_averaged(self):
        policy = tf_embed.TablePolicy(admission=tf_embed.BloomAdmission(1, 0.01))
        v = variable(TWO, policy=policy)
        trainer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1, use_ema=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, KEYS) ** 2)
        trainer.apply(tape.gradient(loss, [v.anchor]), [v.anchor])
        trainer.finalize_variable_values([v.anchor])
        self.assertEqual(rows_of(copy.deepcopy(v)), rows_of(v))

    def test_a_copy_has_its_own_rows(self):
        v = variable(TWO)
        train(v, keras.optimizers.Adam(0.1))
        copied = copy.deepcopy(v)
        self.assertEqual(rows_of(copied), rows_of(v))
        self.assertEqual(slots_of(copied), slots_of(v))
        v.clear()
        self.assertGreater(int(copied.size()), 0)

    def test_rows_that_a_function_draws_are_drawn_as_on_one_gpu(self):
        def outputs(devices: object) -> list[tf.Tensor]:
            counter = itertools.count()

            def draw(shape: Any, dtype: Any) -> tf.Tensor:
                return tf.fill(shape, tf.constant(next(counter), dtype))

            v = variable(devices, initializer=draw)
            found = [v.lookup([1, 2]), v.lookup([[2, 3]])]
            found.append(v.table.find_or_insert(tf.constant([4, 5, 4], tf.int64))[0])
            train(v, keras.optimizers.Nadam(0.1), steps=1)
            return [*found, v.lookup([5, 60]), v.lookup(np.arange(-9, 9))]

        for ours, wanted in zip(outputs(TWO), outputs(GPU), strict=True):
            self.assertAllEqual(ours, wanted)

    def test_a_wrong_shape_unknown_until_it_runs_is_refused(self):
        v = variable(TWO, dim=2)

        @tf.function(
            input_signature=[tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.float32)]
        )
        def upsert(keys: tf.Tensor, values: tf.Tensor) -> None:
            v.upsert(keys, values)

        with self.assertRaises(tf.errors.InvalidArgumentError):
            upsert(tf.constant([1, 2], tf.int64), tf.ones([3, 2]))
        self.assertEqual(int(v.size()), 0)

    @parameterized.parameters("sum", "mean", "sqrtn")
    def test_pooled_lookups_have_the_bits_of_one_gpu(self, combiner):
        ids = tf.sparse.from_dense(np.random.default_rng(SEED).integers(-4, 5, [6, 9]))
        outputs = []
        for devices in (TWO, GPU):
            v = variable(devices)
            weights = tf.cast(ids.values, "float32") / 3.0
            with tf.GradientTape() as tape:
                tape.watch(weights)
                pooled = tf_embed.embedding_lookup_sparse(
                    v, ids, ids.with_values(weights), combiner=combiner
                )
                loss = tf.reduce_sum(pooled**2)
            of_rows, of_weights = tape.gradient(loss, [v.anchor.value, weights])
            outputs.append([pooled, of_rows.indices, of_rows.values, of_weights])
        for ours, wanted in zip(*outputs, strict=True):
            self.assertAllEqual(ours, wanted)


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("Adam", "Nadam")  # a rule in the table, and on gathered rows
    @pytest.mark.smoke
    def test_steps_have_the_bits_of_one_gpu(self, name):
        self.check_steps(name)

    @parameterized.parameters(
        {"use_ema": True, "ema_overwrite_frequency": 2}, {"gradient_accumulation_steps": 2}
    )
    def test_averages_and_waiting_gradients_have_them_too(self, **options):
        self.check_steps("Adam", **options)

    def check_steps(self, name: str, **options: Any) -> None:
        outputs = []
        for devices in (TWO, GPU):
            v = variable(devices)
            losses = train(v, getattr(keras.optimizers, name)(0.05, **options))
            outputs.append((losses, rows_of(v), slots_of(v)))
        self.assertEqual(*outputs)

    def test_another_optimizer_begins_with_new_slots(self):
        outputs = []
        for devices in (TWO, GPU):
            v = variable(devices)
            train(v, keras.optimizers.Adam(0.05), steps=1)
            with self.assertLogs("absl", "WARNING") as logged:
                losses = train(v, keras.optimizers.Nadam(0.05), steps=1)
            v.table.drop_slots()
            outputs.append((losses, rows_of(v), slots_of(v), logged.output))
        self.assertEqual(*outputs)

    @pytest.mark.smoke
    def test_a_bound_evicts_what_it_evicts_on_one_gpu(self):
        outputs = []
        policy = tf_embed.TablePolicy(
            31, "lfu", admission=tf_embed.CounterAdmission(2), log_evicted=True
        )
        for devices in (TWO, [GPU] * 2):
            v = variable(devices, policy=policy)
            losses = train(v, keras.optimizers.Adagrad(0.1), steps=12, last=60)
            keys, rows = v.drain_evicted()
            stats = v.stats()
            order = np.argsort(keys, kind="stable")
            counts = [stats[name] for name in ("admitted", "held_back", "evicted", "refused")]
            outputs.append((losses, rows_of(v), counts, rows.numpy()[order].tolist()))
        self.assertEqual(*outputs)
        self.assertGreater(counts[2], 0)

    @pytest.mark.smoke
    def test_a_model_fits_as_on_one_gpu(self):
        outputs = []
        for devices in (TWO, GPU):
            model = model_of(devices)
            history = fit(model)
            outputs.append((history, rows_of(model.layers[0].variable)))
        self.assertEqual(*outputs)

    @pytest.mark.smoke
    def test_replicas_on_both_gpus_train_one_table(self):
        strategy = tf.distribute.MirroredStrategy(
            TWO, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        outputs = []
        for devices in (TWO, GPU):
            with strategy.scope():
                model = model_of(devices)
            outputs.append((fit(model), rows_of(model.layers[0].variable)))
        self.assertEqual(*outputs)


def model_of(devices: object, **options: object) -> keras.Model:
    initializer = keras.initializers.RandomNormal(seed=3)
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int64"),
            DynamicEmbedding(DIM, devices=devices, initializer=initializer, name="ids", **options),
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2)),
        ]
    )
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def fit(model: keras.Model) -> list[float]:
    rng = np.random.default_rng(SEED)
    ids, y = rng.integers(-9, 9, [32, 3]), rng.normal(size=[32, 1]).astype("f")
    return model.fit(ids, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]


class SavingTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters([GPU], [[GPU, OTHER, GPU]])
    def test_models_go_into_any_number_of_shards(self, devices):
        saved = model_of(TWO)
        fit(saved)
        loaded = model_of(devices)
        saved.save_weights(os.path.join(self.folder, "m.weights.h5"))
        loaded.load_weights(os.path.join(self.folder, "m.weights.h5"))
        tables = [one.layers[0].variable for one in (saved, loaded)]
        self.assertEqual(*map(rows_of, tables))
        self.assertEqual(*map(slots_of, tables))
        loaded = model_of(devices)
        path = tf.train.Checkpoint(m=saved, o=saved.optimizer).write(self.folder + "/c")
        loaded.optimizer.build(loaded.trainable_variables)
        tf.train.Checkpoint(m=loaded, o=loaded.optimizer).read(path).assert_consumed()
        tables[1] = loaded.layers[0].variable
        self.assertEqual(*map(slots_of, tables))
        self.assertEqual(fit(saved), fit(loaded))

    @pytest.mark.smoke
    def test_row_files_and_snapshots_go_into_any_number_of_shards(self):
        policy = tf_embed.TablePolicy(eviction="lru", track_changes=True)
        three = [GPU, OTHER, GPU]
        saved, alone = variable(TWO, policy=policy), variable(GPU, policy=policy, name="alone")
        for v in (saved, alone):
            train(v, keras.optimizers.Adam(0.1))
        saved.save_rows(self.folder)
        snapshots = tf_embed.Snapshots(os.path.join(self.folder, "s"), [saved, alone])
        snapshots.save("first").wait()
        saved.remove([1, 2])
        saved.upsert([100, 101], np.ones([2, DIM]))
        info = snapshots.save("second", since="first").wait()
        self.assertEqual(info.tables[0].rows, 2)
        for devices in (GPU, three, TWO):
            loaded = variable(devices, policy=policy)
            loaded.load_rows(self.folder)
            found = variable(devices, policy=policy)
            other = variable(devices, policy=policy, name="alone")
            tf_embed.Snapshots(snapshots.path, [found, other]).load("second")
            self.assertEqual(rows_of(other), rows_of(alone))
            self.assertEqual(rows_of(found), rows_of(saved))
            self.assertEqual(slots_of(found), slots_of(saved))
            rest = {key: row for key, row in rows_of(loaded).items() if key not in (1, 2)}
            self.assertEqual(rest | {100: [1.0] * DIM, 101: [1.0] * DIM}, rows_of(saved))


class LimitsTest(tf.test.TestCase):
    def test_a_saved_model_is_of_one_device(self):
        model = model_of(TWO)
        fit(model)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        for save in (model.export, lambda path: tf_embed.export_static(model, path)):
            with self.assertRaisesRegex(ValueError, "on /GPU:0 and /GPU:1, and .* one device"):
                save(os.path.join(folder, "e"))

    @pytest.mark.smoke
    def test_refusals(self):
        v = variable(TWO, policy=tf_embed.TablePolicy(admission=tf_embed.BloomAdmission(2, 0.01)))
        store = one_embedding.make_device_mem_store_options(persistent_path="no", capacity=9)
        tables = [one_embedding.make_table_options({"type": "constant", "value": 1.0})]
        refused = {
            "must all be on GPUs or all on CPUs": lambda: variable([GPU, CPU, OTHER]),
            "a table of strings": lambda: variable(TWO, key_dtype=tf.string),
            "of one part: use `save_rows`": lambda: tf.train.Checkpoint(v=v).write("nowhere"),
            "all shards on one GPU": lambda: one_embedding.MultiTableEmbedding(
                "many", 2, "float32", "int64", tables, store, devices=TWO
            ),
        }
        for message, call in refused.items():
            with self.assertRaisesRegex(ValueError, message):
                call()

    @pytest.mark.smoke
    def test_a_wrong_shard_is_named(self):
        v = variable(TWO, partitioner=lambda keys, n: tf.cast(keys, tf.int32))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r"'mine' must .*\[0, 2\)"):
            v.lookup([0, 1, 5])

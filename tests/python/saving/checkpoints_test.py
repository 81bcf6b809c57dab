# SPDX-License-Identifier: Apache-2.0
"""Special uses of tf.train.Checkpoint: with a manager, deferred, damaged, of SavedModels.

saving_test.py tests plain uses.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import pathlib
import tempfile
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases import save_path_models
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

IDS = np.arange(60).reshape(20, 3)
WAYS = ("wrapper", "own")


def pooled(own: Any, **options: Any) -> DynamicEmbedding:
    initializer = keras.initializers.RandomUniform(seed=1)  # all models have the same initial rows
    return DynamicEmbedding(
        3, combiner="sum", initializer=initializer, optimizer=own, name="mine", **options
    )


class Pooled(keras.Model):
    """A subclassed model. Its layers are built when it is first called.

    It has no Dense: Keras loses the kernel of a Dense that is restored before it is built.
    """

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.embed = pooled(own)

    def call(self, ids: Any) -> Any:
        return keras.ops.sum(self.embed(ids), axis=-1)


def compiled(way: str, kind: str = "functional", shards: int = 1) -> keras.Model:
    own = keras.optimizers.Adam(0.1) if way == "own" else None
    if kind == "subclassed":
        model = Pooled(own)
    else:
        layer = pooled(own, devices=["/CPU:0"] * shards)
        head = keras.layers.Dense(1, kernel_initializer="ones")
        inputs = [keras.Input([3], dtype="int64")] if kind == "functional" else []
        model = keras.Sequential([*inputs, layer, head])
    wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    model.compile("adam" if way == "own" else wrapped, "mse")
    return model


def fit(model: keras.Model, seed: int = 0) -> None:
    rng = np.random.default_rng([SEED, seed])
    ids, labels = rng.integers(0, 40, [24, 3]), rng.normal(size=24)
    model.fit(ids, labels, batch_size=8, shuffle=False, verbose=0)


def trained(way: str, kind: str = "functional", shards: int = 1) -> keras.Model:
    model = compiled(way, kind, shards)
    fit(model)
    return model


def layer_of(model: keras.Model) -> DynamicEmbedding:
    return model.get_layer("mine")


def content(table: Any) -> list[np.ndarray]:
    """The content of a table, sorted by key."""
    rows = table.export()
    order = np.argsort(rows.keys)
    by_row = (rows.keys, rows.values, rows.slots, rows.statistics)
    whole = [rows.meta.numpy(), rows.policy.numpy()]
    return [tf.gather(one, order).numpy() for one in by_row] + whole


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class CheckpointTestCase(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    def assert_same(self, one: keras.Model, other: keras.Model) -> None:
        for a, b in zip(
            content(layer_of(one).variable.table),
            content(layer_of(other).variable.table),
            strict=True,
        ):
            self.assertAllEqual(a, b)
        self.assertAllEqual(one(IDS), other(IDS))
        self.assertEqual(int(one.optimizer.iterations), int(other.optimizer.iterations))
        if layer_of(one).optimizer is not None:
            self.assertEqual(
                int(layer_of(one).optimizer.iterations), int(layer_of(other).optimizer.iterations)
            )


class RestoreTest(CheckpointTestCase):
    @parameterized.parameters(*WAYS)
    @pytest.mark.smoke
    def test_all_is_consumed_once_the_optimizer_is_built(self, way):
        model, other = trained(way), compiled(way)
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
            self.folder() + "/c"
        )
        status = tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
        other.optimizer.build(other.trainable_variables)
        status.assert_consumed()
        self.assert_same(model, other)
        fit(model, 1)
        fit(other, 1)
        self.assert_same(model, other)

    @parameterized.product(way=WAYS, kind=("sequential", "subclassed"))
    @pytest.mark.smoke
    def test_what_is_not_built_yet_is_restored_when_it_is(self, way, kind):
        model, other = trained(way, kind), compiled(way, kind)
        path = tf.train.Checkpoint(model=model).save(self.folder() + "/c")
        status = tf.train.Checkpoint(model=other).restore(path)
        other(IDS[:1])
        self.assertEqual(int(layer_of(other).variable.size()), int(layer_of(model).variable.size()))
        fit(model, 1)
        fit(other, 1)
        status.assert_consumed()
        self.assert_same(model, other)

    @parameterized.parameters(*WAYS)
    def test_shards_from_one_to_three_to_two(self, way):
        model, folder = trained(way), self.folder()
        for shards in (3, 2):
            other = compiled(way, shards=shards)
            path = tf.train.Checkpoint(model=model).save(f"{folder}/{shards}")
            tf.train.Checkpoint(model=other).restore(path)
            other.optimizer.build(other.trainable_variables)
            self.assert_same(model, other)
            fit(other, shards)
            model = other
        one = trained(way)
        for shards in (3, 2):
            fit(one, shards)
        self.assert_same(one, model)

    @parameterized.parameters(*WAYS)
    def test_a_manager_keeps_the_last_ones_and_restores_the_latest(self, way):
        model, folder = compiled(way), self.folder()
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(m=model), folder, max_to_keep=2)
        for epoch in range(4):
            fit(model, epoch)
            manager.save()
        self.assertLen(manager.checkpoints, 2)
        other = compiled(way)
        again = tf.train.CheckpointManager(tf.train.Checkpoint(m=other), folder, max_to_keep=2)
        self.assertEqual(again.restore_or_initialize(), manager.latest_checkpoint)
        other.optimizer.build(other.trainable_variables)
        self.assert_same(model, other)

    def test_a_manager_sweeps_rows_that_were_removed_meanwhile(self):
        v, folder = tf_embed.Variable(dim=2), self.folder()
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=v), folder, max_to_keep=3)
        for keys in ([1, 2, 3], [], [4]):
            v.clear()
            v.upsert(np.array(keys, np.int64), np.ones([len(keys), 2]))
            manager.save()
        other = tf_embed.Variable(dim=2)
        for path, keys in zip(manager.checkpoints, ([1, 2, 3], [], [4]), strict=True):
            tf.train.Checkpoint(v=other).restore(path).expect_partial()
            self.assertAllEqual(np.sort(other.export()[0]), keys)

    @parameterized.parameters(*WAYS)
    @pytest.mark.smoke
    def test_backup_and_restore_goes_on_as_if_nothing_had_stopped(self, way):
        rng = np.random.default_rng(SEED)
        ids, labels = rng.integers(0, 40, [24, 3]), rng.normal(size=24)
        options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 4}

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 2:
                    raise InterruptedError

        unbroken = compiled(way)
        unbroken.fit(ids, labels, **options)
        backup = keras.callbacks.BackupAndRestore(self.folder() + "/backup")
        with self.assertRaises(InterruptedError):
            compiled(way).fit(ids, labels, callbacks=[backup, Stop()], **options)
        resumed = compiled(way)
        resumed.fit(ids, labels, callbacks=[backup], **options)
        self.assert_same(unbroken, resumed)

    @parameterized.product(way=WAYS, weights_only=(False, True))
    def test_model_checkpoint_keeps_the_best_whole_model_or_its_weights(self, way, weights_only):
        path = f"{self.folder()}/best{'.weights.h5' if weights_only else '.keras'}"
        values = iter([3.0, 1.0, 2.0])
        predicted: list[np.ndarray] = []

        class Record(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                logs["value"] = next(values)
                predicted.append(self.model(IDS).numpy())

        rng = np.random.default_rng(SEED)
        model = compiled(way)
        keep = keras.callbacks.ModelCheckpoint(
            path, "value", save_best_only=True, save_weights_only=weights_only, mode="min"
        )
        model.fit(
            rng.integers(0, 40, [24, 3]),
            rng.normal(size=24),
            batch_size=8,
            epochs=3,
            verbose=0,
            callbacks=[Record(), keep],
        )
        if weights_only:
            best = compiled(way)
            best.load_weights(path)
        else:
            best = keras.models.load_model(path)
        self.assertAllEqual(best(IDS), predicted[1])
        counts = layer_of(best).optimizer if way == "own" else best.optimizer
        self.assertEqual(int(counts.iterations), 6)

    @pytest.mark.smoke
    def test_tensorboard_writes_its_histograms(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("needs tensorboard: pip install tensorboard")
        folder = self.folder()
        board = keras.callbacks.TensorBoard(folder, histogram_freq=1, write_graph=False)
        rng = np.random.default_rng(SEED)
        compiled("own").fit(
            rng.integers(0, 40, [24, 3]), rng.normal(size=24), verbose=0, callbacks=[board]
        )
        self.assertNotEmpty(list(pathlib.Path(folder).rglob("events*")))


class ListTest(CheckpointTestCase):
    """Keras's checkpoints omit layers in lists and dicts. The optimizer carries their tables."""

    @parameterized.parameters("wrapper", "own")
    @pytest.mark.smoke
    def test_tables_of_layers_in_lists_and_dicts_are_carried(self, way):
        model, other = (save_path_models.trained(way, "list", seed) for seed in (1, 2))
        other.train_on_batch(IDS, np.ones(20))
        path = tf.train.Checkpoint(model=model).save(self.folder() + "/c")
        tf.train.Checkpoint(model=other).restore(path).assert_consumed()
        self.assertTrue(all(save_path_models.kept(model, other).values()))

    def test_they_are_restored_when_the_wrapper_is_built(self):
        model, other = (
            save_path_models.trained("wrapper", "list"),
            save_path_models.untrained("wrapper", "list", 2),
        )
        path = tf.train.Checkpoint(model=model).save(self.folder() + "/c")
        status = tf.train.Checkpoint(model=other).restore(path)
        other.optimizer.build(other.trainable_variables)
        status.assert_consumed()
        self.assertTrue(all(save_path_models.kept(model, other).values()))

    def test_a_variable_that_checkpoints_leave_out_is_left_out_here_too(self):
        v = tf_embed.Variable(dim=1, checkpoint=False)
        optimizer = tf_embed.DynamicEmbeddingOptimizer("adam")
        optimizer.build(v.trainable_variables)
        path = tf.train.Checkpoint(v=v, optimizer=optimizer).write(self.folder() + "/c")
        names = [name for name, _ in tf.train.list_variables(path)]
        self.assertEmpty([name for name in names if "keys" in name])


class DamageTest(CheckpointTestCase):
    def saved(self) -> tuple[str, keras.Model]:
        model = trained("own")
        return tf.train.Checkpoint(m=model).write(self.folder() + "/ckpt"), model

    def restore(self, path: str, model: keras.Model) -> None:
        tf.train.Checkpoint(m=model).read(path)

    @pytest.mark.smoke
    def test_any_flipped_byte_of_the_data_raises_and_changes_nothing(self):
        path, _ = self.saved()
        other = trained("own")
        fit(other, 1)
        before = content(layer_of(other).variable.table)
        (data,) = pathlib.Path(path).parent.glob("ckpt.data*")
        whole = data.read_bytes()
        for place in np.random.default_rng(SEED).integers(0, len(whole), 40):
            damaged = bytearray(whole)
            damaged[place] ^= 0x04
            data.write_bytes(damaged)
            with self.assertRaisesRegex(tf.errors.OpError, f"{path}.*Checksum does not match"):
                self.restore(path, other)
            self.assertTrue(same(content(layer_of(other).variable.table), before))

    def test_any_flipped_byte_of_the_index_raises_or_does_not_matter(self):
        path, model = self.saved()
        other = compiled("own")
        table = layer_of(other).variable.table
        wanted = content(layer_of(model).variable.table)
        index = pathlib.Path(path + ".index")
        whole = index.read_bytes()
        for place in np.random.default_rng(SEED).integers(0, len(whole), 40):
            damaged = bytearray(whole)
            damaged[place] ^= 0x04
            index.write_bytes(damaged)
            before = content(table)
            try:
                self.restore(path, other)
            except (tf.errors.OpError, ValueError, IndexError, KeyError):
                self.assertTrue(same(content(table), before))
            else:
                self.assertTrue(same(content(table), wanted))
                table.clear()

    @parameterized.parameters(0.0, 0.1, 0.5, 0.95)
    def test_data_that_was_cut_off_raises_and_changes_nothing(self, part):
        path, model = self.saved()
        (data,) = pathlib.Path(path).parent.glob("ckpt.data*")
        whole = data.read_bytes()
        data.write_bytes(whole[: int(len(whole) * part)])
        before = content(layer_of(model).variable.table)
        with self.assertRaises((tf.errors.OpError, IndexError)):
            self.restore(path, model)
        self.assertTrue(same(content(layer_of(model).variable.table), before))

    @parameterized.parameters("index", "data-00000-of-00001")
    def test_a_missing_file_raises_and_changes_nothing(self, extension):
        path, model = self.saved()
        os.remove(f"{path}.{extension}")
        before = content(layer_of(model).variable.table)
        with self.assertRaisesRegex(tf.errors.OpError, path):
            self.restore(path, model)
        self.assertTrue(same(content(layer_of(model).variable.table), before))

    @parameterized.parameters(
        ({"dim": 3}, "key int64, value float32, dim 3"),
        ({"value_dtype": "float64"}, "key int64, value float64, dim 2"),
        ({"value_dtype": "float16"}, "key int64, value float16, dim 2"),
        ({"value_dtype": "int64"}, "key int64, value int64, dim 2"),
        ({"key_dtype": "int32"}, "key int32, value float32, dim 2"),
        ({"key_dtype": "uint64"}, "key uint64, value float32, dim 2"),
    )
    def test_rows_of_another_kind_of_table_raise_with_names(self, options, kind):
        v = tf_embed.Variable(dim=2, name="one")
        v.upsert([1], [[1.0, 2.0]])
        path = tf.train.Checkpoint(v=v).write(self.folder() + "/ckpt")
        other = tf_embed.Variable(**{"dim": 2, "name": "other", **options})
        other.upsert([7], np.ones([1, other.dim], other.value_dtype.name))
        before = content(other.table)
        message = f"'other' .* has {kind}, .* has key int64, value float32, dim 2"
        with self.assertRaisesRegex(ValueError, message):
            tf.train.Checkpoint(v=other).read(path)
        self.assertTrue(same(content(other.table), before))

    def test_a_layer_that_waits_for_rows_of_another_kind_raises_when_it_is_built(self):
        layer, other = DynamicEmbedding(2), DynamicEmbedding(3, name="other")
        layer.build()
        path = tf.train.Checkpoint(layer=layer).write(self.folder() + "/ckpt")
        tf.train.Checkpoint(layer=other).read(path)
        with self.assertRaisesRegex(ValueError, "'other' .* has .*, dim 3, .* has .*, dim 2"):
            other.build()

    def test_the_table_itself_refuses_another_dim(self):
        tables = [tf_embed.Variable(dim=dim, name=f"dim{dim}").table for dim in (2, 3)]
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "table 'dim3' must have shape"):
            tables[1].import_(tables[0].export())

    @pytest.mark.smoke
    def test_asynchronous_checkpoints_which_would_save_later_rows_are_refused(self):
        options = tf.train.CheckpointOptions(enable_async=True)
        checkpoint = tf.train.Checkpoint(v=tf_embed.Variable(dim=2, name="mine"))
        with self.assertRaisesRegex(ValueError, "table of 'mine' can't be saved by an async"):
            checkpoint.save(self.folder() + "/ckpt", options=options)

    def test_checkpoints_split_by_size_which_lack_tensors_are_refused(self):
        policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=4096)
        module = tf.Module()
        module.v = tf_embed.Variable(dim=2, name="mine")
        module.v.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
        checkpoint = tf.train.Checkpoint(m=module)
        with self.assertRaisesRegex(ValueError, "table of 'mine' can't be saved with .*MaxShardS"):
            checkpoint.save(self.folder() + "/ckpt", options=options)
        options = tf.saved_model.SaveOptions(experimental_sharding_callback=policy)
        with self.assertRaisesRegex(ValueError, "table of 'mine' can't be saved with .*MaxShardS"):
            tf.saved_model.save(module, self.folder() + "/model", options=options)
        # TensorFlow's other policy keeps all tensors.
        options = tf.train.CheckpointOptions(
            experimental_sharding_callback=tf.train.experimental.ShardByTaskPolicy()
        )
        path = checkpoint.save(self.folder() + "/ckpt", options=options)
        module.v.clear()
        checkpoint.restore(path)
        self.assertAllEqual(module.v.lookup([2, 1]), [[3.0, 4.0], [1.0, 2.0]])

    def test_splits_by_size_of_layers_whose_table_is_not_saved_are_refused(self):
        policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=4096)
        options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
        layer = tf_embed.tfra.keras.layers.Embedding(2, checkpoint=False, name="mine")
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Dense(1)])
        checkpoint = tf.train.Checkpoint(m=model)
        with self.assertRaisesRegex(ValueError, "can't be saved with .*MaxShardSizePolicy"):
            checkpoint.save(self.folder() + "/ckpt", options=options)
        checkpoint.restore(checkpoint.save(self.folder() + "/ckpt")).assert_consumed()

    def test_options_of_another_save_in_a_callers_frame_refuse_nothing(self):
        policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=4096)
        options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
        others = tf.saved_model.SaveOptions(experimental_sharding_callback=policy)
        folder, v = self.folder(), tf_embed.Variable(dim=2, name="mine")
        checkpoint = tf.train.Checkpoint(v=v)
        checkpoint.save(folder + "/ckpt")
        tf.function(lambda: checkpoint.write(folder + "/write"))()
        tf.saved_model.save(v, folder + "/model")
        del options, others

        # AutoGraph adds its own objects to the locals of a function.
        @tf.function
        def save_in_a_loop() -> None:
            for i in range(2):
                if i == 1:
                    path = checkpoint.write(folder + "/loop")
            return path

        save_in_a_loop()

    def test_a_save_keeps_no_objects_of_the_caller_alive(self):
        class Big:
            pass

        big = Big()
        ref = weakref.ref(big)
        tf.train.Checkpoint(v=tf_embed.Variable(dim=2)).save(self.folder() + "/ckpt")
        del big
        gc.collect()
        self.assertIsNone(ref())


class SavedModelTest(CheckpointTestCase):
    @pytest.mark.smoke
    def test_checkpoints_of_loaded_savedmodels_carry_rows(self):
        class Module(tf.Module):
            def __init__(self) -> None:
                super().__init__()
                self.v = tf_embed.Variable(dim=2, name="served", initializer="uniform")

            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
            def lookup(self, keys: tf.Tensor) -> tf.Tensor:
                return self.v.lookup(keys)

            @tf.function(
                input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 2])]
            )
            def upsert(self, keys: tf.Tensor, rows: tf.Tensor) -> None:
                self.v.upsert(keys, rows)

        module, folder = Module(), self.folder()
        module.upsert(tf.constant([1, 2], tf.int64), tf.ones([2, 2]))
        tf.saved_model.save(module, folder)
        one, two = tf.saved_model.load(folder), tf.saved_model.load(folder)
        one.upsert(tf.constant([2, 3], tf.int64), tf.fill([2, 2], 7.0))
        path = tf.train.Checkpoint(m=one).write(folder + "/ckpt")
        keys = tf.constant([1, 2, 3, 4], tf.int64)
        self.assertAllEqual(two.lookup(keys)[:2], tf.ones([2, 2]))
        tf.train.Checkpoint(m=two).read(path)
        self.assertAllEqual(two.lookup(keys), one.lookup(keys))
        one.upsert(tf.constant([1], tf.int64), tf.zeros([1, 2]))  # still two tables
        self.assertAllEqual(two.lookup(keys)[0], [1.0, 1.0])
        other = Module()  # a checkpoint of a loaded model restores into the original class
        tf.train.Checkpoint(m=other).read(path).expect_partial()
        self.assertAllEqual(other.lookup(keys), two.lookup(keys))


if __name__ == "__main__":
    tf.test.main()

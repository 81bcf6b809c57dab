# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and Keras files. serving_test.py tests SavedModels and new processes."""

from __future__ import annotations

import os
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS, SEED
from tf_embed.layers import DynamicEmbedding

KEYS = range(40)
VALUE_DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "int32", "int64", "bool")


def step(v: tf_embed.Variable, optimizer: Any, number: int) -> None:
    rng = np.random.default_rng([SEED, number])
    gradient = tf.IndexedSlices(
        tf.constant(rng.normal(size=[25, v.dim]), v.value_dtype),
        tf.constant(rng.integers(0, 40, 25)),
    )
    optimizer.apply([gradient], [v.anchor])


def adam() -> Any:
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))


def model_of(layer: Any) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input([3], dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


def fit(model: keras.Model, seed: int = 0, **options: Any) -> None:
    rng = np.random.default_rng([SEED, seed])
    ids, labels = rng.integers(0, 40, [24, 3]), rng.normal(size=24)
    model.fit(ids, labels, batch_size=8, shuffle=False, verbose=0, **options)


class CheckpointTest(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str = "ckpt") -> str:
        return os.path.join(self.get_temp_dir(), name)

    @parameterized.parameters((1, 1), (1, 3), (3, 1), (3, 2))
    @pytest.mark.smoke
    def test_training_goes_on_bit_for_bit_in_another_number_of_shards(self, before, after):
        def make(shards: int, seed: int, name: str) -> tuple[Any, Any]:
            initializer = keras.initializers.RandomNormal(seed=seed)
            v = tf_embed.Variable(
                dim=3, devices=["/CPU:0"] * shards, initializer=initializer, name=name
            )
            optimizer = adam()
            optimizer.build(v.trainable_variables)
            return v, optimizer

        v, optimizer = make(before, 1, "one")
        for number in range(3):
            step(v, optimizer, number)
        path = tf.train.Checkpoint(v=v, optimizer=optimizer).save(self.path())
        # Another seed and name. The checkpoint's seed and name replace them, for new keys too.
        other, other_optimizer = make(after, 2, "other")
        other.upsert([1, 1000], np.ones([2, 3]))
        checkpoint = tf.train.Checkpoint(v=other, optimizer=other_optimizer)
        status = checkpoint.restore(path)
        status.assert_existing_objects_matched()
        status.assert_consumed()
        self.assertEqual(int(other.size()), int(v.size()))
        self.assertEqual(int(other_optimizer.iterations), 3)
        self.assertAllEqual(other.lookup([*KEYS, 1000]), v.lookup([*KEYS, 1000]))
        for number in range(3, 6):
            step(v, optimizer, number)
            step(other, other_optimizer, number)
        self.assertAllEqual(other.lookup(KEYS), v.lookup(KEYS))
        for one, two in zip(v.table.export(), other.table.export(), strict=True):
            self.assertAllEqual(np.sort(one, axis=0), np.sort(two, axis=0))

    @parameterized.product(
        key_dtype=("int64", "int32", "uint64", "uint32"), value_dtype=VALUE_DTYPES
    )
    def test_every_pair_of_dtypes(self, key_dtype, value_dtype):
        keys = np.array(EXTREME_KEYS[key_dtype], key_dtype)
        v = tf_embed.Variable(key_dtype, value_dtype, 2)
        rows = tf.cast(np.arange(len(keys) * 2).reshape(-1, 2) - 5, value_dtype)
        v.upsert(keys, rows)
        path = tf.train.Checkpoint(v=v).write(self.path())
        other = tf_embed.Variable(key_dtype, value_dtype, 2, devices=["/CPU:0"] * 2)
        tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertAllEqual(other.lookup(keys), rows)
        self.assertAllEqual(np.sort(other.export()[0]), np.sort(keys))

    def test_an_empty_table_is_saved_and_empties_the_table_it_is_restored_into(self):
        v = tf_embed.Variable(dim=2)
        path = tf.train.Checkpoint(v=v).write(self.path())
        v.upsert([1], [[1.0, 1.0]])
        tf.train.Checkpoint(v=v).read(path).assert_consumed()
        self.assertEqual(int(v.size()), 0)

    def test_a_restore_replaces_what_is_there(self):
        v = tf_embed.Variable(dim=1)
        v.upsert([1, 2], [[1.0], [2.0]])
        path = tf.train.Checkpoint(v=v).write(self.path())
        v.upsert([2, 3], [[9.0], [9.0]])
        tf.train.Checkpoint(v=v).read(path)
        keys, rows = reference.sorted_rows(*v.export())
        self.assertAllEqual(keys, [1, 2])
        self.assertAllEqual(rows, [[1.0], [2.0]])

    def test_rows_of_a_variable_without_checkpoint_stay_out(self):
        v = tf_embed.Variable(dim=1, checkpoint=False)
        v.upsert([1], [[1.0]])
        path = tf.train.Checkpoint(v=v).write(self.path())
        names = [name for name, _ in tf.train.list_variables(path)]
        self.assertEmpty([name for name in names if "keys" in name or "values" in name])
        v.upsert([1], [[2.0]])
        tf.train.Checkpoint(v=v).read(path)
        self.assertAllEqual(v.lookup([1]), [[2.0]])

    @parameterized.parameters(
        {"dim": 3}, {"value_dtype": "float64"}, {"value_dtype": "bfloat16"}, {"key_dtype": "int32"}
    )
    def test_a_checkpoint_of_another_kind_of_table_is_refused(self, **options):
        v = tf_embed.Variable(dim=2)
        v.upsert([1], [[1.0, 2.0]])
        path = tf.train.Checkpoint(v=v).write(self.path())
        other = tf_embed.Variable(**{"dim": 2, **options})
        other.upsert([5], np.ones([1, other.dim]))
        with self.assertRaises((ValueError, tf.errors.OpError)):
            tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertAllEqual(other.export()[0], [5])

    def test_a_checkpoint_of_another_rule_keeps_the_weights_and_says_so(self):
        v = tf_embed.Variable(dim=2)
        adagrad = tf_embed.DynamicEmbeddingOptimizer("adagrad")
        step(v, adagrad, 0)
        path = tf.train.Checkpoint(v=v).write(self.path())
        other, optimizer = tf_embed.Variable(dim=2), adam()
        optimizer.build(other.trainable_variables)
        with self.assertLogs("absl", "WARNING") as logs:
            tf.train.Checkpoint(v=other).read(path)
        self.assertIn("now trained by the rule 'adam'", logs.output[0])
        self.assertAllEqual(other.lookup(KEYS), v.lookup(KEYS))
        step(other, optimizer, 1)
        self.assertEqual(other.table.export()[2].shape[1], 4)

    @parameterized.product(way=("wrapper", "own"), deferred=(False, True))
    def test_a_model_goes_on_where_it_was(self, way, deferred):
        def make() -> keras.Model:
            own = keras.optimizers.Adam(0.1) if way == "own" else None
            model = model_of(DynamicEmbedding(2, optimizer=own, name="mine"))
            model.compile("sgd" if way == "own" else adam(), "mse")
            return model

        model = make()
        fit(model)
        path = tf.train.Checkpoint(model=model).save(self.path())
        fit(model, 1)
        other = make()
        status = tf.train.Checkpoint(model=other).restore(path)
        if not deferred:  # otherwise the first step makes the optimizer's variables
            other.optimizer.build(other.trainable_variables)
            status.assert_existing_objects_matched()
        fit(other, 1)
        self.assertAllEqual(other.layers[0](tf.range(40)), model.layers[0](tf.range(40)))
        self.assertAllEqual(other.layers[-1].kernel, model.layers[-1].kernel)
        if way == "own":
            self.assertEqual(int(other.layers[0].optimizer.iterations), 6)

    def test_a_layer_that_is_not_built_yet_is_restored_when_it_is(self):
        layer = DynamicEmbedding(2, optimizer="adam")
        layer(tf.constant([1]))
        layer.variable.upsert([1], [[3.0, 4.0]])
        path = tf.train.Checkpoint(layer=layer).write(self.path())
        other = DynamicEmbedding(2, optimizer="adam")
        status = tf.train.Checkpoint(layer=other).read(path)
        self.assertAllEqual(other(tf.constant([1])), [[3.0, 4.0]])
        status.assert_consumed()


class KerasFileTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_layer_that_was_never_built_is_saved_without_rows(self):
        path = os.path.join(self.get_temp_dir(), "unbuilt.keras")
        keras.Sequential([DynamicEmbedding(2), keras.layers.Dense(1)]).save(path)
        model = keras.models.load_model(path)
        self.assertEqual(model(np.array([[1, 2]])).shape, (1, 2, 1))

    def test_a_built_layer_refuses_a_file_without_its_rows(self):
        layer = DynamicEmbedding(2)
        layer.load_own_variables({})
        layer.build()
        with self.assertRaisesRegex(ValueError, f"no rows for '{layer.name}'.$"):
            layer.load_own_variables({})

    def test_the_first_error_is_told_if_keras_tries_an_empty_place_next(self):
        layer = DynamicEmbedding(2, name="mine")
        layer.build()
        damaged = {**_own_variables(layer), "values": np.ones([1, 2])}
        for store, words in ((damaged, "^What the file has"), ({}, "no rows .* Before that: .*")):
            with self.assertRaisesRegex(ValueError, f"{words} of 'mine' is damaged"):
                layer.load_own_variables(store)

    def path(self, name: str) -> str:
        return os.path.join(self.get_temp_dir(), name)

    def compiled(self, way: str, **options: Any) -> keras.Model:
        own = keras.optimizers.Adagrad(0.1) if way == "own" else None
        model = model_of(DynamicEmbedding(2, optimizer=own, **options))
        model.compile("adam" if way == "own" else adam(), "mse")
        return model

    @parameterized.parameters("wrapper", "own")
    @pytest.mark.smoke
    def test_a_keras_file_goes_on_where_the_model_was(self, way):
        model = self.compiled(way)
        fit(model)
        path = self.path("model.keras")
        model.save(path)
        other = keras.models.load_model(path)
        self.assertEqual(other.layers[0].get_config(), model.layers[0].get_config())
        self.assertIs(type(other.optimizer), type(model.optimizer))
        ids = np.arange(60).reshape(20, 3)  # includes ids that were never seen
        self.assertAllEqual(other(ids), model(ids))
        fit(model, 1)
        fit(other, 1)
        self.assertAllEqual(other(ids), model(ids))
        self.assertEqual(int(other.optimizer.iterations), 6)
        if way == "own":
            self.assertEqual(int(other.layers[0].optimizer.iterations), 6)

    @parameterized.parameters("wrapper", "own")
    def test_weights_alone_go_into_a_model_of_other_shards(self, way):
        model = self.compiled(way)
        fit(model)
        path = self.path("model.weights.h5")
        model.save_weights(path)
        other = self.compiled(way, devices=["/CPU:0"] * 3, initializer="zeros")
        other.layers[0].variable.upsert([77], [[1.0, 1.0]])
        other.load_weights(path)
        table, other_table = (one.layers[0].variable.table for one in (model, other))
        for one, two in zip(table.export(), other_table.export(), strict=True):
            self.assertAllEqual(np.sort(one, axis=0), np.sort(two, axis=0))

    @parameterized.product(
        value_dtype=("bfloat16", "float16", "float64"), file=("x.keras", "x.weights.h5")
    )
    def test_narrow_rows_and_unsigned_keys_are_in_the_file(self, value_dtype, file):
        def make() -> keras.Model:
            layer = DynamicEmbedding(2, "uint64", value_dtype, optimizer="adagrad")
            return keras.Sequential([keras.Input([1], dtype="uint64"), layer])

        model, path = make(), self.path(file)
        v = model.layers[0].variable
        keys = np.array(EXTREME_KEYS["uint64"], np.uint64)
        v.upsert(keys, tf.cast(np.arange(len(keys) * 2).reshape(-1, 2) / 3, value_dtype))
        v.table.apply(
            tf.constant(keys),
            tf.ones([len(keys), 2], v.value_dtype),
            rule="adagrad",
            hyper=tf.constant([0.1, 0.0, 0.1, 1e-7], tf.float64),
            step=tf.constant(1, tf.int64),
        )
        if file.endswith(".keras"):
            model.save(path)
            other = keras.models.load_model(path)
        else:
            model.save_weights(path)
            other = make()
            other.load_weights(path)
        loaded = other.layers[0].variable
        self.assertAllEqual(loaded.lookup(keys), v.lookup(keys))
        self.assertAllEqual(np.sort(loaded.export()[0]), np.sort(keys))
        for one, two in zip(v.table.export()[2:], loaded.table.export()[2:], strict=True):
            self.assertAllEqual(np.sort(one, axis=0), np.sort(two, axis=0))

    def test_an_empty_table_is_saved_and_empties_the_one_it_is_loaded_into(self):
        path = self.path("model.weights.h5")
        self.compiled("own").save_weights(path)
        other = self.compiled("own")
        fit(other)
        other.load_weights(path)
        self.assertEqual(int(other.layers[0].variable.size()), 0)

    def test_a_file_of_another_table_is_refused_and_changes_nothing(self):
        path = self.path("model.weights.h5")
        model_of(DynamicEmbedding(3)).save_weights(path)
        for layer in (DynamicEmbedding(2), DynamicEmbedding(3, "int32")):
            model = keras.Sequential([keras.Input([3], dtype="int64"), layer])
            layer.variable.upsert([5], np.ones([1, layer.dim]))
            with self.assertRaisesRegex(
                ValueError, "it has key .* and the file has key int64, .*, dim 3"
            ):
                layer.load_own_variables(_own_variables(DynamicEmbedding(3)))
            self.assertAllEqual(layer.variable.export()[0], [5])
            del model
        with self.assertRaisesRegex(
            ValueError, "The file has no rows for .*: it has .* and no checksum"
        ):
            DynamicEmbedding(2).load_own_variables({"keys": np.zeros(0), "values": np.zeros(0)})

    def test_a_subclassed_model_is_saved(self):
        path = self.path("model.keras")
        model = Subclassed()
        model.compile("sgd", "mse")
        fit(model)
        model.save(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Keras warns if it could not build a part
            other = keras.models.load_model(path)
        ids = np.arange(60).reshape(20, 3)
        self.assertAllEqual(other(ids), model(ids))
        self.assertEqual(int(other.embed.optimizer.iterations), 3)

    def test_backup_and_checkpoint_callbacks_carry_the_rows(self):
        path = self.path("best.keras")
        model = self.compiled("own")
        callback = keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
        fit(model, callbacks=[callback])
        other = keras.models.load_model(path)
        ids = np.arange(60).reshape(20, 3)
        self.assertAllEqual(other(ids), model(ids))

    def test_the_old_h5_format_that_would_lose_rows_is_refused(self):
        with self.assertRaisesRegex(ValueError, r"can't be saved in Keras's old \.h5 format"):
            self.compiled("own").save(self.path("model.h5"))


@keras.saving.register_keras_serializable(package="test")
class Subclassed(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.embed = DynamicEmbedding(2, combiner="sum", optimizer="adam")
        self.head = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


def _own_variables(layer: Any) -> dict[str, Any]:
    store: dict[str, Any] = {}
    layer.build()
    layer.save_own_variables(store)
    return store


if __name__ == "__main__":
    tf.test.main()

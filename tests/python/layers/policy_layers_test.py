# SPDX-License-Identifier: Apache-2.0
"""Policies in Keras models, and in every save path that saves rows."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy
from tf_embed.layers import DynamicEmbedding

POLICY = TablePolicy(6, "lfu", CounterAdmission(2), ttl_seconds=1000, log_evicted=True)


def model_of(policy: Any = POLICY, shards: int = 1, **options: Any) -> keras.Model:
    layer = DynamicEmbedding(
        2,
        combiner="sum",
        optimizer="adam",
        policy=policy,
        devices=["/CPU:0"] * shards,
        name="mine",
        **options,
    )
    ids = keras.Input([2], dtype="int64")
    model = keras.Model(ids, layer(ids))
    model.compile("sgd", "mse")
    return model


def table_of(model: keras.Model) -> tf_embed.Variable:
    return model.get_layer("mine").variable


def fit(model: keras.Model, *batches: list[list[int]]) -> None:
    for ids in batches:
        model.fit(np.array(ids), np.ones([len(ids), 2]), verbose=0, batch_size=len(ids))


def trained(**options: Any) -> keras.Model:
    """A model in which ids 1 to 4 have rows, used 3, 2, 2 and 1 times, and id 5 waits."""
    model = model_of(**options)
    table_of(model).set_clock(time_ms=5000)
    fit(model, [[1, 2], [3, 1]], [[1, 2], [3, 4]], [[1, 2], [3, 4]], [[1, 5], [1, 1]])
    return model


def uses(v: tf_embed.Variable) -> dict[int, tuple[int, ...]]:
    keys = np.sort(v.export()[0])
    statistics = v.row_statistics(keys)
    assert statistics.pop("exists").numpy().all()
    columns = [one.numpy().tolist() for one in statistics.values()]
    return dict(zip(keys.tolist(), zip(*columns, strict=True), strict=True))


def checkpointed(model: keras.Model, folder: str) -> keras.Model:
    path = tf.train.Checkpoint(model=model).write(os.path.join(folder, "checkpoint"))
    other = model_of(shards=3)
    tf.train.Checkpoint(model=other).read(path).expect_partial()
    return other


def as_keras_file(model: keras.Model, folder: str) -> keras.Model:
    model.save(os.path.join(folder, "model.keras"))
    return keras.models.load_model(os.path.join(folder, "model.keras"))


def as_weights_file(model: keras.Model, folder: str) -> keras.Model:
    model.save_weights(os.path.join(folder, "model.weights.h5"))
    other = model_of(shards=2)
    other.load_weights(os.path.join(folder, "model.weights.h5"))
    return other


def set_weights(model: keras.Model, folder: str) -> keras.Model:
    other = model_of(shards=2)
    other.set_weights(model.get_weights())
    return other


def deep_copied(model: keras.Model, folder: str) -> keras.Model:
    return copy.deepcopy(model)


class SavePathsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters(
        checkpointed, as_keras_file, as_weights_file, set_weights, deep_copied
    )
    def test_statistics_and_counts_go_through(self, save_path: Callable[..., keras.Model]):
        model = trained()
        wanted = uses(table_of(model))
        self.assertEqual({key: use[-1] for key, use in wanted.items()}, {1: 3, 2: 2, 3: 2, 4: 1})
        other = save_path(model, self.folder())
        v = table_of(other)
        self.assertEqual(uses(v), wanted)
        self.assertEqual(v.policy, POLICY)
        v.set_clock(time_ms=6000)
        # Id 5 has been counted once, the clock has advanced, and the bound is 6 rows.
        fit(other, [[5, 5], [6, 7]], [[6, 7], [8, 8]], [[8, 8], [8, 8]])
        self.assertLessEqual(int(v.size()), 6)
        self.assertContainsSubset([1, 8], uses(v))
        gone = {*wanted, 5, 6, 7, 8} - set(uses(v))
        self.assertNotEmpty(gone)
        self.assertEqual(set(v.drain_evicted()[0].numpy().tolist()), gone)
        self.assertGreater(v.row_statistics([8])["last_step"][0], wanted[1][0])

    @parameterized.parameters("saved_model", "export")
    def test_a_served_model_has_the_rows_and_changes_nothing(self, save_path):
        model, folder = trained(), self.folder()
        if save_path == "export":
            model.export(folder, verbose=False)
            loaded = tf.saved_model.load(folder)
            serve = loaded.serve
        else:
            module = tf.Module()
            module.v = table_of(model)
            module.rows = tf.function(
                lambda ids: tf.reduce_sum(module.v.lookup(ids), 1),
                input_signature=[tf.TensorSpec([None, 2], tf.int64)],
            )
            tf.saved_model.save(module, folder)
            loaded = tf.saved_model.load(folder)
            serve = loaded.rows
        ids = tf.constant([[1, 2], [3, 99]], tf.int64)
        before = uses(table_of(model))
        for _ in range(3):
            self.assertAllEqual(serve(ids), model(ids))
        self.assertEqual(uses(table_of(model)), before)
        names = [name for name, _ in tf.train.list_variables(folder + "/variables/variables")]
        (statistics,) = (name for name in names if name.endswith("/statistics"))
        shapes = dict(tf.train.list_variables(folder + "/variables/variables"))
        self.assertEqual(shapes[statistics], [4, 0])

    @parameterized.parameters(
        (None, POLICY),
        (POLICY, None),
        (POLICY, TablePolicy(eviction="score")),
        (TablePolicy(eviction="lru"), POLICY),
    )
    def test_rows_go_from_any_policy_to_any_other(self, before, after):
        model, other = model_of(before), model_of(after, shards=3)
        upserted = np.arange(20)
        table_of(model).upsert(upserted, np.ones([20, 2], np.float32))
        path = tf.train.Checkpoint(model=model).write(os.path.join(self.folder(), "c"))
        tf.train.Checkpoint(model=other).read(path).expect_partial()
        v, stats = table_of(other), table_of(other).stats()
        self.assertEqual(stats["rows"], 6 if POLICY in (before, after) else 20)
        self.assertEqual(stats["evicted"], 14 if after is POLICY else 0)
        if after is POLICY:
            # Rows without known uses count as used now, but no step uses them, so others fit.
            v.upsert([100, 101, 102], np.ones([3, 2], np.float32))
            self.assertAllEqual(v.lookup([100, 101, 102], return_exists=True)[1], [True] * 3)
            self.assertEqual(int(v.size()), 6)

    def test_a_saved_policy_that_is_damaged_is_refused_and_nothing_changes(self):
        v = table_of(trained())
        other = table_of(trained())
        rows = v.table.export()
        damaged = ([], [2, 1, 0], [3, 1, 7], [1, -1, 7], [1, 1, 32], [1, 1], [1, 9, 3])
        epochs = ([1, 1, 23], [2, 1, 7, 0], [2, 1, 23], [2, 1, 23, -1], [2, 1, 23, 2**31])
        for policy in (*damaged, *epochs, [1, 2**62 + 1, 7]):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                other.table.import_(rows._replace(policy=tf.constant(policy, tf.int64)))
        for place in (3, 4, 5):  # positions in the counts of admission
            numbers = rows.policy.numpy()
            numbers[place] = -1 if place != 3 else 1
            if place == 3:
                numbers = numbers[:-1]
            with self.assertRaises(tf.errors.InvalidArgumentError):
                other.table.import_(rows._replace(policy=tf.constant(numbers)))
        with self.assertRaises(tf.errors.InvalidArgumentError):
            other.table.import_(rows._replace(statistics=rows.statistics[:, 1:]))
        self.assertEqual(uses(other), uses(v))


class LayerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(None, "sum")
    def test_a_training_call_is_a_use_and_others_are_not(self, combiner):
        layer = DynamicEmbedding(2, combiner=combiner, policy=TablePolicy(eviction="lfu"))
        layer.build()
        v = layer.variable
        v.upsert([1, 2, 3], np.ones([3, 2], np.float32))
        ids = tf.constant([[1, 2]], tf.int64)
        layer(ids)
        layer(ids, training=False)
        self.assertAllEqual(v.row_statistics([1, 2, 3])["count"], [1, 1, 1])
        layer(ids, training=True)
        tf.function(lambda: layer(ids, training=True))()
        layer(tf.ragged.constant([[3], []], dtype=tf.int64), training=True)
        self.assertAllEqual(v.row_statistics([1, 2, 3])["count"], [2, 2, 2])
        self.assertAllEqual(v.row_statistics([1])["last_step"], [2])

    def test_an_empty_upsert_ends_the_step_of_forward_passes(self):
        layer = DynamicEmbedding(2, policy=TablePolicy(3, "lru"))
        layer.build()
        v = layer.variable
        v.upsert([1, 2, 3], np.ones([3, 2], np.float32))
        layer(tf.constant([1]), training=True)
        layer(tf.constant([2, 3]), training=True)
        v.upsert([], np.ones([0, 2], np.float32))
        v.upsert([4, 5], np.ones([2, 2], np.float32))
        self.assertEqual((v.stats()["refused"], v.stats()["evicted"]), (0, 2))

    def test_a_tensor_as_training_is_refused_in_a_graph_too(self):
        layer = DynamicEmbedding(2, policy=TablePolicy())

        @tf.function
        def look(training: Any) -> Any:
            return layer(tf.constant([1, 2]), training=training)

        for function in (look, look.python_function):
            with self.assertRaisesRegex(TypeError, "`training` must be a Python bool"):
                function(tf.constant(True))

    def test_evaluate_and_predict_leave_no_trace(self):
        model = trained()
        before = uses(table_of(model))
        ids = np.array([[1, 2], [9, 9]])
        for _ in range(2):
            model.evaluate(ids, np.ones([2, 2]), verbose=0)
            model.predict(ids, verbose=0)
        self.assertEqual(uses(table_of(model)), before)

    def test_a_frozen_layer_counts_nothing_towards_admission(self):
        model = model_of()
        model.get_layer("mine").trainable = False
        fit(model, [[1, 2]], [[1, 2]], [[1, 2]])
        self.assertEqual(int(table_of(model).size()), 0)
        self.assertEqual(table_of(model).stats()["held_back"], 0)

    @parameterized.parameters(
        POLICY, None, TablePolicy(eviction="score", admission=BloomAdmission(2, 0.1))
    )
    def test_the_config_makes_the_same_layer(self, policy):
        layer = DynamicEmbedding(2, policy=policy)
        config = keras.saving.serialize_keras_object(layer)
        again = keras.saving.deserialize_keras_object(config)
        self.assertEqual(again.policy, policy)
        clone = keras.models.clone_model(model_of(policy))
        self.assertEqual(table_of(clone).policy, policy)

    def test_a_wrong_policy_is_refused_when_the_layer_is_made(self):
        with self.assertRaisesRegex(TypeError, "`policy` must be a tf_embed.TablePolicy"):
            DynamicEmbedding(2, policy="lru")
        with self.assertRaisesRegex(ValueError, "`max_rows` of `policy`"):
            DynamicEmbedding(2, policy=TablePolicy(2), devices=["/CPU:0"] * 3)

    @parameterized.parameters("mirrored", "one")
    def test_replicas_count_a_step_once(self, strategy):
        one = tf.distribute.OneDeviceStrategy("/CPU:0")
        with (two_replicas() if strategy == "mirrored" else one).scope():
            model = model_of(TablePolicy(eviction="lfu", admission=CounterAdmission(2)))
        fit(model, [[1, 2], [1, 3]])
        self.assertEqual(int(table_of(model).size()), 0)
        fit(model, [[1, 2], [1, 3]], [[1, 1], [1, 1]])
        self.assertEqual(
            {key: use[-1] for key, use in uses(table_of(model)).items()}, {1: 2, 2: 1, 3: 1}
        )


if __name__ == "__main__":
    tf.test.main()

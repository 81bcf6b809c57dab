# SPDX-License-Identifier: Apache-2.0
"""Loads without optimizer slots, in each way to load the files of a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from tf_embed.layers import DynamicEmbedding
from tf_embed.tbe import TableBatchedEmbeddingBags

DIM, SHARDS = 3, 2
IDS = np.arange(60).reshape(20, 3)
Load = Callable[[str, keras.Model], keras.Model]


def made(optimizer: Any = "adam") -> keras.Model:
    policy = tf_embed.TablePolicy(
        eviction="lru", admission=tf_embed.CounterAdmission(1), track_changes=True
    )
    layer = DynamicEmbedding(
        DIM,
        combiner="sum",
        optimizer=optimizer,
        policy=policy,
        devices=["/CPU:0"] * SHARDS,
        initializer=keras.initializers.RandomUniform(seed=7),
        name="items",
    )
    model = keras.Sequential([keras.Input([3], dtype="int64"), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def table_of(model: keras.Model) -> tf_embed.Variable:
    return model.layers[0].variable


def snapshots_of(model: keras.Model, folder: str) -> tf_embed.Snapshots:
    return tf_embed.Snapshots(folder, table_of(model))


def save(model: keras.Model, folder: str) -> None:
    model.save(f"{folder}/model.keras")
    model.save_weights(f"{folder}/model.weights.h5")
    tf.train.Checkpoint(model=model).write(f"{folder}/checkpoint")
    table_of(model).save_rows(folder, file_name="rows")
    snapshots_of(model, f"{folder}/snapshots").save("one")


def by_weights(folder: str, model: keras.Model) -> keras.Model:
    model.load_weights(f"{folder}/model.weights.h5")
    return model


def by_keras_file(folder: str, model: keras.Model) -> keras.Model:
    return keras.models.load_model(f"{folder}/model.keras")


def by_checkpoint(folder: str, model: keras.Model) -> keras.Model:
    tf.train.Checkpoint(model=model).read(f"{folder}/checkpoint").expect_partial()
    return model


def by_row_files(folder: str, model: keras.Model) -> keras.Model:
    table_of(model).load_rows(folder, file_name="rows")
    return model


def by_snapshot(folder: str, model: keras.Model) -> keras.Model:
    snapshots_of(model, f"{folder}/snapshots").load("one")
    return model


WAYS: dict[str, Load] = {
    one.__name__: one
    for one in (by_weights, by_keras_file, by_checkpoint, by_row_files, by_snapshot)
}


def slot_bytes(model: keras.Model) -> int:
    """The bytes of slots in a row. They depend on the rows, not on the optimizer to be used."""
    report = table_of(model).memory_report()
    return report.slot_bytes


class LoadedSlotsTest(tf.test.TestCase, parameterized.TestCase):
    folder: str

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.get_temp_dir(cls())
        cls.trained = made()
        rng = np.random.default_rng(reference.SEED)
        cls.trained.fit(IDS, rng.normal(size=20), verbose=0)
        save(cls.trained, cls.folder)

    @parameterized.product(way=list(WAYS), optimizer=[None, "adam", "adagrad"])
    @pytest.mark.smoke
    def test_rows_and_statistics_are_loaded_and_no_slots(self, way, optimizer):
        with tf_embed.load_without_slots():
            loaded = WAYS[way](self.folder, made(optimizer))
        keys = np.arange(70)  # includes untrained ids, which show the saved seed
        wanted, found = table_of(self.trained), table_of(loaded)
        self.assertAllEqual(found.lookup(keys), wanted.lookup(keys))
        self.assertEqual(int(found.size()), 60)
        for name, of_rows in wanted.row_statistics(keys).items():
            self.assertAllEqual(found.row_statistics(keys)[name], of_rows, name)
        slots = found.table.export().slots
        self.assertAllEqual(slots.shape, [60, 0])

    @parameterized.parameters(*WAYS)
    def test_slots_are_loaded_outside_of_the_block(self, way):
        with tf_embed.load_without_slots():
            pass
        loaded = WAYS[way](self.folder, made())
        found, wanted = (table_of(one).table.export() for one in (loaded, self.trained))
        order, wanted_order = np.argsort(found.keys), np.argsort(wanted.keys)
        self.assertEqual(wanted.slots.shape[1], 2 * DIM)
        self.assertAllEqual(found.slots.numpy()[order], wanted.slots.numpy()[wanted_order])

    @parameterized.parameters(*WAYS)
    def test_a_row_takes_the_memory_of_its_weights(self, way):
        with tf_embed.load_without_slots():
            loaded = WAYS[way](self.folder, made(None))
        if way != "by_keras_file":  # the layer in a Keras file has the optimizer
            self.assertEqual(slot_bytes(loaded), 0)
        self.assertEqual(slot_bytes(by_weights(self.folder, made(None))), 2 * 4 * DIM)

    @parameterized.parameters(*WAYS)
    def test_training_goes_on_with_new_slots(self, way):
        with tf_embed.load_without_slots():
            loaded = WAYS[way](self.folder, made())
        other = made()
        other.layers[0].optimizer.iterations.assign(loaded.layers[0].optimizer.iterations)
        other.layers[1].set_weights(loaded.layers[1].get_weights())
        keys = np.arange(60)
        table_of(other).upsert(keys, table_of(loaded).lookup(keys))
        for model in (loaded, other):
            model.train_on_batch(IDS, np.ones([20, 1]))
        self.assertAllClose(
            table_of(loaded).lookup(keys), table_of(other).lookup(keys), rtol=1e-6, atol=1e-7
        )

    def test_other_threads_and_an_error_in_the_block_change_nothing(self):
        with self.assertRaisesRegex(ValueError, "mine"), tf_embed.load_without_slots():
            raise ValueError("mine")
        with tf_embed.load_without_slots():
            with tf_embed.load_without_slots():
                pass
            model = by_row_files(self.folder, made(None))
        self.assertEqual(table_of(model).table.export().slots.shape[1], 0)
        model = by_row_files(self.folder, made(None))
        self.assertEqual(table_of(model).table.export().slots.shape[1], 2 * DIM)

    def test_tables_of_a_batched_layer_are_loaded_without_slots(self):
        def batched(optimizer: str) -> TableBatchedEmbeddingBags:
            layer = TableBatchedEmbeddingBags(
                [(None, DIM), (None, 2)], optimizer=optimizer, name="bags"
            )
            layer.build()
            return layer

        path = os.path.join(self.get_temp_dir(), "bags.weights.h5")
        trained = batched("ADAM")
        for table in trained.tables:
            table.upsert([1, 2], np.ones([2, table.dim]))
        ids = [keras.Input([1], dtype="int64") for _ in range(2)]
        keras.Model(ids, trained(ids)).save_weights(path)
        loaded = batched("ADAM")
        model = keras.Model(ids, loaded(ids))
        with tf_embed.load_without_slots():
            model.load_weights(path)
        for table in loaded.tables:
            self.assertAllEqual(table.table.export().slots.shape, [2, 0])
            self.assertAllEqual(table.lookup([1, 2]), np.ones([2, table.dim]))


if __name__ == "__main__":
    tf.test.main()

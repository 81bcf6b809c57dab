# SPDX-License-Identifier: Apache-2.0
"""Rows, slots and statistics from one shard to three to two, by each save path that keeps them."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_embed import Storage, TablePolicy
from tf_embed.layers import DynamicEmbedding

Content = dict[int, tuple[Any, ...]]


def model_of(shards: int, storage: Storage | None = None) -> keras.Model:
    layer = DynamicEmbedding(
        3,
        combiner="mean",
        optimizer="adam",
        initializer="uniform",
        policy=TablePolicy(eviction="lfu"),
        devices=["/CPU:0"] * shards,
        storage=storage,
        name="users",
    )
    ids = keras.Input([2], dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("sgd", "mse")
    return model


def table_of(model: keras.Model) -> Any:
    return model.get_layer("users").variable


def train(model: keras.Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        ids = rng.integers(-20, 20, [6, 2]) * (2**40 + 1)
        model.train_on_batch(ids, rng.normal(size=[6, 1]))


def content_of(model: keras.Model, with_all: bool = True) -> Content:
    """The content of the table by key: rows, and if `with_all` also slots and statistics."""
    v = table_of(model)
    keys, rows = v.export()
    parts = [rows]
    if with_all:
        parts += [slot.lookup(keys) for slot in v.slot_variables(v.anchor.own_trainer.optimizer)]
        parts += [tf.cast(one, tf.int64) for one in v.row_statistics(keys).values()]
    columns = [part.numpy().tolist() for part in parts]
    return dict(zip(keys.numpy().tolist(), zip(*columns, strict=True), strict=True))


def by_checkpoint(model: keras.Model, other: keras.Model, folder: str) -> None:
    path = tf.train.Checkpoint(model=model).write(os.path.join(folder, "c"))
    tf.train.Checkpoint(model=other).read(path).assert_existing_objects_matched()


def by_weights_file(model: keras.Model, other: keras.Model, folder: str) -> None:
    path = os.path.join(folder, "model.weights.h5")
    model.save_weights(path)
    other.load_weights(path)


def by_keras_file(model: keras.Model, other: keras.Model, folder: str) -> None:
    path = os.path.join(folder, "model.keras")
    model.save(path)
    other.load_weights(path)


def by_row_files(model: keras.Model, other: keras.Model, folder: str) -> None:
    table_of(model).save_rows(folder)
    table_of(other).load_rows(folder)


def by_weights(model: keras.Model, other: keras.Model, folder: str) -> None:
    del folder
    other.set_weights(model.get_weights())


class ReshardTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        case=(
            (by_checkpoint, True),
            (by_weights_file, True),
            (by_keras_file, True),
            (by_row_files, True),
            (by_weights, False),  # weights only, no optimizer state
        ),
        on_disk=((), (1, 2), (3,)),
    )
    @pytest.mark.smoke
    def test_one_to_three_to_two(self, case, on_disk):
        carry, with_all = case
        storages = {
            shards: Storage(host_bytes=600, path=tempfile.mkdtemp(dir=self.get_temp_dir()))
            for shards in on_disk
        }
        model = model_of(1, storages.get(1))
        train(model, 1)
        wanted = content_of(model, with_all)
        self.assertGreater(len(wanted), 10)
        for shards in (3, 2):
            other = model_of(shards, storages.get(shards))
            carry(model, other, tempfile.mkdtemp(dir=self.get_temp_dir()))
            self.assertEqual(content_of(other, with_all), wanted)
            sizes = [int(table_of(other).table.size(i)) for i in range(shards)]
            self.assertEqual(sum(sizes), len(wanted))
            self.assertNotIn(0, sizes)
            model = other

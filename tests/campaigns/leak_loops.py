# SPDX-License-Identifier: Apache-2.0
"""The loops of the leak campaign. A function for each sets it up and returns its cycle."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed import tbe

DIM = 8
KEYS = np.arange(500)
ROWS = np.ones([500, DIM], np.float32)
EXAMPLES = np.random.default_rng(0).integers(0, 1000, [64, 3])
CPUS = ["/CPU:0"] * 2

Cycle = Callable[[int], Any]


def variables(folder: str) -> Cycle:
    def cycle(i: int) -> None:
        initializer = keras.initializers.RandomUniform(-1.0, 1.0, seed=i)
        v = tf_embed.Variable(dim=DIM, name=f"v{i}", initializer=initializer)
        v.upsert(KEYS, ROWS)

    return cycle


def sharded(folder: str) -> Cycle:
    def cycle(i: int) -> None:
        v = tf_embed.Variable(dim=DIM, name=f"v{i}", devices=CPUS)
        v.upsert(KEYS, ROWS)

    return cycle


def settings(folder: str) -> Cycle:
    """Variables with new settings in each cycle."""

    def cycle(i: int) -> None:
        admission = tf_embed.BloomAdmission(2, 0.01 + i * 1e-6, 1000 + i)
        policy = tf_embed.TablePolicy(
            max_rows=300 + i, eviction="epoch_lru", steps_per_epoch=1 + i, admission=admission
        )
        v = tf_embed.Variable(dim=DIM, name="v", policy=policy, init_size=100 + i)
        v.upsert(KEYS, ROWS)

    return cycle


def policies(folder: str) -> Cycle:
    policy = tf_embed.TablePolicy(
        max_rows=300, log_evicted=True, admission=tf_embed.CounterAdmission(2, 100)
    )
    v = tf_embed.Variable(dim=DIM, name="v", policy=policy)
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    optimizer.build(v.trainable_variables)
    random = np.random.default_rng(1)

    def cycle(i: int) -> None:
        v.upsert(random.integers(0, 10**6, 200), ROWS[:200])
        gradient = tf.IndexedSlices(
            tf.ones([50, DIM]), tf.constant(random.integers(0, 10**6, 50), tf.int64)
        )
        optimizer.apply([gradient], v.trainable_variables)
        v.drain_evicted()

    return cycle


def drain(folder: str) -> Cycle:
    policy = tf_embed.TablePolicy(max_rows=100, log_evicted=True)

    def cycle(i: int) -> None:
        v = tf_embed.Variable(dim=DIM, policy=policy)
        v.upsert(KEYS, ROWS)
        v.upsert(KEYS + 1000, ROWS)
        if i % 2:
            v.drain_evicted()

    return cycle


def restrict(folder: str) -> Cycle:
    def cycle(i: int) -> None:
        v = tf_embed.tfra.Variable(dim=DIM, restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy)
        v.upsert(KEYS, ROWS)
        v.restrict(100)

    return cycle


def strings(folder: str) -> Cycle:
    v = tf_embed.Variable(key_dtype="string", value_dtype="string", dim=2, name="v")

    def cycle(i: int) -> None:
        fresh = [f"{i} {j}" * (1 + j % 60) for j in range(100)]
        v.upsert(fresh, [[string, string[::-1]] for string in fresh])
        v.remove(fresh)

    return cycle


def files(folder: str) -> Cycle:
    def cycle(i: int) -> None:
        saved = tf_embed.Variable(dim=DIM, name=f"v{i}")
        saved.upsert(KEYS, ROWS)
        saved.save_rows(folder)
        tf_embed.Variable(dim=DIM, name=f"v{i}").load_rows(folder)
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))

    return cycle


def checkpoint(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    v.upsert(KEYS, ROWS)

    def cycle(i: int) -> None:
        path = tf.train.Checkpoint(v=v).write(os.path.join(folder, "c"))
        tf.train.Checkpoint(v=v).read(path)

    return cycle


def eager(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    v.upsert(KEYS, ROWS)
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
    optimizer.build(v.trainable_variables)

    def cycle(i: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, KEYS))
        gradients = tape.gradient(loss, v.trainable_variables)
        optimizer.apply(gradients, v.trainable_variables)

    return cycle


def graph(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    keys = tf.constant(KEYS)

    @tf.function
    def look_up(keys: tf.Tensor) -> tf.Tensor:
        bags = tf.RaggedTensor.from_row_splits(keys, [0, 100, 500])
        return v.lookup(keys)[:2] + tf_embed.embedding_lookup_sparse(v, bags, None)

    return lambda i: look_up(keys)


def growth(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    random = np.random.default_rng(1)

    def cycle(i: int) -> None:
        for _ in range(5):
            v.upsert(random.integers(0, 2**60, 2000), np.ones([2000, DIM], np.float32))
        v.clear()

    return cycle


def optimizer(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    gradient = tf.IndexedSlices(tf.ones([500, DIM]), tf.constant(KEYS))

    def cycle(i: int) -> None:
        # Keras numbers optimizers without a name, and TensorFlow retains a kernel for each name.
        adam = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(name="adam"))
        adam.build(v.trainable_variables)
        adam.apply([gradient], v.trainable_variables)

    return cycle


def table_batched(folder: str) -> Cycle:
    indices, offsets = tf.constant(KEYS), tf.constant(np.arange(0, 501, 5))

    def cycle(i: int) -> None:
        layer = tbe.TableBatchedEmbeddingBags([(1000, DIM)], name="t")
        layer(indices, offsets)

    return cycle


class _EmbeddingWithOptimizer(keras.layers.Embedding):
    """Keras's layer with its own optimizer, like a dynamic layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizer = keras.optimizers.Adam()


def _model(is_plain: bool) -> keras.Model:
    """A model whose optimizer sees dense gradients only, as the table has its own optimizer."""
    layers: list[Any]
    if is_plain:
        embedding = _EmbeddingWithOptimizer(1000, DIM, trainable=False)
        layers = [embedding, keras.layers.GlobalAveragePooling1D()]
    else:
        layers = [tf_embed.layers.DynamicEmbedding(DIM, combiner="mean", optimizer="adam")]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


class _Lookup(tf.Module):
    """The content of a SavedModel: a table, and the function that reads it."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.lookup(keys)


def _loaded(folder: str, table: Any) -> Cycle:
    tf.saved_model.save(_Lookup(table), folder)
    return lambda i: tf.saved_model.load(folder).lookup(KEYS)


def loaded(folder: str) -> Cycle:
    v = tf_embed.Variable(dim=DIM, name="v")
    v.upsert(KEYS, ROWS)
    return _loaded(folder, v)


def plain_loaded(folder: str) -> Cycle:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0] * DIM)
    table.insert(KEYS, ROWS)
    return _loaded(folder, table)


def wrapped_models(folder: str) -> Cycle:
    """Models in which a single optimizer trains the dense weights and the rows."""

    def cycle(i: int) -> None:
        layer = tf_embed.layers.DynamicEmbedding(DIM, combiner="mean")
        model = keras.Sequential([layer, keras.layers.Dense(1)])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam())
        model.compile(optimizer, "mse")
        model.fit(EXAMPLES, np.ones(64), verbose=0)
        keras.backend.clear_session()

    return cycle


def plain_trained_models(folder: str) -> Cycle:
    def cycle(i: int) -> None:
        layers = [keras.layers.Embedding(1000, DIM), keras.layers.GlobalAveragePooling1D()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(EXAMPLES, np.ones(64), verbose=0)
        keras.backend.clear_session()

    return cycle


def _models(is_plain: bool) -> Cycle:
    def cycle(i: int) -> None:
        _model(is_plain).fit(EXAMPLES, np.ones(64), verbose=0)
        keras.backend.clear_session()

    return cycle


def models(folder: str) -> Cycle:
    return _models(is_plain=False)


def plain_models(folder: str) -> Cycle:
    return _models(is_plain=True)


def _weights(folder: str, is_plain: bool) -> Cycle:
    model = _model(is_plain)
    model.fit(EXAMPLES, np.ones(64), verbose=0)
    path = os.path.join(folder, "m.weights.h5")

    def cycle(i: int) -> None:
        model.set_weights(model.get_weights())
        model.save_weights(path)
        model.load_weights(path)

    return cycle


def weights(folder: str) -> Cycle:
    return _weights(folder, is_plain=False)


def plain_weights(folder: str) -> Cycle:
    return _weights(folder, is_plain=True)

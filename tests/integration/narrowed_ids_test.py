# SPDX-License-Identifier: Apache-2.0
"""Ids as inputs of every layer and function: a cast that would change an id raises an error."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import one_embedding, sok, tbe
from tf_embed import tfra as de

IDS = np.array([2**24, 2**24 + 1, 2**32 + 7, 7])
ERROR = tf.errors.InvalidArgumentError


def one_embedding_layer(key_type: str = "int64") -> Any:
    store = one_embedding.make_device_mem_store_options(tempfile.mkdtemp(), capacity=100)
    return one_embedding.MultiTableEmbedding(
        "items", 2, "float32", key_type, None, store, optimizer="sgd", devices="/CPU:0"
    )


# Layers that take ids [n] and return rows.
LAYERS: dict[str, Callable[[], Any]] = {
    "dynamic": lambda: tf_embed.layers.DynamicEmbedding(2, optimizer="sgd"),
    "dynamic int32": lambda: tf_embed.layers.DynamicEmbedding(2, "int32", optimizer="sgd"),
    "tfra": lambda: de.keras.layers.Embedding(2, optimizer="sgd"),
    "tbe": lambda: tbe.TableBatchedEmbeddingBags([(None, 2)]),
    "sok": lambda: sok.All2AllDenseEmbedding(100, 2, 1, 1, dynamic_input=True, optimizer="sgd"),
    "one_embedding": one_embedding_layer,
}


def sparse(ids: tf.Tensor) -> tf.SparseTensor:
    places = tf.range(tf.size(ids, tf.int64))
    indices = tf.stack([places, tf.zeros_like(places)], axis=1)
    return tf.SparseTensor(indices, ids, tf.stack([tf.size(ids, tf.int64), 1]))


def ragged(ids: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids, tf.int32))


# Functions that take a table and its ids [n] in a graph.
FUNCTIONS: dict[str, Callable[[Any, tf.Tensor], Any]] = {
    "embedding_lookup": tf_embed.embedding_lookup,
    "embedding_lookup_unique": tf_embed.embedding_lookup_unique,
    "unique_rows": tf_embed.unique_rows,
    "sparse": lambda v, ids: tf_embed.embedding_lookup_sparse(v, sparse(ids)),
    "ragged": lambda v, ids: tf_embed.embedding_lookup_sparse(v, ragged(ids)),
    "safe": lambda v, ids: tf_embed.safe_embedding_lookup_sparse(v, sparse(ids)),
    "sok": lambda v, ids: sok.lookup_sparse([v], [sparse(ids)], combiners=["sum"]),
    "lookup": lambda v, ids: v.lookup(ids),
    "upsert": lambda v, ids: v.upsert(ids, tf.ones([tf.size(ids), v.dim])),
    "remove": lambda v, ids: v.remove(ids),
}


def head(rows: Any, numbers: Any) -> Any:
    return keras.layers.Dense(1)(keras.layers.Concatenate()([rows, numbers]))


def functional(layer: Any) -> keras.Model:
    features = keras.Input([2])
    rows = layer(keras.ops.cast(features[:, 0], "int64"))
    return keras.Model(features, head(rows, features[:, 1:]))


class Subclassed(keras.Model):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.table, self.dense = layer, keras.layers.Dense(1)

    def call(self, features: Any) -> Any:
        rows = self.table(keras.ops.cast(features[:, 0], "int64"))
        return self.dense(keras.ops.concatenate([rows, features[:, 1:]], axis=-1))


class FirstLayerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        layer=[name for name in LAYERS if name != "dynamic int32"],
        is_built=(False, True),
        run_eagerly=(False, True),
    )
    def test_the_first_layer_of_a_sequential_model_gets_ids_whole(
        self, layer, is_built, run_eagerly
    ):
        ids, table = np.array([2**40 + 1, 2**40 + 2, -5]), LAYERS[layer]()
        if is_built:
            table(tf.constant(ids))
        model = keras.Sequential([table, keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
        model.fit(ids, np.ones([3, 1]), verbose=0)
        variables = {"tbe": "tables", "one_embedding": "row_tables"}
        tables = getattr(table, variables[layer]) if layer in variables else [table.variable]
        self.assertAllEqual(np.sort(tables[0].export()[0]), np.sort(ids))
        self.assertEqual(table.compute_dtype, "float32")
        self.assertEqual(model.predict(ids, verbose=0).dtype, np.float32)


class NarrowedIdsTest(tf.test.TestCase, parameterized.TestCase):
    def refuses(self, what: str, call: Callable[[], Any]) -> None:
        with self.assertRaisesRegex(ERROR, f"must not be {what}"):
            call()

    @parameterized.product(layer=list(LAYERS), make=(functional, Subclassed))
    @pytest.mark.smoke
    def test_an_id_column_of_a_matrix_of_floats_trains_if_it_is_exact(self, layer, make):
        model = make(LAYERS[layer]())
        model.compile("sgd", "mse")
        few = np.stack([np.arange(4), np.linspace(0.1, 0.4, 4)], axis=1)  # float64, as from pandas
        model.fit(few, np.ones([4, 1]), verbose=0)
        for wrong in (2**24 + few, np.where(few == 3, np.nan, few)):
            for call in (
                lambda wrong=wrong: model.fit(wrong, np.ones([4, 1]), verbose=0),
                lambda wrong=wrong: model.evaluate(wrong, np.ones([4, 1]), verbose=0),
                lambda wrong=wrong: model.predict(wrong, verbose=0),
                lambda wrong=wrong: model.train_on_batch(wrong, np.ones([4, 1])),
            ):
                self.refuses("rounded", call)

    @parameterized.parameters(*LAYERS)
    def test_an_input_of_narrow_integers_refuses_wide_ids(self, layer):
        inputs = keras.Input([], dtype="int32")
        model = keras.Model(inputs, keras.layers.Dense(1)(LAYERS[layer]()(inputs)))
        model.compile("sgd", "mse")
        model.fit(IDS[:2], np.ones([2, 1]), verbose=0)
        self.refuses("changed", lambda: model.fit(IDS, np.ones([4, 1]), verbose=0))
        self.refuses("changed", lambda: model.predict(IDS, verbose=0))

    @parameterized.parameters("int64", "uint64", "uint32", "int32", "int16", "int8")
    def test_an_input_of_integers_refuses_what_it_would_change(self, dtype):
        inputs = keras.Input([], dtype=dtype)
        model = keras.Model(inputs, tf_embed.layers.DynamicEmbedding(1, "uint64")(inputs))
        most = np.iinfo(dtype).max
        model.predict(np.array([most], dtype), verbose=0)
        model.predict(np.array([100.0]), verbose=0)
        self.refuses("", lambda: model.predict(np.array([2.0**24]), verbose=0))
        self.refuses("", lambda: model.predict(np.array([np.nan]), verbose=0))
        if most < 2**63:
            wide = np.array([most + 1], np.uint64 if dtype == "int64" else np.int64)
            self.refuses("changed", lambda: model.predict(wide, verbose=0))

    @parameterized.parameters(*FUNCTIONS)
    def test_functions_on_tables_refuse_ids_that_a_cast_has_changed(self, name):
        v = tf_embed.Variable(dim=1, name="items")

        @tf.function
        def of_floats(x: tf.Tensor) -> None:
            FUNCTIONS[name](v, tf.cast(x[:, 0], tf.int64))

        @tf.function
        def of_integers(x: tf.Tensor) -> None:
            FUNCTIONS[name](v, tf.cast(tf.cast(x, tf.int32), tf.int64))

        of_floats(tf.constant([[3.0]]))
        of_integers(tf.constant([3], tf.int64))
        self.refuses("rounded", lambda: of_floats(tf.constant([[2.0**24]])))
        self.refuses("changed", lambda: of_integers(tf.constant([2**32], tf.int64)))


if __name__ == "__main__":
    tf.test.main()

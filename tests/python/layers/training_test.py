# SPDX-License-Identifier: Apache-2.0
"""Whole models, trained in every way that Keras has, against models with dense embeddings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

VOCABULARY = 12
DIM = 4
# For 12 float32 steps through a model with another order of sums: see also optimizers_test.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def start(name: str) -> np.ndarray:
    """The first rows of the embedding with this name."""
    return np.random.default_rng(list(name.encode())).normal(size=[VOCABULARY, DIM]) * 0.3


class OneHot(keras.layers.Layer):
    """A dense embedding with a dense gradient.

    The gradient of keras.layers.Embedding is IndexedSlices. Keras's optimizers square its values
    before they sum the values of equal ids.
    """

    def build(self, _: Any) -> None:
        self.rows = self.add_weight(shape=(VOCABULARY, DIM), initializer="zeros")

    def call(self, ids: Any) -> Any:
        return tf.one_hot(ids, VOCABULARY) @ self.rows


class Embeddings:
    """Makes embeddings by name, dynamic or dense, that start from the same rows."""

    def __init__(self, dynamic: bool, own: Callable[[], Any] | None = None) -> None:
        self.dynamic, self.own = dynamic, own
        self.made: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if self.dynamic:
            layer = DynamicEmbedding(DIM, name=name, optimizer=self.own() if self.own else None)
            layer.build()
            layer.variable.upsert(range(VOCABULARY), start(name))
        else:
            layer = OneHot(name=name)
            layer.build(None)
            layer.set_weights([start(name)])
        self.made[name] = layer
        return layer

    def rows(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(layer(tf.range(VOCABULARY))) for name, layer in self.made.items()}


def dense_head() -> list[Any]:
    glorot = keras.initializers.GlorotUniform
    return [
        keras.layers.Dense(8, "tanh", kernel_initializer=glorot(1)),
        keras.layers.Dense(1, kernel_initializer=glorot(2)),
    ]


def sequential(embed: Embeddings) -> keras.Model:
    return keras.Sequential(
        [keras.Input([6], dtype="int64"), embed("a"), keras.layers.Flatten(), *dense_head()]
    )


def functional(embed: Embeddings) -> keras.Model:
    """Two tables, and a layer that is called twice."""
    inputs = keras.Input([6], dtype="int64")
    a, b = embed("a"), embed("b")
    parts = [a(inputs[:, :3]), b(inputs[:, 3:]), a(inputs[:, 3:])]
    outputs = keras.layers.Flatten()(keras.layers.Concatenate(axis=1)(parts))
    for layer in dense_head():
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):
    def __init__(self, embed: Embeddings) -> None:
        super().__init__()
        self.a, self.b = embed("a"), embed("b")
        self.head = dense_head()

    def call(self, ids: Any) -> Any:
        rows = tf.concat([self.a(ids[:, :3]), self.b(ids[:, 3:]), self.a(ids[:, 3:])], 1)
        outputs = tf.reshape(rows, [-1, 9 * DIM])
        for layer in self.head:
            outputs = layer(outputs)
        return outputs


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
}
MODELS = {"sequential": sequential, "functional": functional, "subclassed": Subclassed}


def data(count: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Batches of 8 examples. Each batch has every id in each half of its columns."""
    rng = np.random.default_rng(SEED)
    halves = [
        np.concatenate([rng.permutation(np.repeat(range(VOCABULARY), 2)).reshape(8, 3)])
        for _ in range(count // 8 * 2)
    ]
    ids = np.concatenate(
        [np.concatenate(halves[i : i + 2], axis=1) for i in range(0, len(halves), 2)]
    )
    return ids, rng.normal(size=[len(ids), 1]).astype(np.float32)


@functools.cache
def dense_rows(model: str, optimizer: str, epochs: int = 2) -> tuple[dict[str, np.ndarray], Any]:
    """The rows and the losses of the dense model after training."""
    embed = Embeddings(False)
    history = fit(MODELS[model](embed), OPTIMIZERS[optimizer](), epochs, jit_compile=False)
    return embed.rows(), history.history["loss"]


def fit(model: keras.Model, optimizer: Any, epochs: int = 2, **options: Any) -> Any:
    model.compile(optimizer, "mse", **options)
    ids, labels = data()
    return model.fit(ids, labels, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


class EqualToKerasTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, embed: Embeddings, dense: dict[str, np.ndarray]) -> None:
        for name, rows in dense.items():
            self.assertAllClose(embed.rows()[name], rows, **CLOSE, msg=name)
            self.assertNotAllClose(rows, start(name), rtol=1e-2)
            self.assertEqual(int(embed.made[name].variable.size()), VOCABULARY)

    @parameterized.product(model=tuple(MODELS), way=("wrapper", "own"))
    @pytest.mark.smoke
    def test_fit_trains_the_rows_of_a_dense_model(self, model, way):
        adam = OPTIMIZERS["adam"]
        embed = Embeddings(True, adam if way == "own" else None)
        optimizer = adam() if way == "own" else tf_embed.DynamicEmbeddingOptimizer(adam())
        history = fit(MODELS[model](embed), optimizer)
        dense, losses = dense_rows(model, "adam")
        self.check(embed, dense)
        self.assertAllClose(history.history["loss"], losses, rtol=1e-4)

    @parameterized.parameters("sgd", "nesterov", "adagrad", "adamw")
    def test_two_tables_and_a_layer_called_twice_under_other_optimizers(self, name):
        embed = Embeddings(True)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS[name]())
        fit(Subclassed(embed), optimizer)
        self.check(embed, dense_rows("subclassed", name)[0])

    @parameterized.parameters(({"run_eagerly": True},), ({"steps_per_execution": 3},))
    def test_every_way_of_fit_gives_the_same(self, options):
        embed = Embeddings(True)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS["adam"]())
        fit(Subclassed(embed), optimizer, **options)
        self.check(embed, dense_rows("subclassed", "adam")[0])

    @parameterized.product(way=("wrapper", "own"), tape=("inside", "outside", "eager"))
    def test_custom_loops_give_the_same(self, way, tape):
        adam = OPTIMIZERS["adam"]
        embed = Embeddings(True, adam if way == "own" else None)
        model = Subclassed(embed)
        optimizer = adam() if way == "own" else tf_embed.DynamicEmbeddingOptimizer(adam())
        forward = tf.function(model) if tape == "outside" else model

        def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as gradient_tape:
                loss = tf.reduce_mean(tf.square(forward(ids) - labels))
            variables = model.trainable_variables
            optimizer.apply_gradients(
                zip(gradient_tape.gradient(loss, variables), variables, strict=True)
            )

        if tape == "inside":
            step = tf.function(step)
        ids, labels = data()
        batches = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(8).repeat(2)
        for batch in batches:
            step(*batch)
        self.check(embed, dense_rows("subclassed", "adam")[0])

    def test_train_on_batch_and_a_train_step_of_ones_own(self):
        class Own(Subclassed):
            def train_step(self, batch: Any) -> dict[str, Any]:
                ids, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(ids, labels, self(ids, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                return {"loss": loss}

        embed = Embeddings(True)
        model = Own(embed)
        model.compile(tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS["adam"]()), "mse")
        ids, labels = data()
        for i in [*range(0, len(ids), 8), *range(0, len(ids), 8)]:
            model.train_on_batch(ids[i : i + 8], labels[i : i + 8])
        self.check(embed, dense_rows("subclassed", "adam")[0])

    def test_sample_weights_and_ids_without_weight(self):
        ids, labels = data()
        weights = np.random.default_rng(SEED).random(len(ids))
        results = []
        for dynamic in (False, True):
            embed = Embeddings(dynamic)
            model = sequential(embed)
            optimizer = OPTIMIZERS["sgd"]()
            if dynamic:
                optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
            model.compile(optimizer, "mse", jit_compile=False)
            model.fit(ids, labels, sample_weight=weights, shuffle=False, verbose=0)
            results.append(embed.rows()["a"])
        self.assertAllClose(*results, **CLOSE)


class UnchangedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("wrapper", "own")
    @pytest.mark.smoke
    def test_evaluate_and_predict_never_change_a_table(self, way):
        embed = Embeddings(True, (lambda: "adam") if way == "own" else None)
        model = Subclassed(embed)
        fit(model, "sgd" if way == "own" else tf_embed.DynamicEmbeddingOptimizer("sgd"), 1)
        table = embed.made["a"].variable.table
        before = [tensor.numpy() for tensor in table.export()]
        ids = data()[0] + 1000
        model.evaluate(ids, np.zeros(len(ids)), verbose=0)
        model.predict(ids, verbose=0)
        model(ids)
        model(ids, training=True)
        for one, other in zip(before, table.export(), strict=True):
            self.assertAllEqual(one, other)

    @parameterized.product(
        way=("wrapper", "own"), when=("before", "after"), what=("layer", "model")
    )
    def test_what_is_not_trainable_is_not_updated(self, way, when, what):
        embed = Embeddings(True, (lambda: "sgd") if way == "own" else None)
        model = sequential(embed)
        frozen = model if what == "model" else model.layers[0]
        before = embed.rows()["a"]
        optimizer = "sgd" if way == "own" else tf_embed.DynamicEmbeddingOptimizer("sgd")
        ids, labels = data()
        if when == "before":
            frozen.trainable = False
            model.compile(optimizer, "mse")
        else:
            model.compile(optimizer, "mse")
            model.fit(ids, labels, verbose=0)
            self.assertNotAllEqual(embed.rows()["a"], before)
            before = embed.rows()["a"]
            frozen.trainable = False
            model.compile(optimizer, "mse")
        model.fit(np.concatenate([ids, ids + 50]), np.tile(labels, [2, 1]), verbose=0)
        self.assertAllEqual(embed.rows()["a"], before)
        self.assertEqual(int(embed.made["a"].variable.size()), VOCABULARY)
        frozen.trainable = True
        model.compile("sgd" if way == "own" else tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
        model.fit(ids, labels, verbose=0)
        self.assertNotAllEqual(embed.rows()["a"], before)

    @parameterized.parameters("wrapper", "own")
    def test_freezing_between_steps_of_a_custom_loop_is_heeded(self, way):
        embed = Embeddings(True, (lambda: "sgd") if way == "own" else None)
        layer = embed("a")
        optimizer = keras.optimizers.get("sgd")
        if way == "wrapper":
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
        anchor = layer.variable.anchor
        gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))
        optimizer.apply([gradient], [anchor])
        before = embed.rows()["a"]
        layer.trainable = False
        optimizer.apply([gradient], [anchor])
        self.assertAllEqual(embed.rows()["a"], before)


class InputTest(tf.test.TestCase, parameterized.TestCase):
    def one_step(self, model: keras.Model, ids: Any) -> None:
        model.compile(
            tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0)),
            lambda y, predicted: predicted,
        )
        dataset = tf.data.Dataset.from_tensor_slices((ids, tf.zeros([3, 2]))).batch(3)
        model.fit(dataset, verbose=0)

    @parameterized.parameters("ragged", "sparse")
    def test_models_with_ragged_and_sparse_inputs_fit(self, kind):
        layer = DynamicEmbedding(2, initializer="zeros", combiner="sum")
        inputs = keras.Input([None], dtype="int64", **{kind: True})
        if kind == "sparse":
            inputs = keras.Input([3], dtype="int64", sparse=True)
        model = keras.Model(inputs, layer(inputs))
        ids = tf.ragged.constant([[1, 2, 1], [], [2]], dtype=tf.int64)
        self.one_step(model, ids if kind == "ragged" else ids.to_sparse())
        # A loss of [3, 2] numbers is a mean over 3 x 2 of them.
        self.assertAllClose(layer.variable.lookup([1, 2]), np.full([2, 2], -2 / 6))
        self.assertEqual(int(layer.variable.size()), 2)

    def test_an_empty_batch_changes_nothing(self):
        layer = DynamicEmbedding(2, optimizer="adam")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.zeros([0, 3], tf.int64)))
        (gradient,) = tape.gradient(loss, layer.trainable_variables)
        keras.optimizers.SGD().apply([gradient], layer.trainable_variables)
        self.assertEqual(int(layer.variable.size()), 0)

    def test_a_layer_that_a_step_does_not_call_is_left_alone(self):
        one, other = DynamicEmbedding(2), DynamicEmbedding(2)
        one.build(), other.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer("sgd")
        variables = one.trainable_variables + other.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(one(tf.constant([1])))
        optimizer.apply(tape.gradient(loss, variables), variables)
        self.assertEqual([int(one.variable.size()), int(other.variable.size())], [1, 0])

    def test_ids_that_were_never_declared_are_learned(self):
        rng = np.random.default_rng(SEED)
        ids = rng.integers(-(2**63), 2**63 - 1, 50)
        labels = rng.integers(0, 2, 50).astype(np.float32)
        model = keras.Sequential(
            [
                keras.Input([1], dtype="int64"),
                DynamicEmbedding(4, optimizer=keras.optimizers.Adam(0.05)),
                keras.layers.Flatten(),
                keras.layers.Dense(1, "sigmoid"),
            ]
        )
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        model.fit(ids[:, np.newaxis], labels, epochs=30, verbose=0)
        self.assertEqual(model.evaluate(ids[:, np.newaxis], labels, verbose=0)[1], 1.0)
        self.assertEqual(int(model.layers[0].variable.size()), 50)

    def test_a_model_inside_a_model(self):
        inner = keras.Sequential([keras.Input([2], dtype="int64"), DynamicEmbedding(2)])
        inputs = keras.Input([2], dtype="int64")
        model = keras.Model(inputs, keras.layers.Flatten()(inner(inputs)))
        model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
        model.fit(np.array([[1, 2]]), np.ones([1, 4]), verbose=0)
        self.assertEqual(int(inner.layers[0].variable.size()), 2)


if __name__ == "__main__":
    tf.test.main()

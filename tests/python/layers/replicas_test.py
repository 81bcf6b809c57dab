# SPDX-License-Identifier: Apache-2.0
"""tf.distribute: two replicas on two logical CPUs train a table like a single replica."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import CPUS, two_replicas
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.layers import DynamicEmbedding

COUNTER = {
    "weight_decay_mode": tbe.WeightDecayMode.COUNTER,
    "counter_based_regularization": tbe.CounterBasedRegularizationDefinition(
        tail_id_threshold=tbe.TailIdThreshold(0.5, is_ratio=True)
    ),
}

VOCABULARY, DIM, BATCH = 12, 4, 8
# A replica sums its own half of a batch first, so sums differ in their last bits.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
}


def strategy_of(replicas: int) -> tf.distribute.Strategy:
    return two_replicas() if replicas == 2 else tf.distribute.get_strategy()


def data(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    return rng.integers(0, VOCABULARY, [count, 3]), rng.normal(size=[count, 1]).astype(np.float32)


class OneHot(keras.layers.Layer):
    """A dense embedding with the dynamic embedding's first rows."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.start = rows

    def build(self, _: Any) -> None:
        self.rows = self.add_weight(shape=self.start.shape, initializer=lambda *a, **k: self.start)

    def call(self, ids: Any) -> Any:
        return tf.one_hot(ids, VOCABULARY) @ self.rows


def dynamic(own: Any = None) -> DynamicEmbedding:
    initializer = keras.initializers.RandomNormal(seed=3)
    return DynamicEmbedding(DIM, initializer=initializer, optimizer=own, name="mine")


def model_of(embedding: Any) -> keras.Model:
    glorot = keras.initializers.GlorotUniform(2)
    head = keras.layers.Dense(1, kernel_initializer=glorot)
    return keras.Sequential(
        [keras.Input([3], dtype="int64"), embedding, keras.layers.Flatten(), head]
    )


def fit(replicas: int, way: str, kind: str, count: int = 40, **options: Any) -> keras.Model:
    with strategy_of(replicas).scope():
        embedding = dynamic(OPTIMIZERS[kind]() if way == "own" else None)
        if way == "dense":
            embedding = OneHot(dynamic_start())
        model = model_of(embedding)
        optimizer = OPTIMIZERS[kind]()
        if way == "wrapper":
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
        model.compile(optimizer, "mse", jit_compile=False, **options)
    ids, labels = data(count)
    model.fit(ids, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model


def dynamic_start() -> np.ndarray:
    layer = dynamic()
    return np.asarray(layer(tf.range(VOCABULARY)))


def rows_of(model: keras.Model) -> np.ndarray:
    return np.asarray(model.layers[0](tf.range(VOCABULARY)))


class TwoReplicasTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("wrapper", "adam", False), ("own", "momentum", False), ("own", "adam", True)
    )
    @pytest.mark.smoke
    def test_fit_equals_one_replica(self, way, kind, run_eagerly):
        one = fit(1, way, kind)
        two = fit(2, way, kind, run_eagerly=run_eagerly)
        self.assertAllClose(rows_of(two), rows_of(one), **CLOSE)
        self.assertAllClose(two.layers[-1].kernel, one.layers[-1].kernel, **CLOSE)
        self.assertNotAllClose(rows_of(two), dynamic_start())
        optimizer = two.optimizer if way == "wrapper" else two.layers[0].optimizer
        self.assertEqual(int(keras.ops.convert_to_numpy(optimizer.iterations)), 10)

    @parameterized.parameters(("sgd", 35), ("adagrad", 35))
    def test_fit_equals_a_dense_embedding_also_in_an_uneven_last_batch(self, kind, count):
        dense = fit(2, "dense", kind, count)
        table = fit(2, "wrapper", kind, count)
        self.assertAllClose(rows_of(table), rows_of(dense), rtol=1e-4, atol=1e-5)
        self.assertAllEqual(
            np.sort(table.layers[0].variable.export()[0]), np.unique(data(count)[0])
        )

    @parameterized.parameters(("wrapper", True), ("own", True), ("wrapper", False))
    def test_a_custom_loop_with_an_uneven_batch_equals_one_replica(self, way, in_graph):
        ids, labels = data(11)  # 6 examples for one replica and 5 for the other

        def train(replicas: int) -> np.ndarray:
            strategy = strategy_of(replicas)
            with strategy.scope():
                embedding = dynamic(OPTIMIZERS["adam"]() if way == "own" else None)
                model = model_of(embedding)
                optimizer = OPTIMIZERS["adam"]()
                if way == "wrapper":
                    optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
                optimizer.build(model.trainable_variables)
            batches = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(11)

            def step(ids: tf.Tensor, labels: tf.Tensor) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.square(model(ids) - labels)) / 11
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply(gradients, model.trainable_variables)

            def run(ids: Any, labels: Any) -> None:
                strategy.run(step, (ids, labels))

            run = tf.function(run) if in_graph else run
            for _ in range(4):
                for batch in strategy.experimental_distribute_dataset(batches):
                    run(*batch)
            return rows_of(model)

        self.assertAllClose(train(2), train(1), **CLOSE)

    def test_a_replica_without_lines_adds_nothing(self):
        with two_replicas().scope():
            layer = dynamic()
            layer.build()
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            optimizer.build(layer.trainable_variables)
        before = np.asarray(layer(tf.range(4)))

        def replica() -> None:
            which = tf.distribute.get_replica_context().replica_id_in_sync_group
            ids = tf.range(3 * (1 - which))  # 0, 1, 2 in the first replica, none in the second
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids))
            optimizer.apply(tape.gradient(loss, layer.trainable_variables))

        tf.function(lambda: two_replicas().run(replica))()
        self.assertAllClose(layer(tf.range(4)) - before, [[-0.1] * DIM] * 3 + [[0.0] * DIM])
        self.assertEqual(int(layer.variable.size()), 3)

    @parameterized.parameters(
        (lambda: keras.optimizers.Nadam(), "Nadam"),
        (lambda: tbe.RowwiseAdagrad(**COUNTER), ", which counts the steps of all rows"),
        (lambda: keras.optimizers.Adam(use_ema=True), "use_ema"),
        (lambda: keras.optimizers.Adam(global_clipnorm=1.0), "global_clipnorm"),
        (lambda: keras.optimizers.Adam(gradient_accumulation_steps=2), "accumulation"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "LossScale"),
    )
    def test_what_several_replicas_cannot_do_is_refused_when_it_is_built(self, make, name):
        with two_replicas().scope():
            model = model_of(dynamic())
            optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
            with self.assertRaisesRegex(ValueError, f"MirroredStrategy.*{name}"):
                optimizer.build(model.trainable_variables)

    def test_an_own_optimizer_that_several_replicas_cannot_run_is_refused(self):
        words = (
            "Mirrored.* dynamic tables are trained by .*Nadam, whose rule runs outside of the table"
        )
        refusal = self.assertRaisesRegex(ValueError, words)
        with two_replicas().scope(), refusal:
            dynamic("nadam").build()


class OtherStrategiesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (lambda: tf.distribute.OneDeviceStrategy("/CPU:0"), "adam"),
        (lambda: tf.distribute.OneDeviceStrategy("/CPU:0"), "nadam"),
        (lambda: tf.distribute.MirroredStrategy(CPUS[:1]), "adam"),
    )
    def test_one_replica_is_as_none(self, make, kind):
        def train() -> np.ndarray:
            model = model_of(dynamic())
            model.compile(tf_embed.DynamicEmbeddingOptimizer(kind), "mse")
            ids, labels = data(16)
            model.fit(ids, labels, batch_size=BATCH, shuffle=False, verbose=0)
            return rows_of(model)

        plain = train()
        keras.utils.clear_session(free_memory=False)
        with make().scope():
            self.assertAllClose(train(), plain, **CLOSE)

    def test_strategies_of_several_machines_are_refused_by_name(self):
        strategy = tf.distribute.experimental.CentralStorageStrategy(["/CPU:0", "/CPU:1"])
        words = "Dynamic tables may be made under .*Received: CentralStorageStrategy"
        with strategy.scope(), self.assertRaisesRegex(ValueError, words):
            tf_embed.Variable(dim=1)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The layers of `tf_embed.tfra.keras.layers` in training, against dense layers of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.tfra_cases import (
    BAGS,
    DIM,
    LINES,
    ROWS,
    filled,
    in_containers,
)
from support.oracles.reference import SEED
from tf_embed.tfra.keras.layers import Embedding, LayerNormalization, SquashedEmbedding


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    @parameterized.product(way=("wrapper", "own"), optimizer=("SGD", "Adam", "Ftrl"))
    def test_fit_trains_rows_as_those_of_a_dense_layer(self, way, optimizer):
        # Each batch touches every row, since a dense Adam also moves untouched rows.
        generator = np.random.default_rng(SEED)
        ids = np.concatenate([generator.permutation(10).reshape([5, 2]) for _ in range(8)])
        labels = generator.normal(size=[40, 1]).astype(np.float32)
        kind = getattr(keras.optimizers, optimizer)

        def fitted(embedding: keras.Layer, outer: Any) -> keras.Model:
            inputs = keras.Input([2], dtype="int64")
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1))
            model = keras.Model(inputs, dense(keras.layers.Flatten()(embedding(inputs))))
            model.compile(outer, "mse")
            model.fit(ids, labels, batch_size=5, shuffle=False, epochs=2, verbose=0)
            return model

        wanted = keras.layers.Embedding(10, DIM, embeddings_initializer=lambda *_, **__: ROWS)
        own = kind(0.05) if way == "own" else None
        layer = filled(optimizer=own)
        outer = kind(0.05) if own else tf_embed.DynamicEmbeddingOptimizer(kind(0.05))
        fitted(wanted, kind(0.05))
        fitted(layer, outer)
        rows = layer.params.lookup(range(10))
        self.assertNotAllClose(rows, ROWS, rtol=1e-2)
        self.assertAllClose(rows, wanted.embeddings, rtol=2e-5, atol=2e-6)

    def test_ids_come_by_training_alone(self):
        layer = SquashedEmbedding(2)
        model = keras.Sequential([keras.Input([3], dtype="int64"), layer])
        model.compile(tf_embed.DynamicEmbeddingOptimizer("adam"), "mse")
        ids, labels = np.arange(30).reshape([10, 3]) * 10**12, np.ones([10, 2])
        model.predict(ids, verbose=0)
        model.evaluate(ids, labels, verbose=0)
        self.assertEqual(int(layer.params.size()), 0)
        model.fit(ids, labels, verbose=0)
        self.assertEqual(int(layer.params.size()), 30)

    def test_a_policy_bounds_the_rows(self):
        layer = Embedding(2, policy=tf_embed.TablePolicy(max_rows=10, eviction="lru"))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        for first in range(0, 100, 10):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(tf.range(first, first + 10), training=True))
            optimizer.apply(tape.gradient(loss, [layer.shadow]), [layer.shadow])
        self.assertEqual(int(layer.params.size()), 10)
        self.assertAllEqual(np.sort(layer.params.export()[0]), range(90, 100))

    def test_a_frozen_layer_does_not_learn(self):
        for layer in (filled(trainable=False), filled()):
            layer.trainable = False
            self.assertEqual(layer.trainable_variables, [])
            model = keras.Sequential([keras.Input([3], dtype="int64"), layer])
            model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
            model.fit(np.array(LINES), np.zeros([3, 3, DIM]), verbose=0)
            self.assertAllEqual(layer.params.lookup(range(10)), ROWS)


class LayerNormalizationTest(tf.test.TestCase, parameterized.TestCase):
    def weighted(self, **options: Any) -> tuple[Any, Any]:
        """A layer and Keras's layer, with the same weights."""
        layers = LayerNormalization(**options), keras.layers.LayerNormalization(**options)
        for layer in layers:
            layer.build((None, None, DIM))
            layer.set_weights([np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, -0.5])])
        return layers

    @parameterized.parameters(-1, 2)
    def test_dense_inputs_are_normalized_as_by_keras(self, axis):
        ours, own = self.weighted(axis=axis)
        inputs = tf.constant(ROWS[LINES])
        self.assertAllEqual(ours(inputs), own(inputs))

    @parameterized.parameters(-1, 2)
    def test_ragged_inputs_are_normalized_row_by_row(self, axis):
        ours, own = self.weighted(axis=axis)
        rows = filled()(in_containers(BAGS)["ragged"])
        outputs = ours(rows)
        self.assertAllEqual(outputs.row_lengths(), rows.row_lengths())
        for bag, output in zip(BAGS, outputs, strict=True):
            wanted = own(tf.constant(ROWS[bag].reshape([1, -1, DIM])))[0]
            self.assertAllClose(output, wanted, rtol=1e-6)

    def test_mixed_precision(self):
        layer = LayerNormalization(dtype="mixed_bfloat16")
        self.assertEqual(layer(filled()(in_containers(BAGS)["ragged"])).dtype, tf.bfloat16)

    def test_a_ragged_axis_is_refused(self):
        ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
        with self.assertRaisesRegex(ValueError, "`axis` of .* behind the ragged axes"):
            LayerNormalization(axis=[-2, -1], center=False, scale=False)(
                filled()(in_containers(BAGS)["ragged"])
            )
        with self.assertRaisesRegex(ValueError, "`axis` of .* behind the ragged axes"):
            LayerNormalization(center=False, scale=False)(ragged)

    def test_a_model_of_ragged_ids_is_trained_and_loaded(self):
        inputs = keras.Input([None], dtype="int64", ragged=True)
        rows = LayerNormalization()(filled()(inputs))
        outputs = keras.layers.Lambda(
            lambda rows: tf.reduce_mean(rows, 1), output_shape=(DIM,), dtype="float32"
        )(rows)
        model = keras.Model(inputs, outputs)
        model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
        ids = in_containers([bag for bag in BAGS if bag])["ragged"]
        model.fit(ids, np.zeros([4, DIM]), verbose=0)
        self.assertNotAllEqual(model.layers[1].params.lookup(range(10)), ROWS)
        config = LayerNormalization(axis=1, epsilon=0.5).get_config()
        self.assertEqual(LayerNormalization.from_config(config).get_config(), config)


if __name__ == "__main__":
    tf.test.main()

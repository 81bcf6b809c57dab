# SPDX-License-Identifier: Apache-2.0
"""Rows of a table-batched layer that differ from the stored rows: decayed, or bytes."""

from __future__ import annotations

import functools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags


class GlobalDecayTest(tf.test.TestCase, parameterized.TestCase):
    def layer(self, **definition: float) -> TableBatchedEmbeddingBags:
        layer = TableBatchedEmbeddingBags(
            [(4, 2), (None, 3)],
            feature_table_map=[0, 1, 0],
            optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=0.1,
            weight_decay=0.5,
            weight_decay_mode=tbe.WeightDecayMode.DECOUPLE_GLOBAL,
            global_weight_decay=tbe.GlobalWeightDecayDefinition(**definition),
        )
        for table in layer.tables:
            table.upsert(tf.range(4, dtype=tf.int64), tf.ones([4, table.dim]))
        return layer

    def step(self, layer, id_, weights=None):
        optimizer = keras.optimizers.SGD()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.find(layer, id_, weights, training=True))
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    def find(self, layer, id_, weights=None, **options):
        indices = tf.fill([3], tf.constant(id_, tf.int64))
        return layer(indices, tf.range(4), weights, **options)

    @parameterized.parameters(({}, 0.95**3), ({"lower_bound": 0.9}, 0.9), ({"start_iter": 9}, 1.0))
    @pytest.mark.smoke
    def test_lookups_in_training_make_up_for_missed_steps(self, definition, factor):
        layer = self.layer(**definition)
        for id_ in (0, 1, 1, 1):
            self.step(layer, id_)
        stored = self.find(layer, 0)
        self.assertAllClose(self.find(layer, 0, training=True), factor * stored, rtol=1e-6)
        self.assertAllEqual(self.find(layer, 0), stored)
        # Neither the row of the last step nor a row without any step has missed a decay.
        for id_ in (1, 2):
            found = self.find(layer, id_, training=True)
            self.assertAllEqual(found, self.find(layer, id_))
        weights = tf.constant([2.0, -1.0, 0.5])
        self.assertAllClose(
            self.find(layer, 0, weights, training=True),
            factor * self.find(layer, 0, weights),
            rtol=1e-6,
        )

    @parameterized.parameters(False, True)
    def test_weights_have_the_gradient_of_the_decayed_rows(self, in_function):
        layer = self.layer()
        for id_ in (0, 1, 1, 1):
            self.step(layer, id_)
        factors = tf.random.stateless_normal([1, 7], [1, 2])
        weights = tf.constant([2.0, -1.0, 0.5])

        def run():
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(factors * self.find(layer, 0, weights, training=True))
            sources = [weights, *(anchor.value for anchor in layer.trainable_variables)]
            return tape.gradient(loss, sources)

        of_weights, *of_rows = (tf.function(run) if in_function else run)()
        # The output is linear in the weights.
        wanted = [
            tf.reduce_sum(factors * self.find(layer, 0, tf.one_hot(i, 3), training=True))
            for i in range(3)
        ]
        self.assertAllClose(of_weights, wanted, rtol=1e-5)
        self.assertIsNotNone(of_rows[0])

    def test_lookups_and_steps_agree(self):
        """A step applies the same factor: without a gradient, it decays the looked-up rows once."""
        layer = self.layer()
        for id_ in (0, 1, 1):
            self.step(layer, id_)
        seen = self.find(layer, 0, training=True).numpy()
        self.step(layer, 0, tf.zeros([3]))
        self.assertAllClose(self.find(layer, 0), (1 - 0.1 * 0.5) * seen, rtol=1e-6)

    @parameterized.product(
        decays=((1e-3, 1e-5, 10_000_000), (1e-3, 1e-4, 1_000_000)),
        mode=(tbe.WeightDecayMode.DECOUPLE_GLOBAL, tbe.WeightDecayMode.COUNTER),
    )
    def test_many_small_decays_do_not_vanish(self, decays, mode):
        """In float32, the factor of a single step is 1, or inexact."""
        learning_rate, weight_decay, missed = decays
        is_global = mode == tbe.WeightDecayMode.DECOUPLE_GLOBAL
        counts = tbe.CounterBasedRegularizationDefinition(
            counter_weight_decay_mode=tbe.CounterWeightDecayMode.ADAGRADW, counter_halflife=-1
        )
        options = {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "weight_decay_mode": mode,
            "global_weight_decay": tbe.GlobalWeightDecayDefinition() if is_global else None,
            "counter_based_regularization": None if is_global else counts,
        }
        layer = TableBatchedEmbeddingBags(
            [(4, 1)], optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD, initializer="ones", **options
        )
        dense = keras.Variable(tf.ones([4, 1]))
        optimizer = tbe.RowwiseAdagrad(**options)
        optimizer.build([dense])
        none = tf.IndexedSlices(tf.zeros([1, 1]), tf.constant([0]), tf.constant([4, 1]))
        self.step(layer, 0, tf.zeros([3]))
        optimizer.apply([none], [dense])
        layer.set_optimizer_step(missed + 1)
        optimizer.iterations.assign(missed + 1)
        left = (1.0 - float(np.float32(learning_rate)) * weight_decay) ** missed
        if is_global:
            self.assertAllClose(self.find(layer, 0, training=True), [[left]] * 3, rtol=1e-5)
        self.step(layer, 0, tf.zeros([3]))
        optimizer.apply([none], [dense])
        self.assertAllClose(layer.tables[0].lookup([0]), [[left]], rtol=1e-5)
        self.assertAllClose(dense[:1], [[left]], rtol=1e-5)

    def test_an_expired_row_has_missed_no_step(self):
        layer = TableBatchedEmbeddingBags(
            [(None, 2)],
            optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
            weight_decay=0.5,
            weight_decay_mode=tbe.WeightDecayMode.DECOUPLE_GLOBAL,
            global_weight_decay=tbe.GlobalWeightDecayDefinition(),
            initializer="ones",
            policy=tf_embed.TablePolicy(ttl_seconds=0.05),
        )
        find = functools.partial(layer, tf.constant([0, 7]), tf.constant([0, 2]), training=True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(find())
        variables = layer.trainable_variables
        keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
        layer.set_optimizer_step(100)
        time.sleep(0.2)
        self.assertEqual(int(layer.tables[0].size()), 2)
        self.assertAllEqual(find(), [[2.0, 2.0]])


class BytesTest(tf.test.TestCase):
    def layer(self, **options):
        return TableBatchedEmbeddingBags(
            [(10, 4), (None, 3)],
            weights_precision=tbe.SparseType.INT8,
            optimizer=tbe.OptimType.NONE,
            **options,
        )

    @pytest.mark.smoke
    def test_rows_are_dequantized_and_pooled(self):
        layer = self.layer(pooling_mode=tbe.PoolingMode.MEAN)
        rng = np.random.default_rng(0)
        tables = []
        for table, dim in zip(layer.tables, (4, 3), strict=True):
            quantized = tbe.quantized_rows.quantize(rng.normal(size=[10, dim]).astype("f"))
            table.upsert(tf.range(10, dtype=tf.int64), quantized)
            tables.append(tbe.quantized_rows.dequantize(quantized).numpy())
        found = layer([tf.constant([[1, 2], [3, 9]]), tf.constant([[0, 4], [5, 77]])])
        wanted = [
            [*(tables[0][1] + tables[0][2]) / 2, *(tables[1][0] + tables[1][4]) / 2],
            [*(tables[0][3] + tables[0][9]) / 2, *tables[1][5] / 2],  # 77 has no row
        ]
        self.assertAllClose(found, wanted, rtol=1e-6, atol=1e-6)
        shapes = [rows.shape.as_list() for rows in layer.split_embedding_weights()]
        self.assertEqual(shapes, [[10, 12], [10, 11]])
        self.assertEqual(layer.trainable_variables, [])

    def test_gradients_of_weights(self):
        layer = self.layer()
        rows = np.arange(12.0, dtype="f").reshape(3, 4)
        layer.tables[0].upsert([0, 1, 2], tbe.quantized_rows.quantize(rows))
        weights = tf.ones([3])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            found = layer(tf.constant([0, 2, 1]), tf.constant([0, 2, 3]), weights)
            loss = tf.reduce_sum(found)
        self.assertAllClose(tape.gradient(loss, weights), [6.0, 38.0, 0.0], rtol=1e-5)

    def test_training_and_initial_rows_are_refused(self):
        bytes_ = {"weights_precision": tbe.SparseType.INT8}
        with self.assertRaisesRegex(ValueError, "SparseType.INT8 are not trained: .*exact_sgd"):
            TableBatchedEmbeddingBags([(10, 4)], **bytes_)
        with self.assertRaisesRegex(ValueError, "`initializer` of .* must be None.*1.0"):
            TableBatchedEmbeddingBags([(10, 4)], optimizer=None, initializer=1.0, **bytes_)

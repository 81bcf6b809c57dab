# SPDX-License-Identifier: Apache-2.0
"""Rows in bytes, compared with a NumPy implementation of their layout, and pooled lookups."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe
from tf_embed.ops import table_batch_ops
from tf_embed.serving import Follower, Publisher
from tf_embed.tbe import quantized_rows

EPSILON = 2.0**-23


def weights_of(rows: np.ndarray) -> np.ndarray:
    """The weights of stored rows: codes, then a little-endian scale and bias."""
    codes = np.ascontiguousarray(rows[:, :-8]).view(np.uint8).astype(np.float32)
    tails = np.ascontiguousarray(rows[:, -8:]).view("<f4")
    return codes * tails[:, :1] + tails[:, 1:]


def rows_of(weights: np.ndarray) -> np.ndarray:
    """The stored rows of weights, computed weight by weight from the definition."""
    rows = []
    for row in weights.astype(np.float64):
        bias = np.float32(row.min())
        scale = np.float32((row.max() - float(bias)) / 255)
        codes = [round((w - float(bias)) / float(scale)) if scale else 0 for w in row]
        rows.append(bytes(codes) + scale.tobytes() + bias.tobytes())
    return np.frombuffer(b"".join(rows), np.int8).reshape(len(rows), -1)


class QuantizedRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        dtype=["float32", "float16", "bfloat16", "float64"],
        dim=[1, 2, 7, 64],
        scale=[1e-3, 1.0, 300.0],
        offset=[0.0, -5.0],
    )
    def test_are_those_of_the_definition_and_come_back(self, dtype, dim, scale, offset):
        rng = np.random.default_rng(dim)
        weights = tf.cast(offset + scale * rng.normal(size=[50, dim]), dtype)
        rows = quantized_rows.quantize(weights)
        self.assertEqual((rows.dtype, rows.shape), (tf.int8, (50, dim + 8)))
        wide = tf.cast(tf.cast(weights, tf.float32), tf.float64).numpy()
        self.assertAllEqual(rows, rows_of(wide))
        back = quantized_rows.dequantize(rows)
        self.assertEqual((back.dtype, back.shape), (tf.float32, (50, dim)))
        self.assertAllEqual(back, weights_of(rows.numpy()))
        most = np.ptp(wide, axis=1, keepdims=True) / 255 / 2
        most += 4 * EPSILON * np.abs(wide).max(axis=1, keepdims=True)
        self.assertAllLessEqual(np.abs(back - wide) - most, 0.0)

    @parameterized.parameters(
        ([2.5, 2.5, 2.5],),
        ([0.0, -0.0],),
        ([-3e38, 0.0, 0.3e38],),
        ([1.0, 1.0 + EPSILON],),
        ([1e-45, 3e-38, -1e-40],),
    )
    def test_corners(self, weights):
        weights = np.array([weights], np.float32)
        rows = quantized_rows.quantize(weights)
        most = float(np.ptp(weights.astype(np.float64))) / 255 / 2
        most += 4 * EPSILON * np.abs(weights).max() + 2.0**-126
        self.assertAllLessEqual(np.abs(weights_of(rows.numpy()) - weights), most)
        self.assertAllClose(quantized_rows.dequantize(rows), weights, rtol=0, atol=most)

    def test_zero_bytes_are_zeros(self):
        self.assertAllEqual(quantized_rows.dequantize(tf.zeros([2, 11], tf.int8)), np.zeros([2, 3]))
        self.assertAllEqual(quantized_rows.quantize(tf.zeros([2, 3])), np.zeros([2, 11]))

    def test_any_number_of_axes_and_none_known(self):
        weights = np.random.default_rng(1).normal(size=[3, 0, 2, 5]).astype("f")
        self.assertEqual(quantized_rows.quantize(weights).shape, [3, 0, 2, 13])
        one = weights.reshape(-1, 5)[:0]
        self.assertEqual(quantized_rows.dequantize(quantized_rows.quantize(one)).shape, [0, 5])

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
        def round_trip(rows: tf.Tensor) -> Any:
            return quantized_rows.dequantize(quantized_rows.quantize(rows))

        row = np.arange(6, dtype=np.float32)
        self.assertAllClose(round_trip(row), row, atol=0.01)
        self.assertAllClose(round_trip(row.reshape(2, 3)), row.reshape(2, 3), atol=0.01)

    def test_what_is_wrong_is_refused(self):
        with self.assertRaisesRegex(TypeError, "`rows` must be of a floating dtype.*int32"):
            quantized_rows.quantize([1, 2])
        with self.assertRaisesRegex(ValueError, "`rows` must have an axis"):
            quantized_rows.quantize(1.0)
        with self.assertRaisesRegex(TypeError, "`rows` must be int8. Received: float32"):
            quantized_rows.dequantize([1.0] * 9)
        with self.assertRaisesRegex(ValueError, "`rows` must have at least 9 bytes"):
            quantized_rows.dequantize(tf.zeros([1, 8], tf.int8))


class PooledTest(tf.test.TestCase, parameterized.TestCase):
    """Tables of quantized rows and a float32 table."""

    DIMS = (5, 3, 16)
    DTYPES = (tf.int8, tf.float32, tf.int8)

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(7)
        self.tables, self.rows = [], []
        for dim, dtype, shards in zip(self.DIMS, self.DTYPES, (2, 1, 1), strict=True):
            weights = rng.normal(size=[20, dim]).astype("f")
            rows = quantized_rows.quantize(weights) if dtype == tf.int8 else tf.constant(weights)
            table = tf_embed.Variable(
                dim=rows.shape[1],
                value_dtype=dtype,
                devices=["/CPU:0"] * shards,
                trainable=False,
                initializer="zeros",
            )
            table.upsert(np.arange(20), rows)
            self.tables.append(table)
            kept = weights_of(rows.numpy()) if dtype == tf.int8 else weights
            self.rows.append(np.concatenate([kept, np.zeros([10, dim], "f")]))  # absent from 20 on
        self.lengths = rng.integers(0, 5, 12)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.indices = rng.integers(0, 30, self.offsets[-1])
        self.weights = rng.normal(size=len(self.indices)).astype("f")
        starts = (0, *np.cumsum(self.DIMS)[:-1])
        self.pieces = [[i, 4 * i, 4, start, 24] for i, start in enumerate(starts)]

    def pooled(self, combiner: str, weights: Any, **kwargs: Any) -> tf.Tensor:
        return table_batch_ops.find_pooled_tables(
            [table.table.resource_handle for table in self.tables],
            tf.constant(self.indices),
            tf.constant(self.offsets),
            tf.constant(self.pieces, tf.int64),
            tf.constant(4 * 24, tf.int64),
            weights,
            row_dtypes=self.DTYPES,
            dims=kwargs.pop("dims", self.DIMS),
            combiner=combiner,
            **kwargs,
        )

    def wanted(self, combiner: str, weights: Any) -> tf.Tensor:
        bags = []
        for bag in range(4):
            for table, rows in enumerate(self.rows):
                part = slice(*self.offsets[4 * table + bag : 4 * table + bag + 2])
                of_bag = tf.gather(rows, self.indices[part])
                if weights is not None:
                    of_bag *= weights[part][:, tf.newaxis]
                total = tf.reduce_sum(of_bag, 0)
                bags.append(total / max(1, len(of_bag)) if combiner == "mean" else total)
        return tf.concat(bags, 0)

    @parameterized.product(combiner=["sum", "mean"], weighted=[False, True])
    def test_values_and_gradients_of_weights(self, combiner, weighted):
        weights = tf.constant(self.weights) if weighted else None
        self.assertAllClose(
            self.pooled(combiner, weights), self.wanted(combiner, weights), rtol=1e-6, atol=1e-6
        )
        if weights is None:
            return
        factors = np.random.default_rng(1).normal(size=96).astype("f")

        def of_weights(pool: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(factors * pool(combiner, weights))
            return tape.gradient(loss, weights)

        self.assertAllClose(of_weights(self.pooled), of_weights(self.wanted), rtol=1e-5, atol=1e-5)

    def test_are_not_trained(self):
        with self.assertRaisesRegex(ValueError, "INT8 rows can't be trained.*int8.*float32"):
            self.pooled("sum", None, tokens=[tf.zeros([])] * 3)

    def test_a_table_of_other_width_is_refused(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "Table 0 of a batch must have int64 keys, dim 12"
        ):
            self.pooled("sum", None, dims=(4, 4, 16))


class LayerTest(tf.test.TestCase):
    """A layer of quantized rows, compared with a trained layer."""

    def setUp(self):
        super().setUp()
        layer = tbe.TableBatchedEmbeddingBags(
            [(None, 4)], optimizer="NONE", weights_precision="INT8", name="bytes"
        )
        inputs = keras.Input((2,), dtype="int64")
        trained = tf_embed.layers.DynamicEmbedding(2, optimizer="sgd", name="trained")
        self.model = keras.Model(inputs, [layer([inputs]), trained(inputs)])
        self.table = layer.tables[0]
        rows = np.random.default_rng(3).normal(size=[2, 4])
        self.table.upsert([1, 2], quantized_rows.quantize(tf.constant(rows, tf.float32)))
        self.ids = np.array([[1, 2]])
        self.answer = self.model.predict(self.ids, verbose=0)[0]

    def test_get_weights_has_the_rows_and_a_step_leaves_them(self):
        self.assertLen(self.model.trainable_weights, 1)
        weights = self.model.get_weights()
        copy = keras.models.clone_model(self.model)
        copy.set_weights(weights)
        self.assertAllEqual(copy.predict(self.ids, verbose=0)[0], self.answer)
        self.model.compile("sgd", "mse")
        self.model.fit(self.ids, [np.zeros([1, 4]), np.zeros([1, 2, 2])], verbose=0)
        self.assertAllEqual(self.model.predict(self.ids, verbose=0)[0], self.answer)

    def test_snapshots_and_followers_have_the_rows(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        snapshots = tf_embed.Snapshots(folder / "snapshots", self.model)
        snapshots.save("a").wait()
        Publisher(self.model, folder / "published").publish()
        copy = keras.models.clone_model(self.model)
        self.assertTrue(Follower(copy, folder / "published").update())
        self.assertAllEqual(copy.predict(self.ids, verbose=0)[0], self.answer)
        self.table.clear()
        snapshots.load("a")
        self.assertAllEqual(self.model.predict(self.ids, verbose=0)[0], self.answer)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""`SquashedEmbedding` and `FieldWiseEmbedding`, against dense rows that TensorFlow reduces."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.cases.tfra_cases import (
    BAGS,
    DIM,
    LINES,
    REDUCTIONS,
    ROWS,
    fields_of,
    filled,
    in_containers,
    reduced,
    remainder,
    rows_after_a_step,
    traced_remainder,
    twice_the_sum,
)
from support.oracles.reference import SEED
from tf_embed.tfra.keras.layers import FieldWiseEmbedding, SquashedEmbedding


class SquashedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        combiner=list(REDUCTIONS), container=("dense", "ragged", "sparse", "shuffled")
    )
    def test_combined_rows_and_their_gradients_are_those_of_a_dense_layer(
        self, combiner, container
    ):
        bags = LINES if container == "dense" else BAGS
        ids = tf.constant(LINES) if container == "dense" else in_containers(BAGS)[container]
        factors = np.random.default_rng(SEED).normal(size=[len(bags), DIM]).astype(np.float32)
        dense = tf.Variable(ROWS)
        with tf.GradientTape() as tape:
            wanted = tf.stack([reduced(dense, bag, REDUCTIONS[combiner]) for bag in bags])
            loss = tf.reduce_sum(wanted * factors)
        gradient = tf.convert_to_tensor(tape.gradient(loss, dense))
        layer = filled(SquashedEmbedding, combiner=combiner)
        self.assertAllClose(layer(ids), wanted, rtol=1e-5, atol=1e-6)
        rows = rows_after_a_step(layer, ids, factors)
        self.assertAllClose(rows, ROWS - gradient, rtol=1e-5, atol=1e-5)

    @parameterized.parameters("mean", "max", twice_the_sum)
    def test_all_axes_but_the_first_are_one_bag(self, combiner):
        reduction = REDUCTIONS.get(combiner, combiner) if isinstance(combiner, str) else combiner
        layer = filled(SquashedEmbedding, combiner=combiner)
        deep = tf.ragged.constant([[[1, 2], []], [[3]]], dtype=tf.int64)
        wanted = [reduced(ROWS, bag, reduction) for bag in ([1, 2], [3])]
        self.assertAllClose(layer(deep), wanted)
        cube = tf.constant([[[1, 2], [3, 1]], [[5, 5], [6, 0]]])
        wanted = [reduced(ROWS, bag, reduction) for bag in ([1, 2, 3, 1], [5, 5, 6, 0])]
        self.assertAllClose(layer(cube), wanted)
        self.assertAllClose(
            layer(tf.sparse.from_dense(cube)), [wanted[0], reduced(ROWS, [5, 5, 6], reduction)]
        )
        self.assertAllClose(layer(tf.constant([1, 2])), reduced(ROWS, [1, 2], reduction))
        sparse_line = tf.SparseTensor([[3], [8]], [1, 2], [9])
        self.assertAllClose(layer(sparse_line), reduced(ROWS, [1, 2], reduction))

    @parameterized.parameters("sum", "mean", "max", twice_the_sum, tf.reduce_max, tf.reduce_prod)
    def test_empty_batches_and_bags_are_zeros(self, combiner):
        layer = filled(SquashedEmbedding, combiner=combiner)
        self.assertEqual(layer(tf.zeros([0, 4], tf.int64)).shape, (0, DIM))
        self.assertEqual(layer(tf.zeros([0, 4, 2], tf.int64)).shape, (0, DIM))
        self.assertAllEqual(layer(tf.zeros([2, 0], tf.int64)), np.zeros([2, DIM]))
        ragged = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int64), [0, 0])
        self.assertAllEqual(layer(ragged), np.zeros([2, DIM]))

    @parameterized.product(combiner=("sum", "mean", "max", "prod", twice_the_sum), norm=(None, 1.0))
    def test_padding_does_not_count(self, combiner, norm):
        reduction = REDUCTIONS[combiner] if isinstance(combiner, str) else combiner
        layer = filled(SquashedEmbedding, combiner=combiner, padding_id=0, max_norm=norm)
        rows = ROWS if norm is None else tf.clip_by_norm(ROWS, norm, axes=[1])
        wanted = [reduced(rows, bag, reduction) for bag in ([3, 1], [2], [])]
        self.assertAllClose(layer(tf.constant([[3, 0, 1], [2, 0, 0], [0, 0, 0]])), wanted)

    @parameterized.parameters("dense", "ragged")
    def test_a_function_gets_rows_and_axis_and_is_differentiated(self, container):
        ids = tf.constant(LINES) if container == "dense" else in_containers(LINES)["ragged"]
        layer = filled(SquashedEmbedding, combiner=twice_the_sum)
        self.assertAllClose(layer(ids), 2.0 * ROWS[LINES].sum(1), rtol=1e-5)
        counts = np.bincount(np.ravel(LINES), minlength=10)[:, np.newaxis]
        rows = rows_after_a_step(layer, ids, np.float32(1.0))
        self.assertAllClose(rows, ROWS - 2.0 * counts, rtol=1e-5)
        logarithms = filled(SquashedEmbedding, combiner=tf.reduce_logsumexp)
        wanted = np.log(np.exp(ROWS[LINES]).sum(1))
        self.assertAllClose(logarithms(tf.constant(LINES)), wanted, rtol=1e-5)

    def test_a_function_that_reduces_another_axis_is_refused(self):
        layer = filled(SquashedEmbedding, combiner=lambda rows, axis: tf.reduce_sum(rows, -1))
        with self.assertRaisesRegex(ValueError, r"`combiner` must reduce rows .*gave the shape"):
            layer(tf.constant([[1, 2]]))

    def test_ids_without_an_axis_are_refused(self):
        with self.assertRaisesRegex(ValueError, "at least one. Received: ids.shape="):
            filled(SquashedEmbedding)(tf.constant(3))

    def test_shapes_are_known_to_keras(self):
        for shape, wanted in (((None, 4), (None, 5)), ((4,), (5,)), ((2, 3, None), (2, 5))):
            output = SquashedEmbedding(5)(keras.KerasTensor(shape, "int64"))
            self.assertEqual(tuple(output.shape), wanted)


class FieldWiseTest(tf.test.TestCase, parameterized.TestCase):
    def test_the_example_of_tfra(self):
        layer = FieldWiseEmbedding(2, 3, traced_remainder, initializer="zeros")
        layer.params.upsert(range(100), np.ones([100, 2]))
        fields = layer(tf.constant([[23, 12, 0], [9, 13, 10]], tf.int64))
        wanted = [[[2, 2], [0, 0], [1, 1]], [[1, 1], [2, 2], [0, 0]]]
        self.assertAllEqual(fields, wanted)

    @parameterized.product(
        combiner=[*REDUCTIONS, twice_the_sum], container=("dense", "ragged", "sparse", "shuffled")
    )
    def test_rows_of_fields_and_their_gradients_are_those_of_a_dense_layer(
        self, combiner, container
    ):
        reduction = REDUCTIONS[combiner] if isinstance(combiner, str) else combiner
        bags = LINES if container == "dense" else BAGS
        ids = tf.constant(LINES) if container == "dense" else in_containers(BAGS)[container]
        factors = np.random.default_rng(SEED).normal(size=[len(bags), 3, DIM]).astype(np.float32)
        dense = tf.Variable(ROWS)
        with tf.GradientTape() as tape:
            wanted = tf.stack(
                [
                    tf.stack([reduced(dense, field, reduction) for field in fields_of(bag)])
                    for bag in bags
                ]
            )
            loss = tf.reduce_sum(wanted * factors)
        gradient = tf.convert_to_tensor(tape.gradient(loss, dense))
        layer = filled(FieldWiseEmbedding, 3, remainder, combiner=combiner)
        self.assertAllClose(layer(ids), wanted, rtol=1e-5, atol=1e-6)
        rows = rows_after_a_step(layer, ids, factors)
        self.assertAllClose(rows, ROWS - gradient, rtol=1e-5, atol=1e-5)

    def test_one_axis_is_one_example_and_more_axes_are_one(self):
        layer = filled(FieldWiseEmbedding, 3, remainder)
        wanted = [reduced(ROWS, field, tf.reduce_sum) for field in fields_of([3, 1, 6, 6])]
        self.assertAllClose(layer(tf.constant([3, 1, 6, 6])), wanted)
        self.assertAllClose(layer(tf.constant([[[3, 1], [6, 6]]])), [wanted])
        self.assertEqual(layer(tf.zeros([0, 3], tf.int64)).shape, (0, 3, DIM))

    def test_max_norm_and_padding(self):
        layer = filled(FieldWiseEmbedding, 3, remainder, max_norm=1.0, padding_id=0)
        rows = tf.clip_by_norm(ROWS, 1.0, axes=[1])
        wanted = [reduced(rows, field, tf.reduce_sum) for field in fields_of([3, 1, 6])]
        self.assertAllClose(layer(tf.constant([[3, 0, 1, 6]])), [wanted])

    def test_padding_needs_no_field(self):
        layer = filled(FieldWiseEmbedding, 3, lambda keys: keys - 1, padding_id=0)
        self.assertAllClose(layer(tf.constant([[0, 2]])), [[np.zeros(DIM), ROWS[2], np.zeros(DIM)]])

    @parameterized.parameters(-1, 3)
    def test_a_field_that_is_none_is_refused_and_not_put_into_another_example(self, field):
        layer = filled(FieldWiseEmbedding, 3, lambda keys: keys * 0 + field)
        for call in (layer, tf.function(layer)):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "fields from 0 to 2"):
                call(tf.constant([[1], [2]]))

    def test_what_is_not_a_field_for_each_key_is_refused(self):
        with self.assertRaisesRegex(TypeError, "must give integers. Received: dtype=float32"):
            FieldWiseEmbedding(2, 3, lambda keys: tf.cast(keys, tf.float32))(tf.constant([[1]]))
        with self.assertRaisesRegex(ValueError, "a field for each key"):
            FieldWiseEmbedding(2, 3, lambda keys: keys[:1])(tf.constant([[1, 2]]))

    def test_shapes_are_known_to_keras(self):
        layer = FieldWiseEmbedding(5, 3, remainder)
        for shape, wanted in (((None, 4), (None, 3, 5)), ((4,), (3, 5)), ((2, 3, None), (2, 3, 5))):
            self.assertEqual(tuple(layer(keras.KerasTensor(shape, "int64")).shape), wanted)


if __name__ == "__main__":
    tf.test.main()

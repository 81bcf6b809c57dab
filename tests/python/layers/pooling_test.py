# SPDX-License-Identifier: Apache-2.0
"""Ids in every container, padding, masks, and rows pooled over bags."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMBINERS = ("sum", "mean", "sqrtn")
# Bags of ids, some empty, some with an id twice. 0 is padding if a layer has padding.
BAGS = [[3, 1, 3], [], [2], [0, 0], [5, 0, 7, 0]]
MUST_BE_BAGS = (
    r"must have the shape \[batch, ids\], or more axes, for a `combiner`, which pools the"
)
FLAT_WEIGHTS = [0.5, 2.0, -1.0, 3.0, 9.0, 9.0, 1.5, 9.0, 0.25, 9.0]


def row(key: int, dim: int = 3) -> np.ndarray:
    return np.arange(1, dim + 1) * 10.0 + key


def filled(combiner: str | None = None, padding_id: int | None = None, **options: Any) -> Any:
    """A layer whose table has the rows of the keys 0 to 9."""
    layer = DynamicEmbedding(3, combiner=combiner, padding_id=padding_id, **options)
    layer.build()
    layer.variable.upsert(range(10), np.stack([row(key) for key in range(10)]))
    return layer


def pooled(bag: list[int], weights: list[float], combiner: str, padding_id: Any) -> np.ndarray:
    pairs = [(row(i), w) for i, w in zip(bag, weights, strict=True) if i != padding_id]
    if not pairs:
        return np.zeros(3)
    total = sum(w * r for r, w in pairs)
    weights = np.array([w for _, w in pairs])
    return (
        total / {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt(np.sum(weights**2))}[combiner]
    )


def bag_weights() -> list[list[float]]:
    weights, numbers = [], iter(FLAT_WEIGHTS)
    for bag in BAGS:
        weights.append([next(numbers) for _ in bag])
    return weights


class ContainerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*INTEGERS)
    def test_ids_of_any_integer_dtype_in_any_container(self, dtype):
        layer = filled()
        ids = tf.constant([[1, 2], [2, 5]], dtype)
        rows = [[row(1), row(2)], [row(2), row(5)]]
        self.assertAllEqual(layer(ids), rows)
        ragged = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 5], dtype), [2, 0, 1])
        self.assertAllEqual(layer(ragged).flat_values, [row(1), row(2), row(5)])
        sparse = tf.SparseTensor([[0, 1], [2, 0]], tf.constant([1, 5], dtype), [3, 2])
        zero = np.zeros(3)
        self.assertAllEqual(layer(sparse), [[zero, row(1)], [zero, zero], [row(5), zero]])

    @parameterized.parameters(((),), ((0,),), ((4,),), ((2, 3),), ((2, 0, 3),), ((1, 2, 2, 2),))
    def test_dense_ids_of_any_rank(self, shape):
        ids = np.random.default_rng(SEED).integers(0, 10, shape)
        rows = filled()(tf.constant(ids, tf.int64))
        self.assertEqual(rows.shape, (*shape, 3))
        self.assertAllEqual(rows, np.arange(10.0, 40.0, 10.0) + ids[..., np.newaxis])

    def test_ragged_ids_of_two_ragged_axes_and_of_a_uniform_inner_axis(self):
        deep = tf.ragged.constant([[[1, 2], []], [], [[3]]], dtype=tf.int64)
        self.assertAllEqual(filled()(deep).flat_values, [row(1), row(2), row(3)])
        sums = filled("sum")(deep)
        self.assertAllEqual(sums.row_lengths(), [2, 0, 1])
        self.assertAllEqual(sums.flat_values, [row(1) + row(2), np.zeros(3), row(3)])
        uniform = tf.RaggedTensor.from_row_lengths(
            tf.constant([[1, 2], [3, 4], [5, 5]], tf.int64), [2, 0, 1]
        )
        self.assertEqual(filled()(uniform).shape.as_list(), [3, None, 2, 3])
        sums = filled("sum")(uniform)
        self.assertAllEqual(sums.row_lengths(), [2, 0, 1])
        self.assertAllEqual(sums.flat_values, [row(1) + row(2), row(3) + row(4), 2 * row(5)])

    def test_arrays_are_ids(self):
        self.assertAllEqual(filled()(np.array([1, 2])), [row(1), row(2)])
        self.assertAllEqual(filled()(np.array([1, 2], np.uint8)), [row(1), row(2)])

    def test_ids_that_are_no_integers_are_refused(self):
        for ids in (tf.constant([1.0]), tf.constant(["a"]), tf.constant([True])):
            with self.assertRaisesRegex(TypeError, "must be integers.*Received: dtype="):
                filled()(ids)

    def test_an_id_that_does_not_fit_the_key_dtype_is_refused(self):
        narrow = DynamicEmbedding(1, key_dtype="int32")
        unsigned = DynamicEmbedding(1, key_dtype="uint64")
        signed = DynamicEmbedding(1)
        for layer, ids in (
            (narrow, tf.constant([2**31], tf.int64)),
            (narrow, tf.constant([-(2**31) - 1], tf.int64)),
            (unsigned, tf.constant([-1])),
            (signed, tf.constant([2**63], tf.uint64)),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must fit its key dtype"):
                layer(ids)
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must fit its key dtype"):
                tf.function(layer)(ids)
        self.assertEqual(narrow(tf.constant([-(2**31)], tf.int64)).shape, (1, 1))
        self.assertEqual(unsigned(tf.constant([2**64 - 1], tf.uint64)).shape, (1, 1))


class OneAxisTest(tf.test.TestCase, parameterized.TestCase):
    """Ids [batch] have a single id for each example, so a pool would be over the whole batch."""

    @parameterized.product(combiner=COMBINERS, shape=((), (None,), (4,)))
    def test_a_symbolic_input_of_one_axis_is_refused(self, combiner, shape):
        layer = DynamicEmbedding(2, combiner=combiner, name="users")
        with self.assertRaisesRegex(ValueError, f"`ids` of 'users' must .*combiner='{combiner}'"):
            layer(keras.KerasTensor(shape, "int64"))
        with self.assertRaisesRegex(ValueError, MUST_BE_BAGS):
            layer.compute_output_shape(shape)

    def test_ids_of_one_axis_are_refused_in_every_container_and_in_graphs(self):
        layer = DynamicEmbedding(2, combiner="sum")
        layer.build()
        sparse = tf.SparseTensor([[0], [2]], tf.constant([5, 6], tf.int64), [4])
        for ids in (tf.constant([5, 6]), tf.constant(5), sparse):
            for call in (layer, tf.function(layer)):
                with self.assertRaisesRegex(ValueError, MUST_BE_BAGS):
                    call(ids)

    def test_ids_of_unknown_axes_are_refused_when_the_graph_runs(self):
        layer = DynamicEmbedding(2, combiner="sum", initializer="ones")
        layer.build()
        for spec in (tf.TensorSpec(None, tf.int64), tf.SparseTensorSpec(None, tf.int64)):
            pool = tf.function(layer, input_signature=[spec])
            is_dense = isinstance(spec, tf.TensorSpec)
            lines, ids = (
                one if is_dense else tf.sparse.from_dense(one)
                for one in (tf.constant([[5, 6]], tf.int64), tf.constant([5, 6], tf.int64))
            )
            self.assertAllEqual(pool(lines), [[2.0, 2.0]])
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, MUST_BE_BAGS):
                pool(ids)

    def test_a_model_that_is_trained_on_ids_of_one_axis_is_refused(self):
        model = keras.Sequential([DynamicEmbedding(2, combiner="sum", optimizer="sgd")])
        model.compile("sgd", "mse")
        with self.assertRaisesRegex(ValueError, MUST_BE_BAGS):
            model.fit(np.arange(4), np.ones([4, 2]), verbose=0)


class PoolingTest(tf.test.TestCase, parameterized.TestCase):
    def test_weights_of_another_shape_are_refused_when_a_graph_runs(self):
        layer = DynamicEmbedding(1, combiner="sum", initializer=1.0)
        layer.build()
        unknown = [tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, None])]
        pooled = tf.function(lambda ids, weights: layer(ids, weights), input_signature=unknown)
        self.assertAllEqual(pooled([[1, 2]], [[3.0, 4.0]]), [[7.0]])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must have the shape of `ids`"):
            pooled(np.ones([2, 3], np.int64), np.ones([3, 2], np.float32))

    @parameterized.parameters(([0, 9],), ([-1, 0],), ([5, 0],))
    def test_sparse_ids_outside_of_their_shape_are_refused(self, place):
        layer = DynamicEmbedding(1, combiner="sum", initializer=1.0)
        ids = tf.SparseTensor([place], tf.constant([7], tf.int64), [2, 3])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "within their dense_shape"):
            layer(ids)

    @parameterized.product(combiner=COMBINERS, padding_id=(None, 0), weighted=(False, True))
    @pytest.mark.smoke
    def test_bags_are_pooled_in_every_container(self, combiner, padding_id, weighted):
        weights = bag_weights() if weighted else [[1.0] * len(bag) for bag in BAGS]
        layer = filled(combiner, padding_id)
        wanted = [
            pooled(bag, ws, combiner, padding_id) for bag, ws in zip(BAGS, weights, strict=True)
        ]
        ragged = tf.ragged.constant(BAGS, dtype=tf.int64)
        ragged_weights = tf.ragged.constant(weights, dtype=tf.float32)
        calls = {"eager": layer, "graph": tf.function(layer)}
        for way, call in calls.items():
            given = [ragged_weights] if weighted else []
            self.assertAllClose(call(ragged, *given), wanted, msg=way, rtol=1e-6)
            given = [ragged_weights.to_sparse()] if weighted else []
            self.assertAllClose(call(ragged.to_sparse(), *given), wanted, msg=way, rtol=1e-6)
        if padding_id == 0:  # dense ids are padded
            given = [ragged_weights.to_tensor(7.0)] if weighted else []
            for way, call in calls.items():
                self.assertAllClose(call(ragged.to_tensor(), *given), wanted, msg=way, rtol=1e-6)

    def test_dense_bags_are_pooled_over_the_last_axis(self):
        ids = np.random.default_rng(SEED).integers(1, 9, [2, 3, 4])
        weights = np.random.default_rng(SEED).random([2, 3, 4]) + 0.5
        rows = np.arange(10.0, 40.0, 10.0) + ids[..., np.newaxis]
        total = np.sum(rows * weights[..., np.newaxis], axis=2)
        divisor = {"sum": 1.0, "mean": weights.sum(2), "sqrtn": np.sqrt((weights**2).sum(2))}
        for combiner in COMBINERS:
            self.assertAllClose(
                filled(combiner)(tf.constant(ids), tf.constant(weights, tf.float32)),
                total / np.reshape(divisor[combiner], [2, 3, 1] if combiner != "sum" else []),
                rtol=1e-6,
            )
            self.assertEqual(filled(combiner)(tf.zeros([2, 0], tf.int64)).shape, (2, 3))
            self.assertAllEqual(filled(combiner)(tf.zeros([2, 0], tf.int64)), np.zeros([2, 3]))

    def test_sparse_ids_of_rank_three(self):
        sparse = tf.SparseTensor([[0, 1, 0], [0, 1, 4], [1, 0, 2]], [1, 2, 3], [2, 2, 5])
        wanted = np.zeros([2, 2, 3])
        wanted[0, 1], wanted[1, 0] = row(1) + row(2), row(3)
        self.assertAllEqual(filled("sum")(sparse), wanted)

    @parameterized.parameters(*COMBINERS)
    def test_it_is_what_tensorflow_does(self, combiner):
        table = np.stack([row(key) for key in range(10)]).astype(np.float32)
        ragged = tf.ragged.constant(BAGS, dtype=tf.int64)
        weights = abs(tf.ragged.constant(bag_weights(), dtype=tf.float32))  # safe_... drops others
        ours = filled(combiner)(ragged, weights)
        theirs = tf.nn.safe_embedding_lookup_sparse(
            tf.constant(table),
            ragged.to_sparse(),
            weights.to_sparse(),
            combiner=combiner,
            allow_fast_lookup=True,
        )
        self.assertAllClose(ours, theirs, rtol=1e-6)

    @parameterized.parameters(*COMBINERS)
    def test_gradients_are_those_of_the_formula(self, combiner):
        layer = filled(combiner, padding_id=0)
        dense = tf.Variable(np.stack([row(key) for key in range(10)]).astype(np.float32))
        ragged = tf.ragged.constant(BAGS, dtype=tf.int64)
        weights = abs(tf.ragged.constant(bag_weights(), dtype=tf.float32))  # safe_... drops others
        factor = tf.constant(np.random.default_rng(SEED).random([5, 3]), tf.float32)
        kept = tf.ragged.boolean_mask(ragged, ragged != 0)
        kept_weights = tf.ragged.boolean_mask(weights, ragged != 0)
        with tf.GradientTape() as tape:
            tape.watch(weights.flat_values)
            loss = tf.reduce_sum(layer(ragged, weights) * factor)
        gradient, of_weights = tape.gradient(
            loss, [layer.variable.anchor.value, weights.flat_values]
        )
        with tf.GradientTape() as tape:
            tape.watch(kept_weights.flat_values)
            wanted = tf.nn.safe_embedding_lookup_sparse(
                dense, kept.to_sparse(), kept_weights.to_sparse(), combiner=combiner
            )
            wanted_loss = tf.reduce_sum(wanted * factor)
        wanted_gradient, wanted_of_weights = tape.gradient(
            wanted_loss, [dense, kept_weights.flat_values]
        )
        self.assertNotIn(0, gradient.indices.numpy())
        self.assertAllClose(
            tf.math.unsorted_segment_sum(gradient.values, gradient.indices, 10),
            tf.convert_to_tensor(wanted_gradient),
            rtol=1e-5,
            atol=1e-6,
        )
        padding = ragged.flat_values.numpy() == 0
        self.assertAllClose(of_weights.numpy()[~padding], wanted_of_weights, rtol=1e-4, atol=1e-4)
        self.assertAllEqual(of_weights.numpy()[padding], np.zeros(padding.sum()))

    def test_weights_that_do_not_go_with_the_ids_are_refused(self):
        ids, ragged = tf.constant([[1, 2]]), tf.ragged.constant([[1, 2], [3]])
        with self.assertRaisesRegex(ValueError, "need a combiner. Received: combiner=None"):
            filled()(ids, tf.ones([1, 2]))
        with self.assertRaisesRegex(ValueError, "kind and shape of `ids`"):
            filled("sum")(ids, tf.ones([1, 3]))
        with self.assertRaisesRegex(ValueError, "Received: EagerTensor"):
            filled("sum")(ragged, tf.ones([2, 2]))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "row lengths of `ids`"):
            filled("sum")(ragged, tf.ragged.constant([[1.0], [2.0, 3.0]]))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "indices of `ids`"):
            filled("sum")(
                tf.SparseTensor([[0, 1]], [1], [1, 2]), tf.SparseTensor([[0, 0]], [1.0], [1, 2])
            )

    def test_a_combiner_that_there_is_none_of_is_refused(self):
        with self.assertRaisesRegex(ValueError, "sum, mean, sqrtn. Received: combiner='max'"):
            DynamicEmbedding(1, combiner="max")

    def test_many_rows_of_half_precision_are_summed_in_float32(self):
        layer = DynamicEmbedding(1, value_dtype="bfloat16", combiner="sum", initializer="ones")
        self.assertAllEqual(layer(tf.range(1000)[tf.newaxis]), [[1000.0]])  # 256 in bfloat16


class PaddingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(None, *COMBINERS)
    def test_padding_is_zeros_and_is_never_stored_or_trained(self, combiner):
        layer = DynamicEmbedding(
            3, initializer="ones", padding_id=-1, combiner=combiner, optimizer="adam"
        )
        model = keras.Sequential(
            [
                keras.Input([None], dtype="int64"),
                layer,
                keras.layers.Flatten() if combiner else keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
        ids = np.array([[1, -1, 2], [-1, -1, -1]])
        model.fit(ids, np.ones(2), epochs=2, verbose=0)
        self.assertAllEqual(np.sort(layer.variable.export()[0]), [1, 2])
        rows = layer(tf.constant([[-1]]))
        self.assertAllEqual(rows, np.zeros(rows.shape))

    def test_padding_that_was_upserted_is_zeros_still(self):
        self.assertAllEqual(filled(padding_id=3)(tf.constant([3, 4])), [np.zeros(3), row(4)])

    @parameterized.parameters(
        (2**31, "int32", ValueError, "must fit the key dtype int32"),
        ("0", "int64", TypeError, "must"),
        (-1, "uint64", ValueError, "must fit the key dtype uint64"),
    )
    def test_padding_must_be_a_key(self, padding_id, key_dtype, error, message):
        with self.assertRaisesRegex(error, f"`padding_id` {message}"):
            DynamicEmbedding(1, key_dtype, padding_id=padding_id)

    def test_extreme_paddings(self):
        for key_dtype, padding_id in (("int64", -(2**63)), ("uint64", 2**64 - 1), ("int32", -1)):
            layer = DynamicEmbedding(2, key_dtype, initializer="ones", padding_id=padding_id)
            ids = tf.constant(np.array([padding_id, 1], key_dtype))
            self.assertAllEqual(layer(ids), [[0, 0], [1, 1]])

    @parameterized.parameters(("int64", -(2**63)), ("uint64", 2**64 - 1), ("int32", -1))
    def test_a_loaded_model_masks_extreme_paddings(self, key_dtype, padding_id):
        layer = DynamicEmbedding(2, key_dtype, initializer="ones", padding_id=padding_id)
        inputs = keras.Input([3], dtype=key_dtype)
        model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
        path = tempfile.mkdtemp(dir=self.get_temp_dir()) + "/model.keras"
        model.save(path)
        ids = np.array([[1, 2, padding_id], [3, padding_id, padding_id]], key_dtype)
        loaded = keras.saving.load_model(path)
        self.assertAllEqual(loaded(ids), np.ones([2, 2]))
        self.assertAllEqual(loaded.predict(ids, verbose=0), np.ones([2, 2]))

    def test_padding_makes_a_mask(self):
        layer = filled(padding_id=0)
        ids = tf.constant([[1, 0, 2]])
        self.assertAllEqual(layer.compute_mask(ids), [[True, False, True]])
        self.assertIsNone(filled().compute_mask(ids))
        self.assertIsNone(filled("sum", padding_id=0).compute_mask(ids))
        masks = []

        class Sees(keras.layers.Layer):
            supports_masking = True

            def call(self, inputs: Any, mask: Any = None) -> Any:
                masks.append(mask)
                return inputs

        Sees()(layer(ids))
        self.assertAllEqual(masks[-1], [[True, False, True]])
        inputs = keras.Input([3], dtype="int64")
        model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(layer(inputs)))
        self.assertAllClose(model(ids), [(row(1) + row(2)) / 2])  # like keras.layers.Embedding

    def test_a_masked_recurrent_layer_ends_where_padding_begins(self):
        inputs = keras.Input([None], dtype="int32")
        outputs = keras.layers.GRU(4)(filled(padding_id=0)(inputs))
        model = keras.Model(inputs, outputs)
        self.assertAllClose(
            model(tf.constant([[1, 2, 0, 0]])), model(tf.constant([[1, 2]])), rtol=1e-5
        )


class UnknownTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(None, "sum")
    def test_unknown_ids_get_the_unknown_value_when_serving_only(self, combiner):
        for unknown, wanted in ((-5.0, [-5, -5, -5]), ([1, 2, 3], [1, 2, 3])):
            layer = filled(combiner, unknown_value=unknown, initializer="ones")
            ids = tf.constant([[77], [1]])
            shape = [2, 3] if combiner else [2, 1, 3]
            self.assertAllEqual(layer(ids), np.reshape([wanted, row(1)], shape))
            self.assertAllEqual(layer(ids, training=True), np.reshape([np.ones(3), row(1)], shape))
            self.assertEqual(int(layer.variable.size()), 10)

    def test_training_starts_from_the_initial_row_whatever_is_served(self):
        layer = DynamicEmbedding(
            1, initializer="ones", unknown_value=-5.0, optimizer=keras.optimizers.SGD(0.5)
        )
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Flatten()])
        model.compile("sgd", lambda y, predicted: predicted)
        self.assertAllEqual(model.predict(np.array([[3]]), verbose=0), [[-5.0]])
        model.fit(np.array([[3]]), np.array([[0.0]]), verbose=0)
        self.assertAllEqual(layer.variable.lookup([3]), [[0.5]])

    @parameterized.parameters(None, "sum")
    def test_ids_that_are_held_back_get_the_unknown_value_in_training_if_asked(self, combiner):
        layer = DynamicEmbedding(
            1,
            initializer="ones",
            combiner=combiner,
            unknown_value=-5.0,
            unknown_in_training=True,
            optimizer=keras.optimizers.SGD(0.5),
            policy=tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2)),
        )
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Flatten()])
        model.compile("sgd", lambda y, predicted: predicted)
        trained = model.fit(np.array([[3]]), np.zeros([1, 1]), epochs=3, verbose=0)
        # The second step makes the row, from the initial row and the step's gradient.
        self.assertAllEqual(trained.history["loss"], [-5.0, -5.0, 0.5])
        self.assertAllEqual(layer.variable.lookup([3]), [[0.0]])

    def test_unknown_in_training_needs_an_unknown_value(self):
        with self.assertRaisesRegex(ValueError, "`unknown_value` must be given with"):
            DynamicEmbedding(3, unknown_in_training=True)

    @parameterized.parameters(
        ([1.0], r"must be a number or of shape \(3,\). Received: shape=\(1,\)"),
        ([[1.0, 2.0, 3.0]], r"must be a number or of shape \(3,\)"),
        ("x", "must be a number or an array of numbers"),
    )
    def test_an_unknown_value_must_be_a_row(self, unknown, message):
        with self.assertRaisesRegex((TypeError, ValueError), f"`unknown_value` {message}"):
            DynamicEmbedding(3, unknown_value=unknown)


if __name__ == "__main__":
    tf.test.main()

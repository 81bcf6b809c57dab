# SPDX-License-Identifier: Apache-2.0
"""`DynamicEmbedding` with the arguments of keras.layers.Embedding, which is the oracle."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

VOCABULARY, DIM, RATE = 6, 3, 0.01


def matrix() -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=[VOCABULARY, DIM])


def model_of(kind: Any, base: Any = keras.Model, **arguments: Any) -> keras.Model:
    ids = keras.Input([8], dtype="int64")
    rows = kind(VOCABULARY, DIM, weights=[matrix()], **arguments)(ids)
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    return base(ids, dense(keras.layers.Flatten()(rows)))


def fit(model: keras.Model, optimizer: Any, jit: bool = False) -> Any:
    """Trains on batches of 4 examples, each with all ids and some twice."""
    rng = np.random.default_rng(SEED)
    ids = [[*rng.permutation(VOCABULARY), *rng.integers(0, VOCABULARY, 2)] for _ in range(12)]
    model.compile(optimizer, "mse", jit_compile=jit)
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    return model.fit(np.array(ids), rng.normal(size=[12, 1]), **options).history["loss"]


def sgd(way: str) -> tuple[Any, dict[str, Any]]:
    """The optimizer of the model, and the arguments of the layer."""
    if way == "own":
        return keras.optimizers.SGD(RATE), {"optimizer": keras.optimizers.SGD(RATE)}
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(RATE)), {}


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (None, "wrapper", False),
        (keras.regularizers.L1L2(0.01, 0.1), "wrapper", False),
        (keras.regularizers.L1L2(0.01, 0.1), "wrapper", True),
        (keras.regularizers.L1L2(0.01, 0.1), "own", True),
    )
    @pytest.mark.smoke
    def test_fit_trains_rows_and_has_losses_as_keras(self, regularizer, way, compiled):
        with tf.device("/CPU:0"):  # an emulated GPU can't train a keras.layers.Embedding
            theirs = model_of(keras.layers.Embedding, embeddings_regularizer=regularizer)
            wanted = fit(theirs, keras.optimizers.SGD(RATE))
        base = tf_embed.Model if compiled else keras.Model
        optimizer, arguments = sgd(way)
        ours = model_of(DynamicEmbedding, base, embeddings_regularizer=regularizer, **arguments)
        self.assertAllClose(fit(ours, optimizer, jit=compiled), wanted, rtol=1e-5)
        if compiled:
            self.assertTrue(ours.step_report().compiled)
        rows = ours.layers[1].variable.lookup(np.arange(VOCABULARY))
        self.assertAllClose(rows, theirs.layers[1].get_weights()[0], rtol=1e-5)

    def test_mask_zero_masks_as_keras(self):
        ids = np.array([[1, 2, 0, 0], [3, 0, 4, 5]])
        outputs = []
        for kind in (keras.layers.Embedding, DynamicEmbedding):
            layer = kind(VOCABULARY, DIM, weights=matrix(), mask_zero=True)
            ones = {"kernel_initializer": "ones", "recurrent_initializer": "ones"}
            recurrent = keras.layers.LSTM(2, **ones)
            inputs = keras.Input([None], dtype="int64")
            outputs.append(keras.Model(inputs, recurrent(layer(inputs))).predict(ids, verbose=0))
            self.assertAllEqual(layer.compute_mask(ids), ids != 0)
        self.assertAllClose(outputs[1], outputs[0])
        # Unlike in Keras.
        self.assertAllEqual(layer(ids)[0, 2:], np.zeros([2, DIM]))

    def test_initializers_scale_with_the_vocabulary_as_in_keras(self):
        layer = DynamicEmbedding(600, 4, embeddings_initializer="he_uniform")
        self.assertAllClose(layer.initializer.maxval, np.sqrt(6 / 600))
        self.assertAllClose(DynamicEmbedding(4, initializer="ones")(np.array([1])), [[1.0] * 4])

    def test_a_config_of_keras_makes_the_layer(self):
        theirs = keras.layers.Embedding(
            7, 3, keras.initializers.Ones(), embeddings_regularizer="l2", mask_zero=True, name="x"
        )
        layer = DynamicEmbedding.from_config(theirs.get_config())
        self.assertEqual((layer.name, layer.dim, layer.init_size, layer.padding_id), ("x", 3, 7, 0))
        self.assertAllEqual(layer(np.array([5])), np.ones([1, 3]))
        self.assertEqual(layer.embeddings_regularizer.get_config(), {"l2": np.float32(0.01)})

    def test_clone_model_replaces_kerass_layer(self):
        theirs = model_of(keras.layers.Embedding, embeddings_regularizer="l2")

        def clone(layer: Any) -> Any:
            kind = type(layer)
            return (DynamicEmbedding if kind is keras.layers.Embedding else kind).from_config(
                layer.get_config()
            )

        ours = keras.models.clone_model(theirs, clone_function=clone)
        self.assertIsInstance(ours.layers[1], DynamicEmbedding)
        self.assertEqual(ours.output_shape, theirs.output_shape)

    def test_a_saved_and_a_cloned_model_keep_the_arguments(self):
        model = model_of(DynamicEmbedding, embeddings_regularizer="l2", mask_zero=True)
        path = f"{self.get_temp_dir()}/model.keras"
        model.save(path)
        loaded, cloned = keras.models.load_model(path), keras.models.clone_model(model)
        for copy in (loaded, cloned):
            self.assertEqual(copy.layers[1].get_config(), model.layers[1].get_config())
        ids = np.arange(8)[np.newaxis]
        self.assertAllEqual(loaded(ids, training=True), model(ids, training=True))
        self.assertAllEqual(loaded.losses, model.losses)


class RegularizerTest(tf.test.TestCase, parameterized.TestCase):
    def loss_of(self, ids: Any, training: bool = True, **arguments: Any) -> list[float]:
        layer = DynamicEmbedding(2, initializer="ones", embeddings_regularizer=sum_of, **arguments)
        layer(ids, training=training)
        return [float(loss) for loss in layer.losses]

    @parameterized.parameters(
        ({}, 6.0),
        ({"padding_id": 7}, 4.0),
        ({"combiner": "mean"}, 6.0),
        ({"combiner": "sum", "mask_zero": True, "value_dtype": "float16"}, 6.0),
    )
    def test_each_distinct_row_counts_once_and_padding_does_not(self, arguments, wanted):
        dense = tf.constant([[7, 5, 5], [7, 9, 9]])
        for ids in (dense, tf.RaggedTensor.from_tensor(dense), tf.sparse.from_dense(dense)):
            self.assertEqual(self.loss_of(ids, **arguments), [wanted])

    def test_strings_have_it_too(self):
        ids = tf.constant([["a", "b", "a"]])
        self.assertEqual(self.loss_of(ids, key_dtype="string"), [4.0])

    def test_there_is_none_without_training_or_ids_or_if_the_layer_is_frozen(self):
        ids = tf.constant([[1, 2]])
        self.assertEqual(self.loss_of(ids, training=False), [])
        self.assertEqual(self.loss_of(ids, trainable=False), [])
        self.assertEqual(self.loss_of(tf.zeros([0, 2], tf.int64)), [0.0])

    def test_a_loop_has_no_losses(self):
        layer = DynamicEmbedding(2, embeddings_regularizer="l2", name="mine")

        def mapped() -> Any:
            look_up = lambda ids: layer(ids, training=True)  # noqa: E731
            return tf.map_fn(look_up, tf.constant([[1, 2]]), fn_output_signature=tf.float32)

        with self.assertRaisesRegex(ValueError, "`embeddings_regularizer` of 'mine' must be None"):
            tf.function(mapped)()

    def test_a_function_that_fails_is_named(self):
        layer = DynamicEmbedding(2, embeddings_regularizer=lambda rows: 1 // 0)
        with self.assertRaisesRegex(ValueError, "`embeddings_regularizer` .*ZeroDivisionError"):
            layer(tf.constant([1]), training=True)


@keras.saving.register_keras_serializable(package="test")
def sum_of(rows: Any) -> Any:
    return keras.ops.sum(rows)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    def test_two_numbers_are_the_sizes_of_keras(self):
        for layer in (DynamicEmbedding(50, 4), DynamicEmbedding(input_dim=50, output_dim=4)):
            self.assertEqual((layer.dim, layer.key_dtype, layer.init_size), (4, "int64", 50))
            self.assertEqual(layer(np.array([10**15])).shape, [1, 4])  # no bound

    def test_weights_are_the_rows_of_the_first_ids(self):
        rows = matrix()
        for given in (rows, [rows], tf.constant(rows), rows.tolist()):
            layer = DynamicEmbedding(output_dim=DIM, weights=given, padding_id=2)
            self.assertEqual(int(layer.variable.size()), VOCABULARY - 1)
            self.assertAllClose(layer(np.array([0, 5])), rows[[0, 5]])

    @parameterized.parameters(
        ({"dim": 9, "key_dtype": 4, "value_dtype": "ones"}, TypeError, "must be given by name"),
        ({"dim": 9, "key_dtype": 4, "output_dim": 4}, ValueError, "must be given once"),
        ({"dim": 9, "key_dtype": 4, "input_dim": 9}, ValueError, "must be given once"),
        ({"dim": 0, "key_dtype": 4}, ValueError, "`input_dim` must be at least 1"),
        ({"dim": 9, "key_dtype": 0}, ValueError, "`output_dim` must be at least 1"),
        ({"key_dtype": True}, TypeError, "`key_dtype`"),
        ({"input_dim": 9, "init_size": 9}, ValueError, "`init_size` or `input_dim`"),
        ({"embeddings_initializer": "a", "initializer": "ones"}, ValueError, "and not both"),
        (
            {"embeddings_initializer": keras.initializers.Constant(np.ones([3, 2]))},
            ValueError,
            r"`weights=`.*Constant of shape \(3, 2\)",
        ),
        ({"embeddings_initializer": "nothing"}, ValueError, "initializer='nothing'"),
        ({"embeddings_regularizer": "nothing"}, ValueError, "`embeddings_regularizer` must be"),
        ({"embeddings_regularizer": int}, TypeError, "`embeddings_regularizer` must be callable"),
        ({"embeddings_constraint": "max_norm"}, ValueError, "`embeddings_constraint` is not"),
        ({"lora_rank": 4}, ValueError, "`lora_rank` is not supported"),
        ({"lora_alpha": 4}, ValueError, "`lora_alpha` is not supported"),
        ({"quantization_config": 4}, ValueError, "`quantization_config` is not supported"),
        ({"mask_zero": "yes"}, TypeError, "`mask_zero` must be a bool"),
        ({"mask_zero": True, "padding_id": 3}, ValueError, "`mask_zero` must be False"),
        ({"mask_zero": True, "key_dtype": "string"}, ValueError, "`mask_zero` must be False"),
        ({"weights": np.ones([3, 4])}, ValueError, r"of shape \(n, 2\).*shape=\(3, 4\)"),
        ({"weights": np.ones([3, 2]), "input_dim": 4}, ValueError, r"of shape \(4, 2\)"),
        ({"weights": np.ones([0, 2])}, ValueError, r"shape=\(0, 2\)"),
        ({"weights": [["a", "b"]]}, TypeError, "`weights` must be a matrix of numbers"),
        ({"weights": np.ones([3, 2]), "key_dtype": "string"}, TypeError, "`weights` must be None"),
    )
    def test_wrong_arguments_are_refused(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            DynamicEmbedding(**{"dim": 2} | arguments)

    def test_none_is_the_default_of_unsupported_arguments(self):
        names = ("embeddings_constraint", "lora_rank", "lora_alpha", "quantization_config")
        DynamicEmbedding(9, 4, **dict.fromkeys(names))

    def test_input_length_warns_as_in_keras(self):
        with self.assertWarnsRegex(UserWarning, "`input_length` has no effect"):
            DynamicEmbedding(9, 4, input_length=3)

    @parameterized.parameters(False, True)
    def test_set_weights_refuses_a_matrix_and_says_what_to_do(self, built):
        layer = DynamicEmbedding(2, name="mine")
        if built:
            layer.build()
        with self.assertRaisesRegex(ValueError, "'mine' .*`layer.variable.upsert"):
            layer.set_weights([np.ones([3, 2])])
        with self.assertRaisesRegex(TypeError, "`weights` of 'mine' must be a list of arrays"):
            layer.set_weights("rows")

    def test_code_that_needs_the_matrix_is_told_how_to_get_rows(self):
        layer = DynamicEmbedding(output_dim=2, weights=[[1, 2]], name="mine")
        layer.build()
        with self.assertRaisesRegex(AttributeError, "'mine' has no `embeddings`.*`layer.variable"):
            _ = layer.embeddings
        with self.assertRaisesRegex(IndexError, "The rows of 'mine' have no index.*`lookup"):
            _ = layer.get_weights()[0][0]

    def test_a_soft_update_by_assign_is_told_how_to_do_it(self):
        online, target = DynamicEmbedding(2), DynamicEmbedding(2, name="target")
        for layer in (online, target):
            layer.build()
        mixed = 0.5 * online.weights[0] + 0.5 * target.weights[0]
        with self.assertRaisesRegex(ValueError, "rows of 'target' .*soft update .*`upsert`"):
            target.weights[0].assign(mixed)


if __name__ == "__main__":
    tf.test.main()

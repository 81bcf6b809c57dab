# SPDX-License-Identifier: Apache-2.0
"""The layers of tf_embed.sok in one process."""

from __future__ import annotations

import copy
import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import sok

DIM = 4


def dense(**options: Any) -> sok.All2AllDenseEmbedding:
    options = {
        "max_vocabulary_size_per_gpu": 100,
        "embedding_vec_size": DIM,
        "slot_num": 2,
        "nnz_per_slot": 3,
        **options,
    }
    return sok.All2AllDenseEmbedding(**options)


def pooled(combiner: str = "sum", **options: Any) -> sok.DistributedEmbedding:
    options = {
        "max_vocabulary_size_per_gpu": 100,
        "embedding_vec_size": DIM,
        "slot_num": 2,
        "max_nnz": 3,
        **options,
    }
    return sok.DistributedEmbedding(combiner, **options)


def sparse(lines: list[list[int]], columns: int = 3, dtype: tf.DType = tf.int64) -> tf.SparseTensor:
    places = [[row, column] for row, line in enumerate(lines) for column in range(len(line))]
    keys = tf.constant([key for line in lines for key in line], dtype)
    return tf.SparseTensor(np.reshape(places, [-1, 2]), keys, [len(lines), columns])


def train(layer: Any, inputs: Any) -> None:
    """Makes a step of SGD with a learning rate of 1 on the sum of the output."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs))
    (anchor,) = layer.trainable_variables
    optimizer = sok.OptimizerWrapper(keras.optimizers.SGD(1.0))
    optimizer.apply_gradients([(tape.gradient(loss, anchor), anchor)])


def keys_of(layer: Any) -> list[int]:
    return sorted(sok.export(layer)[0].numpy().tolist())


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    def test_the_documented_example(self):
        # SOK's documented usage: a layer, and a step in a tf.function.
        layer = sok.All2AllDenseEmbedding(1024, 8, 10, 4)
        inner = keras.optimizers.Adam(0.001)
        optimizer = sok.OptimizerWrapper(inner)

        @tf.function
        def train_step(inputs, labels):
            with tf.GradientTape() as tape:
                vectors = layer(inputs, training=True)
                loss = tf.reduce_mean((tf.reduce_sum(vectors, [1, 2, 3]) - labels) ** 2)
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        rng = np.random.default_rng(0)
        inputs = tf.constant(rng.integers(0, 1000, [16, 10, 4]))
        layer.build()
        self.assertEqual(layer(inputs).shape, [16, 10, 4, 8])
        losses = [float(train_step(inputs, tf.ones([16]))) for _ in range(10)]
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertEqual(keys_of(layer), np.unique(inputs).tolist())

    @parameterized.parameters(*(np.int64, np.uint64, np.uint32), *(np.int32, np.uint8))
    def test_rows_are_those_of_the_keys(self, dtype):
        name = np.dtype(dtype).name
        key_dtype = name if name in ("uint64", "uint32") else "int64"
        layer = dense(key_dtype=key_dtype)
        keys = np.arange(12).reshape([2, 2, 3]).astype(dtype)
        rows = layer(tf.constant(keys))
        self.assertEqual(rows.shape, [2, 2, 3, DIM])
        flat = layer.embedding_variable.lookup(tf.constant(keys.reshape(-1).astype(key_dtype)))
        self.assertAllEqual(tf.reshape(rows, [12, DIM]), flat)
        self.assertEqual(int(layer.embedding_variable.size()), 0)  # a lookup stores nothing

    def test_rows_are_uniform_from_minus_to_plus_a_twentieth_by_default(self):
        for options in ({}, {"embedding_initializer": None}):
            layer = dense(dynamic_input=True, **options)
            rows = layer(tf.range(5000, dtype=tf.int64)).numpy()
            self.assertAllInRange(rows, -0.05, 0.05)
            self.assertAllClose(rows.min(), -0.05, atol=1e-4)
            self.assertAllClose(rows.max(), 0.05, atol=1e-4)
            # For 20,000 such numbers, the standard error is 0.0002 for the mean, and 0.0001 for the
            # standard deviation.
            self.assertAllClose(rows.mean(), 0.0, atol=1e-3)
            self.assertAllClose(rows.std(), 0.1 / 12**0.5, atol=5e-4)

    @parameterized.product(
        make=[dense, pooled],
        initializer=[
            "glorot_uniform",
            "he_normal",
            "lecun_normal",
            keras.initializers.VarianceScaling(3.0, "fan_out", "untruncated_normal", seed=2),
        ],
    )
    def test_an_initializer_that_scales_has_the_shape_of_a_gpus_table(self, make, initializer):
        layer = make(
            max_vocabulary_size_per_gpu=1024, slot_num=1, embedding_initializer=initializer
        )
        layer.build()
        rows = layer.variable.lookup(np.arange(1024)).numpy()
        of_keras = keras.initializers.get(initializer)((1024, DIM))
        self.assertNear(rows.std() / np.std(of_keras), 1.0, 5 / rows.size**0.5)

    def test_a_config_of_before_keeps_its_initial_rows(self):
        initializer = keras.initializers.HeNormal(seed=5)
        layer = dense(name="items", embedding_initializer=initializer)
        config = layer.get_config()
        of_before = {
            **copy.deepcopy(config),
            "embedding_initializer": keras.saving.serialize_keras_object(initializer),
        }
        keys = np.arange(100)
        one_row = tf_embed.Variable(dim=DIM, name="items", initializer=initializer)
        for given, wanted in ((of_before, one_row.lookup(keys)), (config, None)):
            other = type(layer).from_config(given)
            for same in (other, type(layer).from_config(other.get_config())):
                for each in (same, layer):
                    each.build()
                expected = layer.variable.lookup(keys) if wanted is None else wanted
                self.assertAllEqual(same.variable.lookup(keys), expected)

    @parameterized.parameters(([5, 6],), ([5, 2, 3],), ([5, 3, 2],), ([5, 1, 6, 1],))
    def test_a_batch_of_as_many_keys_has_any_shape(self, shape):
        layer = dense()
        keys = tf.reshape(tf.range(30, dtype=tf.int64), shape)
        expected = layer(tf.reshape(keys, [5, 2, 3]))
        self.assertAllEqual(layer(keys), expected)
        unknown = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.int64)])
        self.assertAllEqual(unknown(keys), expected)
        spec = tf.TensorSpec([None] * len(shape), tf.int64)
        self.assertAllEqual(tf.function(layer, input_signature=[spec])(keys), expected)

    def test_an_empty_batch_has_no_rows(self):
        self.assertEqual(dense()(tf.zeros([0, 2, 3], tf.int64)).shape, [0, 2, 3, DIM])
        empty = tf.zeros([0], tf.int64)
        self.assertEqual(dense(dynamic_input=True)(empty).shape, [0, DIM])

    def test_dynamic_input_takes_any_number_of_keys(self):
        layer = dense(dynamic_input=True)
        look_up = tf.function(layer, input_signature=[tf.TensorSpec([None], tf.int64)])
        for count in (0, 1, 7):
            keys = tf.range(count, dtype=tf.int64)
            self.assertEqual(look_up(keys).shape, [count, DIM])
            self.assertAllEqual(look_up(keys), layer.embedding_variable.lookup(keys))

    @parameterized.parameters(
        (
            False,
            [5, 2, 2],
            r"shape \[batch, slot_num, nnz_per_slot\].* Received: inputs.shape=.*5, 2, 2",
        ),
        (False, [12], r"\[batch, 2, 3\].*inputs.shape=\(12,\)"),
        (False, [], r"\[batch, 2, 3\].*inputs.shape=\(\)"),
        (True, [2, 3], r"keys \[n\], because dynamic_input=True.*inputs.shape=\(2, 3\)"),
    )
    def test_another_size_is_refused(self, dynamic, shape, words):
        layer = dense(dynamic_input=dynamic, name="items")
        with self.assertRaisesRegex(ValueError, f"`inputs` of 'items' must .*{words}"):
            layer(tf.zeros(shape, tf.int64))
        unknown = tf.function(layer, input_signature=[tf.TensorSpec(None, tf.int64)])
        if shape:
            with self.assertRaises(tf.errors.InvalidArgumentError):
                unknown(tf.zeros(shape, tf.int64))

    def test_a_functional_model_knows_its_shapes(self):
        self.assertEqual(dense()(keras.Input([2, 3], dtype="int64")).shape, (None, 2, 3, DIM))
        one = dense(dynamic_input=True)(keras.Input([], dtype="int64"))
        self.assertEqual(one.shape, (None, DIM))
        with self.assertRaisesRegex(ValueError, r"\[batch, 2, 3\]"):
            dense()(keras.Input([5], dtype="int64"))
        with self.assertRaisesRegex(TypeError, "dense tensor.* a sparse or ragged keras.Input"):
            dense()(keras.Input([6], dtype="int64", sparse=True))
        with self.assertRaisesRegex(TypeError, "must be a dense tensor"):
            dense()(sparse([[1], [2]]))

    def test_a_model_without_an_optimizer_for_the_table_is_told_of_no_other_layer(self):
        layer = dense(name="items")
        keys = keras.Input([2, 3], dtype="int64")
        model = keras.Model(keys, keras.layers.Flatten()(layer(keys)))
        model.compile("adam", "mse")
        words = "'items' has a table.* give its layer one of its own, optimizer=\"adam\", or wrap"
        with self.assertRaisesRegex(ValueError, words) as refused:
            model.fit(np.ones([2, 2, 3]), np.ones([2, 24]), verbose=0)
        self.assertNotIn("DynamicEmbedding(", str(refused.exception))

    def test_another_dtype_of_the_output_is_that_of_the_policy(self):
        self.assertEqual(dense(dtype="mixed_float16")(tf.zeros([1, 6], tf.int64)).dtype, tf.float16)


class PooledTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("sum", "mean")
    def test_slots_are_pooled(self, combiner):
        layer = pooled(combiner, slot_num=3)
        lines = [[7, 8, 9], [], [7], [5, 5], [1, 2], [3]]
        result = layer(sparse(lines))
        self.assertEqual(result.shape, [2, 3, DIM])
        pool = {"sum": np.sum, "mean": np.mean}[combiner]
        for place, line in enumerate(lines):
            expected = np.zeros([DIM])
            if line:
                expected = pool(layer.embedding_variable.lookup(line).numpy(), axis=0)
            self.assertAllClose(result[place // 3, place % 3], expected, rtol=1e-6, atol=1e-7)

    @parameterized.parameters("sum", "mean")
    def test_each_key_gets_its_part_of_the_gradient(self, combiner):
        layer = pooled(combiner, embedding_initializer="zeros")
        train(layer, sparse([[7, 8], [7]]))
        share = 1.0 if combiner == "sum" else 0.5
        rows = layer.embedding_variable.lookup([7, 8])
        self.assertAllClose(rows, [[-share - 1.0] * DIM, [-share] * DIM])

    @parameterized.parameters(
        (sparse([[1]] * 3), r"inputs.shape=\(3, 3\)"),
        (sparse([[1]] * 4, columns=4), r"inputs.shape=\(4, 4\)"),
        (tf.SparseTensor([[0, 0, 0]], tf.constant([1], tf.int64), [2, 1, 1]), r"\(2, 1, 1\)"),
    )
    def test_another_shape_is_refused(self, inputs, words):
        layer = pooled(name="items")
        message = r"must have the shape \[batch \* slot_num, max_nnz\] = \[batch \* 2, 3\]"
        with self.assertRaisesRegex(ValueError, f"`inputs` of 'items' {message}.*{words}"):
            layer(inputs)
        spec = tf.SparseTensorSpec([None] * len(inputs.shape), tf.int64)
        look_up = tf.function(layer, input_signature=[spec])
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), message):
            look_up(inputs)

    def test_fewer_columns_and_an_unknown_batch_are_taken(self):
        layer = pooled()
        spec = tf.SparseTensorSpec([None, None], tf.int64)
        look_up = tf.function(layer, input_signature=[spec])
        inputs = sparse([[1], [2], [3, 4], []], columns=2)
        self.assertAllEqual(look_up(inputs), layer(inputs))

    def test_a_functional_model_trains_on_sparse_inputs(self):
        inputs = keras.Input([3], dtype="int64", sparse=True)
        layer = pooled(slot_num=1, optimizer="adagrad")
        vectors = layer(inputs)
        self.assertEqual(vectors.shape, (None, 1, DIM))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(vectors)))
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensors((sparse([[1, 2], [3]]), tf.ones([2, 1])))
        losses = model.fit(data, epochs=3, verbose=0).history["loss"]
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(keys_of(layer), [1, 2, 3])

    def test_dense_inputs_are_refused(self):
        with self.assertRaisesRegex(TypeError, "`inputs` of 'items' must be a tf.SparseTensor"):
            pooled(name="items")(tf.zeros([2, 3], tf.int64))
        with self.assertRaisesRegex(
            TypeError,
            "All2AllDenseEmbedding takes dense ones. .* a keras.Input without sparse=True",
        ):
            pooled(name="items")(keras.Input([3], dtype="int64"))


class BoundTest(tf.test.TestCase, parameterized.TestCase):
    """A bound of 4 rows. Every step trains some keys."""

    STEPS = ([1, 2], [3, 4, 5, 6], [7, 1], [8, 9, 9, 10], [1, 2, 3, 4], [5, 5])
    REFUSED = (0, 2, 3, 6, 6, 7)

    def bounded(self, **options: Any) -> Any:
        kind = {"max_vocabulary_size_per_gpu": 4, "embedding_initializer": "zeros", **options}
        layer = dense(dynamic_input=True, **kind)
        layer.build()
        return layer

    def test_new_keys_beyond_it_are_refused_and_counted(self):
        layer = self.bounded(name="items")
        times = dict.fromkeys(range(1, 11), 0)
        for keys, refused in zip(self.STEPS, self.REFUSED, strict=True):
            train(layer, tf.constant(keys, tf.int64))
            stats = layer.embedding_variable.stats()
            self.assertEqual((stats["refused"], stats["evicted"]), (refused, 0))
            for key in keys:
                times[key] += key <= 4
        self.assertEqual(keys_of(layer), [1, 2, 3, 4])
        rows = layer(tf.constant(list(times), tf.int64))
        self.assertAllClose(rows, [[-count] * DIM for count in times.values()])

    def test_rows_that_are_written_are_bounded_too(self):
        layer = self.bounded()
        sok.assign(layer, [1, 2, 3], np.ones([3, DIM]))
        sok.assign(layer, [4, 5, 1], 2 * np.ones([3, DIM]))
        self.assertEqual(keys_of(layer), [1, 2, 3, 4])
        self.assertEqual(layer.embedding_variable.stats()["refused"], 1)
        self.assertAllClose(layer.embedding_variable.lookup([1, 3])[:, 0], [2.0, 1.0])

    def test_a_key_is_taken_where_another_has_left(self):
        layer = self.bounded()
        train(layer, tf.constant([1, 2, 3, 4, 5], tf.int64))
        layer.embedding_variable.remove([2])
        train(layer, tf.constant([6, 7], tf.int64))
        self.assertEqual(keys_of(layer), [1, 3, 4, 6])

    def test_rows_drawn_in_python_are_bounded_too(self):
        draw = keras.saving.register_keras_serializable(package="sok_layers_test")(
            lambda shape, dtype: tf.ones(shape, dtype)
        )
        layer = self.bounded(embedding_initializer=draw)
        for keys in self.STEPS:
            train(layer, tf.constant(keys, tf.int64))
        self.assertEqual(keys_of(layer), [1, 2, 3, 4])
        self.assertEqual(layer.embedding_variable.stats()["evicted"], 0)

    @parameterized.parameters("keras", "checkpoint", "dump", "weights")
    def test_it_holds_after_rows_were_restored(self, way):
        layer, other = self.bounded(name="items"), self.bounded(name="items")
        train(layer, tf.constant([1, 2, 3, 4], tf.int64))
        path = os.path.join(self.get_temp_dir(), way)
        if way == "keras":
            inputs = keras.Input([], dtype="int64")
            keras.Model(inputs, layer(inputs)).save(f"{path}.keras")
            other = keras.saving.load_model(f"{path}.keras").layers[1]
        elif way == "checkpoint":
            tf.train.Checkpoint(layer=layer).write(path)
            tf.train.Checkpoint(layer=other).read(path).assert_consumed()
        elif way == "dump":
            sok.dump(path, layer)
            sok.load(path, other)
        else:
            other.set_weights(layer.get_weights())
        self.assertEqual(keys_of(other), [1, 2, 3, 4])
        train(other, tf.constant([5, 6, 1], tf.int64))
        self.assertEqual(keys_of(other), [1, 2, 3, 4])
        stats = other.embedding_variable.stats()
        self.assertEqual((stats["refused"], stats["evicted"]), (2, 0))
        self.assertAllClose(other(tf.constant([1, 2], tf.int64))[:, 0], [-2.0, -1.0])

    def test_it_holds_for_a_copy_of_the_table(self):
        layer = self.bounded()
        train(layer, tf.constant([1, 2, 3], tf.int64))
        table = copy.deepcopy(layer.embedding_variable.table)
        for key in (4, 5):
            table.insert_or_assign(tf.constant([key], tf.int64), tf.zeros([1, DIM]))
        self.assertCountEqual(table.export().keys.numpy(), [1, 2, 3, 4])
        self.assertEqual(keys_of(layer), [1, 2, 3])

    @parameterized.parameters("int64", "uint64", "uint32")
    def test_without_a_hash_table_keys_are_numbers_of_rows(self, dtype):
        layer = self.bounded(use_hashtable=False, key_dtype=dtype, name="items")
        train(layer, tf.constant([0, 3], dtype))
        for key in (4, -1, 2**32 - 1):
            if key < 0 and dtype != "int64":
                continue
            message = "must be numbers of rows from 0 to .* = 3, because"
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
                layer(tf.constant([0, key], dtype))
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
                tf.function(layer)(tf.constant([0, key], dtype))
        self.assertEqual(keys_of(layer), [0, 3])

    @parameterized.parameters(8, -1)
    def test_a_key_that_is_no_number_of_a_row_is_named_with_its_place(self, bad):
        layer = dense(max_vocabulary_size_per_gpu=8, nnz_per_slot=2, use_hashtable=False)
        keys = tf.constant([[[1, 2], [3, 4]], [[5, 6], [bad, 7]]], tf.int64)
        for run in (layer, tf.function(lambda keys: layer(keys))):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, rf"Received:\W+{bad}\W+at\W+1\W+1\W+0"
            ):
                run(keys)
        several = pooled(max_vocabulary_size_per_gpu=8, use_hashtable=False)
        for run in (several, tf.function(lambda keys: several(keys))):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, rf"rows.*Received:\W+{bad}\W+at\W+1\W+2"
            ):
                run(sparse([[1, 2], [3, 4, bad]]))

    @parameterized.parameters(True, False)
    def test_a_row_keeps_nothing_of_its_use(self, use_hashtable):
        layer = self.bounded(use_hashtable=use_hashtable)
        self.assertEqual(layer.memory_report().row_bytes, 4 * DIM)


class ArgumentTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("max_vocabulary_size_per_gpu", 0, ValueError, "0"),
        ("max_vocabulary_size_per_gpu", 2**61, ValueError, str(2**61)),
        ("max_vocabulary_size_per_gpu", 1.5, TypeError, "1.5"),
        ("embedding_vec_size", 0, ValueError, "0"),
        ("slot_num", -1, ValueError, "-1"),
        ("nnz_per_slot", 0, ValueError, "0"),
        ("dynamic_input", "no", TypeError, "no"),
        ("use_hashtable", 2, TypeError, "2"),
        ("key_dtype", "int32", TypeError, "int32"),
        ("key_dtype", "string", TypeError, "string"),
        ("max_nnz", 0, ValueError, "0"),
        ("max_feature_num", 0, ValueError, "0"),
        ("combiner", "sqrtn", ValueError, "sqrtn"),
    )
    def test_a_wrong_argument_is_named(self, argument, value, error, received):
        is_pooled = argument in ("max_nnz", "max_feature_num", "combiner")
        with self.assertRaisesRegex(error, f"`{argument}` must .*Received: .*{received}"):
            (pooled if is_pooled else dense)(**{argument: value})

    def test_the_optimizer_and_the_initializer_are_checked(self):
        with self.assertRaisesRegex(ValueError, "a Keras optimizer, or its name or config. .*=3"):
            dense(optimizer=3)
        with self.assertRaisesRegex(ValueError, "no_such"):
            dense(embedding_initializer="no_such")

    @parameterized.parameters(
        (
            dense,
            {
                "dynamic_input": True,
                "key_dtype": "uint32",
                "optimizer": keras.optimizers.Adagrad(0.1),
            },
        ),
        (dense, {"use_hashtable": False, "embedding_initializer": "ones", "trainable": False}),
        (pooled, {"combiner": "mean", "max_feature_num": 5, "name": "items"}),
    )
    def test_a_config_makes_the_same_layer(self, make, options):
        layer = make(**options)
        config = layer.get_config()
        other = type(layer).from_config(copy.deepcopy(config))  # Keras changes it
        self.assertEqual(other.get_config(), config)
        for name in options:
            if name not in ("optimizer", "embedding_initializer"):
                self.assertEqual(getattr(other, name), options[name])
        inputs = sparse([[1], [2]]) if make is pooled else tf.range(6, dtype=tf.int64)
        if make is dense and not layer.dynamic_input:
            inputs = inputs[None]
        self.assertAllEqual(other(inputs), layer(inputs))
        rebuilt = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        self.assertIsInstance(rebuilt, type(layer))

    def test_there_is_no_variable_before_the_layer_is_built(self):
        self.assertFalse(hasattr(dense(), "embedding_variable"))
        layer = dense()
        layer.build()
        self.assertIsInstance(layer.embedding_variable, tf_embed.Variable)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""`tf_embed.layers.DynamicEmbedding` as a Keras layer; pooling_test.py tests its ids and bags."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.layers import DynamicEmbedding


@keras.saving.register_keras_serializable(package="test")
def second_half(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.cast(keys > 100, tf.int32) * (shard_num - 1)


class MakingTest(tf.test.TestCase, parameterized.TestCase):
    def test_the_signature_is_that_of_the_documentation(self):
        parameters = inspect.signature(DynamicEmbedding.__init__).parameters
        names = [name for name in parameters if name not in ("self", "kwargs")]
        self.assertEqual(
            {name: parameters[name].default for name in names},
            {
                "dim": None,
                "key_dtype": "int64",
                "value_dtype": "float32",
                "initializer": "uniform",
                "combiner": None,
                "optimizer": None,
                "padding_id": None,
                "devices": None,
                "partitioner": None,
                "init_size": 0,
                "unknown_value": None,
                "unknown_in_training": False,
                "policy": None,
                "storage": None,
                "distribution": None,
                "output_dim": None,
                "input_dim": None,
                "embeddings_initializer": None,
                "embeddings_regularizer": None,
                "mask_zero": False,
                "weights": None,
                "name": None,
            },
        )
        self.assertEqual(names[:5], ["dim", "key_dtype", "value_dtype", "initializer", "combiner"])
        self.assertEqual(parameters["optimizer"].kind, inspect.Parameter.KEYWORD_ONLY)
        call = inspect.signature(DynamicEmbedding.call).parameters
        self.assertEqual(list(call), ["self", "ids", "weights", "training"])

    def test_output_dim_is_another_name_of_dim(self):
        layer = DynamicEmbedding(output_dim=3, initializer="ones")
        self.assertEqual((layer.dim, layer.output_dim), (3, 3))
        self.assertAllEqual(layer(tf.constant([1, 2])), np.ones([2, 3]))
        config = layer.get_config()
        self.assertEqual(config["dim"], 3)
        self.assertNotIn("output_dim", config)

    def test_a_config_may_have_either_name(self):
        config = DynamicEmbedding(dim=3, name="items").get_config()
        by_other_name = {**config, "output_dim": config["dim"]}
        del by_other_name["dim"]
        self.assertEqual(DynamicEmbedding.from_config(config).get_config(), config)
        self.assertEqual(DynamicEmbedding.from_config(by_other_name).get_config(), config)

    @parameterized.parameters(
        ({}, "dim=None, output_dim=None"),
        ({"dim": 2, "output_dim": 3}, "dim=2, output_dim=3"),
        ({"dim": 2, "output_dim": 2}, "dim=2, output_dim=2"),
        ({"dim": 0, "output_dim": 2}, "dim=0, output_dim=2"),
    )
    def test_one_of_the_two_names_must_be_given(self, arguments, received):
        with self.assertRaisesRegex(ValueError, f"`dim` .* `output_dim` .*Received: {received}"):
            DynamicEmbedding(**arguments)

    @parameterized.parameters(
        ({"output_dim": 0}, ValueError, "`output_dim` must be at least 1"),
        ({"output_dim": 2.0}, TypeError, "`output_dim` must be an int"),
        ({"output_dim": 2**40}, ValueError, "`output_dim` must be at most"),
        ({"dim": 0}, ValueError, "`dim` must be at least 1"),
        ({"dim": "x"}, TypeError, "`dim` must be an int"),
        ({"dim": 1, "key_dtype": "float32"}, TypeError, "`key_dtype` must be one of"),
        ({"dim": 1, "value_dtype": "int32"}, TypeError, "`value_dtype` must be one of"),
        ({"dim": 1, "init_size": -2}, ValueError, "`init_size`"),
        ({"dim": 1, "optimizer": 3}, (TypeError, ValueError), "optimizer"),
        ({"dim": 1, "nothing": 3}, (TypeError, ValueError), "nothing"),
    )
    def test_wrong_arguments_are_refused_when_the_layer_is_made(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            DynamicEmbedding(**arguments)

    def test_there_is_no_table_until_the_layer_is_built(self):
        layer = DynamicEmbedding(2, name="mine")
        with self.assertRaisesRegex(AttributeError, "'mine' has no table yet"):
            _ = layer.variable
        layer.build()
        self.assertIsInstance(layer.variable, tf_embed.Variable)
        self.assertEqual(layer.variable.name, "mine")

    def test_the_config_makes_the_same_layer(self):
        layer = DynamicEmbedding(
            3,
            "int32",
            "float64",
            keras.initializers.RandomNormal(0.0, 2.0),
            "mean",
            optimizer=keras.optimizers.Adagrad(0.25),
            padding_id=-7,
            devices=["/CPU:0"] * 2,
            partitioner=second_half,
            init_size=77,
            unknown_value=[1.0, 2.0, 3.0],
            unknown_in_training=True,
            name="mine",
            trainable=False,
        )
        other = DynamicEmbedding.from_config(layer.get_config())
        self.assertEqual(other.get_config(), layer.get_config())
        self.assertEqual(other.optimizer.get_config(), layer.optimizer.get_config())
        self.assertIs(other.partitioner, second_half)
        self.assertFalse(other.trainable)
        config = keras.saving.serialize_keras_object(layer)
        again = keras.saving.deserialize_keras_object(config)
        ids = tf.constant([[1, 200], [-7, 4]])
        wanted = layer(ids, training=True)
        for copy in (other, again):
            self.assertAllEqual(copy(ids, training=True), wanted)
            self.assertAllEqual(copy(tf.constant([[5]])), [[1.0, 2.0, 3.0]])
            self.assertEqual(copy.variable.table.options, layer.variable.table.options)

    def test_a_model_whose_layer_was_given_the_default_partitioner_can_be_loaded(self):
        layer = DynamicEmbedding(2, partitioner=tf_embed.default_partition_fn)
        self.assertIs(layer.partitioner, tf_embed.default_partition_fn)
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
        path = f"{self.get_temp_dir()}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path).layers[0]
        self.assertEqual(loaded.variable.table.options, layer.variable.table.options)

    @parameterized.parameters(
        ("uniform",),
        ("he_normal",),
        (keras.initializers.serialize(keras.initializers.HeUniform()),),
    )
    def test_an_unseeded_initializer_has_its_seed_in_the_config(self, initializer):
        layer = DynamicEmbedding(3, initializer=initializer, name="mine")
        config = layer.get_config()
        self.assertIsInstance(config["initializer"]["config"]["seed"], int)
        copy = DynamicEmbedding.from_config(config)
        ids = tf.range(10)
        self.assertAllEqual(copy(ids), layer(ids))
        other = DynamicEmbedding(3, initializer=initializer, name="mine")
        self.assertNotAllClose(other(ids), layer(ids))

    def test_an_array_as_initializer_is_in_the_config(self):
        layer = DynamicEmbedding(2, initializer=np.array([1.0, 2.0]))
        copy = DynamicEmbedding.from_config(layer.get_config())
        self.assertAllEqual(copy(tf.constant([9])), [[1.0, 2.0]])

    @parameterized.parameters(
        (DynamicEmbedding, tf.random_normal_initializer, {}),
        (tf_embed.tfra.keras.layers.Embedding, tf.random_uniform_initializer, {"seed": 3}),
        (DynamicEmbedding, tf.zeros_initializer, {}),
        (DynamicEmbedding, tf.constant_initializer, {"value": [1.0, 2.0]}),
    )
    def test_models_with_an_initializer_of_tensorflow_are_saved_and_cloned(self, kind, make, given):
        layer = kind(2, initializer=make(**given))
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
        path = self.get_temp_dir() + "/model.keras"
        model.save(path)
        ids = np.array([[5], [6]])
        for other in (keras.models.load_model(path), keras.models.clone_model(model)):
            self.assertAllEqual(other(ids), model(ids))

    def test_cloned_models_have_tables_of_their_own_with_the_same_initial_rows(self):
        model = keras.Sequential([keras.Input([2], dtype="int64"), DynamicEmbedding(2)])
        clone = keras.models.clone_model(model)
        ids = np.array([[1, 2]])
        self.assertAllEqual(clone(ids), model(ids))
        model.layers[0].variable.upsert([1], [[5.0, 5.0]])
        self.assertEqual(int(clone.layers[0].variable.size()), 0)


class KerasTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_sequential_without_input_refuses_ids_that_do_not_fit(self):
        model = keras.Sequential([DynamicEmbedding(2, key_dtype="int32", combiner="sum")])
        self.assertAllEqual(model.predict(np.array([[5]]), verbose=0).shape, [1, 2])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must fit its key dtype int32"):
            model.predict(np.array([[2**32 + 5]]), verbose=0)

    def test_weights_of_rows_are_counted_at_the_layer_but_not_in_the_totals_of_keras(self):
        layer = DynamicEmbedding(8, name="items")
        with self.assertRaisesRegex(ValueError, "isn't built"):
            layer.count_params()
        model = keras.Sequential([keras.Input([2], dtype="int64"), layer])
        layer.variable.upsert([1, 2, 3], np.ones([3, 8]))
        self.assertEqual(layer.count_params(), 24)
        self.assertEqual(model.count_params(), 0)
        self.assertLen(model.trainable_variables, 1)
        self.assertEqual(model.trainable_variables[0].shape, (0, 8))
        lines = []
        model.summary(print_fn=lambda line, **_: lines.append(line))
        self.assertRegex("\n".join(lines), r"items .*\(None, 2, 8\).* 24 ")
        self.assertIn("Total params: 0", "\n".join(lines))

    def test_a_map_of_dtype_policies_counts_as_in_keras(self):
        policies = keras.dtype_policies
        policy = policies.DTypePolicyMap(
            default_policy=policies.DTypePolicy("float32"),
            policy_map={"items": policies.DTypePolicy("mixed_bfloat16")},
        )
        for name, dtype in (("items", "bfloat16"), ("users", "float32")):
            layer = DynamicEmbedding(2, name=name, dtype=policy)
            self.assertEqual(layer(keras.Input([1], dtype="int64")).dtype, dtype)
            self.assertEqual(layer(tf.constant([1])).dtype, dtype)
            self.assertEqual(layer.compute_dtype, dtype)
            self.assertEqual(layer.variable.value_dtype, tf.float32)

    def test_get_and_set_weights_leave_the_rows(self):
        layer = DynamicEmbedding(2)
        layer(tf.constant([1]))
        layer.variable.upsert([1], [[5.0, 5.0]])
        layer.set_weights(layer.get_weights())
        self.assertAllEqual(layer.variable.lookup([1]), [[5.0, 5.0]])

    @parameterized.parameters(
        (None, (None, 7), (None, 7, 4)),
        ("sum", (None, 7), (None, 4)),
        (None, (None,), (None, 4)),
        ("mean", (2, None, 3), (2, None, 4)),
    )
    def test_symbolic_and_eager_shapes_agree(self, combiner, shape, wanted):
        layer = DynamicEmbedding(4, combiner=combiner)
        self.assertEqual(layer.compute_output_shape(shape), wanted)
        outputs = layer(keras.KerasTensor(shape, "int32"))
        self.assertEqual((tuple(outputs.shape), outputs.dtype), (wanted, "float32"))
        real = layer(tf.zeros([2 if size is None else size for size in shape], tf.int32))
        self.assertEqual(real.shape.rank, len(wanted))

    def test_a_sequential_model_without_input_keeps_large_ids_exact(self):
        model = keras.Sequential([DynamicEmbedding(1, initializer="zeros"), keras.layers.Flatten()])
        ids = np.array([[2**53 + 1, 2**24 + 1]])
        model(ids)
        model.layers[0].variable.upsert([2**53 + 1, 2**24 + 1], [[1.0], [2.0]])
        self.assertAllEqual(model(ids), [[1.0, 2.0]])
        self.assertAllEqual(model.predict(ids, verbose=0), [[1.0, 2.0]])

    @parameterized.product(
        kind=["sequential", "with an input", "functional"], policy=["float32", "mixed_bfloat16"]
    )
    def test_a_model_around_a_model_rounds_no_ids(self, kind, policy):
        keras.config.set_dtype_policy(policy)
        layer = DynamicEmbedding(1, optimizer="sgd")
        given = [keras.Input([2], dtype="int64")]
        if kind == "functional":
            inner = keras.Model(given[0], layer(given[0]))
        else:
            inner = keras.Sequential((given if kind == "with an input" else []) + [layer])
        model = keras.Sequential([inner, keras.layers.Flatten()])
        model.compile("sgd", "mse")
        few = np.arange(10).reshape(5, 2)
        model.fit(few, np.ones([5, 2]), verbose=0)
        self.assertEqual(int(layer.variable.size()), 10)
        for call in (lambda ids: model.fit(ids, np.ones([5, 2]), verbose=0), model.predict):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, 'must not be rounded.*keras.Input.*dtype=."int64'
            ):
                call(10**12 + few)
        self.assertEqual(int(layer.variable.size()), 10)

    def test_ids_that_a_graph_computes_from_floats_are_below_their_limit(self):
        layer = DynamicEmbedding(1)
        layer.build()
        flags = tf.function(
            lambda x: layer(tf.cast(tf.cast(tf.cast(x, "float32"), "bool"), "int64"))
        )
        self.assertAllEqual(flags(tf.constant([5, 0])), layer(tf.constant([1, 0])))
        low = tf.function(
            lambda x: layer(tf.cast(tf.cast(tf.cast(x, "float32"), "uint8"), "int64"))
        )
        self.assertAllEqual(low(tf.constant([255, 7])), layer(tf.constant([255, 7])))
        buckets = tf.function(lambda x: layer(tf.cast(tf.floor(x * 100.0), tf.int64)))
        self.assertAllEqual(buckets(tf.constant([20.257])), layer(tf.constant([2025])))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must not be rounded"):
            buckets(tf.constant([2.0**20]))

    @parameterized.parameters("int64", "string")
    def test_a_layer_that_is_built_begins_a_sequential_model(self, key_dtype):
        layer = DynamicEmbedding(1, key_dtype=key_dtype, optimizer="sgd")
        ids = tf.constant([[10**12 + 1], [10**12 + 2]], tf.int64)
        ids = ids if key_dtype == "int64" else tf.as_string(ids)
        rows = layer(ids)
        model = keras.Sequential([layer, keras.layers.Flatten()])
        self.assertAllEqual(model.predict(ids, verbose=0), rows[:, 0])
        self.assertEqual(model.layers[0].compute_dtype, "float32")

    def test_float_inputs_of_a_functional_model_are_refused(self):
        with self.assertRaisesRegex(
            TypeError, "must be integers: give the dtype in keras.Input.*Received: dtype=float32"
        ):
            DynamicEmbedding(1)(keras.Input([3]))

    def test_floats_are_ids_in_a_graph_only_and_only_if_whole_and_exact(self):
        layer = DynamicEmbedding(1)
        layer.build()
        function = tf.function(layer)
        self.assertAllEqual(function(tf.constant([3.0])), layer(tf.constant([3])))
        for wrong, message in (
            (1.5, "must be integers"),
            (float("nan"), "must be integers"),
            (float(2**24), "must not be rounded"),
            (float("inf"), "must not be rounded"),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
                function(tf.constant([wrong]))
        with self.assertRaisesRegex(TypeError, "must be integers"):
            layer(tf.constant([3.0]))

    @parameterized.parameters(
        ({"initializer": "no_such"}, ValueError, "`initializer` .*'no_such'"),
        ({"initializer": object()}, TypeError, "`initializer` of .* must be a number"),
        ({"devices": ["/CPU:99"]}, ValueError, "`devices` must be devices"),
        ({"devices": 3}, TypeError, "`devices` must be a name"),
        ({"partitioner": ""}, TypeError, "`partitioner` must be callable"),
        ({"name": "a\0b"}, ValueError, "`name` must have no control characters"),
        ({"unknown_value": 1e39}, ValueError, "`unknown_value` of .* must fit dtype float32"),
        ({"optimizer": ""}, ValueError, "must be a Keras optimizer, or its name or config"),
        (
            {"policy": {"class_name": "Nothing", "config": {}}},
            ValueError,
            "`policy` must be an object, or the config of one",
        ),
    )
    def test_wrong_arguments_are_refused_when_the_layer_is_made(self, options, error, message):
        with self.assertRaisesRegex(error, message):
            DynamicEmbedding(2, **options)

    def test_weights_that_are_no_tensor_are_refused_by_name(self):
        layer = DynamicEmbedding(2, combiner="sum")
        with self.assertRaisesRegex(
            TypeError, "`weights` of .* must be a tensor, an array, or numbers"
        ):
            layer(tf.constant([[1]]), weights=object())

    def test_uint64_ids_reach_the_table_whole(self):
        inputs = keras.Input([1], dtype="uint64")
        model = keras.Model(inputs, DynamicEmbedding(1, "uint64")(inputs))
        model.layers[-1].variable.upsert([2**64 - 1], [[4.0]])
        ids = np.array([[2**64 - 1]], np.uint64)
        self.assertAllEqual(model.predict(ids, verbose=0), [[[4.0]]])

    def test_xla_is_left_out_where_a_table_is(self):
        model = keras.Sequential([keras.Input([2], dtype="int64"), DynamicEmbedding(2)])
        self.assertFalse(model.layers[0].supports_jit)
        model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse")
        self.assertFalse(model.jit_compile)
        with pytest.warns(UserWarning, match="jit_compile"):
            model.compile(tf_embed.DynamicEmbeddingOptimizer("sgd"), "mse", jit_compile=True)
        model.fit(np.array([[1, 2]]), np.zeros([1, 2, 2]), verbose=0)
        self.assertEqual(int(model.layers[0].variable.size()), 2)

    def test_a_lookup_in_a_data_pipeline(self):
        layer = DynamicEmbedding(1, combiner="sum")
        layer.build()
        layer.variable.upsert([0, 1, 2], [[0], [10], [20]])
        data = tf.data.Dataset.range(3).batch(3).map(lambda ids: layer(ids[:, tf.newaxis]))
        self.assertAllEqual(next(data.as_numpy_iterator()), [[0], [10], [20]])

    def test_a_frozen_layer_has_a_frozen_anchor_however_it_was_frozen(self):
        before = DynamicEmbedding(1, trainable=False)
        before.build()
        after = DynamicEmbedding(1)
        after.build()
        after.trainable = False
        for layer in (before, after):
            self.assertEqual(layer.trainable_variables, [])
            self.assertFalse(layer.variable.trainable)
            layer.trainable = True
            self.assertLen(layer.trainable_variables, 1)
            self.assertTrue(layer.variable.trainable)


class PolicyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("float32", "bfloat16", "float16", "float64")
    def test_outputs_have_the_compute_dtype_whatever_is_stored(self, value_dtype):
        for policy, compute in (("float32", "float32"), ("mixed_bfloat16", "bfloat16")):
            layer = DynamicEmbedding(2, value_dtype=value_dtype, dtype=policy)
            rows = layer(tf.constant([1]))
            self.assertEqual(rows.dtype, compute)
            self.assertEqual(layer.variable.value_dtype, value_dtype)
            self.assertEqual(layer(keras.KerasTensor((3,), "int64")).dtype, compute)
            pooled = DynamicEmbedding(2, value_dtype=value_dtype, combiner="mean", dtype=policy)
            self.assertEqual(pooled(tf.constant([[1]])).dtype, compute)

    @parameterized.parameters("wrapper", "own")
    def test_mixed_bfloat16_trains_float32_rows(self, way):
        keras.config.set_dtype_policy("mixed_bfloat16")
        own = keras.optimizers.SGD(0.5) if way == "own" else None
        outer = keras.optimizers.SGD(0.5)
        layer = DynamicEmbedding(2, initializer="ones", optimizer=own)
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Flatten()])
        model.compile(
            outer if way == "own" else tf_embed.DynamicEmbeddingOptimizer(outer),
            lambda y, predicted: predicted * (1.0 + 2.0**-7),
        )
        self.assertEqual(model(np.array([[3]])).dtype, tf.bfloat16)
        model.fit(np.array([[3]]), np.zeros([1, 2]), verbose=0)
        self.assertAllEqual(layer.variable.lookup([3]), np.full([1, 2], 1.0 - 0.25 * (1 + 2.0**-7)))


class SharedLayerTest(tf.test.TestCase):
    def test_one_layer_serves_ragged_ids_and_dense_ids_of_the_same_shape(self):
        item = DynamicEmbedding(4, combiner="mean", optimizer="adam", initializer="ones")
        history = keras.Input([None], dtype="int64", ragged=True)
        candidates = keras.Input([None], dtype="int64")
        rows = keras.layers.Concatenate()([item(history), item(candidates)])
        model = keras.Model([history, candidates], keras.layers.Dense(1)(rows))
        model.compile("sgd", "mse")
        ids = tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64)
        dense = tf.constant([[1, 2], [3, 5]], tf.int64)
        wanted = model([ids, dense])
        of_any_length = tf.TensorSpec([None, None], tf.int64)
        specs = [tf.RaggedTensorSpec([None, None], tf.int64), of_any_length]
        serve = tf.function(lambda *inputs: model(list(inputs)), input_signature=specs)
        self.assertAllClose(serve(ids, dense), wanted)
        model.fit(tf.data.Dataset.from_tensors(((ids, dense), tf.ones([2, 1]))), verbose=0)
        self.assertEqual(int(item.variable.size()), 5)


if __name__ == "__main__":
    tf.test.main()

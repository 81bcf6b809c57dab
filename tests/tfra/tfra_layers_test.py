# SPDX-License-Identifier: Apache-2.0
"""The layers of `tf_embed.tfra.keras.layers`: arguments, rows and dtypes.

Each defect in the layers of TensorFlow Recommenders Addons 0.8.1 has a test, here or in the other
tfra_*_test.py: pooling, training, models.
"""

from __future__ import annotations

import inspect
import itertools
import json
from typing import Any

import keras
import numpy as np
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
    remainder,
    rows_after_a_step,
    second_half,
    traced_remainder,
    twice_the_sum,
)
from support.oracles.reference import SEED
from tf_embed import tfra
from tf_embed.tfra.keras.layers import (
    BasicEmbedding,
    Embedding,
    FieldWiseEmbedding,
    SquashedEmbedding,
)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (
            Embedding,
            {
                "embedding_size": inspect.Parameter.empty,
                "key_dtype": tf.int64,
                "value_dtype": tf.float32,
                "combiner": "sum",
                "initializer": None,
                "devices": None,
                "name": None,
                "with_unique": True,
                "short_file_name": False,
            },
        ),
        (
            FieldWiseEmbedding,
            {
                "embedding_size": inspect.Parameter.empty,
                "nslots": inspect.Parameter.empty,
                "slot_map_fn": None,
                "key_dtype": tf.int64,
                "value_dtype": tf.float32,
                "combiner": "sum",
                "initializer": None,
                "devices": None,
                "name": None,
                "with_unique": True,
            },
        ),
    )
    def test_positional_arguments_and_defaults_are_those_of_tfra(self, kind, wanted):
        parameters = inspect.signature(kind.__init__).parameters.values()
        positional = [p for p in parameters if p.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self.assertEqual(
            [(p.name, p.default) for p in positional if p.name != "self"], list(wanted.items())
        )

    def test_keyword_arguments_are_those_of_tfra(self):
        layer = Embedding(
            4,
            trainable=False,
            bp_v2=True,
            restrict_policy=tf_embed.tfra.TimestampRestrictPolicy,
            init_capacity=77,
            partitioner=second_half,
            kv_creator=None,
            max_norm=2,
            checkpoint=False,
            distribute_strategy=tf.distribute.OneDeviceStrategy("/CPU:0"),
            keep_distribution=True,
            devices=["/CPU:0"] * 3,
        )
        self.assertFalse(layer.trainable)
        self.assertTrue(layer.params.bp_v2)
        self.assertIsInstance(layer.params.restrict_policy, tf_embed.tfra.TimestampRestrictPolicy)
        self.assertEqual(layer.params.init_size, 77)
        self.assertIs(layer.params.partition_fn, second_half)
        self.assertFalse(layer.params.checkpoint)
        self.assertEqual(layer.params.shard_num, 3)

    @parameterized.parameters(
        ({"embedding_size": 0}, ValueError, "`embedding_size` must be at least 1"),
        ({"embedding_size": "x"}, TypeError, "`embedding_size` must be an int"),
        ({"init_capacity": -1}, ValueError, "`init_capacity` must be at least 0"),
        ({"combiner": "some"}, ValueError, "or a function of rows and axis, such as .*'some'"),
        ({"combiner": 3}, TypeError, "`combiner` must be a name or a function"),
        ({"max_norm": 0.0}, ValueError, "`max_norm` must be above 0 and at most"),
        ({"max_norm": keras.constraints.MaxNorm(1)}, TypeError, "`max_norm` must be a number"),
        ({"value_dtype": tf.int32}, TypeError, "`value_dtype` must be one of"),
        ({"distribute_strategy": 3}, TypeError, "must be None or a tf.distribute.Strategy"),
        ({"nothing": 1}, (TypeError, ValueError), "nothing"),
    )
    def test_wrong_arguments_are_refused_by_name(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            Embedding(**{"embedding_size": 1, **arguments})

    def test_wrong_fields_are_refused_by_name(self):
        with self.assertRaisesRegex(TypeError, "`slot_map_fn` must be callable.*None"):
            FieldWiseEmbedding(2, 3)
        with self.assertRaisesRegex(ValueError, "`nslots` must be at least 1"):
            FieldWiseEmbedding(2, 0, remainder)

    def test_the_table_is_there_from_the_start(self):
        layer = Embedding(2, name="mine")
        self.assertIsInstance(layer.params, tf_embed.Variable)
        self.assertEqual(layer.params.name, "mine-parameter")
        self.assertIs(layer.shadow, layer.params.anchor)
        self.assertLen(layer.trainable_variables, 1)
        self.assertIs(layer.trainable_variables[0], layer.shadow)
        self.assertIs(BasicEmbedding, Embedding)

    def test_layers_of_default_names_have_tables_of_their_own(self):
        small, large = Embedding(2), Embedding(5)
        small.params.upsert([1], [[1.0, 2.0]])
        self.assertEqual(int(large.params.size()), 0)
        self.assertEqual(large(tf.constant([1])).shape, (1, 5))
        inputs = keras.Input([4], dtype="int64")
        outputs = keras.layers.Concatenate()([small(inputs), large(inputs)])
        self.assertEqual(keras.Model(inputs, outputs)(np.ones([1, 4], int)).shape, (1, 4, 7))

    def test_initial_rows_of_a_batch_differ(self):
        rows = Embedding(4)(tf.range(100)).numpy()
        self.assertLen(np.unique(rows, axis=0), 100)
        self.assertNear(rows.std(), 0.05, 0.01)

    def test_a_subclass_may_have_layers_of_its_own(self):
        class Projected(Embedding):
            def __init__(self) -> None:
                super().__init__(DIM, initializer="ones")
                self.dense = keras.layers.Dense(1, kernel_initializer="ones")

            def call(self, ids: Any) -> Any:
                return self.dense(super().call(ids))

            def compute_output_spec(self, ids: Any) -> Any:
                return keras.KerasTensor((*ids.shape, 1))

        layer = Projected()
        self.assertAllEqual(layer(tf.constant([[1, 2]])), [[[3.0], [3.0]]])
        self.assertLen(layer.trainable_variables, 3)

    @parameterized.parameters(
        (Embedding, ()), (SquashedEmbedding, ()), (FieldWiseEmbedding, (3, remainder))
    )
    def test_the_config_is_json_and_makes_the_same_layer(self, kind, arguments):
        layer = kind(
            DIM,
            *arguments,
            key_dtype="int32",
            value_dtype=tf.float64,
            combiner=twice_the_sum,
            initializer=keras.initializers.RandomNormal(0.0, 2.0),
            devices=["/CPU:0"] * 2,
            restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy,
            init_capacity=77,
            partitioner=second_half,
            max_norm=1.5,
            keep_distribution=True,
            optimizer="adagrad",
            padding_id=0,
            name="mine",
        )
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        copy = keras.saving.deserialize_keras_object(config)
        self.assertIs(type(copy), kind)
        self.assertEqual(copy.get_config(), layer.get_config())
        self.assertIs(copy.combiner, twice_the_sum)
        self.assertIs(copy.restrict_policy, tf_embed.tfra.FrequencyRestrictPolicy)
        self.assertEqual(copy.params.table.options, layer.params.table.options)
        ids = tf.constant([[1, 200], [0, 4]])
        self.assertAllEqual(copy(ids), layer(ids))

    def test_the_config_of_a_layer_without_policy_has_none(self):
        config = FieldWiseEmbedding(2, 3, remainder).get_config()
        self.assertIsNone(config["restrict_policy"])
        self.assertEqual(FieldWiseEmbedding.from_config(config).get_config(), config)

    def test_devices_are_in_the_config_only_where_distribution_is_kept(self):
        devices = ["/CPU:0"] * 3
        self.assertIsNone(Embedding(2, devices=devices).get_config()["devices"])
        kept = Embedding(2, devices=devices, keep_distribution=True).get_config()
        self.assertEqual(kept["devices"], devices)

    def test_the_bound_of_a_creator_is_in_the_config(self):
        creator = tfra.HkvHashTableCreator(tfra.HkvHashTableConfig(max_capacity=10))
        config = json.loads(json.dumps(Embedding(2, kv_creator=creator).get_config()))
        copy = Embedding.from_config(config)
        copy.params.upsert(range(30), np.ones([30, 2]))
        self.assertEqual(int(copy.params.size()), 10)

    def test_a_tf_function_maps_to_fields_and_is_in_the_config(self):
        layer = FieldWiseEmbedding(2, 3, traced_remainder)
        config = json.loads(json.dumps(layer.get_config()))
        self.assertIs(FieldWiseEmbedding.from_config(config).slot_map_fn, traced_remainder)
        plain = FieldWiseEmbedding(2, 3, tf.function(remainder)).get_config()
        self.assertIs(FieldWiseEmbedding.from_config(plain).slot_map_fn, remainder)

    def test_a_strategy_that_has_no_tables_is_refused(self):
        strategy = tf.distribute.experimental.CentralStorageStrategy()
        with self.assertRaisesRegex(ValueError, "CentralStorageStrategy"):
            Embedding(2, distribute_strategy=strategy)


class EmbeddingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("int8", "int32", "uint16", "int64", "uint64")
    def test_ids_of_any_integer_dtype_are_cast(self, dtype):
        self.assertAllEqual(filled()(tf.constant([[1, 2]], dtype)), ROWS[[[1, 2]]])

    def test_an_id_that_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must fit its key dtype int32"):
            Embedding(2, tf.int32)(tf.constant([2**32 + 1]))

    def test_ragged_and_sparse_ids(self):
        ids = in_containers(BAGS)
        rows = filled()(ids["ragged"])
        self.assertAllEqual(rows.row_lengths(), [len(bag) for bag in BAGS])
        self.assertAllEqual(rows.flat_values, ROWS[[key for bag in BAGS for key in bag]])
        wanted = np.zeros([len(BAGS), 99, DIM], np.float32)
        for i, bag in enumerate(BAGS):
            for j, key in enumerate(bag):
                wanted[i, 7 * j] = ROWS[key]
        self.assertAllEqual(filled()(ids["sparse"]), wanted)
        self.assertAllEqual(filled()(ids["shuffled"]), wanted)

    def test_string_ids(self):
        layer = Embedding(2, tf.string, initializer=0.0)
        layer.params.upsert(["a"], [[1.0, 2.0]])
        self.assertAllEqual(layer(tf.constant([["a", "b"]])), [[[1.0, 2.0], [0.0, 0.0]]])

    @parameterized.parameters(True, False)
    def test_gradients_of_equal_ids_are_summed(self, with_unique):
        layer = filled(with_unique=with_unique)
        rows = rows_after_a_step(layer, tf.constant([[1, 1], [1, 2]]), np.float32(1.0))
        counts = np.array([[0], [3], [1]] + [[0]] * 7)
        self.assertAllClose(rows, ROWS - counts)

    def test_a_layer_called_twice_in_a_step_learns_from_both_calls(self):
        layer = filled()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        with tf.GradientTape() as tape:
            first, second = layer(tf.constant([1, 2])), layer(tf.constant([2, 3, 3]))
            loss = tf.reduce_sum(first) + 10.0 * tf.reduce_sum(second)
        optimizer.apply(tape.gradient(loss, [layer.shadow]), [layer.shadow])
        change = np.zeros([10, 1])
        change[[1, 2, 3]] = [[1], [11], [20]]
        self.assertAllClose(layer.params.lookup(range(10)), ROWS - change, rtol=1e-5)

    def test_padding_makes_a_mask_and_zeros_and_trains_nothing(self):
        layer = filled(padding_id=0)
        ids = tf.constant([[3, 0], [0, 2]])
        wanted = ROWS[[[3, 0], [0, 2]]] * np.array([[[1], [0]], [[0], [1]]])
        self.assertAllEqual(layer(ids), wanted)
        self.assertAllEqual(layer.compute_mask(ids), [[True, False], [False, True]])
        self.assertAllEqual(rows_after_a_step(layer, ids, np.float32(1.0))[0], ROWS[0])

    def test_unknown_ids_may_have_a_row_of_their_own_outside_of_training(self):
        layer = Embedding(2, initializer="ones", unknown_value=-1.0)
        self.assertAllEqual(layer(tf.constant([5])), [[-1.0, -1.0]])
        self.assertAllEqual(layer(tf.constant([5]), training=True), [[1.0, 1.0]])

    @parameterized.parameters("dense", "ragged", "sparse")
    def test_max_norm_clips_as_tensorflow_does_and_leaves_the_table(self, container):
        ids = tf.constant(LINES, tf.int64)
        layer = filled(max_norm=1.25)
        dense = tf.Variable(ROWS)
        factors = np.random.default_rng(SEED).normal(size=[3, 3, DIM]).astype(np.float32)
        with tf.GradientTape() as tape:
            wanted = tf.nn.embedding_lookup(dense, ids, max_norm=1.25)
            loss = tf.reduce_sum(wanted * factors)
        norms = np.linalg.norm(ROWS[LINES], axis=-1)
        self.assertTrue(norms.min() < 1.25 < norms.max())
        gradient = tf.convert_to_tensor(tape.gradient(loss, dense))
        given: Any = ids
        if container == "ragged":
            given = tf.RaggedTensor.from_tensor(ids)
            factors = factors.reshape([-1, DIM])
        if container == "sparse":
            given = tf.sparse.from_dense(ids + 1)
            given = tf.SparseTensor(given.indices, given.values - 1, given.dense_shape)
        rows = layer(given)
        self.assertAllClose(rows.to_tensor() if container == "ragged" else rows, wanted, rtol=1e-6)
        self.assertAllEqual(layer.params.lookup(range(10)), ROWS)
        if container != "ragged":
            self.assertAllClose(rows_after_a_step(layer, given, factors), ROWS - gradient, 1e-5)

    def test_shapes_are_known_to_keras(self):
        for shape in ((None, 4), (None,), (None, 2, 3)):
            output = Embedding(5)(keras.KerasTensor(shape, "int32"))
            self.assertEqual((tuple(output.shape), output.dtype), ((*shape, 5), "float32"))


class DtypeTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("float32", tf.float32, "float32"),
        ("float32", tf.bfloat16, "bfloat16"),
        ("float32", tf.float64, "float64"),
        ("mixed_float16", tf.float32, "float16"),
        ("mixed_bfloat16", tf.float32, "bfloat16"),
        ("mixed_bfloat16", tf.float64, "bfloat16"),
    )
    def test_outputs_have_the_value_dtype_but_in_mixed_precision(self, policy, value_dtype, output):
        keras.config.set_dtype_policy(policy)
        makers = (
            Embedding,
            SquashedEmbedding,
            lambda *a, **k: FieldWiseEmbedding(*a, nslots=3, slot_map_fn=remainder, **k),
        )
        for make, combiner in itertools.product(makers, ("mean", "max")):
            layer = make(2, value_dtype=value_dtype, combiner=combiner, initializer="ones")
            self.assertEqual(layer(tf.constant([[1, 2]])).dtype, output)
            self.assertEqual(layer(keras.KerasTensor((3, 2), "int64")).dtype, output)
            self.assertEqual(layer.params.value_dtype, value_dtype)

    def test_a_dtype_that_is_given_counts(self):
        layer = Embedding(2, value_dtype=tf.bfloat16, dtype="float32")
        self.assertEqual(layer(tf.constant([1])).dtype, tf.float32)

    @parameterized.parameters("mixed_float16", "mixed_bfloat16")
    def test_mixed_precision_trains_float32_rows(self, policy):
        keras.config.set_dtype_policy(policy)
        layer = SquashedEmbedding(2, initializer="ones")
        model = keras.Sequential([keras.Input([2], dtype="int64"), layer])
        optimizer = keras.optimizers.SGD(0.5)
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(
            tf_embed.DynamicEmbeddingOptimizer(optimizer),
            lambda y, predicted: predicted * (1.0 + 2.0**-7),
            auto_scale_loss=False,
        )
        model.fit(np.array([[3, 4]]), np.zeros([1, 2]), verbose=0)
        wanted = 1.0 - 0.25 * (1 + 2.0**-7)
        self.assertAllClose(layer.params.lookup([3, 4]), np.full([2, 2], wanted), rtol=1e-3)


if __name__ == "__main__":
    tf.test.main()

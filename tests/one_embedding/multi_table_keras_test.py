# SPDX-License-Identifier: Apache-2.0
"""`MultiTableEmbedding` as a Keras layer: models, saving, dtypes."""

from __future__ import annotations

import copy
import json
import os
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import (
    KEY_TYPES,
    constant_tables,
    layer,
    store,
    uniform_tables,
)
from support.cases.replicas import two_replicas
from support.oracles.reference import SEED
from tf_embed import one_embedding

MADE = {
    "alike": lambda: uniform_tables(1.0) * 2,
    "mixed": lambda: uniform_tables(1.0, 2.0),
}


def data(key_type: str, rows: int = 64):
    rng = np.random.default_rng(SEED)
    ids = rng.integers(0, 20, [rows, 2]).astype(key_type)
    return ids, rng.normal(size=[rows, 1]).astype(np.float32)


def functional(key_type: str, made: str, with_tables: bool = False, **options):
    emb = layer(MADE[made](), key_type, dim=4, **options)
    ids = keras.Input([2], dtype=key_type, name="ids")
    inputs = [ids]
    if with_tables:
        inputs.append(keras.Input([2], dtype="int32", name="tables"))
    hidden = keras.layers.Flatten()(emb(*inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class ModelsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    @parameterized.product(key_type=KEY_TYPES, made=list(MADE))
    def test_fit_with_either_way_to_train(self, key_type, made):
        ids, labels = data(key_type)
        own = functional(key_type, made, optimizer="adam")
        own.compile("adam", "mse")
        by_model = functional(key_type, made)
        by_model.set_weights(own.get_weights())
        by_model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam()), "mse")
        losses = [
            model.fit(ids, labels, batch_size=16, epochs=3, shuffle=False, verbose=0).history[
                "loss"
            ]
            for model in (own, by_model)
        ]
        self.assertLess(losses[0][-1], losses[0][0])
        self.assertAllClose(losses[0], losses[1], rtol=1e-5)
        sizes = [int(model.get_layer("emb").size()) for model in (own, by_model)]
        self.assertEqual(
            sizes, [len({(i, int(one)) for line in ids for i, one in enumerate(line)})] * 2
        )
        self.assertEqual(own.get_layer("emb").count_params(), 4 * sizes[0])  # weights of rows

    @parameterized.parameters(*KEY_TYPES)
    def test_a_sequential_without_an_input_keeps_large_ids_apart(self, key_type):
        emb = layer(MADE["alike"](), key_type, optimizer="sgd")
        model = keras.Sequential([emb, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        # Adjacent ids that float32 can't tell apart.
        ids = np.array([[2**30 + 1, 2**30 + 1], [2**30 + 2, 2**30 + 3]], key_type)
        model.fit(ids, np.ones([2, 1]), verbose=0)
        self.assertEqual(int(emb.size()), 4)

    def test_shapes_are_known_before_the_first_batch(self):
        emb = layer(MADE["mixed"](), dim=3)
        for shape in ((None, 2), (7, 2), (None, None, 2)):
            ids = keras.KerasTensor(shape, "int64")
            self.assertEqual(emb(ids).shape, (*shape, 3))
            self.assertEqual(emb.compute_output_shape(shape), (*shape, 3))
        ids = keras.KerasTensor((None, 5), "int64")
        self.assertEqual(emb(ids, keras.KerasTensor((None, 5), "int32")).shape, (None, 5, 3))
        with self.assertRaisesRegex(
            ValueError, r"an id for each table, or come with `table_ids`.*\(None, 5\)"
        ):
            emb(ids)
        with self.assertRaisesRegex(ValueError, "must be of the shape of `ids`"):
            emb(ids, keras.KerasTensor((None, 4), "int32"))
        with self.assertRaisesRegex(TypeError, "`ids` of 'emb'"):
            emb(keras.KerasTensor((None, 2), "float32"))

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_one_trace_serves_all_batches(self, key_type, made):
        emb = layer(MADE[made](), key_type, padding_idx=0, optimizer="sgd")
        emb.build()
        traces = []
        spec = tf.TensorSpec([None, 2], key_type)

        @tf.function(input_signature=[spec])
        def rows(ids):
            traces.append(1)
            return emb(ids)

        for count in (1, 3, 0, 5):
            ids = tf.constant(np.arange(count * 2).reshape([count, 2]), key_type)
            self.assertAllEqual(rows(ids), emb(ids))
        self.assertLen(traces, 1)

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_mixed_precision_has_wide_rows_and_narrow_outputs(self, key_type, made):
        emb = layer(MADE[made](), key_type, dtype="mixed_float16", optimizer="sgd")
        rows = emb(tf.constant([[1, 2]], key_type))
        self.assertEqual(rows.dtype, tf.float16)
        self.assertEqual({one.value_dtype for one in emb.row_tables}, {tf.float32})
        wide = layer(MADE[made](), key_type)(tf.constant([[1, 2]], key_type))
        self.assertAllEqual(rows, tf.cast(wide, tf.float16))
        keras.config.set_dtype_policy("mixed_bfloat16")
        by_policy = layer(MADE[made](), key_type, dtype=None)
        self.assertEqual(by_policy(tf.constant([[1, 2]], key_type)).dtype, tf.bfloat16)

    def test_a_map_of_dtype_policies_counts_as_in_keras(self):
        policies = keras.dtype_policies
        policy = policies.DTypePolicyMap(
            default_policy=policies.DTypePolicy("float32"),
            policy_map={"items": policies.DTypePolicy("mixed_bfloat16")},
        )
        for name, dtype in (("items", "bfloat16"), ("users", "float32")):
            for made in MADE.values():
                emb = layer(made(), name=name, dtype=policy)
                self.assertEqual(emb(keras.Input([2], dtype="int64")).dtype, dtype)
                self.assertEqual(emb(tf.constant([[1, 2]], tf.int64)).dtype, dtype)
                self.assertEqual(emb.compute_dtype, dtype)
                self.assertEqual({one.value_dtype for one in emb.row_tables}, {tf.float32})

    @parameterized.product(dtype=["float16", "bfloat16"], key_type=["int32", "int64"])
    def test_narrow_rows_train(self, dtype, key_type):
        for made in MADE.values():
            emb = layer(made(), key_type, dtype=dtype, optimizer=keras.optimizers.SGD(1.0))
            ids = tf.constant([[1, 2]], key_type)
            before = tf.cast(emb(ids), tf.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(emb(ids))
            variables = emb.trainable_variables
            keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
            self.assertEqual(emb(ids).dtype, tf.as_dtype(dtype))
            self.assertAllClose(tf.cast(emb(ids), tf.float32), before - 1, atol=2e-2)


class ReplicasTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_a_step_of_two_replicas_is_one_of_their_batches_together(self, key_type, made):
        ids, labels = data(key_type)
        rows = []
        for strategy in (tf.distribute.get_strategy(), two_replicas()):
            keras.utils.set_random_seed(SEED)
            with strategy.scope():
                model = functional(key_type, made, optimizer="adagrad")
                model.compile("sgd", "mse")
            model.fit(ids, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
            rows.append(model.get_layer("emb")(ids))
        self.assertAllClose(*rows, atol=1e-5)


class SavingTest(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str) -> str:
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)

    def trained(self, key_type, made, **options):
        ids, labels = data(key_type)
        model = functional(key_type, made, optimizer="adam", **options)
        model.compile("adam", "mse")
        inputs = [ids, np.zeros(ids.shape, np.int32)] if len(model.inputs) > 1 else ids
        model.fit(inputs, labels, batch_size=16, verbose=0, shuffle=False)
        return model, inputs, labels

    @parameterized.product(key_type=["int32", "uint64"], made=list(MADE), with_tables=[False, True])
    def test_a_keras_file_goes_on_where_the_model_was(self, key_type, made, with_tables):
        model, inputs, labels = self.trained(key_type, made, with_tables=with_tables)
        path = self.path("model.keras")
        model.save(path)
        again = keras.models.load_model(path)
        self.assertAllEqual(again.predict(inputs, verbose=0), model.predict(inputs, verbose=0))
        losses = [
            one.fit(inputs, labels, batch_size=16, verbose=0, shuffle=False).history["loss"]
            for one in (model, again)
        ]
        self.assertEqual(losses[0], losses[1])

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_weights_go_into_a_layer_of_another_seed_with_their_initial_rows(self, key_type, made):
        model, inputs, _ = self.trained(key_type, made)
        path = self.path("model.weights.h5")
        model.save_weights(path)
        other = functional(key_type, made, optimizer="adam", seed=9, name="other")
        other.compile("adam", "mse")
        unseen = np.arange(100, 110).reshape([5, 2]).astype(key_type)
        self.assertNotAllEqual(other.predict(unseen, verbose=0), model.predict(unseen, verbose=0))
        other.load_weights(path)
        for ids in (inputs, unseen):
            self.assertAllEqual(other.predict(ids, verbose=0), model.predict(ids, verbose=0))

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_a_checkpoint_has_rows_slots_and_seeds(self, key_type, made):
        model, inputs, labels = self.trained(key_type, made)
        path = tf.train.Checkpoint(model=model).write(self.path("rows"))
        other = functional(key_type, made, optimizer="adam", seed=9)
        other.compile("adam", "mse")
        tf.train.Checkpoint(model=other).read(path).assert_existing_objects_matched()
        unseen = np.arange(100, 110).reshape([5, 2]).astype(key_type)
        self.assertAllEqual(other.predict(unseen, verbose=0), model.predict(unseen, verbose=0))
        losses = [
            one.fit(inputs, labels, batch_size=16, verbose=0, shuffle=False).history["loss"]
            for one in (model, other)
        ]
        self.assertEqual(losses[0], losses[1])

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_an_exported_model_serves(self, key_type, made):
        model, inputs, _ = self.trained(key_type, made)
        path = self.path("served")
        model.export(path, verbose=False)
        wanted = model.predict(inputs, verbose=0)
        unseen = np.arange(100, 110).reshape([5, 2]).astype(key_type)
        of_unseen = model.predict(unseen, verbose=0)
        del model
        served = tf.saved_model.load(path)
        self.assertAllClose(served.serve([tf.constant(inputs)]), wanted, rtol=1e-6)
        self.assertAllClose(served.serve([tf.constant(unseen)]), of_unseen, rtol=1e-6)

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE))
    def test_get_weights_and_set_weights_carry_rows(self, key_type, made):
        model, inputs, labels = self.trained(key_type, made)
        wanted, weights = model.predict(inputs, verbose=0), model.get_weights()
        model.fit(inputs, labels, verbose=0)
        self.assertNotAllEqual(model.predict(inputs, verbose=0), wanted)
        model.set_weights(weights)
        self.assertAllEqual(model.predict(inputs, verbose=0), wanted)

    @parameterized.product(key_type=["int32", "int64"], made=list(MADE), apart=[False, True])
    def test_a_checkpoint_waits_for_a_layer_that_is_not_built(self, key_type, made, apart):
        ids = tf.constant(np.arange(6).reshape([3, 2]), key_type)
        options = {"optimizer": "adam"}
        if apart:
            options["store_options"] = store(["/tmp/a", "/tmp/b"])
        emb = layer(MADE[made](), key_type, **options)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(emb(ids)))
        variables = emb.trainable_variables
        keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
        path = tf.train.Checkpoint(layer=emb).write(self.path("rows"))
        other = layer(MADE[made](), key_type, seed=9, **options)
        status = tf.train.Checkpoint(layer=other).read(path)
        self.assertAllEqual(other(ids), emb(ids))
        self.assertAllEqual(other(ids + 100), emb(ids + 100))
        status.assert_consumed()

    def test_the_config_has_all_arguments(self):
        columns = [
            one_embedding.make_column_options(one_embedding.make_normal_initializer(std=std))
            for std in (0.1, 0.2)
        ]
        emb = layer(
            [one_embedding.make_table(columns)] * 2,
            "uint32",
            dim=[2, 3],
            dtype="mixed_bfloat16",
            store_options=store(["/tmp/a", "/tmp/b"], 7, size_factor=3),
            padding_idx=5,
            seed=-4,
            optimizer=keras.optimizers.Adam(0.25),
            shared_ids=True,
            policy=tf_embed.TablePolicy(eviction="lfu"),
            devices=["/CPU:0"] * 2,
            trainable=False,
        )
        config = emb.get_config()
        again = type(emb).from_config(copy.deepcopy(config))  # Keras writes into it
        self.assertEqual(again.get_config(), config)
        self.assertEqual(config["embedding_dim"], [2, 3])
        self.assertEqual(config["padding_idx"], 5)
        self.assertEqual(float(again.optimizers[0].learning_rate), 0.25)
        self.assertFalse(again.trainable)
        ids = tf.constant([[1, 2], [3, 4]], tf.uint32)
        self.assertAllEqual(again(ids), emb(ids))

    def test_the_config_is_that_of_the_options_as_they_were(self):
        tables, options = uniform_tables(1.0, 2.0), store(self.get_temp_dir())
        emb = layer(tables, store_options=options)
        before = json.dumps(emb.get_config())
        tables[0]["initializer"]["low"] = "changed"
        tables.pop()
        options["capacity"] = "changed"
        self.assertEqual(json.dumps(emb.get_config()), before)
        emb.get_config()["tables"][0]["initializer"]["low"] = "changed"
        emb.get_config()["store_options"]["capacity"] = "changed"
        self.assertEqual(json.dumps(emb.get_config()), before)
        self.assertEqual(type(emb).from_config(emb.get_config()).num_tables, 2)

    def test_a_config_without_options_is_that_of_the_defaults(self):
        emb = layer()
        again = one_embedding.MultiTableEmbedding.from_config(emb.get_config())
        self.assertAllEqual(again(np.arange(9)), emb(np.arange(9)))
        self.assertEqual(again.get_config(), emb.get_config())

    def test_a_layer_that_was_never_called_is_saved(self):
        for made in MADE.values():
            model = functional("int64", "alike")
            path = self.path("model.keras")
            model.save(path)
            keras.models.load_model(path)
            emb = layer(made())
            self.assertEqual(int(emb.size()), 0)

    def test_forward_is_the_call(self):
        emb = layer(constant_tables(1.0, 2.0))
        ids, tables = tf.constant([3, 4]), tf.constant([1, 0])
        self.assertAllEqual(emb.forward(ids, tables), emb(ids, tables))
        self.assertAllEqual(emb.forward(ids[None]), emb(ids[None]))


if __name__ == "__main__":
    tf.test.main()

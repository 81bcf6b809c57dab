# SPDX-License-Identifier: Apache-2.0
"""get_weights, set_weights, and Keras methods that use them: they include rows, or raise."""

from __future__ import annotations

import copy
import io
import os
import pickle
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from support.oracles.drawn_weights import Drawn
from support.oracles.reference import EXTREME_KEYS, SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.saving import keras_weights

IDS = np.arange(60).reshape(20, 3)  # includes ids that no model of this file trains


def model_of(*layers: Any) -> keras.Model:
    """A model that looks up the same ids in each layer."""
    ids = keras.Input([3], dtype="int64")
    rows = [keras.layers.Flatten()(layer(ids)) for layer in layers]
    rows = keras.layers.Concatenate()(rows) if len(rows) > 1 else rows[0]
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(rows))


def fit(model: keras.Model, seed: int = 0, **options: Any) -> Any:
    rng = np.random.default_rng([SEED, seed])
    ids, labels = rng.integers(0, 40, [24, 3]), rng.normal(size=24)
    return model.fit(ids, labels, **{"batch_size": 8, "shuffle": False, "verbose": 0, **options})


def adam() -> Any:
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))


def compiled(way: str, **options: Any) -> keras.Model:
    own = keras.optimizers.Adam(0.1) if way == "own" else None
    model = model_of(DynamicEmbedding(2, optimizer=own, **options))
    model.compile("sgd" if way == "own" else adam(), "mse")
    return model


def trained(way: str = "wrapper", **options: Any) -> keras.Model:
    model = compiled(way, **options)
    fit(model)
    return model


def table_of(model: keras.Model) -> tf_embed.Variable:
    (layer,) = [one for one in model.layers if isinstance(one, DynamicEmbedding)]
    return layer.variable


class WeightsTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same_rows(self, one: tf_embed.Variable, other: tf_embed.Variable) -> None:
        for a, b in zip(
            reference.sorted_rows(*one.export()),
            reference.sorted_rows(*other.export()),
            strict=True,
        ):
            self.assertAllEqual(a, b)

    @parameterized.parameters("wrapper", "own")
    @pytest.mark.smoke
    def test_weights_of_one_model_make_another_predict_alike_for_all_ids(self, way):
        model = trained(way)
        other = compiled(way, initializer=keras.initializers.RandomUniform(seed=5))
        table_of(other).upsert([1, 10**15], np.ones([2, 2]))
        self.assertNotAllClose(other(IDS), model(IDS))
        other.set_weights(model.get_weights())
        self.assertAllEqual(other(IDS), model(IDS))
        self.assert_same_rows(table_of(other), table_of(model))

    def test_weights_are_those_of_the_moment_they_were_taken(self):
        model = trained()
        wanted, weights = model.predict(IDS, verbose=0), model.get_weights()
        fit(model, 1)
        table_of(model).upsert([10**15], np.ones([1, 2]))
        for _ in range(2):  # the weights can be used again
            model.set_weights(weights)
            self.assertAllEqual(model.predict(IDS, verbose=0), wanted)
            self.assertFalse(table_of(model).lookup([10**15], return_exists=True)[1][0])
            fit(model, 2)

    def test_slots_stay_as_those_of_dense_variables_do(self):
        # The oracle is Keras: a dense Embedding of the same ids, with the same first rows.
        keras.utils.set_random_seed(1)
        start = np.random.default_rng(SEED).normal(size=[40, 2]).astype(np.float32)
        dense = model_of(keras.layers.Embedding(40, 2))
        dense.compile(keras.optimizers.Adam(0.1), "mse")
        model = compiled("wrapper")
        dense.layers[1].set_weights([start])
        table_of(model).upsert(np.arange(40), start)
        ids = np.arange(24).reshape(8, 3)  # each id once, because Keras squares before it sums
        for one in (dense, model):
            one.fit(ids, np.ones(8), batch_size=8, epochs=2, verbose=0)
            weights = one.get_weights()
            one.fit(ids[::-1], np.ones(8), batch_size=8, epochs=2, verbose=0)
            one.set_weights(weights)
            one.fit(ids, np.ones(8), batch_size=8, epochs=1, verbose=0)
        self.assertAllClose(
            table_of(model).lookup(np.arange(24)),
            dense.layers[1].get_weights()[0][:24],
            rtol=2e-5,
            atol=2e-6,
        )

    def test_a_row_that_comes_back_has_the_initial_slots_of_the_rule(self):
        optimizer = keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.25)
        model = model_of(DynamicEmbedding(2, optimizer=optimizer))
        model.compile("sgd", "mse")
        fit(model)
        v = table_of(model)
        weights = model.get_weights()
        keys, _, slots = v.table.export()[:3]
        v.remove(keys[:5])
        model.set_weights(weights)
        keys_after, _, slots_after = v.table.export()[:3]
        after = dict(zip(keys_after.numpy().tolist(), slots_after.numpy(), strict=True))
        for place, key in enumerate(keys.numpy().tolist()):
            wanted = [0.25, 0.25] if place < 5 else slots[place]
            self.assertAllEqual(after[key], wanted)

    @parameterized.parameters((1, 3), (3, 1), (3, 2))
    def test_weights_go_into_another_number_of_shards(self, before, after):
        model = trained(devices=["/CPU:0"] * before)
        other = compiled("wrapper", devices=["/CPU:0"] * after)
        other.set_weights(model.get_weights())
        self.assertAllEqual(other(IDS), model(IDS))
        sizes = [int(table_of(other).table.size(shard)) for shard in range(after)]
        self.assertLen(table_of(other).devices, after)
        self.assertGreater(min(sizes), 0)

    @parameterized.product(
        key_dtype=("int64", "int32", "uint64", "uint32"),
        value_dtype=("float32", "float16", "bfloat16", "float64"),
    )
    def test_every_pair_of_dtypes(self, key_dtype, value_dtype):
        layers = [DynamicEmbedding(2, key_dtype, value_dtype) for _ in range(2)]
        for layer in layers:
            layer.build()
        keys = np.array(EXTREME_KEYS[key_dtype], key_dtype)
        layers[0].variable.upsert(keys, np.arange(len(keys) * 2).reshape(-1, 2) / 3)
        weights = pickle.loads(pickle.dumps(layers[0].get_weights()))
        self.assertEqual(weights[0].dtype.name, value_dtype)
        layers[1].set_weights(weights)
        self.assert_same_rows(layers[1].variable, layers[0].variable)

    def test_an_empty_table_empties_the_other(self):
        model = trained()
        model.set_weights(compiled("wrapper").get_weights())
        self.assertEqual(int(table_of(model).size()), 0)

    @parameterized.named_parameters(
        ("copy_method", lambda weights: [one.copy() for one in weights]),
        ("copy", lambda weights: [copy.copy(one) for one in weights]),
        ("deepcopy", copy.deepcopy),
        ("pickle", lambda weights: pickle.loads(pickle.dumps(weights))),
        ("old_pickle", lambda weights: pickle.loads(pickle.dumps(weights, protocol=2))),
    )
    def test_copies_carry_the_rows(self, copied):
        model, other = trained(), compiled("wrapper")
        other.set_weights(copied(model.get_weights()))
        self.assertAllEqual(other(IDS), model(IDS))

    @parameterized.named_parameters(
        ("asarray", np.asarray),
        ("array", np.array),
        ("array_of_subclass", lambda weight: np.array(weight, subok=True)),
        ("average", lambda weight: 0.5 * weight + 0.5 * weight),
        ("slice", lambda weight: weight[:]),
        ("view", lambda weight: weight.view()),
        ("reshaped", lambda weight: weight.reshape(0, 2)),
        ("astype", lambda weight: weight.astype(np.float32)),
        ("saved", lambda weight: saved_by_numpy(weight)),
        ("zeros", lambda weight: np.zeros([0, 2], np.float32)),
        ("tf_variable", lambda weight: tf.Variable(weight)),
        ("list", lambda weight: weight.tolist()),
    )
    def test_an_array_without_rows_is_refused_and_the_table_is_as_it_was(self, changed):
        model = trained()
        (anchor,) = [one for one in model.weights if one.name == "embeddings"]
        before = table_of(model).table.export()
        with self.assertRaisesRegex(ValueError, "The rows of 'dynamic_embedding.*' are not in"):
            anchor.assign(changed(anchor.numpy()))
        for one, two in zip(before, table_of(model).table.export(), strict=True):
            self.assertAllEqual(one, two)

    def test_a_tensor_is_refused_and_the_table_is_as_it_was(self):
        model = trained()
        (anchor,) = [one for one in model.weights if one.name == "embeddings"]
        size = int(table_of(model).size())
        with self.assertRaisesRegex(ValueError, "'dynamic_embedding"):
            anchor.assign(tf.convert_to_tensor(anchor.numpy()))
        self.assertEqual(int(table_of(model).size()), size)

    def test_another_anchor_may_be_assigned(self):
        model, other = trained(), compiled("wrapper")
        for target, source in zip(other.weights, model.weights, strict=True):
            target.assign(source)
        self.assertAllEqual(other(IDS), model(IDS))

    @parameterized.parameters(
        ({"value_dtype": "float64"}, "value float64.*value float32"),
        ({"value_dtype": "bfloat16"}, "value bfloat16.*value float32"),
        ({"key_dtype": "int32"}, "key int32.*key int64"),
        ({"dim": 3}, r"\(0, 3\) is not compatible .* \(0, 2\)"),
    )
    def test_rows_of_another_kind_of_table_are_refused_with_names(self, options, message):
        layer = DynamicEmbedding(2)
        layer.build()
        layer.variable.upsert([1], [[1.0, 2.0]])
        other = DynamicEmbedding(**{"dim": 2, **options, "name": "other"})
        other.build()
        other.variable.upsert([7], np.ones([1, other.dim]))
        with self.assertRaisesRegex(ValueError, f"other.*{message}"):
            other.set_weights(layer.get_weights())
        self.assertAllEqual(other.variable.export()[0], [7])

    def test_a_dim_that_does_not_fit_is_refused_by_the_anchor_itself(self):
        layers = [DynamicEmbedding(dim, name=f"dim{dim}") for dim in (2, 3)]
        for layer in layers:
            layer.build()
        anchor = layers[1].variable.anchor
        with self.assertRaisesRegex(
            ValueError,
            "'dim3' can't take the rows of 'dim2': it has .*dim 3, and they have .*dim 2",
        ):
            anchor.assign(layers[0].get_weights()[0])
        of_both = keras_weights.get_batch_weights([layer.variable.table for layer in layers])
        with self.assertRaisesRegex(ValueError, "'dim3' can't take the rows of 2 tables: it has 1"):
            anchor.assign(of_both)

    def test_a_printed_weight_says_how_many_rows_it_carries(self):
        model = trained()
        (weight,) = [one for one in model.get_weights() if one.shape[0] == 0]
        size = int(table_of(model).size())
        self.assertIn(f"{size} rows of 'dynamic_embedding", repr(weight))
        self.assertNotIn("rows of", repr(weight[:]))

    def test_a_state_tree_which_has_no_slots_of_tables_raises(self):
        model = trained()
        with self.assertRaisesRegex(ValueError, "`get_state_tree` does not carry .* 'dynamic_emb"):
            model.get_state_tree("numpy_array")
        with self.assertRaisesRegex(ValueError, "The rows of .* are not in the value: assign what"):
            model.set_state_tree(model.get_state_tree())


class RefusedTest(tf.test.TestCase):
    def test_a_custom_layer_with_a_table_among_its_weights_is_not_saved_without_rows(self):
        class Custom(keras.layers.Layer):
            def build(self, input_shape: Any = None) -> None:
                self.rows = tf_embed.Variable(dim=2, name="custom_rows")
                self.anchor = self.rows.anchor

            def call(self, ids: Any) -> Any:
                return tf_embed.embedding_lookup(self.rows, ids)

        model = model_of(Custom())
        model.compile(adam(), "mse")
        fit(model)
        self.assertGreater(int(model.layers[1].rows.size()), 0)
        for name in ("custom.keras", "custom.weights.h5"):
            path = os.path.join(self.get_temp_dir(), name)
            with self.assertRaisesRegex(
                ValueError, "rows of 'custom_rows' are not saved in Keras files .*DynamicEmbedding"
            ):
                model.save(path) if name.endswith(".keras") else model.save_weights(path)
        self.assertEqual(np.asarray(model.layers[1].anchor).shape, (0, 2))

    def test_orbax_checkpoints_which_would_drop_rows_are_refused(self):
        kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)
        if kind is None:
            self.skipTest("this Keras has no OrbaxCheckpoint")
        callback = kind.__new__(kind)  # orbax need not be installed
        callback.__dict__.update(
            monitor_op=np.less, save_freq="epoch", save_best_only=False, save_weights_only=False
        )
        callback.set_model(trained())
        with self.assertRaisesRegex(ValueError, "OrbaxCheckpoint not even its rows"):
            callback.on_epoch_end(0)

    def test_swap_ema_weights_which_would_leave_the_rows_out_is_refused(self):
        model = compiled("wrapper")
        adam = keras.optimizers.Adam(0.1, use_ema=True)
        model.compile(tf_embed.DynamicEmbeddingOptimizer(adam), "mse")
        self.assertIs(model.optimizer.inner_optimizer, adam)
        with self.assertRaisesRegex(ValueError, "SwapEMAWeights does not reach the rows"):
            fit(model, callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])


class ModelsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    def test_a_clone_takes_the_weights_and_is_a_model_of_its_own(self):
        model = trained()
        clone = keras.models.clone_model(model)
        self.assertEqual(int(table_of(clone).size()), 0)
        clone.set_weights(model.get_weights())
        wanted = model.predict(IDS, verbose=0)
        self.assertAllEqual(clone.predict(IDS, verbose=0), wanted)
        clone.compile(adam(), "mse")
        fit(clone, 1)
        self.assertAllEqual(model.predict(IDS, verbose=0), wanted)

    @parameterized.product(way=("wrapper", "own"), layers=(1, 2))
    @pytest.mark.smoke
    def test_early_stopping_restores_the_best_rows(self, way, layers):
        def own() -> Any:
            return keras.optimizers.Adam(0.1) if way == "own" else None

        embeddings = [DynamicEmbedding(2, optimizer=own(), name=f"e{i}") for i in range(layers)]
        model = model_of(*embeddings, embeddings[0])  # the first layer is shared
        model.compile("sgd" if way == "own" else adam(), "mse")
        predicted: list[np.ndarray] = []
        stopping = keras.callbacks.EarlyStopping(
            "value", patience=2, restore_best_weights=True, mode="min"
        )
        values = iter([3.0, 1.0, 2.0, 2.0, 2.0])

        class Record(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                logs["value"] = next(values)
                predicted.append(self.model(IDS).numpy())

        fit(model, epochs=5, callbacks=[Record(), stopping])
        self.assertLen(predicted, 4)  # epoch 1 is the best, and the patience is two epochs
        self.assertAllEqual(model(IDS), predicted[1])
        self.assertNotAllClose(predicted[1], predicted[-1])

    def test_early_stopping_restores_a_model_that_is_frozen_too(self):
        model = trained()
        weights = model.get_weights()
        fit(model, 1)
        model.trainable = False
        model.set_weights(weights)
        wanted = compiled("wrapper")
        wanted.set_weights(weights)
        self.assertAllEqual(model(IDS), wanted(IDS))

    def test_the_old_h5_format_which_assigns_plain_arrays_is_refused(self):
        class Empty(keras.layers.Layer):
            def build(self, input_shape: Any = None) -> None:
                self.add_weight(shape=(0, 2), name="embeddings")

            def call(self, ids: Any) -> Any:
                return keras.ops.repeat(keras.ops.cast(ids, "float32")[..., None], 2, axis=-1)

        path = os.path.join(self.get_temp_dir(), "old.h5")
        model_of(Empty()).save(path)
        model = trained()
        before = table_of(model).table.export()
        with self.assertRaisesRegex(ValueError, "The rows of 'dynamic_embedding.*' are not in"):
            model.load_weights(path)
        for one, two in zip(before, table_of(model).table.export(), strict=True):
            self.assertAllEqual(one, two)

    @parameterized.parameters(1, 2)
    @pytest.mark.smoke
    def test_tensorboard_draws_no_image_of_a_table(self, dim):
        model = model_of(DynamicEmbedding(dim, optimizer="sgd", name="items"))
        model.compile("sgd", "mse")
        drawn = Drawn()
        fit(model, callbacks=[drawn])
        # TensorFlow ends the process on an image without pixels.
        self.assertEqual(list(drawn.images.values()), [(1, 3 * dim, 1, 1)])  # the dense layer's
        self.assertIn((0, dim), drawn.histograms.values())


def saved_by_numpy(weight: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.save(file, weight)
    file.seek(0)
    return np.load(file)


if __name__ == "__main__":
    tf.test.main()

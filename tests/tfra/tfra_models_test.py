# SPDX-License-Identifier: Apache-2.0
"""Models with the layers of `tf_embed.tfra.keras`, in every way to save them."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.tfra_cases import ROWS, remainder, second_half, twice_the_sum
from tf_embed.tfra.keras.callbacks import ModelCheckpoint
from tf_embed.tfra.keras.layers import (
    Embedding,
    FieldWiseEmbedding,
    LayerNormalization,
    SquashedEmbedding,
)
from tf_embed.tfra.keras.models import load_model, save_model

IDS = np.random.default_rng(0).integers(0, 10, [40, 4]) * 10**12
LABELS = np.random.default_rng(1).normal(size=[40, 1]).astype(np.float32)


@keras.saving.register_keras_serializable(package="tfra_models_test")
class Subclassed(keras.Model):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.squashed = SquashedEmbedding(3, combiner=twice_the_sum, name="squashed")
        self.dense = keras.layers.Dense(1)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        return self.dense(self.squashed(ids, training=training))


def functional(**options: Any) -> keras.Model:
    inputs = keras.Input([4], dtype="int64")
    layers = (
        Embedding(3, max_norm=2.0, **options),
        SquashedEmbedding(3, combiner="max", devices=["/CPU:0"] * 2, **options),
        FieldWiseEmbedding(3, 3, remainder, partitioner=second_half, **options),
    )
    parts = [keras.layers.Flatten()(layer(inputs)) for layer in layers]
    together = LayerNormalization()(keras.layers.Concatenate()(parts))
    return keras.Model(inputs, keras.layers.Dense(1)(together))


def trained(make: Any = functional, **options: Any) -> keras.Model:
    model = make(**options)
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
    model.fit(IDS, LABELS, batch_size=10, shuffle=False, verbose=0)
    return model


def tables(model: keras.Model) -> list[tf_embed.Variable]:
    return [layer.params for layer in model.layers if isinstance(layer, Embedding)]


class SavedCase(tf.test.TestCase, parameterized.TestCase):
    """Makes paths, and compares models."""

    def assert_same(self, model: keras.Model, other: keras.Model, goes_on: bool = True) -> None:
        """Compares outputs and rows, also after a further epoch."""
        self.assertNotEmpty(tables(model))
        for one, another in zip(tables(model), tables(other), strict=True):
            self.assertEqual(int(one.size()), 10)
            self.assertEqual(int(another.size()), 10)
        self.assertAllClose(other(IDS), model(IDS))
        if goes_on:
            for each in (model, other):
                each.fit(IDS, LABELS, batch_size=10, shuffle=False, verbose=0)
            self.assertAllClose(other(IDS), model(IDS), rtol=1e-4, atol=1e-5)

    def path(self, name: str) -> str:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return os.path.join(folder.name, name)


class SavingTest(SavedCase):
    @pytest.mark.smoke
    @parameterized.parameters(functional, Subclassed)
    def test_a_keras_file_has_all_and_training_goes_on(self, make):
        model, path = trained(make), self.path("model.keras")
        model.save(path)
        self.assert_same(model, keras.saving.load_model(path))

    def test_a_weights_file_has_all(self):
        model, path = trained(), self.path("model.weights.h5")
        model.save_weights(path)
        keras.utils.clear_session(free_memory=False)
        other = functional()
        other.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        other.build((None, 4))
        other.load_weights(path)
        self.assert_same(model, other)

    def test_the_tables_own_optimizers_are_saved(self):
        def make() -> keras.Model:
            return functional(optimizer=keras.optimizers.Adam(0.1))

        model, path = make(), self.path("model.keras")
        model.compile("sgd", "mse")
        model.fit(IDS, LABELS, batch_size=10, shuffle=False, verbose=0)
        model.save(path)
        self.assert_same(model, keras.saving.load_model(path))

    def test_a_checkpoint_has_all_and_is_consumed(self):
        model, path = trained(), self.path("checkpoint")
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(path)
        keras.utils.clear_session(free_memory=False)
        other = functional()
        other.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1)), "mse")
        other.optimizer.build(other.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        checkpoint.restore(saved).assert_existing_objects_matched()
        self.assert_same(model, other)

    def test_a_checkpoint_leaves_out_what_it_must(self):
        model, path = keras.Sequential([Embedding(3, checkpoint=False)]), self.path("checkpoint")
        model.layers[0].params.upsert(range(10), ROWS)
        saved = tf.train.Checkpoint(model=model).save(path)
        names = [name for name, _ in tf.train.list_variables(saved)]
        self.assertEmpty([name for name in names if "table" in name], names)
        model.layers[0].params.clear()
        tf.train.Checkpoint(model=model).restore(saved)
        self.assertEqual(int(model.layers[0].params.size()), 0)

    @parameterized.parameters(functional, Subclassed)
    def test_saved_models_have_the_rows(self, make):
        model = trained(make)
        wanted = model(IDS)
        exported, saved = self.path("exported"), self.path("saved")
        signature = [keras.InputSpec(dtype="int64", shape=(None, 4))]
        model.export(exported, input_signature=signature, verbose=False)
        loaded = tf.saved_model.load(exported)
        self.assertAllClose(loaded.serve(IDS), wanted)
        tf.saved_model.save(model, saved)
        loaded = tf.saved_model.load(saved)
        serve = loaded.signatures["serving_default"]
        (name,) = serve.structured_input_signature[1]
        dtype = serve.structured_input_signature[1][name].dtype
        (outputs,) = serve(**{name: tf.cast(IDS // 10**12, dtype)}).values()
        small = model(IDS // 10**12)
        self.assertAllClose(outputs, small)

    def test_a_clone_has_tables_of_its_own(self):
        model = functional()
        clone = keras.models.clone_model(model)
        self.assertAllEqual(clone.layers[1](IDS), model.layers[1](IDS))
        model.layers[1].params.upsert([1], [[5.0, 5.0, 5.0]])
        self.assertEqual(int(clone.layers[1].params.size()), 0)


class ModelsTest(SavedCase):
    def test_a_keras_file(self):
        model, path = trained(), self.path("model.keras")
        save_model(model, path)
        self.assert_same(model, load_model(path))

    def test_an_open_keras_folder_is_loaded(self):
        model, path = trained(), self.path("model")
        keras.saving.save_model(model, path, zipped=False)
        self.assert_same(model, load_model(path))

    def test_a_folder_is_a_saved_model_from_which_training_goes_on(self):
        model, path = trained(), self.path("saved")
        save_model(model, path)
        loaded = tf.saved_model.load(path)
        (outputs,) = loaded.signatures["serving_default"](tf.constant(IDS)).values()
        self.assertAllClose(outputs, model(IDS))
        self.assert_same(model, load_model(path))

    def test_signatures_and_options_are_those_of_the_saved_model(self):
        model, path = trained(), self.path("saved")
        rows = tf.function(lambda ids: {"rows": model.layers[1](ids)})
        signatures = {"rows": rows.get_concrete_function(tf.TensorSpec([None], tf.int64))}
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        save_model(model, path, signatures=signatures, options=options)
        loaded = tf.saved_model.load(path)
        self.assertEqual(list(loaded.signatures), ["rows"])
        ids = tf.constant([10**12, 77])
        self.assertAllClose(loaded.signatures["rows"](ids)["rows"], model.layers[1](ids))

    def test_a_saved_model_without_optimizer_has_no_keras_model(self):
        model, path = trained(), self.path("saved")
        save_model(model, path)
        save_model(model, path, include_optimizer=False)
        self.assertIn("serving_default", tf.saved_model.load(path).signatures)
        with self.assertRaisesRegex(
            ValueError, "a Keras file, or a folder saved with include_optimizer=True"
        ):
            load_model(path)

    def test_what_is_there_is_replaced_only_on_demand(self):
        model = trained(Subclassed)
        for name in ("model.keras", "saved"):
            path = self.path(name)
            save_model(model, path, overwrite=False)
            with self.assertRaisesRegex(ValueError, "`filepath` must be new"):
                save_model(model, path, overwrite=False)
            model.fit(IDS, LABELS, verbose=0)
            save_model(model, path)
            self.assert_same(model, load_model(path), goes_on=False)

    @parameterized.parameters(
        ("model.h5", {}, "`filepath` must end in .keras, or be a folder"),
        ("model.weights.h5", {}, "`filepath` must end in .keras, or be a folder"),
        ("model.keras", {"signatures": {}}, "`signatures` must be None"),
        ("model.keras", {"options": tf.saved_model.SaveOptions()}, "`options` must be None"),
        ("model.keras", {"include_optimizer": False}, "`include_optimizer` must be True"),
        ("saved", {"save_traces": False}, "`save_traces` must be True"),
    )
    def test_what_cannot_be_handed_on_is_refused_by_name(self, name, options, message):
        path = self.path(name)
        with self.assertRaisesRegex(ValueError, message):
            save_model(functional(), path, **options)
        self.assertFalse(os.path.exists(path))

    def test_custom_objects_and_compile_are_handed_on(self):
        model, path = trained(), self.path("model.keras")
        save_model(model, path)
        self.assertFalse(load_model(path, compile=False).compiled)


class CallbacksTest(SavedCase):
    def test_checkpoints_of_fit_have_the_rows(self):
        model, folder = trained(), self.path("")
        callback = ModelCheckpoint(folder + "/{epoch}.keras", save_freq="epoch")
        self.assertIsInstance(callback, keras.callbacks.ModelCheckpoint)
        model.fit(IDS, LABELS, batch_size=10, epochs=2, callbacks=[callback], verbose=0)
        self.assertEqual(sorted(os.listdir(folder)), ["1.keras", "2.keras"])
        self.assert_same(model, load_model(folder + "/2.keras"))

    def test_weights_alone(self):
        model, path = trained(), self.path("best.weights.h5")
        callback = ModelCheckpoint(path, "loss", 0, True, True)
        model.fit(IDS, LABELS, batch_size=40, callbacks=[callback], verbose=0)
        wanted = model(IDS)
        model.layers[1].params.clear()
        model.load_weights(path)
        self.assertAllClose(model(IDS), wanted)

    @parameterized.parameters(
        ("folder", {}, "must end in .keras, or in .weights.h5 with save_weights_only=True"),
        ("model.h5", {}, "`filepath` must end in .keras"),
        ("model.keras", {"signatures": {}}, "`signatures` must be None: Keras's files have none"),
        ("model.keras", {"options": 3}, "`options` must be None"),
    )
    def test_what_cannot_be_handed_on_is_refused_by_name(self, path, options, message):
        with self.assertRaisesRegex(ValueError, message):
            ModelCheckpoint(path, **options)


if __name__ == "__main__":
    tf.test.main()

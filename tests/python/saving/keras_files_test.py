# SPDX-License-Identifier: Apache-2.0
"""Keras's files, .keras and .weights.h5, whole, damaged, edited and in pieces."""

from __future__ import annotations

import os
import pathlib
import tempfile
import unittest.mock
import warnings
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.saving import keras_files

IDS = np.arange(60).reshape(20, 3)  # includes ids that no model of this file trains
EXTENSIONS = (".keras", ".weights.h5")


def adam(learning_rate: Any = 0.1) -> Any:
    return keras.optimizers.Adam(learning_rate)


def compiled(way: str = "wrapper", learning_rate: Any = 0.1, **options: Any) -> keras.Model:
    own = adam(learning_rate) if way == "own" else None
    layer = DynamicEmbedding(**{"dim": 2, "optimizer": own, "name": "mine", **options})
    model = keras.Sequential(
        [
            keras.Input([3], dtype=layer.key_dtype),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    wrapped = tf_embed.DynamicEmbeddingOptimizer(adam(learning_rate))
    model.compile("sgd" if way == "own" else wrapped, "mse")
    return model


def fit(model: keras.Model, seed: int = 0, **options: Any) -> None:
    rng = np.random.default_rng([SEED, seed])
    ids, labels = rng.integers(0, 40, [24, 3]), rng.normal(size=24)
    model.fit(ids, labels, batch_size=8, shuffle=False, verbose=0, **options)


def trained(way: str = "wrapper", **options: Any) -> keras.Model:
    model = compiled(way, **options)
    fit(model)
    return model


def content(model: keras.Model) -> list[np.ndarray]:
    """The content of the table, sorted by key, to the last bit."""
    rows = model.layers[0].variable.table.export()
    order = np.argsort(rows.keys)
    by_row = (rows.keys, rows.values, rows.slots, rows.statistics)
    whole = [rows.meta.numpy(), rows.policy.numpy()]
    return [tf.gather(one, order).numpy() for one in by_row] + whole


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def steps(model: keras.Model, way: str) -> int:
    return int((model.layers[0] if way == "own" else model).optimizer.iterations)


class FileTestCase(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str = "model.weights.h5") -> str:
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)

    def assert_same(self, one: keras.Model, other: keras.Model) -> None:
        for a, b in zip(content(one), content(other), strict=True):
            self.assertAllEqual(a, b)
        self.assertAllEqual(one(IDS), other(IDS))


class FilesTest(FileTestCase):
    @parameterized.parameters("wrapper", "own")
    @pytest.mark.smoke
    def test_weights_go_on_where_they_were_in_a_model_that_made_no_step_yet(self, way):
        model, other, path = trained(way), compiled(way), self.path()
        model.save_weights(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Keras warns if it skips an optimizer
            other.load_weights(path)
        self.assertEqual(steps(other, way), 3)
        self.assert_same(model, other)
        fit(model, 1)
        fit(other, 1)
        self.assert_same(model, other)
        self.assertEqual(steps(other, way), 6)

    @parameterized.parameters("wrapper", "own")
    def test_the_step_is_kept_where_keras_skips_the_optimizer(self, way):
        # A schedule instead of a number gives the optimizer another number of variables.
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
        model, other, path = trained(way), compiled(way, schedule), self.path()
        model.save_weights(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.load_weights(path)
        self.assertEqual(steps(other, way), 3)

    def test_a_learning_rate_that_was_set_is_in_the_file(self):
        model, path = trained(), self.path()
        model.optimizer.learning_rate = 0.025
        model.save_weights(path)
        other = compiled()
        other.load_weights(path)
        self.assertAllClose(float(other.optimizer.learning_rate), 0.025)

    def test_weights_of_an_untrained_model_go_into_a_trained_one(self):
        model, other, path = compiled(), trained(), self.path()
        model.save_weights(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras skips weights of an optimizer that is not built
            other.load_weights(path)
        self.assertAllEqual(other(IDS), model(IDS))
        self.assertEqual(int(other.layers[0].variable.size()), 0)

    @parameterized.product(way=("wrapper", "own"), max_shard_kb=(0.6, 0.9, 100))
    def test_weights_in_several_files_carry_rows_slots_and_step(self, way, max_shard_kb):
        model, other, path = trained(way), compiled(way), self.path("model.weights.json")
        model.save_weights(path, max_shard_size=max_shard_kb / 1024**2)
        files = [one for one in os.listdir(os.path.dirname(path)) if one.endswith(".h5")]
        self.assertEqual(len(files) > 1, max_shard_kb < 100)
        other.load_weights(path)
        self.assert_same(model, other)
        self.assertEqual(steps(other, way), 3)

    def test_a_table_that_is_too_large_for_a_file_of_several_raises(self):
        with self.assertRaisesRegex(ValueError, "exceeds the maximum shard size"):
            trained().save_weights(self.path("m.weights.json"), max_shard_size=0.1 / 1024**2)

    @parameterized.parameters(*EXTENSIONS)
    def test_a_large_array_is_written_in_blocks_of_rows(self, extension):
        import h5py

        model, other, path = trained(), compiled(), self.path("model" + extension)
        rows = int(model.layers[0].variable.size())
        with unittest.mock.patch.object(keras_files, "BLOCK_BYTES", 5 * 8 + 7):
            model.save(path) if extension == ".keras" else model.save_weights(path)
        other.load_weights(path)
        self.assert_same(model, other)
        if extension != ".keras":
            with h5py.File(path, "r") as file:
                arrays = file["layers/dynamic_embedding/vars"]
                self.assertEqual(arrays["keys"].shape, (5,))  # 8 bytes a row
                self.assertEqual(arrays["slots.1"].shape, (2, 4))  # 16 bytes
                self.assertIn(f"keys.{(rows - 1) // 5}", arrays)
                self.assertNotIn(f"keys.{(rows - 1) // 5 + 1}", arrays)

    def test_an_unzipped_model_is_read(self):
        model, path = trained(), self.path("folder")
        keras.saving.save_model(model, path, zipped=False)
        self.assert_same(model, keras.saving.load_model(path))

    @parameterized.parameters(*EXTENSIONS)
    def test_weights_are_read_from_both_kinds_of_file(self, extension):
        model, other, path = trained(), compiled(), self.path("model" + extension)
        model.save(path) if extension == ".keras" else model.save_weights(path)
        other.load_weights(path)
        self.assert_same(model, other)

    @parameterized.parameters(*EXTENSIONS)
    def test_the_file_editor_shows_and_writes_rows(self, extension):
        model, other, path = trained(), compiled(), self.path("model" + extension)
        model.save(path) if extension == ".keras" else model.save_weights(path)
        editor = keras.saving.KerasFileEditor(path)
        again = self.path()
        editor.save(again)
        other.load_weights(again)
        self.assert_same(model, other)

    def test_rows_that_were_edited_without_their_checksum_are_refused(self):
        model, other, path = trained(), compiled(), self.path()
        model.save_weights(path)
        editor = keras.saving.KerasFileEditor(path)
        editor.weights_dict["layers"]["dynamic_embedding"]["values"] *= 2.0
        editor.save(again := self.path())
        with self.assertRaisesRegex(
            ValueError,
            "'mine' is damaged, and was not loaded: the checksum of its arrays is .* and not ",
        ):
            other.load_weights(again)


class NewOptimizerTest(FileTestCase):
    @parameterized.parameters("compiled", "loaded")
    @pytest.mark.smoke
    def test_a_new_optimizer_starts_anew_as_with_dense_variables(self, way):
        # The oracle is a dense Embedding of the same ids, with the same first rows.
        start = np.random.default_rng(SEED).normal(size=[24, 2]).astype(np.float32)
        ids = np.arange(24).reshape(8, 3)  # each id once, because Keras squares before it sums
        rows = []
        for table in (True, False):
            embedding = DynamicEmbedding(2) if table else keras.layers.Embedding(24, 2)
            dense = keras.layers.Dense(1, kernel_initializer="ones")
            layers = [embedding, keras.layers.Flatten(), dense]
            model = keras.Sequential([keras.Input([3], dtype="int64"), *layers])
            if table:
                embedding.variable.upsert(np.arange(24), start)
            else:
                embedding.set_weights([start])
            for _ in range(2):
                optimizer: Any = adam()
                if table:
                    optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
                model.compile(optimizer, "mse")
                model.fit(ids, np.ones(8), batch_size=8, epochs=3, verbose=0)
                if way == "loaded":
                    path = self.path("model.keras")
                    model.save(path)
                    model = keras.models.load_model(path, compile=False)
            rows.append(model.layers[0](np.arange(24)))
        self.assertAllClose(*rows, rtol=2e-5, atol=2e-6)

    def test_an_optimizer_that_made_steps_goes_on_with_its_slots(self):
        model = trained()
        before = content(model)
        inner = model.optimizer.inner_optimizer
        model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
        model.optimizer.build(model.trainable_variables)
        self.assertTrue(same(content(model), before))


class MismatchTest(FileTestCase):
    @parameterized.parameters(
        ({"dim": 3}, "key int64, value float32, dim 3"),
        ({"value_dtype": "float64"}, "key int64, value float64, dim 2"),
        ({"value_dtype": "bfloat16"}, "key int64, value bfloat16, dim 2"),
        ({"key_dtype": "int32"}, "key int32, value float32, dim 2"),
        ({"key_dtype": "uint64"}, "key uint64, value float32, dim 2"),
    )
    def test_rows_of_another_kind_of_table_are_refused_with_names(self, options, kind):
        path = self.path()
        trained().save_weights(path)
        other = compiled(**options)
        other.layers[0].variable.upsert([5], np.ones([1, other.layers[0].dim]))
        before = content(other)
        message = f"'mine' .* has {kind}, .* has key int64, value float32, dim 2"
        with self.assertRaisesRegex(ValueError, message):
            other.load_weights(path)
        self.assertTrue(same(content(other), before))

    def test_skip_mismatch_warns_and_leaves_the_table_as_it_was(self):
        path = self.path()
        trained().save_weights(path)
        other = trained(dim=3)
        before = content(other)
        with self.assertWarnsRegex(UserWarning, "'mine' .* dim 3, and the file has .* dim 2"):
            other.load_weights(path, skip_mismatch=True)
        self.assertTrue(same(content(other), before))

    def test_a_file_of_a_model_without_the_layer_is_refused(self):
        path = self.path()
        dense = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        dense.save_weights(path)
        model = trained()
        before = content(model)
        with self.assertRaisesRegex(ValueError, "no rows for 'mine'"):
            model.load_weights(path)
        self.assertTrue(same(content(model), before))


class DamageTest(FileTestCase):
    def load(self, path: str) -> list[np.ndarray]:
        """Returns the table's content in a model that reads a file."""
        if path.endswith(".keras"):
            return content(keras.models.load_model(path))
        model = compiled()
        model.load_weights(path)
        return content(model)

    @parameterized.parameters(
        "keys", "values", "slots", "meta", "statistics", "policy", "kind", "checksum"
    )
    @pytest.mark.smoke
    def test_a_flipped_bit_of_a_table_raises_with_its_name_and_changes_nothing(self, name):
        import h5py

        path = self.path()
        policy = tf_embed.TablePolicy()  # without a policy there are no statistics
        trained(policy=policy).save_weights(path)
        with h5py.File(path, "r") as file:
            begin = file[f"layers/dynamic_embedding/vars/{name}"].id.get_offset()
            size = file[f"layers/dynamic_embedding/vars/{name}"].nbytes
        whole = pathlib.Path(path).read_bytes()
        other = trained(policy=policy)
        fit(other, 1)
        before = content(other)
        for place in (begin, begin + size // 2, begin + size - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 0x08
            pathlib.Path(path).write_bytes(damaged)
            with self.assertRaisesRegex(
                ValueError,
                "What the file has of 'mine' is damaged, .*: the checksum of its arrays is .* not ",
            ):
                other.load_weights(path)
            self.assertTrue(same(content(other), before))

    @parameterized.parameters(
        ("lost", "'slots.1' is missing"),
        ("narrow", "the blocks of 'slots' have the shapes"),
        ("swapped", "the checksum of its arrays is"),
    )
    def test_a_block_that_does_not_fit_raises_and_changes_nothing(self, how, message):
        import h5py

        model, path = trained(), self.path()
        with unittest.mock.patch.object(keras_files, "BLOCK_BYTES", 64):
            model.save_weights(path)
        with h5py.File(path, "r+") as file:
            arrays = file["layers/dynamic_embedding/vars"]
            one, two = (arrays[name][...] for name in ("slots.1", "slots.2"))
            del arrays["slots.1"]
            if how == "narrow":
                arrays["slots.1"] = one[:, :1]
            elif how == "swapped":
                del arrays["slots.2"]
                arrays["slots.1"], arrays["slots.2"] = two, one
        fit(model, 1)
        before = content(model)
        with self.assertRaisesRegex(ValueError, message):
            model.load_weights(path)
        self.assertTrue(same(content(model), before))

    @parameterized.parameters(*EXTENSIONS)
    def test_any_flipped_byte_raises_or_does_not_matter(self, extension):
        path = self.path("model" + extension)
        model = trained()
        model.save(path) if extension == ".keras" else model.save_weights(path)
        whole, wanted = pathlib.Path(path).read_bytes(), content(model)
        places = np.random.default_rng(SEED).integers(0, len(whole), 60)
        raised = 0
        for place in places:
            damaged = bytearray(whole)
            damaged[place] ^= 0xFF
            pathlib.Path(path).write_bytes(damaged)
            try:
                loaded = self.load(path)
            except Exception:
                raised += 1
            else:
                self.assertTrue(same(loaded, wanted), f"SEED={SEED}, byte {place}")
        self.assertGreater(raised, 3)

    @parameterized.parameters(*EXTENSIONS)
    def test_a_file_that_was_cut_off_raises_and_changes_nothing(self, extension):
        path = self.path("model" + extension)
        model = trained()
        model.save(path) if extension == ".keras" else model.save_weights(path)
        whole = pathlib.Path(path).read_bytes()
        fit(model, 1)
        before = content(model)
        for length in (0, 10, len(whole) // 2, len(whole) - 100):
            pathlib.Path(path).write_bytes(whole[:length])
            with self.assertRaises((OSError, ValueError, zipfile.BadZipFile)):
                model.load_weights(path)
            self.assertTrue(same(content(model), before))


if __name__ == "__main__":
    tf.test.main()

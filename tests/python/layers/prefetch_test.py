# SPDX-License-Identifier: Apache-2.0
"""`layer.prefetch` does not change a dataset, and promotes rows."""

from __future__ import annotations

import tempfile
import unittest.mock
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.table.table import Table

BATCH, BATCHES = 4, 7


def ids_of(batches: int = BATCHES) -> np.ndarray:
    return np.random.default_rng(SEED).integers(-(2**40), 2**40, [batches, BATCH])


def ragged() -> tf.RaggedTensor:
    return tf.ragged.constant([[1, 2], [], [3]] * 4, dtype=tf.int64)


def sparse() -> tf.SparseTensor:
    return tf.sparse.from_dense(np.arange(24, dtype=np.int64).reshape([12, 2]))


def same(one: Any, other: Any) -> None:
    """Fails if two elements differ, in structure or numbers."""
    tf.nest.assert_same_structure(one, other, expand_composites=True)
    flat = (tf.nest.flatten(element, expand_composites=True) for element in (one, other))
    for part, wanted in zip(*flat, strict=True):
        np.testing.assert_array_equal(part, wanted)


def recorded(layer: DynamicEmbedding) -> Any:
    """Records the keys whose rows are promoted, when each op runs."""
    seen: list[list[int]] = []
    prefetch = Table.prefetch

    def note(keys: tf.Tensor) -> None:
        seen.append(keys.numpy().ravel().tolist())

    def noting(table: Table, keys: tf.Tensor) -> Any:
        tf.py_function(note, [keys], [])
        return prefetch(table, keys)

    return seen, unittest.mock.patch.object(Table, "prefetch", noting)


class DatasetTest(tf.test.TestCase, parameterized.TestCase):
    """The elements of the dataset."""

    def elements(self, kind: str) -> tuple[tf.data.Dataset, Any]:
        """A dataset, and the argument `ids` for it."""
        ids, y = ids_of(), np.arange(BATCHES * BATCH, dtype=np.float32).reshape([BATCHES, BATCH])
        made = tf.data.Dataset.from_tensor_slices
        return {
            "ids": lambda: (made(ids), None),
            "x, y": lambda: (made((ids, y)), None),
            "x, y, weight": lambda: (made((ids, y, 2 * y)), None),
            "one item": lambda: (made((ids,)), None),
            "dict": lambda: (made({"a": ids, "b": y}), lambda element: element["a"]),
            "dict, y": lambda: (made(({"a": ids, "b": ids}, y)), lambda element: element[0]["b"]),
            "several ids": lambda: (made(({"a": ids, "b": ids}, y)), lambda element: element[0]),
            "ragged": lambda: (made((ragged(), tf.range(12))).batch(5), None),
            "sparse": lambda: (made((sparse(), tf.range(12))).batch(5), None),
            "int32": lambda: (made(np.arange(12, dtype=np.int32)).batch(3), None),
        }[kind]()

    @parameterized.parameters(
        *("ids", "x, y", "x, y, weight", "one item", "dict", "dict, y", "several ids"),
        *("ragged", "sparse", "int32"),
    )
    def test_elements_come_out_as_they_went_in(self, kind):
        dataset, ids = self.elements(kind)
        layer = DynamicEmbedding(2)
        ahead = layer.prefetch(dataset, ids)
        self.assertEqual(ahead.element_spec, dataset.element_spec)
        self.assertEqual(int(ahead.cardinality()), int(dataset.cardinality()))
        for _ in range(2):  # a dataset can be iterated again
            elements, wanted = list(ahead), list(dataset)
            self.assertLen(elements, len(wanted))
            for element, one in zip(elements, wanted, strict=True):
                same(element, one)
        self.assertEqual(layer.variable.size(), 0)

    @parameterized.parameters(0, 1, 5, tf.data.AUTOTUNE)
    def test_a_buffer_may_have_any_size(self, buffer_size):
        ahead = DynamicEmbedding(2).prefetch(
            tf.data.Dataset.from_tensor_slices(ids_of()), buffer_size=buffer_size
        )
        self.assertAllEqual(list(ahead), ids_of())

    def test_a_dataset_may_be_infinite(self):
        dataset = tf.data.Dataset.from_tensor_slices(ids_of()).repeat()
        ahead = DynamicEmbedding(2).prefetch(dataset)
        self.assertEqual(ahead.cardinality(), tf.data.INFINITE_CARDINALITY)
        first = [element.numpy() for element in ahead.take(2 * BATCHES)]
        self.assertAllEqual(first, np.tile(ids_of(), [2, 1]))

    def test_a_dataset_may_be_of_unknown_length(self):
        dataset = tf.data.Dataset.from_tensor_slices(ids_of()).filter(lambda ids: ids[0] > 0)
        ahead = DynamicEmbedding(2).prefetch(dataset)
        self.assertEqual(ahead.cardinality(), tf.data.UNKNOWN_CARDINALITY)
        self.assertAllEqual(list(ahead), list(dataset))

    def test_strings_are_ids_as_well(self):
        layer = DynamicEmbedding(2, key_dtype="string")
        ahead = layer.prefetch(tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(2))
        self.assertAllEqual(list(ahead), [[b"a", b"b"]])

    @pytest.mark.smoke
    def test_the_ids_of_each_element_are_brought_up_in_order(self):
        layer = DynamicEmbedding(2)
        seen, patched = recorded(layer)
        with patched:
            for _ in layer.prefetch(tf.data.Dataset.from_tensor_slices((ids_of(), ids_of()))):
                pass
        self.assertEqual(seen, ids_of().tolist())

    def test_several_ids_of_an_element_are_all_brought_up(self):
        layer = DynamicEmbedding(2)
        seen, patched = recorded(layer)
        dataset = tf.data.Dataset.from_tensors({"a": [1, 2], "b": tf.ragged.constant([[3], [4]])})
        with patched:
            list(layer.prefetch(dataset, ids=lambda element: [element["a"], element["b"]]))
        self.assertEqual(seen, [[1, 2], [3, 4]])

    def test_the_place_in_a_dataset_is_saved(self):
        layer = DynamicEmbedding(2)
        iterator = iter(layer.prefetch(tf.data.Dataset.from_tensor_slices(ids_of())))
        next(iterator)
        checkpoint = tf.train.Checkpoint(iterator=iterator)
        path = checkpoint.save(tempfile.mkdtemp(dir=self.get_temp_dir()) + "/place")
        wanted = next(iterator)
        checkpoint.restore(path)
        self.assertAllEqual(next(iterator), wanted)

    def test_a_dataset_keeps_the_table(self):
        dataset = DynamicEmbedding(2).prefetch(tf.data.Dataset.from_tensor_slices(ids_of()))
        self.assertLen(list(dataset), BATCHES)

    def test_what_makes_no_sense_is_refused(self):
        layer = DynamicEmbedding(2, name="items")
        dataset = tf.data.Dataset.from_tensor_slices(ids_of())
        with self.assertRaisesRegex(TypeError, "`dataset` must be a tf.data.Dataset. Received"):
            layer.prefetch(ids_of())
        with self.assertRaisesRegex(TypeError, "`ids` must be callable. Received: ids='item'"):
            layer.prefetch(dataset, "item")
        with self.assertRaisesRegex(ValueError, "`buffer_size` must be at least -1. Received"):
            layer.prefetch(dataset, buffer_size=-2)
        with self.assertRaisesRegex(ValueError, "`ids` must be a function .*'items'.*type dict"):
            layer.prefetch(tf.data.Dataset.from_tensors(({"a": [1]}, [2.0])))
        with self.assertRaisesRegex(ValueError, "`ids` of 'items' raised KeyError"):
            layer.prefetch(tf.data.Dataset.from_tensors({"a": [1]}), lambda element: element["b"])
        with self.assertRaisesRegex(TypeError, "`ids` of 'items' must be strings|integers"):
            layer.prefetch(tf.data.Dataset.from_tensors(["a"]))


class FitTest(tf.test.TestCase, parameterized.TestCase):
    """Models that are trained on a prefetched dataset."""

    def model(self, with_input: bool = True, **options: Any) -> tuple[keras.Model, Any]:
        keras.utils.set_random_seed(SEED)
        layer = DynamicEmbedding(3, name="items", initializer="normal")
        layers = [layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        if with_input:
            layers.insert(0, keras.Input([BATCH], dtype="int64"))
        model = keras.Sequential(layers)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        model.compile(optimizer, "mse", jit_compile=False, **options)
        return model, layer

    def dataset(self) -> tf.data.Dataset:
        ids = np.random.default_rng(SEED).integers(0, 50, [64, BATCH]) + 2**40
        y = np.random.default_rng(SEED).normal(size=[64, 1])
        return tf.data.Dataset.from_tensor_slices((ids, y)).batch(8)

    def rows(self, layer: DynamicEmbedding) -> tuple[np.ndarray, np.ndarray]:
        keys, rows = (part.numpy() for part in layer.variable.export())
        return np.sort(keys), rows[np.argsort(keys)]

    @parameterized.parameters(
        {"with_input": True},
        {"with_input": False},
        {"with_input": True, "steps_per_execution": 3},
        {"with_input": True, "run_eagerly": True},
    )
    def test_rows_and_losses_are_those_without(self, **options):
        results = []
        for ahead in (False, True):
            model, layer = self.model(**options)
            dataset = self.dataset()
            if ahead:
                dataset = layer.prefetch(dataset)
            losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
            losses.append(model.evaluate(dataset, verbose=0))
            results.append((losses, *self.rows(layer)))
        for one, other in zip(*results, strict=True):
            self.assertAllEqual(one, other)

    def test_a_model_whose_layer_has_a_table_already_is_saved_and_loaded(self):
        model, layer = self.model(with_input=False)
        model.fit(layer.prefetch(self.dataset()), verbose=0)
        path = tempfile.mkdtemp(dir=self.get_temp_dir()) + "/m.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        for one, other in zip(self.rows(layer), self.rows(loaded.layers[0]), strict=True):
            self.assertAllEqual(one, other)


if __name__ == "__main__":
    tf.test.main()

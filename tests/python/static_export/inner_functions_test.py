# SPDX-License-Identifier: Apache-2.0
"""Static exports of models that call tf.functions with lookups."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.layers import DynamicEmbedding

IDS = [1, 2, 3]


class Module(tf.Module):
    """A module whose served function calls another tf.function."""

    def __init__(self) -> None:
        super().__init__()
        self.v = tf_embed.Variable(dim=2, initializer=0.5)
        self.v.upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])

    @tf.function
    def rows(self, ids):
        return tf_embed.embedding_lookup(self.v, ids)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids):
        return tf.reduce_sum(self.rows(ids), -1)


class Model(keras.Model):
    """A model whose call has a tf.function for its lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = DynamicEmbedding(2, combiner="sum", initializer=0.5)
        self.dense = keras.layers.Dense(1)

    @tf.function(reduce_retracing=True)
    def pooled(self, ids):
        return self.rows(ids)

    def call(self, ids):
        return self.dense(self.pooled(ids))


def compiled() -> Model:
    model = Model()
    model.rows.build((None, 2))
    model.dense.build((None, 2))
    model.built = True
    model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """Traces tf.functions in place, as the error says."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


class InnerFunctionsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "static")

    def served(self, model: Any, ids: Any, **options: Any) -> np.ndarray:
        """Checks that an export is refused, and returns the answers of an export in place."""
        path = self.folder()
        refused = "(not look up in|If) a tf.function that it calls.*: call .*run_functions_eagerly"
        with self.assertRaisesRegex(ValueError, refused):
            tf_embed.export_static(model, path, **options)
        self.assertFalse(os.path.exists(path))
        with in_place():
            tf_embed.export_static(model, path, **options)
        loaded = tf.saved_model.load(path)
        return loaded.serve(tf.constant(ids, tf.int64)).numpy()

    @parameterized.parameters(False, True)
    def test_a_module_works_on_and_is_exported_again(self, is_called_before: bool):
        module = Module()
        ids = tf.constant(IDS, tf.int64)
        if is_called_before:
            module.rows(ids)
            module.serve(ids)
        self.assertAllEqual(self.served(module, IDS), [2, 4, 1])
        self.assertAllEqual(module.rows(ids), [[1, 1], [2, 2], [0.5, 0.5]])
        self.assertAllEqual(module.serve(ids), [2, 4, 1])
        module.v.upsert([3], [[7.0, 7.0]])
        self.assertAllEqual(module.rows(ids), [[1, 1], [2, 2], [7, 7]])
        self.assertAllEqual(self.served(module, IDS), [2, 4, 14])
        self.assertAllEqual(self.served(module, IDS, quantize="int8"), [2, 4, 14])
        self.assertAllEqual(module.serve(ids), [2, 4, 14])

    def test_gradients_reach_the_table_after_an_export(self):
        module = Module()
        self.served(module, IDS)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(module.rows(tf.constant(IDS, tf.int64)))
        (gradient,) = tape.gradient(loss, module.v.trainable_variables)
        self.assertIsNotNone(gradient)

    def test_a_module_is_saved_whole_after_an_export(self):
        module = Module()
        self.served(module, IDS)
        path = self.folder()
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        self.assertAllEqual(loaded.serve(tf.constant(IDS, tf.int64)), [2, 4, 1])

    @parameterized.parameters(2, 3)
    def test_a_model_is_trained_between_exports(self, width: int):
        model = compiled()
        before = np.array([[1, 2], [3, 4]])
        model.fit(before, np.ones([2, 1]), verbose=0)
        signature = [tf.TensorSpec([None, width], tf.int64)]
        ids = np.arange(2 * width).reshape([2, width])
        for _ in range(2):
            answers = self.served(model, ids, input_signature=signature)
            self.assertAllClose(answers, model.predict(ids, verbose=0), rtol=1e-6)
            model.fit(ids, np.ones([2, 1]), verbose=0)
            model.fit(before, np.ones([2, 1]), verbose=0)
        self.assertEqual(model.rows.variable.size(), len({*before.flat, *ids.flat}))

    def test_a_model_that_was_not_called_is_trained_after_an_export(self):
        model = compiled()
        ids = np.array([[1, 2], [3, 4]])
        self.served(model, ids, input_signature=[tf.TensorSpec([None, 2], tf.int64)])
        model.fit(ids, np.ones([2, 1]), epochs=2, verbose=0)
        self.assertEqual(model.rows.variable.size(), 4)

    def test_functions_within_loops_conditions_and_functions(self):
        v = tf_embed.Variable(dim=2, initializer=0.5)
        v.upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
        row = tf.function(v.lookup)
        outer = tf.function(lambda one: row(one))

        def call(ids):
            rows = tf.map_fn(outer, ids, fn_output_signature=tf.float32)
            return tf.cond(tf.size(ids) > 1, lambda: rows + row(ids), lambda: rows)

        class Called(tf.Module):
            __call__ = staticmethod(call)

        module = Called()
        module.v = v
        signature = [tf.TensorSpec([None], tf.int64)]
        live = tf.function(call)
        wanted = live(tf.constant(IDS, tf.int64))
        for _ in range(2):
            served = self.served(module, IDS, input_signature=signature)
            self.assertAllEqual(served, wanted)
            self.assertAllEqual(live(tf.constant(IDS, tf.int64)), wanted)
            live = tf.function(call)  # traced again


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers that load the weights of another layer, or are made from its config."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed import tbe
from tf_embed.saving import keras_files

OptimType = tbe.OptimType


def built(optimizer: Any, **options: Any) -> tbe.TableBatchedEmbeddingBags:
    layer = tbe.TableBatchedEmbeddingBags([(4, 2)], optimizer=optimizer, name="bags", **options)
    layer.build()
    return layer


class OtherOptimizerTest(parameterized.TestCase):
    """Weights of a model whose layer has another optimizer, or the same optimizer."""

    def loaded(self, saved, optimizer, **options):
        path = f"{tempfile.mkdtemp()}/model.weights.h5"
        models = []
        for kind, settings in (saved, (optimizer, options)):
            layer = built(kind, **settings)
            ids = keras.Input([1], dtype="int64")
            model = keras.Model(ids, layer([ids]))
            model.compile("sgd", "mse")
            models.append(model)
            if len(models) == 1:
                model.fit(np.array([[1]]), np.ones([1, 2]), epochs=7, verbose=0)
                model.save_weights(path)
        layer.split_embedding_weights()[0][1] = 9.0
        models[1].load_weights(path)
        self.assertLess(np.abs(layer.split_embedding_weights()[0].numpy()).max(), 9.0)
        return layer

    @parameterized.parameters(
        ((OptimType.EXACT_SGD, {"learning_rate": 0.5}), OptimType.ADAM),
        ((OptimType.ADAM, {"learning_rate": 0.5, "eps": 0.01, "beta1": 0.1}), OptimType.LAMB),
        ((OptimType.LAMB, {"learning_rate": 0.5, "eps": 0.01}), OptimType.PARTIAL_ROWWISE_LAMB),
    )
    def test_the_numbers_of_another_optimizer_are_left(self, saved, optimizer):
        layer = self.loaded(saved, optimizer, learning_rate=0.001, eps=1e-4)
        self.assertAlmostEqual(layer.get_learning_rate(), 0.001)
        self.assertEqual(int(layer.optimizer.iterations), 0)
        self.assertAlmostEqual(float(layer.optimizer.number("eps")), 1e-4)
        self.assertAlmostEqual(float(layer.optimizer.number("beta1")), 0.9)

    def test_those_of_the_same_optimizer_are_taken(self):
        numbers = {"learning_rate": 0.5, "eps": 0.01, "beta1": 0.1}
        layer = self.loaded((OptimType.ADAM, numbers), OptimType.ADAM, learning_rate=0.001)
        self.assertAlmostEqual(layer.get_learning_rate(), 0.5)
        self.assertEqual(int(layer.optimizer.iterations), 7)
        self.assertAlmostEqual(float(layer.optimizer.number("eps")), 0.01)
        self.assertAlmostEqual(float(layer.optimizer.number("beta1")), 0.1)
        config = layer.optimizer.get_config()
        self.assertAlmostEqual(config["eps"], 0.01)
        self.assertAlmostEqual(config["beta1"], 0.1)
        self.assertIn("eps=0.01", repr(layer.optimizer))

    def test_a_file_that_does_not_name_its_optimizer_is_taken_as_of_the_same(self):
        store = {}
        built(OptimType.EXACT_SGD, learning_rate=0.5).save_own_variables(store)
        arrays = keras_files.read(store, "bags")
        del arrays["optimizer_class"]
        old = {}
        keras_files.write(old, arrays)
        layer = built(OptimType.EXACT_SGD, learning_rate=0.1)
        layer.load_own_variables(old)
        self.assertAlmostEqual(layer.get_learning_rate(), 0.5)


class InitializerOfTensorFlowTest(absltest.TestCase):
    def test_models_with_one_are_saved_and_cloned(self):
        layer = tbe.TableBatchedEmbeddingBags(
            [(None, 2)], initializer=tf.random_uniform_initializer(-1.0, 1.0)
        )
        ids = keras.Input([1], dtype="int64")
        model = keras.Model(ids, layer([ids]))
        path = f"{tempfile.mkdtemp()}/model.keras"
        model.save(path)
        batch = np.array([[5], [6]])
        for other in (keras.models.load_model(path), keras.models.clone_model(model)):
            np.testing.assert_array_equal(other(batch), model(batch))


class ChangesTest(parameterized.TestCase):
    """Snapshots of arrays of rows."""

    def test_arrays_save_their_changes_alone(self):
        policy = tf_embed.TablePolicy(track_changes=True)
        layer = built(OptimType.EXACT_SGD, policy=policy)
        (rows,) = layer.tables
        rows.upsert([0, 1], np.ones([2, 2]))
        snapshots = tf_embed.Snapshots(tempfile.mkdtemp(), layer)
        snapshots.save("whole")
        rows.upsert([1, 3], np.full([2, 2], 5.0))
        self.assertEqual(snapshots.save("changes", since="whole").wait().rows, 2)
        loaded = built(OptimType.EXACT_SGD, policy=policy)
        tf_embed.Snapshots(snapshots.path, loaded).load("changes")
        np.testing.assert_array_equal(
            loaded.split_embedding_weights()[0].numpy(), [[1, 1], [5, 5], [0, 0], [5, 5]]
        )


if __name__ == "__main__":
    absltest.main()

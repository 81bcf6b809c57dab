# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers are restored from their configs."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.table_batched_cases import SAVED, settings_of
from support.cases.tbe_cases import CASES
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

OPTIM, POOLING = tbe.OptimType, tbe.PoolingMode
SPECS, FEATURES, NAMES = [(20, 4), (None, 2)], [0, 1, 0], ["user", "item", "tag"]


class ConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*SAVED, "cowclip, l2", "EmaInplace", "LARS, decay")
    def test_a_layer_comes_back_from_its_config(self, case):
        layer = TableBatchedEmbeddingBags(
            [
                (20, 4),
                (None, 2, tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU),
            ],
            FEATURES,
            output_dtype=tbe.SparseType.BF16,
            gradient_clipping=True,
            max_gradient=0.5,
            pooling_mode=POOLING.MEAN,
            bounds_check_mode=tbe.BoundsCheckMode.IGNORE,
            table_names=["ada", "bob"],
            feature_names=NAMES,
            initializer=["glorot_uniform", keras.initializers.RandomNormal()],
            policy=[None, tf_embed.TablePolicy(max_rows=100)],
            name="mine",
            **settings_of(CASES[case]),
        )
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        other = keras.saving.deserialize_keras_object(config)
        self.assertEqual(other.get_config(), layer.get_config())
        given = np.array([1, 2, 3]), np.array([0, 1, 2, 3])
        self.assertAllEqual(other(*given), layer(*given))
        self.assertEqual(other(*given).dtype, tf.bfloat16)
        self.assertEqual(other.optimizer.get_config(), layer.optimizer.get_config())
        self.assertEqual([table.name for table in other.tables], ["ada", "bob"])

    def test_an_initializer_that_scales_has_the_shape_of_an_array(self):
        layer = TableBatchedEmbeddingBags([(2000, 8), (None, 8)], initializer="he_normal")
        for table, num_rows in zip(layer.tables, (2000, 1), strict=True):
            rows = table.lookup(np.arange(2000)).numpy()
            self.assertNear(rows.std() / (2.0 / num_rows) ** 0.5, 1.0, 5 / rows.size**0.5)

    def test_a_config_keeps_initial_rows_also_one_of_before(self):
        initializer = keras.initializers.HeNormal(seed=5)
        options = {"initializer": initializer, "table_names": ["ada", "bob"]}
        layer = TableBatchedEmbeddingBags([(20, 4), (None, 4)], **options)
        config = layer.get_config()
        of_before = {
            **config,
            "initializer": [keras.saving.serialize_keras_object(initializer)] * 2,
        }

        def rows(layer):
            return [table.lookup(np.arange(20)) for table in layer.tables]

        self.assertAllEqual(rows(TableBatchedEmbeddingBags.from_config(config)), rows(layer))
        loaded = TableBatchedEmbeddingBags.from_config(of_before)
        again = TableBatchedEmbeddingBags.from_config(loaded.get_config())
        for name, *found in zip(("ada", "bob"), rows(loaded), rows(again), strict=True):
            one_row = tf_embed.Variable(dim=4, name=name, initializer=initializer)
            for each in found:
                self.assertAllEqual(each, one_row.lookup(np.arange(20)))

    def test_a_schedule_comes_back_too(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
        layer = TableBatchedEmbeddingBags(SPECS, FEATURES, learning_rate=schedule)
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        other = keras.saving.deserialize_keras_object(config)
        self.assertEqual(other.get_config(), layer.get_config())

    @parameterized.parameters(None, OPTIM.NONE, OPTIM.ADAM, "adam")
    def test_optimizers_come_back(self, optimizer):
        layer = TableBatchedEmbeddingBags(SPECS, FEATURES, optimizer=optimizer)
        other = TableBatchedEmbeddingBags.from_config(layer.get_config())
        self.assertEqual(other.get_config(), layer.get_config())


if __name__ == "__main__":
    tf.test.main()

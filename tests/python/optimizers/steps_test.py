# SPDX-License-Identifier: Apache-2.0
"""Steps of tables that have their own optimizer."""

from unittest import mock

import keras
import tensorflow as tf

import tf_embed
from tf_embed import tbe
from tf_embed.optimizers import steps
from tf_embed.optimizers.steps import deferred_updates
from tf_embed.sharded.worker_table import gradients_to_owners


class DeferredTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.layers = [
            tf_embed.layers.DynamicEmbedding(1, optimizer="sgd", initializer="zeros", name=name)
            for name in ("items", "users")
        ]
        for layer in self.layers:
            layer.build((None,))

    def _assign(self, layer):
        (anchor,) = layer.trainable_variables
        anchor.assign(tf.IndexedSlices(tf.ones([2, 1]), tf.constant([7, 7], tf.int64)))

    def _rows(self):
        return [layer.variable.lookup([7]).numpy().item() for layer in self.layers]

    def test_a_step_is_made_at_once(self):
        self._assign(self.layers[0])
        self.assertAllClose(self._rows(), [-0.02, 0.0])

    def test_steps_of_a_block_are_made_at_its_end(self):
        with deferred_updates():
            for layer in self.layers:
                self._assign(layer)
            self.assertAllEqual(self._rows(), [0.0, 0.0])
        self.assertAllClose(self._rows(), [-0.02, -0.02])

    def test_a_block_that_raises_trains_no_table(self):
        with self.assertRaisesRegex(ValueError, "planted"), deferred_updates():
            self._assign(self.layers[0])
            raise ValueError("planted")
        self.assertAllEqual(self._rows(), [0.0, 0.0])
        self._assign(self.layers[1])
        self.assertAllClose(self._rows(), [0.0, -0.02])

    def test_a_frozen_table_is_not_trained_at_the_end_of_a_block(self):
        with deferred_updates():
            self._assign(self.layers[0])
            self.layers[0].trainable = False
        self.assertAllEqual(self._rows(), [0.0, 0.0])


class BatchesTest(tf.test.TestCase):
    def test_batches_of_a_table_batched_layer_are_sent_to_no_owner(self):
        bags = tbe.TableBatchedEmbeddingBags([(None, 1)], optimizer=tbe.OptimType.EXACT_SGD)
        ids = keras.Input([2], dtype="int64")
        model = keras.Model(ids, bags([ids]))
        model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD()), "mse")
        with mock.patch.object(steps, "gradients_to_owners", wraps=gradients_to_owners) as sent:
            model.fit(tf.ones([4, 2], tf.int64), tf.ones([4, 1]), verbose=0)
        ((tables, _, _), _) = sent.call_args
        # Its gradient has the batch as its keys, which the lookup has sent to the owners already.
        self.assertEqual(tables, [None])


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Configs of layers and optimizers that were saved with TFRA's arguments make what they made."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tfra
from tf_embed.layers import DynamicEmbedding


def earlier_config(**arguments: Any) -> dict[str, Any]:
    """A config as layers had it, with all of TFRA's arguments."""
    config = DynamicEmbedding(2, name="mine").get_config()
    return {**config, "kv_creator": None, "restrict_policy": None, "bp_v2": False, **arguments}


class EarlierConfigsTest(tf.test.TestCase, parameterized.TestCase):
    def test_arguments_that_were_not_given_are_left_out(self):
        layer = DynamicEmbedding.from_config(earlier_config(bp_v2=True))
        config = layer.get_config()
        self.assertNoCommonElements(config, ["kv_creator", "restrict_policy", "bp_v2"])
        self.assertEqual((layer.policy, layer.storage), (None, None))

    def test_a_creator_becomes_a_policy_a_storage_and_a_size(self):
        creator = tfra.HkvHashTableCreator(
            tfra.HkvHashTableConfig(init_capacity=7, max_capacity=9, max_hbm_for_values=10**6)
        )
        saved = keras.saving.serialize_keras_object(creator)
        layer = DynamicEmbedding.from_config(earlier_config(kv_creator=saved))
        self.assertEqual(layer.policy, tf_embed.TablePolicy(max_rows=9))
        self.assertEqual(layer.storage, tf_embed.Storage(gpu_bytes=10**6))
        self.assertEqual(layer.init_size, 7)

    def test_a_storage_overrides_the_creators(self):
        creator = keras.saving.serialize_keras_object(tfra.HkvHashTableCreator())
        storage = keras.saving.serialize_keras_object(tf_embed.Storage(gpu_bytes=0))
        layer = DynamicEmbedding.from_config(earlier_config(kv_creator=creator, storage=storage))
        self.assertEqual(layer.storage, tf_embed.Storage(gpu_bytes=0))

    @parameterized.parameters(
        ("tf_embed>FrequencyRestrictPolicy", "lfu"), ("tf_embed>TimestampRestrictPolicy", "ttl")
    )
    def test_a_restrict_policy_becomes_an_eviction_order(self, name, order):
        layer = DynamicEmbedding.from_config(earlier_config(restrict_policy=name))
        layer.build()
        self.assertEqual(layer.policy, tf_embed.TablePolicy(eviction=order))
        of_tfra = tfra.Variable(restrict_policy=keras.saving.get_registered_object(name))
        kept = layer.variable.table.options.statistics
        self.assertEqual(kept, of_tfra.table.options.statistics)

    def test_a_policy_that_none_replaces_is_refused_with_a_way_out(self):
        policy = keras.saving.serialize_keras_object(tf_embed.TablePolicy(9))
        for config in (
            earlier_config(restrict_policy="tf_embed>FrequencyRestrictPolicy", policy=policy),
            earlier_config(restrict_policy="no_such>Policy"),
        ):
            with self.assertRaisesRegex(ValueError, "tf_embed.tfra.keras.layers.Embedding. Recei"):
                DynamicEmbedding.from_config(config)

    @parameterized.parameters(True, False)
    def test_an_optimizer_shares_slots_as_before(self, bp_v2):
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.5), name="mine")
        config = optimizer.get_config()
        del config["share_slots"]
        earlier = {**config, "bp_v2": bp_v2, "synchronous": True}
        again = tf_embed.DynamicEmbeddingOptimizer.from_config(earlier)
        self.assertEqual(again.get_config(), {**config, "share_slots": bp_v2})


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Optimizers of this library under tf.distribute: two replicas train a table like one replica."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.one_embedding import Ftrl
from tf_embed.optimizers import SmartDecayAdam

VOCABULARY, DIM, BATCH, STEPS = 30, 4, 8, 40
# A replica sums its own half of a batch first, so sums differ in their last bits.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
OPTIMIZERS = {
    "ftrl": lambda: Ftrl(0.1, lambda1=0.01, lambda2=0.1),
    "smart_decay_adam": lambda: SmartDecayAdam(0.05, beta_1=0.8, beta_2=0.95),
}


def fit(strategy: tf.distribute.Strategy, kind: str, is_own: bool) -> DynamicEmbedding:
    """A layer, trained by its own optimizer or by the model's."""
    with strategy.scope():
        layer = DynamicEmbedding(
            DIM,
            initializer=keras.initializers.RandomNormal(seed=3),
            optimizer=OPTIMIZERS[kind]() if is_own else None,
            name="rows",  # initial rows depend on it
        )
        head = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2))
        inputs = keras.Input([3], dtype="int64")
        model = keras.Model(inputs, head(keras.layers.Flatten()(layer(inputs))))
        outer = keras.optimizers.SGD(0.1) if is_own else OPTIMIZERS[kind]()
        optimizer = outer if is_own else tf_embed.DynamicEmbeddingOptimizer(outer)
        model.compile(optimizer, "mse", jit_compile=False)
    rng = np.random.default_rng(SEED)
    ids = rng.integers(0, VOCABULARY, [BATCH * STEPS, 3])
    labels = rng.normal(size=[len(ids), 1]).astype(np.float32)
    model.fit(ids, labels, batch_size=BATCH, shuffle=False, verbose=0)
    return layer


def content_of(layer: DynamicEmbedding) -> tuple[Any, ...]:
    """The keys in order, with their rows and slots."""
    exported = layer.variable.table.export()
    order = np.argsort(exported.keys)
    return tuple(part.numpy()[order] for part in exported[:3])


class ReplicaRulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=list(OPTIMIZERS), is_own=[True, False])
    def test_two_replicas_train_as_one(self, kind, is_own):
        one = content_of(fit(tf.distribute.get_strategy(), kind, is_own))
        two = content_of(fit(two_replicas(), kind, is_own))
        self.assertAllEqual(two[0], one[0])
        self.assertAllEqual(one[0], np.arange(VOCABULARY))
        self.assertAllClose(two[1], one[1], **CLOSE)
        self.assertAllClose(two[2], one[2], **CLOSE)


if __name__ == "__main__":
    tf.test.main()

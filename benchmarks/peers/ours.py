# SPDX-License-Identifier: Apache-2.0
"""tf_embed, as a user writes it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import tf_embed
from peers.verbs import Verbs
from tf_embed import tbe

OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(1e-3),
    "Adagrad": lambda: keras.optimizers.Adagrad(1e-2, initial_accumulator_value=0.1),
    "SGD": lambda: keras.optimizers.SGD(1e-2),
    # With FBGEMM's settings.
    "Adagrad from 0": lambda: keras.optimizers.Adagrad(
        1e-2, initial_accumulator_value=0.0, epsilon=1e-7
    ),
    "row-wise Adagrad from 0": lambda: tf_embed.optimizers.RowwiseAdagrad(1e-2, epsilon=1e-7),
}
# The optimizers that a layer of many tables runs itself.
OPTIM_TYPES = {
    "SGD": tbe.OptimType.EXACT_SGD,
    "Adagrad": tbe.OptimType.EXACT_ADAGRAD,
    "row-wise Adagrad": tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
}


class Table(Verbs):
    """A table without an optimizer."""

    def __init__(self, dim: int) -> None:
        super().__init__(tf_embed.Variable(dim=dim, initializer=0.0))


def restricted(policy: str, dim: int) -> tf_embed.Variable:
    """A table that can be restricted, by `frequency` or by `timestamp`."""
    policies = {
        "frequency": tf_embed.tfra.FrequencyRestrictPolicy,
        "timestamp": tf_embed.tfra.TimestampRestrictPolicy,
    }
    return tf_embed.tfra.Variable(dim=dim, initializer=0.0, restrict_policy=policies[policy])


class Trainer:
    """A table and an optimizer; a step is a lookup, its gradient, and the update."""

    def __init__(
        self, dim: int, optimizer: str, policy: tf_embed.TablePolicy | None = None
    ) -> None:
        self.variable = tf_embed.Variable(dim=dim, initializer=0.0, policy=policy)
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer]())
        self.optimizer.build(self.variable.trainable_variables)
        self.step = tf.function(self._step)

    def _step(self, ids: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        variables = self.variable.trainable_variables
        with tf.GradientTape() as tape:
            rows = tf_embed.embedding_lookup(self.variable, ids)
        self.optimizer.apply(tape.gradient(rows, variables, output_gradients=gradients), variables)
        return rows

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.variable.lookup(ids)


class PooledTrainer:
    """A pooling Keras layer, and an optimizer."""

    def __init__(self, dim: int, optimizer: str) -> None:
        self.layer = tf_embed.layers.DynamicEmbedding(dim, initializer="zeros", combiner="sum")
        self.layer.build()
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer]())
        self.optimizer.build(self.layer.trainable_variables)
        self.step = tf.function(self._step)

    def _step(self, ids: Any, gradients: tf.Tensor) -> tf.Tensor:
        variables = self.layer.trainable_variables
        with tf.GradientTape() as tape:
            bags = self.layer(ids)
        self.optimizer.apply(tape.gradient(bags, variables, output_gradients=gradients), variables)
        return bags

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.layer.variable.lookup(ids)


class TablesTrainer:
    """Many tables in a layer that trains them: arrays, or dynamic tables if `rows` is None."""

    def __init__(self, optimizer: str, tables: int, rows: int | None, dim: int, bags: int) -> None:
        self.layer = tbe.TableBatchedEmbeddingBags(
            [(rows, dim)] * tables,
            optimizer=OPTIM_TYPES[optimizer],
            learning_rate=1e-2,
            bounds_check_mode=tbe.BoundsCheckMode.NONE,
            **({} if optimizer == "SGD" else {"eps": 1e-7}),
        )
        self.layer.build()
        self._optimizer = keras.optimizers.SGD()  # passes the gradient to the layer
        self._optimizer.build(self.layer.trainable_variables)
        self._gradient = tf.fill([bags, tables * dim], 0.01)
        self.forward = tf.function(self.layer)
        self.step = tf.function(self._step)

    def _step(self, indices: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
        variables = self.layer.trainable_variables
        with tf.GradientTape() as tape:
            pooled = self.layer(indices, offsets)
        gradients = tape.gradient(pooled, variables, output_gradients=self._gradient)
        self._optimizer.apply(gradients, variables)
        return pooled

# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Recommenders Addons, dynamic_embedding.

Its optimizer wraps optimizers of tf_keras, or of TensorFlow's old Keras, as here: importing
tf_keras together with Keras 3 would need another process.
"""

from __future__ import annotations

import itertools
import json
import pathlib

import tensorflow as tf
from tensorflow.python.keras.optimizer_v2 import adagrad, adam, gradient_descent
from tensorflow_recommenders_addons import dynamic_embedding as de

from peers.verbs import Verbs

OPTIMIZERS = {
    "Adam": lambda: adam.Adam(1e-3),
    "Adagrad": lambda: adagrad.Adagrad(1e-2, initial_accumulator_value=0.1),
    "SGD": lambda: gradient_descent.SGD(1e-2),
}
_numbers = itertools.count()


def _variable(
    dim: int, restrict_policy: type | None = None, creator: de.RedisTableCreator | None = None
) -> de.Variable:
    # A new name: with a used name, get_variable would return an earlier table.
    name = f"table_{next(_numbers)}"
    return de.get_variable(
        name, dim=dim, initializer=0.0, restrict_policy=restrict_policy, kv_creator=creator
    )


def redis_creator(port: int, folder: pathlib.Path) -> de.RedisTableCreator:
    """The creator of tables on a Redis server of this machine.

    Args:
        port: The server's port.
        folder: The folder for the settings file; TFRA accepts settings only in a file.
    """
    settings = {
        "redis_connection_mode": 2,  # a single server
        "redis_host_ip": ["127.0.0.1"],
        "redis_host_port": [port],
        "storage_slice": 1,
        "model_tag_runtime": "benchmark",
    }
    path = folder / "tfra.json"
    path.write_text(json.dumps(settings))
    return de.RedisTableCreator(config=de.RedisTableConfig(redis_config_abs_dir=str(path)))


def restricted(policy: str, dim: int) -> de.Variable:
    """A table that can be restricted, by `frequency` or by `timestamp`."""
    policies = {
        "frequency": de.FrequencyRestrictPolicy,
        "timestamp": de.TimestampRestrictPolicy,
    }
    return _variable(dim, policies[policy])


class Table(Verbs):
    """A table without an optimizer."""

    def __init__(self, dim: int) -> None:
        super().__init__(_variable(dim))


class Trainer:
    """A table and TFRA's optimizer. Callers must make ids unique, or gradients are lost."""

    def __init__(self, dim: int, optimizer: str) -> None:
        self.variable = _variable(dim)
        self.shadow = de.shadow_ops.ShadowVariable(self.variable, name=f"shadow_{next(_numbers)}")
        self.optimizer = de.DynamicEmbeddingOptimizer(OPTIMIZERS[optimizer]())
        self.step = tf.function(self._step)

    def _step(self, ids: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            unique, places = tf.unique(ids)
            rows = tf.gather(de.shadow_ops.embedding_lookup(self.shadow, unique), places)
        (gradient,) = tape.gradient(rows, [self.shadow], output_gradients=gradients)
        self.optimizer.apply_gradients([(gradient, self.shadow)])
        return rows

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.variable.lookup(ids)


class HandWrittenAdam:
    """The leanest Adam step of TFRA's ops: a lookup and an upsert for each of its tables."""

    def __init__(self, dim: int, creator: de.RedisTableCreator | None = None) -> None:
        self.variable = _variable(dim, creator=creator)
        self.slots = tuple(_variable(dim, creator=creator) for _ in range(2))
        self.steps = tf.Variable(0.0)
        self.step = tf.function(self._step)

    def _step(self, ids: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        unique, places = tf.unique(ids)
        weights = self.variable.lookup(unique)
        m, v = (slot.lookup(unique) for slot in self.slots)
        rows = tf.gather(weights, places)
        sums = tf.math.unsorted_segment_sum(gradients, places, tf.size(unique))
        step = self.steps.assign_add(1.0)
        rate = 1e-3 * tf.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
        m += 0.1 * (sums - m)
        v += 0.001 * (sums * sums - v)
        self.variable.upsert(unique, weights - rate * m / (tf.sqrt(v) + 1e-7))
        self.slots[0].upsert(unique, m)
        self.slots[1].upsert(unique, v)
        return rows

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        return self.variable.lookup(ids)


class PooledTrainer(Trainer):
    """As `Trainer`, with rows pooled by `embedding_lookup_sparse`."""

    def _step(self, ids: tf.SparseTensor, gradients: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            bags = de.embedding_lookup_sparse(self.shadow, ids, None, combiner="sum")
        (gradient,) = tape.gradient(bags, [self.shadow], output_gradients=gradients)
        self.optimizer.apply_gradients([(gradient, self.shadow)])
        return bags

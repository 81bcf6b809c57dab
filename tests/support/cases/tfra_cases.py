# SPDX-License-Identifier: Apache-2.0
"""Layers with known rows, ids in containers, and the oracle for `tf_embed.tfra.keras`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.oracles.reference import SEED
from tf_embed.tfra.keras.layers import Embedding

DIM = 3
ROWS = np.random.default_rng(SEED).normal(size=[10, DIM]).astype(np.float32)
# Bags of ids, among them an empty bag, bags with a single id, and bags with an id twice.
BAGS = [[3, 1, 3], [], [2], [5, 7, 8, 9], [4, 4]]
LINES = [[3, 1, 3], [2, 2, 2], [5, 0, 8]]


def std(rows: tf.Tensor, axis: int) -> tf.Tensor:
    # If all rows are equal, TensorFlow's gradient is NaN. It should be 0.
    if np.ptp(np.asarray(rows), axis=0).max() < 1e-6:
        return tf.zeros([DIM])
    return tf.math.reduce_std(rows, axis)


def sqrtn(rows: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.reduce_sum(rows, axis) / np.sqrt(rows.shape[axis])


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": tf.reduce_sum,
    "mean": tf.reduce_mean,
    "sqrtn": sqrtn,
    "min": tf.reduce_min,
    "max": tf.reduce_max,
    "prod": tf.reduce_prod,
    "std": std,
    "variance": tf.math.reduce_variance,
}


@keras.saving.register_keras_serializable(package="tfra_cases")
def twice_the_sum(rows: Any, axis: int) -> Any:
    return 2.0 * tf.reduce_sum(rows, axis=axis)


@keras.saving.register_keras_serializable(package="tfra_cases")
def remainder(keys: tf.Tensor) -> tf.Tensor:
    return keys % 3


@keras.saving.register_keras_serializable(package="tfra_cases")
@tf.function
def traced_remainder(keys: tf.Tensor) -> tf.Tensor:
    return tf.math.mod(keys, 3)


@keras.saving.register_keras_serializable(package="tfra_cases")
def second_half(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.cast(keys > 100, tf.int32) * (shard_num - 1)


def filled(kind: Any = Embedding, *arguments: Any, **options: Any) -> Any:
    """A layer whose table has ROWS."""
    layer = kind(DIM, *arguments, **options)
    layer.params.upsert(range(10), tf.cast(ROWS, layer.params.value_dtype))
    return layer


def reduced(rows: tf.Tensor, bag: list[int], reduction: Callable[..., Any]) -> tf.Tensor:
    """The oracle: reduces a bag's rows, taken from dense rows."""
    return reduction(tf.gather(rows, bag), 0) if bag else tf.zeros([DIM])


def fields_of(bag: list[int], nslots: int = 3) -> list[list[int]]:
    return [[key for key in bag if key % nslots == field] for field in range(nslots)]


def in_containers(bags: list[list[int]]) -> dict[str, Any]:
    """Bags as ragged and as sparse ids."""
    ragged = tf.ragged.constant(bags, dtype=tf.int64, ragged_rank=1)
    places = [[i, 7 * j] for i, bag in enumerate(bags) for j in range(len(bag))]
    values = [key for bag in bags for key in bag]
    sparse = tf.SparseTensor(places, tf.constant(values, tf.int64), [len(bags), 99])
    order = np.random.default_rng(SEED).permutation(len(values))
    shuffled = tf.SparseTensor(
        np.array(places)[order], tf.constant(values, tf.int64).numpy()[order], [len(bags), 99]
    )
    return {"ragged": ragged, "sparse": sparse, "shuffled": shuffled}


def rows_after_a_step(layer: Any, ids: Any, factors: np.ndarray) -> np.ndarray:
    """ROWS minus their gradients, if the loss is the sum of the outputs times factors."""
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True) * factors)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    step()
    return layer.params.lookup(range(10)).numpy()

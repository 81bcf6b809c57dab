# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are a function of the number of steps, and the shadow that computes them.

Rows are trained by SGD with a momentum of 1, a rate of 1 and integer gradients, so rows and slots
are integers, and the shadow is exact.
"""

from __future__ import annotations

import pathlib
import random

import keras
import numpy as np
import tensorflow as tf

import tf_embed

DIM, KEYS, BATCH = 4, 12000, 360  # enough keys for sealed segments of tables on disk
NAMES = ("items", "users")
CACHE_BYTES = 400 * (DIM * 4 * 2 + 8)
FACTORS = np.arange(1.0, DIM + 1.0, dtype=np.float32)  # so that a torn or shifted row shows

Content = tuple[np.ndarray, np.ndarray]


def step_of(place: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The key numbers that a step trains, their gradients, and the key numbers that it removes."""
    draw = np.random.default_rng([place, step])
    numbers = draw.choice(KEYS, BATCH, replace=False)
    gradients = draw.integers(-3, 4, BATCH)
    removed = draw.choice(KEYS, 15, replace=False) if step % 3 == 0 else numbers[:0]
    return numbers, gradients, removed


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Key numbers as keys, spread over all of int64."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.int64) * 0x61C8864680B583EB


class Shadow:
    """The expected tables after each number of steps."""

    def __init__(self) -> None:
        self._step = 0
        self._rows = np.zeros([len(NAMES), KEYS], np.int64)
        self._slots = np.zeros([len(NAMES), KEYS], np.int64)
        self._present = np.zeros([len(NAMES), KEYS], bool)

    def at(self, step: int) -> list[Content]:
        """The content of each table after some steps."""
        if step < self._step:
            self.__init__()
        while self._step < step:
            self._step += 1
            for place in range(len(NAMES)):
                self._make(place)
        return [self._content(place) for place in range(len(NAMES))]

    def _make(self, place: int) -> None:
        numbers, gradients, removed = step_of(place, self._step)
        self._present[place, numbers] = True
        self._slots[place, numbers] -= gradients
        self._rows[place, numbers] += self._slots[place, numbers]
        for array in (self._rows, self._slots, self._present):
            array[place, removed] = 0

    def _content(self, place: int) -> Content:
        numbers = np.flatnonzero(self._present[place])
        parts = [array[place, numbers, None] * FACTORS for array in (self._rows, self._slots)]
        keys = keys_of(numbers)
        order = np.argsort(keys)
        return keys[order], np.concatenate(parts, axis=1).astype(np.float32)[order]


class Tables:
    """The tables.

    Args:
        draw: Draws the number of shards of each table, and the tables on disk.
        folder: The folder for rows of tables on disk.
        tracked: Whether the tables track changes.
    """

    def __init__(self, draw: random.Random, folder: pathlib.Path, tracked: bool) -> None:
        policy = tf_embed.TablePolicy(track_changes=tracked)
        storage = tf_embed.Storage(host_bytes=CACHE_BYTES, path=folder)
        self.variables = [
            tf_embed.Variable(
                dim=DIM,
                name=name,
                initializer=0.0,
                policy=policy,
                devices=["/CPU:0"] * draw.randint(1, 3),
                storage=draw.choice((None, storage)),
            )
            for name in NAMES
        ]
        self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, 1.0))
        self._trained = [one for v in self.variables for one in v.trainable_variables]
        self._optimizer.build(self._trained)

    def train(self, step: int) -> None:
        steps = [step_of(place, step) for place in range(len(NAMES))]
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for variable, (numbers, gradients, _) in zip(self.variables, steps, strict=True):
                rows = tf_embed.embedding_lookup(variable, keys_of(numbers))
                loss += tf.reduce_sum(rows * gradients[:, None].astype(np.float32) * FACTORS)
        self._optimizer.apply(tape.gradient(loss, self._trained), self._trained)
        for variable, (_, _, removed) in zip(self.variables, steps, strict=True):
            if len(removed):
                variable.remove(keys_of(removed))

    def contents(self) -> list[Content]:
        """For each table, its keys in order, and the rows with slots."""
        return [content_of(variable) for variable in self.variables]


def content_of(variable: tf_embed.Variable) -> Content:
    """The keys of a table in order, and the rows with slots."""
    keys, rows, slots = (part.numpy() for part in variable.table.export()[:3])
    order = np.argsort(keys)
    return keys[order], np.concatenate([rows, slots], axis=1)[order]


def are_equal(one: list[Content], other: list[Content]) -> bool:
    """Whether tables have the same keys, rows and slots."""
    return all(
        np.array_equal(mine, its)
        for content, others in zip(one, other, strict=True)
        for mine, its in zip(content, others, strict=True)
    )

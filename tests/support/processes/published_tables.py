# SPDX-License-Identifier: Apache-2.0
"""Tables that are published and followed, and the values that tests compare."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import tf_embed

DIM = 4
TRACKED = tf_embed.TablePolicy(track_changes=True)


def rows_of(variable: tf_embed.Variable) -> dict[Any, list[float]]:
    """All rows by their keys."""
    keys, rows = (part.numpy().tolist() for part in variable.export())
    return dict(zip(keys, rows, strict=True))


class Change:
    """Changes a table at random.

    Args:
        seed: The seed of the draws.
        keys: The number of keys.
        is_string: Whether keys are strings.
    """

    def __init__(self, seed: int, keys: int = 300, is_string: bool = False) -> None:
        self._draw = np.random.default_rng(seed)
        self._keys = keys
        self._is_string = is_string

    def keys_of(self, numbers: Any) -> Any:
        """Numbers as keys."""
        if self._is_string:
            return np.array([f"key {number}" for number in numbers])
        return np.asarray(numbers, np.int64) * 1_000_003 - 50

    def __call__(self, variable: tf_embed.Variable) -> None:
        """Writes rows, removes rows, and writes some of the first again."""
        draw = self._draw
        numbers = draw.choice(self._keys, 40, replace=False)
        rows = draw.integers(-1000, 1000, [40, DIM])
        variable.upsert(self.keys_of(numbers), rows.astype(np.float32))
        variable.remove(self.keys_of(draw.choice(self._keys, 15, replace=False)))
        back = draw.choice(numbers, 5, replace=False)
        variable.upsert(self.keys_of(back), np.full([5, DIM], 7.0, np.float32))


def model_of(
    policy: tf_embed.TablePolicy | None = None,
    units: int = 3,
    names: tuple[str, ...] = ("a", "b"),
    optimizer: str | None = "adam",
) -> keras.Model:
    """A built model with two tables and dense weights, some of which are not trained."""
    inputs = [keras.Input((2,), dtype="int64", name=f"{name}_ids") for name in names]
    embedded = [
        tf_embed.layers.DynamicEmbedding(
            DIM, optimizer=optimizer, policy=policy, combiner="mean", name=name
        )(one)
        for name, one in zip(names, inputs, strict=True)
    ]
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()(embedded))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(units, "relu")(hidden))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


def fit(model: keras.Model, seed: int) -> None:
    """Trains a model on some examples."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(0, 200, [64, 2]) for _ in model.inputs]
    model.fit(ids, draw.normal(size=[64, 1]), verbose=0)


def answers(model: keras.Model) -> np.ndarray:
    """The predictions of a model for examples with unseen ids."""
    ids = [np.arange(400).reshape(200, 2) for _ in model.inputs]
    return model.predict(ids, verbose=0)

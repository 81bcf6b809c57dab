# SPDX-License-Identifier: Apache-2.0
"""The models that go through save paths, and comparisons of two models.

They look up three ids in a single table, which keeps statistics of their use. With another seed,
ids that were never seen have other rows.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.layers import DynamicEmbedding

ASPECTS = ("rows", "slots", "statistics", "step", "unknown ids")
WAYS = ("wrapper", "own")
KINDS = ("sequential", "functional", "subclassed", "list")

IDS = np.random.default_rng(7).integers(0, 40, [24, 3])
LABELS = np.random.default_rng(8).normal(size=24)
UNKNOWN = np.arange(1000, 1060).reshape(20, 3)
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


@keras.saving.register_keras_serializable(package="save_path_cases")
class Subclassed(keras.Model):
    """A subclassed model. Its class is registered, as a user must do."""

    def __init__(self, way: str, seed: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.way, self.seed = way, seed
        self.mine = embedding(way, seed)
        self.head = head()

    def call(self, ids: Any) -> Any:
        return self.head(keras.ops.reshape(self.mine(ids), [-1, 6]))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "way": self.way, "seed": self.seed}


@keras.saving.register_keras_serializable(package="save_path_cases")
class Listed(Subclassed):
    """A model with its table in a dict in a list, which Keras does not search for checkpoints."""

    def __init__(self, way: str, seed: int = 1, **options: Any) -> None:
        super().__init__(way, seed, **options)
        self.tables = [{"mine": self.mine}]
        del self.mine

    def call(self, ids: Any) -> Any:
        return self.head(keras.ops.reshape(self.tables[0]["mine"](ids), [-1, 6]))


def embedding(way: str, seed: int = 1, **options: Any) -> DynamicEmbedding:
    return DynamicEmbedding(
        **{
            "dim": 2,
            "initializer": keras.initializers.RandomUniform(seed=seed),
            "optimizer": keras.optimizers.Adam(0.1) if way == "own" else None,
            "policy": tf_embed.TablePolicy(eviction="epoch_lfu", steps_per_epoch=2),
            "name": "mine",
            **options,
        }
    )


def head() -> Any:
    return keras.layers.Dense(1, kernel_initializer="ones")


def untrained(way: str, kind: str = "functional", seed: int = 1, **options: Any) -> keras.Model:
    """A compiled model. With another seed, its unknown ids have other rows."""
    if kind in ("subclassed", "list"):
        model = (Subclassed if kind == "subclassed" else Listed)(way, seed)
        model(IDS[:1])
    else:
        ids = keras.Input([3], dtype=options.get("key_dtype", "int64"))
        layers = [embedding(way, seed, **options), keras.layers.Flatten(), head()]
        if kind == "sequential":
            model = keras.Sequential([ids, *layers])
        else:
            outputs: Any = ids
            for layer in layers:
                outputs = layer(outputs)
            model = keras.Model(ids, outputs)
    wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    model.compile("sgd" if way == "own" else wrapped, "mse")
    return model


def trained(way: str, kind: str = "functional", seed: int = 1, **options: Any) -> keras.Model:
    model = untrained(way, kind, seed, **options)
    model.fit(IDS, LABELS, **FIT)
    return model


def layer_of(model: keras.Model) -> DynamicEmbedding:
    return model.tables[0]["mine"] if isinstance(model, Listed) else model.get_layer("mine")


def content(model: keras.Model) -> list[np.ndarray]:
    """Keys, rows and slots, sorted by key."""
    keys, values, slots = layer_of(model).variable.table.export()[:3]
    order = np.argsort(keys)
    return [tf.gather(one, order).numpy() for one in (keys, values, slots)]


def statistics_of(model: keras.Model) -> np.ndarray:
    """The usage statistics of each row, sorted by key."""
    exported = layer_of(model).variable.table.export()
    return tf.gather(exported.statistics, np.argsort(exported.keys)).numpy()


def step_of(model: keras.Model) -> int:
    optimizer = layer_of(model).optimizer or model.optimizer
    return int(tf.convert_to_tensor(optimizer.iterations))


def kept(model: keras.Model, other: keras.Model) -> dict[str, bool]:
    """Whether two models are equal in each aspect, to the last bit."""
    keys, rows, slots = content(model)
    other_keys, other_rows, other_slots = content(other)
    lookups = [layer_of(one).variable.lookup(UNKNOWN).numpy() for one in (model, other)]
    return {
        "rows": np.array_equal(keys, other_keys) and np.array_equal(rows, other_rows),
        "slots": np.array_equal(slots, other_slots),
        "statistics": np.array_equal(statistics_of(model), statistics_of(other)),
        "step": step_of(model) == step_of(other),
        "unknown ids": np.array_equal(*lookups),
    }

# SPDX-License-Identifier: Apache-2.0
"""TFRA 0.8.1, if it is installed, and pairs of a TFRA variable and a tf_embed variable.

A test that imports this without TFRA is skipped. Importing TFRA changes Keras, so its tests need a
separate process and environment: `make test-tfra`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_embed
from support.oracles.reference import SEED

tfra = pytest.importorskip(
    "tensorflow_recommenders_addons", reason="TFRA is not installed here: make test-tfra"
).dynamic_embedding

MODULES = (tfra, tf_embed.tfra)

_numbers = itertools.count()


def unused_name() -> str:
    """A new name for variables: TFRA never forgets the names in use."""
    return f"beside_{next(_numbers)}"


class Pair:
    """A variable of each library.

    Args:
        shards: Number of shards.
        **options: The arguments of both variables.
    """

    def __init__(self, shards: int = 1, **options: Any) -> None:
        options = {"name": unused_name(), "devices": ["/CPU:0"] * shards, **options}
        policy = options.pop("restrict_policy", None)
        both = [
            module.Variable(
                restrict_policy=None if policy is None else getattr(module, policy), **options
            )
            for module in MODULES
        ]
        self.theirs, self.ours = both

    def call(self, verb: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of both variables."""
        for one in self:
            getattr(one, verb)(*args, **kwargs)

    def rows(self) -> list[dict[Any, list[Any]]]:
        """The rows that the variables export, by key."""
        return [rows_of(one) for one in self]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.theirs, self.ours))


def filled(dim: int = 3, known: int = 40, shards: int = 1, **options: Any) -> Pair:
    """Variables with random rows for keys from 0 on, and 0.25 for absent keys."""
    options.setdefault("initializer", 0.25)
    pair = Pair(dim=dim, shards=shards, **options)
    rows = np.random.default_rng(SEED).normal(size=[known, dim])
    pair.call("upsert", keys_of(range(known), pair.ours.key_dtype), cast(rows, pair))
    return pair


def rows_of(variable: Any) -> dict[Any, list[Any]]:
    """The rows that a variable exports, by key."""
    keys, rows = (part.numpy().tolist() for part in variable.export())
    return dict(zip(keys, rows, strict=True))


def keys_of(numbers: Any, dtype: Any = "int64") -> tf.Tensor:
    """Integers as keys of any dtype."""
    numbers = tf.convert_to_tensor(np.asarray(numbers, np.int64))
    dtype = tf.as_dtype(dtype)
    return tf.strings.as_string(numbers) if dtype == tf.string else tf.cast(numbers, dtype)


def cast(rows: Any, pair: Pair) -> tf.Tensor:
    """Rows in the pair's dtype."""
    return tf.cast(tf.convert_to_tensor(rows), pair.ours.value_dtype)


def step(module: Any, variable: Any, optimizer: Any, loss: Any, name: str = "x") -> None:
    """Makes an optimizer's step on the loss that `loss` computes, which may look rows up."""
    with tf.GradientTape() as tape:
        value = loss(lambda ids: module.embedding_lookup(variable, keys_of(ids), name=name))
    trained = [variable.get_trainable_by_name(name)]
    optimizer.apply_gradients(zip(tape.gradient(value, trained), trained, strict=True))

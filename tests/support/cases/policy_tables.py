# SPDX-License-Identifier: Apache-2.0
"""Small tables with a policy, and their steps."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed

SHARDS = (1, 3, 7)
ORDERS = ("lru", "lfu", "ttl", "score", "epoch_lru", "epoch_lfu")
COUNTED = ("admitted", "held_back", "refused", "evicted", "expired")


def variable(policy: Any = None, shards: int = 1, **options: Any) -> tf_embed.Variable:
    return tf_embed.Variable(
        **{"dim": 1, "devices": ["/CPU:0"] * shards, "policy": policy, **options}
    )


def train(v: tf_embed.Variable, keys: Any) -> None:
    """A step of SGD that subtracts 1 for each key."""
    keys = tf.constant(np.asarray(keys, np.int64))
    ones = tf.ones([*keys.shape, v.dim], v.value_dtype)
    v.table.apply(
        keys,
        ones,
        rule="sgd",
        hyper=tf.constant([1.0, 0.0], tf.float64),
        step=tf.constant(1, tf.int64),
    )


def upsert(v: tf_embed.Variable, keys: Any) -> None:
    v.upsert(keys, np.zeros([len(keys), v.dim], np.float32))


def keys_of(v: tf_embed.Variable) -> list[int]:
    return sorted(v.export()[0].numpy().tolist())


def popular_keys(rng: np.random.Generator, count: int, pool: int) -> list[int]:
    """Random keys, a few of them frequent and some negative."""
    return [int(key) % pool - pool // 3 for key in rng.zipf(1.2, count)]


@keras.saving.register_keras_serializable(package="policy_tables")
def score_of(keys: tf.Tensor) -> tf.Tensor:
    """A pseudo-random number, computed from the key."""
    return (keys * 7919) % 101 - 50


def scores_by_key(v: tf_embed.Variable, split_size: int = 16) -> dict[int, int]:
    assert v.policy is not None and v.policy.eviction is not None
    keys, scores = v.table.export_scores(v.policy.eviction, split_size)
    assert scores.dtype == tf.int64
    assert len(set(keys.numpy())) == len(keys)
    return dict(zip(keys.numpy().tolist(), scores.numpy().tolist(), strict=True))

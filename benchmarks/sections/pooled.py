# SPDX-License-Identifier: Apache-2.0
"""Bags of ids, summed, and an Adam step, compared with TFRA's embedding_lookup_sparse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from floors import FLOOR, Array
from ids import distribution, keys_of
from peers import ours, tfra
from rows import OURS, Row
from sections.steps import KEYS, SLOTS, TFRA
from sections.work import check_same, side_by_side
from settings import Settings

BAGS, LENGTH = 3277, 20  # 65,540 ids


def _bags(keys: np.ndarray) -> tuple[tf.Tensor, tf.SparseTensor]:
    """The same bags for both implementations: a tensor of bags of equal length; a sparse tensor."""
    dense = tf.constant(keys.reshape(BAGS, LENGTH))
    places = np.indices((BAGS, LENGTH)).reshape(2, -1).T
    return dense, tf.SparseTensor(places, keys, (BAGS, LENGTH))


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a dim, on tables of 10^6 keys that were each trained once."""
    dim = int(part)
    trainers: dict[str, Any] = {
        OURS: ours.PooledTrainer(dim, "Adam"),
        TFRA: tfra.PooledTrainer(dim, "Adam"),
        FLOOR: Array(KEYS, dim, SLOTS["Adam"]),
    }
    gradients = tf.random.normal([BAGS, dim], stddev=0.01)
    calls = {
        OURS: lambda dense, sparse: trainers[OURS].step(dense, gradients),
        TFRA: lambda dense, sparse: trainers[TFRA].step(sparse, gradients),
        FLOOR: lambda dense, sparse: trainers[FLOOR].step(dense, gradients),
    }
    for first in range(0, KEYS, BAGS * LENGTH):
        bags = _bags(keys_of(np.arange(first, first + BAGS * LENGTH) % KEYS))
        for call in calls.values():
            call(*bags)
    for name in ("1.2", "uniform"):
        ids = distribution(name, KEYS)
        yield side_by_side(
            "pooled",
            f"Adam, dim {dim}, {BAGS} bags of {LENGTH} ids, {ids.name}",
            calls,
            lambda ids=ids: _bags(ids.keys(BAGS * LENGTH)),
            ids=BAGS * LENGTH,
            rounds=settings.rounds,
            figures=lambda ratios, name=name: (
                {"pooled_adam_vs_tfra": ratios[TFRA]} if name == "1.2" else {}
            ),
        )
    check_same(trainers, distribution("uniform", KEYS).keys(1000))

# SPDX-License-Identifier: Apache-2.0
"""Memory of a table beyond keys, weights and slots, while it grows past 10^6 keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import machine
from grow import BATCH, give_back
from ids import keys_of
from machine import LoadWatch
from peers import ours
from rows import OURS, Row
from settings import Settings

FROM = 10**6
# Adam's rows have three times the weights.
KEYS = {"upsert": 10**7, "Adam": 3 * 10**6}


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Grows a table, by upsert or by the steps of an optimizer, and measures on the way."""
    how, dim = part.split()[0], int(part.split()[1])
    bytes_per_row = 8 + 4 * dim * (3 if how == "Adam" else 1)
    values = tf.random.stateless_normal([BATCH, dim], seed=[1, 2])

    watch = LoadWatch()
    tables, grow = [], None
    # A process has costs that occur only once: a first table, a traced function, an empty batch.
    for size in (BATCH, 0):
        tables.append(ours.Trainer(dim, "Adam") if how == "Adam" else ours.Table(dim))
        grow = tables[-1].step if how == "Adam" else tables[-1].upsert
        grow(tf.constant(keys_of(np.arange(size))), values[:size])
        grow.get_concrete_function(
            tf.TensorSpec([BATCH], tf.int64), tf.TensorSpec([BATCH, dim], tf.float32)
        )
    give_back()
    before = machine.resident_bytes()
    overheads: dict[int, float] = {}
    for end in range(BATCH, KEYS[how] + BATCH, BATCH):
        grow(tf.constant(keys_of(np.arange(end - BATCH, end))), values)
        if end >= FROM:
            give_back()
            overheads[end] = (machine.resident_bytes() - before) / end - bytes_per_row
    worst = max(overheads, key=lambda keys: overheads[keys])
    last = max(overheads)
    yield Row(
        "memory",
        f"{part}, {FROM:,} to {last:,} keys",
        "B/key",
        {OURS: overheads[worst], "mean": float(np.mean(list(overheads.values())))},
        watch.load(),
        figures={"overhead_bytes_per_key": overheads[worst]},
        note=f"worst at {worst:,} keys; {overheads[last]:.1f} at {last:,}",
    )

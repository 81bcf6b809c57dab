# SPDX-License-Identifier: Apache-2.0
"""Cost per id from 10^4 to 10^7 keys and from 1k to 1M ids, compared with an array's gather."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from ids import Uniform, keys_of
from machine import LoadWatch
from peers import ours
from rows import OURS, Row
from sections.work import fill
from settings import Settings
from timing import Point, time_rounds, worst_step

KEYS = (10**4, 10**5, 10**6, 10**7)
BATCHES = (1024, 8192, 65536, 1 << 20)
GATHER = "gather"


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a dim: a row for each pair of keys and ids, and a row for the worst step."""
    dim = int(part)
    tables = {}
    arrays = {}
    for keys in KEYS:
        tables[keys] = ours.Table(dim)
        fill([tables[keys].upsert], keys, dim)
        arrays[keys] = _array(keys, dim)
    gathers = {keys: _gather(array) for keys, array in arrays.items()}
    costs: dict[Point, float] = {}
    floors: dict[Point, float] = {}
    total = LoadWatch()
    for batch in BATCHES:
        for keys in KEYS:
            numbers = Uniform(keys)

            def draw(numbers=numbers, batch=batch) -> tuple[tf.Tensor, tf.Tensor]:
                drawn = numbers.numbers(batch)
                return tf.constant(drawn), tf.constant(keys_of(drawn))

            watch = LoadWatch()
            timed = time_rounds(
                {
                    OURS: lambda numbers, ids, table=tables[keys]: table.lookup(ids),
                    GATHER: lambda numbers, ids, gather=gathers[keys]: gather(numbers),
                },
                draw,
                rounds=settings.rounds,
                calls_per_round=max(1, min(16, 65536 // batch)),
                warm_up=2,
            )
            costs[keys, batch] = timed.median(OURS) / batch * 1e9
            floors[keys, batch] = timed.median(GATHER) / batch * 1e9
            yield Row(
                "scaling",
                f"lookup, {keys:,} keys, dim {dim}, {batch:,} ids",
                "ns/id",
                {OURS: costs[keys, batch], GATHER: floors[keys, batch]},
                watch.load(),
                ratios={GATHER: timed.ratio(GATHER, OURS)},
            )
    (before, after), worst = worst_step(costs, floors)
    yield Row(
        "scaling",
        f"worst step: from {before[0]:,} keys, {before[1]:,} ids "
        f"to {after[0]:,} keys, {after[1]:,} ids",
        "x",
        {OURS: costs[after] / costs[before], GATHER: floors[after] / floors[before]},
        total.load(),
        figures={"scaling_worst_step": worst},
    )


def _array(rows: int, dim: int) -> tf.Tensor:
    """An array on huge pages, like the rows of a table, so that both use the same memory."""
    memory = mmap.mmap(-1, 4 * rows * dim, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.float32).reshape(rows, dim)
    array.fill(0.5)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())  # no copy


def _gather(array: tf.Tensor):
    return tf.function(lambda numbers: tf.gather(array, numbers))

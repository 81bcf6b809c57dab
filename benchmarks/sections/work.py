# SPDX-License-Identifier: Apache-2.0
"""Helpers for all sections: fill tables with keys, draw batches, turn a measurement into a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from floors import FLOOR
from ids import keys_of
from machine import LoadWatch
from rows import OURS, Row
from timing import time_rounds

FILL_BATCH = 65536


def fill(verbs: Iterable[Callable[[tf.Tensor, tf.Tensor], Any]], keys: int, dim: int) -> None:
    """Calls verbs of (ids, rows) for the keys of the numbers 0 to keys - 1, in turn.

    In turn, because the host of a virtual machine may give the memory that is touched first more
    slowly for good: of two tables of 10^7 rows the first filled took up to three times as long.
    """
    verbs = list(verbs)
    values = tf.random.stateless_normal([FILL_BATCH, dim], seed=[1, 2], stddev=0.01)
    for first in range(0, keys, FILL_BATCH):
        ids = tf.constant(keys_of(np.arange(first, min(keys, first + FILL_BATCH))))
        for verb in verbs:
            verb(ids, values[: len(ids)])


def check_same(tables: Mapping[str, Any], ids: np.ndarray, tolerance: float = 1e-4) -> None:
    """Raises if the tables hold different rows, since their times could not be compared.

    The tolerance allows several dozen float32 steps, of weights of about 0.01 or more.
    """
    ours = tables[OURS].lookup(tf.constant(ids)).numpy()
    if not ours.any():
        raise RuntimeError("All rows are 0: nothing was stored.")
    for name, table in tables.items():
        if name == FLOOR:
            continue
        difference = np.abs(table.lookup(tf.constant(ids)).numpy() - ours).max()
        if difference > tolerance:
            raise RuntimeError(f"Rows of {name} differ from ours by {difference:g}.")


def side_by_side(
    section: str,
    case: str,
    calls: Mapping[str, Callable[..., Any]],
    draw: Callable[[], tuple[Any, ...]],
    *,
    ids: int,
    rounds: int,
    uncounted_calls: int = 0,
    figures: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda ratios: {},
    pids: Sequence[int] = (),
) -> Row:
    """Times implementations on the same batches.

    Args:
        section: The section of the row.
        case: The case of the row.
        calls: The implementations, tf_embed among them.
        draw: Makes the arguments of a call.
        ids: Number of ids in a call.
        rounds: Number of rounds.
        uncounted_calls: See `time_rounds`.
        figures: Figures from the ratios of other implementations to tf_embed.
        pids: The processes of the measurement, if there are others besides this process.

    Returns:
        Nanoseconds an id.
    """
    watch = LoadWatch(pids)
    timed = time_rounds(
        calls,
        draw,
        rounds=rounds,
        calls_per_round=max(1, min(8, 65536 // ids)),
        uncounted_calls=uncounted_calls,
        warm_up=2,
    )
    ratios = {name: timed.ratio(name, OURS) for name in calls if name != OURS}
    if FLOOR in calls:
        floors = figures({name: timed.ratio(name, FLOOR) for name in calls if name != FLOOR})
    else:
        floors = {}
    return Row(
        section=section,
        case=case,
        unit="ns/id",
        values={name: timed.median(name) / ids * 1e9 for name in calls},
        load=watch.load(),
        ratios=ratios,
        figures=figures(ratios),
        floors=floors,
    )

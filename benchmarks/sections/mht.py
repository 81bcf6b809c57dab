# SPDX-License-Identifier: Apache-2.0
"""Lookup and insert compared with TensorFlow's MutableHashTable."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from ids import distribution
from peers import mht, ours
from rows import OURS, Row
from sections.work import check_same, fill, side_by_side
from settings import Settings

PEER = "MutableHashTable"
BATCH = 65536
NAMES = {"lookup": "lookup", "upsert": "insert"}


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a number of keys."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    tables = {OURS: ours.Table(dim), PEER: mht.Table(dim)}
    fill([table.upsert for table in tables.values()], keys, dim)
    check_same(tables, distribution("uniform", keys).keys(1000))
    new = tf.random.normal([BATCH, dim])
    for ids in (distribution(name, keys) for name in ("uniform", "1.2")):
        for verb, name in NAMES.items():
            rest = (new,) if verb == "upsert" else ()
            yield side_by_side(
                "mht",
                f"{name}, {part}, {BATCH} ids, {ids.name}",
                {peer: getattr(table, verb) for peer, table in tables.items()},
                lambda ids=ids, rest=rest: (tf.constant(ids.keys(BATCH)), *rest),
                ids=BATCH,
                rounds=settings.rounds,
                figures=lambda ratios, ids=ids, name=name: (
                    {f"{name}_vs_mht": ratios[PEER]} if ids.name == "uniform" else {}
                ),
            )

# SPDX-License-Identifier: Apache-2.0
"""Lookup, upsert and accum compared with TFRA's, in graphs of the same process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from floors import FLOOR, Array
from ids import distribution
from peers import ours, tfra
from rows import OURS, Row
from sections.work import check_same, fill, side_by_side
from settings import Settings

DIM = 64
TFRA = "TFRA"


def _cases(part: str, more: bool) -> list[tuple[int, str]]:
    """Batch sizes and distributions of ids."""
    cases = [(65536, "uniform"), (65536, "1.2")]
    if part == "1e6x64" or more:
        cases += [(8192, "uniform"), (8192, "1.2")]
    if more:
        cases += [(65536, "1.05"), (1 << 20, "uniform"), (1 << 20, "1.2")]
    return cases


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a number of keys."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    tables = {OURS: ours.Table(dim), TFRA: tfra.Table(dim)}
    fill([table.upsert for table in tables.values()], keys, dim)
    check_same(tables, distribution("uniform", keys).keys(1000))
    measured: dict[str, Any] = {**tables, FLOOR: Array(keys, dim)}
    for batch, name in _cases(part, settings.more):
        ids = distribution(name, keys)
        case = f"{keys:.0e} keys, dim {dim}, {batch} ids, {ids.name}".replace("e+0", "e")

        def drawn(ids=ids, batch=batch) -> tf.Tensor:
            return tf.constant(ids.keys(batch))

        old = tf.random.normal([batch, dim])
        new = old + 0.5
        exists = tf.ones([batch], tf.bool)
        arguments = {
            "lookup": lambda drawn=drawn: (drawn(),),
            "upsert": lambda drawn=drawn, old=old: (drawn(), old),
            "accum": lambda drawn=drawn, rest=(old, new, exists): (drawn(), *rest),
        }
        for verb, draw in arguments.items():
            figure = _figure(verb, dim, batch, name)
            yield side_by_side(
                verb,
                case,
                {name: getattr(table, verb) for name, table in measured.items()},
                draw,
                ids=batch,
                rounds=settings.rounds,
                figures=lambda ratios, figure=figure: {figure: ratios[TFRA]} if figure else {},
            )


def _figure(verb: str, dim: int, batch: int, ids: str) -> str | None:
    if dim != DIM or ids != "uniform":
        return None
    if batch == 65536:
        return f"{verb}_vs_tfra"
    return "lookup_vs_tfra_8k" if (verb, batch) == ("lookup", 8192) else None

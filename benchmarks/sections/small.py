# SPDX-License-Identifier: Apache-2.0
"""Small batches: eager lookups, and the cost of an op in a graph compared with a no-op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from floors import FLOOR, ops
from ids import distribution
from machine import LoadWatch
from peers import mht, ours, tfra
from rows import OURS, Row
from sections.work import fill
from settings import Settings
from timing import Rounds, time_rounds

KEYS, DIM = 10**5, 64
TFRA, MHT, NOOP = "TFRA", "MutableHashTable", "no-op"
CHAIN = 100


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a number of ids."""
    ids = int(part)
    tables: dict[str, Any] = {OURS: ours.Table(DIM), TFRA: tfra.Table(DIM), MHT: mht.Table(DIM)}
    fill([table.upsert for table in tables.values()], KEYS, DIM)
    drawn = distribution("uniform", KEYS)
    lookups: dict[str, Callable[..., Any]] = {
        OURS: tables[OURS].variable.lookup,
        TFRA: tables[TFRA].variable.lookup,
        MHT: tables[MHT].table.lookup,
    }
    noop = _noop()
    watch = LoadWatch()
    timed = time_rounds(
        {**lookups, FLOOR: noop},
        lambda: (tf.constant(drawn.keys(ids)),),
        rounds=settings.rounds,
        calls_per_round=200,
    )
    ratios = {name: timed.ratio(name, OURS) for name in (TFRA, MHT, FLOOR)}
    yield Row(
        "small",
        f"eager lookup of {ids} ids",
        "us",
        {name: timed.median(name) * 1e6 for name in timed.times},
        watch.load(),
        ratios=ratios,
        figures={"eager256_vs_tfra": ratios[TFRA]},
        floors={"eager256_vs_tfra": timed.ratio(TFRA, FLOOR)},
        note="the floor is an eager call of the no-op",
    )
    calls = {**lookups, NOOP: noop}
    yield from _in_graph(calls, tf.constant(drawn.keys(ids)), settings)


def _noop() -> Callable[[tf.Tensor], tf.Tensor]:
    """A call of an op with the inputs and outputs of a lookup, which does nothing."""
    noop = ops().tf_embed_bench_noop
    owners, defaults = tf.zeros([0], tf.int32), tf.zeros([DIM])
    resource = tf.Variable(0.0)

    def call(ids: tf.Tensor) -> tf.Tensor:
        return noop(table=resource.handle, keys=ids, owners=owners, defaults=defaults, dim=DIM)[0]

    return call


def _in_graph(
    calls: dict[str, Callable[..., Any]], ids: tf.Tensor, settings: Settings
) -> Iterator[Row]:
    """Measures chains of ops, in which each op follows the previous op.

    The cost of an op is a hundredth of the cost of a call with 100 ops, as the goal defines it. The
    cost that an op adds to a chain, without the call, is a separate row.
    """
    watch = LoadWatch()
    timed = time_rounds(
        {
            f"{name} {length}": _chain(call, length)
            for name, call in calls.items()
            for length in (CHAIN, 2 * CHAIN)
        },
        lambda: (ids,),
        rounds=settings.rounds,
        calls_per_round=10,
        warm_up=2,
    )
    load = watch.load()
    short = {name: timed.times[f"{name} {CHAIN}"] for name in calls}
    added = {
        name: [
            long - short
            for long, short in zip(timed.times[f"{name} {2 * CHAIN}"], short[name], strict=True)
        ]
        for name in calls
    }
    for what, times in (("an op of a call of 100", short), ("what an op adds", added)):
        rounds = Rounds(times)
        over_noop = 1 / rounds.ratio(NOOP, OURS)
        yield Row(
            "small",
            f"lookup of {len(ids)} ids in a graph, {what}",
            "us",
            {name: rounds.median(name) / CHAIN * 1e6 for name in calls},
            load,
            ratios={name: rounds.ratio(name, OURS) for name in calls if name != OURS},
            figures={"ingraph_op_over_noop": over_noop} if times is short else {},
            note=f"ours / no-op {over_noop:.2f}",
        )


def _chain(call: Callable[[tf.Tensor], tf.Tensor], length: int) -> Callable[..., Any]:
    @tf.function
    def chain(ids: tf.Tensor) -> tf.Tensor:
        rows = call(ids)
        for _ in range(length - 1):
            with tf.control_dependencies([rows]):
                rows = call(ids)
        return rows

    return chain

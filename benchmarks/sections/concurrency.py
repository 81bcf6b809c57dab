# SPDX-License-Identifier: Apache-2.0
"""Two readers and an updater, in threads: the number of rows that are read, and of torn rows."""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ids import distribution, keys_of
from machine import Load, LoadWatch
from peers import ours, tfra
from rows import OURS, Row
from sections.work import fill
from settings import Settings
from timing import rotated

TFRA = "TFRA"
BATCH = 8192
READERS = 2
SECONDS = 1.0
TORN_ROWS_READ = 10**7


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures speed, then looks for torn rows."""
    keys, dim = (int(float(number)) for number in part.split("x"))
    yield from _speeds(keys, dim, 5 if settings.quick else 11)
    yield _torn(dim)


def together(works: Sequence[Callable[[int], Any]], seconds: float) -> list[int]:
    """Calls each work repeatedly in its own thread, and returns the number of calls of each."""
    counts = [0] * len(works)
    start, stop = threading.Barrier(len(works) + 1), threading.Event()
    errors: list[BaseException] = []

    def repeat(place: int) -> None:
        start.wait()
        try:
            while not stop.is_set():
                works[place](counts[place])
                counts[place] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=[place]) for place in range(len(works))]
    for thread in threads:
        thread.start()
    start.wait()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return counts


def _speeds(keys: int, dim: int, rounds: int) -> Iterator[Row]:
    tables = {OURS: ours.Table(dim), TFRA: tfra.Table(dim)}
    fill([table.upsert for table in tables.values()], keys, dim)
    # Readers beside updates of another table wait for nothing but the processors and the memory.
    other = ours.Table(dim)
    fill([other.upsert], keys, dim)
    ids = distribution("uniform", keys)
    values = tf.random.normal([BATCH, dim])
    alone: dict[str, list[float]] = {name: [] for name in tables}
    beside: dict[str, list[float]] = {name: [] for name in tables}
    beside_other: list[float] = []
    writes: dict[str, list[float]] = {name: [] for name in tables}
    watch = LoadWatch()
    for number in range(-1, rounds):
        batches = [[tf.constant(ids.keys(BATCH)) for _ in range(32)] for _ in range(READERS + 1)]
        for name in rotated(list(tables), number):
            table = tables[name]
            readers = [
                lambda count, table=table, own=own: table.lookup(own[count % len(own)])
                for own in batches[:READERS]
            ]

            def update(count: int, table=table, own=batches[-1]) -> None:
                table.upsert(own[count % len(own)], values)

            rate = BATCH / SECONDS / 1e6
            reads = sum(together(readers, SECONDS)) * rate
            *mixed, written = (count * rate for count in together([*readers, update], SECONDS))
            if name == OURS and number >= 0:
                apart = together([*readers, functools.partial(update, table=other)], SECONDS)
                beside_other.append(sum(apart[:READERS]) * rate / reads)
            if number >= 0:  # the first round warms up
                alone[name].append(reads)
                beside[name].append(sum(mixed))
                writes[name].append(written)
    load = watch.load()

    def row(case: str, found: dict[str, list[float]]) -> Row:
        pairs = zip(found[OURS], found[TFRA], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        figure = {"concurrent_reads_vs_tfra": ratio} if found is beside else {}
        medians = {name: statistics.median(one) for name, one in found.items()}
        return Row(
            "concurrency",
            f"{case}, {keys:,} keys, dim {dim}, {BATCH} ids",
            "M/s",
            medians,
            load,
            figures=figure,
            note=f"ours / TFRA {ratio:.2f}",
        )

    yield row("reads of 2 threads", alone)
    yield row("reads of 2 threads beside an updater", beside)
    yield row("updates beside 2 readers", writes)
    kept = {
        name: statistics.median(
            one / other for one, other in zip(beside[name], alone[name], strict=True)
        )
        for name in tables
    }
    floor = statistics.median(beside_other)
    yield Row(
        "concurrency",
        "share of reads kept beside an updater",
        "",
        kept,
        load,
        figures={"concurrent_reads_kept": kept[OURS]},
        floors={"concurrent_reads_kept": floor},
        note=f"{floor:.2f} beside updates of another table",
    )


def _torn(dim: int) -> Row:
    """Looks for torn rows of few keys, so that readers and updater use the same rows.

    All weights of a row are equal. The updater writes and trains rows in turn. SGD with equal
    gradients keeps the weights of a row equal.
    """
    trainer = ours.Trainer(dim, "SGD")
    upsert = tf.function(lambda ids, rows: trainer.variable.upsert(ids, rows) and None)
    keys = keys_of(np.arange(BATCH))
    order = np.random.default_rng(1)
    batches = [tf.constant(order.permutation(keys)) for _ in range(8)]
    upsert(batches[0], tf.ones([BATCH, dim]))
    torn, read = [0] * READERS, [0] * READERS

    def reader(place: int) -> Callable[[int], None]:
        def look(count: int) -> None:
            rows = trainer.lookup(batches[(count + place) % 8]).numpy()
            torn[place] += int((rows != rows[:, :1]).any(axis=1).sum())
            read[place] += BATCH

        return look

    ones = [tf.fill([BATCH, dim], float(number)) for number in range(4)]

    def update(count: int) -> None:
        ids = batches[count % 8]
        if count % 2:
            trainer.step(ids, ones[count % 4])
        else:
            upsert(ids, ones[count % 4])

    watch = LoadWatch()
    while sum(read) < TORN_ROWS_READ:
        together([*(reader(place) for place in range(READERS)), update], SECONDS)
    # Other work on the machine does not matter for torn rows.
    load = Load(watch.load().average, 0.0)
    return Row(
        "concurrency",
        f"torn rows of {sum(read):,} read beside an updater of the same {BATCH} keys",
        "rows",
        {OURS: sum(torn)},
        load,
        figures={"torn_rows": sum(torn)},
    )

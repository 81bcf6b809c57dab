# SPDX-License-Identifier: Apache-2.0
"""Steps of many tables in a layer, compared with FBGEMM's table-batched embedding on a CPU.

A part is a configuration, the kind of the tables, and an optimizer: "26x2048x1x64 arrays SGD" is 26
tables, 2048 bags each, 1 id a bag, dim 64. FBGEMM's tables are always arrays. If both together need
more than the available memory, FBGEMM runs first, and tf_embed later on the same batches.

The parts "tables" and "ids" measure tf_embed alone: the cost of an id by the number of tables, with
a constant number of ids and rows in all tables together; and by the number of ids.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from ids import Distribution, distribution, keys_of
from machine import Load, LoadWatch, available_bytes
from peers import ours
from peers.fbgemm import TablesServer
from rows import OURS, Row
from settings import Settings
from timing import rotated

ROWS = 10**6  # rows in a table
IDS = ("1.05", "1.2", "uniform")
FBGEMM = "FBGEMM"
FLOATS_OF_STATE = {"SGD": 0, "Adagrad": 1, "row-wise Adagrad": 0}  # for each weight
UNCOUNTED, COUNTED = 1, 2  # batches of a turn; at the first, caches are cold and threads asleep

Batch = tuple[np.ndarray, np.ndarray]  # indices and offsets


@dataclasses.dataclass(frozen=True)
class Shape:
    """A configuration."""

    tables: int
    bags: int
    length: int
    dim: int

    @property
    def ids(self) -> int:
        return self.tables * self.bags * self.length

    def draw(self, numbers: Distribution) -> Batch:
        """Draws a new batch of row numbers."""
        return numbers.numbers(self.ids), np.arange(0, self.ids + 1, self.length)

    def __str__(self) -> str:
        return f"T={self.tables}, B={self.bags}, L={self.length}, D={self.dim}"


@dataclasses.dataclass
class Times:
    """Seconds of each round."""

    forward: list[float] = dataclasses.field(default_factory=list)
    backward: list[float] = dataclasses.field(default_factory=list)  # with the update
    step: list[float] = dataclasses.field(default_factory=list)

    def add(self, forward: float, backward: float) -> None:
        self.forward.append(forward)
        self.backward.append(backward)
        self.step.append(forward + backward)


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a part."""
    if part == "tables":
        return _by_tables(settings)
    if part == "ids":
        return _by_ids(settings)
    shape, kind, optimizer = part.split(" ", 2)
    return _beside(Shape(*map(int, shape.split("x"))), kind, optimizer, settings)


class _Ours:
    """tf_embed's tables, with all of their rows."""

    def __init__(self, shape: Shape, kind: str, optimizer: str, num_rows: int = ROWS) -> None:
        self._key_of = keys_of if kind == "dynamic" else lambda numbers: numbers
        number = None if kind == "dynamic" else num_rows
        self._trainer = ours.TablesTrainer(optimizer, shape.tables, number, shape.dim, shape.bags)
        self.pids = (os.getpid(),)
        # After a step of empty bags, the tables know the state of a row.
        self.turn([(np.empty(0, np.int64), np.zeros(shape.tables * shape.bags + 1, np.int64))])
        zeros = tf.zeros([min(num_rows, 1 << 17), shape.dim])
        for table in self._trainer.layer.tables:
            for first in range(0, num_rows, len(zeros)):
                keys = self._key_of(np.arange(first, min(num_rows, first + len(zeros))))
                table.upsert(keys, zeros[: len(keys)], distinct=True)

    def turn(self, batches: list[Batch]) -> tuple[float, float]:
        """Mean seconds of the forward and of the rest of a step, without the first batch."""
        given = [self._tensors(batch) for batch in batches]
        forward = _mean_seconds(self._trainer.forward, given)
        return forward, _mean_seconds(self._trainer.step, given) - forward

    def pooled(self, batch: Batch) -> np.ndarray:
        return self._trainer.forward(*self._tensors(batch)).numpy()

    def close(self) -> None:
        pass

    def _tensors(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(self._key_of(batch[0])), tf.constant(batch[1])


class _Theirs:
    """FBGEMM's tables."""

    def __init__(self, shape: Shape, optimizer: str) -> None:
        self._server = TablesServer(optimizer, shape.tables, ROWS, shape.dim, shape.bags)
        self.pids = (os.getpid(), self._server.pid)
        self.close = self._server.close

    def turn(self, batches: list[Batch]) -> tuple[float, float]:
        """Mean seconds of the forward and of the rest of a step, as the server reports them."""
        for batch in batches:
            self._server.take(*batch)
        times = [self._server.step() for _ in batches]
        forward, backward = np.mean(times[UNCOUNTED:], axis=0)
        return float(forward), float(backward)

    def pooled(self, batch: Batch) -> np.ndarray:
        return self._server.pooled(*batch)


def _mean_seconds(call: Callable[..., object], batches: list[tuple[tf.Tensor, ...]]) -> float:
    for batch in batches[:UNCOUNTED]:
        call(*batch)
    begin = time.perf_counter()
    for batch in batches[UNCOUNTED:]:
        call(*batch)
    return (time.perf_counter() - begin) / max(1, len(batches) - UNCOUNTED)


def _beside(shape: Shape, kind: str, optimizer: str, settings: Settings) -> Iterator[Row]:
    makers: dict[str, Callable[[], _Ours | _Theirs]] = {
        FBGEMM: lambda: _Theirs(shape, optimizer),
        OURS: lambda: _Ours(shape, kind, optimizer),
    }
    values = shape.tables * ROWS * shape.dim * (1 + FLOATS_OF_STATE[optimizer])
    together = 2 * 4 * values * 1.1 < available_bytes()
    turns = [list(makers)] if together else [[name] for name in makers]
    times = {name: {ids: Times() for ids in IDS} for name in makers}
    loads: dict[str, list[Load]] = {ids: [] for ids in IDS}
    pooled = {}
    for names in turns:
        sides = {name: makers[name]() for name in names}
        pids = sorted({pid for side in sides.values() for pid in side.pids})
        for ids in IDS:
            numbers = distribution(ids, ROWS)
            watch = LoadWatch(pids)
            for number in range(-1, settings.rounds):
                batches = [shape.draw(numbers) for _ in range(UNCOUNTED + COUNTED)]
                for name in rotated(names, number):
                    found = sides[name].turn(batches)
                    if number >= 0:
                        times[name][ids].add(*found)
            loads[ids].append(watch.load())
        last = shape.draw(distribution("1.2", ROWS))
        for name, side in sides.items():
            pooled[name] = side.pooled(last)
            if not together:
                side.close()
    _check_same(pooled, optimizer)
    for ids in IDS:
        of_ids = {name: found[ids] for name, found in times.items()}
        case = f"{kind}, {optimizer}, {shape}, {distribution(ids, ROWS).name}"
        yield from _rows_of(case, f"tbe_{kind}_vs_fbgemm", of_ids, shape.ids, loads[ids], together)


def _rows_of(
    case: str, figure: str, times: Mapping[str, Times], ids: int, loads: list[Load], together: bool
) -> Iterator[Row]:
    load = max(loads, key=lambda one: one.others)
    for what in ("forward", "backward", "step"):
        found = {name: getattr(one, what) for name, one in times.items()}
        pairs = zip(found[FBGEMM], found[OURS], strict=True)
        ratio = statistics.median(theirs / own for theirs, own in pairs)
        yield Row(
            section="tbe",
            case=f"{case}: {'backward and update' if what == 'backward' else what}",
            unit="ns/id",
            values={name: statistics.median(one) / ids * 1e9 for name, one in found.items()},
            load=load,
            ratios={FBGEMM: ratio},
            figures={figure: ratio} if what == "step" else {},
            note="" if together else "one after the other",
        )


def _check_same(pooled: Mapping[str, np.ndarray], optimizer: str) -> None:
    """Raises if the two differ, because both have made the same steps."""
    difference = np.abs(pooled[OURS] - pooled[FBGEMM]).max()
    largest = np.abs(pooled[FBGEMM]).max()
    if not largest or difference > 1e-3 * largest:
        raise RuntimeError(
            f"Pooled rows of {optimizer} differ from FBGEMM's by {difference:g} of {largest:g}."
        )


# tf_embed alone: arrays, a given number of rows in all tables, row-wise Adagrad, uniform ids.

ALL_ROWS = 1 << 20
NUMBERS_OF_TABLES = tuple(1 << i for i in range(8))
NUMBERS_OF_IDS = tuple(1 << i for i in range(13, 20))


def _alone(cases: Mapping[int, Shape], settings: Settings) -> tuple[dict[int, float], Load]:
    """Nanoseconds an id in the steps of each case, the median of the rounds. Cases take turns."""
    watch = LoadWatch()
    found: dict[int, list[float]] = {name: [] for name in cases}
    sides = {
        name: (
            _Ours(shape, "arrays", "row-wise Adagrad", ALL_ROWS // shape.tables),
            distribution("uniform", ALL_ROWS // shape.tables),
        )
        for name, shape in cases.items()
    }
    names = list(cases)
    for number in range(-1, settings.rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            side, numbers = sides[name]
            counted = COUNTED * max(1, (1 << 16) // cases[name].ids)
            batches = [cases[name].draw(numbers) for _ in range(UNCOUNTED + counted)]
            if number >= 0:
                found[name].append(sum(side.turn(batches)) / cases[name].ids * 1e9)
            else:
                side.turn(batches)
    return {name: statistics.median(one) for name, one in found.items()}, watch.load()


def _by_tables(settings: Settings) -> Iterator[Row]:
    ids, length, dim = 1 << 17, 4, 64
    cases = {one: Shape(one, ids // one // length, length, dim) for one in NUMBERS_OF_TABLES}
    costs, load = _alone(cases, settings)
    for number, cost in costs.items():
        over = cost / costs[1]
        yield Row(
            section="tbe",
            case=f"{number} tables, {ids} ids in bags of {length}, {ALL_ROWS} rows in all",
            unit="ns/id",
            values={OURS: cost},
            load=load,
            figures={"tbe_tables_over_one": over},
            note=f"{over:.2f} of one table's",
        )


def _by_ids(settings: Settings) -> Iterator[Row]:
    tables, length, dim = 8, 4, 64
    cases = {one: Shape(tables, one // tables // length, length, dim) for one in NUMBERS_OF_IDS}
    costs, load = _alone(cases, settings)
    before = None
    for number, cost in costs.items():
        over = 0.0 if before is None else cost / before
        yield Row(
            section="tbe",
            case=f"{number} ids in bags of {length}, {tables} tables, {ALL_ROWS} rows in all",
            unit="ns/id",
            values={OURS: cost},
            load=load,
            figures={"tbe_ids_worst_step": over} if before else {},
            note=f"{over:.2f} of half as many" if before else "",
        )
        before = cost

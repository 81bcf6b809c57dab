# SPDX-License-Identifier: Apache-2.0
"""Times several implementations on the same work, side by side."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Seconds(float):
    """A duration that another process has measured."""


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The times of each implementation, one for each round.

    Attributes:
        times: For each implementation its times, in the order of the rounds.
    """

    times: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """The median time of an implementation."""
        return statistics.median(self.times[name])

    def ratio(self, name: str, over: str) -> float:
        """The median of the rounds' ratios, in which the load of the machine cancels out."""
        pairs = zip(self.times[name], self.times[over], strict=True)
        return statistics.median(one / other for one, other in pairs)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names, rotated, so that each is first, second, ... equally often."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def _said(answer: Any) -> float:
    return answer if isinstance(answer, Seconds) else 0.0


def time_rounds(
    calls: Mapping[str, Callable[..., Any]],
    draw: Callable[[], tuple[Any, ...]],
    *,
    rounds: int,
    calls_per_round: int = 1,
    uncounted_calls: int = 0,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Calls each implementation with the same fresh batches, in rotated order.

    Args:
        calls: The implementations. A call is timed here, unless it gives `Seconds`.
        draw: Makes a batch, the arguments of a call. Not timed.
        rounds: The number of counted rounds.
        calls_per_round: Batches in a round; more than one if a call is short.
        uncounted_calls: Further batches before them, in each turn of an implementation. An
            implementation in another process sleeps between its turns, and starts with cold caches.
        warm_up: Rounds before the counted rounds, which trace functions and touch memory.
        clock: Returns the time in seconds.

    Returns:
        Seconds a call.
    """
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(-warm_up, rounds):
            batches = [draw() for _ in range(uncounted_calls + calls_per_round)]
            for name in rotated(names, number):
                call = calls[name]
                for batch in batches[:uncounted_calls]:
                    call(*batch)
                begin = clock()
                said = sum(_said(call(*batch)) for batch in batches[uncounted_calls:])
                seconds = said or clock() - begin
                if number >= 0:
                    times[name].append(seconds / calls_per_round)
    finally:
        gc.enable()
    return Rounds(times)


Point = tuple[int, int]  # number of keys, number of ids


def worst_step(
    costs: Mapping[Point, float], floors: Mapping[Point, float]
) -> tuple[tuple[Point, Point], float]:
    """The step to the next larger number of keys or of ids with the greatest rise of the cost.

    Args:
        costs: Cost per id at each point of a grid.
        floors: Cost per id of a baseline, which shows the behavior of the machine. If the baseline
            rises too, the rise of a step is divided by it. If it falls, because a call has more
            ids, it is ignored.

    Returns:
        The two points, and the factor.
    """
    next_keys, next_ids = (
        dict(itertools.pairwise(sorted({point[axis] for point in costs}))) for axis in range(2)
    )
    steps = {}
    for keys, ids in costs:
        for to in ((next_keys.get(keys), ids), (keys, next_ids.get(ids))):
            if to in costs:
                floor = max(1.0, floors[to] / floors[keys, ids])
                steps[(keys, ids), to] = costs[to] / costs[keys, ids] / floor
    worst = max(steps, key=lambda step: steps[step])
    return worst, steps[worst]

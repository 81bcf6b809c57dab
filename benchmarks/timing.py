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
    """The duration that a call in another process reports itself."""


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The times of each implementation, one a round; those of a round belong together.

    Attributes:
        times: For each implementation its times, in the order of the rounds.
    """

    times: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """The median time of an implementation."""
        return statistics.median(self.times[name])

    def ratio(self, name: str, over: str) -> float:
        """The median of the ratios of each round: load of the machine in a round cancels out."""
        pairs = zip(self.times[name], self.times[over], strict=True)
        return statistics.median(one / other for one, other in pairs)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names, begun at another one: each comes first, second, ... equally often."""
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
        rounds: How many rounds are counted.
        calls_per_round: Batches of a round; more than one if a call is short.
        uncounted_calls: Further batches before them, in each turn of an implementation. One that
            has a process of its own sleeps between its turns, and wakes up with cold caches.
        warm_up: Rounds before them, in which functions are traced and memory is touched.
        clock: Seconds.

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
    """The step to the next larger number of keys or of ids at which a cost rises most.

    Args:
        costs: Cost per id at each point of a grid.
        floors: The same of a baseline that shows how the machine itself behaves. If that rises
            too, a step counts by so much less; if it falls, since a call is spread over more ids,
            that says nothing about the cost.

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

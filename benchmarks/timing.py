"""Times several implementations on the same work, side by side."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


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
        """The median of the ratios of each round: what the machine did in a round cancels out."""
        pairs = zip(self.times[name], self.times[over], strict=True)
        return statistics.median(one / other for one, other in pairs)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names, begun at another one: each comes first, second, ... equally often."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def time_rounds(
    calls: Mapping[str, Callable[..., Any]],
    draw: Callable[[], tuple[Any, ...]],
    *,
    rounds: int,
    calls_per_round: int = 1,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Calls each implementation with the same fresh batches, in rotated order.

    Args:
        calls: The implementations.
        draw: Makes a batch, the arguments of a call. Not timed.
        rounds: How many rounds are counted.
        calls_per_round: Batches of a round; more than one where a call is short.
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
            batches = [draw() for _ in range(calls_per_round)]
            for name in rotated(names, number):
                call = calls[name]
                begin = clock()
                for batch in batches:
                    call(*batch)
                seconds = (clock() - begin) / calls_per_round
                if number >= 0:
                    times[name].append(seconds)
    finally:
        gc.enable()
    return Rounds(times)

# SPDX-License-Identifier: Apache-2.0
"""Batches of ids: the keys of a table that a step looks up."""

from __future__ import annotations

import abc

import numpy as np

_SCATTER = np.uint64(0x9E3779B97F4A7C15)


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Realistic keys: unordered 64-bit numbers. An odd factor modulo 2**64 is invertible."""
    return (numbers.astype(np.uint64) * _SCATTER).view(np.int64)


class Distribution(abc.ABC):
    """The frequency of each of the numbers 0 to count - 1."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.count = count
        self._random = np.random.default_rng(seed)

    @abc.abstractmethod
    def numbers(self, size: int) -> np.ndarray:
        """Draws a new batch."""

    def keys(self, size: int) -> np.ndarray:
        """Draws a new batch, as keys."""
        return keys_of(self.numbers(size))


class Uniform(Distribution):
    """Each number equally often."""

    name = "uniform"

    def numbers(self, size: int) -> np.ndarray:
        return self._random.integers(self.count, size=size)


class Zipf(Distribution):
    """The k-th of `count` numbers with a chance proportional to k ** -exponent."""

    def __init__(self, count: int, exponent: float, seed: int = 1) -> None:
        super().__init__(count, seed)
        self.name = f"Zipf {exponent:g}"
        sums = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
        self._chances = sums / sums[-1]

    def numbers(self, size: int) -> np.ndarray:
        """Draws numbers that are not in order of frequency, so hot rows are not adjacent."""
        ranks = np.searchsorted(self._chances, self._random.random(size))
        return (ranks * self._step()) % self.count

    def _step(self) -> int:
        """A number without a common factor with `count`, so that multiplication is invertible."""
        step = int(self.count * 0.6180339887) | 1
        while np.gcd(step, self.count) != 1:
            step += 2
        return step


def distribution(name: str, count: int) -> Distribution:
    """`uniform`, or the exponent of a Zipf distribution."""
    return Uniform(count) if name == "uniform" else Zipf(count, float(name))

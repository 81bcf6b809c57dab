# SPDX-License-Identifier: Apache-2.0
"""The oracle: a table as a dict and NumPy, and the formulas of initializers.

This module does not import tf_embed. The initializers follow the description in
cc/core/rows/initializer.h: SplitMix64 in Python's integers, the normal quantile from Python's
standard library. The oracle of optimizers is Keras: see optimizer_oracle.py.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SEED = int(os.environ.get("TF_EMBED_TEST_SEED", "20130101"))

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Keys that a table would lose if it reserved a key to mark empty or deleted slots.
EXTREME_KEYS = {
    "int64": [0, -1, -2, 1, -(2**63), -(2**63) + 1, 2**63 - 1, 2**63 - 2, 2**31, -(2**31) - 1],
    "int32": [0, -1, -2, 1, -(2**31), -(2**31) + 1, 2**31 - 1, 2**31 - 2],
    "uint64": [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2],
    "uint32": [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2],
}


# Initializers.


def mix64(x: int) -> int:
    """The output function of SplitMix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def table_id_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def unit_numbers(seed: int, table_id: int, key: int, dim: int) -> list[float]:
    """The uniform numbers of a key's row, in (0, 1)."""
    table = mix64(mix64((seed + _GOLDEN) & _MASK) ^ (table_id & _MASK))
    state = mix64((table + mix64((key + _GOLDEN) & _MASK)) & _MASK)
    numbers = []
    for lane in range(dim):
        random = mix64((state + (lane + 1) * _GOLDEN) & _MASK)
        numbers.append(((random >> 12) + 0.5) * 2.0**-52)
    return numbers


def uniform_row(name: str, seed: int, key: int, dim: int, low: float, high: float) -> np.ndarray:
    return np.array(
        [low + (high - low) * u for u in unit_numbers(seed, table_id_of(name), key, dim)]
    )


def normal_row(
    name: str, seed: int, key: int, dim: int, mean: float, stddev: float, truncated: bool = False
) -> np.ndarray:
    standard = statistics.NormalDist()
    below, between = standard.cdf(-2.0), standard.cdf(2.0) - standard.cdf(-2.0)
    units = unit_numbers(seed, table_id_of(name), key, dim)
    if truncated:
        units = [below + between * u for u in units]
    return np.array([mean + stddev * standard.inv_cdf(u) for u in units])


# The table.


class Table:
    """Rows in a dict.

    Args:
        dim: Number of weights in a row.
        dtype: Their dtype.
        initial: The row of an absent key: a number, or a function of the key.
    """

    def __init__(
        self, dim: int, dtype: Any = np.float32, initial: float | Callable[[int], Any] = 0.0
    ) -> None:
        self.dim = dim
        self.dtype = np.dtype(dtype)
        self.initial = initial if callable(initial) else lambda key: np.full(dim, initial)
        self.rows: dict[int, np.ndarray] = {}

    def initial_row(self, key: int) -> np.ndarray:
        return np.asarray(self.initial(key)).astype(self.dtype)

    def find(self, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        keys = np.asarray(keys)
        flat = [int(key) for key in keys.flat]
        rows = [self.rows[key] if key in self.rows else self.initial_row(key) for key in flat]
        values = np.array(rows, self.dtype).reshape(*keys.shape, self.dim)
        return values, np.array([key in self.rows for key in flat], bool).reshape(keys.shape)

    def find_or_insert(self, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        found = self.find(keys)
        for key in np.asarray(keys).flat:
            self.rows.setdefault(int(key), self.initial_row(int(key)))
        return found

    def upsert(self, keys: Any, values: Any) -> None:
        for key, row in self._pairs(keys, values):
            self.rows[key] = row.copy()

    def accum(self, keys: Any, values: Any, exists: Any) -> None:
        for (key, row), seen in zip(self._pairs(keys, values), np.ravel(exists), strict=True):
            if seen and key in self.rows:
                self.rows[key] = self.rows[key] + row
            elif not seen and key not in self.rows:
                self.rows[key] = row.copy()

    def erase(self, keys: Any) -> None:
        for key in np.asarray(keys).flat:
            self.rows.pop(int(key), None)

    def clear(self) -> None:
        self.rows.clear()

    def descend(self, keys: Any, gradients: Any, rate: float) -> None:
        """A step of SGD."""
        for key, gradient in self._pairs(keys, gradients):
            self.rows[key] = self.rows.get(key, self.initial_row(key)) - rate * gradient

    def _pairs(self, keys: Any, rows: Any) -> list[tuple[int, np.ndarray]]:
        rows = np.asarray(rows).astype(self.dtype).reshape(-1, self.dim)
        return list(zip((int(key) for key in np.asarray(keys).flat), rows, strict=True))


def sorted_rows(keys: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """An export in the order of its keys."""
    keys, values = np.asarray(keys), np.asarray(values)
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def random_keys(
    rng: np.random.Generator, count: int, pool: Sequence[int], dtype: Any = np.int64
) -> np.ndarray:
    """Keys drawn from a pool, with duplicates."""
    return np.array([pool[i] for i in rng.integers(0, len(pool), count)], dtype)

# SPDX-License-Identifier: Apache-2.0
"""The oracle: a table as a dict and NumPy, and the formulas of optimizers and initializers.

Nothing here is taken from tf_embed. The optimizers are Keras's formulas on the rows of a step
alone (lazy), in float64. The initializers follow the words of
cc/core/rows/initializer.h: SplitMix64 in Python's integers, the normal quantile from Python's
standard library.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SEED = int(os.environ.get("TF_EMBED_TEST_SEED", "20130101"))

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# The keys that a table with an empty or a deleted mark among its keys would lose.
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


# Optimizers. A rule has `slots(dim)`, the slots of a new row, and `step(w, g, slots, t, h)`, which
# changes w and slots in place: step number t (from 1), learning rate h.


class SGD:
    def __init__(self, momentum: float = 0.0, nesterov: bool = False) -> None:
        self.momentum, self.nesterov = momentum, nesterov

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.zeros(dim)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        (m,) = slots
        m[:] = self.momentum * m - h * g
        w += self.momentum * m - h * g if self.nesterov else m


class Adagrad:
    def __init__(self, initial: float = 0.1, epsilon: float = 1e-7) -> None:
        self.initial, self.epsilon = initial, epsilon

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.full(dim, self.initial)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        (s,) = slots
        s += g * g
        w -= h * g / np.sqrt(s + self.epsilon)


class RowwiseAdagrad(Adagrad):
    def __init__(self, initial: float = 0.0, epsilon: float = 1e-8) -> None:
        super().__init__(initial, epsilon)

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.full(1, self.initial)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        (s,) = slots
        s += np.mean(g * g)
        w -= h * g / (np.sqrt(s) + self.epsilon)


class Adam:
    def __init__(
        self,
        amsgrad: bool = False,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
    ) -> None:
        self.amsgrad, self.epsilon, self.weight_decay = amsgrad, epsilon, weight_decay
        self.beta_1, self.beta_2 = beta_1, beta_2

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.zeros(dim) for _ in range(3)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        m, v, v_max = slots
        w -= w * self.weight_decay * h  # AdamW: decoupled, before the step
        m += (g - m) * (1.0 - self.beta_1)
        v += (g * g - v) * (1.0 - self.beta_2)
        np.maximum(v_max, v, out=v_max)
        # Keras rounds the betas to float32 here, and only here.
        beta_1, beta_2 = float(np.float32(self.beta_1)), float(np.float32(self.beta_2))
        alpha = h * math.sqrt(1.0 - beta_2**t) / (1.0 - beta_1**t)
        w -= alpha * m / (np.sqrt(v_max if self.amsgrad else v) + self.epsilon)


class SmartDecayAdam(Adam):
    """Adam, with a step without a gradient for each that left the row out."""

    def slots(self, dim: int) -> list[np.ndarray]:
        return [*super().slots(dim), np.zeros(1)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        *moments, last = slots
        for missed in range(int(last[0]) + 1, t) if last[0] else ():
            super().step(w, np.zeros_like(g), moments, missed, h)
        super().step(w, g, moments, t, h)
        last[0] = t


class RMSprop:
    def __init__(self, rho: float = 0.9, momentum: float = 0.0, centered: bool = False) -> None:
        self.rho, self.momentum, self.centered = rho, momentum, centered
        self.epsilon = 1e-3 if centered else 1e-7  # the variance of one gradient is 0

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.zeros(dim) for _ in range(3)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        v, m, a = slots
        v[:] = self.rho * v + (1.0 - self.rho) * g * g
        a[:] = self.rho * a + (1.0 - self.rho) * g
        variance = v - a * a if self.centered else v
        m[:] = self.momentum * m + h * g / np.sqrt(variance + self.epsilon)
        w -= m


class Ftrl:
    def __init__(
        self,
        initial: float = 0.1,
        power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        l2_shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        self.initial, self.power, self.beta = initial, -power, beta
        self.l1, self.l2, self.l2_shrinkage = l1, l2, l2_shrinkage

    def slots(self, dim: int) -> list[np.ndarray]:
        return [np.full(dim, self.initial), np.zeros(dim)]

    def step(self, w: np.ndarray, g: np.ndarray, slots: list, t: int, h: float) -> None:
        n, z = slots
        new_power = (n + g * g) ** self.power
        z += g + 2.0 * self.l2_shrinkage * w - (new_power - n**self.power) / h * w
        w[:] = np.clip(z, -self.l1, self.l1) - z
        w /= new_power / h + 2.0 * self.l2 + self.beta / h
        n += g * g


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
        self.slots: dict[int, list[np.ndarray]] = {}

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
            self.slots.pop(int(key), None)

    def clear(self) -> None:
        self.rows.clear()
        self.slots.clear()

    def apply(self, keys: Any, gradients: Any, rule: Any, t: int, h: float) -> None:
        """One step: equal keys' gradients are summed, then the rule runs once on each row."""
        sums: dict[int, np.ndarray] = {}
        for key, gradient in self._pairs(keys, gradients, np.float64):
            sums[key] = sums.get(key, 0.0) + gradient
        for key, gradient in sums.items():
            w = self.rows.get(key, self.initial_row(key)).astype(np.float64)
            slots = self.slots.setdefault(key, rule.slots(self.dim))
            rule.step(w, gradient, slots, t, h)
            self.rows[key] = w.astype(self.dtype)

    def _pairs(self, keys: Any, rows: Any, dtype: Any = None) -> list[tuple[int, np.ndarray]]:
        rows = np.asarray(rows).astype(dtype or self.dtype).reshape(-1, self.dim)
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

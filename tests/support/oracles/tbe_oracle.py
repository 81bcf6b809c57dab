# SPDX-License-Identifier: Apache-2.0
"""The oracle of FBGEMM's optimizers: an array of rows and the formulas, in NumPy and float64.

This module imports neither tf_embed nor FBGEMM. `Oracle` trains an array. All of its rows exist
from the start. A rule is a function of a single row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass
class Row:
    """A row and its state. State starts at 0, and the average as the oracle sets it."""

    w: np.ndarray
    m: np.ndarray
    v: np.ndarray
    z: np.ndarray
    s: float = 0.0
    prev: int = 0
    n: float = 0.0


def norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(x * x)))


def sgd(row: Row, g: np.ndarray, t: int, h: float) -> None:
    row.w -= h * g


def adagrad(row: Row, g: np.ndarray, t: int, h: float, eps: float = 1e-8) -> None:
    row.v += g**2
    row.w -= h * g / (np.sqrt(row.v) + eps)


def adam(
    row: Row,
    g: np.ndarray,
    t: int,
    h: float,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    by_row: bool = False,
    partial: bool = False,
    lamb: bool = False,
) -> None:
    row.n += 1
    k = row.n if by_row else t
    row.m[:] = beta1 * row.m + (1 - beta1) * g
    row.v[:] = beta2 * row.v + (1 - beta2) * (np.mean(g**2) if partial else g**2)
    r = row.m / (1 - beta1**k) / (np.sqrt(row.v / (1 - beta2**k)) + eps) + weight_decay * row.w
    trust = 1.0
    if lamb and norm(row.w) > 0 and norm(r) > 0:
        trust = norm(row.w) / norm(r)
    row.w -= h * trust * r


def lars(
    row: Row,
    g: np.ndarray,
    t: int,
    h: float,
    momentum: float = 0.9,
    eta: float = 0.001,
    weight_decay: float = 0.0,
) -> None:
    divisor = norm(g) + weight_decay * norm(row.w)
    a = h * eta * norm(row.w) / divisor if norm(row.w) > 0 and divisor > 0 else h
    row.m[:] = momentum * row.m + a * (g + weight_decay * row.w)
    row.w -= row.m


def rowwise_adagrad(
    row: Row,
    g: np.ndarray,
    t: int,
    h: float,
    eps: float = 1e-8,
    mode: str = "none",
    weight_decay: float = 0.0,
    max_norm: float = 0.0,
    start_iter: int = 0,
    lower_bound: float = 0.0,
    inner: str = "none",
    halflife: float = -1,
    adjustment_iter: int = -1,
    adjustment_ub: float = 1.0,
    rates: str = "equal",
    threshold: float = 0.0,
    is_ratio: bool = False,
    max_counter: float = 1.0,
    coefficient: float = 0.0,
) -> None:
    decay = weight_decay
    l2 = mode == "l2" or (mode in ("counter", "cowclip") and inner == "l2")
    q = g + decay * row.w if l2 else g
    row.s += np.mean(q**2)
    m = h / (np.sqrt(row.s) + eps)
    rate, keep = m, 1.0
    if mode == "l2":
        keep = 1 - m * decay
    elif mode == "decouple":
        keep = 1 - h * decay
    elif mode == "global":
        keep = 1 - h * decay
        if t >= start_iter:
            if row.prev:
                keep *= max(lower_bound, (1 - h * decay) ** max(t - row.prev - 1, 0))
            row.prev = t
    elif mode in ("counter", "cowclip"):
        gap = t - row.prev if row.prev else 1
        if halflife > 0:
            row.n = 1 + 2.0 ** (-gap / halflife) * row.n
        else:
            row.n = 1 if halflife == 0 else row.n + 1
        row.prev = t
        if mode == "cowclip":
            clip = row.n * max(coefficient * norm(row.w), lower_bound)
            rate = m * (min(1.0, clip / norm(q)) if norm(q) > 0 else 1.0)
            keep = {"none": 1.0, "l2": 1 - decay * rate, "decouple": 1 - decay * h}[inner]
        elif adjustment_iter <= 0 or t > adjustment_iter:
            frequency = halflife / row.n if halflife > 0 else 1.0
            if row.n > (np.floor(threshold * max_counter) if is_ratio else threshold):
                up = (max_counter / (row.n + 1)) ** adjustment_ub
                rate = {
                    "equal": m,
                    "increase": m * np.clip(up, 1, 10),
                    "decrease": m * np.clip(1 / up, 0.1, 1),
                    "sgd": h / (np.sqrt(adjustment_ub * row.n) + eps),
                }[rates]
            if inner == "adagradw":
                if halflife == -1:
                    rate = m * np.sqrt(row.n)
                elif halflife == -2:
                    rate = min(h * row.n, adjustment_ub) / (np.sqrt(row.s) + eps)
                keep = 1 - decay * h
                lazy = keep ** (min(gap, t - adjustment_iter) - 1)
                keep, rate = keep * lazy, rate * lazy
            elif inner == "l2":
                keep = 1 - frequency * decay * m
            elif inner == "decouple":
                keep = 1 - frequency * decay * h
    row.w[:] = keep * row.w - rate * g
    if max_norm > 0 and norm(row.w) > max_norm:
        row.w *= max_norm / norm(row.w)


class Oracle:
    """An array of rows in training.

    Args:
        rows: The first rows, [n, dim].
        rule: A rule of this module.
        average: The ensemble's step_ema, step_swap, step_start, step_ema_coef; without step_swap
            for the average in place; None for no average.
        forgets: Whether the ensemble's average is 0 again after each of its updates.
        counter_every: The number of steps between two updates of the largest count.
        state_dtypes: The dtypes to which state is rounded after each step, by its name in Row.
        **arguments: The rule's arguments.
    """

    def __init__(
        self,
        rows: np.ndarray,
        rule: Any,
        average: Any = None,
        forgets: bool = False,
        counter_every: int = 0,
        state_dtypes: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        self.rows = [Row(w.astype(np.float64), *(np.zeros(len(w)) for _ in range(3))) for w in rows]
        self.rule, self.average, self.forgets = rule, average, forgets
        self.counter_every, self.arguments = counter_every, arguments
        self.state_dtypes = state_dtypes or {}
        self.steps = 0

    @property
    def weights(self) -> np.ndarray:
        return np.stack([row.w for row in self.rows])

    def step(self, ids: np.ndarray, gradients: np.ndarray, h: float, dtype: Any = None) -> None:
        """Makes a step. With a dtype, all rows are rounded to it afterwards."""
        self.steps += 1
        for one in np.unique(ids):
            g = gradients[ids == one].astype(np.float64).sum(axis=0)
            self.rule(self.rows[one], g, self.steps, h, **self.arguments)
        self._round_states()
        self._finish(self.steps + 1)
        self._round_states()
        if dtype is not None:
            for row in self.rows:
                row.w[:] = row.w.astype(dtype)

    def _round_states(self) -> None:
        for name, dtype in self.state_dtypes.items():
            for row in self.rows:
                rounded = np.asarray(getattr(row, name), np.float32).astype(dtype)
                setattr(row, name, rounded.astype(np.float64))

    def _finish(self, t: int) -> None:
        if self.counter_every and t % self.counter_every == 0:
            self.arguments["max_counter"] = 1 + max(row.n for row in self.rows)
        if self.average is None:
            return
        for row in self.rows:
            if len(self.average) == 3:
                every, start, k = self.average
                if t % every == 0 and t >= start:
                    half = len(row.w) // 2
                    row.w[half:] += k * (row.w[:half] - row.w[half:])
                continue
            every, swap, start, k = self.average
            if t % every == 0:
                k = 0.0 if t <= start else k
                row.z[:] = k * row.z + (1 - k) * row.w
            if t % swap == 0:
                row.w[:] = row.z
            if t % every == 0 and self.forgets:
                row.z[:] = 0.0

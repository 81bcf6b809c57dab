# SPDX-License-Identifier: Apache-2.0
"""Initializers as dicts, and their conversion to initializers of tables."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import as_number

# Beyond this number of standard deviations the distribution function is 0 in float64.
_TAIL = 37.0


def make_uniform_initializer(low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    """Makes an initializer that draws weights uniformly between two numbers.

    Args:
        low: The least weight, a float.
        high: The largest weight, a float, at least `low`.

    Returns:
        A dict for `make_table_options` and `make_column_options`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If `high` is below `low`, or a number is not finite in float32.

    Example:
        >>> import tf_embed
        >>> tf_embed.one_embedding.make_uniform_initializer(low=-0.5, high=0.5)
        {'type': 'uniform', 'low': -0.5, 'high': 0.5}
    """
    low, high = as_number(low, "low"), as_number(high, "high")
    if high < low:
        raise ValueError(f"`high` must be at least `low`. Received: low={low}, high={high}")
    return {"type": "uniform", "low": low, "high": high}


def make_normal_initializer(mean: float = 0.0, std: float = 1.0) -> dict[str, Any]:
    """Makes an initializer that draws weights from a normal distribution.

    Args:
        mean: The mean, a float.
        std: The standard deviation, a float, at least 0.

    Returns:
        A dict for `make_table_options` and `make_column_options`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If `std` is negative, or a number is not finite in float32.

    Example:
        >>> import tf_embed
        >>> tf_embed.one_embedding.make_normal_initializer(std=0.05)
        {'type': 'normal', 'mean': 0.0, 'std': 0.05}
    """
    mean, std = as_number(mean, "mean"), as_number(std, "std")
    if std < 0:
        raise ValueError(f"`std` must be at least 0. Received: std={std}")
    return {"type": "normal", "mean": mean, "std": std}


def make_constant_initializer(value: float) -> dict[str, Any]:
    """Makes an initializer that sets every weight to the same number.

    Args:
        value: The number, a float.

    Returns:
        A dict for `make_table_options` and `make_column_options`.

    Raises:
        TypeError: If `value` is not a number.
        ValueError: If it is not finite in float32.

    Example:
        >>> import tf_embed
        >>> tf_embed.one_embedding.make_constant_initializer(0.25)
        {'type': 'constant', 'value': 0.25}
    """
    return {"type": "constant", "value": as_number(value, "value")}


def make_trunc_normal_initializer(
    mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> dict[str, Any]:
    """Makes an initializer that draws weights from the part of a normal distribution in [a, b].

    Args:
        mean: The mean of the whole distribution, a float.
        std: Its standard deviation, a float above 0.
        a: The least weight, a float. It is a weight and not a number of standard deviations.
        b: The largest weight, a float above `a`.

    Returns:
        A dict for `make_table_options` and `make_column_options`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If `std` is not above 0, `b` not above `a`, [a, b] is more than 37 standard
            deviations away from the mean, or a number is not finite in float32.

    Example:
        >>> import tf_embed
        >>> tf_embed.one_embedding.make_trunc_normal_initializer(std=0.1, a=-0.1, b=0.3)
        {'type': 'truncated_normal', 'mean': 0.0, 'std': 0.1, 'a': -0.1, 'b': 0.3}
    """
    mean, std = as_number(mean, "mean"), as_number(std, "std")
    a, b = as_number(a, "a"), as_number(b, "b")
    if std <= 0:
        raise ValueError(f"`std` must be above 0. Received: std={std}")
    if b <= a:
        raise ValueError(f"`b` must be above `a`. Received: a={a}, b={b}")
    if a - mean > _TAIL * std or mean - b > _TAIL * std:
        raise ValueError(
            f"`a` and `b` must be within {_TAIL:g} standard deviations of the mean. Received: "
            f"mean={mean}, std={std}, a={a}, b={b}"
        )
    return {"type": "truncated_normal", "mean": mean, "std": std, "a": a, "b": b}


_MAKERS: dict[str, Any] = {
    "uniform": make_uniform_initializer,
    "normal": make_normal_initializer,
    "constant": make_constant_initializer,
    "truncated_normal": make_trunc_normal_initializer,
}


@dataclasses.dataclass(frozen=True)
class WeightInitializer:
    """The distribution of the initial weights of a column.

    Attributes:
        kind: "uniform", "normal", "constant" or "truncated_normal".
        numbers: The arguments of its `make_` function, in their order.
    """

    kind: str
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, options: Any, argument: str) -> WeightInitializer:
        """Parses and checks the dict of an initializer.

        Args:
            options: The dict of a `make_` function, or an equal dict.

        Raises:
            TypeError: If a number has a wrong type.
            ValueError: If `options` is not such a dict, or a number is out of range.
        """
        kind = options.get("type") if isinstance(options, dict) else None
        if not isinstance(kind, str) or kind not in _MAKERS:
            raise ValueError(
                f"`{argument}` must be what make_uniform_initializer, make_normal_initializer, "
                "make_trunc_normal_initializer or make_constant_initializer gives. Received: "
                f"{argument}={validation.shown(options)}"
            )
        numbers = {name: value for name, value in options.items() if name != "type"}
        try:
            made = _MAKERS[kind](**numbers)
        except TypeError as error:
            raise TypeError(
                f"`{argument}` must have the arguments of a {kind} initializer: {error} Received: "
                f"{argument}={validation.shown(options)}"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"`{argument}` must be an initializer in range: {error}; "
                f"{argument}={validation.shown(options)}"
            ) from error
        return cls(kind, tuple(value for name, value in made.items() if name != "type"))

    @property
    def is_native(self) -> bool:
        """Whether a table draws it itself. A table only truncates at two standard deviations."""
        if self.kind != "truncated_normal":
            return True
        mean, std, a, b = self.numbers
        return a == mean - 2 * std and b == mean + 2 * std

    def of_table(self, seed: int) -> Any:
        """Returns the initializer that a table takes.

        If the table can't truncate at these bounds, it draws a uniform number from 0 to 1, and
        `Quantile` maps that number to the weight.
        """
        if self.kind == "constant":
            return self.numbers[0]
        if not self.is_native:
            return keras.initializers.RandomUniform(0.0, 1.0, seed=seed)
        if self.kind == "uniform":
            return keras.initializers.RandomUniform(*self.numbers, seed=seed)
        kinds: dict[str, Any] = {
            "normal": keras.initializers.RandomNormal,
            "truncated_normal": keras.initializers.TruncatedNormal,
        }
        return kinds[self.kind](*self.numbers[:2], seed=seed)


@dataclasses.dataclass(frozen=True)
class Quantile:
    """Maps a uniform number from 0 to 1 to a weight of a truncated normal distribution.

    The weight is clip(mean + scale * ndtri(first + u * width), a, b). An interval above the mean is
    mirrored, because the distribution function is exact below the mean.

    Attributes:
        scale: The standard deviation; negative if the interval was mirrored.
        first: The distribution function at the lower bound.
        width: The increase of the distribution function from the lower to the upper bound.
        a: The smallest weight.
        b: The largest weight.
    """

    mean: float = 0.0
    scale: float = 1.0
    first: float = 0.25
    width: float = 0.5
    a: float = -1.0
    b: float = 1.0

    @classmethod
    def of(cls, initializer: WeightInitializer) -> Quantile:
        """Returns the map of a truncated normal; the default, unused, for other initializers."""
        if initializer.is_native:
            return cls()
        mean, std, a, b = initializer.numbers
        low, high = (a - mean) / std, (b - mean) / std
        scale = std
        if low + high > 0:
            low, high, scale = -high, -low, -std
        first = _distribution_function(low)
        return cls(mean, scale, first, _distribution_function(high) - first, a, b)


def _distribution_function(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))

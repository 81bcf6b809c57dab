# SPDX-License-Identifier: Apache-2.0
"""Hostile values, and the kinds of arguments that get them.

Every value is given to every argument. A kind of argument lists the values that it accepts, each
with the reason, and adds hostile values for itself. An accepted value that is not listed is a
finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Make = Callable[[], Any]


def _takes_nothing() -> int:
    return 1


VALUES: dict[str, Make] = {
    "None": lambda: None,
    "object()": object,
    "class int": lambda: int,
    "class Adam": lambda: keras.optimizers.Adam,
    "-1": lambda: -1,
    "0": lambda: 0,
    "3": lambda: 3,
    "True": lambda: True,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1e300": lambda: 1e300,
    "1j": lambda: 1j,
    "2**63-1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "-2**63-1": lambda: -(2**63) - 1,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "''": lambda: "",
    "'x'": lambda: "x",
    "nul": lambda: "a\0b",
    "long": lambda: "x" * 100_000,
    "surrogate": lambda: "\ud800",
    "bytes": lambda: b"\xff\xfe",
    "[]": list,
    "[1]": lambda: [1],
    "[-1]": lambda: [-1],
    "[2**63]": lambda: [2**63],
    "[1.5]": lambda: [1.5],
    "ragged list": lambda: [[1], [2, 3]],
    "deep list": lambda: [[[[[[[1]]]]]]],
    "[object()]": lambda: [object()],
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "[1, 'a']": lambda: [1, "a"],
    "{}": dict,
    "{'x': 1}": lambda: {"x": 1},
    "{1}": lambda: {1},
    "iterator": lambda: iter([1]),
    "function": lambda: _takes_nothing,
    "array of objects": lambda: np.array([object()]),
    "array of no rows": lambda: np.zeros([0, 3], np.float32),
    "array of 1.5": lambda: np.array([1.5], np.float32),
    "array of dates": lambda: np.array(["2026-01-01"], "datetime64[D]"),
    "structured array": lambda: np.zeros([1], [("a", "i4")]),
    "tensor 'x'": lambda: tf.constant("x"),
    "tensor [1.5]": lambda: tf.constant([1.5]),
    "tensor int8": lambda: tf.constant(1, tf.int8),
    "tensor complex": lambda: tf.constant([1j]),
    "RaggedTensor": lambda: tf.ragged.constant([[1], [2, 3]]),
    "SparseTensor": lambda: tf.sparse.from_dense([[1, 0]]),
    "IndexedSlices": lambda: tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])),
    "tf.Variable": lambda: tf.Variable([1]),
    "KerasTensor": lambda: keras.Input((1,), name="symbolic"),
}

STRINGS = "'', 'x', nul, long, surrogate"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of argument.

    Attributes:
        takes: Names of hostile values that are accepted, and the reason of each.
        also: Hostile values for this kind alone.
        late: Names of values that are refused only at the result's first use, and the reasons.
        others: Names of values that other libraries refuse before tf_embed sees them.
    """

    takes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: Mapping[str, Make] = dataclasses.field(default_factory=dict)
    late: Mapping[str, str] = dataclasses.field(default_factory=dict)
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def values(self) -> dict[str, Make]:
        """The hostile values of this kind."""
        return {**VALUES, **self.also}

    def taking(self, reason: str, names: str) -> Kind:
        """This kind, but it also accepts the values of these names."""
        return self._checked(takes={**self.takes, **_by_name({reason: names})})

    def refused_by(self, other: str, names: str) -> Kind:
        """This kind, but another library refuses the values of these names."""
        return self._checked(others={**self.others, **_by_name({other: names})})

    def _checked(self, **changes: Any) -> Kind:
        """This kind with changes, if each name has a value."""
        changed = dataclasses.replace(self, **changes)
        known = {*changed.takes, *changed.late, *changed.others}
        if not known <= set(changed.values):
            raise ValueError(f"No values have these names: {known - set(changed.values)}")
        return changed

    def optional(self) -> Kind:
        """This kind with a default of None."""
        return self.taking("the default", "None")


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    """The reason for each value, from comma-separated names; "*" means all values."""
    found = {}
    for reason, names in reasons.items():
        for name in VALUES if names == "*" else names.split(", "):
            found[name] = reason
    return found


def kind(
    takes: Mapping[str, str] | None = None,
    also: Mapping[str, Make] | None = None,
    late: Mapping[str, str] | None = None,
) -> Kind:
    """A kind from the names of the accepted and the late-refused values, by reason."""
    return Kind(also=also or {})._checked(takes=_by_name(takes or {}), late=_by_name(late or {}))

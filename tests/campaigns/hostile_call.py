# SPDX-License-Identifier: Apache-2.0
"""A description of a call with hostile values, and the variable that most calls need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from hostile_values import Kind

import tf_embed as te


def _nothing(made: Any) -> None:
    del made


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a public name.

    Attributes:
        make: Returns the callable to test.
        good: Returns the good arguments.
        kinds: The kind of each argument.
        then: The first use of the call's result.
        apart: Arguments that get no hostile values.
        says: Names that an error message may use instead of the argument's.
    """

    make: Callable[[], Callable[..., Any]]
    good: Callable[[], dict[str, Any]]
    kinds: Mapping[str, Kind]
    then: Callable[[Any], Any] = _nothing
    apart: tuple[str, ...] = ()
    says: tuple[str, ...] = ()

    def run(self, argument: str, value: Any) -> Any:
        """Makes the call with a hostile value."""
        return self.make()(**{**self.good(), argument: value})


def variable(kind: type[te.Variable] = te.Variable, **options: Any) -> te.Variable:
    """A variable with a row."""
    v = kind(**{"dim": 2, "name": "hostile_table", **options})
    v.upsert(["x" if v.key_dtype == tf.string else 1], [[1.0, 2.0]])
    return v

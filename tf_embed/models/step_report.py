# SPDX-License-Identifier: Apache-2.0
"""`StepReport`: what the steps of a model do together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class StepLookup:
    """A lookup of a step.

    Attributes:
        table: The name of the table.
        reason_apart: The reason for which it is made by itself; None if it is made together with
            others.
    """

    table: str
    reason_apart: str | None = None


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What the last traced step of a model does together.

    Attributes:
        compiled: Whether XLA compiles the dense part.
        reason_not_compiled: The reason for which it does not; None if it does.
        lookups: The lookups, in the order in which the model makes them.
    """

    compiled: bool = False
    reason_not_compiled: str | None = "no step was made"
    lookups: tuple[StepLookup, ...] = ()

    def with_lookups(self, lookups: Sequence[StepLookup]) -> StepReport:
        """A report with these lookups."""
        return dataclasses.replace(self, lookups=tuple(lookups))

    def with_compiled(self, reason: str | None) -> StepReport:
        """A report with the reason for which the dense part isn't compiled; None if it is."""
        return dataclasses.replace(self, compiled=reason is None, reason_not_compiled=reason)

    def __str__(self) -> str:
        because = "" if self.compiled else f": {self.reason_not_compiled}"
        lines = [f"dense part: {'compiled' if self.compiled else 'not compiled'}{because}"]
        together = [one.table for one in self.lookups if one.reason_apart is None]
        lines.append(f"lookups together: {', '.join(together) or 'none'}")
        lines += [
            f"lookup apart: {one.table}: {one.reason_apart}"
            for one in self.lookups
            if one.reason_apart is not None
        ]
        return "\n".join(lines)

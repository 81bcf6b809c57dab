# SPDX-License-Identifier: Apache-2.0
"""The result of a measurement: a row of the table of results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from machine import Load

OURS = "tf_embed"


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement.

    Attributes:
        section: The measurement.
        case: The case of the measurement.
        unit: Unit of the values.
        values: The value of each implementation.
        load: The other load of the machine.
        ratios: The ratio of each other implementation to tf_embed, the median of all rounds.
        figures: The values of this row for names of `goals.GOALS`.
        floors: What a figure would be if tf_embed took no longer than the floor (floors.py).
        note: A remark.
    """

    section: str
    case: str
    unit: str
    values: Mapping[str, float]
    load: Load
    ratios: Mapping[str, float] = dataclasses.field(default_factory=dict)
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    floors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    note: str = ""

    def to_json(self) -> str:
        """The row as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Row:
        """Reads the output of `to_json`."""
        fields: dict[str, Any] = json.loads(line)
        return cls(**{**fields, "load": Load(**fields["load"])})

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        ratios = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in self.ratios.items())
        parts = [f"{self.section}: {self.case}", f"{values} {self.unit}", ratios, self.note]
        loads = f"load {self.load.average:.2f}, others {self.load.others:.2f}"
        return " | ".join([*filter(None, parts), loads])

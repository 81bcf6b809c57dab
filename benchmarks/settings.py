# SPDX-License-Identifier: Apache-2.0
"""Options of a run, and paths of the built programs."""

from __future__ import annotations

import dataclasses
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "bench"
TENSORFLOW_PYTHON = ROOT / ".venv" / "bench216" / "bin" / "python"
FBGEMM_PYTHON = ROOT / ".venv" / "benchfbgemm" / "bin" / "python"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of a run.

    Attributes:
        quick: Whether to measure only cases with a goal, in fewer rounds.
        folder: The folder for rows of tables over a disk; its disk is measured.
    """

    quick: bool = False
    folder: pathlib.Path = BUILD

    @property
    def rounds(self) -> int:
        """The number of rounds of a measurement."""
        return 7 if self.quick else 11

    @property
    def more(self) -> bool:
        """Whether to measure cases without a goal."""
        return not self.quick

"""SGD steps beside TFRA's optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from rows import Row
from sections import steps
from settings import Settings

DIM = 64


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures 10^6 keys."""
    return steps.rows(
        "sgd",
        steps.trainers("SGD", DIM),
        DIM,
        steps.simple_cases(settings),
        settings,
        steps.simple_figures("sgd"),
    )

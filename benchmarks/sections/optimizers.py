# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers compared with TFRA's. A part is an optimizer; Adam has its own section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rows import Row
from sections import steps
from settings import Settings

DIM = 64


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures 10^6 keys: batches of 64k ids, and in the full run small batches too."""
    batches = (65536, 8192) if settings.more else (65536,)
    cases = [(batch, ids) for batch in batches for ids in steps.SHORT]

    def figures(case: steps.Case, ratios: Mapping[str, float]) -> dict[str, float]:
        batch, ids = case
        name = f"{part.lower()}_vs_tfra_{steps.SHORT[ids]}"
        return {name: ratios[steps.TFRA]} if batch == 65536 else {}

    trainers = steps.trainers(part, DIM)
    return steps.rows(part, trainers, DIM, cases, settings, figures)

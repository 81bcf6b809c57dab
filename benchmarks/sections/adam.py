# SPDX-License-Identifier: Apache-2.0
"""Adam steps compared with TFRA's optimizer, and with the leanest sequence of TFRA's ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from peers import tfra
from rows import Row
from sections import steps
from settings import Settings

HAND_WRITTEN = "TFRA by hand"


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a dim."""
    dim = int(part)
    trainers = steps.trainers("Adam", dim)
    if dim == 64:
        trainers[HAND_WRITTEN] = tfra.HandWrittenAdam(dim)
    cases = [(batch, ids) for batch in (65536, 8192) for ids in steps.SHORT]
    if settings.more:
        cases += [(65536, "1.05"), (1 << 20, "uniform"), (1 << 20, "1.2")]

    def figures(case: steps.Case, ratios: Mapping[str, float]) -> dict[str, float]:
        batch, ids = case
        found = {}
        if batch <= 65536 and ids in steps.SHORT:
            found["adam_vs_tfra_worst"] = ratios[steps.TFRA]
            if batch == 65536 and dim == 64:
                found[f"adam_vs_tfra_{steps.SHORT[ids]}"] = ratios[steps.TFRA]
                found[f"adam_vs_tfra_handwritten_{steps.SHORT[ids]}"] = ratios[HAND_WRITTEN]
        return found

    return steps.rows("adam", trainers, dim, cases, settings, figures)

# SPDX-License-Identifier: Apache-2.0
"""The content of saves written beside steps, for each kind of table and of save."""

from __future__ import annotations

import pathlib

import pytest
import saves_beside_steps as campaign

from support.oracles.reference import SEED
from support.processes import campaign_runs

# Each kind with each save, in a single place.
CASES = [
    (kind, campaign.PLACES[(i + j) % len(campaign.PLACES)], saved_as)
    for i, kind in enumerate(campaign.KINDS)
    for j, saved_as in enumerate(campaign.SAVES)
]


@pytest.mark.parametrize(("kind", "place", "saved_as"), CASES)
def test_what_is_loaded_trains_on_as_a_table_that_never_stopped(
    kind: str, place: str, saved_as: str, tmp_path: pathlib.Path
):
    assert campaign.check(kind, place, saved_as, SEED, tmp_path, steps=10) > 0


def test_what_is_planted_is_found():
    done = campaign_runs.run(
        "saves_beside_steps",
        "--seconds=0",
        "--kinds=lfu",
        "--places=memory",
        "--saves=snapshot",
        "--plant=statistics",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "these differ at the end" in done.stdout

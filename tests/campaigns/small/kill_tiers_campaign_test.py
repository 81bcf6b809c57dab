# SPDX-License-Identifier: Apache-2.0
"""Processes killed while they train tables on disk lose nothing, and planted faults are found."""

from __future__ import annotations

import functools

import pytest

from support.processes import campaign_runs

kill_tiers = functools.partial(campaign_runs.run, "kill_tiers")


def test_a_few_kills_lose_nothing():
    done = kill_tiers("--kills=3", "--seed=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of" in done.stdout and '"failures": 0' in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        ("step", "checkpoint: step"),
        ("damage", "it failed: DataLossError"),
        ("files", "a new table has rows or files of a dead process"),
    ],
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = kill_tiers("--kills=6", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

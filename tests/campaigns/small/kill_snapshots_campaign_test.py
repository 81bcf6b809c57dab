# SPDX-License-Identifier: Apache-2.0
"""Processes killed while they save snapshots lose none, and planted faults are found."""

from __future__ import annotations

import functools

import pytest

from support.processes import campaign_runs

kill_snapshots = functools.partial(campaign_runs.run, "kill_snapshots")


def test_a_few_kills_lose_nothing():
    done = kill_snapshots("--kills=4", "--seed=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of" in done.stdout and '"failures": 0' in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        ("step", "is none of"),
        ("half", "that nobody saved, or that were removed, are listed: ['half']"),
        ("damage", "it failed: DataLossError"),
        ("gone", "snapshots that were saved are gone"),
    ],
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = kill_snapshots("--kills=6", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

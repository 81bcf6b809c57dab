# SPDX-License-Identifier: Apache-2.0
"""Killed publishers and followers serve no wrong row, and planted faults are found."""

from __future__ import annotations

import functools

import pytest

from support.processes import campaign_runs

kill_publications = functools.partial(campaign_runs.run, "kill_publications")


def test_a_few_kills_of_either_side_serve_no_wrong_row():
    done = kill_publications("--kills=6", "--seed=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of" in done.stdout and '"failures": 0' in done.stdout
    assert "updated" in done.stdout and "settled" in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        ("step", "keys too many"),
        ("damage", "it failed: DataLossError"),
        ("row", "keys too many"),
        ("torn", "a lookup got rows that nothing wrote"),
    ],
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = kill_publications("--kills=10", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""The stress test of all operations at once finds nothing, and finds planted faults."""

from __future__ import annotations

import functools

import pytest

from support.processes import campaign_runs

stress = functools.partial(campaign_runs.run, "stress")


def test_nothing_goes_wrong_in_tables_of_each_kind():
    done = stress("--seconds=60")
    assert done.returncode == 0, done.stdout
    kinds = [line for line in done.stdout.splitlines() if line.endswith("fine")]
    assert f"{len(kinds)} kinds of tables" in done.stdout and "0 failures" in done.stdout


def test_snapshots_are_of_one_moment_while_everything_else_goes_on():
    done = stress("--seconds=24", "--kinds=tracked,tracked-lfu,tracked-disk")
    assert done.returncode == 0, done.stdout
    assert "3 kinds of tables" in done.stdout and "0 failures" in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        ("crash", "ended with -6"),
        ("hang", "no call for 2.0 s"),
        ("lost", "own rows: wrote"),
        ("torn", "a torn row"),
        ("error", "must have the shape of the keys"),
    ],
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = stress("--kinds=plain", "--seconds=20", "--stall=2", f"--plant={plant}")
    assert done.returncode == 1, done.stdout
    assert report in done.stdout

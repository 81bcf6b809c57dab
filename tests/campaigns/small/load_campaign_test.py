# SPDX-License-Identifier: Apache-2.0
"""The load on tables finds nothing in a few seconds, and finds planted faults."""

from __future__ import annotations

import functools

import pytest

from support.oracles.reference import SEED
from support.processes import campaign_runs

load = functools.partial(campaign_runs.run, "load", f"--seed={SEED}")


def test_rows_and_statistics_are_right_under_load_in_memory_and_over_tiers():
    done = load("--seconds=8", "--kinds=bounded,tiers-bounded", "--processes=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout and "p99.9 of lookups" in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"),
    [
        ("leak", "memory is not flat"),
        ("count", "statistics: they must be"),
        ("row", "a row that was not written"),
        ("kill", "it ended by signal 9"),
    ],
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = load("--seconds=2", "--kinds=bounded", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Tables on one processor, under a clock that jumps and without memory; planted faults."""

from __future__ import annotations

import functools

import pytest

from support.oracles.reference import SEED
from support.processes import campaign_runs

surroundings = functools.partial(campaign_runs.run, "surroundings", f"--seed={SEED}")


@pytest.mark.parametrize("only", ["clock", "processor: refusing", "memory: logged"])
def test_tables_stay_right(only: str):
    done = surroundings("--seconds=3", f"--only={only}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"count": 1, "failures": 0' in done.stdout


@pytest.mark.parametrize(
    ("plant", "only", "report"),
    [
        ("waits", "processor: refusing", "it said nothing for 10.0 s"),
        ("clock", "clock", "rows that differ"),
        ("memory", "memory: plain", "has rows no more"),
    ],
)
def test_what_is_planted_is_found(plant: str, only: str, report: str):
    stall = 10 if plant == "waits" else 120
    done = surroundings("--seconds=3", f"--only={only}", f"--stall={stall}", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

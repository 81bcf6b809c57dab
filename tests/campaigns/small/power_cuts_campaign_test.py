# SPDX-License-Identifier: Apache-2.0
"""Saves survive a crash of the machine, and a missing fsync is found."""

from __future__ import annotations

import functools

import pytest

from support.oracles.reference import SEED
from support.processes import campaign_runs

power_cuts = functools.partial(campaign_runs.run, "power_cuts")


def test_a_few_crashes_lose_nothing():
    done = power_cuts("--count=14", "--cuts=2", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"count": 14, "failures": 0' in done.stdout


@pytest.mark.parametrize(
    ("plant", "name"), [("files", "files"), ("folders", "snapshots"), ("folders", "backups")]
)
def test_a_disk_that_forgets_is_found(plant: str, name: str):
    done = power_cuts("--count=20", f"--plant={plant}", f"--only={name}")
    assert done.returncode == 1, done.stdout + done.stderr

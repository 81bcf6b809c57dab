# SPDX-License-Identifier: Apache-2.0
"""A failed save leaves the old rows or the new rows, and planted faults are found."""

from __future__ import annotations

import functools

import pytest

from support.oracles.reference import SEED
from support.processes import campaign_runs

file_faults = functools.partial(campaign_runs.run, "file_faults")


def test_a_few_calls_that_fail_lose_nothing():
    done = file_faults("--count=1", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout and "the old rows are" in done.stdout


def test_a_flush_that_fails_loses_nothing():
    # Includes the flush after the new manifest has replaced the old manifest.
    done = file_faults("--only=files", "--kind=sync", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the new rows are there" in done.stdout and "the old rows are" in done.stdout


def test_no_call_that_fails_loses_anything():
    done = file_faults("--seed=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout


@pytest.mark.parametrize("plant", ["silent", "lost"])
def test_what_is_planted_is_found(plant: str):
    done = file_faults("--count=1", f"--plant={plant}", "--only=files")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "it must be of" in done.stdout

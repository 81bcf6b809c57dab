# SPDX-License-Identifier: Apache-2.0
"""Errors name the damaged files, and planted faults are found."""

from __future__ import annotations

import functools
import json

import pytest

from support.oracles.reference import SEED
from support.processes import campaign_runs

corruption = functools.partial(campaign_runs.run, "corruption")


def test_a_few_damages_of_each_format_are_errors():
    done = corruption("--count=12", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert (line["count"], line["failures"]) == (120, 0)


@pytest.mark.parametrize(
    ("plant", "form", "report"),
    [
        ("none", "snapshots", "it was loaded"),
        ("rows", "row files", "a table has [1] rows"),
        ("wrong", "checkpoints", "rows are wrong"),
        ("end", "row files", "it ended by signal 6"),
        ("memory", "row files", "too much memory"),
    ],
)
def test_what_is_planted_is_found(plant: str, form: str, report: str):
    done = corruption("--count=6", f"--plant={plant}", f"--only={form}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

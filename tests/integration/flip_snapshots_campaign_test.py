# SPDX-License-Identifier: Apache-2.0
"""Damaged files of snapshots are errors that name them, and what is planted is found."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from reference import SEED

FLIP_SNAPSHOTS = pathlib.Path(__file__).resolve().parents[1] / "campaigns" / "flip_snapshots.py"


def flip_snapshots(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FLIP_SNAPSHOTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


def test_a_hundred_damages_are_errors():
    done = flip_snapshots("--flips=100", f"--seed={SEED}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100 damages" in done.stdout and "0 failures" in done.stdout


@pytest.mark.slow
def test_a_thousand_damages_are_errors():
    done = flip_snapshots("--flips=1000", "--seed=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1000 damages" in done.stdout and "0 failures" in done.stdout


@pytest.mark.parametrize(
    ("plant", "report"), [("none", "it was loaded"), ("rows", "a table has [1] rows")]
)
def test_what_is_planted_is_found(plant: str, report: str):
    done = flip_snapshots("--flips=2", f"--plant={plant}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert report in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""Tests of the contract pass in processes that are disturbed, and one that can't run is found."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "campaigns" / "disturbed_suites.py"


def disturbed_suites(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=9000)


@pytest.mark.slow
def test_the_suites_pass():
    done = disturbed_suites()
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout


@pytest.mark.parametrize("name", ["clock jumps"])
def test_some_tests_pass(name: str):
    done = disturbed_suites(f"--only={name}", "--select=expire or ttl or latest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout


def test_what_is_planted_is_found():
    done = disturbed_suites("--only=one thread", "--plant")
    assert done.returncode == 1, done.stdout + done.stderr

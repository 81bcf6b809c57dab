# SPDX-License-Identifier: Apache-2.0
"""The campaign that looks for leaks finds none, and finds one that is planted."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

LEAKS = pathlib.Path(__file__).resolve().parents[1] / "campaigns" / "leaks.py"


def leaks(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(LEAKS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_cheap_loops_keep_no_memory():
    done = leaks("--cycles=200", "--kinds=variables,graph")
    assert done.returncode == 0, done.stdout
    assert "2 loops" in done.stdout and "0 failures" in done.stdout


@pytest.mark.slow
def test_a_planted_leak_is_found():
    done = leaks("--cycles=200", "--kinds=graph", "--plant=8192")
    assert done.returncode == 1, done.stdout
    assert "LEAKS" in done.stdout


@pytest.mark.slow
def test_all_loops_keep_no_memory():
    done = leaks("--cycles=300")
    assert done.returncode == 0, done.stdout
    assert "18 loops" in done.stdout and "0 failures" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""The leak campaign finds no leak, and finds a planted leak."""

from __future__ import annotations

import functools

from support.processes import campaign_runs

leaks = functools.partial(campaign_runs.run, "leaks")


def test_cheap_loops_keep_no_memory():
    done = leaks("--cycles=200", "--kinds=variables,graph")
    assert done.returncode == 0, done.stdout
    assert "2 loops" in done.stdout and "0 failures" in done.stdout


def test_a_planted_leak_is_found():
    done = leaks("--cycles=200", "--kinds=graph", "--plant=8192")
    assert done.returncode == 1, done.stdout
    assert "LEAKS" in done.stdout

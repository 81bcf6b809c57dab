# SPDX-License-Identifier: Apache-2.0
"""Killed parameter servers, workers and chiefs lose no step; a planted fault is found."""

from __future__ import annotations

import functools

from support.processes import campaign_runs

server_kills = functools.partial(campaign_runs.run, "server_kills")


def test_a_few_kills_lose_no_step():
    done = server_kills("--count=4", "--seed=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"failures": 0' in done.stdout


def test_a_failed_copy_that_is_taken_for_a_lost_server_is_found():
    done = server_kills("--count=40", "--plant=copy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the chief ended with 75" in done.stdout

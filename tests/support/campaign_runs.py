# SPDX-License-Identifier: Apache-2.0
"""Campaigns, run as a user runs them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

CAMPAIGNS = pathlib.Path(__file__).resolve().parents[1] / "campaigns"


def run(campaign: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a campaign to its end.

    Args:
        campaign: Its name, without ".py".
        *arguments: Its arguments.
    """
    command = [sys.executable, str(CAMPAIGNS / f"{campaign}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=3600)

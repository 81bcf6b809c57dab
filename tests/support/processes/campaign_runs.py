# SPDX-License-Identifier: Apache-2.0
"""Campaigns, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys

from support import CAMPAIGNS


def run(campaign: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a campaign to its end.

    Args:
        campaign: Its name, without ".py".
        *arguments: Its arguments.
    """
    command = [sys.executable, str(CAMPAIGNS / f"{campaign}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=3600)

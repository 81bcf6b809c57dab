# SPDX-License-Identifier: Apache-2.0
"""Results of a campaign of mutants, in files, so that a run that was broken off can go on."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from typing import Any


class Records:
    """Results by name, each saved as a whole."""

    def __init__(self, folder: pathlib.Path, campaign: Any, recorded: bool) -> None:
        """Begins with none, or with those of an earlier run.

        Args:
            folder: The folder of the files.
            campaign: A value of JSON that differs between campaigns.
            recorded: Whether to go on with an earlier run.

        Raises:
            SystemExit: If the folder has no records of this campaign.
        """
        self._folder = folder
        path, text = folder / "campaign.json", json.dumps(campaign)
        if not recorded:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{folder} has no records of these mutants, tests and sources.")

    def load(self, name: str) -> Any:
        """A result, or None if there is none."""
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def save(self, name: str, value: Any) -> None:
        """Replaces a result."""
        path = self._folder / f"{name}.json"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(value))
        unfinished.replace(path)

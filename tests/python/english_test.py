# SPDX-License-Identifier: Apache-2.0
"""The prose of the tree has few of the habits that make a sentence hard to read."""

from __future__ import annotations

import collections
import json
import pathlib

import prose
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".md", ".ipynb", ".cc", ".h", ".cu")
# The most of each habit in 10,000 words of a folder. A folder that gets better lowers its ceiling.
CEILINGS = {
    "benchmarks": {"what": 6, "where": 1, "who": 1, "anew": 1},
    "cc": {"what": 1, "where": 2, "who": 1, "anew": 1},
    "docs": {"what": 4, "where": 3, "who": 1, "anew": 1},
    "examples": {"what": 2, "where": 2, "who": 2, "anew": 2},
    "tests": {"what": 1, "where": 1, "who": 1, "anew": 1},
    "tf_embed": {"what": 2, "where": 2, "who": 1, "anew": 1},
}


def rates(folder: str) -> dict[str, float]:
    """Each habit in 10,000 words of a folder."""
    found: collections.Counter[str] = collections.Counter()
    words = 0
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in SUFFIXES:
            text = prose.prose_of(path)
            words += prose.words(text)
            found.update(prose.tics(text))
    return {tic: 1e4 * found[tic] / words for tic in prose.TICS}


@pytest.mark.parametrize("folder", CEILINGS)
def test_a_folder_keeps_below_its_ceilings(folder):
    above = {
        tic: round(rate, 1) for tic, rate in rates(folder).items() if rate > CEILINGS[folder][tic]
    }
    assert not above, f"{folder}: {above} in 10,000 words, ceilings {CEILINGS[folder]}"


def test_habits_are_counted_in_prose_alone(tmp_path):
    python = tmp_path / "one.py"
    python.write_text('"""What is it? Where rows are absent, nobody knows."""\nwhat = 1  # what\n')
    page = tmp_path / "one.md"
    page.write_text("What `what` is.\n```\nwhat\n```\n")
    notebook = tmp_path / "one.ipynb"
    cells = [("markdown", "Who is it? `what`"), ("code", "what = 1  # anew")]
    notebook.write_text(
        json.dumps({"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells]})
    )
    header = tmp_path / "one.h"
    header.write_text("int what;  // whoever comes anew\n")
    assert prose.tics(prose.prose_of(python)) == {"what": 2, "where": 1, "who": 1, "anew": 0}
    assert prose.tics(prose.prose_of(page)) == {"what": 1, "where": 0, "who": 0, "anew": 0}
    assert prose.tics(prose.prose_of(notebook)) == {"what": 0, "where": 0, "who": 1, "anew": 1}
    assert prose.tics(prose.prose_of(header)) == {"what": 0, "where": 0, "who": 1, "anew": 1}

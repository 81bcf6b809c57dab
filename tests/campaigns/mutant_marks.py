# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that says which mutants' places each test evaluates.

    TF_EMBED_MUTANTS_REACHED=marks TF_EMBED_MUTANTS_TESTS=tests.jsonl pytest -p mutant_marks tests/

`marks` is a file with a byte for each mutant (mutant_switch.h, mutant_switch.py). `tests.jsonl`
gets a line for each test: its name, its seconds, and the numbers of the mutants whose places it
evaluates. There is a line for each failure too, and a first one with the numbers of the mutants
whose places are evaluated before the first test, for instance while modules are imported. Places
that fixtures of modules evaluate count for the first test after it alone. With `-n` each process
has files of its own, whose names end with its name.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

_failed: set[str] = set()
# This plugin is loaded before tf_embed, which maps the file.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    _shared = pathlib.Path(os.environ["TF_EMBED_MUTANTS_REACHED"])
    _own = pathlib.Path(f"{_shared}.{worker}")
    _own.write_bytes(bytes(_shared.stat().st_size))
    os.environ["TF_EMBED_MUTANTS_REACHED"] = str(_own)
    os.environ["TF_EMBED_MUTANTS_TESTS"] += f".{worker}"


def _taken() -> list[int]:
    """The numbers that are marked; the marks go."""
    marks = pathlib.Path(os.environ["TF_EMBED_MUTANTS_REACHED"])
    reached = marks.read_bytes()
    # In place: processes have it mapped.
    with marks.open("r+b") as file:
        file.write(bytes(len(reached)))
    return [i for i, mark in enumerate(reached) if mark]


def _say(**said: Any) -> None:
    """Appends a line at once, because a test may end the process."""
    with open(os.environ["TF_EMBED_MUTANTS_TESTS"], "a") as file:
        file.write(json.dumps(said) + "\n")


def pytest_collection_finish() -> None:
    """Notes the marks that imports leave."""
    _say(imported=_taken())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes the marks that a test leaves."""
    begin = time.monotonic()
    yield
    seconds, reached = time.monotonic() - begin, _taken()
    if item.nodeid not in _failed:
        _say(test=item.nodeid, reached=reached, seconds=seconds)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes the name of a test that fails."""
    if report.failed and report.nodeid not in _failed:
        _failed.add(report.nodeid)
        _say(failed=report.nodeid)

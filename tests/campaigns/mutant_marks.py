# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that says which mutants' places each test evaluates.

    TF_EMBED_MUTANTS_REACHED=marks TF_EMBED_MUTANTS_TESTS=tests.json pytest -p mutant_marks tests/

`marks` is a file with a byte for each mutant (mutant_switch.h). `tests.json` gets, for each test,
the numbers of the mutants and the seconds that it took. Places that are evaluated while modules are
imported or fixtures of modules are made count for the first test after it alone.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

_found: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes the marks that a test leaves."""
    marks = pathlib.Path(os.environ["TF_EMBED_MUTANTS_REACHED"])
    begin = time.monotonic()
    yield
    seconds = time.monotonic() - begin
    reached = marks.read_bytes()
    # In place: processes have it mapped.
    with marks.open("r+b") as file:
        file.write(bytes(len(reached)))
    numbers = [i for i, mark in enumerate(reached) if mark]
    _found[item.nodeid] = {"reached": numbers, "seconds": seconds}


def pytest_sessionfinish() -> None:
    """Writes what was found."""
    pathlib.Path(os.environ["TF_EMBED_MUTANTS_TESTS"]).write_text(json.dumps(_found))

# SPDX-License-Identifier: Apache-2.0
"""Chooses the cases of the Python tests that a tier runs, by their seconds and not by marks.

tests/slow_cases.txt names the cases that the default tier leaves out, and the grids, of which it
runs a fifth. It keeps the cheapest case of each function, unless that case is long. Of functions
with only long cases it runs those marked `smoke`, and a fifth of the others. Another fifth is drawn
each day. Folders in `NIGHTLY` have separate rules.

    pytest                      every case
    pytest --tier=default       without the slow cases
    pytest --tier=quick         the cases of the default tier marked `smoke` that start no process
    pytest --write-slow-cases   every case; then writes the file, if all passed
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import inspect
import os
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import pytest

from support import ROOT, TESTS

SLOW_CASES = TESTS / "slow_cases.txt"
TIERS = ("quick", "default", "nightly")
# Tests that start processes. The default tier runs the cases marked `smoke`, one of each kind.
NIGHTLY = ("tests/campaigns/small/", "tests/processes/")

SLOW_SECONDS = 0.5
LONG_SECONDS = 1.5
GRID_CASES = 5
GRID_SECONDS = 2.0
# A case leaves the file below this share of a limit. Between this and the limit it stays, so that
# noise does not change the file every night.
STAYS = 0.7

# The seed of a day's draw. To repeat a failed case, its name is enough.
DRAW = int(os.environ.get("TF_EMBED_TEST_SEED") or datetime.date.today().strftime("%Y%m%d"))

HEADER = f"""\
# Written by `make test-nightly`; nobody edits it. `make test` leaves out
# slow: a case over {SLOW_SECONDS:g} s, unless it is the cheapest case of its function;
# grid: of {GRID_CASES} cases and more, which take over {GRID_SECONDS:g} s together, four fifths;
# long: of functions whose cheapest case takes over {LONG_SECONDS:g} s, four fifths.
"""


@dataclasses.dataclass(frozen=True)
class SlowCases:
    """The cases that the default tier leaves out.

    Attributes:
        slow: Names of cases.
        grids: Names of functions.
        long: Names of functions.
    """

    KINDS: ClassVar = ("slow", "grid", "long")  # kinds of lines, in the order of the attributes

    slow: frozenset[str]
    grids: frozenset[str]
    long: frozenset[str]

    @classmethod
    def read(cls, text: str) -> SlowCases:
        """Reads the file."""
        lines = [line.split(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return cls(*(frozenset(name for kind, name in lines if kind == one) for one in cls.KINDS))

    @classmethod
    def of(cls, functions: Mapping[str, Mapping[str, float]], before: SlowCases) -> SlowCases:
        """Judges the seconds of each case of each function."""
        slow, grids, long = set(), set(), set()
        for function, seconds in functions.items():
            cheapest = min(seconds, key=lambda case: (seconds[case], case))
            if seconds[cheapest] > LONG_SECONDS * (STAYS if function in before.long else 1):
                long.add(function)
            slow |= {
                case
                for case, one in seconds.items()
                if case != cheapest and one > SLOW_SECONDS * (STAYS if case in before.slow else 1)
            }
            limit = GRID_SECONDS * (STAYS if function in before.grids else 1)
            if len(seconds) >= GRID_CASES and sum(seconds.values()) > limit:
                grids.add(function)
        return cls(frozenset(slow), frozenset(grids), frozenset(long))

    def __str__(self) -> str:
        """The file."""
        sets = zip(self.KINDS, (self.slow, self.grids, self.long), strict=True)
        lines = sorted(f"{kind} {name}\n" for kind, names in sets for name in names)
        return HEADER + "".join(lines)

    def left_out(
        self, functions: Mapping[str, Iterable[str]], draw: int, smoke: Collection[str] = ()
    ) -> set[str]:
        """The cases that the default tier leaves out.

        Args:
            functions: All cases of each function.
            draw: The seed that draws the fifths.
            smoke: Functions that keep a case of any length.
        """

        def chance(name: str) -> int:
            return zlib.crc32(f"{draw} {name}".encode())

        found: set[str] = set()
        for function, cases in functions.items():
            every = sorted(cases, key=chance)
            quick = [case for case in every if case not in self.slow] or every[:1]
            fifth = max(1, round(len(quick) / 5)) if function in self.grids else len(quick)
            if function in self.long and function not in smoke and chance(function) % 5 > 0:
                fifth = 0
            found |= set(every) - set(quick[:fifth])
        return found


def name_of(item: pytest.Item) -> str:
    """The name of a case, relative to the root of the tree wherever pytest was started."""
    return "::".join([str(item.path.relative_to(ROOT)), *item.nodeid.split("::")[1:]])


def function_of(item: pytest.Item) -> str:
    """The name of a case's function. An inherited test is another function in each class."""
    *scope, case = name_of(item).split("::")
    # absl names the cases of `test_x` `test_x0`, `test_x1`, ...
    name = case.split("[")[0]
    if isinstance(item, pytest.Function):
        name = getattr(inspect.unwrap(item.function), "__name__", name)
    return "::".join([*scope, name if case.startswith(name) else case.split("[")[0]])


def is_nightly(name: str) -> bool:
    """Whether a case is in a folder of `NIGHTLY`."""
    return name.startswith(NIGHTLY)


def is_smoke(item: pytest.Item) -> bool:
    """Whether a case is marked `smoke`."""
    return item.get_closest_marker("smoke") is not None


def chosen(items: Sequence[pytest.Item], tier: str) -> list[pytest.Item]:
    """The cases that a tier runs. Launches are first: at the end, pytest would wait for them."""
    items = sorted(items, key=lambda item: not is_nightly(name_of(item)))
    if tier == "nightly":
        return items
    functions: dict[str, list[str]] = collections.defaultdict(list)
    for item in items:
        if not is_nightly(name_of(item)):
            functions[function_of(item)].append(name_of(item))
    smoke = {function_of(item) for item in items if is_smoke(item)}
    left_out = SlowCases.read(SLOW_CASES.read_text()).left_out(functions, DRAW, smoke)

    def is_chosen(item: pytest.Item) -> bool:
        name = name_of(item)
        if is_nightly(name):
            return is_smoke(item) and tier != "quick"
        return name not in left_out and (is_smoke(item) or tier != "quick")

    return [item for item in items if is_chosen(item)]


def counts(every: Sequence[pytest.Item], chosen: Sequence[pytest.Item]) -> str:
    """The numbers of cases and functions, in the tier and in all."""
    functions = {function_of(item) for item in every}
    left_out = functions - {function_of(item) for item in chosen}
    elsewhere = sum(not is_nightly(name) for name in left_out)
    return (
        f"{len(chosen):,} of {len(every):,} cases, {len(functions) - len(left_out):,} of "
        f"{len(functions):,} functions; {len(left_out) - elsewhere:,} of those left out start "
        f"processes, {elsewhere:,} do not"
    )


class Writer:
    """A pytest plugin that writes `slow_cases.txt` at the end of a run of all cases."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = collections.defaultdict(
            lambda: collections.defaultdict(float)
        )
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds the seconds of a case, which another process may have run."""
        function, case = dict(report.user_properties)["case"]
        if is_nightly(case):
            return
        self._seconds[function][case] += report.duration
        if report.skipped:  # on this machine; elsewhere the case may be long
            self._skipped.add(case)

    def functions(self) -> dict[str, dict[str, float]]:
        """The seconds of the cases that ran, by function."""
        ran = {
            function: {case: one for case, one in cases.items() if case not in self._skipped}
            for function, cases in self._seconds.items()
        }
        return {function: cases for function, cases in ran.items() if cases}

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Writes the file."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            before = SlowCases.read(SLOW_CASES.read_text())
            SLOW_CASES.write_text(str(SlowCases.of(self.functions(), before)))

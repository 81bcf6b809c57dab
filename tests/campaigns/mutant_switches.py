# SPDX-License-Identifier: Apache-2.0
"""Mutants of C++ that are compiled into one set of tests, which the environment chooses among.

A build for each mutant takes minutes. Here all of them are in one build (mutant_switch.h), and a
process has the one that `TF_EMBED_MUTANT` names. Each case of a test runs once without any, and
tells which places it evaluates; a mutant is tried with those cases alone that evaluate its place,
the nearest and the quickest first. This is the method of mutant schemata (Untch, Offutt and
Harrold, 1993).
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import mutant_records

T = TypeVar("T")
SWITCH = "cc/core/base/mutant_switch.h"
NAMESPACE = "::tf_embed_mutants::"
# The letters that mutant_switch.h gives operators of more than one character.
CODES = {"<=": "l", ">=": "g", "==": "=", "!=": "!"}
MENTION = re.compile(
    r"^(?:\./)?(cc/\S+?):(\d+):\d+:\s+(?:error|fatal error|\s*required)", re.MULTILINE
)
# Those of shell have arguments, which Bazel gives them, or look at the symbols of objects.
TESTS = "kind(cc_test, //tests/cc/...) except //tests/cc/models/... except //tests/cc/gpu/..."


def switched(token: str, number: int) -> str:
    """The replacement of a token of C++, with its mutant behind a switch.

    Args:
        token: An operator with spaces around it, a number, or `true` or `false`.
        number: Number of the mutant.
    """
    operator = token.strip()
    if operator in ("&&", "||"):
        return f" {operator} {NAMESPACE}Not<{number}>{{}} ^ "
    if operator == "+=":
        return f" += {NAMESPACE}Negative<{number}>{{}} = "
    if token != operator:
        code = CODES.get(operator, operator)
        return f" {operator} {NAMESPACE}Infix<'{code}', {number}>{{}} {operator} "
    return f"{NAMESPACE}Next<{number}>({token})"


def with_switches(source: str, places: Mapping[int, tuple[int, int]]) -> str:
    """A C++ file with mutants behind switches. Its lines keep their numbers.

    Args:
        source: The file.
        places: By number of the mutant, the begin and the end of the replaced text.
    """
    for number, (begin, end) in sorted(places.items(), key=lambda one: one[1], reverse=True):
        source = source[:begin] + switched(source[begin:end], number) + source[end:]
    return f'#include "{SWITCH}"\n#line 1\n{source}'


@dataclasses.dataclass
class Test:
    """A case of a program of tests, or a program that has none.

    Attributes:
        program: The file.
        label: Its name in Bazel.
        arguments: Its arguments, among them the name of the case.
        seconds: The time that it took without a mutant.
        reached: The numbers of mutants whose places it evaluates.
    """

    program: pathlib.Path
    label: str
    arguments: tuple[str, ...] = ()
    seconds: float = 0.0
    reached: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """Its name in a report."""
        return " ".join([self.label, *self.arguments])


def cases_of(listed: str) -> list[str]:
    """The names of cases in the output of `--gtest_list_tests`."""
    cases, suite = [], ""
    for line in listed.splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith("  "):
            cases.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return cases


def fitting(tests: Iterable[T], seconds: Callable[[T], float], budget: float) -> list[T]:
    """The first tests that take no longer than the budget together; the first one in any case."""
    chosen, total = [], 0.0
    for test in tests:
        total += seconds(test)
        if chosen and total > budget:
            break
        chosen.append(test)
    return chosen


class SwitchedTests:
    """The C++ tests of a copy of the tree, with mutants behind switches.

    Attributes:
        invalid: Numbers of mutants that do not compile.
        tests: The cases, the quick ones first.
    """

    def __init__(
        self,
        tree: pathlib.Path,
        bazel: Callable[..., subprocess.CompletedProcess],
        records: mutant_records.Records,
        budget: float,
    ) -> None:
        """Of a tree.

        Args:
            tree: Its folder.
            bazel: Runs Bazel there.
            records: Results of an earlier run, which are not found again.
            budget: The seconds that the cases of a mutant may take together; a case that takes
                longer alone is left out.
        """
        self.tree, self.bazel, self.budget = tree, bazel, budget
        self.records = records
        self.invalid: set[int] = set(records.load("invalid") or [])
        self.tests: list[Test] = []
        self._most = 0

    def build(self, places: Mapping[int, tuple[str, int, int]], sources: Mapping[str, str]) -> None:
        """Builds the tests and the library.

        Args:
            places: By number of the mutant, from 1 on: its file, and the begin and the end of the
                replaced text.
            sources: The files.

        Raises:
            SystemExit: If the build fails, and not at a mutant.
        """
        self._most = max(places)
        shutil.copy2(pathlib.Path(__file__).with_name("mutant_switch.h"), self.tree / SWITCH)
        targets = self._query()
        while True:
            by_file: dict[str, dict[int, tuple[int, int]]] = collections.defaultdict(dict)
            for number, (path, begin, end) in places.items():
                if number not in self.invalid:
                    by_file[path][number] = (begin, end)
            for path in {path for path, _, _ in places.values()}:
                changed = with_switches(sources[path], by_file[path])
                if (self.tree / path).read_text() != changed:
                    (self.tree / path).write_text(changed)
            done = self.bazel("build", "--keep_going", "//:_tf_embed.so", *targets)
            if done.returncode == 0:
                break
            wrong = {(path, int(line)) for path, line in MENTION.findall(done.stdout)}
            dropped = {
                number
                for path, numbers in by_file.items()
                for number, (begin, _) in numbers.items()
                if (path, sources[path].count("\n", 0, begin) + 1) in wrong
            }
            if not dropped:
                sys.exit(f"The tests with mutants do not build:\n{done.stdout[-6000:]}")
            self.invalid |= dropped
        self.records.save("invalid", sorted(self.invalid))
        folder = self.bazel("info", "bazel-bin").stdout.strip().splitlines()[-1]
        for target in targets:
            program = pathlib.Path(folder, *target.strip("/").split(":"))
            self.tests += [Test(program, target, one) for one in self._cases(program, target)]
        shutil.copy2(pathlib.Path(folder, "_tf_embed.so"), self.tree / "tf_embed")

    def _query(self) -> list[str]:
        listed = self.bazel("query", TESTS, "--output=label").stdout.split()
        return [one for one in listed if one.startswith("//")]

    def _cases(self, program: pathlib.Path, target: str) -> list[tuple[str, ...]]:
        if "/fuzz:" in target:
            corpus = target.strip("/").replace(":", "/corpus/").removesuffix("_replay_test")
            return [(corpus,) if (self.tree / corpus).is_dir() else ()]
        command = [program, "--gtest_list_tests"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [(f"--gtest_filter={case}",) for case in cases_of(listed)]

    def measure(self, jobs: int) -> tuple[list[str], list[str]]:
        """Runs each case without a mutant, and keeps those that pass within the budget.

        Args:
            jobs: The number of cases at a time.

        Returns:
            The names of the cases that took longer, and of those that failed.
        """
        found = self.records.load("cases")
        if found is None:
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                statuses = list(pool.map(self._measured, self.tests))
            found = {
                test.name: [status, test.seconds, sorted(test.reached)]
                for test, status in zip(self.tests, statuses, strict=True)
            }
            self.records.save("cases", found)
        slow = [name for name, one in found.items() if one[0] is None]
        failed = [name for name, one in found.items() if one[0] not in (0, None)]
        self.tests = [test for test in self.tests if found[test.name][0] == 0]
        for test in self.tests:
            _, test.seconds, reached = found[test.name]
            test.reached = frozenset(reached)
        self.tests.sort(key=lambda test: test.seconds)
        return slow, failed

    def _measured(self, test: Test) -> int | None:
        with tempfile.NamedTemporaryFile() as reached:
            reached.truncate(self._most + 1)
            begin = time.monotonic()
            status = self.run(test, self.budget, {"TF_EMBED_MUTANTS_REACHED": reached.name})
            test.seconds = time.monotonic() - begin
            marks = pathlib.Path(reached.name).read_bytes()
        test.reached = frozenset(i for i, mark in enumerate(marks) if mark)
        return status

    def run(self, test: Test, seconds: float, variables: Mapping[str, str]) -> int | None:
        """The exit status of a test, or None if it takes too long."""
        runfiles = test.program.with_name(test.program.name + ".runfiles")
        (workspace,) = [one for one in runfiles.iterdir() if (one / "tests").is_dir()]
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TEST_TMPDIR": folder, "TEST_SRCDIR": str(runfiles)}
            process = subprocess.Popen(
                [test.program, *test.arguments],
                cwd=workspace,
                env={**environment, "GTEST_FAIL_FAST": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                # Its children too.
                subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
                process.wait()

    def try_mutant(self, number: int, folder: str) -> tuple[str, str]:
        """Tries a mutant.

        Args:
            number: Its number.
            folder: The folder of its file, whose tests come first.

        Returns:
            "caught", "survived" or "invalid", and the case that caught it.
        """
        if number in self.invalid:
            return "invalid", ""
        near = f"//tests/{folder}:"
        tests = [test for test in self.tests if number in test.reached]
        tests.sort(key=lambda test: (not test.label.startswith(near), test.seconds))
        for test in fitting(tests, lambda test: test.seconds, self.budget):
            status = self.run(test, 20 + 5 * test.seconds, {"TF_EMBED_MUTANT": str(number)})
            if status != 0:
                return "caught", test.name
        return "survived", "" if tests else "no C++ test evaluates it"

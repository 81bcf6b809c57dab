# SPDX-License-Identifier: Apache-2.0
"""Breaks the code in one place at a time, and counts how often the tests fail.

    python tests/campaigns/mutants.py [--mutants=30] [--seed=1] [--rooms=cc/core,tf_embed/table]
    python tests/campaigns/mutants.py --list         prints the mutants, and runs none

A mutant has one comparison, operator or constant changed, in a copy of the tree. All are made at
once, behind switches (mutant_switches.py, python_switches.py), so that a test can tell which places
it evaluates. A mutant of C++ is tried with the C++ tests that evaluate its place, and then with the
quick tests of Python that do. A mutant of Python is tried with the tests of `--tests` that evaluate
its place. Both take `--budget` seconds at most, so the number of caught mutants is a lower bound. A
mutant that does not compile is replaced by another one, as is one of equivalent_mutants.toml, which
no test can tell from the code. Tests that fail on the unchanged code are named and not tried. The
last line has the figures. The exit status is 1 if there were such tests, or if fewer than `--share`
were caught.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import mutant_records
import mutant_switches
import python_switches

ROOT = pathlib.Path(__file__).resolve().parents[2]
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent_mutants.toml")
ROOMS = ("cc/core", "tf_embed/optimizers", "tf_embed/table")
# The marks of the tests of Python that mutants of C++ are tried with.
QUICK = "smoke and not slow"
# The tests that mutants of Python are tried with: of the rooms that have mutants, and around them.
TESTS = (
    "tests/python/optimizers,tests/python/table,tests/python/variable,tests/python/layers,"
    "tests/tbe,tests/one_embedding,tests/distributed,tests/integration/api_golden_test.py"
)
# The tests that look at public constants and defaults.
DEFAULTS = "tests/integration/api_golden_test.py"

# The replacement of each operator in C++. Comparisons and operators have spaces around them,
# brackets of templates do not. mutant_switch.h makes them.
OPERATORS = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " != ",
    " != ": " == ",
    " && ": " && not ",
    " || ": " || not ",
    " + ": " - ",
    " - ": " + ",
    " += ": " -= ",
    " | ": " & ",
    " & ": " | ",
    "true": "false",
    "false": "true",
}
CC_TOKEN = re.compile(
    "|".join(
        [
            *(re.escape(one) for one in sorted(OPERATORS, key=len, reverse=True) if " " in one),
            r"\b(?:true|false)\b",
            r"(?<![\w.])(?<!e-)\d+(?![\w.'])",
        ]
    )
)
# Lines that are no code, whose change does not affect its meaning, or that are evaluated by the
# compiler, so that a switch has no effect.
CC_SKIPPED = re.compile(
    r"^\s*(//|#|static_assert|template|using|namespace|case|enum|struct|class|\*)|_Pragma|prefetch"
    r"|alignas|\bconstexpr\b|\) (const )?(override )?= 0;|^\s*k[A-Z]\w* = \d+,|\w\[\d+\] = {"
)
# The first line of a function that the compiler may evaluate.
CC_CONSTEXPR = re.compile(r"(inline )?constexpr .*\{$")
PYTHON_OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.And: "or",
    ast.Or: "and",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes:
        path: The file, from the root of the tree.
        begin: The start of the replaced text, in characters.
        end: The end of the replaced text, exclusive.
        text: The replacement.
    """

    path: str
    begin: int
    end: int
    text: str

    def made(self, source: str) -> str:
        """The changed file."""
        return source[: self.begin] + self.text + source[self.end :]

    def change(self, source: str) -> str:
        """The text before and after it."""
        return f"{source[self.begin : self.end].strip()} -> {self.text.strip()}"

    def line(self, source: str) -> str:
        """The line of its place, without the white space around it."""
        return source.splitlines()[source.count("\n", 0, self.begin)].strip()

    def shown(self, source: str) -> str:
        """The change in a line."""
        number = source.count("\n", 0, self.begin) + 1
        return f"{self.path}:{number} {self.change(source)}    {self.line(source)}"


def mutants_of_cc(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a C++ file."""
    offset = 0
    is_constexpr = False
    for line in source.splitlines(keepends=True):
        code = line.split(" //")[0]
        # Nothing in a literal.
        code = re.sub(r'"(?:\\.|[^"\\])*"', lambda found: "~" * len(found[0]), code)
        if CC_CONSTEXPR.match(line):
            is_constexpr = True
        elif line.startswith("}"):
            is_constexpr = False
        if not is_constexpr and not CC_SKIPPED.search(line):
            for found in CC_TOKEN.finditer(code):
                text = OPERATORS.get(found[0]) or str(int(found[0]) + 1)
                yield Mutant(path, offset + found.start(), offset + found.end(), text)
        offset += len(line)


def mutants_of_python(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a Python file."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        start = starts[line - 1]
        return start + len(source[start : starts[line]].encode()[:column].decode())

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutant]:
        text = PYTHON_OPERATORS.get(type(operator))
        begin = place(left.end_lineno or 0, left.end_col_offset or 0)
        end = place(right.lineno, right.col_offset)
        # Brackets and line ends between the two stay.
        found = re.fullmatch(r"([\s)]*)([^\s()]+(?: (?:in|not))?)([\s(]*)", source[begin:end])
        if text is not None and found is not None:
            yield Mutant(path, begin + found.start(2), begin + found.end(2), text)

    tree = ast.parse(source)
    # Assertions hold in correct code, so no test can tell a weaker one: `assert`, and lengths that
    # `zip(..., strict=True)` compares.
    asserted = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.keyword) and ast.unparse(node) == "strict=True")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in asserted:
            continue
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for i, operator in enumerate(node.ops):
                yield from between(sides[i], sides[i + 1], operator)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, node.op)
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
            begin = place(node.lineno, node.col_offset)
            end = place(node.end_lineno or 0, node.end_col_offset or 0)
            other = not node.value if type(node.value) is bool else node.value + 1
            yield Mutant(path, begin, end, str(other))


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a file."""
    make = mutants_of_python if path.endswith(".py") else mutants_of_cc
    return list(make(path, source))


def equivalent_mutants() -> set[tuple[str, str, str]]:
    """The path, the line and the change of each mutant that no test can tell from the code."""
    return {
        (one["path"], line, change)
        for one in tomllib.loads(EQUIVALENT.read_text())["mutants"]
        for line in one["lines"]
        for change in one["changes"]
    }


def telling(
    drawn: Sequence[Mutant],
    sources: Mapping[str, str],
    equivalent: Collection[tuple[str, str, str]],
) -> list[Mutant]:
    """The mutants that are not equivalent to the code, in their order."""

    def key(one: Mutant) -> tuple[str, str, str]:
        source = sources[one.path]
        return one.path, one.line(source), one.change(source)

    return [one for one in drawn if key(one) not in equivalent]


def hash_of(text: str) -> str:
    """A hash of a source."""
    return hashlib.sha256(text.encode()).hexdigest()


def tracked(rooms: Sequence[str]) -> list[str]:
    """The files of some rooms that may be changed."""
    listed = subprocess.run(
        ["git", "ls-files", *rooms], cwd=ROOT, check=True, capture_output=True, text=True
    )
    suffixes = (".cc", ".h", ".py")
    return [path for path in listed.stdout.splitlines() if path.endswith(suffixes)]


class Tree:
    """A copy of the tree, in which mutants are made and tried."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.python = sys.executable
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHON": self.python}
        folder.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in listed.stdout.splitlines():
            source, copy = ROOT / name, folder / name
            if source.is_symlink() or not source.is_file():
                continue
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy)
        for name in ("_tf_embed.so", "_tf_embed.json", "libtf_embed_redis.so"):
            if (ROOT / "tf_embed" / name).exists():
                shutil.copy2(ROOT / "tf_embed" / name, folder / "tf_embed" / name)

    def run(
        self, *command: str, seconds: float | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command there; the status is 1 if it takes longer than `seconds`."""
        try:
            return subprocess.run(
                command,
                cwd=self.folder,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "")

    def bazel(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Bazel."""
        if not (self.folder / ".bazelrc.generated").exists():
            self.run("./configure.sh", "--cpu").check_returncode()
        return self.run(os.environ.get("BAZEL", "bazel"), *arguments)

    def pytest(
        self, arguments: Sequence[str], seconds: float | None, variables: Mapping[str, str]
    ) -> int:
        """Runs tests of Python, until they have taken too long."""
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return self.run(*command, seconds=seconds, **variables).returncode


class Campaign:
    """The outcomes of mutants, up to a number of trials.

    Attributes:
        counts: The number of mutants by outcome.
        failed: The names of the tests that fail on the unchanged code.
    """

    def __init__(self, arguments: argparse.Namespace, sources: dict[str, str]) -> None:
        self.arguments, self.sources = arguments, sources
        self.counts = {"caught": 0, "survived": 0, "invalid": 0, "broken": 0}
        self.failed: list[str] = []
        self.tree = Tree(pathlib.Path(arguments.tree))

    @property
    def tried(self) -> int:
        """The number of mutants that compiled."""
        return self.counts["caught"] + self.counts["survived"]

    def report(self, mutant: Mutant, outcome: str, test: str) -> None:
        """Counts and prints an outcome."""
        self.counts[outcome] += 1
        print(f"{outcome:8} {mutant.shown(self.sources[mutant.path])}    [{test}]", flush=True)

    def run_python(self, by_number: Mapping[int, Mutant]) -> None:
        """Tries mutants of Python."""
        if not by_number:
            return
        records = self.records("python", by_number)
        switch = self.tree.folder / python_switches.SWITCH
        shutil.copy2(pathlib.Path(__file__).with_name("mutant_switch.py"), switch)
        paths = sorted({one.path for one in by_number.values()})
        called = {path: number for number, path in enumerate(paths, max(by_number) + 1)}
        for path in paths:
            source = self.sources[path]
            made = {i: one.made(source) for i, one in by_number.items() if one.path == path}
            text = python_switches.with_switches(source, made, called[path])
            (self.tree.folder / path).write_text(text)
        tests = self.marked_tests(
            records,
            most=max(called.values()),
            tests=self.arguments.tests.split(","),
            mark="not slow",
            options=["-n", str(self.arguments.jobs), "--dist", "worksteal"],
            whole="tests/distributed/",
            defaults=DEFAULTS,
        )

        def try_mutant(number: int) -> tuple[str, str]:
            path = pathlib.PurePath(by_number[number].path)
            room = f"tests/python/{path.parts[1]}/"
            near = [f"{room}{path.stem}_test.py", f"tests/distributed/{path.stem}_test.py", room]
            return tests.outcome(number, called[by_number[number].path], near)

        self.try_all(by_number, try_mutant, records)

    def run_cc(self, by_number: Mapping[int, Mutant], wanted: int) -> None:
        """Tries `wanted` mutants of C++; those beyond replace the ones that do not compile."""
        if not by_number:
            return
        budget = self.arguments.budget
        records = self.records("cc", by_number)
        tests = mutant_switches.SwitchedTests(self.tree.folder, self.tree.bazel, records, budget)
        places = {number: (one.path, one.begin, one.end) for number, one in by_number.items()}
        tests.build(places, self.sources)
        slow, failed = tests.measure(self.arguments.jobs)
        self.failed += failed
        print(f"{len(tests.tests)} C++ cases; slow: {slow}; failed: {failed}", flush=True)
        python_tests = self.marked_tests(
            records, most=max(by_number), tests=["tests/python"], mark=QUICK
        )

        def try_mutant(number: int) -> tuple[str, str]:
            folder = str(pathlib.PurePath(by_number[number].path).parent)
            outcome, test = tests.try_mutant(number, folder)
            if outcome != "survived":
                return outcome, test
            of_python = python_tests.outcome(number)
            return (outcome, test) if of_python[0] == "survived" else of_python

        self.try_all(by_number, try_mutant, records, self.tried + wanted)

    def records(self, kind: str, by_number: Mapping[int, Mutant]) -> mutant_records.Records:
        """The records of the mutants of a language."""
        sources = {one.path: self.sources[one.path] for one in by_number.values()}
        drawn = [[number, *dataclasses.astuple(one)] for number, one in by_number.items()]
        hashed = {path: hash_of(text) for path, text in sorted(sources.items())}
        # A larger budget tries survivors of Python with more tests. In C++ it decides which cases
        # are tried at all.
        budget = self.arguments.budget if kind == "cc" else None
        campaign = [drawn, hashed, self.arguments.tests, budget]
        folder = self.tree.folder / "mutant_records" / kind
        return mutant_records.Records(folder, campaign, self.arguments.recorded)

    def marked_tests(
        self, records: mutant_records.Records, **options: Any
    ) -> python_switches.MarkedTests:
        """Tests of Python that say which places they evaluate."""
        marked = python_switches.MarkedTests(
            *(self.tree.folder, self.tree.pytest, records),
            budget=self.arguments.budget,
            **options,
        )
        failed = sorted(marked.failed)
        self.failed += failed
        print(f"{len(marked.found)} tests of Python; failed: {failed}", flush=True)
        return marked

    def try_all(
        self,
        by_number: Mapping[int, Mutant],
        try_mutant: Callable[[int], tuple[str, str]],
        records: mutant_records.Records,
        until: int | None = None,
    ) -> None:
        """Tries mutants, some at a time, until so many were tried."""
        outcomes = records.load("outcomes") or {}

        def try_unless_caught(number: int) -> tuple[str, str]:
            outcome, test = outcomes.get(str(number), ("", ""))
            return (outcome, test) if outcome == "caught" else try_mutant(number)

        with concurrent.futures.ThreadPoolExecutor(self.arguments.jobs) as pool:
            trials = [pool.submit(try_unless_caught, number) for number in by_number]
            for number, trial in zip(by_number, trials, strict=True):
                outcomes[str(number)] = trial.result()
                records.save("outcomes", outcomes)
                self.report(by_number[number], *trial.result())
                if until is not None and self.tried >= until:
                    pool.shutdown(cancel_futures=True)
                    return


def main() -> None:
    """Runs the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rooms", default=",".join(ROOMS), help="folders or files")
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument(
        "--tests",
        default=TESTS,
        help="those that mutants of Python are tried with",
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests of a mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--tree", default=str(ROOT / "build" / "mutants" / "tree"))
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="go on with a run of the same arguments: with its times and marks of all tests, and "
        "without the mutants that it caught; for Python, --budget may be larger",
    )
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    sources = {path: (ROOT / path).read_text() for path in tracked(arguments.rooms.split(","))}
    every = {path: mutants_of(path, source) for path, source in sources.items()}
    drawn = [one for mutants in every.values() for one in mutants]
    draw.shuffle(drawn)
    every_one = len(drawn)
    drawn = telling(drawn, sources, equivalent_mutants())
    left = every_one - len(drawn)
    print(f"{len(drawn)} mutants of {len(sources)} files, without {left} equivalent", flush=True)
    chosen = drawn[: arguments.mutants]
    if arguments.list:
        print(*(one.shown(sources[one.path]) for one in chosen), sep="\n")
        return
    # Beyond them as many of C++ as may not compile.
    spare = drawn[arguments.mutants :][: 20 + arguments.mutants // 4]
    of_cc = [one for one in chosen if not one.path.endswith(".py")]
    more = [one for one in spare if not one.path.endswith(".py")]
    campaign = Campaign(arguments, sources)
    # Numbers begin with 1, and are not used twice.
    cc = dict(enumerate(of_cc and of_cc + more, 1))
    python = [one for one in chosen if one.path.endswith(".py")]
    campaign.run_cc(cc, len(of_cc))
    campaign.run_python(dict(enumerate(python, 1 + len(cc))))
    counts, tried = campaign.counts, campaign.tried
    share = counts["caught"] / tried if tried else 0.0
    print(
        f"mutants: {tried} tried, {counts['caught']} caught ({share:.0%}), {counts['survived']} "
        f"survived, {counts['invalid']} did not compile, {counts['broken']} with tests that fail "
        f"without them, seed {arguments.seed}"
    )
    has_failed = campaign.failed or counts["broken"]
    sys.exit(0 if share >= arguments.share and not has_failed else 1)


if __name__ == "__main__":
    main()

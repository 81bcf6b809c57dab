# SPDX-License-Identifier: Apache-2.0
"""Breaks the code in one place at a time, and counts how often the tests fail.

    python tests/campaigns/mutants.py [--mutants=30] [--seed=1] [--rooms=cc/core,tf_embed/table]
    python tests/campaigns/mutants.py --list         prints the mutants, and runs none

A mutant has one comparison, operator or constant changed. It is made in a copy of the tree and
built there with the shared cache. The tests nearest to its file run: those of its folder and, if
they pass, those of the rooms above it. A mutant that does not compile is replaced by another one.
The last line has the figures. The exit status is 1 if fewer than `--share` were caught, or if the
tests fail on the unchanged code.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORE = "cc/core"
ROOMS = (CORE, "tf_embed/optimizers", "tf_embed/table")
# A mutant may make a loop endless.
TEST_SECONDS = 900

# The replacements of each operator in C++. Comparisons and operators have spaces around them,
# brackets of templates do not.
OPERATORS = {
    " < ": (" <= ",),
    " <= ": (" < ",),
    " > ": (" >= ",),
    " >= ": (" > ",),
    " == ": (" != ",),
    " != ": (" == ",),
    " && ": (" || ",),
    " || ": (" && ",),
    " + ": (" - ",),
    " - ": (" + ",),
    " += ": (" -= ",),
    " | ": (" & ",),
    " & ": (" | ",),
    "true": ("false",),
    "false": ("true",),
}
CC_TOKEN = re.compile(
    "|".join(
        [
            *(re.escape(one) for one in sorted(OPERATORS, key=len, reverse=True) if " " in one),
            r"\b(?:true|false)\b",
            r"(?<![\w.])\d+(?![\w.'])",
        ]
    )
)
# Lines that are no code, or whose change does not affect its meaning.
CC_SKIPPED = re.compile(r"^\s*(//|#|static_assert|template|using|namespace|\*)|_Pragma|prefetch")
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

    def shown(self, source: str) -> str:
        """The change in a line."""
        line = source.count("\n", 0, self.begin) + 1
        before = source[self.begin : self.end].strip()
        around = source.splitlines()[line - 1].strip()
        return f"{self.path}:{line} {before} -> {self.text.strip()}    {around}"


def mutants_of_cc(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a C++ file."""
    offset = 0
    for line in source.splitlines(keepends=True):
        code = line.split(" //")[0]
        # Nothing in a literal.
        code = re.sub(r'"(?:\\.|[^"\\])*"', lambda found: "~" * len(found[0]), code)
        if not CC_SKIPPED.search(line):
            for found in CC_TOKEN.finditer(code):
                token = found[0]
                texts = OPERATORS.get(token, ()) or (str(int(token) + 1),)
                for text in texts:
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

    for node in ast.walk(ast.parse(source)):
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


def tracked(rooms: Sequence[str]) -> list[str]:
    """The files of some rooms that may be changed."""
    listed = subprocess.run(
        ["git", "ls-files", *rooms], cwd=ROOT, check=True, capture_output=True, text=True
    )
    suffixes = (".cc", ".h", ".py")
    return [path for path in listed.stdout.splitlines() if path.endswith(suffixes)]


class Tree:
    """A copy of the tree, in which mutants are made and tried."""

    def __init__(self, folder: pathlib.Path, jobs: int, num_rings: int) -> None:
        self.folder = folder
        self.num_rings = num_rings
        self.jobs = jobs
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
        self.run(["./configure.sh", "--cpu"], check=True)

    def run(self, command: Sequence[str], check: bool = False) -> int:
        """Runs a command there; 1 if it takes too long."""
        log = self.folder.parent / "log"
        with log.open("w") as output:
            try:
                done = subprocess.run(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=TEST_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return 1
        if check and done.returncode != 0:
            sys.exit(f"{' '.join(command)} fails:\n{log.read_text()[-4000:]}")
        return done.returncode

    def bazel(self, verb: str, targets: Sequence[str]) -> int:
        """Builds or tests targets."""
        options = [f"--jobs={self.jobs}", "--test_timeout=300", "--notest_keep_going"]
        options = options if verb == "test" else options[:1]
        return self.run([os.environ.get("BAZEL", "bazel"), verb, *options, *targets])

    def pytest(self, paths: Sequence[str]) -> int:
        """Runs tests of Python until one fails."""
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
        return self.run([self.python, "-m", "pytest", *options, *paths])

    def rings(self, path: str) -> list[list[str]]:
        """The tests nearest to a file, and those around them."""
        folder, stem = str(pathlib.PurePath(path).parent), pathlib.PurePath(path).stem
        if path.endswith(".py"):
            room = folder.split("/")[1]
            own = f"tests/python/{room}"
            near = [f"{own}/{stem}_test.py"]
            rings = [near, [own], ["tests/python/variable"]]
            rings = [[one for one in ring if (self.folder / one).exists()] for ring in rings]
            return [ring for ring in rings if ring]
        own = f"tests/{folder}"
        near = [f"//{own}:{stem}_test"] if (self.folder / own / f"{stem}_test.cc").exists() else []
        around = [f"//{own}/..."] if (self.folder / own).is_dir() else []
        above = ["//tests/cc/core/table:table_contract_test", "//tests/cc/core/table:all"]
        return [ring for ring in (near, around, above) if ring]

    def try_mutant(self, mutant: Mutant | None, path: str) -> str:
        """Tries one, or the code as it is: "caught", "survived" or "invalid"."""
        file = self.folder / path
        source = file.read_text()
        is_python = path.endswith(".py")
        try:
            if mutant is not None:
                file.write_text(mutant.made(source))
            for ring in self.rings(path)[: self.num_rings]:
                if not is_python and self.bazel("build", ring) != 0:
                    return "invalid"
                failed = self.pytest(ring) if is_python else self.bazel("test", ring)
                if failed:
                    return "caught"
            return "survived"
        finally:
            file.write_text(source)


def main() -> None:
    """Runs the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rooms", default=",".join(ROOMS), help="folders or files")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none later")
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--rings", type=int, default=3, help="1: the nearest tests alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tree", default=str(ROOT / "build" / "mutants" / "tree"))
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    sources = {path: (ROOT / path).read_text() for path in tracked(arguments.rooms.split(","))}
    every = {path: mutants_of(path, source) for path, source in sources.items()}
    drawn = [one for mutants in every.values() for one in mutants]
    draw.shuffle(drawn)
    print(f"{len(drawn)} mutants of {len(sources)} files", flush=True)
    if arguments.list:
        print(*(one.shown(sources[one.path]) for one in drawn[: arguments.mutants]), sep="\n")
        return
    tree = Tree(pathlib.Path(arguments.tree), arguments.jobs, arguments.rings)
    until = time.monotonic() + arguments.seconds
    counts = {"caught": 0, "survived": 0, "invalid": 0}
    sound: set[str] = set()
    for mutant in drawn:
        if counts["caught"] + counts["survived"] == arguments.mutants or time.monotonic() > until:
            break
        folder = str(pathlib.PurePath(mutant.path).parent)
        if folder not in sound and tree.try_mutant(None, mutant.path) != "survived":
            sys.exit(f"The tests nearest to {mutant.path} fail on the code as it is.")
        sound.add(folder)
        outcome = tree.try_mutant(mutant, mutant.path)
        counts[outcome] += 1
        print(f"{outcome:8} {mutant.shown(sources[mutant.path])}", flush=True)
    tried = counts["caught"] + counts["survived"]
    share = counts["caught"] / tried if tried else 0.0
    print(
        f"mutants: {tried} tried, {counts['caught']} caught ({share:.0%}), {counts['survived']} "
        f"survived, {counts['invalid']} did not compile, seed {arguments.seed}"
    )
    sys.exit(0 if share >= arguments.share else 1)


if __name__ == "__main__":
    main()

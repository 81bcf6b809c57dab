# SPDX-License-Identifier: Apache-2.0
"""Mutants of Python behind switches, and the tests of Python that evaluate their places.

As with C++ (mutant_switches.py), all mutants are in one copy of the sources (mutant_switch.py). The
tests run once without any, and tell which places they evaluate. A mutant is tried with these alone.
"""

from __future__ import annotations

import ast
import collections
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mutant_records
import mutant_switches

SWITCH = "tf_embed/mutant_switch.py"
IMPORT = "from tf_embed.mutant_switch import plain as _plain_mutant"
# A place in a tree: from the root on, the field of each node, and the index in it if it is a list.
Place = tuple[tuple[str, int | None], ...]


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            yield from ((field, i, one) for i, one in enumerate(value) if isinstance(one, ast.AST))


def _at(root: ast.AST, place: Place) -> Any:
    node: Any = root
    for field, index in place:
        node = getattr(node, field)
        node = node if index is None else node[index]
    return node


def difference(one: ast.AST, other: ast.AST) -> Place:
    """The place of the smallest expression in which two trees differ.

    Args:
        one: A module.
        other: The module with a change in an expression.
    """
    place: list[tuple[str, int | None]] = []
    found: Place = ()
    while True:
        mine, others = list(_children(one)), list(_children(other))
        if type(one) is not type(other) or len(mine) != len(others):
            return found
        pairs = zip(mine, others, strict=True)
        parts = [(a, b) for a, b in pairs if ast.dump(a[2]) != ast.dump(b[2])]
        if len(parts) != 1:
            return found
        (field, index, one), (_, _, other) = parts[0]
        place.append((field, index))
        if isinstance(one, ast.expr) and isinstance(other, ast.expr):
            found = tuple(place)


def _plain(number: int) -> ast.Call:
    """The call that says whether a place stays as it is."""
    return ast.Call(ast.Name("_plain_mutant", ast.Load()), [ast.Constant(number)], [])


def with_switches(source: str, changed: Mapping[int, str], called: int) -> str:
    """A file of Python with mutants behind switches.

    Args:
        source: The file.
        changed: By number of the mutant, the file with its change.
        called: The number of a place that is evaluated whenever a function of the file is called.
    """
    tree = ast.parse(source)
    others = {number: ast.parse(text) for number, text in changed.items()}
    places = {number: difference(tree, other) for number, other in others.items()}
    # Inner expressions first, so that those around them have their switches.
    for number, place in sorted(places.items(), key=lambda one: -len(one[1])):
        switched = ast.IfExp(_plain(number), _at(tree, place), _at(others[number], place))
        field, index = place[-1]
        holder = _at(tree, place[:-1])
        if index is None:
            setattr(holder, field, switched)
        else:
            getattr(holder, field)[index] = switched
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = 1 if ast.get_docstring(node) is not None else 0
            node.body.insert(first, ast.Expr(_plain(called)))
    # After the docstring and the imports from __future__.
    first = 1 if ast.get_docstring(tree) is not None else 0
    while isinstance(tree.body[first], ast.ImportFrom) and tree.body[first].module == "__future__":
        first += 1
    tree.body[first:first] = ast.parse(IMPORT).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class MarkedTests:
    """Tests of Python, and the places of mutants that each evaluates.

    Attributes:
        found: By the name of a test or of a whole file, the numbers of the mutants whose places it
            evaluates, and its seconds without a mutant.
        imported: The numbers of the mutants whose places are evaluated before the first test.
        failed: The names of the tests that fail without a mutant, so that none is tried with them.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        run: Callable[..., int],
        records: mutant_records.Records,
        *,
        most: int,
        budget: float,
        tests: Sequence[str],
        mark: str,
        options: Sequence[str] = (),
        whole: str = "",
        defaults: str = "",
    ) -> None:
        """Runs all of them, unless that was done before.

        Args:
            folder: The tree.
            run: Runs pytest there with arguments, a number of seconds or None, and variables of the
                environment; returns its status.
            records: Results of an earlier run, which are not found again.
            most: The largest number of a mutant.
            budget: The seconds that the tests of a mutant may take together.
            tests: Folders or files.
            mark: The marks of the tests to run.
            options: Arguments of pytest for the first run, for instance `-n` and processes.
            whole: The beginning of the names of files that are tried as one test each, because
                their tests share a run of programs; none if empty. Of them, those in which a test
                has failed are not tried.
            defaults: The name of the file with the tests that look at constants and defaults; none
                if empty. They come first for a mutant whose place is evaluated before all tests.

        Raises:
            SystemExit: If they can't be run.
        """
        self._run, self._budget, self._mark, self._defaults = run, budget, mark, defaults
        lines = records.load("tests")
        if lines is None:
            marks, results = folder / "mutant_marks.bin", folder / "mutant_tests.jsonl"
            for old in folder.glob("mutant_tests.jsonl*"):
                old.unlink()
            marks.write_bytes(bytes(most + 1))
            variables = {
                "TF_EMBED_MUTANTS_REACHED": str(marks),
                "TF_EMBED_MUTANTS_TESTS": str(results),
                "PYTHONPATH": f"{folder}{os.pathsep}{pathlib.Path(__file__).parent}",
            }
            # 1: some have failed.
            arguments = ["-p", "mutant_marks", "-m", mark, *options, *tests]
            if run(arguments, None, variables) not in (0, 1):
                sys.exit(f"Tests in {', '.join(tests)} can't be run.")
            files = [path.read_text() for path in folder.glob("mutant_tests.jsonl*")]
            lines = [json.loads(line) for text in files for line in text.splitlines()]
            records.save("tests", lines)
        self.found = {one["test"]: one for one in lines if "test" in one}
        self.imported = {number for one in lines for number in one.get("imported", [])}
        self.failed = {one["failed"] for one in lines if "failed" in one}
        for name in [one for one in self.found if whole and one.startswith(whole)]:
            test, path = self.found.pop(name), name.partition("::")[0]
            if any(one.startswith(f"{path}::") for one in self.failed):
                continue
            file = self.found.setdefault(path, {"reached": [], "seconds": 0.0})
            file["reached"] += test["reached"]
            file["seconds"] += test["seconds"]

    def chosen(self, number: int, called: int = 0, near: Sequence[str] = ()) -> list[str]:
        """The names of the tests that a mutant is tried with, in their order.

        Of each class of tests the quickest one comes first, and then the next one of each, because
        the tests of a class resemble each other.

        Args:
            number: Its number.
            called: The number of the calls of its file. The tests that make any are tried with a
                mutant whose place is evaluated before the first test.
            near: The beginnings of the names of the tests that come before all others.
        """

        def reaches(name: str) -> bool:
            reached = self.found[name]["reached"]
            is_called = number in self.imported and called in reached
            return number in reached or is_called or looks_at_defaults(name)

        def looks_at_defaults(name: str) -> bool:
            is_such = bool(self._defaults) and name.startswith(f"{self._defaults}::")
            return is_such and number in self.imported

        names = [name for name in self.found if reaches(name)]
        turns: collections.Counter[str] = collections.Counter()
        ranks: dict[str, tuple[int, int, float]] = {}
        for name in sorted(names, key=self._seconds):
            distance = next((i for i, one in enumerate(near) if name.startswith(one)), len(near))
            kind = name.rpartition("::")[0] or name
            first = -1 if looks_at_defaults(name) else distance
            ranks[name] = first, turns[kind], self._seconds(name)
            turns[kind] += 1
        names.sort(key=lambda name: ranks[name])
        return mutant_switches.fitting(names, self._seconds, self._budget)

    def _seconds(self, name: str) -> float:
        return float(self.found[name]["seconds"])

    def outcome(self, number: int, called: int = 0, near: Sequence[str] = ()) -> tuple[str, str]:
        """Tries a mutant.

        Args:
            number: Its number.
            called: As in `chosen`.
            near: As in `chosen`.

        Returns:
            "caught", "survived", or "broken" if the tests do not pass without the mutant; and a
            text for the report.
        """
        names = self.chosen(number, called, near)
        if not names:
            return "survived", "no test evaluates it"
        said = f"{len(names)} tests of Python"
        arguments = ["-x", "-m", self._mark, *names]
        seconds = 60 + 5 * max(self._budget, sum(map(self._seconds, names)))
        if not self._run(arguments, seconds, {"TF_EMBED_MUTANT": str(number)}):
            return "survived", said
        return "broken" if self._run(arguments, seconds, {}) else "caught", said

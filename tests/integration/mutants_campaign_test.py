# SPDX-License-Identifier: Apache-2.0
"""The changes of the campaign of mutants, and that it sees which ones tests catch."""

from __future__ import annotations

import ast
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "campaigns"))
import mutant_switches
import mutants

CC = """// a < b
#include <vector>
template <typename T>
int Least(const std::vector<int>& v) {  // 1 < 2
  constexpr size_t kMost = 0x10;
  if (v.size() < 2 && v[0] == 3) return f("1 < 2", true);
  return a + 1;
}
"""
# It prints each value that a mutant changes.
PROGRAM = """#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
int Side(int* count, int value) {
  ++*count;
  return value;
}
int main() {
  const std::vector<int> v(4);
  unsigned u = 3;
  double d = 0.5;
  int count = 0;
  const int one = Side(&count, 1);
  const int value = one;
  std::printf("%d %d ", one < value, v.size() <= v.size());
  if (std::getenv("ONLY")) return 0;
  std::printf("%d %d ", one > value, value >= one);
  std::printf("%d %d ", one == value, v.begin() != v.end());
  std::printf("%d %d ", Side(&count, one) && one, Side(&count, one - one) || one);
  std::printf("%u %g ", u + 2, d - 2);
  u += Side(&count, 1) * 3 + 2;
  d += 2 * d;
  std::printf("%u %g %d %d ", u, d, u | 6, count & 2);
  bool good = true;
  bool bad = false;
  std::string text = "a";
  std::printf("%d %d %d %d ", good, bad, count, static_cast<int>(text.size()) + 1);
}
"""
PYTHON = """def f(a, b=3):
    \"\"\"a < b\"\"\"
    if a < b and (a in (1,)):
        return not True
    return "é", (a) + (b)
"""


class MutantsTest(parameterized.TestCase):
    def test_mutants_of_cc(self):
        found = [one.shown(CC).split("    ")[0] for one in mutants.mutants_of("x.cc", CC)]
        wanted = ["6 < -> <=", "6 2 -> 3", "6 && -> && not", "6 0 -> 1", "6 == -> !=", "6 3 -> 4"]
        wanted += ["6 true -> false", "7 + -> -", "7 1 -> 2"]
        self.assertEqual(found, [f"x.cc:{one}" for one in wanted])

    def test_mutants_of_python(self):
        found = {one.shown(PYTHON).split("    ")[0] for one in mutants.mutants_of("x.py", PYTHON)}
        wanted = {"1 3 -> 4", "3 < -> <=", "3 and -> or", "3 in -> not in", "3 1 -> 2"}
        wanted |= {"4 True -> False", "5 + -> -"}
        self.assertEqual(found, {f"x.py:{one}" for one in wanted})

    @parameterized.parameters("tf_embed/table/policies.py", "tf_embed/optimizers/trainer.py")
    def test_each_mutant_of_a_module_can_be_read(self, path):
        source = (mutants.ROOT / path).read_text()
        made = [one.made(source) for one in mutants.mutants_of(path, source)]
        self.assertGreater(len(made), 5)
        for text in made:
            ast.parse(text)
            self.assertNotEqual(text, source)

    def test_outcomes(self):
        tree = object.__new__(PlantedTree)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        tree.folder = pathlib.Path(folder.name)
        (tree.folder / "x.py").write_text("limit = 1\n")
        (mutant,) = mutants.mutants_of("x.py", "limit = 1\n")
        self.assertEqual(tree.try_mutant(None, "x.py"), ("survived", ""))
        self.assertEqual(tree.try_mutant(mutant, "x.py"), ("caught", "x.py"))
        tree.tests = "assert limit > 0"  # they are none for this mutant
        self.assertEqual(tree.try_mutant(mutant, "x.py"), ("survived", ""))
        self.assertEqual((tree.folder / "x.py").read_text(), "limit = 1\n")


class SwitchesTest(absltest.TestCase):
    """The switches of mutant_switch.h, in programs."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        header = cls.folder / mutant_switches.SWITCH
        header.parent.mkdir(parents=True)
        campaigns = pathlib.Path(mutants.__file__).parent
        shutil.copy2(campaigns / "mutant_switch.h", header)
        cls.mutants = mutants.mutants_of("program.cc", PROGRAM)
        places = {i: (one.begin, one.end) for i, one in enumerate(cls.mutants, 1)}
        text = mutant_switches.with_switches(PROGRAM, places)
        (cls.folder / "program.cc").write_text(text)
        cls._compile(["program.cc", "-o", "program"])

    @classmethod
    def _compile(cls, arguments):
        command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{cls.folder}"]
        subprocess.run([*command, *arguments], cwd=cls.folder, check=True)

    def _printed(self, **variables):
        done = subprocess.run(
            [self.folder / "program"], env=variables, capture_output=True, text=True, check=True
        )
        return done.stdout

    def test_a_program_without_a_mutant_is_as_it_was(self):
        (self.folder / "plain.cc").write_text(PROGRAM)
        self._compile(["plain.cc", "-o", "plain"])
        plain = subprocess.run(
            [self.folder / "plain"], capture_output=True, text=True, check=True
        ).stdout
        self.assertEqual(self._printed(), plain)
        self.assertLen(plain.split(), 18)

    def test_each_mutant_is_the_change_of_the_text(self):
        seen = set()
        for number, mutant in enumerate(self.mutants, 1):
            text = mutant.made(PROGRAM).replace(" not ", " !")
            (self.folder / "made.cc").write_text(text)
            self._compile(["made.cc", "-o", "made", "-Wno-error"])
            made = subprocess.run([self.folder / "made"], capture_output=True, text=True).stdout
            with self.subTest(mutant.shown(PROGRAM)):
                self.assertEqual(self._printed(TF_EMBED_MUTANT=str(number)), made)
            if made != self._printed():
                seen.add(mutant.text.strip())
        operators = {text.strip() for text in mutants.OPERATORS.values()}
        self.assertEqual(operators - seen, set())

    def test_reached(self):
        marks = self.folder / "marks"
        marks.write_bytes(bytes(len(self.mutants) + 1))
        self._printed(TF_EMBED_MUTANTS_REACHED=str(marks))
        most = sum(marks.read_bytes())
        self.assertGreater(most, len(self.mutants) - 4)  # those that && and the like pass over
        marks.write_bytes(bytes(len(self.mutants) + 1))
        self._printed(TF_EMBED_MUTANTS_REACHED=str(marks), ONLY="1")
        self.assertLess(sum(marks.read_bytes()), most)


LISTED = """Running main() from gtest_main.cc
Plain.
  One
  Two
Sizes/Typed/0.  # TypeParam = int
  Three
Sizes/Values.
  Four/0  # GetParam() = 3
"""
TESTS_OF_MARKS = """import os

def mark(*numbers):
    if "TF_EMBED_MUTANTS_REACHED" not in os.environ:
        return
    with open(os.environ["TF_EMBED_MUTANTS_REACHED"], "r+b") as file:
        for number in numbers:
            file.seek(number)
            file.write(b"1")

def test_one():
    mark(1, 3)

def test_two():
    mark(2)

def test_none():
    pass
"""


class ChoiceTest(absltest.TestCase):
    """The tests that a mutant is tried with."""

    def test_cases(self):
        cases = ["Plain.One", "Plain.Two", "Sizes/Typed/0.Three", "Sizes/Values.Four/0"]
        self.assertEqual(mutant_switches.cases_of(LISTED), cases)

    def test_as_many_as_the_budget_has_room_for(self):
        self.assertEqual(mutant_switches.fitting([1, 2, 3], float, 3.5), [1, 2])
        self.assertEqual(mutant_switches.fitting([1, 2, 3], float, 6), [1, 2, 3])
        self.assertEqual(mutant_switches.fitting([4, 1], float, 3), [4])
        self.assertEqual(mutant_switches.fitting([], float, 3), [])

    def test_python_tests_that_evaluate_a_place(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        (folder / "tests" / "python").mkdir(parents=True)
        (folder / "tests" / "python" / "marks_test.py").write_text(TESTS_OF_MARKS)
        tree = object.__new__(mutants.Tree)
        tree.folder, tree.python, tree.environment = folder, sys.executable, dict(os.environ)
        with mock.patch.object(mutants, "QUICK", "not slow"):
            tests = mutants.PythonTests(tree, 3, 60.0)
        one, two = (f"tests/python/marks_test.py::test_{name}" for name in ("one", "two"))
        self.assertEqual(tests.chosen(1), [one])
        self.assertEqual(tests.chosen(2), [two])
        self.assertEqual(tests.chosen(3), [one])
        self.assertEqual(tests.chosen(0), [])
        self.assertFalse(tests.catch(1))  # it passes, without a library
        (folder / "tests" / "python" / "marks_test.py").write_text(
            TESTS_OF_MARKS.replace("mark(2)", "assert os.environ.get('TF_EMBED_MUTANT') != '2'")
        )
        self.assertTrue(tests.catch(2))
        self.assertFalse(tests.catch(0))


class PlantedTree(mutants.Tree):
    """A tree of one module, whose tests are a statement."""

    tests = "assert limit == 1"

    def rings(self, path: str) -> list[list[str]]:
        return [[path]]

    def pytest(self, paths, marks="", **variables) -> int:
        try:
            exec((self.folder / paths[0]).read_text() + self.tests, {})
        except AssertionError:
            return 1
        return 0


if __name__ == "__main__":
    absltest.main()

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
import tomllib
from unittest import mock

from absl.testing import absltest, parameterized

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "campaigns"))
import mutant_records
import mutant_switch
import mutant_switches
import mutants
import python_switches

CC = """// a < b
#include <vector>
template <typename T>
int Least(const std::vector<int>& v) {  // 1 < 2
  constexpr size_t kMost = 0x10;
  if (v.size() < 2 && v[0] == 3) return f("1 < 2", true);
  return a + 1;
}
constexpr int Table(int size) {
  return size + 2;
}
enum class Kind {
  kFirst = 4,
};
const double a[2] = {0.5, 1.5};
struct B : A<false> {
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
    assert a < b or not b
    return "é", (a) + (b), zip(a, b, strict=True), zip(b, strict=False)
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
        wanted |= {"4 True -> False", "6 + -> -", "6 False -> True"}
        self.assertEqual(found, {f"x.py:{one}" for one in wanted})

    @parameterized.parameters("tf_embed/table/policies.py", "tf_embed/optimizers/trainer.py")
    def test_each_mutant_of_a_module_can_be_read(self, path):
        source = (mutants.ROOT / path).read_text()
        made = [one.made(source) for one in mutants.mutants_of(path, source)]
        self.assertGreater(len(made), 5)
        for text in made:
            ast.parse(text)
            self.assertNotEqual(text, source)


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


# It returns each value that a mutant changes.
VALUES = """'The docstring.'
from __future__ import annotations
import os
def added(a, b=3):
    return a + b
class Box:
    __sign = 1
    def value(self, x: int) -> int:
        return x * self.__sign
def values(v):
    found = []
    for a in (1, 2, 3):
        found += [a < 2, a <= 2, 1 < a < 3, a > 2, a >= 2, a == 2, a != 2]
        found += [a in (2, 7), a not in (2, 7), a - 1 + 4, a * 2 + 9 // a, f"{a + 1:4}"]
        found += [v[1:][a - a], added(a), added(a, b=a), Box().value(a) + 2]
        if a == 1 and v or a > 2 and not v:
            found.append([a is None, a is not None, True])
        v[0] = a
    return found + v
"""


class PythonSwitchesTest(absltest.TestCase):
    """The switches of mutant_switch.py."""

    def setUp(self):
        super().setUp()
        self.mutants = dict(enumerate(mutants.mutants_of("x.py", VALUES), 1))
        made = {number: one.made(VALUES) for number, one in self.mutants.items()}
        self.calls = len(self.mutants) + 1
        self.text = python_switches.with_switches(VALUES, made, self.calls)
        self.enterContext(mock.patch.dict(sys.modules, {"tf_embed.mutant_switch": mutant_switch}))

    def _values(self, text, chosen=0):
        with mock.patch.object(mutant_switch, "_chosen", chosen):
            module = {}
            try:
                exec(text, module)
                return module["values"]([5, 6, 7])
            except (ZeroDivisionError, IndexError, TypeError) as error:
                return str(error)

    def test_each_mutant_is_the_change_of_the_text(self):
        plain = self._values(VALUES)
        self.assertEqual(self._values(self.text), plain)
        seen = set()
        for number, mutant in self.mutants.items():
            wanted = self._values(mutant.made(VALUES))
            with self.subTest(mutant.shown(VALUES)):
                self.assertEqual(self._values(self.text, number), wanted)
            if wanted != plain:
                seen.add(mutant.text)
        self.assertEqual(set(mutants.PYTHON_OPERATORS.values()) - seen, set())

    def test_reached(self):
        marks = bytearray(self.calls + 1)
        with mock.patch.object(mutant_switch, "_reached", marks):
            exec(self.text, module := {})
            # The default of an argument and the sign of a class.
            self.assertEqual(sum(marks), 2)
            self.assertEqual(marks[self.calls], 0)
            module["added"](1)
            self.assertEqual(marks[self.calls], 1)
            module["values"]([5, 6, 7])
        self.assertEqual(list(marks), [0] + [1] * self.calls)

    def test_smallest_expression(self):
        def text(source, other):
            tree = ast.parse(source)
            place = python_switches.difference(tree, ast.parse(other))
            return ast.unparse(python_switches._at(tree, place))

        self.assertEqual(text("f(a + b * 2)", "f(a + b * 3)"), "2")
        self.assertEqual(text("f(a + b * 2)", "f(a + b + 2)"), "a + b * 2")
        self.assertEqual(text("if a < b and c: x = 1", "if a <= b and c: x = 1"), "a < b")
        self.assertEqual(text("a and b and c", "a or b and c"), "a and b and c")


class EquivalentTest(absltest.TestCase):
    """The mutants that no test can tell from the code."""

    def test_each_is_a_mutant_of_the_code_and_says_why(self):
        listed = tomllib.loads(mutants.EQUIVALENT.read_text())["mutants"]
        for one in listed:
            source = (mutants.ROOT / one["path"]).read_text()
            made = {
                (m.line(source), m.change(source)) for m in mutants.mutants_of(one["path"], source)
            }
            for line in one["lines"]:
                for change in one["changes"]:
                    self.assertIn((line, change), made, one["path"])
            self.assertGreater(len(one["why"].split()), 3)

    def test_they_are_not_tried(self):
        made = mutants.mutants_of("x.py", "a = b + 1\nc = b + 1\n")
        sources = {"x.py": "a = b + 1\nc = b + 1\n"}
        told = mutants.telling(made, sources, {("x.py", "a = b + 1", "+ -> -")})
        self.assertEqual(
            [one.shown(sources["x.py"]) for one in told],
            [
                "x.py:2 + -> -    c = b + 1",
                "x.py:1 1 -> 2    a = b + 1",
                "x.py:2 1 -> 2    c = b + 1",
            ],
        )


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

mark(4)

def test_one():
    mark(1, 3)

def test_two():
    mark(2)

def test_none():
    pass

def test_failed():
    mark(2)
    assert "TF_EMBED_MUTANTS_REACHED" not in os.environ
"""


class ChoiceTest(parameterized.TestCase):
    """The tests that a mutant is tried with."""

    def test_cases(self):
        cases = ["Plain.One", "Plain.Two", "Sizes/Typed/0.Three", "Sizes/Values.Four/0"]
        self.assertEqual(mutant_switches.cases_of(LISTED), cases)

    def test_as_many_as_the_budget_has_room_for(self):
        self.assertEqual(mutant_switches.fitting([1, 2, 3], float, 3.5), [1, 2])
        self.assertEqual(mutant_switches.fitting([1, 2, 3], float, 6), [1, 2, 3])
        self.assertEqual(mutant_switches.fitting([4, 1], float, 3), [4])
        self.assertEqual(mutant_switches.fitting([], float, 3), [])

    def marked(self, lines, **options):
        records = mock.Mock(load=lambda name: lines)
        arguments = {"most": 9, "budget": 60.0, "tests": ["near"], "mark": "not slow"}
        return python_switches.MarkedTests(
            pathlib.Path(), self.run_tests, records, **arguments | options
        )

    def run_tests(self, arguments, seconds, variables):
        """Tests of which `a::A::q` fails with any mutant, and `b.py` in any case."""
        self.ran = arguments
        fails = "a::A::q" in arguments and "TF_EMBED_MUTANT" in variables
        return int(fails or "b.py" in arguments)

    def test_the_quickest_of_each_class_come_first(self):
        seconds = {"a::A::p": 1.0, "a::A::q": 2.0, "a::B::r": 3.0, "b::C::s": 4.0, "b::C::t": 0.5}
        lines = [{"test": name, "reached": [1], "seconds": one} for name, one in seconds.items()]
        tests = self.marked(lines)
        order = ["b::C::t", "a::A::p", "a::B::r", "a::A::q", "b::C::s"]
        self.assertEqual(tests.chosen(1), order)
        self.assertEqual(tests.chosen(1, near=["a::"])[:3], ["a::A::p", "a::B::r", "a::A::q"])
        self.assertEqual(tests.outcome(1), ("caught", "5 tests of Python"))
        self.assertEqual(self.ran, ["-x", "-m", "not slow", *order])

    def test_outcomes(self):
        lines = [
            {"imported": [4]},
            {"test": "a::A::p", "reached": [1, 7], "seconds": 1.0},
            {"test": "a::A::q", "reached": [2], "seconds": 1.0},
            {"test": "b.py::t", "reached": [3], "seconds": 1.0},
            {"test": "c.py::t", "reached": [5], "seconds": 1.0},
            {"test": "c.py::u", "reached": [6], "seconds": 2.0},
            {"test": "d.py::t", "reached": [5], "seconds": 1.0},
            {"failed": "d.py::u"},
            {"test": "golden::t", "reached": [], "seconds": 1.0},
        ]
        tests = self.marked(lines, defaults="golden")
        self.assertEqual(tests.failed, {"d.py::u"})
        self.assertEqual(tests.outcome(0), ("survived", "no test evaluates it"))
        self.assertEqual(tests.outcome(1), ("survived", "1 tests of Python"))
        self.assertEqual(tests.outcome(2), ("caught", "1 tests of Python"))
        # A place that is evaluated by an import: the tests that look at defaults, and those that
        # call its file.
        self.assertEqual(tests.chosen(4), ["golden::t"])
        self.assertEqual(tests.chosen(4, called=7), ["golden::t", "a::A::p"])
        self.assertEqual(tests.chosen(4, called=7, near=["a::"]), ["golden::t", "a::A::p"])
        # Files as a whole.
        self.assertEqual(tests.chosen(5), ["c.py::t", "d.py::t"])
        whole = self.marked(lines, whole="c")
        self.assertEqual(whole.chosen(6), ["c.py"])
        self.assertEqual(whole.found["c.py"], {"reached": [5, 6], "seconds": 3.0})
        self.assertEqual(self.marked(lines, whole="d").chosen(5), ["c.py::t"], "a test of it fails")
        self.assertEqual(self.marked(lines, whole="b").outcome(3), ("broken", "1 tests of Python"))

    @parameterized.parameters([[]], [["-n", "2"]])
    def test_python_tests_that_evaluate_a_place(self, options):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        (folder / "near").mkdir()
        path = folder / "near" / "marks_test.py"
        path.write_text(TESTS_OF_MARKS)
        tree = object.__new__(mutants.Tree)
        tree.folder, tree.python, tree.environment = folder, sys.executable, dict(os.environ)

        def marked(test_folder, recorded=False):
            records = mutant_records.Records(folder / "records", test_folder, recorded)
            return python_switches.MarkedTests(
                *(folder, tree.pytest, records),
                most=4,
                budget=60.0,
                tests=[test_folder],
                mark="not slow",
                options=options,
            )

        with self.assertRaisesRegex(SystemExit, "Tests in far can't be run"):
            marked("far")
        tests = marked("near")
        one, two = (f"near/marks_test.py::test_{name}" for name in ("one", "two"))
        self.assertEqual(tests.failed, {"near/marks_test.py::test_failed"})
        self.assertEqual(tests.imported, {4})
        self.assertEqual(
            [tests.chosen(number) for number in range(5)], [[], [one], [two], [one], []]
        )
        self.assertEqual(tests.outcome(1)[0], "survived")  # it passes, without a library
        caught = "assert os.environ.get('TF_EMBED_MUTANT') != '2'"
        path.write_text(TESTS_OF_MARKS.replace("mark(2)", caught))
        self.assertEqual(tests.outcome(2)[0], "caught")
        # Goes on without another run; not with records of other tests.
        path.unlink()
        self.assertEqual(marked("near", recorded=True).found, tests.found)
        with self.assertRaisesRegex(SystemExit, "has no records of these mutants"):
            marked("far", recorded=True)


if __name__ == "__main__":
    absltest.main()

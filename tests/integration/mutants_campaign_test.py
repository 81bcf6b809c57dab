# SPDX-License-Identifier: Apache-2.0
"""The changes of the campaign of mutants, and that it sees which ones tests catch."""

from __future__ import annotations

import ast
import pathlib
import sys
import tempfile

from absl.testing import absltest, parameterized

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "campaigns"))
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
PYTHON = """def f(a, b=3):
    \"\"\"a < b\"\"\"
    if a < b and (a in (1,)):
        return not True
    return "é", (a) + (b)
"""


class MutantsTest(parameterized.TestCase):
    def test_mutants_of_cc(self):
        found = [one.shown(CC).split("    ")[0] for one in mutants.mutants_of("x.cc", CC)]
        wanted = ["6 < -> <=", "6 2 -> 3", "6 && -> ||", "6 0 -> 1", "6 == -> !=", "6 3 -> 4"]
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
        tree.num_rings = 1
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        tree.folder = pathlib.Path(folder.name)
        (tree.folder / "x.py").write_text("limit = 1\n")
        (mutant,) = mutants.mutants_of("x.py", "limit = 1\n")
        self.assertEqual(tree.try_mutant(None, "x.py"), "survived")
        self.assertEqual(tree.try_mutant(mutant, "x.py"), "caught")
        tree.tests = "assert limit > 0"  # they are none for this mutant
        self.assertEqual(tree.try_mutant(mutant, "x.py"), "survived")
        self.assertEqual((tree.folder / "x.py").read_text(), "limit = 1\n")


class PlantedTree(mutants.Tree):
    """A tree of one module, whose tests are a statement."""

    tests = "assert limit == 1"

    def rings(self, path: str) -> list[list[str]]:
        return [[path]]

    def pytest(self, paths) -> int:
        try:
            exec((self.folder / paths[0]).read_text() + self.tests, {})
        except AssertionError:
            return 1
        return 0


if __name__ == "__main__":
    absltest.main()

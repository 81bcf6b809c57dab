# SPDX-License-Identifier: Apache-2.0
"""What the default tier leaves out: the slow cases, but never all cases of a function."""

from __future__ import annotations

from absl.testing import absltest

from support import ROOT, tiers
from support.tiers import SlowCases

NOTHING = SlowCases.read("")


def grid(cases: int, seconds: float) -> dict[str, float]:
    return {f"f[{i}]": seconds for i in range(cases)}


class SlowCasesTest(absltest.TestCase):
    def test_a_function_keeps_its_cheapest_case(self):
        functions = {"f": {"f[0]": 3.0, "f[1]": 1.5, "f[2]": 2.0}, "g": {"g": 60.0}}
        self.assertEqual(SlowCases.of(functions, NOTHING).slow, {"f[0]", "f[2]"})

    def test_a_quick_case_is_not_slow(self):
        self.assertEmpty(SlowCases.of({"f": grid(4, 0.9)}, NOTHING).slow)

    def test_a_case_near_the_limit_stays_where_it_is(self):
        before = SlowCases(frozenset({"f[0]", "f[1]"}), frozenset())
        functions = {"f": {"f[0]": 0.9, "f[1]": 0.5, "f[2]": 0.9, "f[3]": 0.1}}
        self.assertEqual(SlowCases.of(functions, before).slow, {"f[0]"})

    def test_a_grid_has_five_cases_that_take_two_seconds(self):
        functions = {"few": grid(4, 0.9), "cheap": grid(100, 0.01), "grid": grid(5, 0.5)}
        self.assertEqual(SlowCases.of(functions, NOTHING).grids, {"grid"})

    def test_the_file_is_read_as_it_was_written(self):
        found = SlowCases(frozenset({"a.py::f[x y]", "b.py::g"}), frozenset({"a.py::f"}))
        self.assertEqual(SlowCases.read(str(found)), found)

    def test_a_fifth_of_the_quick_cases_of_a_grid_is_drawn_and_other_days_draw_others(self):
        cases = list(grid(20, 0))
        slow_cases = SlowCases(frozenset(cases[:10]), frozenset({"f"}))
        drawn = [set(cases) - slow_cases.left_out({"f": cases}, day) for day in range(50)]
        for one in drawn:
            self.assertLen(one, 2)
            self.assertNoCommonElements(one, cases[:10])
        self.assertEqual(set.union(*drawn), set(cases[10:]))

    def test_a_function_of_slow_cases_alone_keeps_one(self):
        slow_cases = SlowCases(frozenset({"f[0]", "f[1]"}), frozenset())
        self.assertLen(slow_cases.left_out({"f": ["f[0]", "f[1]"]}, 1), 1)

    def test_each_name_in_the_file_is_of_a_file_in_the_tree(self):
        found = SlowCases.read(tiers.SLOW_CASES.read_text())
        files = {name.split("::")[0] for name in found.slow | found.grids}
        self.assertNotEmpty(files)
        self.assertEmpty({name for name in files if not (ROOT / name).is_file()})


if __name__ == "__main__":
    absltest.main()

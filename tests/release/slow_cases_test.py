# SPDX-License-Identifier: Apache-2.0
"""The cases that the default tier leaves out."""

from __future__ import annotations

import pytest
from absl.testing import absltest

from support import ROOT, tiers
from support.tiers import SlowCases

NOTHING = SlowCases.read("")


def slow_cases(*lines: str) -> SlowCases:
    return SlowCases.read("\n".join(lines))


def grid(cases: int, seconds: float) -> dict[str, float]:
    return {f"f[{i}]": seconds for i in range(cases)}


class SlowCasesTest(absltest.TestCase):
    def test_a_function_keeps_its_cheapest_case(self):
        functions = {"f": {"f[0]": 3.0, "f[1]": 1.5, "f[2]": 2.0}, "g": {"g": 60.0}}
        self.assertEqual(SlowCases.of(functions, NOTHING).slow, {"f[0]", "f[2]"})

    def test_a_quick_case_is_not_slow(self):
        self.assertEmpty(SlowCases.of({"f": grid(4, 0.4)}, NOTHING).slow)

    def test_a_case_near_the_limit_stays_where_it_is(self):
        before = slow_cases("slow f[0]", "slow f[1]")
        functions = {"f": {"f[0]": 0.4, "f[1]": 0.3, "f[2]": 0.4, "f[3]": 0.1}}
        self.assertEqual(SlowCases.of(functions, before).slow, {"f[0]"})

    def test_a_grid_has_five_cases_that_take_two_seconds(self):
        functions = {"few": grid(4, 0.6), "cheap": grid(100, 0.01), "grid": grid(5, 0.5)}
        self.assertEqual(SlowCases.of(functions, NOTHING).grids, {"grid"})

    def test_the_file_is_read_as_it_was_written(self):
        lines = ["grid a.py::f", "long a.py::g", "slow a.py::f[x y]", "slow b.py::g"]
        self.assertEqual(str(slow_cases(*lines)).splitlines()[-4:], lines)

    def test_a_fifth_of_the_quick_cases_of_a_grid_is_drawn_and_other_days_draw_others(self):
        cases = list(grid(20, 0))
        found = slow_cases("grid f", *(f"slow {case}" for case in cases[:10]))
        drawn = [set(cases) - found.left_out({"f": cases}, day) for day in range(50)]
        for one in drawn:
            self.assertLen(one, 2)
            self.assertNoCommonElements(one, cases[:10])
        self.assertEqual(set.union(*drawn), set(cases[10:]))

    def test_a_function_of_slow_cases_alone_keeps_one(self):
        found = slow_cases("slow f[0]", "slow f[1]")
        self.assertLen(found.left_out({"f": ["f[0]", "f[1]"]}, 1), 1)

    def test_a_fifth_of_the_long_functions_is_drawn(self):
        self.assertEqual(SlowCases.of({"f": {"f": 3.5}, "g": {"g": 1.25}}, NOTHING).long, {"f"})
        found = slow_cases("long f")
        drawn = sum(not found.left_out({"f": ["f"]}, day) for day in range(1000))
        self.assertBetween(drawn, 100, 300)
        self.assertEmpty(set.union(*(found.left_out({"f": ["f"]}, day, {"f"}) for day in range(9))))

    def test_a_case_that_was_skipped_is_not_the_cheapest(self):
        writer = tiers.Writer()
        for case, phase, outcome, seconds in (
            ("f[0]", "setup", "skipped", 0.0),
            ("f[0]", "teardown", "passed", 0.0),
            ("f[1]", "setup", "passed", 1.0),
            ("f[1]", "call", "passed", 2.0),
            ("g", "call", "skipped", 9.0),
        ):
            known = [("case", (case[0], case))]
            report = pytest.TestReport(
                *(case, ("", 0, ""), {}, outcome, None, phase),
                duration=seconds,
                user_properties=known,
            )
            writer.pytest_runtest_logreport(report)
        self.assertEqual(writer.functions(), {"f": {"f[1]": 3.0}})

    def test_each_name_in_the_file_is_of_a_file_in_the_tree(self):
        found = SlowCases.read(tiers.SLOW_CASES.read_text())
        files = {name.split("::")[0] for name in found.slow | found.grids | found.long}
        self.assertNotEmpty(files)
        self.assertEmpty({name for name in files if not (ROOT / name).is_file()})


if __name__ == "__main__":
    absltest.main()

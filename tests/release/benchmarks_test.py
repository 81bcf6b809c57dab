# SPDX-License-Identifier: Apache-2.0
"""The computation of the published figures: ratios, verdicts, counted rows. No peer is needed."""

from __future__ import annotations

import dataclasses
import re
from unittest import mock

from absl.testing import absltest, parameterized

import goals
import report
import run
import sections
import timing
from machine import Load
from rows import OURS, Row
from sections import policies, tiers
from settings import Settings
from support import ROOT

IDLE = Load(average=1.0, others=0.0)
README = ROOT / "benchmarks" / "README.md"


def row(figures, load=IDLE):
    return Row("lookup", "a case", "ns/id", {OURS: 1.0}, load, figures=figures)


def figure(name, rows, failures=None):
    found = report.figures(rows, failures or {})
    return next(one for one in found if one.goal.name == name)


class TimingTest(absltest.TestCase):
    def test_all_get_the_same_fresh_batches_and_warm_up_is_not_counted(self):
        now, seen, numbers = [0.0], {OURS: [], "peer": []}, iter(range(100))

        def call(name, seconds):
            def run(batch):
                now[0] += seconds[len(seen[name])]
                seen[name].append(batch)

            return run

        rounds = timing.time_rounds(
            {OURS: call(OURS, [9.0, 1.0, 2.0]), "peer": call("peer", [9.0, 4.0, 4.0])},
            lambda: (next(numbers),),
            rounds=2,
            warm_up=1,
            clock=lambda: now[0],
        )
        self.assertEqual(seen, {OURS: [0, 1, 2], "peer": [0, 1, 2]})
        self.assertEqual(rounds.times, {OURS: [1.0, 2.0], "peer": [4.0, 4.0]})
        self.assertEqual(rounds.ratio("peer", OURS), 3.0)  # the median of 4 and 2


class ReportTest(parameterized.TestCase):
    @parameterized.parameters(("lookup_vs_tfra", 3.5), ("torn_rows", 5.0))
    def test_of_several_rows_the_worst_counts(self, name, worst):
        rows = [row({name: 3.5}), row({name: 5.0})]
        self.assertEqual(figure(name, rows).value, worst)

    @parameterized.parameters(
        ("lookup_vs_tfra", 4.0, "reached"),
        ("lookup_vs_tfra", 3.999, "must"),
        ("lookup_vs_tfra", 2.999, "missed"),
        ("overhead_bytes_per_key", 22.0, "reached"),
        ("overhead_bytes_per_key", 28.1, "missed"),
    )
    def test_verdict(self, name, value, verdict):
        self.assertEqual(figure(name, [row({name: value})]).verdict, verdict)

    def test_a_row_taken_beside_other_work_or_without_a_part_is_not_judged(self):
        name = "lookup_vs_tfra"
        busy = Load(average=1.0, others=report.MAX_OTHERS + 0.01)
        for found in (
            figure(name, [row({name: 9.0}, busy), row({name: 9.5})]),
            figure(name, [row({name: 9.0})], {"lookup": "it failed"}),
        ):
            self.assertEqual((found.value, found.verdict), (9.0, "not judged"))

    def test_the_page_has_the_place_for_results_once(self):
        text = README.read_text()
        self.assertEqual([text.count(run.RESULTS), text.count(run.END)], [1, 1])

    def test_the_plot_of_peers_has_figures_of_the_page(self):
        shown = re.findall(r">(\d+\.\d+)<", (ROOT / "docs/images/peers.svg").read_text())
        of_page = re.findall(r"^\| \w+ \| ([\d.]+) \|", README.read_text(), re.MULTILINE)
        self.assertGreater(len(shown), 10)
        self.assertContainsSubset(set(shown), set(of_page), "run `make pictures`")


class SectionsTest(absltest.TestCase):
    def test_every_goal_has_a_section_and_every_section_a_module(self):
        self.assertContainsSubset({goal.section for goal in goals.GOALS}, sections.PARTS)
        found = {path.stem for path in (ROOT / "benchmarks" / "sections").glob("*.py")}
        self.assertContainsSubset(sections.PARTS, found)

    def test_a_figure_at_the_floor_is_the_worst_of_the_rows(self):
        rows = [
            dataclasses.replace(row({"lookup_vs_tfra": value}), floors={"lookup_vs_tfra": floor})
            for value, floor in ((3.0, 5.0), (4.0, 4.5))
        ]
        rows.append(row({"lookup_vs_tfra": 2.0}))  # without a floor
        found = figure("lookup_vs_tfra", rows)
        self.assertEqual((found.value, found.floor), (2.0, 4.5))
        self.assertIn("| lookup_vs_tfra | 2 | 4.5 |", report.table([found]))

    def test_restriction_is_not_compared_if_other_rows_are_left(self):
        ours = {"seconds": 0.5, "rows": 100, "left": 50, "wanted_left": 50}
        memory = {"without": 10e6, "before": 30e6, "peak": 31e6, "after": 20e6}
        said = {OURS: {**ours, **memory}, "TFRA": {**ours, **memory, "left": 51}}
        with (
            mock.patch.object(policies, "_last_line", lambda command: dict(said[command[2]])),
            self.assertRaisesRegex(RuntimeError, "TFRA did not leave"),
        ):
            list(policies.rows("restrict frequency 100x16", Settings(quick=True)))

    def test_figures_of_tiers_are_medians_of_the_rounds_ratios(self):
        times = {"memory": (2.0, 8.0, 3.0), "disk": (4.0, 8.0, 12.0), "rocksdb": (16.0, 8.0, 36.0)}
        times["disk+prefetch"] = times["disk"]
        cells = [
            {"table": table, "hits": 0.9, "steps_ms": list(some)} for table, some in times.items()
        ]
        reads = (tiers.BATCH / 2, tiers.BATCH * 3 / 2)  # in a second, so 100 ms for the misses
        (found,) = tiers.step_rows("1e6x64", cells, IDLE, reads)
        self.assertEqual(found.figures, {"tiers_vs_rocksdb": 3.0})
        self.assertAlmostEqual(found.floors["tiers_vs_rocksdb"], 0.16)
        self.assertEqual(found.values[OURS], 8.0)


if __name__ == "__main__":
    absltest.main()

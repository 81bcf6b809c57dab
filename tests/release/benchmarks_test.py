# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own arithmetic: rounds, ratios, and verdicts. No peer is needed here."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import chart
import goals
import ids
import machine
import report
import run
import sections
import timing
from machine import Load
from rows import OURS, Row
from sections import policies, tiers
from settings import Settings
from support import ROOT
from warm_memory import WarmMemory

IDLE = Load(average=1.0, others=0.0)


class Clock:
    """A clock that each call moves on by its stated duration."""

    def __init__(self):
        self.now = 0.0

    def call(self, seconds, seen):
        def run(batch):
            self.now += seconds[len(seen) % len(seconds)]
            seen.append(batch)

        return run


def row(figures, load=IDLE, section="lookup"):
    return Row(section, "a case", "ns/id", {OURS: 1.0}, load, figures=figures)


def figure(name, rows, failures=None):
    found = report.figures(rows, failures or {})
    return next(one for one in found if one.goal.name == name)


class TimingTest(parameterized.TestCase):
    def test_ratio_is_the_median_of_the_rounds_ratios(self):
        rounds = timing.Rounds({OURS: [1.0, 10.0, 2.0], "peer": [3.0, 40.0, 2.0]})
        self.assertEqual(rounds.ratio("peer", OURS), 3.0)  # of 3, 4 and 1
        self.assertEqual(rounds.median("peer") / rounds.median(OURS), 1.5)  # which is another

    def test_each_implementation_comes_first_equally_often(self):
        firsts = [timing.rotated(["a", "b", "c"], number)[0] for number in range(-3, 6)]
        self.assertEqual(firsts, ["a", "b", "c"] * 3)
        self.assertEqual(timing.rotated(["a", "b", "c"], 1), ["b", "c", "a"])

    def test_all_get_the_same_fresh_batches_and_warm_up_is_not_counted(self):
        clock, ours, theirs = Clock(), [], []
        numbers = iter(range(100))
        rounds = timing.time_rounds(
            {OURS: clock.call([9.0, 1.0, 2.0], ours), "peer": clock.call([9.0, 4.0, 4.0], theirs)},
            lambda: (next(numbers),),
            rounds=2,
            warm_up=1,
            clock=lambda: clock.now,
        )
        self.assertEqual(ours, [0, 1, 2])
        self.assertEqual(theirs, ours)
        self.assertEqual(rounds.times, {OURS: [1.0, 2.0], "peer": [4.0, 4.0]})
        self.assertEqual(rounds.ratio("peer", OURS), 3.0)

    def test_a_round_of_several_calls_gives_the_time_of_one(self):
        clock, seen = Clock(), []
        rounds = timing.time_rounds(
            {OURS: clock.call([1.0, 3.0], seen)},
            lambda: (0,),
            rounds=1,
            calls_per_round=2,
            warm_up=0,
            clock=lambda: clock.now,
        )
        self.assertEqual(rounds.times, {OURS: [2.0]})

    def test_uncounted_calls_come_first_in_each_turn(self):
        clock, seen = Clock(), []
        rounds = timing.time_rounds(
            {OURS: clock.call([9.0, 1.0, 3.0], seen)},
            lambda: (0,),
            rounds=2,
            calls_per_round=2,
            uncounted_calls=1,
            warm_up=0,
            clock=lambda: clock.now,
        )
        self.assertEqual(rounds.times, {OURS: [2.0, 2.0]})

    def test_a_call_may_say_itself_how_long_it_took(self):
        rounds = timing.time_rounds(
            {OURS: lambda: timing.Seconds(3.0)}, lambda: (), rounds=2, calls_per_round=4
        )
        self.assertEqual(rounds.times, {OURS: [3.0, 3.0]})

    def test_worst_step_is_the_highest_rise_to_a_neighbour(self):
        costs = {(10, 1): 4.0, (10, 2): 1.0, (100, 1): 6.0, (100, 2): 1.3}
        flat = dict.fromkeys(costs, 1.0)
        self.assertEqual(timing.worst_step(costs, flat), (((10, 1), (100, 1)), 1.5))

    def test_a_rise_that_the_floor_shows_too_is_no_step(self):
        costs = {(10, 1): 4.0, (10, 2): 1.0, (100, 1): 6.0, (100, 2): 1.3}
        floors = {(10, 1): 2.0, (10, 2): 2.0, (100, 1): 3.0, (100, 2): 1.0}
        worst, factor = timing.worst_step(costs, floors)
        self.assertEqual(worst, ((10, 2), (100, 2)))  # there the floor falls: that is no excuse
        self.assertEqual(factor, 1.3)


class IdsTest(parameterized.TestCase):
    @parameterized.parameters("uniform", "1.2")
    def test_batches_are_fresh_and_in_range(self, name):
        drawn = ids.distribution(name, 1000)
        first, second = drawn.numbers(5000), drawn.numbers(5000)
        self.assertFalse(np.array_equal(first, second))
        self.assertBetween(first.min(), 0, 999)
        self.assertBetween(first.max(), 0, 999)

    def test_zipf_numbers_come_as_often_as_their_ranks_say(self):
        counts = np.sort(np.bincount(ids.distribution("1.2", 100).numbers(200_000)))[::-1]
        chances = np.arange(1, 101) ** -1.2
        expected = chances / chances.sum()
        # Three standard deviations of the three commonest.
        np.testing.assert_allclose(counts[:3] / 200_000, expected[:3], atol=0.0035)

    @parameterized.parameters(100, 1000, 10**6)
    def test_every_zipf_rank_has_a_number_of_its_own(self, count):
        drawn = ids.Zipf(count, 1.2)
        numbers = (np.arange(count) * drawn._step()) % count
        self.assertLen(np.unique(numbers), count)

    def test_keys_are_distinct(self):
        self.assertLen(np.unique(ids.keys_of(np.arange(10**5))), 10**5)


class ReportTest(parameterized.TestCase):
    def test_of_several_rows_the_lowest_counts(self):
        rows = [row({"lookup_vs_tfra": 5.0}), row({"lookup_vs_tfra": 3.5})]
        self.assertEqual(figure("lookup_vs_tfra", rows).value, 3.5)

    def test_where_less_is_better_the_highest_counts(self):
        rows = [row({"torn_rows": 0.0}), row({"torn_rows": 2.0})]
        self.assertEqual(figure("torn_rows", rows).value, 2.0)

    @parameterized.parameters((4.0, "reached"), (3.999, "must"), (3.0, "must"), (2.999, "missed"))
    def test_verdict_on_what_should_be_high(self, value, verdict):
        self.assertEqual(
            figure("lookup_vs_tfra", [row({"lookup_vs_tfra": value})]).verdict, verdict
        )

    @parameterized.parameters((22.0, "reached"), (28.0, "must"), (28.1, "missed"))
    def test_verdict_on_what_should_be_low(self, value, verdict):
        name = "overhead_bytes_per_key"
        self.assertEqual(figure(name, [row({name: value})]).verdict, verdict)

    def test_a_row_taken_beside_other_work_is_not_judged(self):
        busy = Load(average=1.0, others=report.MAX_OTHERS + 0.01)
        rows = [row({"lookup_vs_tfra": 9.0}, busy), row({"lookup_vs_tfra": 9.5})]
        found = figure("lookup_vs_tfra", rows)
        self.assertEqual(found.verdict, "not judged")
        self.assertIn("cores busy", found.why_not)
        self.assertEqual(found.value, 9.0)

    def test_the_load_of_the_benchmark_itself_does_not_count(self):
        found = figure("lookup_vs_tfra", [row({"lookup_vs_tfra": 9.0}, Load(2.5, 0.1))])
        self.assertEqual(found.verdict, "reached")

    def test_a_failed_part_leaves_its_section_not_judged(self):
        rows = [row({"lookup_vs_tfra": 9.0})]
        found = figure("lookup_vs_tfra", rows, {"lookup": "it failed"})
        self.assertEqual((found.verdict, found.why_not), ("not judged", "it failed"))

    def test_json_has_every_name_and_says_why_some_are_not_judged(self):
        line = report.json_line(report.figures([row({"lookup_vs_tfra": 4.56789})], {}))
        self.assertNotIn("\n", line)
        found = json.loads(line)
        self.assertContainsSubset(goals.BY_NAME, found)
        self.assertEqual(found["lookup_vs_tfra"], 4.568)
        self.assertIsNone(found["growth_vs_tfra"])
        self.assertEqual(found["not_judged"]["growth_vs_tfra"], "not measured")
        self.assertNotIn("lookup_vs_tfra", found["not_judged"])

    def test_tables_have_a_line_for_each_figure_and_each_row(self):
        rows = [row({"lookup_vs_tfra": 3.5})]
        lines = report.table(report.figures(rows, {"mht": "it failed"})).splitlines()
        self.assertLen(lines, 2 + len(goals.GOALS))
        found = next(line for line in lines if "| lookup_vs_tfra |" in line)
        self.assertIn("| 3.5 | >= 4 | >= 3 | must |", found)
        self.assertTrue(any("not judged: it failed" in line for line in lines))
        self.assertLen(report.row_table(rows).splitlines(), 3)

    @parameterized.parameters(
        ("lookup_vs_tfra", 4.0, 1.0),
        ("lookup_vs_tfra", 2.0, 0.5),
        ("overhead_bytes_per_key", 44.0, 0.5),
        ("torn_rows", 0.0, 1.0),
        ("torn_rows", 3.0, chart.LEAST),
        ("lookup_vs_tfra", 4e6, chart.MOST),
    )
    def test_chart_shows_how_many_times_the_goal_a_figure_is(self, name, value, expected):
        self.assertEqual(chart.reach(figure(name, [row({name: value})])), expected)

    def test_readme_has_the_place_for_results_once(self):
        text = (ROOT / "benchmarks" / "README.md").read_text()
        self.assertEqual([text.count(run.RESULTS), text.count(run.END)], [1, 1])

    def test_rows_survive_json(self):
        one = Row("lookup", "a", "ns", {OURS: 1.5}, IDLE, {"TFRA": 2.0}, {"lookup_vs_tfra": 2.0})
        self.assertEqual(Row.from_json(one.to_json()), one)

    def test_goals_ask_for_no_less_than_the_least(self):
        self.assertLen(goals.BY_NAME, len(goals.GOALS))
        for goal in goals.GOALS:
            if goal.must is not None:
                self.assertTrue(goal.reaches(goal.goal, goal.must), goal.name)


class PoliciesTest(parameterized.TestCase):
    def restricted(self, theirs):
        """The rows of a section whose processes print the values given here."""
        ours = {"seconds": 0.5, "rows": 100, "left": 50, "wanted_left": 50}
        memory = {"without": 10e6, "before": 30e6, "peak": 31e6, "after": 20e6}
        said = {OURS: {**ours, **memory}, "TFRA": {**ours, **memory, **theirs}}
        with mock.patch.object(policies, "_last_line", lambda command: dict(said[command[2]])):
            return list(policies.rows("restrict frequency 100x16", Settings(quick=True)))

    def test_restriction_is_compared_where_both_leave_the_same_rows(self):
        found = self.restricted({"seconds": 2.0, "peak": 70e6})
        self.assertEqual(found[0].figures, {"restrict_vs_tfra": 4.0})
        self.assertEqual(found[1].values, {OURS: 1.0, "TFRA": 40.0})
        self.assertEqual([one.values[OURS] for one in found[2:]], [20.0, 10.0])

    @parameterized.parameters({"rows": 99}, {"left": 51}, {"wanted_left": 49})
    def test_restriction_is_not_compared_where_other_rows_are_left(self, **theirs):
        with self.assertRaisesRegex(RuntimeError, "TFRA did not leave"):
            self.restricted(theirs)

    def test_the_worst_order_by_use_counts_for_bounded_steps(self):
        names = ("step_ms", "over_unbounded", "worst_ms", "hit_rate", "megabytes")
        overs = {"unbounded": 1.0, "lru": 1.1, "lfu": 1.25, "ttl": 1.2, "score": 3.0}
        tables = {order: dict.fromkeys(names, over) for order, over in overs.items()}
        with mock.patch.object(policies, "_last_line", lambda command: tables):
            found = list(policies.rows("bounded 1e6x64", Settings(quick=True)))
        said = [row.figures for row in found if row.figures]
        self.assertEqual(said, [{"bounded_step_over_unbounded": 1.25}])


class TiersTest(parameterized.TestCase):
    def cell(self, table, hits=0.99, steps=(4.0, 4.0), **more):
        return {"table": table, "hits": hits, "steps_ms": list(steps), **more}

    def cells(self, hits=0.99):
        return [
            self.cell("memory", hits, (2.0, 8.0, 3.0)),
            self.cell("disk", hits, (4.0, 8.0, 12.0)),
            self.cell("disk+prefetch", hits, (2.5, 10.0, 4.0)),
            self.cell("rocksdb", hits, (16.0, 8.0, 36.0)),
        ]

    @parameterized.parameters(
        (1.0, {"tiers_hits100_of_memory": 0.5}),
        (0.99, {"tiers_hits99_of_memory": 0.5, "tiers_hits99_prefetch_of_memory": 0.8}),
        (0.95, {}),
        (0.9, {"tiers_vs_rocksdb": 3.0}),
    )
    def test_figures_are_medians_of_the_rounds_ratios(self, hits, figures):
        (found,) = tiers.step_rows("1e6x64", self.cells(hits), IDLE)
        self.assertEqual(found.figures, figures)
        self.assertEqual(found.ratios[tiers.ROCKSDB], 3.0)
        self.assertEqual(found.values[OURS], 8.0)

    def test_without_rocksdb_there_is_no_figure_of_it(self):
        (found,) = tiers.step_rows("1e6x64", self.cells(0.9)[:3], IDLE)
        self.assertEqual(found.figures, {})
        self.assertNotIn(tiers.ROCKSDB, found.values)

    @parameterized.parameters((1.05, [6.0, 7.0, 8.0]), (1.2, None))
    def test_mapped_array_counts_only_within_its_bound(self, over, times):
        more = {"dropping_ms": [4.0, 3.0, 2.0], "resident_over_bound": over}
        mapped = self.cell("mapped", steps=(10.0, 10.0, 10.0), **more)
        (found,) = tiers.step_rows("1e6x64", [*self.cells(), mapped], IDLE)
        if times is None:
            self.assertNotIn(tiers.MAPPED, found.values)
        else:
            self.assertEqual(found.values[tiers.MAPPED], 7.0)

    @parameterized.parameters(
        ([80.0, 120.0], 4096.0, {"tiers_misses_vs_fio": 0.6}, "fio read 80 and 120"),
        ([None, None], 4096.0, {}, "not installed"),
        ([80.0, 120.0], 8192.0, {}, "not the table's"),
    )
    def test_misses_are_compared_with_reads_of_the_same_size(self, reads, block, figures, note):
        disk = self.cell("disk", 0.5, rows_up_per_second=60.0, reads_per_second=50.0)
        memory = self.cell("memory", 0.5, rows_up_per_second=0.0)
        cells = [memory, {**disk, "bytes_per_read": block}]
        found = tiers.misses_row("1e6x64", cells, reads, IDLE)
        self.assertEqual(found.figures, figures)
        self.assertIn(note, found.note)
        self.assertEqual(found.values[OURS], 60.0)
        self.assertNotIn(tiers.MEMORY, found.values)

    def test_longest_step_and_disk_are_compared_with_median_and_live_rows(self):
        said = {"rounds": 100, "disk_over_live": 1.7, "median_ms": 2, "ms_99": 3, "worst_ms": 5}
        with mock.patch.object(tiers, "_run", lambda *command: said):
            folder = self.enter_context(tempfile.TemporaryDirectory())
            settings = Settings(quick=True, folder=pathlib.Path(folder))
            found = list(tiers.rows("overwrites 16384x64", settings))
        self.assertEqual(found[0].figures, {"tiers_disk_over_live": 1.7})
        self.assertEqual(found[1].figures, {"tiers_worst_step_over_median": 2.5})
        self.assertEmpty(list(pathlib.Path(folder).iterdir()))


class MachineTest(absltest.TestCase):
    def test_own_work_is_not_the_work_of_others(self):
        with subprocess.Popen(["sleep", "60"]) as idle:
            begin = time.monotonic(), time.process_time()
            as_others, as_own = machine.LoadWatch([idle.pid]), machine.LoadWatch()
            while time.process_time() - begin[1] < 0.5:
                pass
            loads = as_others.load().others, as_own.load().others
            own = (time.process_time() - begin[1]) / (time.monotonic() - begin[0])
            idle.kill()
        # Linux counts hundredths of a second, on each core.
        self.assertAlmostEqual(loads[0] - loads[1], own, delta=0.1)

    def test_resident_memory_counts_what_is_touched(self):
        size = 64 << 20
        before = machine.resident_bytes()
        array = np.ones(size, np.uint8)
        self.assertBetween(machine.resident_bytes() - before, 0.9 * size, 1.5 * size)
        self.assertEqual(array.sum(), size)

    def test_warm_memory_is_held_until_it_is_released(self):
        size = 64 << 20
        warm = WarmMemory(size)
        self.addCleanup(warm.close)
        before = warm.held_bytes()
        self.assertGreaterEqual(before, size)
        warm.release(size // 4)
        self.assertBetween(before - warm.held_bytes(), 0.2 * size, 0.3 * size)
        warm.release(2 * size)
        self.assertLess(warm.held_bytes(), before - 0.9 * size)


class PlanTest(absltest.TestCase):
    def test_every_goal_has_a_section_that_is_run(self):
        self.assertContainsSubset({goal.section for goal in goals.GOALS}, sections.PARTS)

    def test_every_section_has_a_module(self):
        found = {path.stem for path in (ROOT / "benchmarks" / "sections").glob("*.py")}
        self.assertContainsSubset(sections.PARTS, found)


if __name__ == "__main__":
    absltest.main()

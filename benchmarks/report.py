# SPDX-License-Identifier: Apache-2.0
"""Computes figures from rows: the goals that are reached, and the goals that can't be judged."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence

import goals
from goals import Goal
from rows import Row

# A load average of 1.5 is the benchmark's own thread and half a core for other work. The other work
# is measured directly, since the benchmark's own load is sometimes one core, sometimes two.
MAX_OTHERS = 0.5


@dataclasses.dataclass(frozen=True)
class Figure:
    """The result for a goal.

    Attributes:
        goal: The goal.
        value: The worst value of the rows for the goal; None if there are none.
        floor: The worst value at the floor of these rows; None if there is no floor.
        why_not: Why it is not judged; "" if it is.
    """

    goal: Goal
    value: float | None
    floor: float | None = None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.why_not or self.value is None:
            return "not judged"
        if self.goal.reaches(self.value, self.goal.goal):
            return "reached"
        if self.goal.must is None:
            return "missed"
        return "must" if self.goal.reaches(self.value, self.goal.must) else "missed"


def figures(rows: Sequence[Row], failures: Mapping[str, str]) -> list[Figure]:
    """A figure for each goal.

    Args:
        rows: All rows.
        failures: The reason for each section with a part that failed or was left out.
    """
    return [_figure(goal, rows, failures.get(goal.section, "")) for goal in goals.GOALS]


def _figure(goal: Goal, rows: Sequence[Row], failure: str) -> Figure:
    about = [row for row in rows if goal.name in row.figures]
    value = _worst(goal, [row.figures[goal.name] for row in about])
    floor = _worst(goal, [row.floors[goal.name] for row in about if goal.name in row.floors])
    others = max((row.load.others for row in about), default=0.0)
    if failure:
        return Figure(goal, value, floor, failure)
    if value is None:
        return Figure(goal, None, None, "not measured")
    if others > MAX_OTHERS:
        return Figure(goal, value, floor, f"other work kept {others:.2f} cores busy")
    return Figure(goal, value, floor)


def _worst(goal: Goal, values: Sequence[float]) -> float | None:
    return functools.reduce(goal.worse, values) if values else None


def table(figures: Iterable[Figure]) -> str:
    """The figures as a table of Markdown."""
    lines = [
        "| figure | value | at the floor | goal | must | verdict | what |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure in figures:
        goal = figure.goal
        sign = "<=" if goal.at_most else ">="
        must = "" if goal.must is None else f"{sign} {goal.must:g}"
        value = "" if figure.value is None else f"{figure.value:.3g}"
        floor = "" if figure.floor is None else f"{figure.floor:.3g}"
        verdict = f"{figure.verdict}: {figure.why_not}" if figure.why_not else figure.verdict
        lines.append(
            f"| {goal.name} | {value} | {floor} | {sign} {goal.goal:g} | {must} | {verdict} "
            f"| {goal.what} |"
        )
    return "\n".join(lines)


def row_table(rows: Iterable[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| section | case | values | over ours | load, others |", "|---|---|---|---|---|"]
    for row in rows:
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.values.items())
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row.ratios.items())
        case = f"{row.case} ({row.note})" if row.note else row.case
        lines.append(
            f"| {row.section} | {case} | {values} {row.unit} | {ratios} "
            f"| {row.load.average:.2f}, {row.load.others:.2f} |"
        )
    return "\n".join(lines)


def summary(figures: Iterable[Figure]) -> str:
    """Counts the goals by result."""
    counts = {"reached": 0, "must": 0, "missed": 0, "not judged": 0}
    for figure in figures:
        counts[figure.verdict] += 1
    return (
        f"{counts['reached']} goals reached, {counts['must']} only the least that counts as done, "
        f"{counts['missed']} missed, {counts['not judged']} not judged"
    )


def json_line(figures: Iterable[Figure]) -> str:
    """All figures in one line: a number or null for each name, and why some are not judged."""
    values: dict[str, object] = {}
    why_not = {}
    for figure in figures:
        value = figure.value
        values[figure.goal.name] = None if value is None else float(f"{value:.4g}")
        if figure.why_not:
            why_not[figure.goal.name] = figure.why_not
    return json.dumps({**values, "not_judged": why_not})

# SPDX-License-Identifier: Apache-2.0
"""A picture of the figures: the distance of each from its goal."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from report import Figure

COLORS = {"reached": "#2a7f62", "must": "#d9a441", "missed": "#b8433f", "not judged": "#9a9a9a"}
LEAST, MOST = 0.1, 10.0


def reach(figure: Figure) -> float | None:
    """The ratio of a figure to its goal: 1 if it just reaches the goal, less if it misses."""
    goal, value = figure.goal, figure.value
    if value is None:
        return None
    if goal.goal == 0:
        return 1.0 if value == 0 else LEAST
    share = value / goal.goal
    if goal.at_most:
        share = MOST if share == 0 else 1 / share
    return min(max(share, LEAST), MOST)


def draw(figures: Sequence[Figure], title: str, path: pathlib.Path) -> None:
    """Writes a PNG with a bar for each figure, on a logarithmic scale around the goal."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture
    from matplotlib.patches import Patch

    shown = [(figure, share) for figure in figures if (share := reach(figure)) is not None]
    picture = Picture(figsize=(10, 1.5 + 0.28 * len(shown)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for place, (figure, share) in enumerate(shown):
        axes.barh(place, share - 1, left=1, color=COLORS[figure.verdict])
        sign = "≤" if figure.goal.at_most else "≥"
        axes.text(
            1.02 if share < 1 else 0.98,
            place,
            f"{figure.value:.3g} ({sign} {figure.goal.goal:g})",
            ha="left" if share < 1 else "right",
            va="center",
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_xlim(LEAST, MOST)
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "goal", "2", "4", "10"])
    axes.minorticks_off()
    axes.set_yticks(range(len(shown)), [figure.goal.name for figure, _ in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times the goal")
    axes.set_title(title, fontsize=10)
    present = {figure.verdict for figure, _ in shown}
    axes.legend(
        handles=[Patch(color=COLORS[name], label=name) for name in COLORS if name in present],
        loc="lower right",
        fontsize=8,
    )
    picture.savefig(path, dpi=120)

# SPDX-License-Identifier: Apache-2.0
"""The picture of a flights.py run: training loss, table growth, AUC."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from flights_watch import Run

matplotlib.use("Agg")  # a file, not a window; before pyplot is imported
from matplotlib import pyplot as plt

COLORS = {"static": "#e8873a", "tf_embed": "#1f5fa8"}
INK, FAINT = "#333333", "#dddddd"
STYLE: dict[str, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
}


def draw(runs: Mapping[str, Sequence[Run]], path: pathlib.Path) -> None:
    """Writes the picture.

    Args:
        runs: for "static" and for "tf_embed", a run for each seed.
        path: the PNG file.
    """
    with plt.rc_context(STYLE):
        figure, (loss, growth, auc) = plt.subplots(
            1, 3, figsize=(14, 4.8), width_ratios=(1.2, 1.3, 0.8), layout="constrained"
        )
        figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
        _draw_loss(loss, runs)
        _draw_growth(growth, runs["tf_embed"][-1])
        _draw_auc(auc, runs)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _draw_loss(axes: Any, runs: Mapping[str, Sequence[Run]]) -> None:
    """Draws the mean of the seeds. The two curves nearly overlap, so one is broad and pale."""
    widths = {"static": 6.0, "tf_embed": 1.8}
    for name, of_name in runs.items():
        mean = np.mean([run.losses for run in of_name], axis=0)
        pale = 0.45 if name == "static" else 1.0
        axes.plot(
            of_name[0].steps, mean, color=COLORS[name], lw=widths[name], alpha=pale, label=name
        )
    axes.set(title="Training loss, mean of the seeds", xlabel="step", ylabel="cross-entropy")
    axes.set_xlim(left=0)
    axes.legend(frameon=False)


def _draw_growth(axes: Any, run: Run) -> None:
    """Draws a line for each table, with its label at its end, so that readers need no legend."""
    names = sorted(run.rows[-1], key=lambda name: -run.rows[-1][name])
    colors = plt.get_cmap("viridis")(np.linspace(0.05, 0.8, len(names)))
    heights = _spread([run.rows[-1][name] for name in names], ratio=1.4)
    last = run.steps[-1]
    for name, color, height in zip(names, colors, heights, strict=True):
        rows = [rows[name] for rows in run.rows]
        axes.plot(run.steps, rows, color=color, lw=2, clip_on=False)
        axes.annotate(
            f"{name}  {rows[-1]:,}", (last, height), (8, 0), textcoords="offset points",
            color=color, va="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(which="minor", left=False)
    axes.set(title="Rows in each table, which start empty", xlabel="step", ylabel="rows")
    axes.set_xlim(0, last)


def _spread(values: Sequence[float], ratio: float) -> list[float]:
    """Heights of labels on a logarithmic axis, from the top down, without overlaps."""
    heights: list[float] = []
    for value in values:
        heights.append(min(value, heights[-1] / ratio) if heights else value)
    return heights


def _draw_auc(axes: Any, runs: Mapping[str, Sequence[Run]]) -> None:
    middle = float(np.mean([run.auc for of_name in runs.values() for run in of_name]))
    for place, (name, of_name) in enumerate(runs.items()):
        aucs = [run.auc for run in of_name]
        mean = float(np.mean(aucs))
        axes.plot([place] * len(aucs), aucs, "o", color=COLORS[name], alpha=0.55, ms=8, mew=0)
        axes.hlines(mean, place - 0.18, place + 0.18, color=COLORS[name], lw=2.5)
        axes.text(place + 0.24, mean, f"{mean:.4f}", color=COLORS[name], va="center", weight="bold")
    axes.set(title="Test AUC, one dot a seed", xticks=range(len(runs)))
    axes.set_xticklabels(list(runs))
    axes.set(xlim=(-0.5, len(runs) - 0.2))
    # A scale no finer than the difference between two seeds.
    spread = max(0.006, *(1.3 * abs(run.auc - middle) for of in runs.values() for run in of))
    axes.set_ylim(middle - spread, middle + spread)
    axes.grid(axis="x", visible=False)

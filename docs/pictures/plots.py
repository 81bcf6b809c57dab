# SPDX-License-Identifier: Apache-2.0
"""Plots of the figures in benchmarks/README.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PURPLE, RULE, Color, Picture
from pictures.tables import numbers, table_with

# Figures of the full table that are ratios of a peer's time to ours, and their labels.
PEERS = (
    ("TFRA", "adam_vs_tfra_uniform", "Adam step, uniform"),
    ("TFRA", "adam_vs_tfra_zipf", "Adam step, Zipf 1.2"),
    ("TFRA", "adagrad_vs_tfra_uniform", "Adagrad step, uniform"),
    ("TFRA", "adagrad_vs_tfra_zipf", "Adagrad step, Zipf 1.2"),
    ("TFRA", "pooled_adam_vs_tfra", "bags and an Adam step, Zipf 1.2"),
    ("TFRA", "lookup_vs_tfra", "lookup, 64k ids"),
    ("TFRA", "growth_vs_tfra", "growth to 10⁷ keys"),
    ("TFRA", "restrict_vs_tfra", "restriction to half of the rows"),
    ("MutableHashTable", "lookup_vs_mht", "lookup, 64k ids"),
    ("MutableHashTable", "insert_vs_mht", "insertion, 64k ids"),
    ("FBGEMM on a CPU", "step_vs_fbgemm_uniform", "Adagrad steps, uniform"),
    ("FBGEMM on a CPU", "step_vs_fbgemm_zipf", "Adagrad steps, Zipf 1.2"),
    ("FBGEMM on a CPU", "forward_vs_fbgemm", "forward of an array"),
)
_PEER_COLORS = {"TFRA": BLUE, "MutableHashTable": PURPLE, "FBGEMM on a CPU": GREEN}

# Columns of the table of tiers: the head, the label, and the color of the line.
TIERS = (
    ("mapped array", "mapped array", GRAY),
    ("RocksDB", "RocksDB", ORANGE),
    ("tf_embed", "tf_embed", BLUE),
    ("in memory", "all in memory", GREEN),
)


def peers() -> Picture:
    """How many times as fast as its peers tf_embed is."""
    found = {
        name: (cell, verdict) for name, cell, verdict in table_with(["figure", "value", "verdict"])
    }
    bars = [(peer, label, *found[name]) for peer, name, label in PEERS]
    left, right, top, step = 268.0, 720.0, 66.0, 25.0
    groups = list(dict.fromkeys(peer for peer, *_ in bars))
    height = top + step * len(bars) + 22 * len(groups) + 74
    drawn = Picture(
        760,
        height,
        "Times as fast as the peers",
        "Bars of the time of a peer over that of tf_embed: "
        + "; ".join(f"{peer}, {label}: {cell}" for peer, label, cell, _ in bars),
    )
    drawn.note(740, 30, "the time of the peer / ours, 2 cores", anchor="end")
    most = max(numbers(cell)[0] for _, _, cell, _ in bars)
    ticks = [one for one in (0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20) if one <= most + 1]
    unit = (right - left - 40) / most
    bottom = height - 58
    for tick in ticks:
        x = left + tick * unit
        is_one = tick == 1
        drawn.line([(x, top - 12), (x, bottom)], MUTED if is_one else RULE, width=1, dashed=is_one)
        drawn.note(x, bottom + 16, f"{tick}", anchor="middle")
    y, last = top - 10, ""
    for peer, label, cell, verdict in bars:
        if peer != last:
            drawn.text(
                20, y + 15, f"beside {peer}", size=12, bold=True, color=_PEER_COLORS[peer].line
            )
            y, last = y + 22, peer
        ratio = numbers(cell)[0]
        judged = not verdict.startswith("not judged")
        drawn.text(left - 10, y + 15, label, anchor="end", size=12, room=240)
        color = _PEER_COLORS[peer]
        drawn.rect(left, y + 2, ratio * unit, 18, color, solid=judged, dashed=not judged, radius=0)
        drawn.text(left + ratio * unit + 6, y + 15, cell, size=12, bold=True, color=color.line)
        y += step
    drawn.note(
        20,
        height - 16,
        "Dashed: other work took more than half a core meanwhile. A ratio of 1 is equal.",
    )
    return drawn


def tiers() -> Picture:
    """The time of a step by the share of hits."""
    heads = [head for head, *_ in TIERS]
    # "with prefetch" stands twice; of the first table the one behind ours comes first.
    rows = [
        row for row in table_with(["hits", "rows", *heads, "with prefetch"]) if row[1] == "10^6"
    ]
    lines: list[tuple[str, Color, list[float], bool]] = [
        (label, color, [numbers(row[2 + i])[0] for row in rows], False)
        for i, (_, label, color) in enumerate(TIERS)
    ]
    lines.append(("tf_embed, prefetch", BLUE, [numbers(row[-1])[0] for row in rows], True))
    return _lines(
        "A step of a table larger than memory",
        "milliseconds, 10⁶ rows of dim 64, 65,536 ids",
        "hits in the cache",
        [row[0] for row in rows],
        lines,
        (5, 10, 20, 50, 100, 200, 500, 1000, 2000),
    )


def _lines(
    title: str,
    unit: str,
    axis: str,
    places: Sequence[str],
    lines: Sequence[tuple[str, Color, list[float], bool]],
    ticks: Sequence[float],
) -> Picture:
    """A plot of lines on a logarithmic scale, with the name of each at its end.

    Args:
        title: The heading.
        unit: What the numbers are.
        axis: What the places are.
        places: The names of the places along the axis.
        lines: Of each line the name, color and numbers, and whether it is dashed.
        ticks: The numbers along the other axis, from the least to the most.
    """
    values = "; ".join(
        f"{name}: {', '.join(f'{one:g}' for one in some)}" for name, _, some, _ in lines
    )
    drawn = Picture(760, 400, title, f"{unit}, by {axis} ({', '.join(places)}): {values}.")
    drawn.note(740, 30, unit, anchor="end")
    left, right, top, bottom = 64.0, 590.0, 56.0, 340.0
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def y_of(value: float) -> float:
        return bottom - (math.log(value) - low) / (high - low) * (bottom - top)

    for tick in ticks:
        drawn.line([(left, y_of(tick)), (right - 16, y_of(tick))], RULE, width=1)
        drawn.note(left - 8, y_of(tick) + 4, f"{tick:,}", anchor="end")
    xs = [left + 24 + i * (right - left - 48) / (len(places) - 1) for i in range(len(places))]
    for x, place in zip(xs, places, strict=True):
        drawn.text(x, bottom + 20, place, anchor="middle", size=12)
    drawn.note((left + right) / 2, bottom + 42, axis, anchor="middle")
    ends: list[float] = []
    for name, color, some, dashed in sorted(lines, key=lambda line: line[2][-1]):
        points = [(x, y_of(value)) for x, value in zip(xs, some, strict=True)]
        drawn.line(points, color.line, width=2, dashed=dashed)
        for x, y in points:
            drawn.dot(x, y, color.line)
        end = points[-1][1] + 4
        if ends:
            end = min(end, ends[-1] - 15)
        ends.append(end)
        drawn.text(right - 8, end, name, size=12, bold=True, color=color.line)
    return drawn

# SPDX-License-Identifier: Apache-2.0
"""Draws the plots of docs/images/ from the tables of benchmarks/README.md; needs matplotlib.

python benchmarks/plots.py
"""

from __future__ import annotations

import pathlib
import re

import matplotlib
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "README.md"
IMAGES = ROOT / "docs" / "images"

# Figures that are ratios of a peer's time to tf_embed's, and their labels.
PEERS = {
    "TFRA": {
        "adam_vs_tfra_uniform": "Adam step, uniform",
        "adam_vs_tfra_zipf": "Adam step, Zipf 1.2",
        "adagrad_vs_tfra_uniform": "Adagrad step, uniform",
        "adagrad_vs_tfra_zipf": "Adagrad step, Zipf 1.2",
        "pooled_adam_vs_tfra": "bags and an Adam step, Zipf 1.2",
        "lookup_vs_tfra": "lookup, 64k ids",
        "growth_vs_tfra": "growth to 10⁷ keys",
        "restrict_vs_tfra": "restriction to half of the rows",
    },
    "MutableHashTable": {
        "lookup_vs_mht": "lookup, 64k ids",
        "insert_vs_mht": "insertion, 64k ids",
    },
    "FBGEMM on a CPU": {
        "step_vs_fbgemm_uniform": "Adagrad steps, uniform",
        "step_vs_fbgemm_zipf": "Adagrad steps, Zipf 1.2",
        "forward_vs_fbgemm": "forward of an array",
    },
}
# Columns of the table of tiers, and the plot's line for each.
TIERS = {
    "mapped array": ("mapped array", "gray", "-"),
    "RocksDB": ("RocksDB", "tab:orange", "-"),
    "tf_embed": ("tf_embed", "tab:blue", "-"),
    "with prefetch": ("tf_embed, prefetch", "tab:blue", "--"),
    "in memory": ("all in memory", "tab:green", "-"),
}


def table_with(*heads: str) -> list[list[str]]:
    """The cells below these heads, from the page's first table that has all of them.

    Of equal heads the first counts.
    """
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]
        if set(heads) <= set(rows[0]):
            return [[row[rows[0].index(head)] for head in heads] for row in rows[2:]]
    raise ValueError(f"No table of {PAGE} has the columns {heads}")


def peers() -> Figure:
    """Draws how many times as fast as its peers tf_embed is."""
    figures = {name: rest for name, *rest in table_with("figure", "value", "verdict")}
    picture = Figure(figsize=(8, 5), layout="constrained")
    axes, ticks = picture.subplots(), {}
    for peer, color in zip(PEERS, ("tab:blue", "tab:purple", "tab:green"), strict=True):
        ticks[len(ticks) + 0.2] = f"beside {peer}"
        for name, label in PEERS[peer].items():
            value, verdict = figures[name]
            place, alpha = len(ticks), 0.4 if verdict.startswith("not judged") else 1
            axes.barh(place, float(value), color=color, alpha=alpha)
            axes.text(float(value) + 0.1, place, value, va="center")
            ticks[place] = label
    axes.set_yticks(list(ticks), list(ticks.values()))
    for label in axes.get_yticklabels():
        label.set_weight("bold" if label.get_text().startswith("beside") else "normal")
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_title("Times as fast as the peers")
    axes.set_xlabel(
        "the time of the peer / ours, 2 cores; 1 is equal\n"
        "pale: other work took more than half a core meanwhile"
    )
    return picture


def tiers() -> Figure:
    """Draws the time of a step by the share of hits."""
    rows = [row for row in table_with("rows", "hits", *TIERS) if row[0] == "10^6"]
    picture = Figure(figsize=(8, 4.2), layout="constrained")
    axes = picture.subplots()
    for place, (label, color, style) in enumerate(TIERS.values(), 2):
        values = [float(row[place]) for row in rows]
        axes.plot([row[1] for row in rows], values, style, marker=".", color=color, label=label)
    axes.set_yscale("log")
    ticks = (5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    axes.set_title("A step of a table larger than memory")
    axes.set_xlabel("hits in the cache")
    axes.set_ylabel("milliseconds, 10⁶ rows of dim 64, 65,536 ids")
    return picture


def keras_fit() -> Figure:
    """Draws how many times as fast as 26 keras.layers.Embedding with XLA the models are."""
    batches = {"2,048 rows": "tab:blue", "256 rows": "tab:green"}
    heads = [f"{batch}: times as fast" for batch in batches]
    rows = table_with("layers and model", *heads)[1:]  # the first is what the others are beside
    picture = Figure(figsize=(8, 5), layout="constrained")
    axes = picture.subplots()
    for number, (batch, color) in enumerate(batches.items()):
        for place, (_, *values) in enumerate(rows):
            value, at = values[number], place + (0.4 * number - 0.2)
            label = batch if place == 0 else None
            axes.barh(at, float(value), 0.4, color=color, label=label)
            axes.text(float(value) + 0.1, at, value, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.legend(loc="upper right", title="batches of")
    axes.set_title("Steps of fit")
    axes.set_xlabel(
        "the time of 26 keras.layers.Embedding with XLA / of the model\n2 cores; 1 is equal"
    )
    return picture


if __name__ == "__main__":
    # Text remains text in the file, and equal figures give equal bytes.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tf_embed"}
    pictures = {"peers": peers(), "larger_than_memory": tiers(), "keras_fit": keras_fit()}
    for name, picture in pictures.items():
        picture.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
        print(IMAGES / f"{name}.svg")

# SPDX-License-Identifier: Apache-2.0
"""Predicts steps of tables on up to 1,024 workers, from costs that are measured on this machine.

    python benchmarks/scaling.py measure       costs of one worker and of two, in a few minutes
    python benchmarks/scaling.py check         times of 1, 2 and 4 processes of this machine, and
                                               those that the model predicts
    python benchmarks/scaling.py predict [--gigabits 25 100] [--workers 8 16 ...] [--keys 1e9 ...]
    python benchmarks/scaling.py plot          docs/scaling.svg; needs matplotlib
    python benchmarks/scaling.py all --write   all of them, and their tables into docs/scaling.md

`measure` writes the costs to --costs, and the others read them there. `cluster_model.py` has the
formulas, docs/scaling.md explains them. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import cluster_costs
import cluster_model
import machine
from cluster_model import PARTS, Cluster, Costs, Model

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "scaling.md"
PICTURE = ROOT / "docs" / "scaling.svg"
COSTS = ROOT / "build" / "bench" / "scaling.json"
GOAL = 0.2  # the largest allowed difference between model and measurement
CHECKED_EXPONENT, CHECKED_KEYS = 1.2, 1 << 40
COLORS = {"counts": "#b8433f", "messages": "#d9a441", "local": "#9a9a9a", "all_reduce": "#5b4b8a"}
COLORS.update(lookup="#2a7f62", dense="#4a78b0", apply="#7fb59f")


def measure(options: argparse.Namespace) -> list[str]:
    """Measures the costs and writes them; gives a table of them."""
    alones, pairs = [], []
    settings = {"batch": options.batch, "repeats": options.repeats}
    sizes = cluster_costs.MESSAGE_BYTES[: 2 if options.tiny else None]
    watch = machine.LoadWatch()
    for _ in range(options.rounds):  # in turn, so that other work troubles all of them alike
        alones.append(cluster_costs.launch("alone", 1, settings))
        pairs.append(cluster_costs.launch("pair", 2, {**settings, "sizes": sizes}))
    table = cluster_costs.launch("table", 1, {**settings, "rows": options.table_rows})
    figures = cluster_costs.costs_of(alones, pairs, table)
    figures["about"] = {**machine.description(), "date": datetime.date.today().isoformat()}
    figures["about"]["others"] = f"{watch.load().others:.2f}"
    options.costs.parent.mkdir(parents=True, exist_ok=True)
    options.costs.write_text(json.dumps(figures, indent=1) + "\n")
    return costs_table(figures)


def costs_table(figures: dict[str, Any]) -> list[str]:
    """The measured costs, as lines of Markdown."""
    about, costs = figures["about"], Costs.from_json(figures)
    lines = [
        f"`python benchmarks/scaling.py measure` on {about['date']}, {about['processor']}, "
        f"{about['cores']} cores, {about['memory']}; others kept {about['others']} cores busy.",
        "",
        "| cost of one worker, rows of 64 numbers | fixed, µs | ns a key | ns a distinct key |",
        "|---|---|---|---|",
    ]
    names = {"exchange": "exchange, sent to itself", "lookup": "look-up", "apply": "Adagrad"}
    for name, label in names.items():
        terms = costs.wall[name]
        per_key, per_row = terms.at(keys=1e6, numbers=64e6), terms.at(rows=1e6, row_numbers=64e6)
        lines.append(f"| {label} | {1e3 * terms.at(one=1):.0f} | {per_key:.1f} | {per_row:.1f} |")
    dense = costs.wall["dense"]
    lines += [
        "",
        f"Dense part: {1e3 * dense.at(one=1):.0f} µs, {dense.at(flops=1e6) * 1e3:.1f} ns for 1,000 "
        f"examples times parameters, {dense.at(parameters=1e6):.2f} ns a parameter. A row in no "
        f"cache: {1e6 * costs.cold_key['lookup']:.0f} ns more to look up, "
        f"{1e6 * costs.cold_key['apply']:.0f} ns more to train. "
        f"Beside weights and slots, a row takes {costs.overhead:.1f} bytes.",
        "",
        "| collective | fixed, µs | " + " | ".join(_bytes(one) for one in _sizes(costs)) + " |",
        "|---|---|" + "---|" * len(_sizes(costs)),
    ]
    for name, one in costs.collectives.items():
        hops = " | ".join(
            f"{1e3 * work:.0f}, {1e3 * hop:.0f}"
            for work, hop in zip(one.work, one.hop, strict=True)
        )
        lines.append(f"| {name.replace('_', '-')} | {1e3 * one.fixed:.0f} | {hops} |")
    lines += ["", "Of a message: µs of a processor for each worker, and µs until it is there."]
    return lines


def _sizes(costs: Costs) -> Sequence[float]:
    return next(iter(costs.collectives.values())).bytes


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 999.5 or unit == "TiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError


def _milliseconds(time: float) -> str:
    return f"{time:,.0f}" if time >= 99.5 else f"{time:.3g}"


def check(options: argparse.Namespace) -> list[str]:
    """Measures steps of this machine's processes, and compares them with the model."""
    from worker_parts import EXCHANGES, IDS_PER_EXAMPLE, WHOLE, WORK, dense_parameters

    costs = Costs.from_json(json.loads(options.costs.read_text()))
    model = Model(
        examples=options.batch // IDS_PER_EXAMPLE,
        ids=IDS_PER_EXAMPLE,
        dim=options.dim,
        dense=dense_parameters(options.dim),
        exponent=CHECKED_EXPONENT,
        keys=CHECKED_KEYS,
    )
    settings = {"batch": options.batch, "repeats": options.repeats, "dim": options.dim}
    settings.update(exponent=CHECKED_EXPONENT, keys=CHECKED_KEYS)
    watch = machine.LoadWatch()
    found: dict[int, list[Any]] = {workers: [] for workers in options.local_workers}
    for _ in range(options.rounds):
        for workers, runs in found.items():
            runs.append(cluster_costs.launch("step", workers, settings))
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"`python benchmarks/scaling.py check`: {options.batch:,} ids a worker, dim {options.dim}, "
        f"on {cores} cores, of which others kept {watch.load().others:.2f} busy. "
        "Milliseconds: predicted, measured; the ratio is that of whole steps.",
        "",
        "| workers | exchange | lookup | dense | apply | processor time | whole step | ratio | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for workers, runs in found.items():
        measured = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
        measured["exchange"] = sum(measured.get(name, 0.0) for name in EXCHANGES)
        predicted = cluster_model.local_step(model, workers, cores, costs)
        cells = [
            f"{predicted[name]:.2f}, {measured[name]:.2f}" if name in predicted else ""
            for name in (*PARTS, WORK, WHOLE)
        ]
        ratio = predicted[WHOLE] / measured[WHOLE]
        verdict = "" if 1 - GOAL <= ratio <= 1 + GOAL else "beyond 20%"
        lines.append(f"| {workers} | " + " | ".join(cells) + f" | {ratio:.2f} | {verdict} |")
    return lines


def predict(options: argparse.Namespace) -> list[str]:
    """Tables of steps on clusters, one for each link, and of the memory of a worker."""
    costs = Costs.from_json(json.loads(options.costs.read_text()))
    model = model_of(options)
    lines = [
        f"`python benchmarks/scaling.py predict`: {model.examples:,} examples of {model.ids} ids a "
        f"worker, dim {model.dim}, {model.dense:,} dense parameters, Zipf exponent "
        f"{model.exponent:g}, {model.keys:.0e} keys; {options.cores} cores a worker, latency of "
        f"the link {options.latency * 1e3:.0f} µs.",
    ]
    first, *links = options.gigabits
    heads = ["workers", "counts", "messages", "local", "lookup", "apply", "dense"]
    heads += ["of it all-reduce", "step", *(f"step, {link:g} Gbit/s" for link in links)]
    heads += ["examples/s, all workers", "sent", "over need"]
    lines += [
        "",
        f"Milliseconds with {first:g} Gbit/s, and what a worker sends in a step:",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
    ]
    for workers in options.workers:
        cluster = Cluster(workers, options.cores, first, options.latency)
        parts = cluster_model.cluster_step(model, cluster, costs)
        sizes = cluster_model.traffic(model, workers)
        names = ("counts", "messages", "local", "lookup", "apply", "dense", "all_reduce", "sum")
        cells = [_milliseconds(parts[name]) for name in names]
        for link in links:
            cluster = dataclasses.replace(cluster, gigabits=link)
            step = cluster_model.cluster_step(model, cluster, costs)["sum"]
            cells.append(_milliseconds(step))
        cells.append(f"{workers * model.examples / parts['sum'] * 1e3:.2g}")
        cells.append(_bytes(sizes.sent))
        embedding = (workers - 1) * (sum(sizes.messages) + 2 * sizes.counts)
        cells.append(f"{embedding / sizes.need:.2f}")
        lines.append(f"| {workers:,} | " + " | ".join(cells) + " |")
    columns = options.key_counts
    lines += [
        "",
        "Memory of a worker's rows, and, in brackets, milliseconds of a step with "
        f"{first:g} Gbit/s, by keys:",
        "",
        "| workers | " + " | ".join(f"{keys:.0e}" for keys in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for workers in options.workers:
        cluster = Cluster(workers, options.cores, first, options.latency)
        cells = []
        for keys in columns:
            of_keys = dataclasses.replace(model, keys=keys)
            step = cluster_model.cluster_step(of_keys, cluster, costs)["sum"]
            cells.append(
                f"{_bytes(cluster_model.memory(of_keys, workers, costs))} ({_milliseconds(step)})"
            )
        lines.append(f"| {workers:,} | " + " | ".join(cells) + " |")
    return lines


def model_of(options: argparse.Namespace) -> Model:
    """The model that the options say."""
    names = ("examples", "ids", "dim", "slots", "dense", "exponent", "keys")
    return Model(**{name: getattr(options, name) for name in names})


def plot(options: argparse.Namespace) -> list[str]:
    """Draws the parts of a step by the number of workers, for each link."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(
            "`plot` needs matplotlib, which tf_embed does not: pip install matplotlib"
        ) from error
    import matplotlib

    # The same picture from the same costs.
    matplotlib.rcParams["svg.hashsalt"] = "tf_embed"
    costs, model = Costs.from_json(json.loads(options.costs.read_text())), model_of(options)
    picture = Figure(figsize=(5.2 * len(options.gigabits), 4), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(options.gigabits), sharey=True, squeeze=False)[0]
    for axes, gigabits in zip(panels, options.gigabits, strict=True):
        steps = []
        for workers in options.workers:
            cluster = Cluster(workers, options.cores, gigabits, options.latency)
            parts = cluster_model.cluster_step(model, cluster, costs)
            parts["dense"] -= parts["all_reduce"]
            steps.append(parts)
        for name, color in COLORS.items():
            label = name.replace("_", "-")
            values = [parts[name] for parts in steps]
            axes.plot(options.workers, values, color=color, label=label, marker=".")
        axes.plot(
            options.workers,
            [parts["sum"] for parts in steps],
            color="black",
            label="step",
            marker=".",
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(options.workers, [str(one) for one in options.workers])
        axes.minorticks_off()
        axes.set_xlabel("workers")
        axes.set_title(f"{gigabits:g} Gbit/s", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds of a step")
    lines, labels = panels[-1].get_legend_handles_labels()
    picture.legend(lines, labels, loc="outside right center", fontsize=8)
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(options.picture, dpi=120, metadata={"Date": None})
    return [f"Drawn in {options.picture}"]


STEPS = {"measure": measure, "check": check, "predict": predict, "plot": plot}


def around(doc: pathlib.Path, name: str) -> tuple[str, str]:
    """The text before and after a part of the document, with the part's marks.

    Raises:
        ValueError: It has no such marks.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = doc.read_text().partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"{doc} has no place for {name!r}: {begin} and {end}")
    return before + begin, end + after


def write(doc: pathlib.Path, name: str, lines: Sequence[str]) -> None:
    """Replaces a part of the document."""
    before, after = around(doc, name)
    doc.write_text("\n".join([before, *lines, after]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*STEPS, "all"])
    parser.add_argument("--costs", type=pathlib.Path, default=COSTS)
    parser.add_argument("--write", action="store_true", help="put the tables into --doc")
    parser.add_argument("--doc", type=pathlib.Path, default=DOC)
    parser.add_argument("--picture", type=pathlib.Path, default=PICTURE)
    measured = parser.add_argument_group("what measure and check run")
    measured.add_argument("--batch", type=int, default=16384, help="ids of a worker")
    measured.add_argument("--repeats", type=int, default=40)
    measured.add_argument("--rounds", type=int, default=3)
    measured.add_argument("--table-rows", type=int, default=2_000_000)
    measured.add_argument("--tiny", action="store_true", help="short messages only")
    measured.add_argument("--local-workers", type=int, nargs="+", default=[1, 2, 4])
    model = parser.add_argument_group("what check (--dim) and predict train")
    for field in dataclasses.fields(Model):
        if field.name != "wire_bytes":
            kind = float if isinstance(field.default, float) else int
            model.add_argument(f"--{field.name}", type=kind)
    cluster = parser.add_argument_group("clusters")
    cluster.add_argument("--workers", type=int, nargs="+", default=[2**i for i in range(3, 11)])
    cluster.add_argument("--cores", type=int, default=8, help="of a worker")
    cluster.add_argument("--gigabits", type=float, nargs="+", default=[25.0, 100.0])
    cluster.add_argument("--latency", type=float, default=0.02, help="of a link, milliseconds")
    cluster.add_argument("--key-counts", type=float, nargs="+", default=[1e9, 1e10, 1e11, 1e12])
    options = parser.parse_args(arguments)
    names = list(STEPS) if options.command == "all" else [options.command]
    if options.write:
        for name in set(names) - {"plot"}:
            around(options.doc, name)  # before minutes of measuring
    for name in names:
        of_step = argparse.Namespace(**vars(options))
        for field in dataclasses.fields(Model):
            if getattr(of_step, field.name, 0) is None:
                setattr(of_step, field.name, field.default)
        if name == "check" and options.dim is None:
            of_step.dim = 16
        if name in ("check", "predict", "plot") and not options.costs.exists():
            sys.exit(f"There are no costs in {options.costs}: run `scaling.py measure` first.")
        lines = STEPS[name](of_step)
        print("\n".join(lines), flush=True)
        if options.write and name != "plot":
            write(options.doc, name, lines)


if __name__ == "__main__":
    main()

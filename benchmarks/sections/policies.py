# SPDX-License-Identifier: Apache-2.0
"""Policies: restriction compared with TFRA's, bounded tables, and keys that wait for their rows."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ids import distribution
from machine import LoadWatch
from rows import OURS, Row
from settings import BUILD, Settings

TFRA = "TFRA"
RESTRICT = pathlib.Path(__file__).parents[1] / "restrict.py"
PROGRAM = BUILD / "policy_benchmark"
JUDGED_ORDERS = ("lru", "lfu", "ttl")


def rows(part: str, settings: Settings) -> Iterator[Row]:
    """Measures a part. Its name begins with its verb."""
    verb, *words = part.split()
    measure = {"restrict": _restrict, "bounded": _bounded, "admission": _admission}[verb]
    return measure(*words, settings)


def _restrict(policy: str, size: str, settings: Settings) -> Iterator[Row]:
    """Restricts tables of both implementations to half of their rows, in turn, in rounds."""
    keys, dim = (int(float(number)) for number in size.split("x"))
    found: dict[str, list[dict[str, float]]] = {OURS: [], TFRA: []}
    watch = LoadWatch()
    for number in range(1 if settings.quick else 5):
        for name in (OURS, TFRA) if number % 2 == 0 else (TFRA, OURS):
            arguments = (os.fspath(RESTRICT), name, policy, str(keys), str(dim))
            found[name].append(_last_line((sys.executable, *arguments)))
    load = watch.load()
    for name, runs in found.items():
        for one in runs:
            if (one["rows"], one["left"], one["wanted_left"]) != (keys, keys // 2, keys // 2):
                raise RuntimeError(f"{name} did not leave the {keys // 2} rows to stay: {one}.")
            one["more_at_peak"] = (one["peak"] - one["before"]) / 1e6
            one["table_before"] = (one["before"] - one["without"]) / 1e6
            one["table_after"] = (one["after"] - one["without"]) / 1e6

    def medians(of: str) -> dict[str, float]:
        return {name: statistics.median(one[of] for one in runs) for name, runs in found.items()}

    pairs = zip(found[TFRA], found[OURS], strict=True)
    ratio = statistics.median(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)
    case = f"{policy}, {size} to half"
    yield Row(
        "policies",
        f"restrict by {case}",
        "s",
        medians("seconds"),
        load,
        ratios={TFRA: ratio},
        figures={"restrict_vs_tfra": ratio},
        note=f"{keys // 2:,} rows left of both",
    )
    yield Row(
        "policies",
        f"memory while restricting, beyond before: {case}",
        "MB",
        medians("more_at_peak"),
        load,
    )
    yield Row("policies", f"memory before: {case}", "MB", medians("table_before"), load)
    yield Row("policies", f"memory after: {case}", "MB", medians("table_after"), load)


def _bounded(size: str, settings: Settings) -> Iterator[Row]:
    """Steps of tables that are bounded to a tenth of the ids, compared with an unbounded table."""
    ids, dim = (str(int(float(number))) for number in size.split("x"))
    steps = 200 if settings.quick else 2000
    watch = LoadWatch()
    tables = _last_line((os.fspath(PROGRAM), "--json", ids, dim, "65536", "2", str(steps)))
    load = watch.load()
    case = f"{size}, Zipf 1.05 that drifts, {steps} steps of 65536 ids"
    figures = {
        "bounded_step_over_unbounded": max(
            tables[order]["over_unbounded"] for order in JUDGED_ORDERS
        ),
        "roomy_step_over_unbounded": tables["roomy"]["over_unbounded"],
    }
    for of, what, unit in (
        ("step_ms", "step of Adam, bounded to a tenth", "ms"),
        ("over_unbounded", "step, bounded over unbounded", "x"),
        ("worst_ms", "worst step", "ms"),
        ("hit_rate", "share of ids that are there", ""),
        ("megabytes", "memory", "MB"),
    ):
        yield Row(
            "policies",
            f"{what}: {case}",
            unit,
            {name: table[of] for name, table in tables.items()},
            load,
            figures=figures if of == "over_unbounded" else {},
        )


def _admission(size: str, settings: Settings) -> Iterator[Row]:
    """Memory after a stream in which most ids occur once, for several kinds of admission."""
    import tensorflow as tf

    import tf_embed
    from peers import ours

    keys, dim = (int(float(number)) for number in size.split("x"))
    admissions = {
        "at once": None,
        "CounterAdmission(2)": tf_embed.CounterAdmission(2),
        "BloomAdmission(2, 0.01)": tf_embed.BloomAdmission(2, 0.01),
    }
    steps = 50 if settings.quick else 200
    gradients = tf.fill([65536, dim], 0.01)
    watch = LoadWatch()
    stats: dict[str, dict[str, Any]] = {}
    for name, admission in admissions.items():
        policy = tf_embed.TablePolicy(eviction=None, admission=admission)
        trainer = ours.Trainer(dim, "Adam", policy)
        drawn = distribution("1.05", keys)
        for _ in range(steps):
            trainer.step(tf.constant(drawn.keys(65536)), gradients)
        stats[name] = trainer.variable.stats()
    parts = ("payload_bytes", "index_bytes", "slack_bytes", "admission_bytes")
    waiting = ", ".join(
        f"{name} {one['rows']:,} rows and {one['admission_bytes'] / 1e6:.3g} MB for keys that wait"
        for name, one in stats.items()
    )
    yield Row(
        "policies",
        f"memory of rows of Adam by admission, {steps} steps of 65536 of {size}, Zipf 1.05",
        "MB",
        {name: sum(one[part] for part in parts) / 1e6 for name, one in stats.items()},
        watch.load(),
        note=waiting,
    )


def _last_line(command: tuple[str, ...]) -> dict[str, Any]:
    """The last object of JSON that a program prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().rpartition("\n")[2])

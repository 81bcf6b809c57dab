# SPDX-License-Identifier: Apache-2.0
"""Models that are served without tf_embed: their size and latency, and of models that need it.

    python benchmarks/static_export.py [ROWS] [DIM] [--folder=FOLDER] [--rounds=N]

Five SavedModels with the same number of rows answer the same two calls, each in its own processes,
in turns:

    tf_embed     `model.export`, with the ops of this library
    static       `tf_embed.export_static`; and the same with quantize="float16" and "int8"
    keras        keras.layers.Embedding, whose ids are row numbers, exported by `model.export`

One call looks up 4,096 ids, the other pools 256 bags of 16 by their mean. Ids are random. In the
calls "10% absent" a tenth of them has no row, and gets a drawn initial row. Prints the bytes of
files, the seconds to load, the resident memory that loading adds, and the microseconds of a call:
the least of all processes' medians, because other work may disturb a process.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

IDS, BAGS, BAG = 4096, 256, 16
CALLS, WARM_UP = 300, 50
KINDS = ("tf_embed", "static", "static float16", "static int8", "keras")
CASES = ("rows", "rows, 10% absent", "bags", "bags, 10% absent")
_SPREAD = 6_364_136_223_846_793_005  # odd: row numbers times this are distinct keys of 64 bits


def keys_of(numbers: Any) -> Any:
    """The key of each row number, int64."""
    import numpy as np

    return (numbers.astype(np.uint64) * np.uint64(_SPREAD)).astype(np.int64)


def export(rows: int, dim: int, folder: pathlib.Path) -> None:
    """Writes all SavedModels."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_embed

    for case, shape, combiner in (("rows", [], None), ("bags", [BAG], "mean")):
        ids = keras.Input(shape, dtype="int64", name="ids")
        layer = tf_embed.layers.DynamicEmbedding(
            dim, combiner=combiner, initializer="normal", init_size=rows
        )
        model = keras.Model(ids, layer(ids))
        for begin in range(0, rows, 2**16):
            numbers = np.arange(begin, min(rows, begin + 2**16))
            weights = tf.random.stateless_normal([len(numbers), dim], [begin, 1])
            layer.variable.upsert(keys_of(numbers), weights)
        model.export(str(folder / f"tf_embed {case}"), verbose=False)
        for quantize in (None, "float16", "int8"):
            name = "static" if quantize is None else f"static {quantize}"
            begin_time = time.perf_counter()
            tf_embed.export_static(model, folder / f"{name} {case}", quantize)
            seconds = time.perf_counter() - begin_time
            print(f"exported {name} {case} in {seconds:.1f} s", file=sys.stderr)
        del model, layer
        embedded = keras.layers.Embedding(rows, dim)(ids)
        if combiner is not None:
            embedded = keras.ops.mean(embedded, axis=1)
        model = keras.Model(ids, embedded)
        model.export(str(folder / f"keras {case}"), verbose=False)


def serve(kind: str, rows: int, folder: pathlib.Path) -> dict[str, Any]:
    """Loads the SavedModels of a kind and calls them, in a process without other work."""
    if kind != "tf_embed":
        sys.modules["tf_embed"] = None  # the import of it fails
    import numpy as np
    import tensorflow as tf

    if kind == "tf_embed":
        import tf_embed  # noqa: F401  registers the ops
    rng = np.random.default_rng(1)
    result: dict[str, Any] = {}
    for case, shape in (("rows", [IDS]), ("bags", [BAGS, BAG])):
        before = machine.resident_bytes()
        begin = time.perf_counter()
        loaded = tf.saved_model.load(str(folder / f"{kind} {case}"))
        loaded.serve(tf.zeros(shape, tf.int64))
        # Only the first load counts: the second reuses memory that the first has freed.
        result.setdefault("load_seconds", time.perf_counter() - begin)
        result.setdefault("load_bytes", machine.resident_bytes() - before)
        for absent in (0.0, 0.1):
            if kind == "keras" and absent:
                continue
            name = case if absent == 0.0 else f"{case}, 10% absent"
            times = []
            for call in range(WARM_UP + CALLS):
                numbers = rng.integers(0, rows, shape)
                if kind != "keras":
                    has_none = rng.random(shape) < absent
                    numbers = keys_of(np.where(has_none, numbers + rows, numbers))
                ids = tf.constant(numbers)
                begin = time.perf_counter()
                loaded.serve(ids)
                if call >= WARM_UP:
                    times.append(time.perf_counter() - begin)
            result[name] = statistics.median(times) * 1e6
        del loaded
    return result


def _bytes_of(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def table(folder: pathlib.Path, found: dict[str, list[dict[str, Any]]]) -> str:
    """The results, as Markdown."""
    lines = [
        "| SavedModel | MB | seconds to load | MB in memory | " + " | ".join(CASES) + " |",
        "|---" * (4 + len(CASES)) + "|",
    ]
    for kind in KINDS:

        def least(name: str, of: list[dict[str, Any]] = found[kind]) -> float:
            return min(one[name] for one in of)

        size = _bytes_of(folder / f"{kind} rows") / 1e6
        cells = [f"{size:,.0f}", f"{least('load_seconds'):.2f}"]
        cells.append(f"{least('load_bytes') / 1e6:,.0f}")
        cells += [f"{least(one):,.0f}" if one in found[kind][0] else "" for one in CASES]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", type=int, default=10**6)
    parser.add_argument("dim", nargs="?", type=int, default=64)
    parser.add_argument("--folder", type=pathlib.Path, help="where SavedModels are written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        print(json.dumps(serve(arguments.serve, arguments.rows, arguments.folder)))
        return
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        export(arguments.rows, arguments.dim, folder)
        watch = machine.LoadWatch()
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for number in range(arguments.rounds):
            for kind in (*KINDS[number % len(KINDS) :], *KINDS[: number % len(KINDS)]):
                command = [sys.executable, __file__, str(arguments.rows), f"--serve={kind}"]
                command.append(f"--folder={folder}")
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found[kind].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{arguments.rows:,} rows of {arguments.dim} weights; microseconds of a call\n")
        print(table(folder, found))
        described = ", ".join(machine.description().values())
        print(f"\n{described}; other processes kept {watch.load().others:.1f} cores busy")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

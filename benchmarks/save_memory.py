# SPDX-License-Identifier: Apache-2.0
"""The memory that saves and loads of a table take beside the table.

    python benchmarks/save_memory.py ROWS DIM [FOLDER]

Rows have Adam's slots. Prints an object of JSON for each save path: the bytes of the table's rows,
and by how many bytes the resident memory of the process grew above them at most, in a save and in
a load into an empty table. The folder must have room for the rows; written files are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import machine
import tf_embed

BATCH = 65536


def new_model(dim: int) -> keras.Model:
    """A model whose table has an optimizer of its own."""
    layer = tf_embed.layers.DynamicEmbedding(dim, optimizer="adam", name="items")
    model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def trained(rows: int, dim: int) -> keras.Model:
    """A model whose table has `rows` rows."""
    model = new_model(dim)
    ids = tf.data.Dataset.range(rows).batch(BATCH)
    model.fit(ids.map(lambda some: (some[:, None], tf.ones([tf.size(some), 1, dim]))), verbose=0)
    return model


def table_of(model: keras.Model) -> tf_embed.Variable:
    """The table of a model."""
    return model.layers[0].variable


PATHS: dict[str, tuple[Callable[[keras.Model, str], None], Callable[[keras.Model, str], None]]] = {
    "model.keras": (
        lambda model, path: model.save(path),
        lambda model, path: model.load_weights(path),
    ),
    "model.weights.h5": (
        lambda model, path: model.save_weights(path),
        lambda model, path: model.load_weights(path),
    ),
    "checkpoint": (
        lambda model, path: tf.train.Checkpoint(model=model).write(path),
        lambda model, path: tf.train.Checkpoint(model=model).read(path).expect_partial(),
    ),
    "save_rows": (
        lambda model, path: table_of(model).save_rows(path),
        lambda model, path: table_of(model).load_rows(path),
    ),
}


def growth(call: Callable[[], None]) -> int:
    """By how many bytes the memory of this process grew during a call, at most."""
    before = machine.resident_bytes()
    machine.forget_peak()
    call()
    return machine.peak_resident_bytes() - before


def measure(name: str, is_load: bool, rows: int, dim: int, folder: str) -> int:
    """The bytes that a save takes, or the load of an earlier save, beside the rows of the table."""
    save, load = PATHS[name]
    path = os.path.join(folder, name)
    if not is_load:
        model = trained(rows, dim)
        return growth(lambda: save(model, path))
    model = new_model(dim)
    grown = growth(lambda: load(model, path))
    return grown - table_of(model).stats()["payload_bytes"]


def main() -> None:
    """Prints the results."""
    parser = argparse.ArgumentParser(description="Measures the memory of saves and loads.")
    parser.add_argument("rows", type=int)
    parser.add_argument("dim", type=int)
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("--only", nargs=2, metavar=("PATH", "load|save"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        name, direction = options.only
        print(measure(name, direction == "load", options.rows, options.dim, options.folder))
        return
    print(json.dumps(machine.description()))
    arguments = [sys.executable, __file__, str(options.rows), str(options.dim)]
    for name in PATHS:
        folder = tempfile.mkdtemp(dir=options.folder)
        result: dict[str, object] = {"path": name, "rows": options.rows * options.dim * 12}
        try:
            # In new processes, because freed memory may stay resident.
            for direction in ("save", "load"):
                child = [*arguments, folder, "--only", name, direction]
                result[direction] = int(subprocess.run(child, check=True, stdout=-1).stdout)
        finally:
            shutil.rmtree(folder)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

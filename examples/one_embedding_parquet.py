# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a layer of OneEmbedding as a Parquet file, and a Parquet file as a snapshot.

It trains a layer of two tables, saves a snapshot, and writes all rows to a Parquet file. Then it
makes a second snapshot from the file, which another layer loads. Weights and optimizer slots must
be equal, bit for bit. Both conversions work by row group, so a table may be larger than memory.

    pip install pyarrow
    python examples/one_embedding_parquet.py --rows=1000000 --dim=64
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from tf_embed import one_embedding

SEED = 7
NUM_TABLES = 2


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=8, help="weights in a row")
    parser.add_argument("--rows", type=int, default=100_000, help="about so many rows")
    parser.add_argument("--path", type=pathlib.Path, help="folder for snapshots and the file")
    return parser.parse_args(arguments)


def module(name: str) -> Any:
    """A module of pyarrow.

    Raises:
        SystemExit: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SystemExit("This example needs pyarrow: pip install pyarrow") from None


def layer_of(folder: str, options: argparse.Namespace) -> Any:
    """A layer of two tables with 32-bit ids, in a single table of rows, trained by Adam."""
    return one_embedding.MultiTableEmbedding(
        "rows",
        options.dim,
        "float32",
        "int32",
        [one_embedding.make_table(one_embedding.make_uniform_initializer(-0.1, 0.1))] * NUM_TABLES,
        one_embedding.make_device_mem_store_options(folder, capacity=options.rows),
        optimizer="adam",
        devices="/CPU:0",
    )


def train(layer: Any, options: argparse.Namespace) -> np.ndarray:
    """Trains a step, so that each id gets a row. Returns the ids, int32 [n, 2]."""
    ids = keras.Input([NUM_TABLES], dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids))))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(SEED)
    seen = rng.integers(-(2**31), 2**31, [options.rows // NUM_TABLES, NUM_TABLES], np.int32)
    model.fit(seen, np.ones([len(seen), 1]), batch_size=4096, epochs=2, verbose=0)
    return seen


def kind_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of readers and writers about rows: weights, and two slots of Adam for each.

    Keys are int64, because they include the number of the table.
    """
    return {"key_type": "int64", "value_type": "float32", "storage_dim": 3 * options.dim}


def to_parquet(reader: Any, path: pathlib.Path) -> None:
    """Writes a row group for each block of a snapshot: table, id, weights and slots."""
    arrow, parquet = module("pyarrow"), module("pyarrow.parquet")
    slots = reader.storage_dim - reader.dim
    schema = arrow.schema(
        {
            "table": arrow.int32(),
            "id": arrow.int32(),
            "weights": arrow.list_(arrow.float32(), reader.dim),
            "slots": arrow.list_(arrow.float32(), slots),
        }
    )
    with parquet.ParquetWriter(path, schema) as file:
        for keys, values in reader:
            tables = (keys + 2**31) >> 32  # a key is id + 2^32 * table
            weights, slots_of_rows = np.split(values, [reader.dim], axis=1)
            columns = [
                arrow.array(tables.astype(np.int32)),
                arrow.array((keys - (tables << 32)).astype(np.int32)),
                arrow.FixedSizeListArray.from_arrays(weights.ravel(), reader.dim),
                arrow.FixedSizeListArray.from_arrays(slots_of_rows.ravel(), slots),
            ]
            file.write_table(arrow.Table.from_arrays(columns, schema=schema))


def from_parquet(path: pathlib.Path, writer: Any) -> None:
    """Writes each row group of a Parquet file to a snapshot."""
    with module("pyarrow.parquet").ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number).combine_chunks()
            tables = group["table"].to_numpy().astype(np.int64)
            keys = group["id"].to_numpy() + (tables << 32)
            parts = [
                group[name].combine_chunks().flatten().to_numpy().reshape([len(keys), -1])
                for name in ("weights", "slots")
            ]
            writer.write(keys, np.concatenate(parts, axis=1))


def are_equal(one: Any, other: Any) -> bool:
    """Whether two readers give the same rows in the same blocks."""
    return one.num_rows == other.num_rows and all(
        np.array_equal(keys, other_keys) and np.array_equal(values, other_values)
        for (keys, values), (other_keys, other_values) in zip(one, other, strict=True)
    )


def main(arguments: list[str] | None = None) -> bool:
    """Trains, writes the file and reads it. Returns whether all rows are equal."""
    options = options_of(arguments)
    make_reader = one_embedding.make_persistent_table_reader
    make_writer = one_embedding.make_persistent_table_writer
    kind = kind_of(options)
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        file = pathlib.Path(folder) / "rows.parquet"
        layer = layer_of(folder, options)
        ids = train(layer, options)
        layer.save_snapshot("trained")

        with make_reader(folder, "trained", **kind) as reader:
            to_parquet(reader, file)
        print(f"{reader.num_rows:,} rows in a file of {file.stat().st_size:,} bytes")
        with make_writer(folder, "from_parquet", **kind, like=reader) as writer:
            from_parquet(file, writer)

        trained = make_reader(folder, "trained", **kind)
        with trained, make_reader(folder, "from_parquet", **kind) as written:
            equal = are_equal(trained, written)
        other = layer_of(folder, options)
        other.load_snapshot("from_parquet")
        equal &= np.array_equal(layer(ids), other(ids))
    print("rows are equal" if equal else "rows differ")
    return equal


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)

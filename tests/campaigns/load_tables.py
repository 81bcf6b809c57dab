# SPDX-License-Identifier: Apache-2.0
"""Tables under load, and the campaign's own record of their rows.

Each row has a number; its key is that number with scattered bits. A number belongs to one of three
writers, so the versions of a row only ever rise. A row repeats the pair [number + 1, version]. Its
values show whether it belongs to its key, is torn, or is older than a write that had returned.

Numbers are drawn by a Zipf law whose hottest number is the newest. New numbers are added all the
time, so that the hot set drifts, and numbers beyond the window leave.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import threading
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed

PAIRS = 4
DIM = 2 * PAIRS
WINDOW = 30_000  # numbers that can be drawn
SLACK = 3_000  # numbers below the window that may not be removed yet
SPACE = 1 << 17  # the count of numbers, after which they start again at 0
DRIFT = 1_000  # new numbers a second
EXPONENT = 1.05
WRITERS = ("upsert", "accum", "train")  # the writer of a number is its remainder by 3
BATCH = 128
LOOKUPS = 16  # lookups in a call
CHAIN = 8  # snapshots, all with changes only except the first
CACHE_ROWS = 3_000  # rows in the cache of a table over disk
_SCATTER = 0x9E3779B97F4A7C15


class WrongError(Exception):
    """A row or a count that is not as it must be."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A table, and how rows leave it.

    Attributes:
        policy: Arguments of the `TablePolicy`.
        restricted: How many rows `restrict` leaves from time to time; 0: it is not called.
        over_disk: Whether most rows are on disk.
    """

    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    restricted: int = 0
    over_disk: bool = False

    @property
    def evicts(self) -> bool:
        return bool(self.policy.get("log_evicted"))

    @property
    def refuses(self) -> bool:
        return "max_rows" in self.policy and not self.evicts


KINDS = {
    "removed": Kind(),
    "bounded": Kind({"max_rows": 10_000, "eviction": "lru", "log_evicted": True}),
    "restricted": Kind({"eviction": "lfu", "log_evicted": True}, restricted=10_000),
    "refusing": Kind({"max_rows": 20_000, "eviction": None}),
    "tiers": Kind(over_disk=True),
    "tiers-bounded": Kind(
        {"max_rows": 20_000, "eviction": "lru", "log_evicted": True}, over_disk=True
    ),
}


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """The keys of numbers. Multiplication by an odd factor modulo 2**64 is invertible."""
    return (numbers.astype(np.uint64) * np.uint64(_SCATTER)).view(np.int64)


def numbers_of(keys: np.ndarray) -> np.ndarray:
    """Numbers of keys."""
    inverse = np.uint64(pow(_SCATTER, -1, 2**64))
    return (keys.view(np.uint64) * inverse).astype(np.int64)


def rows_of(numbers: np.ndarray, versions: np.ndarray) -> np.ndarray:
    """Rows of numbers and versions, [n, DIM]."""
    pairs = np.stack([numbers + 1, versions], axis=1)
    return np.tile(pairs, PAIRS).astype(np.float32)


class Draw:
    """Draws numbers for a single thread."""

    _sums = np.cumsum(np.arange(1, WINDOW + 1, dtype=np.float64) ** -EXPONENT)

    def __init__(self, seed: list[int], begin: float) -> None:
        self._random, self._begin = np.random.default_rng(seed), begin

    def newest(self) -> int:
        """The newest number, before it wraps around at SPACE."""
        return WINDOW + int((time.monotonic() - self._begin) * DRIFT)

    def some(self, count: int) -> np.ndarray:
        """Drawn numbers, with repeats."""
        places = self._random.random(count) * self._sums[-1]
        return (self.newest() - np.searchsorted(self._sums, places)) % SPACE

    def of_writer(self, writer: int) -> np.ndarray:
        """Distinct numbers that a writer writes."""
        some = self.some(BATCH)
        return np.unique((some - some % 3 + writer)[some < SPACE - 3])


class LoadedTable:
    """A table with its writers, and the counts that its statistics must have."""

    def __init__(self, kind: Kind, folder: pathlib.Path, seed: int) -> None:
        self.kind = kind
        storage = None
        if kind.over_disk:
            row_bytes = DIM * 4 + 3 * 8
            storage = tf_embed.Storage(host_bytes=CACHE_ROWS * row_bytes, path=folder / "rows")
        policy = tf_embed.TablePolicy(**kind.policy, track_changes=True)
        make = {"dim": DIM, "initializer": 0.0, "policy": policy}
        self.variable = tf_embed.Variable(
            **make, name="loaded", devices=["/CPU:0"] * 2, storage=storage
        )
        self.snapshots = tf_embed.Snapshots(folder / "snapshots", self.variable)
        self.other = tf_embed.Variable(  # snapshots are loaded into it
            dim=DIM, initializer=0.0, policy=tf_embed.TablePolicy(track_changes=True), name="other"
        )
        self.loading = tf_embed.Snapshots(folder / "snapshots", self.other)
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        self.optimizer.build(self.variable.trainable_variables)
        self.timed_lookups = tf.function(
            self._timed_lookups, input_signature=[tf.TensorSpec([LOOKUPS, BATCH], tf.int64)]
        )
        self.begin = time.monotonic()
        # By number: the version of the last write that began, and of the last write that returned.
        self.begun = np.zeros(SPACE, np.int64)
        self.done = np.zeros(SPACE, np.int64)
        self.present = np.zeros(SPACE, bool)  # rows that must be there
        self.logged = np.zeros(SPACE, np.int64)  # the last version that left by the policy
        self.counts: collections.Counter[str] = collections.Counter()
        self._one = threading.Lock()  # for the counts
        self.draws = [Draw([seed, writer], self.begin) for writer in range(len(WRITERS))]
        self.expired = [0] * len(WRITERS)  # lower numbers are removed
        self.saved: str | None = None
        for first in range(0, WINDOW, 1000):
            self.upsert(0, np.arange(first, first + 1000)[np.arange(first, first + 1000) % 3 == 0])
        # At the first step a table drops its record of earlier changes.
        self.train(2, np.array([WINDOW - 1]))
        self.train(2, np.array([WINDOW - 1]))

    def count(self, **counts: int) -> None:
        with self._one:
            self.counts.update(counts)

    # Reads.

    def _timed_lookups(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks up in sequence, and measures the seconds of each lookup, without Python between."""
        rows = tf.TensorArray(tf.float32, LOOKUPS, element_shape=[BATCH, DIM])
        exists = tf.TensorArray(tf.bool, LOOKUPS, element_shape=[BATCH])
        seconds = tf.TensorArray(tf.float64, LOOKUPS, element_shape=[])
        for i in tf.range(LOOKUPS):
            with tf.control_dependencies([keys[i]]):
                begin = tf.timestamp()
            with tf.control_dependencies([begin]):
                found, there = self.variable.lookup(keys[i], return_exists=True)
            with tf.control_dependencies([found, there]):
                end = tf.timestamp()
            rows, exists = rows.write(i, found), exists.write(i, there)
            seconds = seconds.write(i, end - begin)
        return rows.concat(), exists.concat(), seconds.stack()

    def read(self, draw: Draw) -> np.ndarray:
        """Looks up, checks, and returns the seconds of each lookup."""
        numbers = draw.some(LOOKUPS * BATCH)
        keys = tf.constant(keys_of(numbers).reshape(LOOKUPS, BATCH))
        known = self.known(numbers)
        rows, exists, seconds = (part.numpy() for part in self.timed_lookups(keys))
        self.count(keys=exists.size, found=int(exists.sum()), lookups=LOOKUPS)
        self.check("lookup", numbers, rows, exists, known)
        return seconds

    def known(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least versions, and the existing rows, that a read which begins now must find."""
        return self.done[numbers], self.present[numbers]

    def check(
        self,
        what: str,
        numbers: np.ndarray,
        rows: np.ndarray,
        exists: np.ndarray,
        known: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Checks rows that were read since `known`.

        Raises:
            WrongError: If no write wrote such a row.
        """
        low, before = known
        high, after = self.begun[numbers], self.present[numbers]
        if (lost := before & after & ~exists).any():
            raise WrongError(f"{what}: no row of number {numbers[lost][0]}, which has one")
        version = rows[:, 1].astype(np.int64)
        is_right = (rows == rows_of(numbers, version)).all(1) & (version >= low) & (version <= high)
        if self.kind.evicts:
            # If a row left after its lookup, the step makes a new row from the initial row.
            is_new = (rows == rows_of(np.full_like(numbers, -1), version)).all(1) & (version == 1)
            is_right |= is_new & (numbers % 3 == WRITERS.index("train"))
        is_right |= ~exists & (rows == 0.0).all(1)
        if not is_right.all():
            i = np.flatnonzero(~is_right)[0]
            raise WrongError(
                f"{what}: a row that was not written. It must be {numbers[i] + 1} and a version "
                f"from {low[i]} to {high[i]}. Received: {rows[i].tolist()}, exists={exists[i]}"
            )

    # Writes.

    def look(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A writer's own lookup of distinct numbers."""
        known = self.known(numbers)
        found = self.variable.lookup(keys_of(numbers), return_exists=True)
        rows, exists = (part.numpy() for part in found)
        self.count(keys=exists.size, found=int(exists.sum()))
        self.check("lookup of a writer", numbers, rows, exists, known)
        return rows, exists

    def upsert(self, writer: int, numbers: np.ndarray) -> None:
        """Writes the next version of rows."""
        self._begin(numbers)
        self.variable.upsert(keys_of(numbers), rows_of(numbers, self.begun[numbers]))
        self._end(numbers)

    def accum(self, writer: int, numbers: np.ndarray) -> None:
        """Adds 1 to the version of existing rows, and inserts the others."""
        rows, exists = self.look(numbers)
        self._begin(numbers)
        new = np.where(exists[:, None], rows, rows_of(numbers, self.begun[numbers] - 1))
        new += rows_of(np.full_like(numbers, -1), np.ones_like(numbers))
        self.variable.accum(keys_of(numbers), rows, new, exists)
        self._end(numbers)

    def train(self, writer: int, numbers: np.ndarray) -> None:
        """Adds 1 to the version of existing rows by an optimizer's step, and inserts the others."""
        rows, exists = self.look(numbers)
        exists &= rows[:, 0] != 0.0
        if not exists.all():
            self.upsert(writer, numbers[~exists])
        numbers = numbers[exists]
        if not numbers.size:
            return
        self._begin(numbers)
        gradient = -rows_of(np.full_like(numbers, -1), np.ones_like(numbers))
        variables = self.variable.trainable_variables
        with tf.GradientTape() as tape:
            rows = tf_embed.embedding_lookup(self.variable, keys_of(numbers))
        found = int((rows.numpy()[:, 1] > 0.0).sum())
        self.count(keys=numbers.size, found=found)
        gradients = tape.gradient(rows, variables, output_gradients=tf.constant(gradient))
        self.optimizer.apply(gradients, variables)
        self._end(numbers)

    def _begin(self, numbers: np.ndarray) -> None:
        self.begun[numbers] += 1

    def _end(self, numbers: np.ndarray) -> None:
        """Notes that a write of distinct numbers has returned."""
        self.done[numbers] = self.begun[numbers]
        was = self.present[numbers]
        if self.kind.refuses:
            _, exists = self.look(numbers)
            self.count(refused=int((~exists).sum()), inserted=int((exists & ~was).sum()))
            self.present[numbers] = exists
        elif not self.kind.evicts:
            self.count(inserted=int((~was).sum()))
            self.present[numbers] = True
        self.count(written=numbers.size)

    def write(self, writer: int) -> None:
        """Writes a batch, and removes rows that have left the window."""
        getattr(self, WRITERS[writer])(writer, self.draws[writer].of_writer(writer))
        if not self.kind.evicts:
            first, end = self.expired[writer], self.draws[writer].newest() - WINDOW - SLACK
            if end > first:
                self.remove(np.arange(first, end)[np.arange(first, end) % SPACE % 3 == writer])
                self.expired[writer] = end

    def remove(self, numbers: np.ndarray) -> None:
        """Removes rows of a writer."""
        numbers = numbers % SPACE
        self.count(removed=int(self.present[numbers].sum()))
        self.present[numbers] = False
        self.variable.remove(keys_of(numbers))

    # Eviction and snapshots.

    def evict(self) -> None:
        """Restricts the table, and drains the log of rows that left."""
        if self.kind.restricted:
            self.variable.restrict(self.kind.restricted)
        if self.kind.evicts:
            keys, rows = (part.numpy() for part in self.variable.drain_evicted())
            numbers = numbers_of(keys)
            known = np.zeros_like(numbers), np.zeros(numbers.shape, bool)
            self.check("a row that left", numbers, rows, np.ones(numbers.shape, bool), known)
            whole = rows[:, 0] != 0.0
            self.logged[numbers[whole]] = rows[whole, 1]  # the last row of each number
            self.count(evicted=numbers.size)

    def snapshot(self) -> None:
        """Saves the changes since the last snapshot, loads and checks it."""
        known = self.known(np.arange(SPACE))
        name = str(time.monotonic_ns())
        since = self.saved if self.counts["snapshots"] % CHAIN else None
        self.snapshots.save(name, since=since).wait()
        self.saved = name
        self.snapshots.keep(1)
        self.other.clear()
        self.loading.load(name)
        self.check_all("snapshot", self.other, known)
        self.count(snapshots=1)

    def check_all(
        self, what: str, variable: tf_embed.Variable, known: tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """Checks all rows of a variable, and returns which numbers have a row.

        Raises:
            WrongError: If a row is wrong, missing or there twice.
        """
        keys, found = (part.numpy() for part in variable.export())
        numbers = numbers_of(keys)
        rows, exists = np.zeros([SPACE, DIM], np.float32), np.zeros(SPACE, bool)
        if ((numbers < 0) | (numbers >= SPACE)).any() or np.unique(numbers).size < numbers.size:
            raise WrongError(f"{what}: a key that was not written, or one twice")
        rows[numbers], exists[numbers] = found, True
        self.check(what, np.arange(SPACE), rows, exists, known)
        return exists

    # Checks between rounds, while no other thread uses the table.

    def check_quiet(self) -> None:
        """Compares rows and statistics with the counts. No other thread may use the table.

        Raises:
            WrongError: If they differ.
        """
        self.evict()
        known = self.known(np.arange(SPACE))
        exists = self.check_all("all rows", self.variable, known)
        if not self.kind.evicts and (exists != self.present).any():
            raise WrongError(f"{int((exists & ~self.present).sum())} rows that were removed")
        if self.kind.evicts:
            mine = np.arange(SPACE) % 3 == WRITERS.index("upsert")
            lost = mine & ~exists & (self.logged != self.done)
            if lost.any():
                raise WrongError(
                    f"row {np.flatnonzero(lost)[0]} is neither in the table nor in the log of rows "
                    "that left, in its last version"
                )
        rows = int(exists.sum())
        counts, stats = self.counts, self.variable.stats()
        expected = {
            "rows": rows,
            "hits": counts["found"],
            "misses": counts["keys"] - counts["found"],
            "evicted": counts["evicted"],
            "undrained": 0,
            "refused": counts["refused"],
        }
        if "max_rows" in self.kind.policy:
            expected["admitted"] = rows + counts["removed"] + counts["evicted"]
        if not self.kind.evicts:
            expected["rows"] = counts["inserted"] - counts["removed"]
        received = {name: stats[name] for name in expected}
        if received != expected or int(self.variable.size()) != rows:
            raise WrongError(f"statistics: they must be {expected}. Received: {received}")

    def plant_row(self) -> None:
        """Writes another key's row to a key."""
        numbers = self.draws[0].of_writer(0)
        self.variable.upsert(keys_of(numbers), rows_of(numbers + 1, self.begun[numbers]))

# SPDX-License-Identifier: Apache-2.0
"""A Hypothesis state machine that compares a `Variable` with a dict: each method in any order.

After each step the variable has exactly the rows of the dict.
"""

from __future__ import annotations

import copy
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from hypothesis import strategies as draw
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tf_embed

DIM = 2
ABSENT = -1.0  # each weight of an initial row
MANY = 24  # keys to draw from; a cache has room for some of them
HOST_BYTES = 400
MOST_SAVES = 4

some_keys = draw.lists(draw.integers(0, MANY - 1), max_size=MANY)
distinct_keys = draw.lists(draw.integers(0, MANY - 1), max_size=MANY, unique=True)
# Sums of these are exact.
some_number = draw.integers(-1000, 1000)

Row = tuple[float, ...]


class VariableStates(RuleBasedStateMachine):
    """The machine. A subclass sets the variable's options.

    Attributes:
        steps: The number of steps of all machines so far.
    """

    key_dtype: ClassVar[tf.DType] = tf.int64
    tiered: ClassVar[bool] = False
    shards: ClassVar[int] = 1
    tracks_changes: ClassVar[bool] = True
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.made = 0
        self.begin()
        self.rows: dict[int, Row] = {}
        self.saves: list[dict[int, Row]] = []
        self.snapshots: list[dict[int, Row]] = []
        self.last: int | None = None  # the next snapshot of changes may build on this snapshot

    def begin(self) -> None:
        """Makes an empty variable."""
        self.made += 1
        storage = None
        if self.tiered:
            path = self.folder / f"rows{self.made}"
            storage = tf_embed.Storage(host_bytes=HOST_BYTES, path=str(path))
        self.variable = tf_embed.Variable(
            key_dtype=self.key_dtype,
            dim=DIM,
            name="states",
            devices=["/CPU:0"] * self.shards,
            initializer=ABSENT,
            policy=tf_embed.TablePolicy(eviction="lru", track_changes=self.tracks_changes),
            storage=storage,
        )
        self.tables = tf_embed.Snapshots(self.folder / "snapshots", self.variable)

    def teardown(self) -> None:
        """Removes the files on disk."""
        del self.variable, self.tables
        shutil.rmtree(self.folder)

    # Conversions between numbers and the variable's keys and rows.

    def keys(self, keys: Sequence[int]) -> Any:
        """The keys of some numbers."""
        if self.key_dtype == tf.string:
            return tf.constant([f"key {key}" for key in keys], tf.string)
        # Spread over the middle half of the range, with 0.
        return tf.constant([(key - MANY // 2) * (2**63 // MANY) for key in keys], self.key_dtype)

    def numbers(self, keys: tf.Tensor) -> list[int]:
        """The numbers of some keys."""
        if self.key_dtype == tf.string:
            return [int(key.decode().removeprefix("key ")) for key in keys.numpy()]
        return [int(key) // (2**63 // MANY) + MANY // 2 for key in keys.numpy()]

    def present(self) -> dict[int, Row]:
        """The rows that the variable has."""
        keys, rows = self.variable.export()
        numbers = self.numbers(keys)
        assert len(set(numbers)) == len(numbers), "a key comes twice"
        return dict(zip(numbers, map(tuple, rows.numpy().tolist()), strict=True))

    @staticmethod
    def drawn_rows(count: int, first: int) -> list[Row]:
        """Distinct rows."""
        return [(float(first + i), float(2 * first - i)) for i in range(count)]

    # Steps.

    @rule(keys=some_keys, first=some_number)
    def upsert(self, keys: list[int], first: int) -> None:
        """The last of equal keys wins."""
        rows = self.drawn_rows(len(keys), first)
        self.variable.upsert(self.keys(keys), np.reshape(rows, [len(keys), DIM]))
        self.rows.update(zip(keys, rows, strict=True))

    @rule(keys=distinct_keys, first=some_number, data=draw.data())
    def accum(self, keys: list[int], first: int, data: draw.DataObject) -> None:
        """A key is changed only if the caller's flag says rightly whether it exists."""
        flags = data.draw(draw.lists(draw.booleans(), min_size=len(keys), max_size=len(keys)))
        old = self.drawn_rows(len(keys), 3)
        new = self.drawn_rows(len(keys), first)
        shape = [len(keys), DIM]
        self.variable.accum(
            self.keys(keys),
            np.reshape(old, shape).astype(np.float32),
            np.reshape(new, shape).astype(np.float32),
            np.array(flags, bool),
        )
        for key, exists, before, after in zip(keys, flags, old, new, strict=True):
            if exists and key in self.rows:
                sums = zip(self.rows[key], before, after, strict=True)
                self.rows[key] = tuple(x + b - a for x, a, b in sums)
            elif not exists and key not in self.rows:
                self.rows[key] = after

    @rule(keys=some_keys)
    def remove(self, keys: list[int]) -> None:
        """Absent keys are ignored."""
        self.variable.remove(self.keys(keys))
        for key in keys:
            self.rows.pop(key, None)

    @rule()
    def clear(self) -> None:
        """After this, no snapshot of changes builds on an earlier snapshot."""
        self.variable.clear()
        self.rows = {}
        self.last = None

    @rule(keys=some_keys, training=draw.booleans())
    def lookup(self, keys: list[int], training: bool) -> None:
        """Absent keys have initial rows. A lookup does not insert them."""
        rows, exists = self.variable.lookup(self.keys(keys), return_exists=True, training=training)
        absent = (ABSENT,) * DIM
        assert list(map(tuple, rows.numpy())) == [self.rows.get(key, absent) for key in keys]
        assert exists.numpy().tolist() == [key in self.rows for key in keys]

    @rule(keys=some_keys)
    def prefetch(self, keys: list[int]) -> None:
        """Moves rows between tiers, if there are any, and changes none."""
        self.variable.prefetch(self.keys(keys))

    @rule(most=draw.integers(0, MANY))
    def restrict(self, most: int) -> None:
        """At most `most` rows stay, unchanged."""
        removed = int(self.variable.restrict(most))
        assert removed == max(0, len(self.rows) - most)
        left = self.present()
        assert len(left) == len(self.rows) - removed
        assert left.items() <= self.rows.items()
        self.rows = left

    @rule()
    @precondition(lambda self: len(self.saves) < MOST_SAVES)
    def save(self) -> None:
        """All rows, to files."""
        self.variable.save_rows(self.folder / f"save{len(self.saves)}")
        self.saves.append(copy.copy(self.rows))

    @rule(data=draw.data())
    @precondition(lambda self: self.saves)
    def load(self, data: draw.DataObject) -> None:
        """Loads saved rows, and keeps other rows."""
        number = data.draw(draw.integers(0, len(self.saves) - 1))
        self.variable.load_rows(self.folder / f"save{number}")
        self.rows.update(self.saves[number])

    @rule(whole=draw.booleans())
    @precondition(lambda self: len(self.snapshots) < MOST_SAVES)
    def snapshot(self, whole: bool) -> None:
        """Saves all rows, or the changes since the last snapshot."""
        has_all = whole or self.last is None or not self.tracks_changes
        since = None if has_all else f"snapshot{self.last}"
        self.tables.save(f"snapshot{len(self.snapshots)}", since=since)
        self.last = len(self.snapshots)
        self.snapshots.append(copy.copy(self.rows))

    @rule(data=draw.data(), anew=draw.booleans())
    @precondition(lambda self: self.snapshots)
    def go_back(self, data: draw.DataObject, anew: bool) -> None:
        """Restores a snapshot into this variable, or into a new variable."""
        number = data.draw(draw.integers(0, len(self.snapshots) - 1))
        if anew:
            self.begin()
        else:
            self.variable.clear()
        self.tables.load(f"snapshot{number}")
        self.rows = copy.copy(self.snapshots[number])
        self.last = number

    @invariant()
    def has_the_rows(self) -> None:
        """The variable has exactly the rows of the dict."""
        type(self).steps += 1
        assert int(self.variable.size()) == len(self.rows)
        assert self.present() == self.rows


class InMemory(VariableStates):
    """Integer keys, one shard."""


class Strings(VariableStates):
    """String keys, two shards."""

    key_dtype = tf.string
    shards = 2
    tracks_changes = False


class Tiered(VariableStates):
    """Integer keys, two shards, a small cache over a disk."""

    tiered = True
    shards = 2


class TieredStrings(VariableStates):
    """String keys over a disk."""

    key_dtype = tf.string
    tiered = True
    tracks_changes = False


MACHINES = (InMemory, Strings, Tiered, TieredStrings)


class Planted(InMemory):
    """A variable that keeps a key if a call removes it twice."""

    @rule(keys=some_keys)
    def remove(self, keys: list[int]) -> None:
        """The defect."""
        once = [key for key in keys if keys.count(key) == 1]
        self.variable.remove(self.keys(once))
        for key in keys:
            self.rows.pop(key, None)

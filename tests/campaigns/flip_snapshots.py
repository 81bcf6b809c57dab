# SPDX-License-Identifier: Apache-2.0
"""Damages files of snapshots at random, one at a time, and loads them.

    python tests/campaigns/flip_snapshots.py [--flips=1000] [--seed=1]

A chain of three snapshots, one of all rows and two of changes, has two tables with slots of Adam
and the statistics of a policy. A damage is one of KINDS. It is a finding

- if the last snapshot of the chain loads all the same, or raises something else than a
  tf.errors.OpError or a ValueError;
- if the message does not name the folder or the file;
- if a table has rows afterwards;
- if the snapshot does not load, or not equal, once the files are as they were.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import keras
import numpy as np
import tensorflow as tf

import tf_embed

DIM, KEYS, BATCH = 3, 300, 60
STORED_KEYS = 8000  # of the table on disk: enough for sealed files
CHAIN = ("first", "second", "third")
KINDS = ("bit", "bit", "bit", "bytes", "cut", "longer", "empty", "missing", "swapped", "renewed")
PLANTS = ("none", "rows")


class Finding(Exception):  # noqa: N818 - it is not an error of this program
    """Something that must not be."""


def content_of(variable: tf_embed.Variable) -> dict[int, Any]:
    """By key: the row, its slots and its statistics."""
    rows = variable.table.export()
    parts = (rows.keys, rows.values, rows.slots, rows.statistics)
    keys, *others = (part.numpy().tolist() for part in parts)
    return dict(zip(keys, zip(*others, strict=True), strict=True))


def tables_of(rows: pathlib.Path | None = None) -> list[tf_embed.Variable]:
    """Three tables, of one shard and of three, and one that has its rows in a folder."""
    storage = None if rows is None else tf_embed.Storage(host_bytes=4000, path=rows)
    return [
        tf_embed.Variable(
            dim=DIM,
            name=name,
            policy=tf_embed.TablePolicy(max_rows=most, eviction="lfu", track_changes=True),
            devices=["/CPU:0"] * shards,
            storage=storage if name == "stored" else None,
        )
        for name, shards, most in (
            ("items", 1, KEYS),
            ("users", 3, KEYS),
            ("stored", 1, 2 * STORED_KEYS),
        )
    ]


class Trainer:
    """Trains tables by Adam."""

    def __init__(self, tables: list[tf_embed.Variable]) -> None:
        self._tables = tables
        self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        self._trained = [one for table in tables for one in table.trainable_variables]
        self._optimizer.build(self._trained)

    def train(self, seed: int) -> None:
        """Makes a step, and removes some rows."""
        draw = np.random.default_rng(seed)
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for table in self._tables:
                rows = tf_embed.embedding_lookup(table, draw.integers(0, KEYS, BATCH))
                loss += tf.reduce_sum((rows - draw.normal(size=(BATCH, DIM))) ** 2)
        self._optimizer.apply(tape.gradient(loss, self._trained), self._trained)
        for table in self._tables:
            table.remove(draw.integers(0, KEYS, 5))


class Campaign:
    """The folder, what it has when it is whole, and what was seen."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.folder, self.plant = folder / "snapshots", arguments.plant
        self.draw = random.Random(arguments.seed)
        self.counts: collections.Counter[str] = collections.Counter()
        tables = tables_of(folder / "rows")
        trainer = Trainer(tables)
        # Files of the same names, with rows of an earlier time.
        self.earlier = self._saved(tables, trainer, 0)
        for table in tables:
            table.clear()
        self.whole = self._saved(tables, trainer, 100)
        self.expected = [content_of(table) for table in tables]
        if not all(self.expected):
            raise RuntimeError("There are no rows to lose.")
        del trainer, tables, table  # what is linked has no other name from here on
        gc.collect()
        self.tables = tables_of()
        self.snapshots = tf_embed.Snapshots(self.folder, self.tables)
        if not any(".link" in file.name for file in self.whole):
            raise RuntimeError("There are no links to damage.")

    def _saved(
        self, tables: list[tf_embed.Variable], trainer: Trainer, seed: int
    ) -> dict[pathlib.Path, bytes]:
        """The files of a chain that is saved now."""
        snapshots = tf_embed.Snapshots(self.folder, tables)
        for name in reversed(snapshots.list_snapshots()):
            snapshots.remove(name.name)
        for first in range(0, STORED_KEYS, 100):
            keys = np.arange(first, first + 100)
            tables[-1].upsert(keys, np.full([100, DIM], seed + first, np.float32))
        since = None
        for number, name in enumerate(CHAIN):
            for step in range(3):
                trainer.train(seed + 10 * number + step)
            snapshots.save(name, since=since)
            since = name
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        return {file: file.read_bytes() for file in sorted(files)}

    def damage(self, kind: str) -> tuple[str, dict[pathlib.Path, bytes | None]]:
        """Words for a damage, and what files have by it; None: they are not there."""
        file = self.draw.choice(list(self.whole))
        content = self.whole[file]
        place = self.draw.randrange(len(content))
        words = f"{file.relative_to(self.folder)}, byte {place}"
        if kind == "bit":
            bit = self.draw.randrange(8)
            changed = bytes([content[place] ^ 1 << bit])
            return f"{words}, bit {bit}", {file: content[:place] + changed + content[place + 1 :]}
        if kind == "bytes":
            other = self.draw.randbytes(self.draw.randint(1, 64))
            other = bytes([content[place] ^ 255]) + other
            return words, {file: (content[:place] + other)[: len(content)] + content[place + 65 :]}
        if kind == "cut":
            return words, {file: content[:place]}
        if kind == "longer":
            return words, {file: content + self.draw.randbytes(self.draw.randint(1, 64))}
        if kind == "empty":
            return words, {file: b""}
        if kind == "missing":
            return words, {file: None}
        if kind == "swapped":
            others = [one for one, its in self.whole.items() if its != content]
            other_file = self.draw.choice(others)
            same = [one for one in others if one.suffix == file.suffix]
            if same and self.draw.random() < 0.8:
                other_file = self.draw.choice(same)
            words = f"{words} and {other_file.relative_to(self.folder)}"
            return words, {file: self.whole[other_file], other_file: content}
        return words, {file: self._earlier(file)}

    def _earlier(self, file: pathlib.Path) -> bytes:
        """What a file of that kind and place had in an earlier chain."""
        mine = [one for one in self.whole if self._kind(one) == self._kind(file)]
        its = [one for one in self.earlier if self._kind(one) == self._kind(file)]
        place = mine.index(file)
        return self.earlier[its[place]] if place < len(its) else b""

    def _kind(self, file: pathlib.Path) -> tuple[str, str]:
        return file.parent.name, file.suffix

    def one(self) -> None:
        """Makes a damage, and mends it."""
        kind = self.draw.choice(KINDS)
        words, files = self.damage(kind)
        for file, content in files.items():
            if self.plant == "none":
                continue
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        try:
            self._load_damaged(f"{kind}: {words}", files)
        finally:
            for file in files:
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(self.whole[file])
            for table in self.tables:
                table.clear()
        self._load_whole(f"{kind}: {words}, mended")
        self.counts[f"{kind} of {next(iter(files)).suffix[1:]}"] += 1

    def _load_damaged(self, words: str, files: dict[pathlib.Path, bytes | None]) -> None:
        try:
            self.snapshots.load(CHAIN[-1])
        except (tf.errors.OpError, ValueError) as error:
            if str(self.folder) not in str(error):
                raise Finding(f"{words}: the message names no file: {error}") from error
            named = any(str(file) in str(error) for file in files)
            self.counts["named: the file" if named else "named: the folder, or another file"] += 1
        except Exception as error:
            raise Finding(f"{words}: it raised {type(error).__name__}: {error}") from error
        else:
            raise Finding(f"{words}: it was loaded")
        if self.plant == "rows":
            self.tables[0].upsert([1], [[1.0] * DIM])
        if rows := [int(table.size()) for table in self.tables if table.size()]:
            raise Finding(f"{words}: a table has {rows} rows")

    def _load_whole(self, words: str) -> None:
        try:
            self.snapshots.load(CHAIN[-1])
        except Exception as error:
            raise Finding(f"{words}: it raised {type(error).__name__}: {error}") from error
        if [content_of(table) for table in self.tables] != self.expected:
            raise Finding(f"{words}: the rows are others")
        for table in self.tables:
            table.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=PLANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    begin, failures, number = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        campaign = Campaign(pathlib.Path(name), arguments)
        while number < arguments.flips and failures < 10:
            number += 1
            try:
                campaign.one()
            except Finding as finding:
                failures += 1
                print(f"damage {number}, {finding}", flush=True)
    for what, count in sorted(campaign.counts.items()):
        print(f"{what:40} {count:6,}")
    print(
        f"flip_snapshots: {number} damages, {time.monotonic() - begin:.0f} s, {failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

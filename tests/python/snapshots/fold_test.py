# SPDX-License-Identifier: Apache-2.0
"""Folds of chains with different statistics or slots in their saves, against loads of the chain."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.ops import row_file_ops, snapshot_ops
from tf_embed.saving.row_streams import RowReader
from tf_embed.snapshots import Snapshots, files, manifest

DIM, KEYS, STEPS = 3, 200, 3
POLICIES = {
    "none": tf_embed.TablePolicy(eviction=None, track_changes=True),
    "lru": tf_embed.TablePolicy(track_changes=True),
    "lfu": tf_embed.TablePolicy(eviction="lfu", track_changes=True),
    "ttl": tf_embed.TablePolicy(eviction="ttl", track_changes=True),
    "score": tf_embed.TablePolicy(eviction="score", track_changes=True),
    "epoch_lfu": tf_embed.TablePolicy(eviction="epoch_lfu", steps_per_epoch=2, track_changes=True),
}

ADMISSIONS = (tf_embed.CounterAdmission(4), tf_embed.BloomAdmission(4, error_rate=0.001))


def train_once(
    variable: tf_embed.Variable, optimizer: keras.optimizers.Optimizer, keys: Any, target: Any
) -> None:
    """Makes a step on several keys."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf_embed.embedding_lookup(variable, keys) - target) ** 2)
    variables = variable.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


def count(variable: tf_embed.Variable, keys: list[int]) -> None:
    """Makes a step of SGD, which admission counts."""
    hyper = tf.constant([1.0, 0.0], tf.float64)
    gradients = tf.ones([len(keys), 1])
    step = tf.constant(1, tf.int64)
    variable.table.apply(tf.constant(keys, tf.int64), gradients, rule="sgd", hyper=hyper, step=step)


class Trained:
    """A table that Adam trains, with a clock that stands still.

    Args:
        policy: The policy.
        shards: Number of shards.
        has_slots: Whether it has Adam's slots from the beginning; otherwise it has no optimizer.
    """

    def __init__(
        self, policy: tf_embed.TablePolicy | None, shards: int = 1, has_slots: bool = True
    ) -> None:
        self.variable = tf_embed.Variable(
            dim=DIM,
            name="items",
            devices=["/CPU:0"] * shards,
            initializer=keras.initializers.RandomNormal(seed=1),
            policy=policy,
        )
        self._statistics = policy is not None and policy.eviction is not None
        if self._statistics:
            self.variable.set_clock(time_ms=1_000_000)
        self._optimizer = None
        if has_slots:
            self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            self._optimizer.build(self.variable.trainable_variables)

    def write(self, seed: int) -> None:
        """Makes steps on random keys, or writes rows for them, and removes a few other keys."""
        draw = np.random.default_rng(seed)
        for _ in range(STEPS):
            keys = draw.integers(-KEYS, KEYS, 60)
            target = draw.normal(size=(60, DIM)).astype(np.float32)
            if self._optimizer is None:
                self.variable.upsert(keys, target)
            else:
                train_once(self.variable, self._optimizer, keys, target)
            self.variable.remove(draw.integers(-KEYS, KEYS, 7))

    def content(self) -> dict[int, tuple[list[float], ...]]:
        """The row, its slots and its statistics, by key."""
        exported = self.variable.table.export()
        keys, *columns = exported.keys, exported.values, exported.slots
        if self._statistics:
            columns += self.variable.row_statistics(keys).values()
        parts = zip(*(column.numpy().tolist() for column in columns), strict=True)
        return dict(zip(keys.numpy().tolist(), parts, strict=True))


class FoldTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.path, ignore_errors=True)

    def save_chain(self, kinds: list[tuple[str, bool]]) -> str:
        """Saves "s0", "s1", ..., each by a table that has loaded the previous save.

        Args:
            kinds: For each table, the name of its policy, and whether it has slots.

        Returns:
            The name of the last save.
        """
        since = None
        for number, (policy, has_slots) in enumerate(kinds):
            table = Trained(POLICIES[policy], 1 + number % 2, has_slots)
            snapshots = Snapshots(self.path, table.variable)
            if since is not None:
                table.write(number)  # its rows have slots from now on
                table.variable.clear()
                snapshots.load(since)
            table.write(number)
            snapshots.save(f"s{number}", since=since)
            since = f"s{number}"
        return since

    def read(self, name: str) -> dict[int, tuple[list[float], list[float]]]:
        """The rows and slots of a snapshot, without a table."""
        folder = os.path.join(self.path, name)
        found = {}
        for saved in manifest.read(folder).tables:
            for block in RowReader(folder, saved.file_name).blocks():
                keys, rows, slots = (part.tolist() for part in block)
                found.update(zip(keys, zip(rows, slots, strict=True), strict=True))
        return found

    def check_fold(self, name: str) -> None:
        """Checks that tables of all policies load, and then train, a fold like its chain."""
        folded = Snapshots(self.path, []).fold(name, "all")
        self.assertIsNone(folded.since)
        for policy in (None, *POLICIES.values()):
            by_chain, by_fold = Trained(policy), Trained(policy)
            Snapshots(self.path, by_chain.variable).load(name)
            Snapshots(self.path, by_fold.variable).load("all")
            rows = {key: parts[:2] for key, parts in by_chain.content().items()}
            self.assertEqual(self.read(name), rows)
            self.assertEqual(self.read("all"), rows)
            self.assertEqual(folded.rows, len(rows))
            self.assertEqual(by_fold.content(), by_chain.content(), str(policy))
            for table in (by_chain, by_fold):
                table.write(77)
            self.assertEqual(by_fold.content(), by_chain.content(), str(policy))

    @parameterized.parameters(*itertools.permutations(POLICIES, 2))
    def test_a_chain_of_two_policies(self, first, second):
        self.check_fold(self.save_chain([(first, True), (second, True)]))

    @parameterized.parameters(
        ["none", "lru", "none"], ["lru", "none", "lru"], ["epoch_lfu", "lru", "ttl", "lfu"]
    )
    def test_a_chain_of_several_policies(self, *names):
        self.check_fold(self.save_chain([(name, True) for name in names]))
        files = os.listdir(os.path.join(self.path, "all"))
        self.assertLen([name for name in files if name.endswith(".rows")], len(set(names)))

    @parameterized.parameters("none", "lru")
    def test_a_chain_that_begins_without_slots(self, name):
        self.check_fold(self.save_chain([("none", False), (name, True)]))

    def test_a_fold_of_changes_since_a_fold(self):
        Snapshots(self.path, []).fold(self.save_chain([("none", True), ("lru", True)]))
        table = Trained(POLICIES["ttl"])
        snapshots = Snapshots(self.path, table.variable)
        snapshots.load("s1")
        table.write(5)
        snapshots.save("s2", since="s1")
        self.check_fold("s2")

    def saved_chain(self) -> tuple[tf_embed.Variable, Snapshots]:
        """A table, and its snapshots: "all" with keys 0 to 9, and "changes" with key 1."""
        v = tf_embed.Variable(dim=1, name="items", policy=POLICIES["none"])
        v.upsert(np.arange(10), np.zeros([10, 1]))
        snapshots = Snapshots(self.path, v)
        snapshots.save("all")
        v.upsert([1], [[1.0]])
        snapshots.save("changes", since="all")
        return v, snapshots

    def check_changes_since(self, since: str, v: tf_embed.Variable, snapshots: Snapshots) -> None:
        """Saves the changes of key 2 and the removal of key 3, and loads them."""
        v.upsert([2], [[2.0]])
        v.remove([3])
        self.assertEqual(snapshots.save("new", since=since).wait().rows, 1)
        wanted = v.lookup(np.arange(10)).numpy()
        v.clear()
        snapshots.load("new")
        self.assertEqual(int(v.size()), 9)
        self.assertEqual(v.lookup(np.arange(10)).numpy().tolist(), wanted.tolist())

    def test_changes_are_saved_since_a_fold_in_place(self):
        v, snapshots = self.saved_chain()
        snapshots.fold("changes")
        self.assertEqual(snapshots.keep(1), ["all"])
        self.check_changes_since("changes", v, snapshots)

    @parameterized.product(since=("changes", "folded"), removed=(None, "changes", "folded"))
    def test_changes_are_saved_since_either_name_of_a_fold(self, since, removed):
        v, snapshots = self.saved_chain()
        snapshots.fold("changes", "folded")
        if removed == since:
            return
        if removed is not None:
            snapshots.remove(removed)
        self.check_changes_since(since, v, snapshots)

    def test_changes_are_saved_since_a_fold_of_another_process(self):
        v, snapshots = self.saved_chain()
        Snapshots(self.path, []).fold("changes")  # as in a process without the tables
        self.check_changes_since("changes", v, snapshots)

    def test_changes_are_saved_since_a_fold_that_was_loaded(self):
        _, snapshots = self.saved_chain()
        snapshots.fold("changes")
        snapshots.remove("all")
        other = tf_embed.Variable(dim=1, name="items", policy=POLICIES["none"])
        of_other = Snapshots(self.path, other)
        of_other.load("changes")
        self.check_changes_since("changes", other, of_other)

    def test_a_moment_is_forgotten_with_the_last_snapshot_that_shows_it(self):
        _, snapshots = self.saved_chain()
        saved = manifest.read(os.path.join(self.path, "changes")).tables[0].save
        snapshots.fold("changes", "folded")
        with mock.patch.object(snapshot_ops, "drop_snapshot") as drop:
            snapshots.remove("changes")
            drop.assert_not_called()
            snapshots.remove("folded")
            drop.assert_called_once_with(mock.ANY, saved)

    @parameterized.parameters("rows_0-00000000", "rows_0-ffffffff")
    def test_a_chain_over_a_fold_that_was_killed_loads(self, old_name):
        v, snapshots = self.saved_chain()
        folder = os.path.join(self.path, "changes")
        before = os.path.join(self.path, "before")
        shutil.copytree(folder, before)
        (saved,) = manifest.read(folder).tables
        snapshots.fold("changes")
        # As if the process died before it removed the old files. These may sort first or last.
        for name in os.listdir(before):
            if name.startswith(saved.file_name):
                other_name = name.replace(saved.file_name, old_name)
                if name.endswith(".rows"):
                    other_name = name  # the manifest names it
                shutil.copy(os.path.join(before, name), os.path.join(folder, other_name))
        shutil.rmtree(before)
        snapshots.remove("all")
        self.check_changes_since("changes", v, snapshots)

    def test_a_fold_never_writes_over_the_save_that_it_reads(self):
        _, snapshots = self.saved_chain()
        folder = os.path.join(self.path, "changes")
        (saved,) = manifest.read(folder).tables
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "must not be the place of"):
            snapshot_ops.fold_rows(folder, saved.file_name, folder, saved.file_name)
        manifest.check_saves(folder, manifest.read(folder))
        self.assertEqual(snapshots.fold("changes").rows, 10)

    def counting(self, eviction: str = "lru") -> tf_embed.Variable:
        """A table whose keys wait for their fourth step."""
        policy = tf_embed.TablePolicy(
            eviction=eviction, admission=self.admission, track_changes=True
        )
        return tf_embed.Variable(dim=1, name="items", initializer="zeros", policy=policy)

    def steps_until_admitted(self, name: str, keys: list[int], eviction: str) -> list[int]:
        """Loads a snapshot, and returns the number of further steps until each key has a row."""
        table = self.counting(eviction)
        Snapshots(self.path, table).load(name)
        missing = np.zeros(len(keys), int)
        for _ in range(4):
            count(table, keys)
            missing += np.logical_not(table.lookup(keys, return_exists=True)[1].numpy())
        return (missing + 1).tolist()

    @parameterized.parameters(*ADMISSIONS)
    def test_counts_of_all_processes_are_kept(self, admission):
        self.admission = admission
        folder, number = os.path.join(self.path, "s"), files.new_number()
        name = files.name_of(0, number)
        for rank, key in enumerate((10, 11, 12)):
            table = self.counting()
            for _ in range(rank + 1):
                count(table, [key])
            table.upsert([key + 100], [[1.0]])
            begun = snapshot_ops.begin_snapshot([table.table.handle_on_host], [0])
            snapshot_ops.write_snapshot(begun, 0, folder, name, "", row_file_ops.Part(5, rank, 3))
        snapshot_ops.join_rows(folder, name, 3)
        saved = manifest.files_of(folder, name, "items")
        files.commit(folder, manifest.SnapshotInfo("s", None, 1.0, (saved,)))
        wanted = [3, 2, 1]
        self.assertEqual(self.steps_until_admitted("s", [10, 11, 12], "lru"), wanted)
        Snapshots(self.path, []).fold("s", "all")
        self.assertEqual(self.steps_until_admitted("all", [10, 11, 12], "lru"), wanted)
        Snapshots(self.path, []).fold("all", "again")
        self.assertEqual(self.steps_until_admitted("again", [10, 11, 12], "lru"), wanted)
        self.assertEqual(manifest.read(os.path.join(self.path, "again")).rows, 3)

    @parameterized.parameters(*ADMISSIONS)
    def test_counts_of_a_chain_are_those_of_its_last_save(self, admission):
        self.admission = admission
        first, second = self.counting("lru"), self.counting("lfu")
        first.upsert([1], [[1.0]])
        count(first, [20])
        Snapshots(self.path, first).save("s0")
        count(second, [99])
        snapshots = Snapshots(self.path, second)
        snapshots.load("s0")
        count(second, [20])
        second.upsert([2], [[1.0]])
        snapshots.save("s1", since="s0")
        self.assertEqual(self.steps_until_admitted("s1", [20], "lfu"), [2])
        Snapshots(self.path, []).fold("s1", "all")
        self.assertEqual(self.steps_until_admitted("all", [20], "lfu"), [2])

    @parameterized.parameters(
        {"dim": DIM + 1},
        {"value_dtype": "float16"},
        {"key_dtype": "int32"},
        {"key_dtype": "string"},
    )
    def test_rows_of_two_kinds_are_refused(self, **options):
        for rank, of_rank in enumerate(({}, options)):
            variable = tf_embed.tfra.Variable(**{"dim": DIM, "name": "items", **of_rank})
            variable.save_to_file_system(self.path, proc_size=2, proc_rank=rank)
        calls = (
            lambda: RowReader(self.path, "items"),
            lambda: snapshot_ops.fold_rows(self.path, "items", self.path, "folded"),
        )
        for call in calls:
            with self.assertRaisesRegex(tf.errors.OpError, "have rows of different kinds"):
                call()
        self.assertEmpty([name for name in os.listdir(self.path) if name.startswith("folded")])

    def test_slots_of_two_optimizers_are_refused(self):
        for rank, rule in enumerate((keras.optimizers.Adam(), keras.optimizers.Adagrad())):
            variable = tf_embed.tfra.Variable(dim=DIM, name="items")
            optimizer = tf_embed.DynamicEmbeddingOptimizer(rule)
            optimizer.build(variable.trainable_variables)
            train_once(variable, optimizer, [rank], np.ones([1, DIM], np.float32))
            variable.save_to_file_system(self.path, proc_size=2, proc_rank=rank)
        other = tf_embed.Variable(dim=DIM, name="items")
        calls = (
            lambda: other.load_rows(self.path),
            lambda: RowReader(self.path, "items"),
            lambda: snapshot_ops.fold_rows(self.path, "items", self.path, "folded"),
        )
        for call in calls:
            with self.assertRaisesRegex(tf.errors.OpError, "slots of different optimizers"):
                call()
        self.assertEqual(int(other.size()), 0)
        self.assertEmpty([name for name in os.listdir(self.path) if name.startswith("folded")])


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables with n shards, loaded into m shards, in memory and on disk, with slots."""

from __future__ import annotations

import shutil
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.snapshots import Snapshots

DIM, KEYS = 5, 500
SHARDS = (1, 2, 3, 4)


class Trained:
    """A variable that Adam trains."""

    def __init__(self, shards: int, storage: tf_embed.Storage | None) -> None:
        self.variable = tf_embed.Variable(
            dim=DIM,
            name="items",
            devices=["/CPU:0"] * shards,
            storage=storage,
            initializer=keras.initializers.RandomNormal(seed=1),
            policy=tf_embed.TablePolicy(track_changes=True),
        )
        self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        self._optimizer.build(self.variable.trainable_variables)

    def train(self, seed: int) -> None:
        """Makes a step on random keys, and removes a few other keys."""
        draw = np.random.default_rng(seed)
        keys, target = draw.integers(-KEYS, KEYS, 90), draw.normal(size=(90, DIM))
        with tf.GradientTape() as tape:
            rows = tf_embed.embedding_lookup(self.variable, keys)
            loss = tf.reduce_sum((rows - target.astype(np.float32)) ** 2)
        variables = self.variable.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        self.variable.remove(draw.integers(-KEYS, KEYS, 9))

    def content(self) -> dict[int, tuple[list[float], list[float]]]:
        """The row and its slots, by key."""
        exported = self.variable.table.export()
        parts = (exported.keys, exported.values, exported.slots)
        keys, rows, slots = (part.numpy().tolist() for part in parts)
        return dict(zip(keys, zip(rows, slots, strict=True), strict=True))


class SnapshotShardsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder()

    def folder(self) -> str:
        path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        return path

    def trained(self, shards: int, on_disk: bool) -> Trained:
        row_bytes = DIM * 4 * 3 + 8
        storage = tf_embed.Storage(host_bytes=60 * row_bytes, path=self.folder())
        return Trained(shards, storage if on_disk else None)

    @parameterized.product(shards=SHARDS, on_disk=(False, True))
    def test_rows_and_slots_are_equal_in_tables_of_any_number_of_shards(self, shards, on_disk):
        saved = self.trained(shards, on_disk)
        snapshots = Snapshots(self.path, saved.variable)
        for step in range(8):
            saved.train(step)
        snapshots.save("whole")
        whole = saved.content()
        for step in range(8, 11):
            saved.train(step)
        snapshots.save("changes", since="whole")
        changed = saved.content()
        self.assertNotEqual(changed, whole)
        self.assertNotEmpty(set(whole) - set(changed))
        for others in SHARDS:
            for other_on_disk in (False, True):
                loaded = self.trained(others, other_on_disk)
                loaded_snapshots = Snapshots(self.path, loaded.variable)
                loaded_snapshots.load("whole")
                self.assertEqual(loaded.content(), whole, (others, other_on_disk))
                loaded.variable.clear()
                loaded_snapshots.load("changes")
                self.assertEqual(loaded.content(), changed, (others, other_on_disk))

    @parameterized.parameters((1, 4), (4, 1), (2, 3))
    def test_training_goes_on_alike_with_another_number_of_shards(self, shards, others):
        saved, loaded = self.trained(shards, False), self.trained(others, True)
        for trained in (saved, loaded):  # so that both optimizers are at the same step
            trained.train(1)
        Snapshots(self.path, saved.variable).save("one")
        loaded.variable.clear()
        snapshots = Snapshots(self.path, loaded.variable)
        snapshots.load("one")
        for trained in (saved, loaded):
            trained.train(2)
        self.assertEqual(loaded.content(), saved.content())
        snapshots.save("two", since="one")
        back = self.trained(shards, False)
        Snapshots(self.path, back.variable).load("two")
        self.assertEqual(back.content(), loaded.content())


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Tests of `callbacks.Snapshot`."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.cases import late_changes
from tf_embed.snapshots import Snapshots, manifest


def model_of(**options) -> keras.Model:
    inputs = keras.Input((2,), dtype="int64")
    options = {"optimizer": "adagrad", **options}
    rows = tf_embed.layers.DynamicEmbedding(3, **options)(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


def rows_of(model: keras.Model) -> dict[int, list[float]]:
    """All rows of the model's table."""
    keys, rows = model.layers[1].variable.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


TRACKED = tf_embed.TablePolicy(track_changes=True)


class SnapshotTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.path, ignore_errors=True)
        draw = np.random.default_rng(1)
        self.ids = draw.integers(0, 500, size=(640, 2))
        self.y = draw.normal(size=(640, 1)).astype(np.float32)

    def fit(self, model, *callbacks, epochs=2):
        model.fit(
            self.ids, self.y, batch_size=32, epochs=epochs, callbacks=list(callbacks), verbose=0
        )

    @parameterized.parameters(
        (None, 1, [None] * 6),
        (TRACKED, 1, [None] * 6),
        (TRACKED, 3, [None, 1, 2, None, 4, 5]),
    )
    def test_it_saves_every_some_batches_and_at_the_end(self, policy, whole_every, since):
        model = model_of(policy=policy)
        saves = tf_embed.callbacks.Snapshot(
            self.path, every_n_batches=7, keep=None, whole_every=whole_every
        )
        self.fit(model, saves)
        found = Snapshots(self.path, model).list_snapshots()
        self.assertEqual([info.name for info in found], [f"snapshot-{i:06d}" for i in range(1, 7)])
        self.assertEqual(
            [info.since for info in found], [one and f"snapshot-{one:06d}" for one in since]
        )
        other = model_of()
        Snapshots(self.path, other).load("snapshot-000006")
        self.assertEqual(rows_of(other), rows_of(model))

    @parameterized.parameters(
        # The batches of an epoch, the dataset, and the number of trained batches at each snapshot.
        (20, "arrays", [12, 24, 36, 40]),
        (10, "arrays", [14, 28, 40, 54, 60]),
        (10, "unknown", [14, 28, 40, 54, 60]),
        (10, "repeated", [12, 24, 36, 48, 60, 72, 72]),  # Keras trains 12 batches in an epoch
    )
    def test_it_counts_the_batches_of_an_execution(self, steps, kind, expected):
        model = model_of()
        model.compile("sgd", "mse", steps_per_execution=4)
        saves = tf_embed.callbacks.Snapshot(self.path, every_n_batches=12, keep=None)
        at = []
        save = saves._save
        saves._save = lambda: (at.append(int(model.optimizer.iterations)), save())
        data = tf.data.Dataset.from_tensor_slices((self.ids, self.y)).batch(32).take(steps)
        options = {}
        if kind == "repeated":
            data, options = data.repeat(), {"steps_per_epoch": steps}
        elif kind == "unknown":
            data = data.filter(lambda *batch: True)
        epochs = 2 if steps == 20 else 6
        model.fit(data, epochs=epochs, callbacks=[saves], verbose=0, **options)
        self.assertEqual(at, expected)

    def test_it_counts_the_batches_of_an_epoch_that_goes_on(self):
        model = model_of()
        saves = tf_embed.callbacks.Snapshot(self.path, every_n_batches=2, keep=None)
        saves.set_model(model)
        saves.on_train_begin()
        saves.on_epoch_begin(3)
        for batch, names in ((900, 0), (901, 1), (902, 1), (903, 2)):
            saves.on_train_batch_begin(batch)
            saves.on_train_batch_end(batch)
            self.assertLen(Snapshots(self.path, model).list_snapshots(), names)

    def test_it_keeps_the_last_and_goes_on_with_their_numbers(self):
        model = model_of(policy=TRACKED)
        for _ in range(2):
            self.fit(model, tf_embed.callbacks.Snapshot(self.path, every_n_batches=7, keep=2))
        names = [info.name for info in Snapshots(self.path, model).list_snapshots()]
        self.assertEqual(names, ["snapshot-000011", "snapshot-000012"])

    def test_a_table_that_was_cleared_is_saved_whole(self):
        model = model_of(policy=TRACKED)
        saves = tf_embed.callbacks.Snapshot(self.path, 20, keep=None, whole_every=10)
        clear = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: model.layers[1].variable.clear()
        )
        self.fit(model, saves, clear, epochs=3)
        found = Snapshots(self.path, model).list_snapshots()
        self.assertEqual([info.since for info in found], [None, None, None, "snapshot-000003"])

    @parameterized.parameters(*late_changes.WAYS)
    def test_the_last_snapshot_has_the_model_as_training_leaves_it(self, way):
        model = model_of(policy=TRACKED, optimizer=None)
        inner = late_changes.optimizer_of(way, keras.optimizers.SGD(0.1))
        model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
        changes = late_changes.callbacks_of(
            way, lambda epoch: model.layers[1].variable.upsert([-5], [[epoch, 0.0, 0.0]])
        )
        saves = tf_embed.callbacks.Snapshot(self.path, every_n_batches=20, keep=None)
        self.fit(model, *changes, saves)
        snapshots, other = Snapshots(self.path, model), model_of()
        Snapshots(self.path, other).load(snapshots.latest())
        self.assertEqual(rows_of(other), rows_of(model))
        self.assertLen(snapshots.list_snapshots(), 3)

    def test_training_without_a_batch_saves_nothing(self):
        model = model_of(policy=TRACKED)
        saves = tf_embed.callbacks.Snapshot(self.path, every_n_batches=20)
        self.fit(model, saves, epochs=1)
        before = Snapshots(self.path, model).list_snapshots()
        self.fit(model, saves, epochs=0)
        self.assertEqual(Snapshots(self.path, model).list_snapshots(), before)

    @parameterized.parameters("remove", "damage", "damage its base")
    def test_all_rows_are_saved_if_the_previous_snapshot_can_not_be_read(self, harm):
        model = model_of(policy=TRACKED)
        saves = tf_embed.callbacks.Snapshot(self.path, 10, keep=None, whole_every=10)

        class Harm(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    saves._snapshots.wait()
                    folder = pathlib.Path(saves._path, "snapshot-000002")
                    if harm == "remove":
                        shutil.rmtree(folder)
                    elif harm == "damage":
                        (folder / manifest.FILE).write_text("{}")
                    else:
                        (folder.parent / "snapshot-000001" / manifest.FILE).write_text("{}")

        with self.assertLogs(level="WARNING") as logs:
            self.fit(model, saves, Harm())
        last = "snapshot-000004" if harm == "remove" else "snapshot-000005"
        message = "has all rows: 'snapshot-000002' can't be read, or one that it builds on."
        self.assertIn(message, "".join(logs.output))
        snapshots, other = Snapshots(self.path, model), model_of()
        self.assertEqual(snapshots.latest(), last)
        snapshots = Snapshots(self.path, other)
        snapshots.load(last)
        self.assertEqual(rows_of(other), rows_of(model))

    def test_training_goes_on_past_a_damaged_snapshot_and_leaves_it(self):
        model = model_of(policy=TRACKED)
        saves = tf_embed.callbacks.Snapshot(self.path, 20, keep=2)
        self.fit(model, saves, epochs=1)
        pathlib.Path(self.path, "snapshot-000002", manifest.FILE).write_text("{}")
        with self.assertLogs(level="WARNING") as logs:
            self.fit(model, saves)
        self.assertIn("snapshot-000002", logs.output[0])
        names = [f"snapshot-{number:06d}" for number in (2, 4, 5)]
        self.assertEqual(sorted(os.listdir(self.path)), names)
        self.assertEqual(Snapshots(self.path, model).latest(), names[-1])

    def test_a_failure_ends_the_training(self):
        model = model_of(policy=TRACKED)
        saves = tf_embed.callbacks.Snapshot(self.path, 5)
        fails = mock.patch(
            "tf_embed.ops.snapshot_ops.write_snapshot",
            side_effect=tf.errors.ResourceExhaustedError(None, None, "The disk is full."),
        )
        with fails, self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "disk is full"):
            self.fit(model, saves)
        self.assertEmpty(Snapshots(self.path, model).list_snapshots())

    def test_arguments(self):
        for arguments, error, message in (
            ({"every_n_batches": 0}, ValueError, "`every_n_batches`"),
            ({"keep": 0}, ValueError, "`keep`"),
            ({"whole_every": "2"}, TypeError, "`whole_every`"),
            ({"tables": [3]}, TypeError, "`tables`"),
            ({"tables": []}, ValueError, r"`tables` must have a Variable or a layer. Rec.*=\[\]"),
            ({"path": ""}, ValueError, "`path`"),
        ):
            with self.assertRaisesRegex(error, message):
                tf_embed.callbacks.Snapshot(**{"path": self.path, **arguments})


if __name__ == "__main__":
    absltest.main()

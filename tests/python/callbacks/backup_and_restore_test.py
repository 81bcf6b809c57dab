# SPDX-License-Identifier: Apache-2.0
"""`callbacks.BackupAndRestore`, interrupted at each of its writes."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed

IDS = np.random.default_rng(1).integers(0, 40, [24, 3])
LABELS = np.random.default_rng(2).normal(size=24)
EPOCHS = 4


class Killed(BaseException):
    """Simulates the end of the process."""


def compiled() -> keras.Model:
    keras.utils.set_random_seed(1)
    ids = keras.Input([3], dtype="int64")
    rows = tf_embed.layers.DynamicEmbedding(
        2, combiner="sum", optimizer=keras.optimizers.Adam(0.1), initializer="uniform", name="t"
    )(ids)
    model = keras.Model(ids, keras.layers.Dense(1, name="d")(rows))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def fit(model: keras.Model, *callbacks: Any) -> list[int]:
    """Trains, and returns the trained epochs."""
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": EPOCHS}
    return model.fit(IDS, LABELS, callbacks=list(callbacks), **options).epoch


def state(model: keras.Model) -> list[np.ndarray]:
    keys = np.arange(40)
    dense = [np.asarray(one) for one in [*model.get_layer("d").weights, *model.optimizer.variables]]
    return [model.get_layer("t").variable.lookup(keys).numpy(), *dense]


class Stop(keras.callbacks.Callback):
    """Simulates a kill before a batch of an epoch."""

    def __init__(self, epoch: int, batch: int = 0) -> None:
        super().__init__()
        self.place = (epoch, batch)
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.place:
            raise Killed


class BackupAndRestoreTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()), "backup")
        unbroken = compiled()
        fit(unbroken)
        self.expected = state(unbroken)

    def callback(self, **options: Any) -> tf_embed.callbacks.BackupAndRestore:
        return tf_embed.callbacks.BackupAndRestore(self.folder, **options)

    def assert_as_unbroken(self, model: keras.Model) -> None:
        for one, other in zip(state(model), self.expected, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.smoke
    def test_training_goes_on_at_the_epoch_of_the_last_backup(self):
        with self.assertRaises(Killed):
            fit(compiled(), self.callback(), Stop(2))
        self.assertLen(os.listdir(self.folder), 2)
        model = compiled()
        self.assertEqual(fit(model, self.callback()), [2, 3])
        self.assert_as_unbroken(model)
        self.assertFalse(self.folder.exists())

    @parameterized.product(
        function=["rename", "remove", "rmtree"], call=[1, 2, 3, 4, 5], done=[False, True]
    )
    def test_a_kill_at_any_write_leaves_a_whole_backup(self, function, call, done):
        name = f"tensorflow.io.gfile.{function}"
        killing = mock.patch(name, self.killing(function, call, done))
        with killing, self.assertRaises(Killed):
            fit(compiled(), self.callback(delete_checkpoint=False), Stop(EPOCHS - 1))
        self.goes_on()

    @parameterized.parameters("latest.weights.h5", "training_metadata.json", "current.new")
    def test_a_kill_while_a_file_is_half_written_leaves_the_backup_before(self, name):
        with self.assertRaises(Killed):
            fit(compiled(), self.callback(), Stop(2))
        unfinished = self.folder if name == "current.new" else self.folder / "unfinished-0123abcd"
        unfinished.mkdir(exist_ok=True)
        (unfinished / name).write_bytes(b"half")
        self.assertEqual(self.goes_on(), [2, 3])

    def goes_on(self) -> list[int]:
        model = compiled()
        epochs = fit(model, self.callback(delete_checkpoint=False))
        self.assert_as_unbroken(model)
        names = sorted(os.listdir(self.folder))
        self.assertEqual([name.split("-")[0] for name in names], ["backup", "current"])
        return epochs

    def killing(self, function: str, call: int, done: bool) -> Any:
        """Simulates a kill at a call of a function, before or after the function's work."""
        real, calls = getattr(tf.io.gfile, function), [0]

        def killed(*args: Any, **options: Any) -> None:
            calls[0] += 1
            if calls[0] == call and not done:
                raise Killed
            real(*args, **options)
            if calls[0] == call:
                raise Killed

        return killed

    def test_a_number_of_batches_begins_the_epoch_again(self):
        with self.assertRaises(Killed):
            fit(compiled(), self.callback(save_freq=4), Stop(2))
        model = compiled()
        self.assertEqual(fit(model, self.callback(save_freq=4)), [1, 2, 3])

    def test_a_number_of_batches_goes_on_at_the_right_epoch_after_a_second_kill(self):
        for _ in range(2):
            with self.assertRaises(Killed):
                fit(compiled(), self.callback(save_freq=2), Stop(2, 2))
        self.assertEqual(fit(compiled(), self.callback(save_freq=2)), [2, 3])

    def test_a_number_of_batches_counts_the_epochs_of_each_training(self):
        callback = self.callback(save_freq=2)
        fit(compiled(), callback)
        with self.assertRaises(Killed):
            fit(compiled(), callback, Stop(0, 2))
        self.assertEqual(fit(compiled(), callback), [0, 1, 2, 3])

    def test_a_number_of_batches_counts_those_of_an_execution(self):
        model, at = compiled(), []
        model.compile(model.optimizer, "mse", steps_per_execution=3)
        save_weights = model.save_weights
        with mock.patch.object(model, "save_weights") as saves:
            saves.side_effect = lambda *args, **options: (
                at.append(int(model.optimizer.iterations)),
                save_weights(*args, **options),
            )
            fit(model, self.callback(save_freq=3))
        self.assertEqual(at, [3, 6, 9, 12])

    def test_a_missing_backup_is_an_error(self):
        with self.assertRaises(Killed):
            fit(compiled(), self.callback(), Stop(2))
        (self.folder / "current").write_text("backup-000009")
        with self.assertRaisesRegex(
            FileNotFoundError, f"newest backup in '{self.folder}' is 'backup-000009', which is not"
        ):
            fit(compiled(), self.callback())

    def test_other_files_of_the_folder_stay(self):
        self.folder.mkdir()
        (self.folder / "notes").write_text("mine")
        fit(compiled(), self.callback())
        self.assertEqual(os.listdir(self.folder), ["notes"])

    @parameterized.parameters(
        ({"backup_dir": ""}, ValueError, "backup_dir"),
        ({"backup_dir": 1}, TypeError, "backup_dir"),
        ({"backup_dir": "x", "save_freq": 0}, ValueError, "save_freq"),
        ({"backup_dir": "x", "save_freq": "day"}, TypeError, "save_freq"),
        ({"backup_dir": "x", "delete_checkpoint": 2}, TypeError, "delete_checkpoint"),
    )
    def test_wrong_arguments_are_refused_by_name(self, arguments, error, name):
        with self.assertRaisesRegex(error, f"`{name}`.*Received"):
            tf_embed.callbacks.BackupAndRestore(**arguments)


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a trainer with parameter servers that do not fit the model, or are damaged."""

from __future__ import annotations

import io
import os
import pathlib
import tempfile
import types
import zipfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.distributed.server_checkpoints import ServerCheckpoints, TrainingState
from tf_embed.snapshots import manifest

STATE = TrainingState(**dict.fromkeys(TrainingState.__dataclass_fields__, 1))
Entries = dict[str, bytes]


def compiled(*widths: int) -> keras.Model:
    layers = [keras.layers.Dense(width) for width in widths]
    model = keras.Sequential([keras.Input([2]), *layers])
    model.compile("sgd", "mse")
    return model


def optimizer_of(name: str, options: dict[str, Any]) -> keras.optimizers.Optimizer:
    return keras.optimizers.get({"class_name": name, "config": options})


def as_npy(array: np.ndarray) -> bytes:
    contents = io.BytesIO()
    np.save(contents, array)
    return contents.getvalue()


def of_version_2(entries: Entries) -> Entries:
    contents = bytearray(entries["value_0.npy"])
    contents[6] = 2  # the major version of the format
    return {**entries, "value_0.npy": bytes(contents)}


def no_tensor(entries: Entries) -> Entries:
    return {**entries, "value_0.npy": as_npy(np.frombuffer(b"\xff" * 9, np.uint8))}


class ServerCheckpointsTest(tf.test.TestCase, parameterized.TestCase):
    """The models have no tables, so they need no servers."""

    def checkpoints(self, model: keras.Model, folder: str) -> ServerCheckpoints:
        no_servers = types.SimpleNamespace(count=0)
        return ServerCheckpoints(folder, model, no_servers, 1)  # type: ignore[arg-type]

    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters(
        ([1, 1], "must have as many dense variables as the model, .* Received: "),
        ([3], r"must have a value of shape \(2, 3\) for .*kernel'. Received: shape \(2, 1\)"),
    )
    def test_another_model_is_refused(self, widths, message):
        folder = self.folder()
        self.checkpoints(compiled(1), folder).save(STATE)
        with self.assertRaisesRegex(ValueError, message):
            self.checkpoints(compiled(*widths), folder).restore()

    @parameterized.parameters(
        (("sgd", {}), ("adam", {})),
        (("adam", {}), ("sgd", {})),
        (("adam", {}), ("adam", {})),
        # Pairs of optimizers with variables of equal shapes.
        (("sgd", {"momentum": 0.9}), ("rmsprop", {})),
        (("sgd", {"momentum": 0.9}), ("lion", {})),
        (("sgd", {"momentum": 0.9}), ("sgd", {"use_ema": True})),
        (("sgd", {"momentum": 0.9}), ("sgd", {"momentum": 0.8, "name": "mine"})),
    )
    def test_another_optimizer_begins_anew(self, first, second):
        folder, model = self.folder(), compiled(50_000)
        model.compile(optimizer_of(*first), "mse")
        model.fit(tf.ones([2, 2]), tf.zeros([2, 50_000]), verbose=0)
        self.checkpoints(model, folder).save(STATE)
        other = compiled(50_000)
        other.compile(optimizer_of(*second), "mse")
        other.optimizer.build(other.trainable_variables)
        is_alike = first[0] == second[0] and "use_ema" not in second[1]
        warns = self.assertNoLogs if is_alike else self.assertLogs
        with warns(level="WARNING") as logged:
            self.assertEqual(self.checkpoints(other, folder).restore(), STATE)
        for one, expected in zip(other.variables, model.variables, strict=True):
            self.assertAllEqual(one, expected)
        self.assertEqual(int(other.optimizer.iterations), int(is_alike))
        if not is_alike:
            words = "was written with another optimizer than .*, whose variables begin anew"
            self.assertRegex(logged.output[0], words)

    def test_a_damaged_checkpoint_does_not_end_the_training(self):
        folder, table = self.folder(), tf_embed.Variable(dim=1)
        table.upsert([1], [[1.0]])
        checkpoints = self.checkpoints(compiled(1), folder)
        snapshots = mock.patch.object(
            ServerCheckpoints, "_snapshots", lambda _: tf_embed.Snapshots(folder, table)
        )
        states = [TrainingState(steps) for steps in (1, 2, 3)]
        names = [f"step_{state.steps:012d}" for state in states]
        with snapshots, self.assertLogs(level="WARNING") as logged:
            checkpoints.save(states[0])
            pathlib.Path(folder, names[0], manifest.FILE).write_text("{}")
            for state in states[1:]:
                checkpoints.save(state)
            self.assertEqual(checkpoints.restore(), states[-1])
        self.assertIn(names[0], logged.output[0])
        for found in (os.listdir(folder), os.listdir(f"{folder}/dense")):
            found = {name.removesuffix(".npz") for name in found} - {"dense"}
            self.assertEqual(found, {names[0], names[2]})

    @parameterized.parameters((["kind"],), (["kind", "optimizer"],))
    def test_a_file_of_an_earlier_version_is_read(self, missing):
        folder, model = self.folder(), compiled(1)
        self.checkpoints(model, folder).save(STATE)
        (file,) = tf.io.gfile.glob(f"{folder}/dense/*.npz")
        with np.load(file) as saved:
            arrays = {name: saved[name] for name in saved.files if name not in missing}
        np.savez(file, **arrays)
        self.assertEqual(self.checkpoints(compiled(1), folder).restore(), STATE)

    def test_a_file_of_a_chief_that_was_killed_is_passed_over(self):
        folder, model = self.folder(), compiled(1)
        checkpoints = self.checkpoints(model, folder)
        checkpoints.save(TrainingState(steps=10))
        unfinished = pathlib.Path(folder, "dense", f"step_000000000020.npz.{'0a' * 8}.aside")
        unfinished.write_bytes(b"PK")
        self.assertEqual(checkpoints.restore(), TrainingState(steps=10))
        checkpoints.save(TrainingState(steps=15))
        self.assertEqual(os.listdir(f"{folder}/dense"), ["step_000000000015.npz"])
        self.assertEqual(checkpoints.restore(), TrainingState(steps=15))

    @parameterized.parameters(
        (dict, zipfile.ZIP_DEFLATED, "' is compressed, or has a wrong length"),
        (of_version_2, zipfile.ZIP_STORED, "'value_0.npy' is no array: .*another version"),
        (no_tensor, zipfile.ZIP_STORED, "is damaged: a value is no tensor: "),
    )
    def test_a_damaged_file_is_refused(
        self, change: Callable[[Entries], Entries], compression: int, message: str
    ) -> None:
        folder, model = self.folder(), compiled(1)
        checkpoints = self.checkpoints(model, folder)
        checkpoints.save(STATE)
        (file,) = tf.io.gfile.glob(f"{folder}/dense/*.npz")
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, contents in change(entries).items():
                archive.writestr(name, contents)
        with self.assertRaisesRegex(tf.errors.DataLossError, message):
            checkpoints.restore()

    def test_another_number_of_tables_is_refused(self):
        folder = self.folder()
        tf_embed.Snapshots(folder, tf_embed.Variable()).save("s")
        tables: list[Any] = [None, None]  # the tables are not used
        with self.assertRaisesRegex(ValueError, "as many tables as the model, 2. Received: 1"):
            self.checkpoints(compiled(1), folder)._load_rows("s", tables, [[0], [0]])


if __name__ == "__main__":
    tf.test.main()

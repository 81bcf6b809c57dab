# SPDX-License-Identifier: Apache-2.0
"""Reads the files that each supported TensorFlow saved: see tests/tables/write_golden.py."""

from __future__ import annotations

import json
import pathlib
import tempfile
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import write_golden
from absl.testing import parameterized

from support.oracles import reference
from tf_embed._library import version_numbers

VERSIONS = ("2.16.2", "2.21.0")
OTHER_SEEDS = {"wrapped": 1, "own": 2}
UNKNOWN = (17, -3)


@pytest.mark.smoke
class GoldenTest(tf.test.TestCase, parameterized.TestCase):
    def unpacked(self, version: str) -> pathlib.Path:
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with zipfile.ZipFile(write_golden.FOLDER / f"tf{version}.zip") as file:
            file.extractall(folder)
        return pathlib.Path(folder)

    def assert_read(self, folder: pathlib.Path, model: keras.Model) -> None:
        """Asserts that a model equals the golden file's, also for ids that it has never seen."""
        wanted = json.loads((folder / "content.json").read_text())
        self.assertEqual(write_golden.content(model), wanted)
        for name in write_golden.NAMES:
            self.assert_unknown(name, model.get_layer(name).variable.lookup(UNKNOWN))

    def assert_unknown(self, name: str, rows: Any) -> None:
        seed, dim = write_golden.SEEDS[name], rows.shape[-1]
        for key, row in zip(UNKNOWN, rows, strict=True):
            wanted = reference.uniform_row(name, seed, key, dim, -0.5, 0.5)
            self.assertAllEqual(row, tf.cast(np.float32(wanted), row.dtype))

    @parameterized.parameters(*VERSIONS)
    @pytest.mark.skipif(
        version_numbers(keras.__version__) < (3, 15, 0),
        reason="needs Keras 3.15, which has written the file",
    )
    def test_a_keras_file(self, version):
        folder = self.unpacked(version)
        self.assert_read(folder, keras.models.load_model(folder / "model.keras"))

    @parameterized.parameters(*VERSIONS)
    def test_weights(self, version):
        folder, model = self.unpacked(version), write_golden.compiled(OTHER_SEEDS)
        model.load_weights(folder / "model.weights.h5")
        self.assert_read(folder, model)

    @parameterized.parameters(*VERSIONS)
    def test_a_checkpoint(self, version):
        folder, model = self.unpacked(version), write_golden.compiled(OTHER_SEEDS)
        model.optimizer.build(model.trainable_variables)
        tf.train.Checkpoint(model=model).read(str(folder / "checkpoint")).assert_consumed()
        self.assert_read(folder, model)

    @parameterized.parameters(*VERSIONS)
    def test_a_savedmodel(self, version):
        folder = self.unpacked(version)
        wanted = json.loads((folder / "content.json").read_text())
        loaded = tf.saved_model.load(str(folder / "saved_model"))
        for name, key_dtype in (("wrapped", tf.int64), ("own", tf.int32)):
            lookup = getattr(loaded, name)
            rows = tf.cast(lookup(tf.constant(wanted[name]["keys"], key_dtype)), tf.float32)
            self.assertAllEqual(rows, np.float32(wanted[name]["values"]))
            self.assert_unknown(name, lookup(tf.constant(UNKNOWN, key_dtype)))


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Importing tf_embed: its side effects, and its errors if a version does not fit."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest.mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import _library

HYGIENE = """
    import json, sys
    import keras
    import numpy as np
    import tensorflow as tf

    INITIALIZERS = {
        name: kind
        for name, kind in vars(keras.initializers).items()
        if isinstance(kind, type) and name[0].isupper() and name != "Initializer"
    }

    def picture():
        # Every name of the public modules, and what every initializer and a Dense layer draw.
        names = {
            f"{module.__name__}.{name}": id(value)
            for module in (keras, keras.initializers, keras.layers, keras.optimizers, keras.saving,
                           keras.backend, keras.config, tf, tf.train, tf.saved_model, tf.nn)
            for name, value in vars(module).items()
            if not name.startswith("_") and name != "tf_embed"
        }
        methods = {
            f"{kind.__module__}.{kind.__qualname__}.{name}": id(value)
            for kind in (*INITIALIZERS.values(), keras.Layer, keras.layers.Dense, keras.Variable,
                         keras.Model, keras.optimizers.Optimizer, keras.optimizers.Adam,
                         tf.Variable, tf.Module, tf.train.Checkpoint, tf.IndexedSlices)
            for base in kind.__mro__
            for name, value in vars(base).items()
            if name not in ("__abstractmethods__", "_abc_impl")
        }
        drawn = {}
        for name, kind in sorted(INITIALIZERS.items()):
            if name.startswith("STFT"):  # wants SciPy, which Keras does not
                continue
            keras.utils.set_random_seed(1)
            shape = (3, 4, 4) if name.endswith("OrthogonalInitializer") else (4, 4)
            options = {"value": 3.0} if name == "Constant" else {}
            initializer = kind(**options)
            drawn[name] = np.asarray(initializer(shape)).tolist()
        keras.utils.set_random_seed(1)
        drawn["Dense"] = keras.layers.Dense(4)(np.ones([2, 3], np.float32)).numpy().tolist()
        return names, methods, drawn

    before = picture()
    environment = dict(__import__("os").environ)
    import tf_embed
    after = picture()
    for one, other in zip(before, after):
        changed = [name for name in one if one[name] != other.get(name)]
        assert not changed, changed
    assert environment == dict(__import__("os").environ)
    assert not tf.config.experimental_functions_run_eagerly()
    print(json.dumps({"initializers": len(INITIALIZERS), "dense": len(before[2]["Dense"])}))
"""

WITHOUT_TENSORFLOW = """
    import importlib.abc, sys

    class Hides(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.split(".")[0] == sys.argv[1]:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hides())
    try:
        import tf_embed
    except ImportError as error:
        print("|".join(str(error).splitlines()))
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    package = str(pathlib.Path(tf_embed.__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return done.stdout.strip().splitlines()[-1]


class HygieneTest(tf.test.TestCase):
    @pytest.mark.smoke
    def test_an_import_leaves_keras_and_tensorflow_as_they_were(self):
        seen = json.loads(run(HYGIENE))
        self.assertGreaterEqual(seen["initializers"], 15)
        self.assertEqual(seen["dense"], 2)

    def test_all_names_of_the_package_are_there(self):
        for name in tf_embed.__all__:
            self.assertTrue(hasattr(tf_embed, name), name)
        self.assertRegex(tf_embed.__version__, r"^\d+\.\d+")


class MissingTest(tf.test.TestCase):
    def test_all_names_of_the_interfaces_are_there(self):
        for package in (tf_embed.tbe, tf_embed.tfra, tf_embed.layers, tf_embed.optimizers):
            for name in package.__all__:
                self.assertIsNotNone(getattr(package, name), f"{package.__name__}.{name}")

    def test_a_star_import_rebinds_no_module_of_a_user(self):
        names: dict[str, object] = {}
        exec("from tf_embed import *", names)
        modules = [name for name, value in names.items() if inspect.ismodule(value)]
        self.assertEmpty(modules)
        self.assertIs(names["Variable"], tf_embed.Variable)

    def test_without_tensorflow_one_sentence_says_what_to_install(self):
        said = run(WITHOUT_TENSORFLOW, "tensorflow")
        self.assertRegex(said, r"^tf_embed needs TensorFlow .*`pip install tensorflow`.*[^|]$")

    def test_without_keras_one_sentence_says_what_to_install(self):
        self.assertEqual(
            run(WITHOUT_TENSORFLOW, "keras"),
            "tf_embed needs Keras 3.11 or later: `pip install 'keras>=3.11,<4'`.",
        )

    def test_a_library_that_tensorflow_does_not_load_is_to_be_built_again(self):
        error = tf.errors.NotFoundError(None, None, "undefined symbol")
        with (
            unittest.mock.patch.object(tf, "load_op_library", side_effect=error),
            self.assertRaisesRegex(ImportError, "can't load tf_embed's op library: .*undefined"),
        ):
            _library.load.__wrapped__()

    def test_keras_of_another_version_or_backend_is_refused(self):
        for version in ("2.15.0", "3.10.0", "4.0.0"):
            said = f"needs Keras 3.11 or later, below 4, and Keras {version} is installed"
            with self.assertRaisesRegex(ImportError, said):
                _library.check_keras(version, "tensorflow")
        with self.assertRaisesRegex(ImportError, "its backend is 'jax'"):
            _library.check_keras("3.15.1", "jax")
        for version in ("3.11.0", "3.15.1"):
            _library.check_keras(version, "tensorflow")


class VersionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("2.15.1", "2.16.1", "2.22.0", "3.0.0", "1.15.0")
    def test_a_tensorflow_that_was_never_tried_is_refused(self, version):
        with self.assertRaisesRegex(
            ImportError, f"2.16.2 or later, below 2.22, and {version} is installed: install one of"
        ):
            _library.check_tensorflow_version(version)

    @parameterized.parameters("2.16.2", "2.17.0-rc1", "2.21.0", "2.21.1+cpu")
    def test_a_tensorflow_in_the_range_is_taken(self, version):
        _library.check_tensorflow_version(version)

    def folder(self, library: bool, information: str | None) -> pathlib.Path:
        folder = pathlib.Path(self.get_temp_dir())
        for path in folder.iterdir():
            path.unlink()
        if library:
            (folder / "_tf_embed.so").write_bytes(b"")
        if information is not None:
            (folder / "_tf_embed.json").write_text(information)
        return folder

    def test_a_library_for_another_tensorflow_is_refused_and_both_are_named(self):
        folder = self.folder(True, '{"tensorflow_version": "2.16.2", "cuda": false}')
        with self.assertRaisesRegex(ImportError, r"TensorFlow 2\.16\.2, and 2\.21\.0 is installed"):
            _library.check_library(folder, "2.21.0")
        self.assertEqual(_library.check_library(folder, "2.16.2"), folder / "_tf_embed.so")

    def test_a_missing_library_says_how_to_build_one(self):
        with self.assertRaisesRegex(ImportError, "library is missing at .*`pip install "):
            _library.check_library(self.folder(False, None), "2.21.0")

    @parameterized.parameters(None, "", "{}", "[]", "{")
    def test_a_library_of_unknown_origin_is_refused(self, information):
        with self.assertRaisesRegex(ImportError, "does not say which TensorFlow.*build tf_embed"):
            _library.check_library(self.folder(True, information), "2.21.0")

    def test_a_library_of_older_sources_says_how_to_build_it(self):
        with (
            unittest.mock.patch("ctypes.CDLL", return_value=object()),
            self.assertRaisesRegex(ImportError, "older than its Python code: build .* again, with"),
        ):
            _library.vocabulary.__wrapped__()


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Keras models under a multi-worker strategy, in real processes, against one process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import PYTHONPATH
from support.processes import multi_worker_training
from tf_embed import distributed
from tf_embed.distributed import joint_steps, keras_model, run
from tf_embed.layers.layer_with_tables import LayerWithTables

SCRIPT = multi_worker_training.__file__
SECONDS = 240  # far more than any case takes


def _has_tables(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, LayerWithTables)


class WorkersTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def launched(
        self, case: str, workers: int, grace_seconds: float = 10
    ) -> tuple[run.Outcome, list[Any], str]:
        """Returns the outcome, the results of the workers that have one, and their output."""
        for path in self.folder.glob("result-*.json"):
            path.unlink()
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcome = run.launch(
                [SCRIPT, case, str(self.folder)],
                workers=workers,
                timeout_seconds=SECONDS,
                grace_seconds=grace_seconds,
                environment=environment,
            )
        paths = sorted(self.folder.glob("result-*.json"))
        if outcome.code and not paths:
            print(err.getvalue()[-5000:])
        return (
            outcome,
            [json.loads(path.read_text()) for path in paths],
            out.getvalue() + err.getvalue(),
        )

    def oracle(self, case: str) -> Any:
        """The case in this process, with no strategy."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        strategy = tf.distribute.get_strategy()
        with contextlib.redirect_stdout(io.StringIO()):
            found = multi_worker_training.CASES[case](strategy, 0, 0, folder)
        return json.loads(json.dumps(found))

    def assert_near(self, found: Any, expected: Any, what: str = "") -> None:
        """Asserts that numbers are equal, except for rounding in sums of other order."""
        if isinstance(expected, dict):
            self.assertEqual(found.keys(), expected.keys(), what)
            for key in expected:
                self.assert_near(found[key], expected[key], f"{what}.{key}")
        elif isinstance(expected, list) and expected and isinstance(expected[0], (dict, list)):
            self.assertLen(found, len(expected), what)
            for one, other in zip(found, expected, strict=True):
                self.assert_near(one, other, what)
        else:
            self.assertAllClose(found, expected, rtol=2e-5, atol=2e-6, msg=what)

    def test_training_equals_one_process(self):
        self.check_training(2)

    @parameterized.parameters(1, 4)
    @pytest.mark.slow  # the inner one: `parameters` would lose it
    def test_training_of_other_numbers_of_workers_equals_one_process(self, workers):
        self.check_training(workers)

    def check_training(self, workers: int) -> None:
        expected = self.oracle("fits")
        outcome, results, out = self.launched("fits", workers)
        self.assertEqual(outcome.code, 0)
        self.assertLen(results, workers)
        self.assertEqual(expected["iterations"], 10)
        for result in results:
            self.assert_near(result, expected)
        self.assertCountEqual(
            os.listdir(self.folder / "models"), ["saved.keras", "saved.weights.h5"]
        )
        saved = keras.saving.load_model(self.folder / "models" / "saved.keras")
        self.assert_near([one.tolist() for one in saved.get_weights()], expected["weights"])
        self.assertIn("[worker 0] Epoch 1/2", out)
        for rank in range(1, workers):
            lines = [line for line in out.splitlines() if line.startswith(f"[worker {rank}] ")]
            between = lines[lines.index(f"[worker {rank}] begin-of-fit") + 1 :]
            self.assertEqual(between[0], f"[worker {rank}] end-of-fit")

    def test_shards_of_unequal_length_end_together_and_mistakes_are_refused(self):
        expected = self.oracle("uneven")
        outcome, results, printed = self.launched("uneven", 2)
        self.assertEqual(outcome.code, 0)
        self.assertNotIn("Your input ran out of data", printed)
        self.assertLen(results, 2)
        for result in results:
            refused = result.pop("refused")
            self.assert_near(result, expected)
            for case, words in {
                "keras.distribution": ("ValueError", "must not run under `keras.distribution`"),
                "arrays": (
                    "ValueError",
                    "`x` of",
                    "must be a tf.data.Dataset with several",
                    "ndarray",
                ),
                "predict": ("ValueError", "`x` of `predict`", "tf.data.Dataset"),
                "validation": ("ValueError", "`validation_data`", "tf.data.Dataset"),
                "steps": ("ValueError", "All workers must call", "`steps_per_epoch`", "[2, 3]"),
                "endless": ("ValueError", "`x.repeat()`", "[0, 1]"),
                "no validation": ("ValueError", "`validation_data`", "[0, 1]"),
                "train_on_batch": ("ValueError", "`test_on_batch` must not be called with several"),
                "backup": ("ValueError", "[100, 101]", "All workers must begin at the same step"),
                "run_eagerly": ("ValueError", "`run_eagerly` must be False with several"),
                "callback list": ("ValueError", "must be a list of callbacks with several"),
                "reduction": (
                    "ValueError",
                    "`loss` must have the reduction",
                    "mean_with_sample_weight",
                ),
            }.items():
                for word in words:
                    self.assertIn(word, refused[case], case)

    def test_training_goes_on_after_a_worker_was_killed(self):
        self.check_killed(1)

    @pytest.mark.slow
    def test_training_goes_on_after_the_chief_was_killed(self):
        self.check_killed(0)

    def check_killed(self, rank: int) -> None:
        expected = self.oracle("resume")
        (self.folder / "killer").write_text(str(rank))
        # TensorFlow tells of most deaths at once. Seldom it waits, so it may take the time-out.
        outcome, results, _ = self.launched("resume", 2, grace_seconds=90)
        self.assertEqual((outcome.code, outcome.worker), (137, rank))
        self.assertLen(results, 1)
        self.assertIn("restart all workers from the last checkpoint", results[0]["lost"])
        self.assertLess(results[0]["seconds"], 60)
        self.assertNotEmpty(os.listdir(self.folder / "backup"))

        (self.folder / "killer").unlink()
        outcome, results, _ = self.launched("resume", 2)
        self.assertEqual(outcome.code, 0)
        self.assertLen(results, 2)
        for result in results:
            self.assertEqual(result["epochs"], [2, 3])
            self.assert_near(result["weights"], expected["weights"])
        self.assertFalse((self.folder / "backup").exists())
        names = ["best.keras", *(f"{epoch}.weights.h5" for epoch in range(1, 5))]
        self.assertCountEqual(os.listdir(self.folder / "models"), names)

    def test_a_worker_that_hangs_is_an_error_of_the_others(self):
        outcome, results, _ = self.launched("hang", 2, grace_seconds=0.5)
        self.assertEqual((outcome.code, outcome.worker), (1, 0))
        self.assertLen(results, 1)
        self.assertIn("WorkerLostError", results[0]["refused"])
        self.assertIn("has died, or did not answer within `timeout_seconds`", results[0]["refused"])


class OneProcessTest(tf.test.TestCase, parameterized.TestCase):
    def trained(self, model: keras.Model, inputs: Any, labels: Any) -> Any:
        model.compile("adam", "mse", metrics=["mae"])
        history = model.fit(inputs, labels, batch_size=8, epochs=2, validation_split=0.2, verbose=0)
        return history.history, model.evaluate(inputs, labels, verbose=0), model.predict(inputs)

    @pytest.mark.smoke
    def test_it_is_a_keras_model_to_the_last_bit(self):
        arrays = multi_worker_training.rows(5)
        found = []
        for kind in (keras.Model, distributed.Model):
            keras.utils.clear_session()
            keras.utils.set_random_seed(5)
            inputs = keras.Input([multi_worker_training.FEATURES])
            model = kind(inputs, keras.layers.Dense(1)(inputs))
            found.append(self.trained(model, *arrays))
        self.assertEqual(found[0][:2], found[1][:2])
        np.testing.assert_array_equal(found[0][2], found[1][2])

    def test_a_functional_model_leaves_subclasses_as_they_are(self):
        inputs = keras.Input([3])
        model = distributed.Model(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))
        self.assertIsInstance(model, distributed.MultiWorker)
        self.assertEqual(distributed.Model.__bases__, (distributed.MultiWorker, keras.Model))
        own = multi_worker_training.OwnStep()
        self.assertEqual(own(tf.zeros([2, 3])).shape, [2, 1])
        config = model.get_config()
        self.assertEqual(type(model).from_config(config).count_params(), 4)

    def test_a_subclass_with_inputs_is_refused_and_the_mixin_takes_them(self):
        class Wrong(distributed.Model):
            def __init__(self, inputs, outputs):
                super().__init__(inputs, outputs)

        class Right(distributed.MultiWorker, keras.Model):
            def __init__(self, inputs, outputs):
                super().__init__(inputs, outputs)

        inputs = keras.Input([3])
        outputs = keras.layers.Dense(1)(inputs)
        with self.assertRaisesRegex(
            TypeError, "must not pass `inputs` and `outputs` to its base class"
        ):
            Wrong(inputs, outputs)
        self.assertEqual(Right(inputs, outputs).count_params(), 4)

    def test_a_distribution_of_keras_is_refused(self):
        inputs = keras.Input([3])
        model = distributed.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
        try:
            with self.assertRaisesRegex(ValueError, "must not run under `keras.distribution`"):
                model.fit(tf.zeros([4, 3]), tf.zeros([4, 1]))
        finally:
            keras.distribution.set_distribution(None)

    @parameterized.parameters(
        {"names": ("user", "item")}, {"names": (None, None)}, {"names": ("item", "user")}
    )
    def test_a_joint_step_takes_a_dict_by_its_keys(self, names):
        inputs = {
            key: keras.Input([], dtype="int64", name=name)
            for key, name in zip(("user", "item"), names, strict=True)
        }
        rows = [
            tf_embed.layers.DynamicEmbedding(2, name=f"of_{key}")(one)
            for key, one in inputs.items()
        ]
        model = distributed.Model(inputs=inputs, outputs=keras.layers.Concatenate()(rows))
        batch = {"user": tf.constant([1, 2], tf.int64), "item": tf.constant([3, 4], tf.int64)}
        # In one process no table is on workers.
        with mock.patch.object(joint_steps, "_has_tables_on_workers", _has_tables):
            layers, ids = joint_steps._ids_of_layers(model)
            found = joint_steps.joint_step(model, model, False)(batch)
        for (layer, _), one in zip(layers, ids(batch), strict=True):
            self.assertAllEqual(one, batch[layer.name.removeprefix("of_")])
        self.assertAllEqual(found, model(batch))

    def test_a_joint_step_takes_the_inputs_of_a_sequential_model(self):
        embedding = tf_embed.layers.DynamicEmbedding(2)
        model = keras.Sequential([keras.Input([], dtype="int64"), embedding])
        keras.Model(outer := keras.Input([], dtype="int64"), model(outer))
        with mock.patch.object(joint_steps, "_has_tables_on_workers", _has_tables):
            ((layer, _),), ids = joint_steps._ids_of_layers(model)
        self.assertIs(layer, embedding)
        self.assertAllEqual(keras.tree.flatten(ids(tf.constant([5, 6])))[0], [5, 6])

    def test_a_subclass_may_have_an_attribute_named_inputs(self):
        class Own(distributed.Model):
            def __init__(self):
                super().__init__()
                self.inputs = ["user"]
                self.embedding = tf_embed.layers.DynamicEmbedding(2)

            def call(self, batch):
                return self.embedding(batch["user"])

        model, batch = Own(), {"user": tf.constant([1, 2], tf.int64)}
        expected = model(batch)
        with mock.patch.object(joint_steps, "_has_tables_on_workers", _has_tables):
            self.assertIsNone(joint_steps._ids_of_layers(model))
            self.assertAllEqual(joint_steps.joint_step(model, model, False)(batch), expected)

    @parameterized.product(
        kind=(keras.callbacks.BackupAndRestore, tf_embed.callbacks.BackupAndRestore),
        first_ends=(True, False),
    )
    def test_workers_make_backups_together_in_each_fit(self, kind, first_ends):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        backups = [kind(folder, save_freq=5) for _ in range(2)]  # of the chief and of a follower
        saved = []
        for fit in range(3):
            own = self.enterContext(tempfile.TemporaryDirectory())
            callbacks = [backups[0], keras_model._Follower(backups[1], own)]
            models = [mock.Mock(built=True, optimizer=None) for _ in callbacks]
            for one, model in zip(callbacks, models, strict=True):
                one.set_model(model)
                one.on_train_begin()
            for epoch in range(2):
                for one in callbacks:
                    one.on_epoch_begin(epoch)
                for batch in range(7):
                    for one in callbacks:
                        one.on_train_batch_end(batch)
                    counts = [one.save_weights.call_count for one in models]
                    self.assertEqual(counts[0], counts[1], (fit, epoch, batch))
                if fit == 0 and not first_ends:
                    break
                for one in callbacks:
                    one.on_epoch_end(epoch)
            else:
                for one in callbacks:
                    one.on_train_end()
            saved.append(counts[0])
        self.assertEqual(saved, [2, 3, 3] if first_ends else [1, 3, 3])

    @pytest.mark.smoke
    def test_keras_has_the_hook(self):
        # If it fails, Keras has changed: see `_maybe_symbolic_build` in keras_model.py.
        keras_model.check_keras_hook()

    @parameterized.parameters("_maybe_symbolic_build", "_symbolic_build")
    def test_a_change_of_the_hook_is_found(self, name):
        changed = type("Changed", (keras.Model,), {name: lambda self, iterator: None})
        with self.assertRaisesRegex(RuntimeError, "does not fit Keras"):
            keras_model.check_keras_hook(changed)
        missing = type("Missing", (), {})
        with self.assertRaisesRegex(RuntimeError, "does not fit Keras"):
            keras_model.check_keras_hook(missing)


if __name__ == "__main__":
    tf.test.main()

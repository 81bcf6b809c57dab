# SPDX-License-Identifier: Apache-2.0
"""`distributed.Model` in one process."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.processes import multi_worker_training
from tf_embed import distributed
from tf_embed.distributed import keras_model


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
        self.assertEqual(distributed.Model.__bases__, (distributed.MultiWorker, tf_embed.Model))
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

    @parameterized.product(
        kind=(keras.callbacks.BackupAndRestore, tf_embed.callbacks.BackupAndRestore),
        first_ends=(True, False),
    )
    def test_workers_make_backups_together_in_each_fit(self, kind, first_ends):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        backups = [kind(folder, save_freq=5) for _ in range(2)]  # the chief's and a follower's
        saved = []
        for fit in range(3):
            own = self.enter_context(tempfile.TemporaryDirectory())
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
        # If this fails, Keras has changed: see `_maybe_symbolic_build` in keras_model.py.
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

# SPDX-License-Identifier: Apache-2.0
"""Options of `fit` and related features: callbacks, schedules, freezing, mixed precision."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

VOCABULARY, DIM = 10, 3
IDS = np.stack([np.random.default_rng(SEED + i).permutation(VOCABULARY) for i in range(24)])
LABELS = np.random.default_rng(SEED).normal(size=[24, 1]).astype(np.float32)
WAYS = ("wrapper", "own")


class OneHot(keras.layers.Layer):
    """A dense embedding. Every batch has every id, so every step touches all rows."""

    def build(self, _: Any) -> None:
        self.rows = self.add_weight(shape=(VOCABULARY, DIM), initializer="zeros")

    def call(self, ids: Any) -> Any:
        return tf.one_hot(ids, VOCABULARY, dtype=self.compute_dtype) @ self.rows


def start() -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=[VOCABULARY, DIM]).astype(np.float32)


def model_of(way: str, make: Callable[[], Any], **compile_options: Any) -> keras.Model:
    """A model with a dense embedding, or a table that the wrapper or its own optimizer trains."""
    if way == "dense":
        layer: Any = OneHot(name="mine")
        layer.build(None)
        layer.set_weights([start()])
    else:
        layer = DynamicEmbedding(DIM, name="mine", optimizer=make() if way == "own" else None)
        layer.build()
        layer.variable.upsert(range(VOCABULARY), start())
    kernel = keras.initializers.GlorotUniform(1)
    head = keras.layers.Dense(1, kernel_initializer=kernel, dtype="float32")
    model = keras.Sequential(
        [keras.Input([VOCABULARY], dtype="int64"), layer, keras.layers.Flatten(), head]
    )
    optimizer = make()
    if way == "wrapper":
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizer)
    model.compile(optimizer, "mse", jit_compile=False, **compile_options)
    return model


def fit(model: keras.Model, epochs: int = 2, **options: Any) -> None:
    model.fit(IDS, LABELS, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


def rows(model: keras.Model) -> np.ndarray:
    return np.asarray(model.layers[0](tf.range(VOCABULARY)), np.float32)


def adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.05)


class EqualToDenseTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, way: str, make: Callable[[], Any], **options: Any) -> None:
        models = []
        for one in ("dense", way):
            keras.utils.set_random_seed(SEED)
            models.append(model_of(one, make))
            callbacks = options.get("callbacks")
            fit(models[-1], callbacks=callbacks() if callbacks else None)
        self.assertAllClose(rows(models[1]), rows(models[0]), rtol=1e-4, atol=1e-5)
        self.assertAllClose(
            models[1].layers[-1].kernel, models[0].layers[-1].kernel, rtol=1e-4, atol=1e-5
        )
        self.assertNotAllClose(rows(models[1]), start())

    @parameterized.parameters(
        {"clipnorm": 0.1},
        {"clipvalue": 0.01},
        {"global_clipnorm": 0.1},
        {"weight_decay": 0.5},
        {"gradient_accumulation_steps": 3},
        {"loss_scale_factor": 128.0},
        {"use_ema": True, "ema_momentum": 0.7},
        {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 4},
    )
    @pytest.mark.smoke
    def test_an_option_of_the_models_optimizer(self, **options):
        self.check("wrapper", lambda: keras.optimizers.Adam(0.05, **options))

    @parameterized.parameters({"clipnorm": 0.1}, {"global_clipnorm": 0.1})
    def test_a_loss_scale_optimizer_in_the_wrapper(self, **options):
        inner = lambda: keras.optimizers.Adam(0.05, **options)  # noqa: E731
        self.check("wrapper", lambda: keras.optimizers.LossScaleOptimizer(inner()))

    @parameterized.product(
        way=WAYS,
        make=(
            lambda: keras.optimizers.Nadam(
                keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
            ),
            lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
            lambda: keras.optimizers.RMSprop(lambda: tf.constant(0.02)),
        ),
    )
    def test_learning_rates_that_are_no_numbers(self, way, make):
        self.check(way, make)

    def test_learning_rate_callbacks_reach_the_rows(self):
        def callbacks() -> list[Any]:
            halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.1**epoch)
            reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=100.0)
            return [halve, reduce]

        self.check("wrapper", adam, callbacks=callbacks)

    @parameterized.product(way=WAYS, steps=(1, 3, 4))
    def test_steps_per_execution(self, way, steps):
        one, other = model_of(way, adam), model_of(way, adam, steps_per_execution=steps)
        fit(one)
        fit(other)
        self.assertAllClose(rows(other), rows(one))


class LearningRateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(way=WAYS, kind=("sgd", "nadam"))
    def test_a_rate_that_is_set_counts_from_the_next_step_on_without_a_new_compile(self, way, kind):
        model = model_of(way, lambda: keras.optimizers.get(kind))
        fit(model)
        before = rows(model)
        optimizer = model.optimizer if way == "wrapper" else model.layers[0].optimizer
        optimizer.learning_rate = 0.0
        self.assertEqual(float(optimizer.learning_rate), 0.0)
        fit(model)
        self.assertAllEqual(rows(model), before)
        optimizer.learning_rate = 0.1
        fit(model)
        self.assertNotAllClose(rows(model), before)


class FreezingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(way=WAYS, what=("layer", "model"), run_eagerly=(False, True))
    @pytest.mark.smoke
    def test_trainable_off_and_on_without_a_new_compile(self, way, what, run_eagerly):
        model = model_of(way, adam, run_eagerly=run_eagerly)
        part = model if what == "model" else model.layers[0]
        fit(model)
        table = model.layers[0].variable.table
        before = [tensor.numpy() for tensor in table.export()]
        part.trainable = False
        self.assertEqual(model.layers[0].trainable_variables, [])
        if run_eagerly and what == "model":
            return  # without trainable variables, Keras makes no step
        fit(model)
        for one, other in zip(before, table.export(), strict=True):
            self.assertAllEqual(one, other)
        part.trainable = True
        fit(model)
        self.assertNotAllClose(rows(model), before[1][np.argsort(before[0])])

    @parameterized.parameters(*WAYS)
    def test_a_layer_that_was_frozen_when_the_step_was_traced_can_be_trained_later(self, way):
        model = model_of(way, adam)
        layer = model.layers[0]
        layer.trainable = False
        model.compile(model.optimizer, "mse")
        fit(model)
        self.assertAllEqual(rows(model), start())
        layer.trainable = True
        fit(model)
        self.assertNotAllClose(rows(model), start())

    def test_a_frozen_table_needs_no_optimizer_until_it_is_trained(self):
        model = model_of("wrapper", adam)
        layer = model.layers[0]
        layer.trainable = False
        model.compile("adam", "mse")
        fit(model)
        self.assertAllEqual(rows(model), start())
        layer.trainable = True
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), "has a table"):
            fit(model)
        self.assertAllEqual(rows(model), start())

    def test_a_frozen_own_optimizer_counts_no_steps(self):
        model = model_of("own", lambda: keras.optimizers.Nadam(0.1))
        layer = model.layers[0]
        layer.trainable = False
        fit(model)
        self.assertEqual(int(layer.optimizer.iterations), 0)
        self.assertAllEqual(layer.variable.anchor.own_trainer.state[0], 1.0)


class MixedPrecisionTest(tf.test.TestCase, parameterized.TestCase):
    def model(self, way: str, optimizer: Any, **options: Any) -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        layer = DynamicEmbedding(DIM, name="mine", optimizer="adam" if way == "own" else None)
        model = keras.Sequential(
            [
                keras.Input([VOCABULARY], dtype="int64"),
                layer,
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )
        model.compile(optimizer, "mse", **options)
        return model

    @pytest.mark.smoke
    def test_a_mixed_float16_model_trains_with_a_loss_scale_optimizer_in_the_wrapper(self):
        inner = keras.optimizers.LossScaleOptimizer(adam(), initial_scale=2.0**15)
        model = self.model("wrapper", tf_embed.DynamicEmbeddingOptimizer(inner))
        self.assertIs(model.optimizer.inner_optimizer, inner)
        self.assertEqual(model.optimizer.initial_scale, 2.0**15)
        with self.assertRaisesRegex(AttributeError, "has no attribute 'unknown'"):
            _ = model.optimizer.unknown
        losses = model.fit(IDS, LABELS, batch_size=4, epochs=8, verbose=0).history["loss"]
        self.assertLess(losses[-1], 0.5 * losses[0])
        self.assertEqual(model(IDS[:2]).dtype, tf.float16)
        self.assertTrue(np.isfinite(rows(model)).all())

    @parameterized.product(where=("table", "dense"), accumulate=(None, 2))
    def test_a_step_that_is_not_finite_is_left_out_everywhere_and_halves_the_scale(
        self, where, accumulate
    ):
        v = tf_embed.Variable(dim=2)
        dense = keras.Variable(np.ones(2, np.float32))
        inner = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate), initial_scale=8.0
        )
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        optimizer.build([v.anchor, dense])

        def step(table: float, other: float) -> None:
            slices = tf.IndexedSlices(tf.fill([1, 2], table), tf.constant([5], tf.int64))
            optimizer.apply([slices, tf.fill([2], other)], [v.anchor, dense])

        bad = {"table": (np.inf, 8.0), "dense": (8.0, np.nan)}[where]
        tf.function(step)(*bad)
        self.assertEqual(int(v.size()), 0)
        self.assertAllEqual(dense, [1.0, 1.0])
        self.assertEqual(float(inner.dynamic_scale), 4.0)
        self.assertEqual(int(optimizer.iterations), 0)
        for _ in range(accumulate or 1):
            tf.function(step)(4.0, 8.0)
        self.assertAllClose(v.lookup([5]), [[-1.0, -1.0]])
        self.assertAllClose(dense, [-1.0, -1.0])
        self.assertEqual(int(optimizer.iterations), 1)

    @parameterized.parameters(*WAYS)
    def test_what_keras_wraps_by_itself_is_stopped_with_the_way_out(self, way):
        optimizer = adam() if way == "own" else tf_embed.DynamicEmbeddingOptimizer(adam())
        model = self.model(way, optimizer)
        message = {
            "wrapper": "'dynamic_embedding_optimizer' must not be in a LossScaleOptimizer",
            "own": "can't take its loss scale off the gradients of 'mine'",
        }[way]
        with self.assertRaisesRegex(ValueError, message):
            model.fit(IDS, LABELS, verbose=0)
        self.assertEqual(int(model.layers[0].variable.size()), 0)

    @parameterized.product(way=WAYS, how=("file", "pickle", "deep copy"))
    @pytest.mark.smoke
    def test_a_model_that_is_loaded_trains_on(self, way, how):
        inner = keras.optimizers.LossScaleOptimizer(adam(), initial_scale=2.0**4)
        model = self.model(way, tf_embed.DynamicEmbeddingOptimizer(inner))
        model.fit(IDS, LABELS, batch_size=4, verbose=0)
        if how == "file":
            path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "model.keras")
            model.save(path)
            loaded = keras.models.load_model(path)
        else:
            loaded = (
                copy.deepcopy(model) if how == "deep copy" else pickle.loads(pickle.dumps(model))
            )
        self.assertIs(type(loaded.optimizer), type(model.optimizer))
        self.assertEqual(int(loaded.optimizer.iterations), 6)
        for one in (model, loaded):
            one.fit(IDS, LABELS, batch_size=4, shuffle=False, verbose=0)
        self.assertAllEqual(rows(loaded), rows(model))
        self.assertAllEqual(loaded.layers[-1].kernel, model.layers[-1].kernel)

    def test_one_that_keras_does_not_wrap_must_scale(self):
        kind = type(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.LossScaleOptimizer(adam())))
        with self.assertRaisesRegex(ValueError, "must be a keras.optimizers.LossScaleOptimizer"):
            kind(adam())

    def test_a_subclass_of_the_wrapper_is_compiled_without_another_scale(self):
        class Mine(tf_embed.DynamicEmbeddingOptimizer):
            pass

        def optimizer() -> Mine:
            return Mine(keras.optimizers.LossScaleOptimizer(adam()))

        with self.assertRaisesRegex(ValueError, "or with auto_scale_loss=False"):
            self.model("wrapper", optimizer()).fit(IDS, LABELS, verbose=0)
        model = self.model("wrapper", optimizer(), auto_scale_loss=False)
        model.fit(IDS, LABELS, batch_size=4, verbose=0)
        self.assertTrue(np.isfinite(rows(model)).all())

    def test_a_model_that_keras_wraps_when_it_is_loaded_can_be_compiled_again(self):
        model = self.model("own", adam(), auto_scale_loss=False)
        model.fit(IDS, LABELS, batch_size=4, verbose=0)
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "model.keras")
        model.save(path)
        with self.assertRaisesRegex(ValueError, r"use load_model\(..., compile=False\)"):
            keras.models.load_model(path)
        loaded = keras.models.load_model(path, compile=False)
        loaded.compile(adam(), "mse", auto_scale_loss=False)
        self.assertAllEqual(rows(loaded), rows(model))
        loaded.fit(IDS, LABELS, batch_size=4, verbose=0)
        self.assertEqual(int(loaded.layers[0].optimizer.iterations), 12)


class MinimizeTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=("sgd", "lion"), scale=(None, 64.0))
    def test_callables_and_tensors_with_a_tape_give_the_same(self, kind, scale):
        def make() -> tuple[Any, Any, Any]:
            v = tf_embed.Variable(dim=2, initializer="ones")
            w = keras.Variable(np.full([2], 0.5, np.float32))
            inner = keras.optimizers.get(kind)
            inner.loss_scale_factor = scale
            return v, w, tf_embed.DynamicEmbeddingOptimizer(inner)

        results = []
        for how in ("callables", "tape", "tape outside of the function", "graph"):
            v, w, optimizer = make()

            def loss(v: Any = v, w: Any = w) -> tf.Tensor:
                return tf.reduce_sum(tf.square(tf_embed.embedding_lookup(v, [3, 4, 3]) * w))

            variables = [*v.trainable_variables, w]
            for _ in range(3):
                if how == "callables":
                    optimizer.minimize(loss, lambda variables=variables: variables)
                elif how == "graph":
                    tf.function(lambda: optimizer.minimize(loss, variables))()  # noqa: B023
                else:
                    with tf.GradientTape() as tape:
                        value = (tf.function(loss) if "outside" in how else loss)()
                    optimizer.minimize(value, variables, tape=tape)
            self.assertEqual(int(optimizer.iterations), 3)
            results.append(np.concatenate([v.lookup([3, 4]), [w.numpy()]]))
        for result in results[1:]:
            self.assertAllClose(result, results[0])
        self.assertNotAllClose(results[0][0], [1.0, 1.0])

    def test_a_tensor_without_a_tape_is_refused(self):
        v = tf_embed.Variable(dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer("sgd")
        with self.assertRaisesRegex(ValueError, "`tape` must be given"):
            optimizer.minimize(tf.constant(1.0), v.trainable_variables)


if __name__ == "__main__":
    tf.test.main()

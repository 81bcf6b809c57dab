# SPDX-License-Identifier: Apache-2.0
"""`one_embedding.Ftrl` against `keras.optimizers.Ftrl`, and against NumPy with weight decay."""

from __future__ import annotations

import json
import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import constant_tables, layer, uniform_tables
from support.oracles.reference import SEED
from tf_embed import one_embedding
from tf_embed.one_embedding import Ftrl

ROWS, DIM, STEPS = 8, 3, 20
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "l1": {"lambda1": 2.0},
    "l2": {"lambda2": 0.5},
    "beta": {"beta": 1.0},
    "power": {"lr_power": -0.3},
    "fixed rate": {"lr_power": 0.0},
    "all": {
        "lr_power": -0.7,
        "initial_accumulator_value": 0.3,
        "lambda1": 0.1,
        "lambda2": 0.4,
        "beta": 0.5,
    },
}


class Oracle:
    """The formulas of the docstring, row by row, in float64."""

    def __init__(self, rows: np.ndarray, lr: float, weight_decay: float = 0.0, **options: Any):
        self.w = rows.astype(np.float64)
        self.lr, self.decay = lr, weight_decay
        self.power = -options.get("lr_power", -0.5)
        self.lambda1, self.lambda2 = options.get("lambda1", 0.0), options.get("lambda2", 0.0)
        self.beta = options.get("beta", 0.0)
        self.a = np.full(rows.shape, options.get("initial_accumulator_value", 0.1))
        self.z = np.zeros(rows.shape)

    def step(self, ids: np.ndarray, gradients: np.ndarray) -> None:
        for one in np.unique(ids):
            q = gradients[ids == one].astype(np.float64).sum(axis=0) + self.decay * self.w[one]
            before = self.a[one] ** self.power
            self.a[one] += q * q
            after = self.a[one] ** self.power
            self.z[one] += q - (after - before) / self.lr * self.w[one]
            z = self.z[one]
            w = -(z - np.sign(z) * self.lambda1) / ((self.beta + after) / self.lr + self.lambda2)
            self.w[one] = np.where(np.abs(z) < self.lambda1, 0.0, w)


def of_keras(lr: float, **options: Any) -> Any:
    return keras.optimizers.Ftrl(
        lr,
        learning_rate_power=options.get("lr_power", -0.5),
        initial_accumulator_value=options.get("initial_accumulator_value", 0.1),
        l1_regularization_strength=options.get("lambda1", 0.0),
        l2_regularization_strength=options.get("lambda2", 0.0) / 2.0,
        beta=options.get("beta", 0.0),
    )


def make_steps(everything: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(SEED)
    steps = []
    for _ in range(STEPS):
        ids = rng.integers(0, ROWS, 5)
        ids = np.concatenate([ids, np.arange(ROWS)]) if everything else ids
        steps.append((ids, rng.normal(size=[len(ids), DIM]).astype(np.float32)))
    return steps


def slices(ids: Any, gradients: Any, dtype: str = "float32") -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(gradients, dtype), tf.constant(ids))


def variable(dtype: str = "float32") -> tf_embed.Variable:
    initializer = keras.initializers.RandomNormal(seed=1)
    return tf_embed.Variable(dim=DIM, name="v", initializer=initializer, value_dtype=dtype)


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_the_formulas_are_those_of_keras_without_weight_decay(self, case):
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM))
        dense, keras_ftrl = keras.Variable(rows, dtype="float64"), of_keras(0.5, **CASES[case])
        oracle = Oracle(rows, 0.5, **CASES[case])
        for ids, gradients in make_steps(everything=True):
            summed = np.zeros([ROWS, DIM])
            np.add.at(summed, ids, gradients.astype(np.float64))
            keras_ftrl.apply([tf.constant(summed)], [dense])
            oracle.step(ids, gradients)
        # Keras rounds the learning rate to float32.
        self.assertAllClose(dense, oracle.w, rtol=1e-5, atol=1e-6)

    def test_each_option_makes_a_difference(self):
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM))
        plain = Oracle(rows, 0.5)
        others = [Oracle(rows, 0.5, **CASES[case]) for case in CASES if case != "default"]
        others.append(Oracle(rows, 0.5, weight_decay=0.1))
        for ids, gradients in make_steps(everything=True):
            for one in (plain, *others):
                one.step(ids, gradients)
        for other in others:
            self.assertNotAllClose(plain.w, other.w, rtol=1e-3, atol=1e-3)


class TableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(case=tuple(CASES), decay=(0.0, 0.1), dtype=("float32", "float64"))
    @pytest.mark.smoke
    def test_rows_are_those_of_the_formulas(self, case, decay, dtype):
        v = variable(dtype)
        keys = np.arange(ROWS)
        oracle = Oracle(v.lookup(keys).numpy(), 0.5, decay, **CASES[case])
        own = Ftrl(0.5, decay, **CASES[case])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(own)
        for ids, gradients in make_steps(everything=False):
            optimizer.apply([slices(ids, gradients, dtype)], v.trainable_variables)
            oracle.step(ids, gradients)
        self.assertAllClose(v.lookup(keys), oracle.w, **CLOSE)

    @parameterized.parameters(*CASES)
    def test_rows_have_the_bits_of_those_of_keras_ftrl_without_weight_decay(self, case):
        results = []
        for make in (Ftrl, of_keras):
            v = variable()
            optimizer = tf_embed.DynamicEmbeddingOptimizer(make(0.5, **CASES[case]))
            for ids, gradients in make_steps(everything=False):
                optimizer.apply([slices(ids, gradients)], v.trainable_variables)
            results.append(v.lookup(np.arange(ROWS)).numpy())
        self.assertAllEqual(*results)

    @parameterized.parameters("float16", "bfloat16")
    def test_narrow_rows_are_as_near_as_their_rounding(self, dtype):
        v = variable(dtype)
        oracle = Oracle(tf.cast(v.lookup(np.arange(ROWS)), tf.float32).numpy(), 0.5, 0.1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(Ftrl(0.5, 0.1))
        for ids, gradients in make_steps(everything=False):
            gradients = tf.cast(tf.cast(gradients, dtype), tf.float32).numpy()
            optimizer.apply([slices(ids, gradients, dtype)], v.trainable_variables)
            oracle.step(ids, gradients)
        found = tf.cast(v.lookup(np.arange(ROWS)), tf.float32)
        unit = 1e-2 if dtype == "float16" else 1e-1
        self.assertAllClose(found, oracle.w, rtol=unit, atol=unit)

    def test_averages_are_of_rows_of_the_same_formulas(self):
        # With averages, the optimizer's own formulas run on gathered rows.
        results = []
        for options in ({}, {"use_ema": True, "ema_momentum": 0.5}):
            v = variable()
            own = Ftrl(0.5, 0.1, **CASES["all"], **options)
            optimizer = tf_embed.DynamicEmbeddingOptimizer(own)
            for ids, gradients in make_steps(everything=False):
                optimizer.apply([slices(ids, gradients)], v.trainable_variables)
            results.append(v.lookup(np.arange(ROWS)).numpy())
        self.assertAllClose(*results, **CLOSE)

    @parameterized.parameters("int32", "int64")
    def test_a_layer_of_tables_starts_its_linear_term_at_zero(self, key_type):
        for first in (0.1, 2.0):
            own = Ftrl(0.5, initial_accumulator_value=first)
            emb = layer(constant_tables(1.0, 1.0), key_type, dim=1, optimizer=own)
            ids = tf.constant([[5, 6]])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(emb(ids, training=True) * 2.0)
            variables = emb.trainable_variables
            keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
            root = np.sqrt(first + 4.0)
            z = 2.0 - (root - np.sqrt(first)) / 0.5
            self.assertAllClose(emb(ids)[0, 0], [-z * 0.5 / root])

    @parameterized.parameters("own", "wrapper")
    def test_a_model_is_fitted_saved_and_fitted_on(self, way):
        ids = np.random.default_rng(SEED).integers(0, 30, [40, 2])
        inner = Ftrl(0.1, 0.01, lambda1=0.01, lambda2=0.02)
        emb = layer(uniform_tables(1.0, 1.0), optimizer=inner if way == "own" else None)
        inputs = keras.Input([2], dtype="int64")
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(emb(inputs)))
        one = keras.Model(inputs, outputs)
        outer: Any = keras.optimizers.SGD(0.1)
        if way == "wrapper":
            outer = tf_embed.DynamicEmbeddingOptimizer(inner)
        one.compile(outer, "mse")
        one.fit(ids, np.ones([40, 1]), batch_size=8, shuffle=False, verbose=0)
        path = os.path.join(self.get_temp_dir(), "model.keras")
        one.save(path)
        other = keras.models.load_model(path)
        for model in (one, other):
            model.fit(ids[::-1], np.ones([40, 1]), batch_size=8, shuffle=False, verbose=0)
        self.assertAllEqual(one.predict(ids, verbose=0), other.predict(ids, verbose=0))


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(case=tuple(CASES), decay=(0.0, 0.1))
    def test_rows_of_a_dense_variable_are_those_of_the_formulas(self, case, decay):
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM)).astype(np.float32)
        dense, optimizer = keras.Variable(rows), Ftrl(0.5, decay, **CASES[case])
        oracle = Oracle(rows, 0.5, decay, **CASES[case])
        for ids, gradients in make_steps(everything=False):
            optimizer.apply([slices(ids, gradients)], [dense])
            oracle.step(ids, gradients)
        self.assertAllClose(dense, oracle.w, **CLOSE)


class ConfigTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_has_the_arguments_of_oneflow_in_their_order(self):
        optimizer = Ftrl(0.25, 0.125, -0.75, 0.5, 0.0625, 2.0, 3.0)
        self.assertEqual(float(optimizer.learning_rate), 0.25)
        self.assertEqual(
            optimizer.hyper(optimizer.decay, None),
            {
                "decay": 0.125,
                "learning_rate_power": -0.75,
                "initial_accumulator_value": 0.5,
                "l1": 0.0625,
                "l2": 1.0,
                "l2_shrinkage": 0.0,
                "beta": 3.0,
            },
        )

    @parameterized.parameters(0.125, "schedule")
    def test_it_comes_back_from_its_config(self, rate):
        if rate == "schedule":
            rate = keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
        optimizer = Ftrl(rate, 0.1, **CASES["all"], clipnorm=2.0)
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
        loaded = keras.saving.deserialize_keras_object(saved)
        self.assertIs(type(loaded), Ftrl)
        self.assertEqual(loaded.get_config(), optimizer.get_config())
        self.assertEqual(float(loaded.learning_rate), float(optimizer.learning_rate))

    @parameterized.parameters(
        ({"lr": "x"}, TypeError, "`lr` must be"),
        ({"weight_decay": -0.1}, ValueError, "`weight_decay` must be at least 0"),
        ({"lr": 0.0}, ValueError, "`lr` must be above 0.*lr=0.0"),
        ({"lr": -1}, ValueError, "`lr` must be above 0.*lr=-1"),
        ({"lr_power": 0.1}, ValueError, "`lr_power` must be from -10 to 0.*lr_power=0.1"),
        ({"lr_power": -11}, ValueError, "`lr_power` must be from -10 to 0.*lr_power=-11"),
        ({"initial_accumulator_value": -1.0}, ValueError, "`initial_accumulator_value` must be"),
        (
            {"initial_accumulator_value": 0.0, "lambda1": 0.1},
            ValueError,
            "`initial_accumulator_value` must be above 0 unless `beta` or `lambda2` is.*=0.0",
        ),
        (
            {"initial_accumulator_value": 1e-50},
            ValueError,
            "`initial_accumulator_value` must be above 0 unless.*=1e-50",
        ),
        (
            {"initial_accumulator_value": 1e-5, "lr_power": -10.0},
            ValueError,
            "must be above 0 .* its power of -`lr_power` in float32.*=1e-05, lr_power=-10.0",
        ),
        (
            {"initial_accumulator_value": 1e-20, "lr_power": -2.0},
            ValueError,
            "must be above 0 .* its power of -`lr_power` in float32.*=1e-20, lr_power=-2.0",
        ),
        (
            {"initial_accumulator_value": 1e5, "lr_power": -10.0, "beta": 1.0},
            ValueError,
            "`initial_accumulator_value` must have a power .* finite in float32.*=100000.0, lr_p",
        ),
        ({"lambda1": -1.0}, ValueError, "`lambda1` must be at least 0.*lambda1=-1.0"),
        ({"lambda2": -1.0}, ValueError, "`lambda2` must be at least 0.*lambda2=-1.0"),
        ({"beta": float("nan")}, ValueError, "`beta` must be"),
    )
    def test_numbers_out_of_range_are_refused_by_name(self, options, kind, sentence):
        with self.assertRaisesRegex(kind, sentence):
            Ftrl(**options)

    def test_oneflows_page_differs_in_the_exponent_and_in_the_quotient(self):
        g, w, lr, power, before, l2 = 0.3, 0.5, 0.1, -0.5, 0.1, 0.2
        v = tf.Variable([w])
        Ftrl(lr, lambda2=l2).apply([tf.constant([g])], [v])

        def step_of_page(exponent: float, is_product: bool) -> float:
            after = before + g * g
            z = g - (after**exponent - before**exponent) / lr * w
            factor = after**exponent / lr + l2
            return -z * factor if is_product else -z / factor

        self.assertAllClose(v[0], step_of_page(-power, is_product=False), **CLOSE)
        for exponent, is_product in ((power, True), (-power, True), (power, False)):
            self.assertNotAllClose(v[0], step_of_page(exponent, is_product), rtol=0.1)

    @parameterized.parameters({"beta": 1.0}, {"lambda2": 0.5}, {"lr_power": 0.0})
    def test_an_accumulator_may_start_from_0_if_no_weight_is_0_by_0(self, **options):
        v = tf_embed.Variable(dim=2, initializer=0.5, devices="/CPU:0")
        dense = keras.Variable([[0.5, 0.5]])
        for gradient, trained in (
            (slices(np.array([7]), np.array([[1.0, 0.0]], np.float32)), v.anchor),
            (tf.constant([[1.0, 0.0]]), dense),
        ):
            own = Ftrl(0.1, initial_accumulator_value=0.0, lambda1=0.01, **options)
            tf_embed.DynamicEmbeddingOptimizer(own).apply([gradient], [trained])
        self.assertAllClose(v.lookup([7]), dense)
        self.assertEqual(v.lookup([7])[0, 1], 0.0)

    @parameterized.parameters((1e-5, -7.5), (1e-18, -2.0), (1e5, -7.5), (1e-37, -0.5))
    def test_powers_of_the_accumulator_at_the_ends_of_float32_train(self, first, power):
        v = tf_embed.Variable(dim=2, initializer=0.5, devices="/CPU:0")
        own = Ftrl(0.1, initial_accumulator_value=first, lr_power=power)
        gradient = slices(np.array([7]), np.array([[1e-3, 0.0]], np.float32))
        tf_embed.DynamicEmbeddingOptimizer(own).apply([gradient], [v.anchor])
        self.assertTrue(np.isfinite(v.lookup([7])).all())

    def test_smart_decay_adam_is_here_too(self):
        self.assertIs(one_embedding.SmartDecayAdam, tf_embed.optimizers.SmartDecayAdam)


if __name__ == "__main__":
    tf.test.main()

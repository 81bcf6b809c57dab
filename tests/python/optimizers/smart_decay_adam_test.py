# SPDX-License-Identifier: Apache-2.0
"""`SmartDecayAdam` against `keras.optimizers.Adam` on a dense variable of all rows."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import ROOT
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding
from tf_embed.optimizers import SmartDecayAdam, smart_decay_adam

ROWS, DIM, STEPS = 12, 5, 60
KEYS = np.array([0, -1, 2**63 - 1, -(2**63), 7, 10**15, -(2**31) - 1, 3, 4, 5, 6, 8], np.int64)
# The largest difference after 60 float32 steps; Adam rounds each decay, the table their powers.
CLOSE = {"rtol": 2e-5, "atol": 5e-6}
# In the last case, updates grow while v decays.
OPTIONS: dict[str, dict[str, float]] = {
    "default": {},
    "fast": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3},
    "without momentum": {"beta_1": 0.0},
    "growing": {"beta_1": 0.9, "beta_2": 0.5, "epsilon": 1e-2},
}


def make_steps(count: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Row numbers, with duplicates, and gradients. Some rows are frequent, and the last is rare."""
    rng = np.random.default_rng(SEED)
    steps = []
    for step in range(count):
        ids = rng.choice([0, 0, 0, 1, 1, *range(ROWS - 1)], rng.integers(1, 5))
        if step in (2, count - 5):
            ids = np.append(ids, ROWS - 1)
        if step == count - 1:
            ids = np.arange(ROWS)
        steps.append((ids, rng.normal(size=[len(ids), DIM]).astype(np.float32)))
    return steps


def summed(ids: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """The gradient of all rows."""
    dense = np.zeros([ROWS, DIM], np.float32)
    np.add.at(dense, ids, gradients)
    return dense


def table(dtype: str = "float32", own: Any = None, shards: int = 1) -> tf_embed.Variable:
    """A table; a layer's table if it has its own optimizer."""
    options: dict[str, Any] = {
        "initializer": keras.initializers.RandomNormal(stddev=0.5, seed=1),
        "devices": ["/CPU:0"] * shards,
        "name": "rows",
    }
    if own is None:
        return tf_embed.Variable(dim=DIM, value_dtype=dtype, **options)
    layer = DynamicEmbedding(DIM, optimizer=own, **options)
    layer.build()
    return layer.variable


def slices(ids: Any, gradients: Any, dtype: str = "float32") -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(gradients, dtype), tf.constant(KEYS[ids]))


def dense_adam(rows: Any, steps: Any, rate: Any = 0.05, **options: Any) -> np.ndarray:
    """The rows after Keras's Adam on a dense variable."""
    dense = keras.Variable(rows)
    optimizer = keras.optimizers.Adam(rate, **options)
    for ids, gradients in steps:
        optimizer.apply([tf.constant(summed(ids, gradients), dense.dtype)], [dense])
    return dense.numpy()


class TableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(options=tuple(OPTIONS), way=("wrapper", "own"), shards=(1, 3))
    @pytest.mark.smoke
    def test_rows_equal_those_of_adam_on_a_dense_variable(self, options, way, shards):
        def make() -> Any:
            return SmartDecayAdam(0.05, **OPTIONS[options])

        v = table(own=make() if way == "own" else None, shards=shards)
        outer: Any = keras.optimizers.SGD(0.1)
        if way == "wrapper":
            outer = tf_embed.DynamicEmbeddingOptimizer(make())
        rows, steps = v.lookup(KEYS).numpy(), make_steps()
        for ids, gradients in steps:
            outer.apply([slices(ids, gradients)], v.trainable_variables)
        wanted = dense_adam(rows, steps, **OPTIONS[options])
        self.assertAllClose(v.lookup(KEYS), wanted, **CLOSE)

    def test_adam_of_a_table_leaves_absent_rows_alone_and_so_differs(self):
        v, steps = table(), make_steps()
        rows = v.lookup(KEYS).numpy()
        outer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
        for ids, gradients in steps:
            outer.apply([slices(ids, gradients)], v.trainable_variables)
        self.assertNotAllClose(v.lookup(KEYS), dense_adam(rows, steps), rtol=1e-2, atol=1e-2)

    def test_a_lookup_gives_a_row_as_its_last_step_left_it(self):
        v = table(own=SmartDecayAdam(0.05))
        outer = keras.optimizers.SGD(0.1)
        gradient = np.ones([1, DIM], np.float32)
        outer.apply([slices([0], gradient)], v.trainable_variables)
        after = v.lookup(KEYS[:1]).numpy()
        for _ in range(3):
            outer.apply([slices([1], gradient)], v.trainable_variables)
            self.assertAllEqual(v.lookup(KEYS[:1]), after)

    @parameterized.parameters(("float64", 1e-6), ("float16", 4e-3), ("bfloat16", 4e-2))
    def test_other_value_dtypes(self, dtype, tolerance):
        # Unlike the table, Keras's Adam rounds in float64. Narrow rows are rounded in each step.
        v, steps = table(dtype), make_steps()
        rows = tf.cast(v.lookup(KEYS), "float64" if dtype == "float64" else "float32").numpy()
        outer = tf_embed.DynamicEmbeddingOptimizer(SmartDecayAdam(0.05))
        for ids, gradients in steps:
            narrow = tf.cast(gradients, dtype)
            outer.apply([slices(ids, narrow, dtype)], v.trainable_variables)
        rounded = [
            (ids, tf.cast(tf.cast(gradients, dtype), tf.float32).numpy())
            for ids, gradients in steps
        ]
        found = tf.cast(v.lookup(KEYS), rows.dtype)
        self.assertAllClose(found, dense_adam(rows, rounded), rtol=tolerance, atol=tolerance)

    @parameterized.parameters(0, 1, 40)
    def test_the_last_step_is_exact_beyond_2_to_the_24th(self, missed):
        results = []
        # In all three alpha is the learning rate.
        for begin in (10**6, 2**24 - 1, 2**30 + 1):
            v = table()
            inner = SmartDecayAdam(0.05)
            outer = tf_embed.DynamicEmbeddingOptimizer(inner)
            outer.build(v.trainable_variables)
            gradient = np.ones([1, DIM], np.float32)
            for step in (begin, begin + 1 + missed):
                inner.iterations.assign(step - 1)
                outer.apply([slices([0], gradient)], v.trainable_variables)
            high, low = np.asarray(v.table.export()[2])[0, -2:]
            self.assertEqual(high * 2.0**24 + low, begin + 1 + missed)
            results.append(v.lookup(KEYS[:1]).numpy())
        self.assertAllEqual(results[0], results[1])
        self.assertAllEqual(results[0], results[2])

    def test_missed_steps_use_the_learning_rate_of_the_present_step(self):
        v = table()
        rows = v.lookup(KEYS).numpy()
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.1, 0.2, 0.05])
        outer = tf_embed.DynamicEmbeddingOptimizer(SmartDecayAdam(rate))
        gradient = np.ones([1, DIM], np.float32)
        for ids in ([0], [1], [1], [0]):
            outer.apply([slices(ids, gradient)], v.trainable_variables)
        dense = keras.Variable(rows)
        adam = keras.optimizers.Adam(0.1)
        for number in range(4):
            on_row = float(number in (0, 3)) * np.eye(ROWS, 1, dtype=np.float32)
            adam.apply([tf.constant(on_row * np.ones(DIM, np.float32))], [dense])
            adam.learning_rate = 0.05
        self.assertAllClose(v.lookup(KEYS[:1]), dense[:1], **CLOSE)

    def test_a_row_that_comes_back_after_its_eviction_begins_again(self):
        v = table(own=SmartDecayAdam(0.05))
        first = v.lookup(KEYS[:1]).numpy()
        outer = keras.optimizers.SGD(0.1)
        gradient = np.ones([1, DIM], np.float32)
        outer.apply([slices([0], gradient)], v.trainable_variables)
        v.remove(KEYS[:1])
        for _ in range(3):
            outer.apply([slices([1], gradient)], v.trainable_variables)
        outer.apply([slices([0], gradient)], v.trainable_variables)
        # The fifth step of Adam from slots of 0.
        m, v_, t = 0.1, 0.001, 5.0
        alpha = 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        wanted = first - alpha * m / (np.sqrt(v_) + 1e-7)
        self.assertAllClose(v.lookup(KEYS[:1]), wanted, **CLOSE)

    def test_averages_are_of_rows_as_their_steps_leave_them(self):
        # With averages, the optimizer's own formulas run on gathered rows.
        results = []
        for options in ({}, {"use_ema": True, "ema_momentum": 0.5}):
            v = table()
            outer = tf_embed.DynamicEmbeddingOptimizer(SmartDecayAdam(0.05, **options))
            for ids, gradients in make_steps():
                outer.apply([slices(ids, gradients)], v.trainable_variables)
            results.append(v.lookup(KEYS).numpy())
        self.assertAllClose(*results, **CLOSE)

    def test_a_model_is_fitted_saved_and_fitted_on(self):
        def make() -> keras.Model:
            model = keras.Sequential(
                [
                    keras.Input([2], dtype="int64"),
                    DynamicEmbedding(4, name="ids"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            inner = SmartDecayAdam(0.05, beta_1=0.8)
            model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
            return model

        ids = np.random.default_rng(SEED).integers(0, 50, [64, 2])
        labels = ids.sum(axis=1, keepdims=True) / 50.0
        one = make()
        one.fit(ids, labels, batch_size=8, shuffle=False, verbose=0)
        path = os.path.join(self.get_temp_dir(), "model.keras")
        one.save(path)
        other = keras.models.load_model(path)
        for model in (one, other):
            model.fit(ids[::-1], labels[::-1], batch_size=8, shuffle=False, verbose=0)
        self.assertAllEqual(one.predict(ids, verbose=0), other.predict(ids, verbose=0))
        self.assertEqual(other.optimizer.inner_optimizer.beta_1, 0.8)


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        options=tuple(OPTIONS), dtype=("float32", "float64"), graph=(False, True)
    )
    def test_sparse_gradients_of_a_dense_variable_are_those_of_adam(self, options, dtype, graph):
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM)).astype(dtype)
        dense, optimizer = (
            keras.Variable(rows, dtype=dtype),
            SmartDecayAdam(0.05, **OPTIONS[options]),
        )
        optimizer.build([dense])

        def step(gradients: Any, ids: Any) -> None:
            optimizer.apply([tf.IndexedSlices(gradients, ids)], [dense])

        run = tf.function(step, reduce_retracing=True) if graph else step
        steps = make_steps()
        for ids, gradients in steps:
            run(tf.constant(gradients, dtype), tf.constant(ids))
        self.assertAllClose(dense, dense_adam(rows, steps, **OPTIONS[options]), **CLOSE)

    @parameterized.parameters(0, 1, 40)
    def test_the_last_step_is_exact_beyond_2_to_the_24th(self, missed):
        results = []
        # In all three alpha is the learning rate.
        for begin in (10**6, 2**24 - 1, 2**30 + 2**24 + 1):
            dense, optimizer = keras.Variable(np.ones([2, 1], np.float32)), SmartDecayAdam(0.05)
            optimizer.build([dense])
            for step in (begin, begin + 1 + missed):
                optimizer.iterations.assign(step - 1)
                optimizer.apply([tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))], [dense])
            results.append(dense.numpy())
        self.assertAllEqual(results[0], results[1])
        self.assertAllEqual(results[0], results[2])

    def test_moves_of_a_momentum_of_1_are_replayed(self):
        rows, options = np.ones([ROWS, DIM], np.float32), {"beta_1": 0.5}
        dense, optimizer = keras.Variable(rows), SmartDecayAdam(0.05, **options)
        optimizer.build([dense])
        steps = [
            (np.array([row]), np.full([1, DIM], gradient, np.float32))
            for row, gradient in ((0, 2.0), (1, 0.5), (0, 0.25))
        ]
        for ids, gradients in steps:
            optimizer.apply([tf.IndexedSlices(tf.constant(gradients), tf.constant(ids))], [dense])
        self.assertAllClose(dense[0], dense_adam(rows, steps, **options)[0], **CLOSE)

    def test_as_many_steps_are_replayed_as_in_a_table(self):
        # The number is so large that no test makes as many steps.
        header = ROOT / "cc" / "core" / "rules" / "smart_decay_adam_rule.h"
        found = re.search(r"kMostReplayed = int64_t\{1\} << (\d+);", header.read_text())
        self.assertEqual(smart_decay_adam._MOST_REPLAYED, 2 ** int(found[1]))

    def test_a_dense_gradient_makes_a_step_of_adam(self):
        rng = np.random.default_rng(SEED)
        shapes = [(ROWS, DIM), (3,), (), (2, 3, 4)]
        values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        results = []
        for make in (SmartDecayAdam, keras.optimizers.Adam):
            variables = [keras.Variable(value) for value in values]
            optimizer = make(0.05)
            for number in range(5):
                gradients = [tf.constant(np.cos(number + value)) for value in values]
                optimizer.apply(gradients, variables)
            results.append([variable.numpy() for variable in variables])
        for found, wanted in zip(*results, strict=True):
            self.assertAllClose(found, wanted, rtol=1e-6, atol=1e-6)


class ConfigTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_comes_back_from_its_config(self):
        optimizer = SmartDecayAdam(0.125, 0.5, 0.75, 1e-3, clipnorm=2.0)
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
        loaded = keras.saving.deserialize_keras_object(saved)
        self.assertIs(type(loaded), SmartDecayAdam)
        self.assertEqual(loaded.get_config(), optimizer.get_config())
        self.assertEqual((loaded.beta_1, loaded.beta_2, loaded.epsilon), (0.5, 0.75, 1e-3))

    @parameterized.parameters(
        ({"beta_1": 1.0}, "`beta_1` must be at least 0 and less than 1.*beta_1=1.0"),
        ({"beta_2": -0.1}, "`beta_2` must be at least 0 and less than 1.*beta_2=-0.1"),
        ({"epsilon": -1e-7}, "`epsilon` must be at least 0.*epsilon=-1e-07"),
        ({"weight_decay": 0.1}, "does not use `weight_decay`.*weight_decay=0.1"),
    )
    def test_numbers_out_of_range_are_refused_by_name(self, options, sentence):
        with self.assertRaisesRegex(ValueError, sentence):
            SmartDecayAdam(**options)


if __name__ == "__main__":
    tf.test.main()

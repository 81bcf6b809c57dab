# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's optimizers in tables and on dense variables, against a NumPy array of rows."""

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
from support.cases.tbe_cases import CASES, KINDS
from support.oracles.reference import SEED
from tf_embed import tbe

STEPS, ROWS, DIM = 20, 9, 6
KEYS = np.array([0, -1, 2**63 - 1, -(2**63), 7, 10**15, -(2**31) - 1, 3, 4], np.int64)
# The largest difference after twenty steps between float32 and float64.
CLOSE = {"rtol": 2e-5, "atol": 5e-6}


def make_steps(count: int = STEPS, seed: int = SEED) -> list[tuple[np.ndarray, np.ndarray]]:
    """Row numbers, with duplicates, and their gradients. Only later steps have the last row."""
    rng = np.random.default_rng(seed)
    steps = []
    for step in range(count):
        ids = rng.integers(0, ROWS - (step < count // 2), 7)
        gradients = rng.integers(-32, 33, (7, DIM)).astype(np.float32) / 16
        gradients[ids == 1] = 0.0  # touched by a gradient of 0
        steps.append((ids, gradients))
    return steps


def variable(dtype: str = "float32", **options: Any) -> tf_embed.Variable:
    return tf_embed.Variable(
        dim=DIM, name="users", value_dtype=dtype, initializer=initializer(), **options
    )


def layer_variable(**options: Any) -> tf_embed.Variable:
    layer = tf_embed.layers.DynamicEmbedding(DIM, initializer=initializer(), **options)
    layer.build()
    return layer.variable


def initializer() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.5, seed=1)


def train(optimizer: Any, anchors: Any, steps: Any, dtype: str = "float32", begin: int = 0) -> None:
    for ids, gradients in steps[begin:]:
        slices = tf.IndexedSlices(tf.constant(gradients, dtype), tf.constant(KEYS[ids]))
        optimizer.apply([slices], anchors)


def slots_of(table: Any) -> tuple[np.ndarray, np.ndarray]:
    exported = table.export()
    order = np.argsort(exported.keys)
    return np.asarray(exported.values)[order], np.asarray(exported.slots)[order]


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*(case for case in CASES if case not in ("SGD",)))
    def test_each_mode_makes_a_difference(self, case):
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM))
        one, other = CASES[case].oracle(rows), CASES["SGD"].oracle(rows)
        for ids, gradients in make_steps():
            one.step(ids, gradients, 0.05)
            other.step(ids, gradients, 0.05)
        self.assertNotAllClose(one.weights, other.weights, rtol=1e-3, atol=1e-3)


class TableTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, case: str, way: str, dtype: str, shards: int = 1) -> None:
        chosen = CASES[case]
        steps = make_steps()
        if way == "own":
            v = layer_variable(optimizer=chosen.make(), devices=["/CPU:0"] * shards)
        else:
            v = variable(dtype, devices=["/CPU:0"] * shards)
        rows = tf.cast(v.lookup(KEYS), tf.float64).numpy()
        if chosen.all_there:
            v.upsert(KEYS, v.lookup(KEYS))
        oracle = chosen.oracle(rows)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(
            keras.optimizers.SGD(0.0) if way == "own" else chosen.make()
        )
        tolerance = CLOSE
        if dtype in ("float16", "bfloat16"):
            unit = 2e-3 if dtype == "float16" else 2e-2
            tolerance = {"rtol": unit, "atol": unit}
        rounded = None if dtype == "float32" else tf.as_dtype(dtype).as_numpy_dtype
        touched: set[int] = set()
        for number, (ids, gradients) in enumerate(steps):
            train(optimizer, v.trainable_variables, [(ids, gradients)], dtype)
            oracle.step(ids, gradients, 0.05, rounded)
            touched |= set(ids)
            there = np.arange(ROWS) if chosen.all_there else np.array(sorted(touched))
            found = tf.cast(v.lookup(KEYS[there]), tf.float64).numpy()
            self.assertAllClose(
                found, oracle.weights[there], **tolerance, msg=f"{case}, step {number + 1}"
            )
        self.assertEqual(int(v.size()), ROWS)

    @parameterized.parameters(*CASES)
    def test_twenty_steps_of_a_table_are_the_oracles(self, case):
        self.check(case, "wrapper", "float32")

    @parameterized.parameters(*KINDS)
    @pytest.mark.smoke
    def test_so_are_those_of_a_tables_own_optimizer_with_three_shards(self, case):
        self.check(case, "own", "float32", shards=3)

    @parameterized.product(case=KINDS, dtype=("float64", "float16"))
    def test_so_are_those_of_other_types(self, case, dtype):
        self.check(case, "wrapper", dtype)

    def test_a_step_that_touches_nothing_is_a_step_of_averages_and_counts(self):
        for case in ("Ensemble", "EmaInplace", "counter, share"):
            chosen = CASES[case]
            v = variable()
            v.upsert(KEYS, v.lookup(KEYS))
            oracle = chosen.oracle(v.lookup(KEYS).numpy())
            optimizer = tf_embed.DynamicEmbeddingOptimizer(chosen.make())
            bias = keras.Variable([0.0])
            for number, (ids, gradients) in enumerate(make_steps()):
                slices = None
                if number % 3 != 0:
                    slices = tf.IndexedSlices(tf.constant(gradients), tf.constant(KEYS[ids]))
                else:
                    ids, gradients = ids[:0], gradients[:0]
                optimizer.apply([slices, tf.zeros([1])], [*v.trainable_variables, bias])
                oracle.step(ids, gradients, 0.05)
                self.assertAllClose(v.lookup(KEYS), oracle.weights, **CLOSE)

    def test_a_frozen_table_is_not_averaged(self):
        v = variable()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(CASES["EmaInplace, each step"].make())
        bias = keras.Variable([0.0])
        optimizer.build([*v.trainable_variables, bias])
        train(optimizer, v.trainable_variables, make_steps()[:3])
        before = v.lookup(KEYS)
        anchor = v.trainable_variables[0]
        anchor.trainable = False
        optimizer.apply([None, tf.zeros([1])], [anchor, bias])
        self.assertAllEqual(v.lookup(KEYS), before)

    @parameterized.parameters(*KINDS)
    def test_weight_decay_can_be_excluded(self, case):
        chosen = CASES[case]
        if not getattr(chosen.make(), "decay", 0.0):
            self.skipTest("it has no weight decay")
        results = []
        for excluded in (False, True):
            v = variable()
            inner = chosen.make()
            if excluded:
                inner.exclude_from_weight_decay(var_list=v.trainable_variables)
            train(tf_embed.DynamicEmbeddingOptimizer(inner), v.trainable_variables, make_steps())
            results.append(v.lookup(KEYS).numpy())
            dense = keras.Variable(variable().lookup(KEYS), name="users")
            inner = chosen.make()
            if excluded:
                inner.exclude_from_weight_decay(var_list=[dense])
            for ids, gradients in make_steps():
                inner.apply([tf.IndexedSlices(tf.constant(gradients), tf.constant(ids))], [dense])
            self.assertAllClose(results[-1], dense, **CLOSE)
        self.assertNotAllClose(*results, **CLOSE)

    def test_rows_of_an_odd_dim_have_no_halves(self):
        v = tf_embed.Variable(dim=3, name="odd")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(tbe.EmaInplaceRowwiseAdagrad())
        with self.assertRaisesRegex(ValueError, "even number.*Received: 'odd' with 3"):
            optimizer.build(v.trainable_variables)
        with self.assertRaisesRegex(ValueError, "even number of weights"):
            tbe.EmaInplaceRowwiseAdagrad().build([keras.Variable(np.zeros([2, 3]))])

    def test_rows_of_zeros_are_trained(self):
        for case in ("LAMB", "PartialRowwiseLAMB", "LARS", "cowclip, l2"):
            v = tf_embed.Variable(dim=DIM, initializer="zeros")
            optimizer = tf_embed.DynamicEmbeddingOptimizer(CASES[case].make())
            train(optimizer, v.trainable_variables, make_steps())
            found = v.lookup(KEYS).numpy()
            self.assertTrue(np.isfinite(found).all(), case)
            self.assertAllEqual(found[1], np.zeros(DIM))  # its gradients are 0
            self.assertTrue((np.abs(found[[0, 2, 3]]).sum(axis=1) > 0).all(), case)


class DenseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(case=tuple(CASES), sparse=(True, False))
    def test_twenty_steps_of_a_dense_variable_are_the_oracles(self, case, sparse):
        chosen = CASES[case]
        rows = np.random.default_rng(SEED).normal(size=(ROWS, DIM)).astype(np.float32)
        dense, optimizer, oracle = keras.Variable(rows), chosen.make(), chosen.oracle(rows)
        for ids, gradients in make_steps():
            gradient: Any = tf.IndexedSlices(tf.constant(gradients), tf.constant(ids))
            if not sparse:
                gradient = tf.math.unsorted_segment_sum(gradients, ids, ROWS)
                ids, gradients = np.arange(ROWS), gradient.numpy()
            optimizer.apply([gradient], [dense])
            oracle.step(ids, gradients, 0.05)
            self.assertAllClose(dense, oracle.weights, **CLOSE)

    @parameterized.parameters(*KINDS)
    def test_shapes_of_any_rank_are_rows_of_the_first_axis(self, case):
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(ROWS, 2, 3)).astype(np.float32)
        dense = keras.Variable(rows)
        flat = keras.Variable(rows.reshape(ROWS, 6))
        bias = keras.Variable(rows[:4, 0, 0])
        optimizer, other = CASES[case].make(), CASES[case].make()
        for _ in range(3):
            gradient = tf.constant(rng.normal(size=rows.shape), tf.float32)
            optimizer.apply([gradient, gradient[:4, 0, 0]], [dense, bias])
            other.apply([tf.reshape(gradient, [ROWS, 6])], [flat])
        self.assertAllClose(tf.reshape(dense, [ROWS, 6]), flat, rtol=1e-6)
        self.assertNotAllClose(bias, rows[:4, 0, 0], rtol=1e-4, atol=1e-4)

    @parameterized.parameters(*KINDS)
    def test_fit_trains_an_embedding_and_a_dense_layer(self, case):
        model = keras.Sequential(
            [
                keras.Input([2], dtype="int64"),
                keras.layers.Embedding(10, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )
        model.compile(CASES[case].make(), "mse")
        before = [weight.numpy() for weight in model.weights]
        model.fit(np.arange(8).reshape(4, 2), np.ones([4, 2]), epochs=2, verbose=0)
        for weight, old in zip(model.weights, before, strict=True):
            self.assertTrue(np.isfinite(weight.numpy()).all())
            self.assertNotAllEqual(weight, old)


class ConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_an_optimizer_comes_back_from_its_config(self, case):
        optimizer = CASES[case].make(learning_rate=0.125, clipnorm=2.0)
        saved = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
        loaded = keras.saving.deserialize_keras_object(saved)
        self.assertIs(type(loaded), type(optimizer))
        self.assertEqual(loaded.get_config(), optimizer.get_config())
        self.assertEqual(float(loaded.learning_rate), 0.125)
        self.assertEqual(loaded.rule, optimizer.rule)
        self.assertEqual(str(loaded.hyper(0.5, 7.0)), str(optimizer.hyper(0.5, 7.0)))

    def test_configs_come_back_from_what_is_saved(self):
        for definition in (
            tbe.CounterBasedRegularizationDefinition(
                tbe.CounterWeightDecayMode.ADAGRADW,
                learning_rate_mode=tbe.LearningRateMode.COUNTER_SGD,
                tail_id_threshold=tbe.TailIdThreshold(0.5, True),
            ),
            tbe.CowClipDefinition(tbe.CounterWeightDecayMode.L2, 3, 0.1, 0.2),
            tbe.GlobalWeightDecayDefinition(7, 0.5),
            tbe.EnsembleModeDefinition(2, 3, 4, 0.5, tbe.StepMode.NONE),
            tbe.EmainplaceModeDefinition(2, 3, 0.5),
        ):
            config = json.loads(json.dumps(definition.get_config()))
            self.assertEqual(type(definition).from_config(config), definition)

    def test_defaults_are_those_of_fbgemm(self):
        self.assertEqual(
            tbe.EnsembleModeDefinition().get_config(),
            {
                "step_ema": 10000,
                "step_swap": 10000,
                "step_start": 0,
                "step_ema_coef": 0.6,
                "step_mode": 2,
            },
        )
        optimizer = tbe.RowwiseAdagrad()
        self.assertEqual(float(optimizer.learning_rate), np.float32(0.01))
        self.assertEqual(optimizer.eps, 1e-8)
        self.assertIs(tbe.OptimType, tbe.EmbOptimType)

    @parameterized.parameters(
        (lambda o: o.SGD(weight_decay=0.1), "SGD does not use `weight_decay`.*0.1"),
        (lambda o: o.Adagrad(weight_decay=0.1), "Adagrad does not use `weight_decay`"),
        (
            lambda o: o.RowwiseAdagrad(weight_decay=0.1),
            "RowwiseAdagrad does not use `weight_decay` with WeightDecayMode.NONE.*0.1",
        ),
        (
            lambda o: o.EnsembleRowwiseAdagrad(weight_decay_mode=tbe.WeightDecayMode.COUNTER),
            "EnsembleRowwiseAdagrad does not use `weight_decay_mode`.*COUNTER",
        ),
        (
            lambda o: o.RowwiseAdagrad(cowclip_regularization=tbe.CowClipDefinition()),
            "RowwiseAdagrad does not use `cowclip_regularization` with WeightDecayMode.NONE",
        ),
        (
            lambda o: o.RowwiseAdagrad(weight_decay_mode=tbe.WeightDecayMode.COUNTER),
            "`counter_based_regularization` must be given with WeightDecayMode.*COUNTER",
        ),
        (
            lambda o: o.RowwiseAdagrad(
                weight_decay=0.1,
                weight_decay_mode=tbe.WeightDecayMode.COWCLIP,
                cowclip_regularization=tbe.CowClipDefinition(),
            ),
            "does not use `weight_decay` with CounterWeightDecayMode.NONE",
        ),
        (lambda o: o.RowwiseAdagrad(weight_decay_mode=9), "`weight_decay_mode` must be of Weight"),
        (lambda o: o.RowwiseAdagrad(eps=-1.0), "`eps` must be at least 0. Received: eps=-1.0"),
        (lambda o: o.RowwiseAdagrad(max_norm=-1.0), "`max_norm` must be at least 0"),
        (lambda o: o.Adam(beta1=1.0), "`beta1` must be at least 0 and less than 1"),
        (lambda o: o.LAMB(weight_decay=-0.1), "`weight_decay` must be at least 0"),
        (lambda o: o.LARS(momentum=-0.1), "`momentum` must be at least 0"),
        (
            lambda o: tbe.EnsembleModeDefinition(step_ema=0),
            "`step_ema` must be at least 1",
        ),
        (
            lambda o: tbe.CounterBasedRegularizationDefinition(grad_sum_decay=0),
            "GradSumDecay.NO_DECAY, as no optimizer uses another",
        ),
        (
            lambda o: tbe.CowClipDefinition(tbe.CounterWeightDecayMode.ADAGRADW),
            "`counter_weight_decay_mode` must be NONE, L2 or DECOUPLE",
        ),
    )
    def test_what_an_optimizer_does_not_use_or_take_is_refused(self, make, sentence):
        with self.assertRaisesRegex(ValueError, sentence):
            make(tbe)

    def test_a_config_of_another_type_is_refused(self):
        with self.assertRaisesRegex(TypeError, "`ensemble_mode` must be a EnsembleModeDefinition"):
            tbe.EnsembleRowwiseAdagrad(ensemble_mode=3)

    def test_averages_of_keras_do_not_go_with_those_of_all_rows(self):
        for case in ("Ensemble", "EmaInplace", "counter, share"):
            with self.assertRaisesRegex(
                ValueError, "keeps to rows of a step, and looks at all rows .*use_ema=True"
            ):
                tf_embed.DynamicEmbeddingOptimizer(CASES[case].make(use_ema=True))


class SavingTest(tf.test.TestCase, parameterized.TestCase):
    """Training continues bit for bit after a load, slots included."""

    IDS = np.random.default_rng(SEED).integers(0, 12, [64, 3])
    LABELS = np.random.default_rng(SEED + 1).normal(size=[64, 1])

    def compiled(self, case: str, way: str) -> keras.Model:
        own = CASES[case].make() if way == "own" else None
        layer = tf_embed.layers.DynamicEmbedding(
            4, optimizer=own, name="mine", initializer=keras.initializers.RandomNormal(seed=3)
        )
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        if "EmaInplace" in case:  # it needs halves in dense variables too
            dense.trainable = False
        model = keras.Sequential(
            [keras.Input([3], dtype="int64"), layer, keras.layers.Flatten(), dense]
        )
        inner = keras.optimizers.SGD(0.05) if way == "own" else CASES[case].make()
        model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
        return model

    def train(self, model: keras.Model, begin: int, end: int) -> None:
        for step in range(begin, end):
            lines = slice(8 * step, 8 * step + 8)
            model.train_on_batch(self.IDS[lines], self.LABELS[lines])

    def assert_same(self, one: keras.Model, other: keras.Model) -> None:
        self.assertAllEqual(one.layers[-1].kernel, other.layers[-1].kernel)
        for a, b in zip(
            slots_of(one.layers[0].variable.table),
            slots_of(other.layers[0].variable.table),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)

    @parameterized.product(case=KINDS, way=("wrapper", "own"))
    @pytest.mark.smoke
    def test_from_a_keras_file(self, case, way):
        path = os.path.join(self.get_temp_dir(), "model.keras")
        model = self.compiled(case, way)
        self.train(model, 0, 4)
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assert_same(model, loaded)
        self.train(model, 4, 8)
        self.train(loaded, 4, 8)
        self.assert_same(model, loaded)

    @parameterized.product(case=KINDS, way=("wrapper", "own"))
    def test_from_a_checkpoint(self, case, way):
        model = self.compiled(case, way)
        self.train(model, 0, 4)
        path = tf.train.Checkpoint(model=model).save(os.path.join(self.get_temp_dir(), "c"))
        other = self.compiled(case, way)
        status = tf.train.Checkpoint(model=other).restore(path)
        self.train(other, 4, 8)
        status.assert_consumed()
        self.train(model, 4, 8)
        self.assert_same(model, other)

    def test_slots_of_row_wise_adagrad_serve_both(self):
        v = variable()
        keras_like = tf_embed.DynamicEmbeddingOptimizer(tbe.RowwiseAdagrad(0.05))
        steps = make_steps()
        train(keras_like, v.trainable_variables, steps[:5])
        slots = slots_of(v.table)[1]
        other = tbe.RowwiseAdagrad(0.05)
        self.assertEqual(other.rule, "rowwise_adagrad")
        oracle = CASES["RowwiseAdagrad"].oracle(variable().lookup(KEYS).numpy())
        for ids, gradients in steps[:5]:
            oracle.step(ids, gradients, 0.05)
        self.assertAllClose(
            np.sort(slots[:, 0]),
            np.sort([row.s for row in oracle.rows if row.s or (row.w == row.w).all()])[
                -len(slots) :
            ],
            rtol=1e-5,
        )


if __name__ == "__main__":
    tf.test.main()

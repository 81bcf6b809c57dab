# SPDX-License-Identifier: Apache-2.0
"""Training of table-batched layers: each optimizer and mode against a NumPy oracle."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.table_batched_cases import (
    DIMS,
    FEATURES,
    SPECS,
    Inputs,
    content,
    factors_of,
    first_rows,
    pair,
    plain,
    random_inputs,
    rows_of,
    settings_of,
    steps_of,
    train,
)
from support.cases.tbe_cases import CASES, KINDS
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

POOLING, OPTIM, SPARSE = tbe.PoolingMode, tbe.OptimType, tbe.SparseType
STEPS = 20
# The largest difference after twenty steps between float32 and float64.
CLOSE = {"rtol": 2e-5, "atol": 5e-6}
# Modes that KINDS lacks; the product of all modes with counts is slow.
ALWAYS = [case for case in CASES if not case.startswith("counter, ") or case in KINDS]
# A case for each kind of slots, and a case with passes over all rows.
FEW = ("Adagrad", "RowwiseAdagrad, l2", "Adam, by row", "Ensemble")
WAYS = (
    *("float16", "means_with_clipped_gradients", "rows_that_nobody_wrote", "dynamic_tables"),
    *("sizes_for_each_feature_and_rank", "the_wrapper", "a_graph", "lookups_between_steps"),
)
COUNTS = [case for case in CASES if case not in ALWAYS]


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, case: str, steps: int = STEPS, **options: Any) -> None:
        chosen = CASES[case]
        narrow = options.get("weights_precision") == SPARSE.FP16
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle, **options)
        tolerance = {"rtol": 2e-3, "atol": 2e-3} if narrow else CLOSE
        optimizer = plain()
        for number, (inputs, factors) in enumerate(steps_of(steps)):
            train(layer, optimizer, (inputs, factors))
            gradients = oracle(**inputs.arguments).backward(factors)
            oracle.step(gradients, dtype=np.float16 if narrow else None)
            for found, wanted in zip(rows_of(layer), oracle.weights, strict=True):
                self.assertAllClose(found, wanted, **tolerance, msg=f"{case}, step {number + 1}")

    @parameterized.parameters(*ALWAYS)
    @pytest.mark.smoke
    def test_twenty_steps_are_the_oracles(self, case):
        self.check(case)

    @parameterized.parameters(*COUNTS)
    def test_so_are_those_of_each_mode_with_counts(self, case):
        self.check(case)

    @parameterized.product(way=WAYS, case=FEW)
    def test_so_are_those_of(self, way, case):
        getattr(self, way)(case)

    @parameterized.product(way=WAYS, case=[case for case in KINDS if case not in FEW])
    def test_so_are_those_of_other_kinds_of(self, way, case):
        getattr(self, way)(case)

    def float16(self, case: str) -> None:
        # The layer and the oracle both round rows to the nearest.
        self.check(case, weights_precision=SPARSE.FP16, stochastic_rounding=False)

    def means_with_clipped_gradients(self, case: str) -> None:
        options = {"gradient_clipping": True, "max_gradient": 0.75}
        self.check(case, 8, pooling_mode=POOLING.MEAN, **options)

    def rows_that_nobody_wrote(self, case: str) -> None:
        chosen = CASES[case]
        if chosen.all_there:
            return
        zeros = [np.zeros_like(rows) for rows in first_rows()]
        _, oracle = pair(rows=zeros, tables=chosen.oracle, learning_rate=0.05)
        layer = TableBatchedEmbeddingBags(SPECS, FEATURES, **settings_of(chosen))
        self.train_both(layer, oracle, plain(), steps_of(8))

    def dynamic_tables(self, case: str) -> None:
        rng = np.random.default_rng(SEED)
        keys = [rng.integers(-(2**63), 2**63 - 1, spec[0]) for spec in SPECS]
        keys[0][:3] = -1, 2**63 - 1, -(2**63)
        specs = [(None, spec[1]) for spec in SPECS]
        chosen = CASES[case]
        layer, oracle = pair(
            specs=specs, rows=first_rows(), keys=keys, tables=chosen.oracle, **settings_of(chosen)
        )
        steps = steps_of(8)
        for inputs, _ in steps:
            counts = np.diff(inputs.offsets)
            features = np.repeat(np.repeat(FEATURES, len(counts) // len(FEATURES)), counts)
            inputs.indices = np.array(
                [keys[t][i] for t, i in zip(features, inputs.indices, strict=True)], np.int64
            )
        self.train_both(layer, oracle, plain(), steps, keys)

    def sizes_for_each_feature_and_rank(self, case: str) -> None:
        chosen = CASES[case]
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle)
        rng = np.random.default_rng(SEED)
        steps = []
        for _ in range(5):
            inputs = random_inputs(rng, weighted=True, sizes=[[2, 1], [0, 3], [1, 1], [4, 0]])
            shape = oracle(**inputs.arguments).output.shape
            steps.append((inputs, factors_of(rng, shape)))
        self.train_both(layer, oracle, plain(), steps)

    def the_wrapper(self, case: str) -> None:
        chosen = CASES[case]
        layer, oracle = pair(optimizer=None, tables=chosen.oracle)
        oracle.learning_rate, oracle.shares_counter = 0.05, False
        optimizer = tf_embed.DynamicEmbeddingOptimizer(chosen.make())
        self.train_both(layer, oracle, optimizer, steps_of(8))

    def a_graph(self, case: str) -> None:
        layers = [pair(**settings_of(CASES[case]))[0] for _ in range(2)]
        integers, floats = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.float32)
        optimizer, eager = plain(), plain()

        @tf.function(input_signature=[integers, integers, floats, tf.TensorSpec([None, None])])
        def step(indices: Any, offsets: Any, weights: Any, factors: Any) -> None:
            with tf.GradientTape() as tape:
                output = layers[1](indices, offsets, weights, training=True)
                loss = tf.reduce_sum(output * factors)
            variables = layers[1].trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        for inputs, factors in steps_of(5):
            train(layers[0], eager, (inputs, factors))
            step(inputs.indices, inputs.offsets, inputs.weights, factors)
        for one, other in zip(*(content(layer) for layer in layers), strict=True):
            self.assertAllEqual(one, other)

    def lookups_between_steps(self, case: str) -> None:
        layer, other = (pair(**settings_of(CASES[case]))[0] for _ in range(2))
        optimizers_of = plain(), plain()
        for inputs, factors in steps_of(5):
            train(layer, optimizers_of[0], (inputs, factors))
            before = content(other)
            for training in (False, True):
                other(**inputs.arguments, training=training)
            for one, two in zip(before, content(other), strict=True):
                self.assertAllEqual(one, two)
            train(other, optimizers_of[1], (inputs, factors))
        for one, two in zip(content(layer), content(other), strict=True):
            self.assertAllEqual(one, two)

    def train_both(
        self, layer: Any, oracle: Any, optimizer: Any, steps: Any, keys: Any = None
    ) -> None:
        for inputs, factors in steps:
            train(layer, optimizer, (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        for found, wanted in zip(rows_of(layer, keys), oracle.weights, strict=True):
            self.assertAllClose(found, wanted, **CLOSE)


class StepTest(tf.test.TestCase, parameterized.TestCase):
    def assert_rows(self, layer: Any, oracle: Any) -> None:
        for found, wanted in zip(rows_of(layer), oracle.weights, strict=True):
            self.assertAllClose(found, wanted, **CLOSE)

    @parameterized.parameters("Adagrad", "Adam", "RowwiseAdagrad, l2", "Ensemble")
    def test_two_calls_are_one_step(self, case):
        chosen = CASES[case]
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle)
        steps = steps_of(8)
        for one, other in zip(steps[::2], steps[1::2], strict=True):
            train(layer, plain(), one, other)
            oracle.step(*(oracle(**inputs.arguments).backward(by) for inputs, by in (one, other)))
        self.assert_rows(layer, oracle)

    @parameterized.parameters("Adagrad", "Adam", "Ensemble", "counter, share")
    def test_a_batch_without_indices_is_a_step(self, case):
        chosen = CASES[case]
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle)
        for number, (inputs, factors) in enumerate(steps_of(8)):
            if number % 3 == 1:
                inputs.indices, inputs.weights = inputs.indices[:0], inputs.weights[:0]
                inputs.offsets = np.zeros_like(inputs.offsets)
            train(layer, plain(), (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        self.assert_rows(layer, oracle)

    @parameterized.parameters("SGD", "RowwiseAdagrad, l2", "LAMB", "LARS, decay")
    def test_rows_that_are_not_touched_stay(self, case):
        layer, _ = pair(**settings_of(CASES[case]))
        for inputs, factors in steps_of(4)[:2]:  # without the last row of each table
            before = rows_of(layer)
            train(layer, plain(), (inputs, factors))
            for one, two in zip(before, rows_of(layer), strict=True):
                self.assertAllEqual(one[-1], two[-1])
                self.assertNotAllClose(one, two)

    def test_an_id_with_a_weight_of_0_is_touched(self):
        chosen = CASES["Adam, decay"]
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle)
        rng = np.random.default_rng(SEED)
        for _ in range(3):
            inputs = random_inputs(rng, weighted=True)
            inputs.weights = inputs.weights * (rng.random(len(inputs.weights)) < 0.5).astype("f")
            factors = factors_of(rng, (3, sum(DIMS)))
            train(layer, plain(), (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        self.assert_rows(layer, oracle)

    def test_without_pooling(self):
        specs, features = [(7, 4), (5, 4)], [1, 0, 1]
        chosen = CASES["Adagrad"]
        layer, oracle = pair(
            specs=specs, features=features, pooling_mode=POOLING.NONE, tables=chosen.oracle,
            **settings_of(chosen),
        )  # fmt: skip
        rng = np.random.default_rng(SEED)
        for _ in range(5):
            inputs = random_inputs(rng, specs=specs, features=features)
            factors = factors_of(rng, (len(inputs.indices), 4))
            train(layer, plain(), (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        self.assert_rows(layer, oracle)

    def test_clipping_comes_before_scales_weights_and_sums(self):
        specs = [(2, 2)]
        layer, _ = pair(
            specs=specs, features=None, rows=[np.zeros([2, 2], "f")], learning_rate=1.0,
            gradient_clipping=True, max_gradient=0.5,
        )  # fmt: skip
        weights = np.array([1.0, 1.0, 2.0], "f")
        inputs = Inputs(np.array([1, 1, 1]), np.array([0, 3]), weights)
        train(layer, plain(), (inputs, np.array([[5.0, -0.25]], "f")))
        self.assertAllClose(rows_of(layer)[0], [[0, 0], [-2.0, 1.0]])

    @parameterized.product(own=(False, True), outer=(False, True), in_graph=(False, True))
    def test_clipping_of_a_scaled_gradient_is_refused(self, own, outer, in_graph):
        layer = TableBatchedEmbeddingBags(
            [(2, 2)], optimizer="EXACT_SGD" if own else None, gradient_clipping=True, name="bags"
        )
        inner: Any = keras.optimizers.SGD(loss_scale_factor=None if outer else 1024.0)
        if outer:
            inner = keras.optimizers.LossScaleOptimizer(inner)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        inputs = Inputs(np.array([1]), np.array([0, 1]))

        def step() -> None:
            train(layer, optimizer, (inputs, np.ones([1, 2], "f")))

        layer.build()
        with self.assertRaisesRegex(
            ValueError,
            "`gradient_clipping` of .* must be False if the loss is scaled, because the lookup "
            "would clip the scaled gradient.*gradient_clipping=True",
        ):
            (tf.function(step) if in_graph else step)()
        self.assertAllEqual(rows_of(layer)[0], np.zeros([2, 2]))

    @parameterized.product(own=(False, True), outer=(False, True), in_graph=(False, True))
    def test_a_frozen_layer_may_clip_a_scaled_gradient(self, own, outer, in_graph):
        layer = TableBatchedEmbeddingBags(
            [(2, 2)], optimizer="EXACT_SGD" if own else None, gradient_clipping=True
        )
        inner: Any = keras.optimizers.SGD(1.0, loss_scale_factor=None if outer else 8.0)
        if outer:
            inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        dense = keras.Variable([1.0])
        variables = [*layer.trainable_variables, dense]
        optimizer.build(variables)

        def step() -> None:
            with tf.GradientTape() as tape:
                rows = layer(tf.constant([1]), tf.constant([0, 1]))
                loss = optimizer.scale_loss(tf.reduce_sum((rows + 1.0) * dense))
            optimizer.apply(tape.gradient(loss, variables), variables)

        step = tf.function(step) if in_graph else step
        layer.trainable = False
        step()
        self.assertAllClose(dense, [-1.0])
        layer.trainable = True
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError if in_graph else ValueError,
            "must be False if the loss is scaled, because the lookup would clip",
        ):
            step()
        self.assertAllEqual(rows_of(layer)[0], np.zeros([2, 2]))

    def test_a_learning_rate_schedule_goes_by_steps(self):
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.125])
        layer, oracle = pair(learning_rate=1.0)
        layer = TableBatchedEmbeddingBags(SPECS, FEATURES, learning_rate=schedule)
        for table, rows in zip(layer.tables, first_rows(), strict=True):
            table.upsert(np.arange(len(rows)), rows)
        for rate, (inputs, factors) in zip((1.0, 1.0, 0.125, 0.125), steps_of(4), strict=True):
            oracle.learning_rate = rate
            train(layer, plain(), (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        self.assert_rows(layer, oracle)

    def test_a_frozen_layer_stays(self):
        layer, _ = pair(**settings_of(CASES["Adam"]))
        inputs, factors = steps_of(1)[0]
        train(layer, plain(), (inputs, factors))
        before = content(layer)
        variables = layer.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(**inputs.arguments) * factors)
        gradients = tape.gradient(loss, variables)
        layer.trainable = False
        self.assertEqual(layer.trainable_variables, [])
        keras.optimizers.SGD(0.0).apply(gradients, variables)
        for one, two in zip(before, content(layer), strict=True):
            self.assertAllEqual(one, two)
        layer.trainable = True
        train(layer, plain(), (inputs, factors))
        self.assertNotAllClose(content(layer)[1], before[1])


class WeightGradientsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(pooling=(POOLING.SUM, POOLING.MEAN), dynamic=(False, True))
    def test_gradients_of_weights_are_finite_differences(self, pooling, dynamic):
        specs = [(None if dynamic else spec[0], spec[1]) for spec in SPECS]
        keys = [np.arange(spec[0]) for spec in SPECS]
        layer, oracle = pair(specs=specs, rows=first_rows(), keys=keys, pooling_mode=pooling)
        rng = np.random.default_rng(SEED)
        inputs = random_inputs(rng, weighted=True)
        factors = factors_of(rng, (3, sum(DIMS)))
        weights = tf.constant(inputs.weights)

        def loss_of(weights: Any) -> Any:
            return tf.reduce_sum(layer(inputs.indices, inputs.offsets, weights) * factors)

        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = loss_of(weights)
        found = tape.gradient(loss, weights).numpy()
        for place in range(len(found)):
            step = np.zeros(len(found), "f")
            step[place] = 0.5  # any step will do, as the loss is linear
            difference = loss_of(weights + step) - loss_of(weights - step)
            self.assertAllClose(found[place], difference, rtol=1e-4, atol=1e-4)
        wanted = oracle(**inputs.arguments).backward(factors).weights
        self.assertAllClose(found, wanted, rtol=1e-5, atol=1e-5)

    @parameterized.product(pooling=(POOLING.SUM, POOLING.MEAN), clipped=(False, True))
    def test_features_that_require_no_gradient_are_trained_all_the_same(self, pooling, clipped):
        options = {"gradient_clipping": True, "max_gradient": 0.5} if clipped else {}
        layer, oracle = pair(pooling_mode=pooling, learning_rate=0.5, **options)
        rng = np.random.default_rng(SEED)
        inputs = random_inputs(rng, weighted=True)
        factors = factors_of(rng, (3, sum(DIMS)))
        weights, requires = tf.Variable(inputs.weights), np.array([1, 0, 0, 1])
        with tf.GradientTape() as tape:
            output = layer(inputs.indices, inputs.offsets, weights, requires, training=True)
            loss = tf.reduce_sum(output * factors)
        variables = layer.trainable_variables
        *gradients, of_weights = tape.gradient(loss, [*variables, weights])
        wanted = oracle(**inputs.arguments, feature_requires_grad=requires).backward(factors)
        self.assertAllClose(of_weights, wanted.weights, rtol=1e-5, atol=1e-5)
        self.assertGreater(np.count_nonzero(wanted.weights), 0)
        plain().apply(gradients, variables)
        oracle.step(wanted)
        for found, rows in zip(rows_of(layer), oracle.weights, strict=True):
            self.assertAllClose(found, rows, **CLOSE)


class OtherOptimizersTest(tf.test.TestCase, parameterized.TestCase):
    def by_key(self, slices: tf.IndexedSlices) -> dict[int, Any]:
        self.assertIsInstance(slices, tf.IndexedSlices)
        keys = slices.indices.numpy().tolist()
        self.assertLen(set(keys), len(keys))  # gradients of equal keys are summed
        return dict(zip(keys, slices.values.numpy(), strict=True))

    @parameterized.product(
        optimizer=(OPTIM.NONE, None),
        pooling=(POOLING.SUM, POOLING.MEAN),
        in_graph=(False, True),
    )
    def test_each_table_has_an_anchor_for_its_gradient(self, optimizer, pooling, in_graph):
        layer, oracle = pair(optimizer=optimizer, pooling_mode=pooling)
        anchors = layer.trainable_variables
        self.assertEqual(
            [id(one) for one in anchors],
            [id(one) for table in layer.tables for one in table.trainable_variables],
        )
        inputs, factors = steps_of(1)[0]

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(**inputs.arguments, training=True) * factors)
            return tape.gradient(loss, anchors)

        found = tf.function(gradients)() if in_graph else gradients()
        wanted = oracle.sums(oracle(**inputs.arguments).backward(factors))
        for slices, sums in zip(found, wanted, strict=True):
            ours = self.by_key(slices)
            self.assertEqual(set(ours), set(sums))
            for key, row in sums.items():
                self.assertAllClose(ours[key], row, rtol=1e-5, atol=1e-5)

    @parameterized.product(
        optimizer=(OPTIM.NONE, None), way=("eager", "graph", "tape outside", "condition")
    )
    def test_the_gradient_of_an_array_has_a_dense_form(self, optimizer, way):
        for pooling in (POOLING.SUM, POOLING.NONE):
            layer = TableBatchedEmbeddingBags(
                [(5, 2), (2**33, 2), (None, 2)], optimizer=optimizer, pooling_mode=pooling
            )
            layer.build()
            ids = [tf.constant([one]) for one in ([3, 3], [4, 2**33 - 1], [-8, 8])]

            def look_up(layer: Any = layer, ids: Any = ids) -> tf.Tensor:
                return tf.reduce_sum(layer(ids))

            if way == "condition":
                inner = look_up
                look_up = lambda inner=inner: tf.cond(tf.constant(True), inner, lambda: 0.0)  # noqa: E731
            if way == "tape outside":
                look_up = tf.function(look_up)

            def gradients(look_up: Any = look_up, layer: Any = layer) -> Any:
                with tf.GradientTape() as tape:
                    loss = look_up()
                return tape.gradient(loss, layer.trainable_variables)

            if way in ("graph", "condition"):
                gradients = tf.function(gradients)
            small, large, dynamic = gradients()
            self.assertAllEqual(small.dense_shape, [5, 2])
            self.assertAllEqual(large.dense_shape, [2**33, 2])
            self.assertAllEqual(dynamic.dense_shape, [-1, 2])
            self.assertAllEqual(tf.convert_to_tensor(small), [[0, 0]] * 3 + [[2, 2], [0, 0]])

    def test_its_dense_form_is_known_in_a_function(self):
        layer = TableBatchedEmbeddingBags([(5, 2)], optimizer=OPTIM.NONE)

        @tf.function
        def norm() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(tf.constant([[3, 3]])))
            (gradient,) = tape.gradient(loss, layer.trainable_variables)
            return tf.norm(tf.convert_to_tensor(gradient))

        layer.build()
        self.assertAllClose(norm(), np.sqrt(8.0))

    def test_without_an_optimizer_keras_says_what_to_do(self):
        layer, _ = pair(optimizer=None)
        with self.assertRaisesRegex(ValueError, "DynamicEmbeddingOptimizer"):
            train(layer, plain(), steps_of(1)[0])

    @parameterized.parameters("adam", "lion")
    def test_the_wrapper_trains_them_as_keras_does_dense_ones(self, name):
        layer, _ = pair(optimizer=None)
        dense = [keras.Variable(rows) for rows in first_rows()]
        make = {"adam": keras.optimizers.Adam, "lion": keras.optimizers.Lion}[name]
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make(0.05))
        other = make(0.05)
        rng = np.random.default_rng(SEED)
        for _ in range(5):
            # Every row of every table, because Keras also moves rows of a dense variable without a
            # gradient.
            inputs = random_inputs(rng, 1)
            inputs.indices = np.concatenate([np.arange(SPECS[table][0]) for table in FEATURES])
            inputs.offsets = np.cumsum([0, *(SPECS[table][0] for table in FEATURES)])
            factors = factors_of(rng, (1, sum(DIMS)))
            train(layer, optimizer, (inputs, factors))
            parts = np.split(factors[0], np.cumsum(DIMS)[:-1])
            sums = [
                sum(part for part, of in zip(parts, FEATURES, strict=True) if of == table)
                for table in range(3)
            ]
            gradients = [
                tf.constant(np.broadcast_to(one, var.shape))
                for one, var in zip(sums, dense, strict=True)
            ]
            other.apply(gradients, dense)
        for found, wanted in zip(rows_of(layer), dense, strict=True):
            self.assertAllClose(found, wanted, rtol=1e-5, atol=1e-5)

    def test_the_wrapper_leaves_a_layers_own_optimizer_alone(self):
        chosen = CASES["Adagrad"]
        layer, oracle = pair(**settings_of(chosen), tables=chosen.oracle)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(tbe.SGD(7.0))
        for inputs, factors in steps_of(5):
            train(layer, optimizer, (inputs, factors))
            oracle.step(oracle(**inputs.arguments).backward(factors))
        for found, wanted in zip(rows_of(layer), oracle.weights, strict=True):
            self.assertAllClose(found, wanted, **CLOSE)


if __name__ == "__main__":
    tf.test.main()

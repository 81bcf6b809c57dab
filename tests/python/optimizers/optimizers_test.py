# SPDX-License-Identifier: Apache-2.0
"""Rules on rows against Keras on dense variables, of all rows or of a step's rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.optimizer_oracle import LazyOracle, Step
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

DIM = 5
STEPS = 20
# After 20 float32 steps, tables and Keras differ by at most 1.5e-6, relatively more near 0.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}

optimizers = keras.optimizers
KINDS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.8, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adagrad_options": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.5, epsilon=1e-3),
    "rowwise_adagrad": lambda: tf_embed.optimizers.RowwiseAdagrad(0.1, 0.01),
    "adam": lambda: optimizers.Adam(0.05),
    "adam_options": lambda: optimizers.Adam(0.05, beta_1=0.7, beta_2=0.9, epsilon=1e-3),
    "amsgrad": lambda: optimizers.Adam(0.05, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.05, weight_decay=0.1),
}
OPTIONS = ("clipnorm", "clipvalue", "global_clipnorm")


def table(**options: Any) -> tf_embed.Variable:
    options = {"name": "v", "initializer": keras.initializers.RandomNormal(seed=1), **options}
    return tf_embed.Variable(dim=DIM, **options)


def slices(keys: Any, gradients: Any, dtype: str = "float32") -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.cast(tf.constant(gradients), dtype), tf.constant(keys, tf.int64))


def batches(keys: int, count: int, each: bool, steps: int = STEPS) -> list[tuple[Any, Any]]:
    """Steps of (keys, gradients) with repeated keys; with `each`, every step has every key."""
    rng = np.random.default_rng(SEED)
    result = []
    for _ in range(steps):
        drawn = rng.integers(0, keys, count)
        if each:
            drawn = np.concatenate([drawn, rng.permutation(keys)])
        gradients = rng.normal(size=[len(drawn), DIM]) * 2.0 ** rng.integers(-3, 4)
        result.append((drawn, gradients.astype(np.float32)))
    return result


def train(v: tf_embed.Variable, optimizer: Any, steps: list[tuple[Any, Any]]) -> np.ndarray:
    wrapper = tf_embed.DynamicEmbeddingOptimizer(optimizer)
    for keys, gradients in steps:
        wrapper.apply([slices(keys, gradients, v.value_dtype.name)], v.trainable_variables)
    return v.lookup(range(30)).numpy()


class RulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=tuple(KINDS), way=("wrapper", "own"))
    @pytest.mark.smoke
    def test_rows_equal_a_dense_variable_when_every_step_touches_every_row(self, kind, way):
        make = KINDS[kind]
        layer = DynamicEmbedding(
            DIM, initializer="normal", optimizer=make() if way == "own" else None
        )
        layer.build()
        dense = keras.Variable(layer.variable.lookup(range(30)))
        inner = make()
        outer = inner if way == "own" else tf_embed.DynamicEmbeddingOptimizer(inner)
        of_dense = make()
        for keys, gradients in batches(30, 20, each=True):
            summed = np.zeros([30, DIM], np.float32)
            np.add.at(summed, keys, gradients)
            of_dense.apply([tf.constant(summed)], [dense])
            outer.apply([slices(keys, gradients)], [layer.variable.anchor])
        self.assertAllClose(layer.variable.lookup(range(30)), dense.value, **CLOSE)
        self.assertEqual(int(layer.variable.size()), 30)

    @parameterized.product(kind=tuple(KINDS), shards=(1, 3))
    @pytest.mark.smoke
    def test_rows_equal_keras_on_those_that_a_step_touches(self, kind, shards):
        v = table(devices=["/CPU:0"] * shards)
        oracle = LazyOracle(KINDS[kind], [v.lookup(range(30)).numpy()], [])
        steps = batches(30, 8, each=False)
        rows = train(v, KINDS[kind](), steps)
        for keys, gradients in steps:
            oracle.step(Step([keys], [gradients], []))
        self.assertAllClose(rows, oracle.tables[0], **CLOSE)
        touched = np.unique(np.concatenate([keys for keys, _ in steps]))
        self.assertAllEqual(np.sort(v.export()[0]), touched)

    @parameterized.parameters(*KINDS)
    def test_sharded_equals_unsharded_and_one_run_the_next_bit_for_bit(self, kind):
        steps = batches(30, 64, each=False)
        rows = train(table(), KINDS[kind](), steps)
        for shards in (1, 2, 5):
            again = train(table(devices=["/CPU:0"] * shards), KINDS[kind](), steps)
            self.assertAllEqual(again, rows)

    def test_large_batches_are_summed_in_the_order_of_positions(self):
        steps = batches(3000, 50_000, each=False, steps=3)
        rows = train(table(), optimizers.Adagrad(0.1), steps)
        for shards in (1, 4):
            again = train(table(devices=["/CPU:0"] * shards), optimizers.Adagrad(0.1), steps)
            self.assertAllEqual(again, rows)

    def test_weight_decay_touches_the_rows_of_the_step_alone(self):
        v = table(initializer="ones")
        v.upsert([1, 2], np.ones([2, DIM]))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(0.5, weight_decay=0.5))
        optimizer.apply([slices([1], np.ones([1, DIM]))], v.trainable_variables)
        self.assertAllEqual(v.lookup([1, 2])[:, 0], [1.0 - 0.25 - 0.5, 1.0])

    def test_a_table_excluded_from_weight_decay_does_not_decay(self):
        v = table(initializer="ones")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(0.5, weight_decay=0.5))
        optimizer.exclude_from_weight_decay(var_list=v.trainable_variables)
        optimizer.apply([slices([1], np.ones([1, DIM]))], v.trainable_variables)
        self.assertAllEqual(v.lookup([1])[:, 0], [0.5])


class LearningRateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("wrapper", "own")
    def test_schedules_are_followed(self, way):
        def schedule() -> Any:
            return optimizers.schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.5, 0.25])

        layer = DynamicEmbedding(
            1,
            initializer="zeros",
            optimizer=optimizers.SGD(schedule()) if way == "own" else None,
        )
        layer.build()
        inner = optimizers.SGD(schedule())
        outer = inner if way == "own" else tf_embed.DynamicEmbeddingOptimizer(inner)
        outer.build([layer.variable.anchor])
        step = tf.function(lambda: outer.apply([slices([1], [[-1.0]])], [layer.variable.anchor]))
        seen = []
        for _ in range(6):
            step()
            seen.append(float(layer.variable.lookup([1])[0, 0]))
        self.assertEqual(seen, [1.0, 2.0, 2.5, 3.0, 3.25, 3.5])

    @parameterized.parameters("wrapper", "own")
    def test_a_learning_rate_changed_between_steps_is_followed_in_a_traced_step(self, way):
        layer = DynamicEmbedding(
            1, initializer="zeros", optimizer=optimizers.SGD(1.0) if way == "own" else None
        )
        layer.build()
        outer = optimizers.SGD(1.0)
        changed = layer.optimizer if way == "own" else outer
        if way == "wrapper":
            outer = tf_embed.DynamicEmbeddingOptimizer(outer)
        outer.build([layer.variable.anchor])
        step = tf.function(lambda: outer.apply([slices([1], [[-1.0]])], [layer.variable.anchor]))
        step()
        changed.learning_rate = 0.25
        step()
        if way == "wrapper":
            outer.learning_rate = 0.5  # sets the inner optimizer's rate
            self.assertEqual(float(changed.learning_rate), 0.5)
            step()
        self.assertAllEqual(layer.variable.lookup([1]), [[1.75 if way == "wrapper" else 1.25]])

    def test_a_callback_that_sets_the_learning_rate_reaches_the_table(self):
        layer = DynamicEmbedding(1, initializer="zeros")
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Flatten()])
        model.compile(
            tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(9.0)), lambda y, predicted: -predicted
        )
        callback = keras.callbacks.LearningRateScheduler(lambda epoch: [1.0, 0.5][epoch])
        ids = np.array([[1]])
        history = model.fit(ids, ids, epochs=2, callbacks=[callback], verbose=0).history
        self.assertAllEqual(layer.variable.lookup([1]), [[1.5]])
        self.assertEqual(history["learning_rate"], [1.0, 0.5])


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("use_ema", "loss_scale_factor")
    def test_an_own_optimizer_has_no_option_that_takes_the_models(self, option):
        words = f"own optimizer must not have `{option}`, which takes .*Adam"
        with self.assertRaisesRegex(ValueError, words):
            DynamicEmbedding(1, optimizer=optimizers.Adam(**{option: 2}))

    @parameterized.parameters({"global_clipnorm": 1.0}, {"use_ema": True})
    def test_options_that_do_not_go_together_are_refused_by_name(self, **option):
        optimizer = optimizers.Adam(gradient_accumulation_steps=2, **option)
        for make in (
            tf_embed.DynamicEmbeddingOptimizer,
            lambda optimizer: DynamicEmbedding(1, optimizer=optimizer),
        ):
            words = f"trained with both `gradient_accumulation_steps` and `{next(iter(option))}`"
            with self.assertRaisesRegex(ValueError, words):
                make(optimizer)

    def test_an_option_set_after_wrapping_counts(self):
        v, optimizer = table(), tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))
        optimizer.inner_optimizer.clipvalue = 0.5
        before = v.lookup([1])
        optimizer.apply([slices([1], np.full([1, DIM], 9.0))], [v.anchor])
        self.assertAllClose(v.lookup([1]) - before, [[-0.5] * DIM])

    def test_an_optimizer_that_no_copy_can_be_made_of_is_refused_when_it_is_built(self):
        class Mine(optimizers.Adam):
            def __init__(self, needed):
                super().__init__()
                self.needed = needed

        optimizer = tf_embed.DynamicEmbeddingOptimizer(Mine(3))
        with self.assertRaisesRegex(ValueError, "Mine: no copy of it can be made"):
            optimizer.build([table().anchor])

    def test_an_optimizer_that_needs_the_number_of_rows_is_refused_when_it_is_built(self):
        class Mine(optimizers.Optimizer):
            def update_step(self, gradient, variable, learning_rate):
                self.assign(variable, variable / variable.shape[0])

        optimizer = tf_embed.DynamicEmbeddingOptimizer(Mine(0.1))
        with self.assertRaisesRegex(ValueError, "Mine as it is: its step fails"):
            optimizer.build([table().anchor])

    def test_the_wrapper_takes_the_name_of_our_optimizer_too(self):
        optimizer = tf_embed.DynamicEmbeddingOptimizer("rowwise_adagrad")
        self.assertIsInstance(optimizer.inner_optimizer, tf_embed.optimizers.RowwiseAdagrad)

    def test_the_wrapper_counts_steps_also_where_all_tables_have_their_own_optimizer(self):
        layer = DynamicEmbedding(1, optimizer="sgd")
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer("adam")
        for _ in range(2):
            optimizer.apply([slices([1], np.ones([1, 1]))], layer.trainable_variables)
        self.assertEqual(int(optimizer.iterations), 2)
        self.assertEqual(int(layer.optimizer.iterations), 2)

    def test_what_is_no_keras_optimizer_or_another_one_inside_is_refused(self):
        nested = optimizers.LossScaleOptimizer(optimizers.LossScaleOptimizer(optimizers.SGD()))
        for optimizer, message in (
            (nested, "LossScaleOptimizer, which hands variables to other optimizers"),
            (tf_embed.DynamicEmbeddingOptimizer("sgd"), "which hands variables to other"),
            (3.0, "must be a Keras optimizer, or its name or config"),
            ("no_such", "must be a Keras optimizer, or its name or config"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                tf_embed.DynamicEmbeddingOptimizer(optimizer)

    @parameterized.parameters("adam", "sgd", "adagrad", "rmsprop", "adamw", "lion")
    def test_a_plain_optimizer_is_stopped_with_both_ways_out(self, name):
        message = (
            r"'mine' has a table.* give its layer one of its own, optimizer=.*"
            r"tf_embed.DynamicEmbeddingOptimizer\(optimizer\)"
        )
        layer = DynamicEmbedding(1, name="mine")
        model = keras.Sequential(
            [keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile(name, "mse")
        with self.assertRaisesRegex(ValueError, message):
            model.fit(np.array([[1, 2]]), np.ones(1), verbose=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(np.array([[1, 2]])))
        gradients = tape.gradient(loss, model.trainable_variables)
        with self.assertRaisesRegex(ValueError, message):
            optimizers.get(name).apply(gradients, model.trainable_variables)
        self.assertEqual(int(layer.variable.size()), 0)

    @parameterized.parameters("wrapper", "own")
    def test_a_dense_gradient_of_a_table_is_refused_by_the_name_of_the_layer(self, way):
        layer = DynamicEmbedding(2, name="mine", optimizer="sgd" if way == "own" else None)
        layer.build()
        outer = "adam" if way == "own" else tf_embed.DynamicEmbeddingOptimizer("sgd")
        outer = optimizers.get(outer)
        with self.assertRaisesRegex(ValueError, "gradient of 'mine' must be a tf.IndexedSlices"):
            outer.apply([tf.zeros([0, 2])], [layer.variable.anchor])
        self.assertEqual(int(layer.variable.size()), 0)

    @parameterized.parameters(
        ({"use_ema": True}, "use_ema"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"loss_scale_factor": 8.0}, "loss_scale_factor"),
    )
    def test_outer_options_that_would_make_rows_wrong_are_refused(self, options, name):
        layer = DynamicEmbedding(1, optimizer="sgd", name="mine")
        model = keras.Sequential(
            [keras.Input([1], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile(optimizers.Adam(**options), "mse")
        with self.assertRaisesRegex(ValueError, f"{name}.*'mine'"):
            model.fit(np.array([[1]]), np.ones(1), verbose=0)
        self.assertEqual(int(layer.variable.size()), 0)

    def test_apply_checks_what_it_is_given(self):
        v, optimizer = table(), tf_embed.DynamicEmbeddingOptimizer("sgd")
        with self.assertRaisesRegex(
            ValueError, "must have one gradient for each of .*1 gradients, 0 variables"
        ):
            optimizer.apply([slices([1], np.ones([1, DIM]))], [])
        with self.assertRaisesRegex(ValueError, "Received: only None"):
            optimizer.apply([None], v.trainable_variables)


class OwnOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    def model(self, layer: Any) -> keras.Model:
        keras.utils.set_random_seed(SEED)
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential(
            [keras.Input([4], dtype="int64"), layer, keras.layers.Flatten(), dense]
        )

    def fit(self, model: keras.Model, optimizer: Any, **options: Any) -> None:
        model.compile(optimizer, "mse", **options)
        rng = np.random.default_rng(SEED)
        ids, labels = rng.integers(0, 9, [24, 4]), rng.normal(size=24)
        model.fit(ids, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)

    def test_it_trains_the_table_under_a_plain_adam_that_trains_the_rest(self):
        own = self.model(DynamicEmbedding(3, initializer="ones", optimizer=optimizers.Adam(0.01)))
        self.fit(own, optimizers.Adam(0.01))
        wrapped = self.model(DynamicEmbedding(3, initializer="ones"))
        self.fit(wrapped, tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(0.01)))
        self.assertEqual(int(own.layers[0].variable.size()), 9)
        for one, other in zip(own.layers[-1].weights, wrapped.layers[-1].weights, strict=True):
            self.assertAllClose(one, other, rtol=1e-6)
        self.assertAllClose(own.layers[0](tf.range(9)), wrapped.layers[0](tf.range(9)), rtol=1e-6)

    def test_it_wins_over_the_wrapper_and_has_its_own_step(self):
        layer = DynamicEmbedding(3, initializer="ones", optimizer=optimizers.Adam(0.01))
        other = DynamicEmbedding(3, initializer="ones", optimizer=optimizers.Adam(0.01))
        wrapper = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(100.0))
        self.fit(self.model(layer), wrapper)
        self.fit(self.model(other), optimizers.SGD(100.0))
        self.assertEqual(int(layer.optimizer.iterations), 6)
        self.assertEqual(int(wrapper.iterations), 6)
        self.assertAllEqual(layer(tf.range(9)), other(tf.range(9)))

    @parameterized.parameters(*OPTIONS)
    def test_the_outer_clipping_does_not_reach_the_table(self, option):
        rows = []
        for options in ({}, {option: 1e-4}):
            layer = DynamicEmbedding(3, initializer="ones", optimizer=optimizers.SGD(0.01))
            model = self.model(layer)
            model.layers[-1].trainable = False
            self.fit(model, optimizers.SGD(0.01, **options))
            rows.append(layer(tf.range(9)))
        self.assertAllEqual(*rows)
        self.assertNotAllClose(rows[0], np.ones([9, 3]))

    def test_a_name_is_an_optimizer(self):
        for name, kind in (
            ("adam", optimizers.Adam),
            ("rowwise_adagrad", tf_embed.optimizers.RowwiseAdagrad),
            ("RowwiseAdagrad", tf_embed.optimizers.RowwiseAdagrad),
        ):
            self.assertIs(type(DynamicEmbedding(1, optimizer=name).optimizer), kind)

    def test_an_optimizer_given_to_two_layers_is_copied(self):
        given = optimizers.Adam(0.5)
        one, other = (DynamicEmbedding(1, optimizer=given) for _ in range(2))
        self.assertIsNot(one.optimizer, other.optimizer)
        one.optimizer.learning_rate = 0.1
        self.assertEqual(float(other.optimizer.learning_rate), 0.5)


class RuleChangeTest(tf.test.TestCase, parameterized.TestCase):
    def test_another_rule_starts_its_slots_anew_keeps_weights_and_says_so_once(self):
        v = table()
        rows = train(v, optimizers.Adagrad(0.1), batches(30, 8, each=True))
        fresh = table(initializer=0.0)
        fresh.upsert(range(30), rows)
        steps = batches(30, 8, each=True, steps=3)
        with self.assertLogs("absl", "WARNING") as logs:
            changed = train(v, optimizers.Adam(0.1), steps)
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], "'v' is now trained by the rule 'adam'.*30 rows.*kept")
        self.assertAllEqual(changed, train(fresh, optimizers.Adam(0.1), steps))

    def test_nothing_is_said_where_nothing_is_lost(self):
        with self.assertNoLogs("absl", "WARNING"):
            v = table()
            train(v, optimizers.SGD(0.1), batches(30, 8, each=False))
            train(v, optimizers.Adam(0.1), batches(30, 8, each=False))
            train(v, optimizers.Adam(0.2), batches(30, 8, each=False))

    def test_a_model_compiled_again_keeps_the_rows(self):
        layer = DynamicEmbedding(2, initializer="ones")
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer, keras.layers.Flatten()])
        ids = np.array([[1], [2]])
        model.compile(tf_embed.DynamicEmbeddingOptimizer("adagrad"), "mse")
        model.fit(ids, np.zeros([2, 2]), verbose=0)
        rows = layer(tf.constant([1, 2]))
        model.compile(tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(0.0)), "mse")
        model.fit(ids, np.zeros([2, 2]), verbose=0)
        self.assertAllEqual(layer(tf.constant([1, 2])), rows)
        self.assertEqual(layer.variable.table.export()[2].shape, (2, 4))


class WrapperTest(tf.test.TestCase, parameterized.TestCase):
    def test_the_config_makes_the_same_optimizer(self):
        wrapper = tf_embed.DynamicEmbeddingOptimizer(
            optimizers.AdamW(0.25, weight_decay=0.5), share_slots=True, name="mine"
        )
        config = keras.saving.serialize_keras_object(wrapper)
        again = keras.saving.deserialize_keras_object(config)
        self.assertEqual(again.get_config(), wrapper.get_config())
        self.assertIsInstance(again.inner_optimizer, optimizers.AdamW)
        self.assertEqual(float(again.learning_rate), 0.25)

    def test_it_counts_steps_with_and_without_dense_variables(self):
        v, dense = table(), keras.Variable(1.0)
        wrapper = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(0.5))
        both = [v.anchor, dense]
        wrapper.apply([slices([1], np.ones([1, DIM])), tf.constant(1.0)], both)
        wrapper.apply([slices([1], np.ones([1, DIM])), None], both)
        wrapper.apply([None, tf.constant(1.0)], both)
        wrapper.apply_gradients([(tf.constant(1.0), dense)])
        self.assertEqual(int(wrapper.iterations), 4)
        self.assertEqual(float(dense.value), -0.5)

    def test_it_makes_no_slots_for_tables(self):
        wrapper = tf_embed.DynamicEmbeddingOptimizer("adam")
        wrapper.build([table().anchor, keras.Variable(np.ones([3, 2]))])
        self.assertEqual(
            sorted(tuple(one.shape) for one in wrapper.variables), [(), (), (3, 2), (3, 2)]
        )

    def test_clipped_and_scaled_slices_are_slices(self):
        v = table(initializer=0.0)
        gradient = slices([1], np.full([1, DIM], 3.0))
        (gradient,), _ = tf.clip_by_global_norm([gradient], 1.0)
        wrapper = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))
        wrapper.apply([gradient], v.trainable_variables)
        self.assertAllClose(v.lookup([1]), np.full([1, DIM], -(DIM**-0.5)))


class RowwiseAdagradTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(((4,),), ((3, 4),), ((2, 3, 4),), ((),))
    def test_dense_variables_have_one_accumulator_a_row(self, shape):
        rng = np.random.default_rng(SEED)
        start = rng.normal(size=shape).astype(np.float32)
        dense = keras.Variable(start)
        optimizer = tf_embed.optimizers.RowwiseAdagrad(0.1, 0.01)
        rows = start.reshape(-1, shape[-1] if shape else 1).astype(np.float64)
        sums = np.full([len(rows), 1], 0.01)
        for _ in range(STEPS):
            gradient = rng.normal(size=shape).astype(np.float32)
            optimizer.apply([tf.constant(gradient)], [dense])
            of_rows = gradient.reshape(rows.shape).astype(np.float64)
            sums += np.mean(of_rows**2, axis=1, keepdims=True)
            rows -= 0.1 * of_rows / (np.sqrt(sums) + 1e-8)
        self.assertAllClose(dense.value, rows.reshape(shape), **CLOSE)

    @parameterized.parameters(
        ("float16", {}), ("bfloat16", {}), ("float32", {"epsilon": 0.0}), ("float64", {})
    )
    def test_rows_without_a_gradient_stay(self, dtype, options):
        dense = keras.Variable(np.ones([3, 2]), dtype=dtype)
        optimizer = tf_embed.optimizers.RowwiseAdagrad(0.1, **options)
        gradient = tf.constant([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]], tf.as_dtype(dtype))
        optimizer.apply([gradient], [dense])
        size = np.sqrt(2.5)
        wanted = [[1.0, 1.0], [1.0 - 0.1 / size, 1.0 - 0.2 / size], [1.0, 1.0]]
        self.assertAllClose(tf.cast(dense.value, tf.float64), wanted, atol=4e-3, rtol=0)
        self.assertAllEqual(tf.cast(dense.value, tf.float64)[::2], np.ones([2, 2]))

    def test_it_is_serialized_and_checks_its_arguments(self):
        optimizer = tf_embed.optimizers.RowwiseAdagrad(0.5, 0.25, 0.125, weight_decay=0.5)
        again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        self.assertEqual(again.get_config(), optimizer.get_config())
        with self.assertRaisesRegex(ValueError, "`epsilon` must not be negative"):
            tf_embed.optimizers.RowwiseAdagrad(epsilon=-1.0)
        with self.assertRaisesRegex(ValueError, "`initial_accumulator_value` must not be negative"):
            tf_embed.optimizers.RowwiseAdagrad(initial_accumulator_value=-1.0)


if __name__ == "__main__":
    tf.test.main()

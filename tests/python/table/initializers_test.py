# SPDX-License-Identifier: Apache-2.0
"""The initial rows of keys: their bits, their distributions, and other sources of rows."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS
from tf_embed.table.initializers import with_own_seed

KEYS = EXTREME_KEYS["int64"] + list(range(2, 42))
FLOATING = ("float32", "float16", "bfloat16", "float64")
MANY = 40_000  # keys, with 4 lanes each, for measured distributions


def rows_of(initializer: Any, keys: Any = tuple(KEYS), dim: int = 4, **options: Any) -> np.ndarray:
    options = {"name": "table", **options}
    return tf_embed.Variable(dim=dim, initializer=initializer, **options).lookup(keys).numpy()


@pytest.mark.smoke
class BitsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(value_dtype=FLOATING, seed=(0, 7, 2**31 + 5))
    def test_uniform_rows_have_the_bits_of_the_reference(self, value_dtype, seed):
        rows = rows_of(
            keras.initializers.RandomUniform(-0.3, 0.7, seed=seed), value_dtype=value_dtype
        )
        wanted = [reference.uniform_row("table", seed, key, 4, -0.3, 0.7) for key in KEYS]
        self.assertAllEqual(rows, _narrowed(wanted, value_dtype))

    @parameterized.product(value_dtype=FLOATING, truncated=(False, True))
    def test_normal_rows_have_the_bits_of_the_reference(self, value_dtype, truncated):
        kind = keras.initializers.TruncatedNormal if truncated else keras.initializers.RandomNormal
        rows = rows_of(kind(0.1, 0.5, seed=3), value_dtype=value_dtype)
        wanted = [reference.normal_row("table", 3, key, 4, 0.1, 0.5, truncated) for key in KEYS]
        if value_dtype == "float64":  # the reference takes its logarithm from libm
            self.assertAllClose(rows, wanted, rtol=1e-13, atol=1e-14)
        else:
            self.assertAllEqual(rows, _narrowed(wanted, value_dtype))

    def test_the_bits_of_unsigned_and_narrow_keys_are_those_of_the_same_64(self):
        uniform = keras.initializers.RandomUniform(seed=3)
        for key_dtype in ("uint64", "int32"):
            keys = EXTREME_KEYS[key_dtype]
            rows = rows_of(uniform, np.array(keys, key_dtype), key_dtype=key_dtype)
            wanted = [
                reference.uniform_row("table", 3, key % 2**64, 4, -0.05, 0.05) for key in keys
            ]
            self.assertAllEqual(rows, np.float32(wanted))

    def test_a_lane_does_not_depend_on_the_dim(self):
        normal = keras.initializers.RandomNormal(seed=1)
        self.assertAllEqual(rows_of(normal, dim=100)[:, :7], rows_of(normal, dim=7))


class SamenessTest(tf.test.TestCase, parameterized.TestCase):
    def test_rows_are_the_same_in_any_order_batch_and_number_of_shards(self):
        uniform = keras.initializers.RandomUniform(seed=5)
        rows = rows_of(uniform)
        self.assertAllEqual(rows_of(uniform, KEYS[::-1])[::-1], rows)
        self.assertAllEqual(np.concatenate([rows_of(uniform, [key]) for key in KEYS]), rows)
        self.assertAllEqual(rows_of(uniform, devices=["/CPU:0"] * 3), rows)
        twice = rows_of(uniform, KEYS + KEYS)
        self.assertAllEqual(twice[: len(KEYS)], twice[len(KEYS) :])

    def test_training_starts_from_the_row_that_lookups_gave(self):
        v = tf_embed.Variable(dim=4, initializer=keras.initializers.RandomNormal(seed=5))
        before = v.lookup(KEYS)
        slices = tf.IndexedSlices(tf.ones([len(KEYS), 4]), tf.constant(KEYS, tf.int64))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.0))
        optimizer.apply([slices], v.trainable_variables)
        self.assertEqual(int(v.size()), len(KEYS))
        self.assertAllEqual(v.lookup(KEYS), before)

    def test_tables_of_one_seed_differ_by_name_and_of_one_name_by_seed(self):
        one = keras.initializers.RandomUniform(seed=5)
        rows = rows_of(one)
        self.assertAllEqual(rows_of(one, name="table"), rows)
        for other in (
            rows_of(one, name="other"),
            rows_of(keras.initializers.RandomUniform(seed=6)),
        ):
            self.assertLess(np.mean(other == rows), 0.01)

    def test_an_unseeded_initializer_draws_its_seed_from_keras(self):
        def draw() -> np.ndarray:
            keras.utils.set_random_seed(7)
            return np.stack([rows_of("uniform"), rows_of("uniform")])

        first, second = draw()
        self.assertNotAllClose(first, second)
        self.assertAllEqual(draw(), [first, second])
        keras.utils.set_random_seed(8)
        self.assertNotAllClose(rows_of("uniform"), first)

    def test_two_lookups_of_one_absent_key_agree(self):
        v = tf_embed.Variable(dim=4, initializer="normal")
        self.assertAllEqual(v.lookup([3]), v.lookup([3]))
        self.assertAllEqual(tf.function(v.lookup)(tf.constant([3], tf.int64)), v.lookup([3]))


class DistributionTest(tf.test.TestCase, parameterized.TestCase):
    """Bounds are five standard errors, so that any seed passes."""

    def sample(self, initializer: Any, dim: int = 4) -> np.ndarray:
        rng = np.random.default_rng(reference.SEED)
        keys = rng.integers(-(2**63), 2**63 - 1, MANY)
        keys[: MANY // 2] = np.arange(MANY // 2)  # adjacent keys too
        return rows_of(initializer, keys, dim).astype(np.float64)

    def check(self, sample: np.ndarray, cdf: Any) -> None:
        count = sample.size
        sorted_sample = np.sort(sample.ravel())
        expected = np.array([cdf(x) for x in sorted_sample[:: count // 2000]])
        distance = np.abs(expected - np.arange(0, count, count // 2000) / count).max()
        self.assertLess(distance, 2.3 / math.sqrt(count))  # Kolmogorov; 5e-5 of good samples fail
        correlations = np.corrcoef(np.concatenate([sample[:-1].T, sample[1:].T]))
        np.fill_diagonal(correlations, 0.0)  # lanes, and adjacent keys
        self.assertLess(np.abs(correlations).max(), 5 / math.sqrt(len(sample)))

    def test_uniform(self):
        sample = self.sample(keras.initializers.RandomUniform(-2.0, 1.0, seed=1))
        self.assertGreaterEqual(sample.min(), -2.0)
        self.assertLessEqual(sample.max(), 1.0)
        self.check(sample, lambda x: (x + 2.0) / 3.0)

    def test_normal(self):
        sample = self.sample(keras.initializers.RandomNormal(1.0, 2.0, seed=1))
        self.check(sample, lambda x: 0.5 * math.erfc((1.0 - x) / 2.0 / math.sqrt(2.0)))
        self.assertGreater(np.abs(sample - 1.0).max(), 2.0 * 3.9)  # for 160,000 draws: 4.4 +- 0.3

    def test_truncated_normal(self):
        sample = self.sample(keras.initializers.TruncatedNormal(1.0, 2.0, seed=1))
        self.assertLessEqual(np.abs(sample - 1.0).max(), 4.0 + 1e-6)
        below = 0.5 * math.erfc(math.sqrt(2.0))
        self.check(
            sample,
            lambda x: (
                (0.5 * math.erfc((1.0 - x) / 2.0 / math.sqrt(2.0)) - below) / (1.0 - 2.0 * below)
            ),
        )

    @parameterized.parameters(
        ("glorot_uniform", "uniform", lambda dim: math.sqrt(6.0 / (1 + dim))),
        ("he_uniform", "uniform", lambda dim: math.sqrt(6.0)),
        ("lecun_uniform", "uniform", lambda dim: math.sqrt(3.0)),
        ("glorot_normal", "truncated", lambda dim: math.sqrt(2.0 / (1 + dim))),
        ("he_normal", "truncated", lambda dim: math.sqrt(2.0)),
        ("lecun_normal", "truncated", lambda dim: 1.0),
    )
    def test_scaled_initializers_have_the_fans_of_one_row(self, name, kind, scale):
        for dim in (4, 16):
            sample = self.sample(name, dim)
            if kind == "uniform":
                limit = scale(dim)
                self.assertLess(np.abs(sample).max(), limit)
                self.assertGreater(np.abs(sample).max(), limit * 0.9995)
            else:
                self.assertNear(sample.std(), scale(dim), 5 * scale(dim) / math.sqrt(sample.size))
            self.assertNear(sample.mean(), 0.0, 5 * scale(dim) / math.sqrt(sample.size))
            # Keras itself draws rows of the shape (1, dim).
            keras_name = keras.initializers.get(name).__class__
            keras_rows = np.stack([keras_name(seed=seed)((1, dim)).numpy() for seed in range(300)])
            self.assertNear(keras_rows.std() / sample.std(), 1.0, 5 / math.sqrt(keras_rows.size))

    @parameterized.product(
        mode=("fan_in", "fan_out", "fan_avg"),
        distribution=("uniform", "truncated_normal", "untruncated_normal"),
    )
    def test_variance_scaling_in_every_mode(self, mode, distribution):
        initializer = keras.initializers.VarianceScaling(3.0, mode, distribution, seed=2)
        sample = self.sample(initializer, 8)
        fan = {"fan_in": 1.0, "fan_out": 8.0, "fan_avg": 4.5}[mode]
        wanted = math.sqrt(3.0 / fan)
        self.assertNear(sample.std(), wanted, 5 * wanted / math.sqrt(sample.size))


class OtherInitializersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("none", None, 0.0),
        ("number", 2.5, 2.5),
        ("numpy_number", np.float32(2.5), 2.5),
        ("tensor", tf.constant(2.5), 2.5),
        ("zeros", "zeros", 0.0),
        ("ones", keras.initializers.Ones(), 1.0),
        ("class", keras.initializers.Ones, 1.0),
        ("constant", keras.initializers.Constant(-3.0), -3.0),
        ("config", keras.initializers.serialize(keras.initializers.Constant(-3.0)), -3.0),
    )
    def test_a_constant_fills_every_row(self, initializer, value):
        self.assertAllEqual(rows_of(initializer), np.full([len(KEYS), 4], value))

    @parameterized.parameters("float32", "float16", "bfloat16", "float64", "int8", "int64")
    def test_an_array_is_the_row_of_every_key(self, value_dtype):
        row = np.array([1, -2, 3, 100])
        for array in (row, row.tolist(), row[np.newaxis], tf.constant(row)):
            rows = rows_of(array, value_dtype=value_dtype)
            self.assertAllEqual(rows.astype(np.float64), np.tile(row, [len(KEYS), 1]))

    def test_numbers_are_given_to_the_last_bit(self):
        row = np.array([0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, math.pi, np.inf])
        self.assertAllEqual(rows_of(row, dim=7, value_dtype="float64")[0], row)
        self.assertAllEqual(rows_of(2**53, value_dtype="int64"), np.full([len(KEYS), 4], 2**53))

    @parameterized.named_parameters(
        (
            "shape",
            np.zeros(3),
            {},
            ValueError,
            r"or an array of shape \(4,\). Received: shape=\(3,\)",
        ),
        ("object", object(), {}, TypeError, "a number, an array, a Keras initializer"),
        ("bool", True, {}, TypeError, "Received: initializer=True"),
        ("fraction", 0.5, {"value_dtype": tf.int32}, ValueError, "whole number that int32"),
        ("too_large", 300, {"value_dtype": tf.int8}, ValueError, "Received: 300"),
        ("inexact", 2**53 + 1, {"value_dtype": tf.int64}, ValueError, "both hold exactly"),
        ("nan", math.nan, {"value_dtype": tf.int8}, ValueError, "whole number"),
        (
            "random",
            "uniform",
            {"value_dtype": tf.int8},
            ValueError,
            "or an array, for its value dtype is",
        ),
        ("not_a_number", math.nan, {}, ValueError, "holds, and not NaN. Received: .*nan"),
        ("overflow", 1e39, {}, ValueError, r"numbers that float32 holds.*1e\+39"),
        ("overflow_of_half", [1, 2, 3, 7e4], {"value_dtype": tf.float16}, ValueError, "float16"),
        (
            "upside_down",
            keras.initializers.RandomUniform(2.0, 1.0),
            {},
            ValueError,
            "`maxval` of the `initializer` of .* must be a number that float32 holds and at "
            "least 2. Received: maxval=1.0",
        ),
        (
            "infinite_range",
            keras.initializers.RandomUniform(-1.7e308, 1.7e308),
            {"value_dtype": tf.float64},
            ValueError,
            r"`maxval` - `minval` of the `initializer` .* a finite number. Received: minval=-1.7",
        ),
        (
            "negative_deviation",
            keras.initializers.RandomNormal(0.0, -1.0),
            {},
            ValueError,
            "`stddev` of the `initializer` .* at least 0. Received: stddev=-1.0",
        ),
        (
            "infinite_mean",
            keras.initializers.TruncatedNormal(math.inf),
            {},
            ValueError,
            "`mean` of the `initializer` .* that float32 holds. Received: mean=inf",
        ),
        ("class", dict, {}, TypeError, "must be an object and not a class.*class 'dict'"),
        ("base_class", keras.initializers.Initializer, {}, TypeError, "and not a class"),
        ("name", "no_such", {}, ValueError, "must be one that Keras can make.*'no_such'"),
        ("huge", 10**400, {}, TypeError, "must be a number, an array"),
        (
            "seed_above",
            keras.initializers.RandomNormal(seed=2**63),
            {},
            ValueError,
            f"must fit int64. Received: seed={2**63}",
        ),
        (
            "seed_below",
            keras.initializers.RandomNormal(seed=-(2**63) - 1),
            {},
            ValueError,
            f"must fit int64. Received: seed={-(2**63) - 1}",
        ),
    )
    def test_what_gives_no_rows_is_refused(self, initializer, options, error, message):
        with self.assertRaisesRegex(error, message):
            rows_of(initializer, **options)

    @parameterized.parameters(
        (lambda shape, dtype: 1 // 0, "`initializer` of 'v' raised ZeroDivisionError: .*zero"),
        (lambda shape, dtype: None, r"`initializer\(shape, dtype\)` of 'v' .* None"),
        (lambda shape, dtype: tf.fill(shape, "x"), "must give numbers. Received: dtype=string"),
        (
            lambda shape, dtype: tf.zeros([2, 7]),
            r"must give a row of 3 for each of 2 keys.*shape=\(2, 7\)",
        ),
        (lambda shape, dtype: tf.zeros([1, 3]), r"a row of 3 for each of 2 .*shape=\(1, 3\)"),
    )
    def test_what_a_callable_gives_is_checked(self, draw, message):
        v = tf_embed.Variable(dim=3, initializer=draw, name="v")
        with self.assertRaisesRegex((TypeError, ValueError), message):
            v.lookup([5, 6])

    def test_the_number_of_rows_that_a_callable_gives_is_checked_in_a_graph(self):
        def one_row(shape: Any, dtype: Any) -> tf.Tensor:
            return tf.zeros(tf.stack([shape[0] - shape[0] + 1, shape[1]]), dtype)

        v = tf_embed.Variable(dim=3, initializer=one_row, name="v")
        lookup = tf.function(v.lookup)
        self.assertAllEqual(lookup(tf.constant([5], tf.int64)), [[0, 0, 0]])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "a row for each key"):
            lookup(tf.constant([5, 6], tf.int64))

    def test_a_callable_is_called_for_each_batch_of_new_keys(self):
        shapes = []

        def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
            shapes.append(tuple(int(size) for size in shape))
            return tf.cast(tf.reshape(tf.range(shape[0] * shape[1]), shape), dtype)

        v = tf_embed.Variable(dim=2, initializer=draw)
        v.upsert([5], [[-1.0, -1.0]])
        self.assertAllEqual(v.lookup([7, 5, 7, 8]), [[0, 1], [-1, -1], [0, 1], [2, 3]])
        self.assertEqual(shapes, [(2, 2)])
        self.assertEqual(int(v.size()), 1)

    @parameterized.parameters(
        (None, "SGD", False),
        (None, "Nadam", True),
        (tf_embed.TablePolicy(max_rows=9), "SGD", True),
    )
    def test_no_row_is_drawn_for_present_keys_unless_rows_expire(self, policy, optimizer, graph):
        counts = []

        def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
            tf.py_function(lambda count: counts.append(int(count)), [shape[0]], [])
            return tf.ones(shape, dtype)

        layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum", initializer=draw, policy=policy)
        layer.build()
        v = layer.variable
        keys, rows = tf.constant([[5, 6]], tf.int64), tf.fill([1, 2, 2], 3.0)
        v.upsert(keys, rows)
        wrapped = tf_embed.DynamicEmbeddingOptimizer(getattr(keras.optimizers, optimizer)(1.0))

        def run() -> None:
            v.lookup(keys)
            layer(keys)
            v.table.find_or_insert(keys)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys, training=True))
            wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        (tf.function(run) if graph else run)()
        # Not even called for no rows, as the function may need a row.
        self.assertEqual(counts, [])
        self.assertLess(float(tf.reduce_max(v.lookup(keys))), 3.0)
        self.assertEqual(v.stats()["misses"], 0)

    def test_a_function_may_need_autograph(self):
        def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
            if shape[0] > 1:
                rows = tf.fill(shape, 2.0)
            else:
                rows = tf.fill(shape, 1.0)
            return tf.cast(rows, dtype)

        v = tf_embed.Variable(dim=2, initializer=draw)
        for lookup in (v.lookup, tf.function(v.lookup)):
            self.assertAllEqual(lookup(tf.constant([5, 6], tf.int64)), tf.fill([2, 2], 2.0))
            self.assertAllEqual(lookup(tf.constant([5], tf.int64)), [[1.0, 1.0]])

    def test_keys_count_once_and_rows_are_read_once_whoever_draws_new_ones(self):
        def counts(initializer: Any, folder: str) -> list[dict[str, int]]:
            storage = tf_embed.Storage(host_bytes=64 * 2**10, path=folder)
            found = []
            for options in ({}, {"storage": storage}):
                layer = tf_embed.layers.DynamicEmbedding(
                    2, combiner="sum", initializer=initializer, **options
                )
                layer.build()
                v = layer.variable
                keys = np.arange(20_000).reshape(-1, 4)
                v.upsert(keys, np.ones([*keys.shape, 2], np.float32))
                before = v.stats()
                layer(tf.constant([[5, 6, -7]], tf.int64))
                layer(tf.constant(keys[10:20]))
                after = v.stats()
                names = ("hits", "misses", "disk_rows_read")
                found.append({name: after[name] - before[name] for name in names})
            return found

        python = counts(lambda shape, dtype: tf.ones(shape, dtype), self.get_temp_dir())
        self.assertEqual(python, counts(1.0, self.get_temp_dir()))
        self.assertEqual((python[0]["hits"], python[0]["misses"]), (42, 1))
        self.assertGreater(python[1]["disk_rows_read"], 0)

    @parameterized.parameters("float32", "float16", "bfloat16", "int32")
    def test_drawn_rows_come_with_present_ones_and_pass_gradients_on(self, dtype):
        v = tf_embed.Variable(
            dim=2, value_dtype=dtype, initializer=lambda shape, dtype: 2 * tf.ones(shape, dtype)
        )
        v.upsert([5], [[-1, -1]])
        for lookup in (v.lookup, tf.function(v.lookup)):
            self.assertAllEqual(
                lookup(tf.constant([5, 6, 6], tf.int64)), [[-1, -1], [2, 2], [2, 2]]
            )
        if dtype != "int32":
            with tf.GradientTape() as tape:
                rows = tf_embed.embedding_lookup(v, [5, 6, 6])
            (gradient,) = tape.gradient(rows, v.trainable_variables)
            self.assertAllEqual(gradient.indices, [5, 6, 6])
            self.assertAllEqual(gradient.values, tf.ones([3, 2]))

    def test_a_key_whose_row_leaves_meanwhile_has_a_drawn_row_if_rows_expire(self):
        def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
            v.remove([5])  # as another thread may do after the draw has begun
            return tf.ones(shape, dtype)

        options = {"initializer": draw, "policy": tf_embed.TablePolicy(ttl_seconds=1000)}
        v = tf_embed.Variable(dim=2, **options)
        layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum", **options)
        v.upsert([5], [[-1.0, -1.0]])
        self.assertAllEqual(v.lookup([5, 6]), [[-1.0, -1.0], [1.0, 1.0]])
        v.upsert([5], [[-1.0, -1.0]])
        rows, _ = v.table.find_or_insert(tf.constant([5, 6], tf.int64))
        self.assertAllEqual(rows, [[1.0, 1.0]] * 2)
        layer.build()
        v = layer.variable
        v.upsert([5], [[-1.0, -1.0]])
        self.assertAllEqual(layer(tf.constant([[5, 6]])), [[2.0, 2.0]])

    @parameterized.parameters("SGD", "Nadam")
    def test_a_key_whose_row_has_expired_has_a_drawn_row(self, optimizer):
        after = {}
        policy = tf_embed.TablePolicy(ttl_seconds=1)
        for initializer in (1.0, lambda shape, dtype: tf.ones(shape, dtype)):
            v = tf_embed.Variable(dim=2, initializer=initializer, policy=policy)
            wrapped = tf_embed.DynamicEmbeddingOptimizer(getattr(keras.optimizers, optimizer)(0.25))
            for time_ms in (0, 5000):
                v.set_clock(time_ms=time_ms)
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(v, [1], training=True)
                    loss = tf.reduce_sum(rows)
                self.assertAllEqual(rows, [[1.0, 1.0]])
                wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            self.assertEqual(v.stats()["expired"], 1)
            after[callable(initializer)] = v.lookup([1])
        self.assertAllEqual(after[True], after[False])

    @parameterized.parameters(lambda shape: 0, lambda: 0, lambda shape, kind: 0)
    def test_a_callable_that_takes_no_shape_and_dtype_is_refused(self, initializer):
        with self.assertRaisesRegex(
            TypeError, "`initializer` of 'v' must be callable with a shape and `dtype`"
        ):
            tf_embed.Variable(dim=2, name="v", initializer=initializer)

    def test_a_callable_runs_in_a_function_and_in_training(self):
        @tf.function
        def lookup(keys: tf.Tensor) -> tf.Tensor:
            return v.lookup(keys)

        @tf.function
        def train(keys: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys))
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        v = tf_embed.Variable(
            dim=2, initializer=lambda shape, dtype: tf.fill(shape, tf.constant(3, dtype))
        )
        keys = tf.constant([1, 2, 1], tf.int64)
        self.assertAllEqual(lookup(keys), tf.fill([3, 2], 3.0))
        train(keys)
        self.assertAllEqual(lookup(keys), [[2, 2], [2.5, 2.5], [2, 2]])

    @parameterized.parameters(
        (tf.zeros_initializer, {}, "zeros"),
        (tf.compat.v1.ones_initializer, {}, "ones"),
        (tf.constant_initializer, {"value": 0.5}, keras.initializers.Constant(0.5)),
        (tf.compat.v1.constant_initializer, {"value": 0.5}, keras.initializers.Constant(0.5)),
        (tf.random_uniform_initializer, {"seed": 3}, keras.initializers.RandomUniform(seed=3)),
        (
            tf.compat.v1.random_uniform_initializer,
            {"seed": 3},
            keras.initializers.RandomUniform(0.0, 1.0, seed=3),
        ),
        (tf.random_normal_initializer, {"seed": 3}, keras.initializers.RandomNormal(seed=3)),
        (
            tf.compat.v1.truncated_normal_initializer,
            {"stddev": 0.5, "seed": 3},
            keras.initializers.TruncatedNormal(0.0, 0.5, seed=3),
        ),
    )
    def test_an_initializer_of_tensorflow_is_that_of_keras(self, make, options, same):
        self.assertAllEqual(rows_of(make(**options)), rows_of(same))
        v = tf_embed.Variable(dim=2, initializer=make(**options))
        keys = tf.constant([1, 2], tf.int64)
        self.assertAllEqual(tf.function(v.lookup)(keys), v.lookup(keys))

    @parameterized.parameters(-(2**63), 2**63 - 1)
    def test_a_seed_may_be_any_int64(self, seed):
        initializer = with_own_seed(keras.initializers.RandomNormal(seed=seed))
        self.assertEqual(initializer.seed, seed)
        self.assertGreater(rows_of(initializer).std(), 0.0)

    @parameterized.parameters(5, 2**31 + 7)
    def test_a_seed_is_that_of_keras_generator_in_64_bits(self, seed):
        made = [keras.random.SeedGenerator(seed) for _ in range(2)]
        for _ in range(3):
            high, low = (int(half) for half in np.asarray(made[0].next()))
            drawn = with_own_seed(keras.initializers.RandomNormal(seed=made[1])).seed
            self.assertEqual(drawn, (high % 2**31) * 2**32 + low % 2**32)
        self.assertGreater(low, 0)

    def test_the_global_seed_of_tensorflow_is_the_high_half_of_a_seed(self):
        tf.random.set_seed(3)
        seed = with_own_seed(tf.random_normal_initializer()).seed
        self.assertEqual(seed >> 32, 3)

    def test_an_initializer_of_tensorflow_takes_a_seed_of_numpy(self):
        seeds = (3, np.int64(3), np.array(3))
        rows = [rows_of(tf.random_normal_initializer(seed=seed)) for seed in seeds]
        self.assertAllEqual(rows[1:], rows[:1] * 2)

    @parameterized.parameters(1, np.int64(1), np.int32(1))
    def test_an_unseeded_initializer_of_tensorflow_follows_its_global_seed(self, seed):
        def seeds(seed: Any) -> list[int]:
            tf.random.set_seed(seed)
            found = [with_own_seed(tf.random_normal_initializer()).seed for _ in range(2)]

            @tf.function
            def traced() -> None:
                found.append(with_own_seed(tf.random_normal_initializer()).seed)

            traced()
            return found

        first = seeds(seed)
        self.assertEqual(seeds(1), first)
        self.assertLen(set(first), 3)
        tf.random.set_seed(seed)
        fixed = keras.initializers.RandomNormal(seed=first[0])
        self.assertAllEqual(rows_of(tf.random_normal_initializer()), rows_of(fixed))

    def test_without_a_global_seed_tensorflows_unseeded_initializers_differ(self):
        program = (
            "import tensorflow as tf; from tf_embed.table.initializers import with_own_seed; "
            "print(*(with_own_seed(tf.random_normal_initializer()).seed for _ in range(2)))"
        )
        # In another process, because TestCase sets the seed.
        ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
        self.assertLen(set(ran.stdout.split()), 2)

    def test_uniform_integers_of_tensorflow_are_drawn_by_it(self):
        uniform = tf.random_uniform_initializer(0, 10)
        rows = rows_of(uniform, value_dtype="int32")
        self.assertTrue(np.all((rows >= 0) & (rows < 10)))

    def test_a_keras_initializer_that_is_no_function_of_the_key_is_called(self):
        v = tf_embed.Variable(dim=8, initializer=keras.initializers.Orthogonal(seed=1))
        rows = v.lookup([1, 2, 3]).numpy()
        self.assertAllClose(rows @ rows.T, np.eye(3), atol=1e-5)

        class Mine(keras.initializers.RandomUniform):
            def __call__(self, shape: Any, dtype: Any = None) -> Any:
                return tf.fill(shape, 4.0)

        self.assertAllEqual(rows_of(Mine()), np.full([len(KEYS), 4], 4.0))


def _narrowed(rows: list[np.ndarray], dtype: str) -> np.ndarray:
    """Rows in a dtype. As in a table, half precision is rounded from float32."""
    rows = np.array(rows)
    return (
        rows
        if dtype == "float64"
        else rows.astype(np.float32).astype(tf.as_dtype(dtype).as_numpy_dtype)
    )


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Rows of float16 and bfloat16: stored narrow, summed and trained in float32.

The oracle of a step is a Keras optimizer on float32 variables that are rounded after each step. A
table's rows should equal these, bit for bit. The exception is a float32 so near the middle between
two narrow numbers that its last bits decide the rounding. These bits depend on the order of sums.
They are about 2^-22 of a number, against 2^-11 between the middles of float16. So in each step a
number in a thousand differs, by one unit in the last place. A step that ends with a pass over all
rows writes them again, and so rounds twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.control_flow_cases import PLACES
from support.cases.optimizer_cases import KINDS
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

NARROW = ("float16", "bfloat16")
DIGITS = {"float16": 11, "bfloat16": 8}  # bits of the significand
ROWS, DIM, STEPS = 16, 4, 20
REFUSED = ("MultiOptimizer", "Muon, embeddings too")  # refused for every dtype
OPTIONS: dict[str, dict[str, Any]] = {
    "clipnorm": {"clipnorm": 1.0},
    "global_clipnorm": {"global_clipnorm": 1.0},
    "weight_decay": {"weight_decay": 0.1},
    "use_ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 4},
}


def numpy_type(dtype: str) -> Any:
    return tf.as_dtype(dtype).as_numpy_dtype


def batch(rng: np.random.Generator, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A batch with each row at least once, and gradients."""
    ids = np.concatenate([rng.permutation(ROWS), rng.integers(0, ROWS, 3 * ROWS)])
    return ids, rng.normal(size=(len(ids), DIM)).astype(numpy_type(dtype))


def after_rounding(pass_over: Callable[[Any], Any], dtype: str) -> Callable[[Any], Any]:
    """A pass over all rows that gets them rounded, as the step has written them."""

    def pass_over_rounded(rows: Any) -> Any:
        weights = rows.weights.numpy().astype(numpy_type(dtype)).astype(np.float32)
        return pass_over(dataclasses.replace(rows, weights=tf.constant(weights)))

    return pass_over_rounded


class RulesTest(tf.test.TestCase, parameterized.TestCase):
    def check(self, make: Callable[[], Any], dtype: str) -> None:
        rng = np.random.default_rng(SEED)
        start = rng.normal(size=(ROWS, DIM)).astype(numpy_type(dtype))
        table = tf_embed.Variable(dim=DIM, value_dtype=dtype)
        table.upsert(range(ROWS), start)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
        optimizer.build(table.trainable_variables)
        dense = keras.Variable(start.astype(np.float32), name="embeddings")
        oracle = make()
        oracle.build([dense])
        if getattr(oracle, "changes_all_rows", False):
            oracle.pass_over = after_rounding(oracle.pass_over, dtype)
        for _ in range(STEPS):
            ids, gradients = batch(rng, dtype)
            slices = tf.IndexedSlices(tf.constant(gradients), tf.constant(ids))
            optimizer.apply([slices], table.trainable_variables)
            sums = np.zeros([ROWS, DIM], np.float32)
            np.add.at(sums, ids, gradients.astype(np.float32))
            oracle.apply([tf.constant(sums)], [dense])
            dense.assign(dense.numpy().astype(numpy_type(dtype)).astype(np.float32))
        rows = table.lookup(range(ROWS)).numpy().astype(np.float32)
        wanted = dense.numpy()
        unit = 2.0 ** (np.floor(np.log2(np.abs(wanted) + 1e-30)) + 1 - DIGITS[dtype])
        self.assertGreaterEqual(np.mean(rows == wanted), 0.95)
        self.assertLessEqual((np.abs(rows - wanted) / unit).max(), 2.0)
        self.assertGreater(np.abs(wanted - start.astype(np.float32)).max(), 0.01)

    @parameterized.product(kind=[kind for kind in KINDS if kind not in REFUSED], dtype=NARROW)
    def test_twenty_steps_are_those_of_float32_rounded_after_each(self, kind, dtype):
        self.check(KINDS[kind], dtype)

    @parameterized.product(
        option=tuple(OPTIONS), kind=("SGD, momentum", "Adam", "Nadam"), dtype=NARROW
    )
    def test_options_compute_in_float32(self, option, kind, dtype):
        self.check(lambda: KINDS[kind](**OPTIONS[option]), dtype)

    @parameterized.parameters(*NARROW)
    @pytest.mark.smoke
    def test_adam_on_the_oldest_tensorflow(self, dtype):
        self.check(KINDS["Adam"], dtype)


# 1, and 2^-12 1,024 times. The sum is 1.25. In both narrow dtypes 1 + 2^-12 is 1, so it stays 1.
ONE_AND_MANY = np.array([1.0] + [2.0**-12] * 1024)
IDS = np.full([1025], 7)


class Descent(keras.optimizers.Optimizer):
    """A user's optimizer, without a fused rule."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * gradient)


SUMMERS: dict[str, Callable[[], Any]] = {
    "fused": lambda: keras.optimizers.SGD(1.0),
    "on_gathered_rows": lambda: Descent(1.0),
    "clipped": lambda: keras.optimizers.SGD(1.0, clipnorm=100.0),
    "accumulated": lambda: keras.optimizers.SGD(2.0, gradient_accumulation_steps=2),
    "averaged": lambda: keras.optimizers.SGD(1.0, use_ema=True),
}


def in_two_lookups(embed: Any, ids: Any) -> Any:
    return tf.concat([embed(ids[:400]), embed(ids[400:])], 0)


LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": PLACES["plain"],
    "two_lookups": in_two_lookups,
    "map_fn": lambda embed, ids: tf.reshape(
        tf.map_fn(embed, tf.reshape(ids, [41, 25]), fn_output_signature=embed.compute_dtype),
        [1025, 1],
    ),
    "cond": lambda embed, ids: tf.cond(ids[0] == 7, lambda: embed(ids), lambda: embed(ids[:1])),
}


class SumsTest(tf.test.TestCase, parameterized.TestCase):
    def trained(self, embed: Any, optimizer: Any, place: Any, steps: int = 1) -> np.ndarray:
        """The row of key 7 after steps from 0 with the gradients ONE_AND_MANY."""

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                rows = place(embed, tf.constant(IDS))
                loss = tf.reduce_sum(rows * tf.cast(ONE_AND_MANY[:, np.newaxis], rows.dtype))
            variables = embed.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        optimizer.build(embed.trainable_variables)
        for _ in range(steps):
            step()
        return embed.variable.lookup([7]).numpy()

    def test_narrow_sums_would_be_seen(self):
        for dtype in NARROW:
            total = numpy_type(dtype)(0)
            for gradient in ONE_AND_MANY.astype(numpy_type(dtype)):
                total = numpy_type(dtype)(total + gradient)
            self.assertEqual(float(total), 1.0)

    @parameterized.product(summer=tuple(SUMMERS), dtype=NARROW)
    def test_gradients_of_equal_ids_are_summed_in_float32(self, summer, dtype):
        layer = DynamicEmbedding(1, value_dtype=dtype, dtype=dtype, initializer="zeros")
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(SUMMERS[summer]())
        steps = 2 if summer == "accumulated" else 1
        row = self.trained(layer, optimizer, LOOKUPS["plain"], steps)
        self.assertAllEqual(row, [[-1.25 if summer != "accumulated" else -2.5]])

    @parameterized.product(
        place=tuple(LOOKUPS),
        dtypes=(("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "mixed_bfloat16")),
    )
    def test_wherever_the_lookup_stands(self, place, dtypes):
        value_dtype, policy = dtypes
        layer = DynamicEmbedding(1, value_dtype=value_dtype, dtype=policy, initializer="zeros")
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        self.assertAllEqual(self.trained(layer, optimizer, LOOKUPS[place]), [[-1.25]])

    @parameterized.parameters(*NARROW)
    def test_a_table_of_its_own_optimizer_sums_in_float32(self, dtype):
        own = keras.optimizers.SGD(1.0)
        layer = DynamicEmbedding(
            1, value_dtype=dtype, dtype=dtype, initializer="zeros", optimizer=own
        )
        layer.build()
        row = self.trained(layer, keras.optimizers.Adam(), LOOKUPS["plain"])
        self.assertAllEqual(row, [[-1.25]])

    def test_a_sum_that_float16_can_not_hold(self):
        table = tf_embed.Variable(dim=1, value_dtype="float16")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(2.0**-10))
        gradient = tf.IndexedSlices(tf.fill([4096, 1], tf.constant(64.0, tf.float16)), [7] * 4096)
        optimizer.apply([gradient], table.trainable_variables)
        # The sum of the gradients is 262,144; float16 ends at 65,504.
        self.assertAllEqual(table.lookup([7]), [[-256.0]])

    def test_4096_equal_ids(self):
        table = tf_embed.Variable(dim=1, value_dtype="float16")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        gradients = np.full([4096, 1], 1e-3, np.float16)  # their sum: 4.0980; in float16: 4
        optimizer.apply([tf.IndexedSlices(gradients, [7] * 4096)], table.trainable_variables)
        wanted = -gradients.astype(np.float32).sum()
        self.assertAllEqual(table.lookup([7]), [[np.float16(wanted)]])
        self.assertLess(wanted, -4.09)


class StochasticRoundingTest(tf.test.TestCase, parameterized.TestCase):
    KEYS, WIDTH = 500, 16

    def trained(
        self, dtype: str, steps: int, gradient: float, *, stochastic: bool, **kwargs: Any
    ) -> np.ndarray:
        """Rows of ones after steps of SGD with this gradient and a learning rate of 1."""
        table = tf_embed.Variable(
            dim=self.WIDTH, value_dtype=dtype, initializer="ones", name="rows", **kwargs
        )
        keys = tf.range(self.KEYS, dtype=tf.int64)
        gradients = tf.fill([self.KEYS, self.WIDTH], tf.constant(gradient, tf.float32))

        @tf.function
        def train() -> None:
            for step in tf.range(1, steps + 1, dtype=tf.int64):
                table.table.apply(
                    keys,
                    gradients,
                    rule="sgd",
                    hyper=tf.constant([1.0, 0.0], tf.float64),
                    step=step,
                    stochastic_rounding=stochastic,
                )

        train()
        return table.lookup(keys).numpy().astype(np.float64)

    @parameterized.product(dtype=NARROW, part=(0.001, 0.1))
    def test_small_steps_move_the_mean_as_in_float32(self, dtype, part):
        place, steps = 2.0 ** (1 - DIGITS[dtype]), 200
        narrow = self.trained(dtype, steps, -part * place, stochastic=True)
        wide = self.trained("float32", steps, -part * place, stochastic=True)
        # Each step adds `place` with the probability `part`, except for float32's rounding.
        sigma = place * np.sqrt(steps * part / narrow.size)
        self.assertNear(narrow.mean(), wide.mean(), 5 * sigma + steps * 2.0**-24)
        self.assertGreater(narrow.mean(), 1 + 0.9 * steps * part * place)
        nearest = self.trained(dtype, steps, -part * place, stochastic=False)
        self.assertAllEqual(nearest, np.ones_like(nearest))

    @parameterized.parameters(*NARROW)
    def test_is_the_same_for_any_number_of_shards(self, dtype):
        arguments = {"steps": 5, "gradient": 1e-3, "stochastic": True}
        one = self.trained(dtype, **arguments)
        self.assertGreater(len(np.unique(one)), 1)
        self.assertAllEqual(one, self.trained(dtype, **arguments, devices=["CPU:0"] * 3))

    def test_changes_nothing_in_float32(self):
        rows = self.trained("float32", 3, 1e-3, stochastic=True)
        self.assertAllEqual(rows, self.trained("float32", 3, 1e-3, stochastic=False))


class PoliciesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        policy=("float16", "bfloat16", "mixed_bfloat16", "mixed_float16"),
        value_dtype=(*NARROW, "float32"),
        combiner=(None, "sum", "mean"),
    )
    def test_a_layer_gives_the_compute_dtype_and_trains_its_rows(
        self, policy, value_dtype, combiner
    ):
        compute = policy.removeprefix("mixed_")
        layer = DynamicEmbedding(
            DIM, value_dtype=value_dtype, dtype=policy, initializer="ones", combiner=combiner
        )
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        with tf.GradientTape() as tape:
            rows = layer(tf.constant([[3, 4], [3, 3]]))
            self.assertEqual(rows.dtype, compute)
            loss = tf.reduce_sum(tf.cast(rows, tf.float32))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        trained = layer.variable.lookup([3, 4])
        self.assertEqual(trained.dtype, value_dtype)
        counts = np.array([1.5, 0.5] if combiner == "mean" else [3.0, 1.0])
        self.assertAllEqual(trained, np.repeat((1.0 - 0.5 * counts)[:, np.newaxis], DIM, 1))

    @parameterized.parameters("bfloat16", "mixed_bfloat16")
    def test_a_model_of_such_a_policy_learns(self, policy):
        keras.config.set_dtype_policy(policy)
        rng = np.random.default_rng(SEED)
        ids = rng.integers(-(2**63), 2**63 - 1, (64, 2))
        labels = rng.integers(0, 2, 64).astype(np.float32)
        model = keras.Sequential(
            [
                keras.Input([2], dtype="int64"),
                DynamicEmbedding(8, value_dtype="bfloat16"),
                keras.layers.Flatten(),
                keras.layers.Dense(1, "sigmoid", dtype="float32"),
            ]
        )
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.05))
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
        model.fit(ids, labels, epochs=25, verbose=0)
        self.assertEqual(model.evaluate(ids, labels, verbose=0)[1], 1.0)
        self.assertEqual(int(model.layers[0].variable.size()), 128)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The fused rules against Keras's optimizers on a dense variable of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.raw_tables import NO_LISTS, RAW, RawTable
from support.oracles.reference import SEED
from tf_embed import _library
from tf_embed.optimizers import rules

STEPS, ROWS, DIM = 20, 6, 5


def rmsprop(**options: Any) -> tuple[str, Callable, list[float]]:
    """The op's rule, Keras's optimizer as a function of the rate, the other hyper-parameters."""
    given = {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "weight_decay": 0.0, **options}
    rule = "rmsprop" + "_centered" * given.get("centered", False)
    rule += "_momentum" * bool(given["momentum"])
    hyper = [given[name] for name in ("weight_decay", "rho", "momentum", "epsilon")]
    return rule, lambda rate: keras.optimizers.RMSprop(rate, **options), hyper


def ftrl(**options: Any) -> tuple[str, Callable, list[float]]:
    """As `rmsprop`."""
    defaults = {
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.1,
        "learning_rate_power": -0.5,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "l2_shrinkage_regularization_strength": 0.0,
        "beta": 0.0,
    }
    hyper = [*{**defaults, **options}.values(), 0.0]  # no decay of the gradient
    return "ftrl", lambda rate: keras.optimizers.Ftrl(rate, **options), hyper


CASES = {
    "rmsprop": rmsprop(),
    "rmsprop_options": rmsprop(rho=0.7, epsilon=1e-3, weight_decay=0.1),
    "rmsprop_momentum": rmsprop(momentum=0.9),
    "rmsprop_centered": rmsprop(centered=True),
    "rmsprop_centered_momentum": rmsprop(centered=True, momentum=0.5, weight_decay=0.02),
    "ftrl": ftrl(),
    "ftrl_initial_zero": ftrl(initial_accumulator_value=0.0),
    "ftrl_decay": ftrl(weight_decay=0.1, initial_accumulator_value=0.3),
    "ftrl_l1": ftrl(l1_regularization_strength=2.0),
    "ftrl_l2": ftrl(l2_regularization_strength=0.5),
    "ftrl_shrinkage": ftrl(l2_shrinkage_regularization_strength=0.25),
    "ftrl_beta": ftrl(beta=1.0),
    "ftrl_power": ftrl(learning_rate_power=-0.3),
    "ftrl_fixed_rate": ftrl(learning_rate_power=0.0),
    "ftrl_all": ftrl(
        weight_decay=0.01,
        learning_rate_power=-0.7,
        l1_regularization_strength=0.1,
        l2_regularization_strength=0.2,
        l2_shrinkage_regularization_strength=0.3,
        beta=0.5,
    ),
    "sgd": ("sgd", lambda rate: keras.optimizers.SGD(rate, weight_decay=0.1), [0.1]),
    "momentum": (
        "momentum",
        lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        [0.0, 0.9, 1.0],
    ),
    "adagrad": ("adagrad", keras.optimizers.Adagrad, [0.0, 0.1, 1e-7]),
    "adam": ("adam", keras.optimizers.Adam, [0.0, 0.9, 0.999, 1e-7]),
    "adam_amsgrad": (
        "adam_amsgrad",
        lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1, amsgrad=True),
        [0.1, 0.9, 0.999, 1e-7],
    ),
}


def trained_by_keras(
    optimizer: Any, rows: np.ndarray, gradients: list[np.ndarray], dtype: str = "float32"
) -> np.ndarray:
    variable = keras.Variable(rows, dtype=dtype)
    optimizer.build([variable])
    for gradient in gradients:
        optimizer.apply([tf.constant(gradient, dtype)], [variable])
    return variable.numpy()


def trained_by_the_table(
    case: str,
    rate: float,
    rows: np.ndarray,
    gradients: list[np.ndarray],
    value_dtype: str = "float32",
) -> RawTable:
    rule, _, hyper = CASES[case]
    table = RawTable(rows.shape[1], value_dtype=value_dtype, num_shards=2)
    keys = np.arange(len(rows))
    table.assign(keys, rows)
    for step, gradient in enumerate(gradients, 1):
        table.apply(keys, gradient, rule, [rate, *hyper], step)
    return table


def wide(name: str) -> rules.RuleSlot:
    return rules.RuleSlot(name, True, 0.0)


class FusedRulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(case=tuple(CASES), value_dtype=("float32", "float64"))
    @pytest.mark.smoke
    def test_twenty_steps_are_those_of_keras(self, case, value_dtype):
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(ROWS, DIM)).astype(value_dtype)
        gradients = [rng.normal(size=(ROWS, DIM)).astype(value_dtype) for _ in range(STEPS)]
        gradients[3][2] = 0.0
        expected = trained_by_keras(CASES[case][1](0.05), rows, gradients, value_dtype)
        table = trained_by_the_table(case, 0.05, rows, gradients, value_dtype)
        self.assertAllClose(table.find(np.arange(ROWS))[0], expected, rtol=2e-5, atol=2e-6)

    @parameterized.parameters(*(case for case in CASES if case.startswith(("ftrl", "rmsprop"))))
    def test_a_rate_of_zero_and_extreme_gradients_give_numbers_where_keras_does(self, case):
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(4, DIM)).astype(np.float32)
        scales = np.array([[0.0], [1e-20], [1.0], [1e10]])
        gradients = [(rng.normal(size=(4, DIM)) * scales).astype(np.float32) for _ in range(3)]
        for rate in (0.0, 1e-30, 0.1):
            expected = trained_by_keras(CASES[case][1](rate), rows, gradients)
            found = trained_by_the_table(case, rate, rows, gradients).find(np.arange(4))[0].numpy()
            missing = np.isnan(found) & ~np.isnan(expected)
            self.assertFalse(missing.any(), f"rate {rate}: {found} where Keras has {expected}")
            both = ~np.isnan(found) & ~np.isnan(expected)
            self.assertAllClose(found[both], expected[both], rtol=2e-5, atol=2e-6)

    @parameterized.product(case=("rmsprop_momentum", "ftrl"), value_dtype=("float16", "bfloat16"))
    def test_narrow_rows_are_as_near_to_keras_as_their_rounding(self, case, value_dtype):
        # A row is rounded to 11 or 8 bits at each step. Gradients of 8 bits are exact in any dtype.
        rng = np.random.default_rng(SEED)
        rows = rng.normal(size=(ROWS, DIM)).astype(np.float32)
        rows = tf.cast(tf.cast(rows, value_dtype), tf.float32).numpy()
        gradients = [
            (rng.integers(-128, 128, (ROWS, DIM)) / 64).astype(np.float32) for _ in range(STEPS)
        ]
        expected = trained_by_keras(CASES[case][1](0.05), rows, gradients)
        table = trained_by_the_table(case, 0.05, rows, gradients, value_dtype)
        found = tf.cast(table.find(np.arange(ROWS))[0], tf.float32)
        tolerance = STEPS * (2.0**-11 if value_dtype == "float16" else 2.0**-8)
        self.assertAllClose(found, expected, rtol=tolerance, atol=tolerance)


class RuleNamesTest(tf.test.TestCase, parameterized.TestCase):
    def optimizer_of(self, rule: rules.FusedRule) -> Any:
        """An optimizer of a new class, registered with a rule."""

        class Registered(keras.optimizers.SGD):
            pass

        rules.register(Registered, lambda _: rule)
        return Registered(0.5)

    def test_the_library_says_what_a_rule_has(self):
        known = _library.vocabulary()["rules"]
        self.assertEqual(known["sgd"], {"number": 1, "hyper": [], "wide_slots": 0, "row_slots": 0})
        adam = {"hyper": ["beta_1", "beta_2", "epsilon"], "wide_slots": 2, "row_slots": 0}
        self.assertEqual(known["adam"], {"number": 5, **adam})
        self.assertEqual(known["ensemble_rowwise_adagrad"]["wide_slots"], 1)
        self.assertEqual(known["ensemble_rowwise_adagrad"]["row_slots"], 1)
        self.assertNotIn("external", known)

    def test_the_documentation_names_each_optimizer_with_a_rule(self):
        doc = tf_embed.DynamicEmbeddingOptimizer.__doc__.partition("run in the table")[0]
        named = rules.optimizers_with_rules()
        self.assertContainsSubset(
            {*named["keras.optimizers"], *named["tf_embed.optimizers"]},
            doc.replace(",", "").split(),
        )

    def test_numbers_go_to_the_place_of_their_name(self):
        numbers = {"epsilon": 0.25, "beta_2": 0.75, "beta_1": 0.5}
        slots = (wide("m"), wide("v"))
        optimizer = self.optimizer_of(rules.FusedRule("adam", slots, lambda *_: numbers))
        hyper, _ = rules.rule_inputs(optimizer, weight_decay=True, is_own=True)
        self.assertAllEqual(hyper, [0.5, 0.0, 0.5, 0.75, 0.25])

    def test_an_unknown_rule_is_refused_by_name(self):
        optimizer = self.optimizer_of(rules.FusedRule("adamm"))
        with self.assertRaisesRegex(
            ValueError, "The rule of Registered must be one of sgd, .*Received: 'adamm'"
        ):
            rules.fused_rule(optimizer)

    @parameterized.parameters(
        ((),),
        ((wide("m"),),),
        ((wide("m"), rules.RuleSlot("v", False, 0.0)),),
        ((wide("m"), wide("v"), wide("v_hat")),),
    )
    def test_other_slots_than_the_rules_are_refused(self, slots):
        optimizer = self.optimizer_of(rules.FusedRule("adam", slots))
        with self.assertRaisesRegex(ValueError, "'adam' must be 2 wide ones, then 0 of a row"):
            rules.fused_slots(optimizer, DIM)

    @parameterized.parameters(
        ({"momentum": 0.9},),
        ({"momentum": 0.9, "nesterov": 0.0, "decay": 0.0},),
        ({"momentum": 0.9, "nesterow": 0.0},),
    )
    def test_other_numbers_than_the_rules_are_refused(self, numbers):
        rule = rules.FusedRule("momentum", (wide("m"),), lambda *_: numbers)
        optimizer = self.optimizer_of(rule)
        with self.assertRaisesRegex(
            ValueError, "hyper-parameters of the rule 'momentum' must be momentum, nesterov"
        ):
            rules.rule_inputs(optimizer, weight_decay=False, is_own=True)


class GradientDtypeTest(tf.test.TestCase, parameterized.TestCase):
    def apply(self, table: RawTable, keys: Any, gradients: tf.Tensor) -> None:
        RAW.tf_embed_apply(
            **table.inputs(keys),
            gradients=gradients,
            hyper=tf.constant([1.0, 0.0], tf.float64),
            step=tf.constant(1, tf.int64),
            **NO_LISTS,
            dim=table.dim,
            rule="sgd",
        )

    @parameterized.parameters("float16", "bfloat16")
    def test_narrow_tables_take_float32_gradients_unrounded(self, value_dtype):
        table = RawTable(1, value_dtype=value_dtype)
        # Gradients that are too large for float16, or too close for both dtypes. Their sum fits.
        self.apply(table, [1, 1, 1], tf.constant([[1e5], [-1e5], [2.0**-10]]))
        self.apply(table, [2, 2], tf.constant([[1.0 + 2.0**-12], [-1.0]]))
        values = tf.cast(table.find([1, 2])[0], tf.float32)
        self.assertAllEqual(values, [[-(2.0**-10)], [-(2.0**-12)]])

    @parameterized.parameters("float16", "bfloat16", "float32", "float64")
    def test_gradients_of_the_value_dtype_are_taken(self, value_dtype):
        table = RawTable(1, value_dtype=value_dtype)
        self.apply(table, [1], tf.constant([[2.0]], value_dtype))
        self.assertAllEqual(tf.cast(table.find([1])[0], tf.float32), [[-2.0]])

    @parameterized.parameters(
        ("float32", "float64"),
        ("float32", "float16"),
        ("float64", "float32"),
        ("float16", "bfloat16"),
        ("bfloat16", "float64"),
    )
    def test_gradients_of_another_dtype_are_refused_by_name(self, value_dtype, dtype):
        table = RawTable(1, value_dtype=value_dtype)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "gradients of table 'raw' must be of the type of its"
        ):
            self.apply(table, [1], tf.constant([[2.0]], dtype))
        self.assertEqual(table.size(), 0)

    def test_integer_tables_can_not_be_trained(self):
        table = RawTable(1, value_dtype="int32")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "'raw' has integer or bool weights"
        ):
            self.apply(table, [1], tf.constant([[2.0]]))


if __name__ == "__main__":
    tf.test.main()

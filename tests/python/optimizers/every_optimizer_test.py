# SPDX-License-Identifier: Apache-2.0
"""Every optimizer and option on tables, against Keras on dense variables of the touched rows.

tests/tables/optimizers.py has the whole matrix. These tests have every optimizer, every option, and
the pairs that run different code.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases import optimizer_cases as cases
from support.cases.optimizer_cases import CLOSE, KINDS, OPTIONS, TrainedTables
from support.oracles import optimizer_oracle as oracle
from support.oracles.optimizer_oracle import LazyOracle, Step

# The refused cases, by (way, optimizer, option). "" matches any, and the first match counts.
REFUSED = {
    ("", "MultiOptimizer", ""): "can't be trained by MultiOptimizer",
    ("", "Muon, embeddings too", ""): "can't be trained by .*Muon",
    ("", "tbe.EmaInplaceRowwiseAdagrad", ""): "needs rows of an even number of weights",
    ("", "", "LossScaleOptimizer outside"): "must not be in a LossScaleOptimizer",
    ("own", "", "LossScaleOptimizer"): "LossScaleOptimizer",
    ("own", "", "loss_scale_factor"): "`loss_scale_factor`",
    ("own", "", "EMA"): "`use_ema`",
    ("own", "", "EMA, overwriting"): "`use_ema`",
    ("own", "", "global_clipnorm, decay, scale, EMA"): "`use_ema`",
    ("own", "", "clipnorm, decay, scale, accumulation"): "`loss_scale_factor`",
    ("outer plain", "", "LossScaleOptimizer"): "LossScaleOptimizer",
    ("outer plain", "", "loss_scale_factor"): "loss_scale_factor.*'users'",
    ("outer plain", "", "EMA"): "use_ema.*'users'",
    ("outer plain", "", "EMA, overwriting"): "use_ema.*'users'",
    ("outer plain", "", "accumulation"): "gradient_accumulation_steps.*'users'",
    ("outer plain", "", "EMA, accumulation"): "gradient_accumulation_steps.*'users'",
    ("outer plain", "", "global_clipnorm, accumulation"): "gradient_accumulation_steps.*'users'",
    ("outer plain", "", "global_clipnorm, decay, scale, EMA"): "loss_scale_factor.*'users'",
    ("outer plain", "", "clipnorm, decay, scale, accumulation"): "loss_scale_factor.*'users'",
    ("", "", "EMA, accumulation"): "`gradient_accumulation_steps` and `use_ema`",
    ("", "", "global_clipnorm, accumulation"): "_accumulation_steps` and `global_clipnorm`",
}
# Optimizers that differ as a table's own optimizer from the wrapper.
OWN = [
    *("SGD", "Adam, amsgrad", "Ftrl", "Adafactor", "Nadam", "Muon", "ScheduleFreeAdamW"),
    *("MultiOptimizer", "a subclass of Adam", "a subclass of Optimizer"),
    *("SmartDecayAdam", "one_embedding.Ftrl"),
]
# An optimizer with a fused rule, and an optimizer that runs on gathered rows.
SORTS = ("Adam", "Lamb")
# Other optimizers that run different code.
MANY = ("SGD, nesterov", "RMSprop, centered, momentum", "Adafactor", "Nadam")
LAZY_STEPS = 5
LAZY = (
    *("SGD, nesterov", "RMSprop, centered, momentum", "AdamW", "Ftrl, l1, l2, shrinkage, beta"),
    *("Adadelta", "Adamax", "Adafactor", "Nadam", "Lion", "Muon", "ScheduleFreeAdamW, warmup"),
    *("RowwiseAdagrad", "SmartDecayAdam", "one_embedding.Ftrl", "a subclass of Optimizer"),
)
INSIDE = tuple(name for name, option in OPTIONS.items() if option.wraps != "outside")
LAZY_OPTIONS = {
    "plain": {},
    "clipped": {"clipnorm": 2.0, "weight_decay": 0.3},
    "clipped together": {"global_clipnorm": 2.0},
    "averaged": {"use_ema": True, "ema_momentum": 0.8},
}


def refusal_of(way: str, kind: str, option: str) -> str | None:
    """The pattern of the error if the case must be refused, or None."""
    for pattern, sentence in REFUSED.items():
        if all(part in ("", own) for part, own in zip(pattern, (way, kind, option), strict=True)):
            return sentence
    return None


def _without_rows(step: Step, *tables: int) -> Step:
    """A step that does not touch these tables."""
    rows, gradients = list(step.rows), list(step.gradients)
    for table in tables:
        rows[table], gradients[table] = rows[table][:0], gradients[table][:0]
    return Step(rows, gradients, step.dense)


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        kind=("SGD, momentum", "Adafactor", "Nadam", "ScheduleFreeAdamW"), option=("plain", "EMA")
    )
    def test_with_all_rows_touched_it_equals_keras_on_dense_variables(self, kind, option):
        tables, dense = oracle.make_initial()
        steps = oracle.make_steps(4, everything=True)
        options = OPTIONS[option].arguments
        keras_optimizer = KINDS[kind](**options)
        wanted = oracle.train_dense([keras_optimizer] * 2, keras_optimizer, tables, dense, steps)
        lazy = LazyOracle(lambda: KINDS[kind](**options), tables, dense)
        for number, step in enumerate(steps):
            lazy.step(step)
            for found, right in zip(
                [*lazy.tables, *lazy.dense],
                [*wanted.tables[number], *wanted.dense[number]],
                strict=True,
            ):
                self.assertAllEqual(found, right)
        for found, right in zip(lazy.finalized(), wanted.finalized, strict=True):
            self.assertAllEqual(found, right)

    def test_its_accumulated_steps_equal_those_of_keras(self):
        tables, dense = oracle.make_initial()
        steps = oracle.make_steps(7, everything=True)
        optimizer = KINDS["Adam"](gradient_accumulation_steps=3)
        wanted = oracle.train_dense([optimizer] * 2, optimizer, tables, dense, steps)
        lazy = LazyOracle(KINDS["Adam"], tables, dense)
        merged = oracle.accumulated(steps, 3)
        self.assertLen(merged, 2)
        for number, step in enumerate(merged):
            lazy.step(step)
            self.assertAllClose(lazy.tables[0], wanted.tables[3 * number + 2][0], rtol=1e-6)
            self.assertAllClose(lazy.dense[0], wanted.dense[3 * number + 2][0], rtol=1e-6)

    @parameterized.parameters(
        "clipnorm", "clipvalue", "global_clipnorm", "weight_decay", "EMA", "EMA, overwriting"
    )
    def test_each_option_makes_a_difference(self, option):
        tables, dense = oracle.make_initial()
        steps = oracle.make_steps(5, everything=True)
        results = []
        for options in ({}, OPTIONS[option].arguments):
            optimizer = KINDS["SGD"](**options)
            results.append(oracle.train_dense([optimizer] * 2, optimizer, tables, dense, steps))
        for plain, other in zip(results[0].finalized, results[1].finalized, strict=True):
            self.assertNotAllClose(plain, other, **CLOSE)

    def test_a_wrong_row_and_a_wrong_dense_variable_are_found(self):
        tables, dense = oracle.make_initial()
        steps = oracle.make_steps(2, everything=True)
        optimizer, other = KINDS["SGD"](), KINDS["SGD"]()
        wanted = oracle.train_dense([optimizer] * 2, optimizer, tables, dense, steps)
        found = oracle.train_dense([other] * 2, other, tables, dense, steps)
        self.assertEqual(cases.compare(found, wanted).difference, 0.0)
        found.tables[1][1][0, 0] += 1e-3
        self.assertRegex(cases.compare(found, wanted).wrong, "items differ from step 2 on")
        found.tables[1][1][0, 0] -= 1e-3
        found.dense[0][1][0] += 1e-3
        self.assertRegex(cases.compare(found, wanted).wrong, "bias differs from step 1 on")


class MatrixTest(tf.test.TestCase, parameterized.TestCase):
    """Each step touches every row."""

    def check(self, way: str, kind: str, option: str, mode: str = "graph") -> None:
        self.assert_answer(cases.check(way, kind, option, mode), way, kind, option)

    def assert_answer(self, answer: cases.Answer, way: str, kind: str, option: str) -> None:
        case = f"{way}, {kind}, {option}"
        self.assertIsNone(answer.wrong, case)
        wanted = refusal_of(way, kind, option)
        if wanted is None:
            self.assertIsNone(answer.refusal, case)
        else:
            self.assertRegex(answer.refusal or "not refused", wanted, case)

    @parameterized.parameters(
        *itertools.product(["wrapper"], KINDS),
        *itertools.product(["own"], [kind for kind in OWN if kind in KINDS]),
    )
    def test_every_optimizer_equals_keras_or_is_refused(self, way, kind):
        self.check(way, kind, "plain")

    @parameterized.parameters(
        *itertools.product(["wrapper"], SORTS, [*INSIDE, "LossScaleOptimizer outside"]),
        *itertools.product(["own"], ["Lamb"], INSIDE),
    )
    def test_every_option_equals_keras_or_is_refused(self, way, kind, option):
        if option != "plain":
            self.check(way, kind, option)

    @parameterized.product(kind=MANY, option=[option for option in INSIDE if option.count(",") > 1])
    def test_many_options_together_equal_keras_or_are_refused(self, kind, option):
        self.check("wrapper", kind, option)

    @parameterized.product(
        option=("plain", "clipnorm, decay, scale, accumulation"), mode=("eager", "autograph")
    )
    def test_eager_steps_and_those_of_autograph_equal_keras_too(self, option, mode):
        self.check("wrapper", "Nadam", option, mode)

    @parameterized.parameters(
        *itertools.product(["plain"], INSIDE),
        *itertools.product(["wrapper"], ["EMA", "accumulation", "LossScaleOptimizer"]),
    )
    def test_options_of_the_outer_optimizer_leave_a_table_with_its_own_alone(self, outer, option):
        self.assert_answer(cases.check_outer(outer, option), f"outer {outer}", "SGD", option)


@keras.saving.register_keras_serializable(package="tf_embed_tests")
class OneHotEmbedding(keras.layers.Layer):
    """Replaces a table with a small vocabulary: its rows are a dense variable."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        self.embeddings = self.add_weight(
            shape=rows.shape, initializer=lambda shape, dtype: rows, name="embeddings"
        )

    def call(self, ids):
        return tf.one_hot(ids, self.embeddings.shape[0]) @ self.embeddings


class FitTest(tf.test.TestCase, parameterized.TestCase):
    """Keras's own training loop."""

    @parameterized.parameters(
        ("Adam", "schedule", {}),
        ("Adam", "rate set", {"steps_per_execution": 2}),
        ("Adam", "EMA", {}),
        ("SGD, momentum", "clipnorm, decay, scale, accumulation", {"run_eagerly": True}),
        ("Lamb", "global_clipnorm", {"steps_per_execution": 3}),
        ("Nadam", "LossScaleOptimizer", {}),
    )
    def test_a_fitted_model_equals_one_of_dense_variables(self, kind, option, compile_options):
        make = cases.maker(kind, OPTIONS[option])
        rng = np.random.default_rng(oracle.SEED)
        number = 6
        # Each batch has every id, some of them twice.
        ids = np.concatenate(
            [
                np.stack([rng.permutation(number), rng.integers(0, number, number)], 1)
                for _ in range(6)
            ]
        )
        labels = rng.normal(size=[len(ids), 1]).astype(np.float32)
        table = tf_embed.layers.DynamicEmbedding(3, initializer="normal")
        table.build()
        rows = table.variable.lookup(range(number)).numpy()
        models = []
        for embedding, optimizer in (
            (table, tf_embed.DynamicEmbeddingOptimizer(make())),
            (OneHotEmbedding(rows), make()),
        ):
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(1))
            model = keras.Sequential(
                [
                    keras.Input([2], dtype="int64"),
                    embedding,
                    keras.layers.Flatten(),
                    dense,
                ]
            )
            model.compile(optimizer, "mse", **compile_options)
            callbacks = []
            if OPTIONS[option].halves:
                rates = (0.1, 0.05)
                callbacks.append(
                    keras.callbacks.LearningRateScheduler(lambda epoch, r=rates: r[epoch])
                )
            model.fit(
                ids,
                labels,
                batch_size=number,
                epochs=2,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
            )
            models.append(model)
        self.assertAllClose(
            table.variable.lookup(range(number)), models[1].layers[0].embeddings.value, **CLOSE
        )
        for one, other in zip(
            models[0].layers[-1].weights, models[1].layers[-1].weights, strict=True
        ):
            self.assertAllClose(one.value, other.value, **CLOSE)
        self.assertNotAllClose(table.variable.lookup(range(number)), rows, **CLOSE)


class TouchedRowsTest(tf.test.TestCase, parameterized.TestCase):
    """Each step touches some rows."""

    @parameterized.parameters(
        *itertools.product([kind for kind in LAZY if kind in KINDS], ["plain"]),
        *itertools.product(SORTS, ["plain", "clipped", "clipped together"]),
    )
    @pytest.mark.smoke
    def test_rows_equal_keras_on_a_dense_variable_of_the_touched_rows(self, kind, option):
        steps = oracle.make_steps(LAZY_STEPS, everything=False)
        self.train(kind, LAZY_OPTIONS[option], steps)

    @parameterized.parameters(*SORTS)
    def test_averages_of_untouched_rows_stand_still(self, kind):
        steps = oracle.make_steps(LAZY_STEPS, everything=False)
        trained, lazy = self.train(kind, LAZY_OPTIONS["averaged"], steps)
        trained.optimizer.finalize_variable_values(trained.trained)
        self.assert_equal([*trained.tables(), *trained.dense()], lazy.finalized(), "finalized")

    @parameterized.parameters(("Adam", "plain"), ("Lamb", "clipped"))
    def test_what_any_micro_step_touches_is_updated_by_the_mean(self, kind, option):
        options, every = LAZY_OPTIONS[option], cases.ACCUMULATION
        steps = oracle.make_steps(every * LAZY_STEPS, everything=False)
        steps[every - 1] = _without_rows(steps[every - 1], 1)  # the step of the update
        steps[2 * every] = _without_rows(steps[2 * every], 0)
        trained = TrainedTables(
            None, lambda: KINDS[kind](gradient_accumulation_steps=every, **options)
        )
        lazy = LazyOracle(lambda: KINDS[kind](**options), trained.tables(), trained.dense())
        history = trained.train(steps)
        for number, merged in enumerate(oracle.accumulated(steps, every)):
            for micro_step in range(every):
                if micro_step == every - 1:
                    lazy.step(merged)
                step = every * number + micro_step
                self.assert_equal(
                    [*history.tables[step], *history.dense[step]],
                    [*lazy.tables, *lazy.dense],
                    f"step {step + 1}",
                )

    @parameterized.parameters(
        *itertools.product(["graph", "eager"], ["Adam", "Nadam", "Adafactor", "Lamb"]),
    )
    def test_a_step_that_touches_no_row_changes_nothing_in_the_table(self, mode, kind):
        self.train_with_gaps(mode, kind)

    def train_with_gaps(self, mode: str, kind: str) -> None:
        """Trains with steps that give a table no rows (in a graph) or no gradient (eagerly)."""
        steps = oracle.make_steps(6, everything=False)
        steps[2] = _without_rows(steps[2], 1)
        steps[4] = _without_rows(steps[4], 0, 1)
        self.train(kind, {}, steps, mode)

    def train(
        self, kind: str, options: Any, steps: list[Step], mode: str = "graph"
    ) -> tuple[TrainedTables, LazyOracle]:
        trained = TrainedTables(None, lambda: KINDS[kind](**options), shards=3)
        lazy = LazyOracle(lambda: KINDS[kind](**options), trained.tables(), trained.dense())
        history = trained.train(steps, mode, finalize=False)
        touched: list[set[int]] = [set() for _ in oracle.TABLES]
        for number, step in enumerate(steps):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about variables without a gradient
                lazy.step(step)
            self.assert_equal(
                [*history.tables[number], *history.dense[number]],
                [*lazy.tables, *lazy.dense],
                f"step {number + 1}",
            )
            for seen, rows in zip(touched, step.rows, strict=True):
                seen.update(rows.tolist())
        for layer, seen in zip(trained.layers, touched, strict=True):
            self.assertEqual(int(layer.variable.size()), len(seen))
        return trained, lazy

    def assert_equal(self, found: oracle.Rows, wanted: oracle.Rows, when: str) -> None:
        names = [*oracle.TABLES, *oracle.DENSE]
        for name, one, other in zip(names, found, wanted, strict=True):
            self.assertAllClose(one, other, **CLOSE, msg=f"{name}, {when}")


# Sums, slots and rules are float32, as in Keras on a float32 variable, and rows are rounded once a
# step. Before rounding, the two differ by 2e-6. So a weight within 2e-6 of the middle between two
# numbers may be rounded up by the table and down by Keras. It is then off by one unit in the last
# place, at most 2^-7 (bfloat16) or 2^-10 (float16) of the weight at that step. This happens to one
# weight in a thousand in a step, so hardly twice to the same. Nearly all weights are bit for bit
# equal.
UNIT = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
    """Tables of other dtypes."""

    @parameterized.parameters(
        *itertools.product(("Adam", "Lamb"), UNIT),
        *itertools.product(
            ("RMSprop, momentum", "Adagrad", "Ftrl", "Lion", "RowwiseAdagrad"), ["bfloat16"]
        ),
        *itertools.product(
            ("SGD, nesterov", "Adam, amsgrad", "Adadelta", "Nadam", "Adafactor"), ["float16"]
        ),
    )
    def test_half_rows_equal_keras_in_float32_rounded_each_step(self, kind, dtype):
        trained = TrainedTables(None, KINDS[kind], value_dtype=dtype)
        initial = [rows.astype(np.float32) for rows in trained.tables()]
        steps = oracle.make_steps(cases.STEPS, everything=True)
        optimizer = KINDS[kind]()
        wanted = oracle.train_dense(
            [optimizer] * 2, optimizer, initial, trained.dense(), steps, stored_as=dtype
        )
        found = trained.train(steps)
        for table in range(len(oracle.TABLES)):
            rows = np.array([step[table] for step in found.tables]).astype(np.float32)
            right = np.array([step[table] for step in wanted.tables])
            largest = np.maximum.accumulate(np.abs(right), axis=0)
            self.assertTrue(np.all(np.abs(rows - right) <= UNIT[dtype] * largest))
            self.assertGreater(np.mean(rows == right), 0.95)

    @parameterized.parameters(
        "Adam", "RMSprop", "Ftrl", "Nadam", "Lamb", "Adafactor", "RowwiseAdagrad"
    )
    def test_float64_rows_equal_keras_in_float64(self, kind):
        trained = TrainedTables(None, KINDS[kind], value_dtype="float64")
        steps = oracle.make_steps(cases.STEPS, everything=True)
        optimizer = KINDS[kind]()
        wanted = oracle.train_dense(
            [optimizer] * 2, optimizer, trained.tables(), trained.dense(), steps, dtype="float64"
        )
        found = trained.train(steps)
        # A float32 rule would be off by 1e-7. The table and Keras differ by 2e-9, because Keras
        # converts some hyper-parameters to float32 first.
        for mine, right in zip(found.tables, wanted.tables, strict=True):
            self.assertAllClose(mine[0], right[0], rtol=0, atol=1e-8)
            self.assertAllClose(mine[1], right[1], rtol=0, atol=1e-8)


if __name__ == "__main__":
    tf.test.main()

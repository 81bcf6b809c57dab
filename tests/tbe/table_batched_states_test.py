# SPDX-License-Identifier: Apache-2.0
"""Optimizer states of table-batched layers in float16 and bfloat16, against a NumPy oracle."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.table_batched_cases import (
    FEATURES,
    SPECS,
    content,
    first_rows,
    layer_of,
    pair,
    plain,
    rows_of,
    settings_of,
    steps_of,
    train,
)
from support.cases.tbe_cases import CASES
from support.oracles import tbe_oracle
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

OPTIM, SPARSE = tbe.OptimType, tbe.SparseType
FP32, FP16, BF16 = SPARSE.FP32, SPARSE.FP16, SPARSE.BF16
STEPS = 20
BOTH = {"momentum1": BF16, "momentum2": BF16}

# A case, the dtypes of its states, and the names of the states in the oracle's rows.
STATES = (
    ("PartialRowwiseAdam", {"momentum1": BF16}, {"momentum1": "m"}),
    ("PartialRowwiseAdam", {"momentum2": BF16}, {"momentum2": "v"}),
    ("PartialRowwiseAdam", BOTH, {"momentum1": "m", "momentum2": "v"}),
    ("PartialRowwiseAdam", {"momentum1": FP16, "momentum2": FP32}, {"momentum1": "m"}),
    ("Ensemble", {"momentum2": BF16}, {"momentum2": "z"}),
    ("Ensemble, l2", {"momentum2": FP16}, {"momentum2": "z"}),
    ("Ensemble, forgets", BOTH, {"momentum1": "s", "momentum2": "z"}),
    ("Adam, by row", BOTH, {"momentum1": "m", "momentum2": "v"}),
    (
        "LAMB, decay",
        {"momentum1": FP16, "momentum2": BF16},
        {"momentum1": "m", "momentum2": "v"},
    ),
    ("PartialRowwiseLAMB", BOTH, {"momentum1": "m", "momentum2": "v"}),
    ("LARS, decay", {"momentum1": BF16}, {"momentum1": "m"}),
    ("Adagrad", {"momentum1": FP16}, {"momentum1": "v"}),
    ("RowwiseAdagrad, l2", {"momentum1": FP16}, {"momentum1": "s"}),
    ("EmaInplace", {"momentum1": FP16}, {"momentum1": "s"}),
)
SAVED = (("PartialRowwiseAdam", BOTH), ("Ensemble", {"momentum2": BF16}))


def numpy_of(precision: SPARSE) -> Any:
    return precision.dtype.as_numpy_dtype


def narrow(case: str, dtypes: Any, **options: Any) -> TableBatchedEmbeddingBags:
    """A layer of a case with states of these types."""
    settings = {**settings_of(CASES[case]), "optimizer_state_dtypes": dtypes, **options}
    return layer_of(first_rows(), **settings)


def trained(layer: TableBatchedEmbeddingBags, steps: Any = None) -> TableBatchedEmbeddingBags:
    optimizer = plain()
    for step in steps or steps_of(6):
        train(layer, optimizer, step)
    return layer


class StepsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*STATES)
    @pytest.mark.smoke
    def test_twenty_steps_round_states_as_the_oracle(self, case, dtypes, names):
        chosen = CASES[case]
        rounded = {names[state]: numpy_of(dtypes[state]) for state in names}

        def oracle_of(rows: Any) -> Any:
            return tbe_oracle.Oracle(rows, chosen.rule, state_dtypes=rounded, **chosen.arguments)

        layer, oracle = pair(**settings_of(chosen), tables=oracle_of, optimizer_state_dtypes=dtypes)
        _, wide = pair(tables=chosen.oracle, learning_rate=0.05)
        optimizer = plain()
        for inputs, factors in steps_of(STEPS):
            train(layer, optimizer, (inputs, factors))
            for one in (oracle, wide):
                one.step(one(**inputs.arguments).backward(factors))
        # The float64 oracle rounds a few states in the other direction, which changes a weight by
        # up to 3e-4. An oracle without rounding differs more. The tests of the core compare bits.
        far = [np.abs(a - b).max() for a, b in zip(rows_of(layer), wide.weights, strict=True)]
        near = [np.abs(a - b).max() for a, b in zip(rows_of(layer), oracle.weights, strict=True)]
        self.assertLess(max(near), 3e-4)
        self.assertLess(1.5 * max(near), max(far))

    def test_rows_of_float16_have_states_of_their_own_types(self):
        layer = narrow("PartialRowwiseAdam", BOTH, weights_precision=FP16)
        wide = narrow("PartialRowwiseAdam", None, weights_precision=FP16)
        for one in (layer, wide):
            trained(one)
        for one, two in zip(rows_of(layer), rows_of(wide), strict=True):
            self.assertAllClose(one, two, 2e-2, 2e-2)
            self.assertNotAllEqual(one, two)

    def test_dynamic_tables_have_them_too(self):
        specs = [(None, spec[1]) for spec in SPECS]
        keys = [np.arange(spec[0]) for spec in SPECS]
        options = {**settings_of(CASES["Adam"]), "optimizer_state_dtypes": BOTH}
        dynamic = trained(layer_of(first_rows(), specs, FEATURES, keys, **options))
        for one, two in zip(content(dynamic), content(trained(narrow("Adam", BOTH))), strict=True):
            self.assertAllEqual(one, two)


class SnapshotsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (
            "PartialRowwiseAdam",
            {"momentum1": BF16},
            {"exp_avg": "bfloat16", "exp_avg_sq": "float32"},
        ),
        (
            "PartialRowwiseAdam",
            {"momentum2": FP16},
            {"exp_avg": "float32", "exp_avg_sq": "float16"},
        ),
        ("Ensemble", {"momentum2": BF16}, {"sum": "float32", "sparse_ema": "bfloat16"}),
        (
            *("Adam, by row", {"momentum2": BF16, "row_counter": FP32}),
            {"exp_avg": "float32", "exp_avg_sq": "bfloat16", "row_counter": "float32"},
        ),
    )
    def test_states_have_their_types(self, case, dtypes, wanted):
        layer = narrow(case, dtypes)
        for trains in (False, True):
            if trains:
                trained(layer)
            states = layer.get_optimizer_state()
            split = layer.split_optimizer_states()
            for of_table, in_order, (rows, dim) in zip(states, split, SPECS, strict=True):
                of_table.pop("iter", None)
                self.assertEqual({name: one.dtype.name for name, one in of_table.items()}, wanted)
                for one, two in zip(of_table.values(), in_order, strict=True):
                    self.assertAllEqual(one, two)
                    self.assertIn(tuple(one.shape), ((rows,), (rows, dim)))

    def test_nothing_is_lost_on_the_way_out(self):
        layer = trained(narrow("PartialRowwiseAdam", BOTH))
        for table, states in zip(layer.tables, layer.split_optimizer_states(), strict=True):
            exported = table.table.export()
            self.assertEqual(exported.slots.dtype, tf.float32)
            order = np.argsort(exported.keys)
            given = tf.concat([states[0], states[1][:, None]], axis=1)
            places = exported.keys.numpy()[order]
            self.assertAllEqual(
                tf.gather(exported.slots, order), tf.gather(tf.cast(given, tf.float32), places)
            )

    def test_reset_rows_have_initial_states(self):
        layer = trained(narrow("PartialRowwiseAdam", BOTH))
        layer.reset_embedding_weight_momentum([2, 4], [0, 2], [0], [0])
        for state in layer.split_optimizer_states()[0]:
            self.assertAllEqual(tf.gather(state, [2, 4]), tf.zeros_like(tf.gather(state, [2, 4])))

    def test_evaluation_changes_nothing(self):
        layer = trained(narrow("Ensemble", {"momentum2": BF16}))
        before = content(layer)
        for inputs, _ in steps_of(3):
            layer(**inputs.arguments, training=False)
            layer.split_optimizer_states()
        for one, two in zip(before, content(layer), strict=True):
            self.assertAllEqual(one, two)


class ResumeTest(tf.test.TestCase, parameterized.TestCase):
    def path(self, name: str) -> str:
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)

    def check(self, layer: Any, other: Any) -> None:
        """Checks that both layers continue alike."""
        for _ in range(2):
            for one, two in zip(content(layer), content(other), strict=True):
                self.assertAllEqual(one, two)
            for one in (layer, other):
                trained(one, steps_of(4, seed=7))

    @parameterized.parameters(*SAVED)
    def test_a_checkpoint_goes_on_as_if_unbroken(self, case, dtypes):
        layer, other = trained(narrow(case, dtypes)), narrow(case, dtypes)
        path = tf.train.Checkpoint(layer=layer).save(self.path("checkpoint"))
        tf.train.Checkpoint(layer=other).restore(path).assert_existing_objects_matched()
        self.check(layer, other)

    @parameterized.parameters(*SAVED)
    def test_a_keras_file_goes_on_as_if_unbroken(self, case, dtypes):
        layer = narrow(case, dtypes)
        ids = {
            name: keras.Input([None], ragged=True, dtype="int64", name=name)
            for name in ("a", "b", "c", "d")
        }
        model = keras.Model(ids, layer(list(ids.values())))
        trained(layer)
        path = self.path("model.keras")
        model.save(path)
        loaded = keras.saving.load_model(path)
        others = [one for one in loaded.layers if isinstance(one, TableBatchedEmbeddingBags)]
        self.check(layer, others[0])
        self.assertEqual(others[0].get_config(), layer.get_config())

    @parameterized.parameters((None, BOTH), (BOTH, None), (BOTH, {"momentum1": FP16}))
    @pytest.mark.of_cpu("tables there do not take narrow states over")
    def test_a_layer_of_other_types_takes_states_over(self, saved, wanted):
        layer, other = trained(narrow("Adam", saved)), narrow("Adam", wanted)
        path = tf.train.Checkpoint(layer=layer).save(self.path("checkpoint"))
        with self.assertNoLogs(level="WARNING"):  # no warning that slots are re-initialized
            tf.train.Checkpoint(layer=other).restore(path).assert_existing_objects_matched()
        dtypes = [numpy_of((wanted or {}).get(name, FP32)) for name in BOTH]
        states = layer.split_optimizer_states()

        def expect_states() -> None:
            for of_table, found in zip(states, other.split_optimizer_states(), strict=True):
                for state, one, dtype in zip(of_table, found, dtypes, strict=True):
                    self.assertAllEqual(one, state.numpy().astype("f").astype(dtype))

        expect_states()
        # A step without ids makes the tables convert their states.
        nothing = steps_of(1, longest=0)
        trained(other, nothing)
        expect_states()
        trained(other)


class SettingsTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_config_keeps_them(self):
        layer = narrow("PartialRowwiseAdam", {"momentum1": "bf16", "momentum2": FP16})
        other = TableBatchedEmbeddingBags.from_config(layer.get_config())
        self.assertEqual(
            layer.get_config()["optimizer_state_dtypes"], {"momentum1": "bf16", "momentum2": "fp16"}
        )
        self.assertEqual(other.get_config(), layer.get_config())
        self.assertEqual(other.split_optimizer_states()[0][0].dtype, tf.bfloat16)

    @parameterized.parameters(
        (
            OPTIM.PARTIAL_ROWWISE_ADAM,
            "momentum1",
            SPARSE.INT8,
            "momentum1. must be SparseType.*FP32, FP16 or BF16.*int8",
        ),
        (OPTIM.PARTIAL_ROWWISE_ADAM, "momentum2", SPARSE.FP8, "momentum2.*FP16.*fp8.*partial"),
        (OPTIM.PARTIAL_ROWWISE_ADAM, "momentum2", "bf17", "optimizer_state_dtypes.*bf17"),
        (
            OPTIM.PARTIAL_ROWWISE_ADAM,
            "exp_avg",
            BF16,
            "must name states that the optimizer has.*exp_avg.*bf16.*partial",
        ),
        (OPTIM.PARTIAL_ROWWISE_ADAM, "prev_iter", FP32, "prev_iter.*fp32.*partial"),
        (OPTIM.EXACT_ADAGRAD, "momentum2", BF16, "momentum2.*bf16.*adagrad"),
        (OPTIM.EXACT_SGD, "momentum1", BF16, "momentum1.*bf16.*sgd"),
        (OPTIM.NONE, "momentum1", BF16, "momentum1.*bf16.*none"),
        (None, "momentum1", BF16, "momentum1.*bf16.*None"),
    )
    def test_what_there_is_none_of_is_refused_by_name(self, optimizer, state, precision, words):
        with self.assertRaisesRegex(ValueError, f"(?i){words}"):
            TableBatchedEmbeddingBags(
                [(3, 4)], optimizer=optimizer, optimizer_state_dtypes={state: precision}
            )

    def test_counts_of_steps_stay_in_float32(self):
        options = settings_of(CASES["Adam, by row"])
        with self.assertRaisesRegex(
            ValueError, "row_counter.*FP32, for it counts steps.*bf16.*adam"
        ):
            TableBatchedEmbeddingBags(
                [(3, 4)], **options, optimizer_state_dtypes={"row_counter": BF16}
            )

# SPDX-License-Identifier: Apache-2.0
"""A table-batched layer with ids out of bounds, offsets out of order, and wrong arguments."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from support.cases.table_batched_cases import (
    DIMS,
    FEATURES,
    SPECS,
    Inputs,
    factors_of,
    pair,
    plain,
    random_inputs,
    rows_of,
    train,
)
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags, layer_arguments

POOLING, BOUNDS = tbe.PoolingMode, tbe.BoundsCheckMode
OPTIM, DECAY = tbe.OptimType, tbe.WeightDecayMode
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
DROPPING = (BOUNDS.WARNING, BOUNDS.IGNORE, BOUNDS.NONE)
FATAL = (BOUNDS.FATAL, BOUNDS.V2_FATAL)
ONES = np.ones(4, np.float32)
REFUSAL = (ValueError, tf.errors.InvalidArgumentError)


def with_faults(rng: np.random.Generator, inputs: Inputs) -> Inputs:
    """The inputs with random ids replaced by ids that no table of SPECS has."""
    faults = np.array([-1, -2, 10, 9, 2**31, 2**31 + 1, 2**32, 2**63 - 1, -(2**63)])
    bad = rng.random(len(inputs.indices)) < 0.4
    indices = np.where(bad, rng.choice(faults, len(bad)), inputs.indices)
    return Inputs(indices, inputs.offsets, inputs.weights, inputs.sizes)


class IdsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        mode=DROPPING, pooling=(POOLING.SUM, POOLING.MEAN), weighted=(False, True)
    )
    @pytest.mark.smoke
    def test_ids_out_of_bounds_are_dropped_and_train_nothing(self, mode, pooling, weighted):
        rng = np.random.default_rng(SEED)
        layer, oracle = pair(pooling_mode=pooling, bounds_check_mode=mode, learning_rate=0.5)
        for sizes in (None, [[2, 1], [0, 3], [1, 1], [4, 0]]):
            inputs = with_faults(rng, random_inputs(rng, 4, weighted=weighted, sizes=sizes))
            before = inputs.indices.copy(), inputs.offsets.copy()
            wanted = oracle(**inputs.arguments)
            self.assertAllClose(layer(**inputs.arguments), wanted.output, **CLOSE)
            factors = factors_of(rng, wanted.output.shape)
            train(layer, plain(), (inputs, factors))
            oracle.step(wanted.backward(factors))
            for found, rows in zip(rows_of(layer), oracle.weights, strict=True):
                self.assertAllClose(found, rows, **CLOSE)
            self.assertAllEqual(inputs.indices, before[0])
            self.assertAllEqual(inputs.offsets, before[1])
        for table, spec in zip(layer.tables, SPECS, strict=True):
            self.assertEqual(int(table.size()), spec[0])

    @parameterized.parameters(*DROPPING)
    def test_the_gradient_of_a_dropped_ids_weight_is_0(self, mode):
        rng = np.random.default_rng(SEED)
        layer, oracle = pair(pooling_mode=POOLING.MEAN, bounds_check_mode=mode)
        inputs = with_faults(rng, random_inputs(rng, 4, weighted=True))
        weights = tf.Variable(inputs.weights)
        wanted = oracle(**inputs.arguments)
        factors = factors_of(rng, wanted.output.shape)
        with tf.GradientTape() as tape:
            output = layer(inputs.indices, inputs.offsets, weights)
            loss = tf.reduce_sum(output * factors)
        found = tape.gradient(loss, weights)
        self.assertAllClose(found, wanted.backward(factors).weights, rtol=1e-5, atol=1e-5)

    def test_without_pooling_a_dropped_id_keeps_its_place(self):
        specs = [(7, 3), (5, 3)]
        options = {"specs": specs, "features": [1, 0, 1], "learning_rate": 0.5}
        layer, oracle = pair(pooling_mode=POOLING.NONE, **options)
        rng = np.random.default_rng(SEED)
        inputs = with_faults(rng, random_inputs(rng, 4, specs=specs, features=[1, 0, 1]))
        wanted = oracle(**inputs.arguments)
        self.assertAllClose(layer(inputs.indices, inputs.offsets), wanted.output, **CLOSE)
        factors = factors_of(rng, wanted.output.shape)
        train(layer, plain(), (inputs, factors))
        oracle.step(wanted.backward(factors))
        for found, rows in zip(rows_of(layer), oracle.weights, strict=True):
            self.assertAllClose(found, rows, **CLOSE)

    @parameterized.product(mode=FATAL, in_graph=(False, True))
    def test_fatal_names_table_position_and_id(self, mode, in_graph):
        layer, _ = pair(bounds_check_mode=mode, table_names=["ada", "bob", "cyd"])
        call = tf.function(layer) if in_graph else layer
        offsets = np.array([0, 1, 2, 3, 4])
        for indices, words in (
            ([4, 6, 9, 0], "'cyd'.*Received: 9 at indices.2."),
            ([5, 6, 8, 0], "'bob'.*Received: 5 at indices.0."),
            ([4, 6, 8, 2**40], f"'ada'.*Received: {2**40} at indices.3."),
            ([4, -2, 8, 0], "'ada'.*Received: -2 at indices.1."),
        ):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, words):
                call(np.array(indices), offsets)

    @parameterized.parameters(*BOUNDS)
    def test_minus_one_is_pruned_in_every_mode(self, mode):
        layer, oracle = pair(bounds_check_mode=mode, pooling_mode=POOLING.MEAN)
        indices, offsets = np.array([-1, 6, -1, 8, -1, -1]), np.array([0, 1, 4, 5, 6])
        indices[3] = 6
        self.assertAllClose(layer(indices, offsets), oracle(indices, offsets).output, **CLOSE)

    def test_weights_of_dropped_ids_may_be_anything(self):
        layer, oracle = pair()
        indices, offsets = np.array([-1, 6, 99, 8]), np.array([0, 1, 2, 3, 4])
        weights = np.array([np.nan, 1.0, np.inf, 2.0], "f")
        indices[3] = 3
        clean = np.where(np.isfinite(weights), weights, 0.0)
        found = layer(indices, offsets, weights)
        self.assertAllClose(found, oracle(indices, offsets, clean).output, **CLOSE)


def with_warnings_logged(test: Callable[[Any], None]) -> Callable[[Any], None]:
    """Runs a test in another process if TensorFlow logs no warnings in this process."""

    @functools.wraps(test)
    def run(self: Any) -> None:
        if int(os.environ.get("TF_CPP_MIN_LOG_LEVEL") or 0) <= 1:
            return test(self)
        names = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
        place = f"{__file__}::{type(self).__name__}::{test.__name__}"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", place],
            env=names | {"TF_CPP_MIN_LOG_LEVEL": "1"},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("1 passed", done.stdout)

    return run


class WarningsTest(tf.test.TestCase):
    def said(self, call: Any) -> list[str]:
        """The lines that the library logs in a call."""
        with tempfile.TemporaryFile(dir=self.get_temp_dir()) as file:
            before = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                call()
            finally:
                os.dup2(before, 2)
                os.close(before)
            file.seek(0)
            return [line for line in file.read().decode().splitlines() if "must" in line]

    @with_warnings_logged
    def test_faults_of_each_kind_are_logged_with_their_number(self):
        layer = TableBatchedEmbeddingBags([(3, 1), (4, 1)], table_names=["ada", "bob"])
        layer.build()
        good, one_of_ada, two_of_bob = ([0, 0, 1], [0, 7, 1], [0, 4, -2])

        def call(ids: list[int], offsets: tuple[int, ...] = (0, 1, 3)) -> list[str]:
            return self.said(lambda: layer(np.array(ids), np.array(offsets)))

        self.assertEmpty(call(good))
        (first,) = call(two_of_bob)
        self.assertRegex(first, "'bob'.*4 at indices.1.*: 2 in this call, 2 in 1 call;")
        (first,) = call(one_of_ada, (0, 2, 3))
        self.assertRegex(first, "'ada'.*7 at indices.1.*: 1 in this call, 1 in 1 call;")
        (first,) = call(good, (0, 1, 2))
        self.assertRegex(first, "`offsets`.*2 at offsets.2.*: 1 in this call, 1 in 1 call;")
        # Faults of a kind are logged in their second call, and in their fourth.
        lines = [call(two_of_bob) for _ in range(6)]
        self.assertEqual([len(some) for some in lines], [1, 0, 1, 0, 0, 0])
        self.assertRegex(lines[2][0], ": 2 in this call, 8 in 4 calls; .* after 8 calls")
        both = call([7, 0, 0], (0, 1, 2))
        self.assertLen(both, 2)
        self.assertRegex(both[0], "`offsets`.*in 2 calls")
        self.assertRegex(both[1], "'ada'.*in 2 calls")
        self.assertEqual(int(layer.bounds_check_warning), 14 + 1 + 1 + 2)

    def test_the_number_of_faults_is_an_int_under_a_strategy_too(self):
        strategy = two_replicas()
        with strategy.scope():
            layer = TableBatchedEmbeddingBags([(3, 1)])
            layer.build()
        strategy.run(lambda: layer(tf.constant([0, 7]), tf.constant([0, 2])))
        self.assertEqual(int(layer.bounds_check_warning), 2)

    def test_the_other_modes_log_nothing(self):
        for mode in (BOUNDS.IGNORE, BOUNDS.NONE):
            layer = TableBatchedEmbeddingBags([(3, 1)], bounds_check_mode=mode)
            layer.build()
            self.assertEmpty(self.said(lambda: layer(np.array([7]), np.array([0, 1]))))  # noqa: B023


class OffsetsTest(tf.test.TestCase, parameterized.TestCase):
    FAULTS = (
        [0, 2, 20, 6, 8],  # becomes 0, 2, 8, 8, 8
        [0, 2, 3, 4, 5],
        [0, 2, 4, 6, 800],
        [0, -3, 4, 2, 8],
        [-5, 2, 4, 6, 8],
        [8, 8, 8, 8, 0],
        [0, 2**62, -(2**63), 2**63 - 1, 1],
    )

    @parameterized.product(offsets=FAULTS, mode=(BOUNDS.WARNING, BOUNDS.IGNORE))
    def test_offsets_out_of_order_are_repaired(self, offsets, mode):
        layer, oracle = pair(bounds_check_mode=mode)
        indices = np.array([4, 0, 1, 2, 3, 0, 1, 1])
        offsets = np.array(offsets, np.int64)
        before = offsets.copy()
        wanted = oracle(indices, offsets).output
        self.assertAllClose(layer(indices, offsets), wanted, **CLOSE)
        self.assertAllClose(tf.function(layer)(indices, offsets), wanted, **CLOSE)
        self.assertAllEqual(offsets, before)

    @parameterized.product(offsets=FAULTS, mode=(BOUNDS.WARNING, BOUNDS.IGNORE))
    def test_without_pooling_they_are_repaired_and_counted_alike(self, offsets, mode):
        options = {"specs": [(5, 3)] * 2, "features": None, "bounds_check_mode": mode}
        layer, oracle = pair(pooling_mode=POOLING.NONE, **options)
        summed, _ = pair(**options)
        batch = np.array([4, 0, 7, 2, 3, 0, -1, 1]), np.array(offsets, np.int64)
        inputs = Inputs(*batch)
        wanted = oracle(*batch)
        self.assertAllClose(layer(*batch), wanted.output, **CLOSE)
        self.assertAllClose(tf.function(layer)(*batch), wanted.output, **CLOSE)
        for _ in range(2):
            summed(*batch)
        self.assertEqual(int(layer.bounds_check_warning), int(summed.bounds_check_warning))
        factors = factors_of(np.random.default_rng(SEED), wanted.output.shape)
        train(layer, plain(), (inputs, factors))
        oracle.step(wanted.backward(factors))
        for found, rows in zip(rows_of(layer), oracle.weights, strict=True):
            self.assertAllClose(found, rows, **CLOSE)

    @parameterized.product(
        offsets=FAULTS, mode=(*FATAL, BOUNDS.NONE), pooling=(POOLING.SUM, POOLING.NONE)
    )
    def test_fatal_and_none_refuse_them(self, offsets, mode, pooling):
        options = {"specs": [(9, 3)] * 2, "features": None, "bounds_check_mode": mode}
        layer, _ = pair(pooling_mode=pooling, **options)
        with self.assertRaisesRegex(REFUSAL, "`offsets`"):
            layer(np.array([4, 0, 1, 2, 3, 0, 1, 1]), np.array(offsets, np.int64))

    @parameterized.parameters(*FAULTS)
    def test_without_a_check_memory_is_safe(self, *offsets):
        layer, oracle = pair(bounds_check_mode=BOUNDS.NONE)
        indices, offsets = np.array([4, 0, 1, 2, 3, 0, 1, 1]), np.array(offsets, np.int64)
        try:
            output = layer(indices, offsets)
        except REFUSAL as error:
            self.assertIn("offsets", str(error))
        else:
            self.assertAllClose(output, oracle(indices, offsets).output, **CLOSE)


class CallTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        case=(
            ({"indices": np.array([0.0, 1.5, 1.0, 0.0])}, "indices.*integers"),
            ({"offsets": np.array([0.0, 1.5, 2.0, 3.0, 4.0])}, "offsets.*integers"),
            ({"indices": np.array([[0, 1, 1, 0]])}, "`indices` of .* must have one axis"),
            ({"offsets": np.array([[0, 1, 2, 3, 4]])}, "`offsets` of .* must have one axis"),
            (
                {"offsets": np.array([0, 1, 2, 4])},
                "equally many of each of 4 features, and one more",
            ),
            ({"offsets": np.array([], np.int64)}, "`offsets`"),
            ({"offsets": None}, "`offsets`"),
            (
                {"offsets": None, "batch_size_per_feature_per_rank": [[1]] * 4},
                "needs `offsets`. Received: offsets=None",
            ),
            (
                {"per_sample_weights": np.ones(3, "f")},
                "one for each of `indices`, .*per_sample_weights",
            ),
            ({"per_sample_weights": np.ones([4, 1], "f")}, "`per_sample_weights`"),
            (
                {"per_sample_weights": np.array(list("abcd"))},
                "must be numbers. Received: dtype=str",
            ),
            (
                {
                    "per_sample_weights": np.ones(4, "f"),
                    "feature_requires_grad": np.array([1, 0, 1]),
                },
                "must be one number for each of 4 features",
            ),
            (
                {
                    "per_sample_weights": np.ones(4, "f"),
                    "feature_requires_grad": np.array([1, 0, 1, 0, 1]),
                },
                "must be one number for each of 4 features",
            ),
            (
                {
                    "per_sample_weights": np.ones(4, "f"),
                    "feature_requires_grad": np.array(list("abcd")),
                },
                "must be numbers or bools. Received: dtype=string",
            ),
            (
                {"batch_size_per_feature_per_rank": [[1], [1], [1]]},
                "for each of its 4 features one for each rank",
            ),
            (
                {"batch_size_per_feature_per_rank": [[1], [1], [1], [2]]},
                "`offsets`.*5 bags",
            ),
            (
                {"batch_size_per_feature_per_rank": [[1], [1, 0], [1], [1]]},
                "`batch_size_per_feature_per_rank`",
            ),
            (
                {"batch_size_per_feature_per_rank": [[1], [3], [-1], [1]]},
                "`batch_size_per_feature_per_rank`",
            ),
        ),
        in_graph=(False, True),
    )
    def test_a_wrong_argument_is_refused_by_name(self, case, in_graph):
        changes, words = case
        layer, _ = pair()
        arguments = {"indices": np.array([0, 1, 1, 0]), "offsets": np.arange(5), **changes}
        call = tf.function(lambda: layer(**arguments)) if in_graph else lambda: layer(**arguments)
        with self.assertRaisesRegex((TypeError, *REFUSAL), words):
            call()

    @parameterized.parameters(0, 2, 4, 8)
    def test_offsets_that_fit_no_number_of_bags_are_refused_by_their_length(self, length):
        layer, _ = pair()
        call = tf.function(layer, input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, f"offsets.*4 features.*{length}"
        ):
            call(np.array([0, 1, 1, 0]), np.zeros(length, np.int64))

    def test_a_size_below_0_that_a_graph_meets_is_refused_by_name(self):
        layer, _ = pair()
        signature = tf.TensorSpec([4, None], tf.int64)
        call = tf.function(
            lambda sizes: layer(
                np.array([0, 1, 1, 0]), np.arange(5), batch_size_per_feature_per_rank=sizes
            ),
            input_signature=[signature],
        )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "`batch_size_per_feature_per_rank` of .* must be integers from 0",
        ):
            call(np.array([[1], [3], [-1], [1]]))

    def test_a_size_for_each_feature_and_pooling_none_do_not_go_together(self):
        layer, _ = pair(specs=[(3, 2)], features=None, pooling_mode=POOLING.NONE)
        with self.assertRaisesRegex(ValueError, "needs pooling. Received: pooling_mode=.*NONE"):
            layer(np.array([1]), np.array([0, 1]), batch_size_per_feature_per_rank=[[1]])

    def test_features_in_one_tensor_are_refused_with_how_to_split_it(self):
        layer = TableBatchedEmbeddingBags([(3, 2), (4, 2)])
        words = "`indices` of .*list of one for each of 2 features.*unstack.*shape=.{1,6}, 2."
        for ids in (np.zeros([3, 2], np.int64), keras.Input([2], dtype="int64")):
            with self.assertRaisesRegex(ValueError, words):
                layer(ids)

    def test_an_unknown_argument_is_refused(self):
        layer, _ = pair()
        with self.assertRaises((TypeError, ValueError)):
            layer(np.array([0, 1, 1, 0]), np.arange(5), nothing=1)

    def test_total_unique_indices_has_no_effect(self):
        layer, oracle = pair()
        indices, offsets = np.array([0, 1, 1, 0]), np.arange(5)
        found = layer(indices, offsets, total_unique_indices=3)
        self.assertAllClose(found, oracle(indices, offsets).output, **CLOSE)


class ConstructorTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"embedding_specs": []}, "must describe one table or more"),
        ({"embedding_specs": None}, "`embedding_specs`"),
        ({"embedding_specs": [3]}, r"`embedding_specs\[0\]`"),
        ({"embedding_specs": [(3,)]}, r"must be \(rows, dim\), .*embedding_specs\[0\]=\(3,\)"),
        ({"embedding_specs": [(3, 4, 5, 6, 7)]}, r"`embedding_specs\[0\]`"),
        ({"embedding_specs": [(0, 4)]}, "0"),
        ({"embedding_specs": [(-3, 4)]}, "-3"),
        ({"embedding_specs": [(2.5, 4)]}, "2.5"),
        ({"embedding_specs": [(3, 0)]}, "0"),
        ({"embedding_specs": [(3, None)]}, "None"),
        ({"embedding_specs": [(3, 4, 17)]}, "17"),
        ({"embedding_specs": [(3, 4, tbe.ComputeDevice.CPU)]}, "EmbeddingLocation.*CPU"),
        (
            {"embedding_specs": [(3, 4, 0, tbe.EmbeddingLocation.DEVICE)]},
            "ComputeDev.*DEVICE",
        ),
        ({"cache_algorithm": "zzz"}, "`cache_algorithm` must be of CacheAlgorithm.*zzz"),
        ({"cache_load_factor": -3}, "`cache_load_factor` must be positive.*-3"),
        ({"cache_load_factor": "3"}, "`cache_load_factor` must be a number.*'3'"),
        ({"cache_load_factor": float("nan")}, "`cache_load_factor` must be finite.*nan"),
        ({"cache_sets": -1}, "`cache_sets` must be at least 0.*-1"),
        ({"cache_sets": 1.5}, "`cache_sets` must be an int.*1.5"),
        ({"cache_reserved_memory": -1.0}, "`cache_reserved_memory` must be at least 0.*-1"),
        ({"cache_reserved_memory": None}, "`cache_reserved_memory` must be a number.*None"),
        ({"cache_precision": "int8"}, "must be SparseType.FP32, FP16 or BF16.*int8"),
        ({"cache_precision": 3}, "`cache_precision` must be of SparseType.*3"),
        ({"enforce_hbm": 1}, "`enforce_hbm` must be a bool.*1"),
        ({"record_cache_metrics": True}, "`record_cache_metrics` must be a Record.*True"),
        ({"gather_uvm_cache_stats": "no"}, "`gather_uvm_cache_stats` must be a bool.*'no'"),
        ({"stochastic_rounding": "no"}, "`stochastic_rounding` must be a bool.*'no'"),
        ({"gradient_clipping": 0.5}, "`gradient_clipping` must be a bool.*0.5"),
        ({"max_gradient": "1"}, "`max_gradient` must be a number.*'1'"),
        ({"device": 2.5}, "`device` must be None or a device.*2.5"),
        ({"device": ["/CPU:0"]}, "`device` must be None or a device.*CPU"),
        ({"device": ""}, "`device` must be a non-empty string.*''"),
        ({"device": -1}, "`device` must be at least 0.*-1"),
        ({"optimizer_state_dtypes": []}, r"`optimizer_state_dtypes` must be a dict.*\[\]"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be finite.*nan"),
        ({"learning_rate": 1e39}, r"`learning_rate` must be finite in float32.*1e\+39"),
        ({"learning_rate": float}, "`learning_rate` must be a number.*float"),
        ({"record_cache_metrics": {"x": 1}}, "`record_cache_metrics` must be a Record.*'x': 1"),
        ({"cache_reserved_memory": 10**400}, "`cache_reserved_memory` must be finite"),
        ({"pooling_mode": tf.constant(1)}, "`pooling_mode` must be of PoolingMode"),
        ({"uvm_non_rowwise_momentum": None}, "`uvm_non_rowwise_momentum` must be a bool.*None"),
        ({"use_experimental_tbe": 0}, "`use_experimental_tbe` must be a bool.*0"),
        ({"prefetch_pipeline": "yes"}, "`prefetch_pipeline` must be a bool.*'yes'"),
        ({"stats_reporter_config": 5}, "`stats_reporter_config` must be a TBEStats.*5"),
        ({"multipass_prefetch_config": 5}, "`multipass_prefetch_config` must be a Multi.*5"),
        ({"uvm_host_mapped": []}, "`uvm_host_mapped` must be a bool"),
        ({"optimizer": OPTIM.ADAM, "eps": "small"}, "`eps` must be a number.*'small'"),
        ({"optimizer": OPTIM.ADAM, "beta1": True}, "`beta1` must be a number.*True"),
        ({"embedding_specs": [(3, 4, tbe.EmbeddingLocation.MTIA)]}, "must not be of MTIA"),
        ({"embedding_specs": [(3, 4, 0, tbe.ComputeDevice.MTIA)]}, "MTIA"),
        ({"embedding_specs": 3}, "`embedding_specs` must be a list.*3"),
        ({"embedding_specs": [{3, 4}]}, r"`embedding_specs\[0\]` must be .*{3, 4}"),
        ({"embedding_specs": [(3, 2**31)]}, r"`embedding_specs\[0\]` must be at most"),
        ({"feature_table_map": []}, "`feature_table_map`"),
        ({"feature_table_map": {0, 1, 2}}, "`feature_table_map` must be a list.*{0, 1, 2}"),
        ({"feature_table_map": b"\0\1\2"}, "`feature_table_map` must be a list"),
        ({"feature_table_map": [0, 1]}, r"must name each of 3 tables.*without \[2\]"),
        ({"feature_table_map": [0, 1, 2, 3]}, "`feature_table_map`.*3"),
        ({"feature_table_map": [0, 1, 2, -1]}, "`feature_table_map`.*-1"),
        ({"feature_table_map": [0, 1, 2.0]}, "`feature_table_map`"),
        ({"feature_names": ["a", "b"]}, "`feature_names` must be 3 different names. Received"),
        ({"feature_names": ["a", "b", "a"]}, "`feature_names`"),
        ({"feature_names": "abc"}, "`feature_names` must be a list.*'abc'"),
        ({"table_names": {"a", "b", "c"}}, "`table_names` must be a list"),
        ({"table_names": [1, 2, 3]}, "`table_names` must be a non-empty string.*1"),
        ({"table_names": ["a", "b", "\0"]}, "`table_names` must have no control"),
        ({"table_names": ["a", "b"]}, "`table_names`"),
        ({"table_names": ["a", "b", "a"]}, "`table_names`"),
        ({"initializer": ["zeros", "ones"]}, "must be one, or a list of one for each of 3 tables"),
        ({"policy": [None, None]}, "`policy` must be one, or a list"),
        ({"policy": tf_embed.TablePolicy(3)}, "for it has 7 rows, which stay.*max_rows=3"),
        ({"policy": tf_embed.TablePolicy(ttl_seconds=9)}, "no `max_rows`.*ttl_seconds=9"),
        (
            {"weights_precision": "INT8", "optimizer": "NONE", "initializer": "ones"},
            "must be None, for its rows are SparseType.INT8",
        ),
        ({"padding_id": "0"}, "`padding_id`.*'0'"),
        ({"padding_id": 2**63}, f"`padding_id`.*{2**63}"),
        ({"pooling_mode": 7}, "`pooling_mode`"),
        ({"bounds_check_mode": 17}, "`bounds_check_mode`"),
        ({"pooling_mode": POOLING.NONE}, "With PoolingMode.NONE all tables"),
        ({"max_gradient": 2.0}, "`max_gradient` must be set with `gradient_clipping`"),
        ({"gradient_clipping": True, "max_gradient": -1.0}, "`max_gradient` must be positive"),
        ({"weights_precision": tbe.SparseType.INT4}, "int4"),
        ({"weights_precision": tbe.SparseType.FP8}, "fp8"),
        ({"output_dtype": tbe.SparseType.INT8}, "int8"),
        ({"nothing": 3}, "nothing"),
        ({"optimizer": 3}, "which leaves training to the model's optimizer.*optimizer=3"),
        ({"optimizer": "rmsprop"}, "`optimizer`"),
        ({"weight_decay": 0.1}, "EXACT_SGD does not use `weight_decay`"),
        ({"momentum": 0.5}, "EXACT_SGD does not use `momentum`"),
        ({"optimizer": OPTIM.EXACT_ADAGRAD, "beta1": 0.5}, "EXACT_ADAGRAD.*`beta1`"),
        ({"optimizer": OPTIM.NONE, "learning_rate": 0.5}, "NONE.*`learning_rate`"),
        ({"optimizer": None, "eps": 0.5}, "None.*`eps`"),
        ({"optimizer": OPTIM.ADAM, "weight_decay_mode": DECAY.L2}, "ADAM.*`weight_decay_mode`"),
        (
            {"optimizer": OPTIM.EXACT_ROWWISE_ADAGRAD, "weight_decay_mode": DECAY.COUNTER},
            "`counter_based_regularization` and weight_decay_mode=.*COUNTER must be set together",
        ),
        ({"optimizer": OPTIM.EMAINPLACE_ROWWISE_ADAGRAD}, "even number"),
    )
    def test_what_is_wrong_is_refused_at_once(self, changes, words):
        specs = [(7, 3), (5, 1), (9, 6)]
        with self.assertRaisesRegex((TypeError, ValueError), words):
            TableBatchedEmbeddingBags(**{"embedding_specs": specs, **changes})

    def test_what_has_no_effect_is_accepted(self):
        layer = TableBatchedEmbeddingBags(
            [
                (
                    3,
                    4,
                    tbe.EmbeddingLocation.MANAGED_CACHING,
                    tbe.ComputeDevice.CUDA,
                )
            ],
            cache_algorithm=tbe.CacheAlgorithm.LFU,
            cache_load_factor=0.5,
            cache_sets=3,
            cache_reserved_memory=1.0,
            enforce_hbm=True,
            record_cache_metrics=tbe.RecordCacheMetrics(),
            device="/CPU:0",
            uvm_non_rowwise_momentum=True,
            use_experimental_tbe=True,
            stats_reporter_config=tbe.TBEStatsReporterConfig(3),
            multipass_prefetch_config=tbe.MultiPassPrefetchConfig(),
            uvm_host_mapped=True,
        )
        self.assertEqual(layer(np.array([1]), np.array([0, 1])).shape, (1, 4))

    def test_enums_are_taken_by_the_names_of_members(self):
        layer = TableBatchedEmbeddingBags(
            [(3, 4, "MANAGED", "CUDA")],
            cache_algorithm="LFU",
            cache_precision="FP16",
            weights_precision="BF16",
            output_dtype="FP16",
            optimizer="EXACT_ROWWISE_ADAGRAD",
            weight_decay=0.1,
            weight_decay_mode="L2",
            pooling_mode="MEAN",
            bounds_check_mode="V2_IGNORE",
            optimizer_state_dtypes={"momentum1": "FP16"},
        )
        self.assertEqual(layer.pooling_mode, POOLING.MEAN)
        self.assertEqual(layer.bounds_check_mode, BOUNDS.IGNORE)
        self.assertEqual(layer.optimizer.weight_decay_mode, DECAY.L2)
        self.assertEqual(layer.split_optimizer_states()[0][0].dtype, tf.float16)
        output = layer(np.array([1]), np.array([0, 1]))
        self.assertEqual((output.dtype, layer.tables[0].value_dtype), (tf.float16, tf.bfloat16))
        other = TableBatchedEmbeddingBags.from_config(layer.get_config())
        self.assertEqual(other.get_config(), layer.get_config())
        self.assertIs(type(other.optimizer), type(layer.optimizer))

    @pytest.mark.of_cpu("there, these locations have an effect")
    def test_the_log_names_locations(self):
        for location in (
            tbe.EmbeddingLocation.DEVICE,
            tbe.EmbeddingLocation.MANAGED_CACHING,
        ):
            layer_arguments._say_once.cache_clear()
            with self.assertLogs(level="WARNING") as logs:
                TableBatchedEmbeddingBags([(3, 4, location, tbe.ComputeDevice.CUDA)])
            self.assertRegex(logs.output[0], f"EmbeddingLocation.{location.name} means ")

    def test_tables_of_many_rows_take_no_room(self):
        layer = TableBatchedEmbeddingBags([(2**31, 2), (2**40, 3)], initializer=1.0)
        indices = np.array([2**31 - 1, 2**31, 2**40 - 1, 2**40])
        self.assertAllEqual(layer(indices, np.array([0, 2, 4])), np.ones([1, 5]))

    def test_names(self):
        layer = TableBatchedEmbeddingBags(SPECS, FEATURES, table_names=["ada", "bob", "cyd"])
        self.assertEqual([table.name for table in layer.tables], ["ada", "bob", "cyd"])
        self.assertEqual(list(layer.table_names), ["ada", "bob", "cyd"])
        names = [table.name for table in TableBatchedEmbeddingBags(SPECS, name="mine").tables]
        self.assertLen(set(names), 3)
        for name in names:
            self.assertIn("mine", name)
        self.assertEqual(sum(DIMS), layer(np.array([0]), np.array([0, 1, 1, 1, 1])).shape[-1])


if __name__ == "__main__":
    tf.test.main()

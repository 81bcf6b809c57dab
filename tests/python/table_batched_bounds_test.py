"""What a table-batched layer does with ids out of bounds, offsets out of order, wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from reference import SEED
from table_batched_cases import (
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

import tf_embed
from tf_embed.layers import TableBatchedEmbeddingBags

POOLING, BOUNDS = tf_embed.PoolingMode, tf_embed.BoundsCheckMode
OPTIM, DECAY = tf_embed.OptimType, tf_embed.WeightDecayMode
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
DROPPING = (BOUNDS.WARNING, BOUNDS.IGNORE, BOUNDS.NONE)
FATAL = (BOUNDS.FATAL, BOUNDS.V2_FATAL)
ONES = np.ones(4, np.float32)
REFUSAL = (ValueError, tf.errors.InvalidArgumentError)


def with_faults(rng: np.random.Generator, inputs: Inputs) -> Inputs:
    """The same with ids here and there that no table of SPECS has."""
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

    @parameterized.product(offsets=FAULTS, mode=FATAL)
    def test_fatal_refuses_them(self, offsets, mode):
        layer, _ = pair(bounds_check_mode=mode)
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
            ({"indices": np.array([[0, 1, 1, 0]])}, "`indices`"),
            ({"offsets": np.array([[0, 1, 2, 3, 4]])}, "`offsets`"),
            ({"offsets": np.array([0, 1, 2, 4])}, "`offsets`"),
            ({"offsets": np.array([], np.int64)}, "`offsets`"),
            ({"offsets": None}, "`offsets`"),
            ({"per_sample_weights": np.ones(3, "f")}, "`per_sample_weights`"),
            ({"per_sample_weights": np.ones([4, 1], "f")}, "`per_sample_weights`"),
            ({"per_sample_weights": np.array(list("abcd"))}, "`per_sample_weights`"),
            (
                {
                    "per_sample_weights": np.ones(4, "f"),
                    "feature_requires_grad": np.array([1, 0, 1]),
                },
                "`feature_requires_grad`",
            ),
            (
                {
                    "per_sample_weights": np.ones(4, "f"),
                    "feature_requires_grad": np.array([1, 0, 1, 0, 1]),
                },
                "`feature_requires_grad`",
            ),
            (
                {"batch_size_per_feature_per_rank": [[1], [1], [1]]},
                "`batch_size_per_feature_per_rank`",
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
            tf.errors.InvalidArgumentError, "`batch_size_per_feature_per_rank` of .*from 0"
        ):
            call(np.array([[1], [3], [-1], [1]]))

    def test_a_size_for_each_feature_and_pooling_none_do_not_go_together(self):
        layer, _ = pair(specs=[(3, 2)], features=None, pooling_mode=POOLING.NONE)
        with self.assertRaisesRegex(ValueError, "batch_size_per_feature_per_rank.*NONE"):
            layer(np.array([1]), np.array([0, 1]), batch_size_per_feature_per_rank=[[1]])

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
        ({"embedding_specs": []}, "`embedding_specs`"),
        ({"embedding_specs": None}, "`embedding_specs`"),
        ({"embedding_specs": [3]}, r"`embedding_specs\[0\]`"),
        ({"embedding_specs": [(3,)]}, r"`embedding_specs\[0\]`"),
        ({"embedding_specs": [(3, 4, 5, 6, 7)]}, r"`embedding_specs\[0\]`"),
        ({"embedding_specs": [(0, 4)]}, "0"),
        ({"embedding_specs": [(-3, 4)]}, "-3"),
        ({"embedding_specs": [(2.5, 4)]}, "2.5"),
        ({"embedding_specs": [(3, 0)]}, "0"),
        ({"embedding_specs": [(3, None)]}, "None"),
        ({"embedding_specs": [(3, 4, 17)]}, "17"),
        ({"embedding_specs": [(3, 4, tf_embed.EmbeddingLocation.MTIA)]}, "MTIA"),
        ({"embedding_specs": [(3, 4, 0, tf_embed.ComputeDevice.MTIA)]}, "MTIA"),
        ({"feature_table_map": []}, "`feature_table_map`"),
        ({"feature_table_map": [0, 1]}, "`feature_table_map`.*2"),
        ({"feature_table_map": [0, 1, 2, 3]}, "`feature_table_map`.*3"),
        ({"feature_table_map": [0, 1, 2, -1]}, "`feature_table_map`.*-1"),
        ({"feature_table_map": [0, 1, 2.0]}, "`feature_table_map`"),
        ({"feature_names": ["a", "b"]}, "`feature_names`"),
        ({"feature_names": ["a", "b", "a"]}, "`feature_names`"),
        ({"table_names": ["a", "b"]}, "`table_names`"),
        ({"table_names": ["a", "b", "a"]}, "`table_names`"),
        ({"initializer": ["zeros", "ones"]}, "`initializer`"),
        ({"policy": [None, None]}, "`policy`"),
        ({"pooling_mode": 7}, "`pooling_mode`"),
        ({"bounds_check_mode": 17}, "`bounds_check_mode`"),
        ({"pooling_mode": POOLING.NONE}, "NONE"),
        ({"max_gradient": 2.0}, "`max_gradient`.*`gradient_clipping`"),
        ({"gradient_clipping": True, "max_gradient": -1.0}, "`max_gradient`"),
        ({"weights_precision": tf_embed.SparseType.INT4}, "int4"),
        ({"weights_precision": tf_embed.SparseType.FP8}, "fp8"),
        ({"output_dtype": tf_embed.SparseType.INT8}, "int8"),
        ({"nothing": 3}, "nothing"),
        ({"optimizer": 3}, "`optimizer`"),
        ({"optimizer": "rmsprop"}, "`optimizer`"),
        ({"weight_decay": 0.1}, "EXACT_SGD does not use `weight_decay`"),
        ({"momentum": 0.5}, "EXACT_SGD does not use `momentum`"),
        ({"optimizer": OPTIM.EXACT_ADAGRAD, "beta1": 0.5}, "EXACT_ADAGRAD.*`beta1`"),
        ({"optimizer": OPTIM.NONE, "learning_rate": 0.5}, "NONE.*`learning_rate`"),
        ({"optimizer": None, "eps": 0.5}, "None.*`eps`"),
        ({"optimizer": OPTIM.ADAM, "weight_decay_mode": DECAY.L2}, "ADAM.*`weight_decay_mode`"),
        (
            {"optimizer": OPTIM.EXACT_ROWWISE_ADAGRAD, "weight_decay_mode": DECAY.COUNTER},
            "counter_based_regularization",
        ),
        ({"optimizer": OPTIM.EMAINPLACE_ROWWISE_ADAGRAD}, "even number"),
    )
    def test_what_is_wrong_is_refused_at_once(self, changes, words):
        specs = [(7, 3), (5, 1), (9, 6)]
        with self.assertRaisesRegex((TypeError, ValueError), words):
            TableBatchedEmbeddingBags(**{"embedding_specs": specs, **changes})

    def test_what_has_no_effect_is_accepted(self):
        layer = TableBatchedEmbeddingBags(
            [(3, 4, tf_embed.EmbeddingLocation.MANAGED_CACHING, tf_embed.ComputeDevice.CUDA)],
            cache_algorithm=tf_embed.CacheAlgorithm.LFU,
            cache_load_factor=0.5,
            cache_sets=3,
            cache_reserved_memory=1.0,
            enforce_hbm=True,
            record_cache_metrics=tf_embed.RecordCacheMetrics(),
            device="/CPU:0",
            uvm_non_rowwise_momentum=True,
            use_experimental_tbe=True,
            stats_reporter_config=tf_embed.TBEStatsReporterConfig(3),
            multipass_prefetch_config=tf_embed.MultiPassPrefetchConfig(),
            uvm_host_mapped=True,
        )
        self.assertEqual(layer(np.array([1]), np.array([0, 1])).shape, (1, 4))

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

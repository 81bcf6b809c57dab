# SPDX-License-Identifier: Apache-2.0
"""Lookups of the table-batched layer, against a NumPy oracle: inputs, pooling, layouts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.table_batched_cases import (
    DIMS,
    first_rows,
    layer_of,
    pair,
    random_inputs,
)
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

POOLING = tbe.PoolingMode
LOCATION, DEVICE = tbe.EmbeddingLocation, tbe.ComputeDevice
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
EDGES = [-1, 0, 2**63 - 1, -(2**63), 10**15]


class DocumentationTest(tf.test.TestCase):
    def test_two_tables_as_in_fbgemms_documentation(self):
        layer = TableBatchedEmbeddingBags(
            embedding_specs=[
                (3, 8, LOCATION.DEVICE, DEVICE.CUDA),
                (5, 4, LOCATION.MANAGED, DEVICE.CUDA),
            ]
        )
        layer.build()
        columns = np.arange(8.0)
        layer.tables[0].upsert([0, 1, 2], [10 * row + columns for row in range(3)])
        layer.tables[1].upsert(range(5), [100 * row + columns[:4] for row in range(5)])
        indices = tf.constant([0, 1, 2, 0, 1, 2, 0, 3, 1, 4, 2, 0, 0], tf.int64)
        offsets = tf.constant([0, 2, 5, 7, 9, 12, 13], tf.int64)
        self.assertAllEqual(
            layer(indices, offsets),
            [
                # rows 0 + 1 of the first table, 3 + 1 of the second
                [10, 12, 14, 16, 18, 20, 22, 24, 400, 402, 404, 406],
                # 2 + 0 + 1, 4 + 2 + 0
                [30, 33, 36, 39, 42, 45, 48, 51, 600, 603, 606, 609],
                # 2 + 0, 0
                [20, 22, 24, 26, 28, 30, 32, 34, 0, 1, 2, 3],
            ],
        )

    def test_settings_are_fixed_when_the_layer_is_made(self):
        layer = TableBatchedEmbeddingBags([(3, 8)])
        with self.assertRaisesRegex(AttributeError, "`output_dtype` of .* Received: output_dtype="):
            layer.output_dtype = tbe.SparseType.FP16
        self.assertEqual(layer.output_dtype, tbe.SparseType.FP32)
        layer.trainable = False
        self.assertFalse(layer.trainable)

    def test_arguments_and_defaults_are_fbgemms_in_its_order(self):
        parameters = inspect.signature(TableBatchedEmbeddingBags.__init__).parameters
        fp32 = tbe.SparseType.FP32
        defaults = {
            "embedding_specs": inspect.Parameter.empty,
            "feature_table_map": None,
            "cache_algorithm": tbe.CacheAlgorithm.LRU,
            "cache_load_factor": 0.2,
            "cache_sets": 0,
            "cache_reserved_memory": 0.0,
            "cache_precision": None,
            "weights_precision": fp32,
            "output_dtype": fp32,
            "enforce_hbm": False,
            "optimizer": tbe.OptimType.EXACT_SGD,
            "record_cache_metrics": None,
            "gather_uvm_cache_stats": False,
            "stochastic_rounding": True,
            "gradient_clipping": False,
            "max_gradient": 1.0,
            "max_norm": 0.0,
            "learning_rate": 0.01,
            "eps": 1e-8,
            "momentum": 0.9,
            "weight_decay": 0.0,
            "weight_decay_mode": tbe.WeightDecayMode.NONE,
            "eta": 0.001,
            "beta1": 0.9,
            "beta2": 0.999,
            "ensemble_mode": None,
            "emainplace_mode": None,
            "counter_based_regularization": None,
            "cowclip_regularization": None,
            "pooling_mode": POOLING.SUM,
            "device": None,
            "bounds_check_mode": tbe.BoundsCheckMode.WARNING,
            "uvm_non_rowwise_momentum": False,
            "use_experimental_tbe": False,
            "prefetch_pipeline": False,
            "stats_reporter_config": None,
            "table_names": None,
            "optimizer_state_dtypes": None,
            "multipass_prefetch_config": None,
            "global_weight_decay": None,
            "uvm_host_mapped": False,
            "extra_optimizer_config": None,
        }
        names = list(parameters)[1 : len(defaults) + 1]
        self.assertEqual(names, list(defaults))
        self.assertEqual({name: parameters[name].default for name in names}, defaults)
        for name in ("initializer", "feature_names", "policy", "name"):
            self.assertEqual(parameters[name].kind, inspect.Parameter.KEYWORD_ONLY)
            self.assertIsNone(parameters[name].default)

    def test_lists_of_numbers_are_taken_by_keyword(self):
        layer = TableBatchedEmbeddingBags([(5, 2)], initializer=1.0)
        self.assertAllEqual(layer(indices=[4, 0, 2], offsets=[0, 1, 3]), [[1, 1], [2, 2]])

    def test_a_call_takes_fbgemms_arguments(self):
        parameters = list(inspect.signature(TableBatchedEmbeddingBags.call).parameters)
        wanted = ["indices", "offsets", "per_sample_weights", "feature_requires_grad"]
        self.assertEqual(parameters[1:6], [*wanted, "batch_size_per_feature_per_rank"])
        self.assertIn("total_unique_indices", parameters)


class ForwardTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        pooling=(POOLING.SUM, POOLING.MEAN), weighted=(False, True), in_graph=(False, True)
    )
    @pytest.mark.smoke
    def test_bags_are_pooled_side_by_side(self, pooling, weighted, in_graph):
        rng = np.random.default_rng(SEED)
        layer, oracle = pair(pooling_mode=pooling)
        inputs = random_inputs(rng, 5, weighted=weighted)
        call = tf.function(layer) if in_graph else layer
        output = call(inputs.indices, inputs.offsets, inputs.weights)
        self.assertEqual(output.shape, (5, sum(DIMS)))
        self.assertEqual(output.dtype, tf.float32)
        self.assertAllClose(output, oracle(**inputs.arguments).output, **CLOSE)

    @parameterized.product(weighted=(False, True))
    def test_without_pooling_each_id_has_a_row(self, weighted):
        specs = [(7, 3), (5, 3)]
        layer, oracle = pair(specs=specs, features=[1, 0, 1], pooling_mode=POOLING.NONE)
        rng = np.random.default_rng(SEED)
        inputs = random_inputs(rng, 4, specs=specs, features=[1, 0, 1], weighted=weighted)
        if weighted:  # FBGEMM ignores weights silently
            with self.assertRaisesRegex(ValueError, "need pooling. Received: pooling_mode=.*NONE"):
                layer(inputs.indices, inputs.offsets, inputs.weights)
            return
        output = layer(inputs.indices, inputs.offsets)
        self.assertEqual(output.shape, (len(inputs.indices), 3))
        self.assertAllClose(output, oracle(**inputs.arguments).output, **CLOSE)

    @parameterized.parameters(
        ([[2, 1], [0, 3], [1, 1], [4, 0]],),
        ([[3], [0], [1], [2]],),
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],),
        ([[0, 1, 0], [2, 0, 0], [0, 0, 3], [0, 0, 0]],),
    )
    def test_batches_of_a_size_for_each_feature_and_rank_are_one_line(self, sizes):
        rng = np.random.default_rng(SEED)
        layer, oracle = pair()
        inputs = random_inputs(rng, sizes=sizes, weighted=True)
        wanted = oracle(**inputs.arguments).output
        for output in (
            layer(**inputs.arguments),
            tf.function(lambda: layer(**inputs.arguments))(),
        ):
            self.assertEqual(output.shape, (np.sum(np.sum(sizes, 1) * DIMS),))
            self.assertAllClose(output, wanted, **CLOSE)

    def test_the_line_goes_by_rank_then_by_feature(self):
        layer = layer_of(
            [np.array([[1.0], [2.0]]), np.array([[10.0, 11.0]])], [(2, 1), (1, 2)], None
        )
        sizes = [[2, 1], [1, 1]]
        indices = np.array([0, 1, 1, 0, 0])
        for some in (sizes, np.array(sizes, np.int32), tf.constant(sizes), np.array(sizes)):
            output = layer(indices, np.arange(6), batch_size_per_feature_per_rank=some)
            self.assertAllEqual(output, [1, 2, 10, 11, 2, 10, 11])

    @parameterized.parameters(POOLING.SUM, POOLING.MEAN)
    def test_empty_bags_and_batches_are_zeros(self, pooling):
        layer, _ = pair(pooling_mode=pooling)
        nothing = np.zeros([0], np.int64)
        self.assertAllEqual(layer(nothing, np.zeros(13, np.int64)), np.zeros([3, sum(DIMS)]))
        self.assertEqual(layer(nothing, np.zeros(1, np.int64)).shape, (0, sum(DIMS)))
        weights = np.zeros([0], np.float32)
        self.assertEqual(layer(nothing, np.array([0]), weights).shape, (0, sum(DIMS)))

    @parameterized.parameters(tf.int32, tf.int64, tf.uint32, tf.int8)
    def test_integers_of_any_type(self, dtype):
        rng = np.random.default_rng(SEED)
        layer, oracle = pair()
        inputs = random_inputs(rng)
        indices, offsets = tf.cast(inputs.indices, dtype), tf.cast(inputs.offsets, dtype)
        self.assertAllClose(layer(indices, offsets), oracle(**inputs.arguments).output, **CLOSE)

    def test_any_id_is_legal_in_a_dynamic_table(self):
        keys = [np.array(EDGES), None, None]
        rows = first_rows([(5, 4), (5, 2), (9, 6)])
        specs = [(None, 4), (5, 2), (9, 6)]
        keys[1:] = np.arange(5), np.arange(9)
        layer, oracle = pair(specs=specs, rows=rows, keys=keys)
        indices = np.array([4, -1, 2**63 - 1, 0, 8, -1, 10**15, -(2**63)])
        offsets = np.array([0, 1, 1, 3, 4, 4, 5, 6, 8])
        self.assertAllClose(layer(indices, offsets), oracle(indices, offsets).output, **CLOSE)
        self.assertEqual(int(layer.tables[0].size()), 5)

    def test_rows_that_nobody_wrote_are_initial_rows(self):
        given = np.array([3, 7]), np.array([0, 1, 2])
        layer = TableBatchedEmbeddingBags([(10, 2), (None, 3)])
        self.assertAllEqual(layer(*given), np.zeros([1, 5]))
        layer = TableBatchedEmbeddingBags([(10, 2), (None, 3)], initializer=["ones", 2.0])
        self.assertAllEqual(layer(*given), [[1, 1, 2, 2, 2]])
        layer = TableBatchedEmbeddingBags([(10, 2), (None, 3)], initializer="ones")
        self.assertAllEqual(layer(*given), np.ones([1, 5]))
        self.assertEqual([int(table.size()) for table in layer.tables], [0, 0])

    @parameterized.parameters(
        (tbe.SparseType.FP16, tf.float16, 2e-3),
        (tbe.SparseType.BF16, tf.bfloat16, 2e-2),
    )
    def test_narrow_outputs_and_rows(self, kind, dtype, tolerance):
        rng = np.random.default_rng(SEED)
        inputs = random_inputs(rng)
        for options in ({"output_dtype": kind}, {"weights_precision": kind}):
            layer, oracle = pair(**options)
            output = layer(**inputs.arguments)
            self.assertEqual(output.dtype, dtype if "output_dtype" in options else tf.float32)
            self.assertAllClose(
                tf.cast(output, tf.float32),
                oracle(**inputs.arguments).output,
                rtol=tolerance,
                atol=tolerance,
            )
            wanted = dtype if "weights_precision" in options else tf.float32
            self.assertEqual([table.value_dtype for table in layer.tables], [wanted] * 3)

    def test_a_lookup_changes_nothing(self):
        layer = TableBatchedEmbeddingBags([(10, 2), (None, 3)], optimizer="adam")
        for training in (False, True):
            layer(np.array([3, 7]), np.array([0, 1, 2]), training=training)
        self.assertEqual([int(table.size()) for table in layer.tables], [0, 0])

    def test_one_op_looks_all_tables_up(self):
        layer, _ = pair()
        names = []
        for batched in (layer, TableBatchedEmbeddingBags([(3, 1)] * 9)):
            function = tf.function(batched)
            spec = tf.TensorSpec([None], tf.int64)
            ops = function.get_concrete_function(spec, spec).graph.get_operations()
            names.append(sorted(op.type for op in ops if op.type.startswith("TfEmbedFind")))
        self.assertEqual(names, [["TfEmbedFindPooledTables"]] * 2)


class NaturalInputsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.layer, self.oracle = pair(feature_names=list("abcd"))
        self.inputs = random_inputs(np.random.default_rng(SEED), 5, weighted=True)
        self.ragged = self.inputs.ragged(4)

    def wanted(self, weighted: bool = False) -> Any:
        arguments = self.inputs.arguments
        if not weighted:
            arguments["per_sample_weights"] = None
        return self.oracle(**arguments).output

    def test_a_list_of_ragged_tensors(self):
        self.assertAllClose(self.layer(self.ragged), self.wanted(), **CLOSE)
        self.assertAllClose(tf.function(self.layer)(self.ragged), self.wanted(), **CLOSE)

    def test_a_list_of_sparse_tensors(self):
        sparse = [one.to_sparse() for one in self.ragged]
        self.assertAllClose(self.layer(sparse), self.wanted(), **CLOSE)
        self.assertAllClose(tf.function(self.layer)(sparse), self.wanted(), **CLOSE)

    def test_weights_stand_as_the_ids_do(self):
        weights = self.inputs.ragged_weights(4)
        output = self.layer(self.ragged, per_sample_weights=weights)
        self.assertAllClose(output, self.wanted(weighted=True), **CLOSE)
        sparse = [one.to_sparse() for one in self.ragged]
        output = self.layer(sparse, per_sample_weights=[one.to_sparse() for one in weights])
        self.assertAllClose(output, self.wanted(weighted=True), **CLOSE)

    def test_a_dict_by_the_names_of_features_in_any_order(self):
        named = dict(zip("abcd", self.ragged, strict=True))
        backwards = {name: named[name] for name in "dcba"}
        self.assertAllClose(self.layer(backwards), self.wanted(), **CLOSE)
        weights = dict(zip("abcd", self.inputs.ragged_weights(4), strict=True))
        output = self.layer(backwards, per_sample_weights=weights)
        self.assertAllClose(output, self.wanted(weighted=True), **CLOSE)

    def test_dense_ids_and_a_mixture(self):
        columns = [np.array([[1, 4], [0, 0]]), np.array([3, 6]), np.array([[8], [2]])]
        ragged = tf.ragged.constant([[], [5, 5, 1]], dtype=tf.int64)
        indices = [1, 4, 0, 0, 3, 6, 8, 2, 5, 5, 1]
        offsets = [0, 2, 4, 5, 6, 7, 8, 8, 11]
        wanted = self.oracle(indices, offsets).output
        self.assertAllClose(self.layer([*columns, ragged]), wanted, **CLOSE)
        mixture = [tf.sparse.from_dense([[2, 5], [1, 1]]), *columns[1:], ragged.to_sparse()]
        mixture[0] = tf.SparseTensor(mixture[0].indices, [1, 4, 0, 0], [2, 2])
        self.assertAllClose(self.layer(mixture), wanted, **CLOSE)

    def test_ids_and_offsets_in_python_lists(self):
        two = TableBatchedEmbeddingBags([(10, 2), (10, 3)], initializer="ones")
        one = TableBatchedEmbeddingBags([(10, 2)], initializer="ones")
        self.assertEqual(two(indices=[[1, 2, 3], [4, 5, 6]]).shape, (3, 5))
        self.assertEqual(two(indices=[[[1, 2], [3, 4]], [[4, 5], [5, 6]]]).shape, (2, 5))
        self.assertEqual(two(indices=[[[1, 2, 3]], [[4]]]).shape, (1, 5))
        self.assertEqual(one(indices=[[1, 2, 3]]).shape, (3, 2))
        offsets = [np.int64(0), np.int64(1), np.int64(2)]
        self.assertEqual(one(np.array([1, 2]), offsets=offsets).shape, (2, 2))

    def test_ids_of_int32_and_empty_batches(self):
        ids = [tf.cast(one, tf.int32) for one in self.ragged]
        self.assertAllClose(self.layer(ids), self.wanted(), **CLOSE)
        nothing = [tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0])] * 4
        self.assertEqual(self.layer(nothing).shape, (0, sum(DIMS)))
        self.assertEqual(self.layer([tf.zeros([0, 3], tf.int64)] * 4).shape, (0, sum(DIMS)))

    @parameterized.parameters(
        (lambda ids: ids[:3], "must have one for each of 4 features. Received: 3"),
        (lambda ids: [*ids, ids[0]], "4"),
        (lambda ids: dict(zip("abc", ids, strict=False)), "must have just the features .*'d'"),
        (lambda ids: {**dict(zip("abcd", ids, strict=True)), "e": ids[0]}, "'e'"),
        (
            lambda ids: [*ids[:3], tf.zeros([2, 2, 2], tf.int64)],
            "must be a ragged, sparse or dense",
        ),
        (lambda ids: [*ids[:3], tf.zeros([5, 1])], "integers"),
        (lambda ids: [*ids[:3], tf.constant([["a"]] * 5)], "integers"),
    )
    def test_what_is_no_list_of_ids_of_each_feature_is_refused(self, change, words):
        with self.assertRaisesRegex((TypeError, ValueError), words):
            self.layer(change(self.ragged))

    @parameterized.parameters(
        (lambda weights: np.zeros([5, 1], "f"), "of the kind of its ids, RaggedTensor"),
        (lambda weights: weights.to_sparse(), "of the kind of its ids, RaggedTensor"),
        (lambda weights: weights[:, :1], "must have the shape of its ids"),
        (lambda weights: weights[:0], "must have the shape of its ids"),
        (
            lambda weights: tf.RaggedTensor.from_row_lengths(weights, [weights.nrows()]),
            "must have the shape of its ids",
        ),
    )
    def test_weights_that_do_not_stand_as_the_ids_do_are_refused(self, change, words):
        weights = self.inputs.ragged_weights(4)
        weights[3] = change(weights[3])
        with self.assertRaisesRegex((ValueError, tf.errors.InvalidArgumentError), words):
            self.layer(self.ragged, per_sample_weights=weights)

    def test_weights_that_a_graph_meets_are_as_many_as_indices(self):
        call = tf.function(
            lambda indices, weights: self.layer(indices, np.arange(5), weights),
            input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])],
        )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must have one for each of `indices`"
        ):
            call(np.array([0, 1, 1, 0]), np.ones(3, "f"))

    def test_sparse_weights_in_another_order_than_the_ids_are_refused(self):
        layer = TableBatchedEmbeddingBags([(10, 2)], optimizer="EXACT_SGD")
        places = tf.constant([[0, 0], [1, 0]], tf.int64)
        ids = tf.SparseTensor(places, tf.constant([1, 2], tf.int64), [2, 1])
        weights = tf.SparseTensor(places[::-1], tf.ones([2]), [2, 1])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must have the indices of its ids, in their order"
        ):
            layer([ids], per_sample_weights=[weights])

    def test_weights_of_unknown_rank_have_the_shape_of_the_ids(self):
        layer = TableBatchedEmbeddingBags([(10, 2)], optimizer="EXACT_SGD")
        layer.build()
        call = tf.function(
            lambda ids, weights: layer.call([ids], per_sample_weights=[weights]),
            input_signature=[tf.TensorSpec([None, None], tf.int64), tf.TensorSpec(None)],
        )
        self.assertEqual(call(np.zeros([3, 3], int), np.ones([3, 3], "f")).shape, (3, 2))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must have the shape of its ids"
        ):
            call(np.zeros([3, 3], int), np.ones(3, "f"))

    def test_batches_of_other_sizes_are_refused(self):
        for call in (self.layer, tf.function(self.layer)):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError, "must have equally many bags. 'd' has not"
            ):
                call([*self.ragged[:3], self.ragged[3][:4]])

    def test_a_dict_needs_names_of_features(self):
        layer, _ = pair()
        with self.assertRaisesRegex(ValueError, "must be given if `indices` is a dict"):
            layer(dict(zip("abcd", self.ragged, strict=True)))


if __name__ == "__main__":
    tf.test.main()

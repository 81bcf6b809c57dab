# SPDX-License-Identifier: Apache-2.0
"""The lookups in code that was written for TFRA, against TensorFlow's on a dense variable."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.optimizer_cases import CLOSE, KINDS
from tf_embed import tfra
from tf_embed.tfra import shadow_ops

DIM = 4  # even, as EmaInplaceRowwiseAdagrad halves rows
ROWS = 7
# The key of each row of the dense variable.
KEYS = np.array([5, -1, 0, 2**40, -(2**63), 2**63 - 1, 9])
REFUSED = ("MultiOptimizer", "Muon, embeddings too")

SIGNATURES = {
    "embedding_lookup": "params ids partition_strategy name validate_indices max_norm "
    "return_trainable",
    "embedding_lookup_unique": "params ids partition_strategy name validate_indices max_norm "
    "return_trainable",
    "embedding_lookup_sparse": "params sp_ids sp_weights partition_strategy name combiner max_norm "
    "return_trainable",
    "safe_embedding_lookup_sparse": "embedding_weights sparse_ids sparse_weights combiner "
    "default_id name partition_strategy max_norm return_trainable",
    "Variable": "key_dtype value_dtype dim devices partitioner shared_name name initializer "
    "trainable checkpoint init_size kv_creator restrict_policy bp_v2 short_file_name",
    "get_variable": "name key_dtype value_dtype dim devices partitioner shared_name initializer "
    "trainable checkpoint init_size kv_creator restrict_policy bp_v2 short_file_name",
    "DynamicEmbeddingOptimizer": "keras_optimizer bp_v2 synchronous",
    "shadow_ops.ShadowVariable": "params name max_norm trainable distribute_strategy",
    "shadow_ops.embedding_lookup": "shadow ids partition_strategy name validate_indices",
    "shadow_ops.embedding_lookup_unique": "shadow ids embedding_size with_unique name",
    "ragged_embedding_ops.embedding_lookup_sparse": "params sp_ids sp_weights name combiner",
    "ragged_embedding_ops.safe_embedding_lookup_sparse": "embedding_weights sparse_ids "
    "sparse_weights combiner default_id name",
    "math.sparse_segment_sum": "data indices segment_ids name num_segments",
    "math.sparse_fill_empty_rows": "sp_input default_value name",
    "math.sparse_reshape": "sp_input shape name",
    "data_flow.dynamic_partition": "data partitions num_partitions name",
    "data_flow.dynamic_stitch": "indices data use_fast name",
    "enable_train_mode": "",
    "enable_inference_mode": "",
    "get_model_mode": "",
}


def pair(rng: np.random.Generator, **options: Any) -> tuple[tf_embed.Variable, tf.Variable]:
    """A table and a dense variable with the same rows."""
    rows = rng.normal(size=[ROWS, DIM]).astype(np.float32)
    v = tf_embed.tfra.Variable(dim=DIM, **options)
    v.upsert(KEYS, rows)
    return v, tf.Variable(rows)


def gradients_of(v: tf_embed.Variable, slices: tf.IndexedSlices | None) -> np.ndarray:
    """The gradient of a table as a dense matrix, in the order of the dense variable."""
    dense = np.zeros([ROWS, DIM], np.float32)
    if slices is not None:
        for key, row in zip(slices.indices.numpy(), slices.values.numpy(), strict=True):
            dense[KEYS.tolist().index(key)] += row
    return dense


def sparse(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers and weights for a tensor; -1 at places without a row."""
    numbers = np.where(rng.random(shape) < 0.6, rng.integers(0, ROWS, shape), -1)
    numbers.reshape(-1, shape[-1])[0] = -1  # an empty bag
    numbers.reshape(-1, shape[-1])[-1] = -1
    return numbers, rng.uniform(-0.5, 2.0, shape).astype(np.float32)


def sparse_tensor(values: np.ndarray, numbers: np.ndarray) -> tf.SparseTensor:
    places = np.argwhere(numbers >= 0)
    return tf.SparseTensor(places, values[tuple(places.T)], numbers.shape)


def ragged_tensor(values: np.ndarray, numbers: np.ndarray) -> tf.RaggedTensor:
    lines = [line[there >= 0] for line, there in zip(values, numbers, strict=True)]
    return tf.RaggedTensor.from_row_lengths(np.concatenate(lines), [len(line) for line in lines])


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(*SIGNATURES.items())
    def test_arguments_stand_where_old_code_gives_them(self, name, wanted):
        found: Any = tfra
        for part in name.split("."):
            found = getattr(found, part)
        if inspect.isclass(found):
            found = found.__init__
        names = [one for one in inspect.signature(found).parameters if one != "self"]
        self.assertEqual(names[: len(wanted.split())], wanted.split())

    def test_the_mode_is_kept_and_changes_no_graph(self):
        v = tf_embed.tfra.Variable(dim=1)
        self.assertEqual(tfra.get_model_mode(), tfra.ModelMode.TRAIN)

        def operations() -> list[str]:
            @tf.function
            def look_up(ids):
                return tf_embed.tfra.embedding_lookup(v, ids)

            graph = look_up.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph
            return [operation.type for operation in graph.get_operations()]

        before = operations()
        tfra.enable_inference_mode()
        try:
            self.assertEqual(tfra.get_model_mode(), "inference")
            self.assertEqual(operations(), before)
            self.assertNotIn("AssignVariableOp", before)
        finally:
            tfra.enable_train_mode()
        self.assertEqual(tfra.ModelMode.CURRENT_SETTING, "train")

    def test_what_is_tensorflows_is_handed_on(self):
        sums = tfra.math.sparse_segment_sum(
            tf.constant([[1.0], [2.0], [4.0]]), [0, 2, 1], [0, 0, 2], num_segments=4
        )
        self.assertAllEqualLists(sums.numpy(), [[5.0], [0.0], [2.0], [0.0]])
        ids = tf.SparseTensor([[1, 0]], [7], [2, 2])
        filled, empty = tfra.math.sparse_fill_empty_rows(ids, 3)
        self.assertEqual(filled.values.numpy().tolist(), [3, 7])
        self.assertEqual(empty.numpy().tolist(), [True, False])
        self.assertEqual(tfra.math.sparse_reshape(ids, [4]).indices.numpy().tolist(), [[2]])
        parts = tfra.data_flow.dynamic_partition([10, 20, 30], [1, 0, 1], 2)
        self.assertEqual([part.numpy().tolist() for part in parts], [[20], [10, 30]])
        stitched = tfra.data_flow.dynamic_stitch([[1], [0, 2]], [[20], [10, 30]], False)
        self.assertEqual(stitched.numpy().tolist(), [10, 20, 30])

    def assertAllEqualLists(self, found: Any, wanted: Any) -> None:  # noqa: N802
        np.testing.assert_array_equal(found, wanted)


class DenseIdsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        lookup=["embedding_lookup", "embedding_lookup_unique", "shadow", "shadow unique"],
        max_norm=[None, 1.1],
        shape=[(), (4,), (2, 0), (2, 3, 2)],
    )
    @pytest.mark.smoke
    def test_rows_and_gradients(self, lookup, max_norm, shape):
        rng = np.random.default_rng(1)
        v, dense = pair(rng, devices=["/CPU:0"] * 2)
        numbers = rng.integers(0, ROWS, shape)
        ids, factors = tf.constant(KEYS[numbers]), rng.normal(size=[*shape, DIM]).astype("f")
        shadow = shadow_ops.ShadowVariable(v, max_norm=max_norm)
        with tf.GradientTape() as tape:
            if lookup == "shadow":
                rows, source = shadow_ops.embedding_lookup(shadow, ids), shadow
            elif lookup == "shadow unique":
                rows, source = shadow_ops.embedding_lookup_unique(shadow, ids, DIM), shadow
            else:
                rows, source = getattr(tf_embed.tfra, lookup)(
                    v, ids, name="users", max_norm=max_norm, return_trainable=True
                )
                self.assertIs(source, v.anchor)
            loss = tf.reduce_sum(factors * tf.square(rows))
        with tf.GradientTape() as dense_tape:
            wanted = tf.nn.embedding_lookup(dense, numbers, max_norm=max_norm)
            dense_loss = tf.reduce_sum(factors * tf.square(wanted))
        self.assertAllClose(rows, wanted, rtol=1e-6)
        found = gradients_of(v, tape.gradient(loss, source))
        self.assertAllClose(
            found, tf.convert_to_tensor(dense_tape.gradient(dense_loss, dense)), rtol=1e-5
        )
        self.assertAllEqual(v.lookup(KEYS), dense)

    @parameterized.parameters(True, False)
    def test_ragged_ids_of_a_shadow(self, with_unique):
        v, dense = pair(np.random.default_rng(2))
        numbers = tf.ragged.constant([[1, 1, 2], [], [6]], dtype=tf.int64)
        ids = numbers.with_values(tf.gather(KEYS, numbers.values))
        rows = shadow_ops.embedding_lookup_unique(
            shadow_ops.ShadowVariable(v), ids, DIM, with_unique
        )
        self.assertAllEqual(rows.values, tf.gather(dense, numbers.values))
        self.assertAllEqual(rows.row_splits, ids.row_splits)

    def test_a_list_of_one_variable_is_that_one(self):
        v, dense = pair(np.random.default_rng(3))
        self.assertAllEqual(tf_embed.tfra.embedding_lookup([v], KEYS[:2]), dense[:2])
        with self.assertRaisesRegex(
            ValueError, "`params` must be one tf_embed.Variable. Received: 2 of them"
        ):
            tf_embed.tfra.embedding_lookup([v, v], KEYS)

    @parameterized.parameters(0, -1.0)
    def test_a_norm_that_is_none_is_refused(self, max_norm):
        with self.assertRaisesRegex(ValueError, "`max_norm` must be above 0"):
            tf_embed.tfra.embedding_lookup(tf_embed.tfra.Variable(), [1], max_norm=max_norm)

    @parameterized.parameters("1", True)
    def test_a_norm_that_is_no_number_is_refused(self, max_norm):
        with self.assertRaisesRegex(TypeError, "`max_norm` must be a number. Received: max_norm="):
            tf_embed.tfra.embedding_lookup(tf_embed.tfra.Variable(), [1], max_norm=max_norm)

    def test_norms_are_one_number(self):
        with self.assertRaisesRegex(ValueError, "`max_norm` must be one number. Received: max_n"):
            tf_embed.tfra.embedding_lookup(
                tf_embed.tfra.Variable(), [1], max_norm=tf.constant([1.0])
            )

    @parameterized.parameters(
        (3, TypeError, "`name` must be a str or None. Received: name=3"),
    )
    def test_a_name_of_an_operation_is_a_str(self, name, error, message):
        with self.assertRaisesRegex(error, message):
            tf_embed.tfra.embedding_lookup(tf_embed.tfra.Variable(), [1], name=name)

    def test_the_norm_of_a_shadow_holds_in_each_lookup(self):
        ids = tf.constant([1], tf.int64)
        ragged = tf.RaggedTensor.from_row_lengths(ids, [1])
        layer = tfra.keras.layers.Embedding(2, max_norm=1.0)
        own = tf_embed.tfra.Variable(dim=2)
        pairs = [
            (own, shadow_ops.ShadowVariable(own, max_norm=1.0)),
            (layer.params, layer.shadow),
        ]
        for v, shadow in pairs:
            v.upsert(ids, [[3.0, 4.0]])
            ragged_ops = tfra.ragged_embedding_ops
            for rows in (
                shadow_ops.embedding_lookup(shadow, ids),
                shadow_ops.embedding_lookup_unique(shadow, ids, 2),
                tf_embed.tfra.embedding_lookup(shadow, ids),
                tf_embed.tfra.embedding_lookup([shadow], ids),
                tf_embed.tfra.embedding_lookup_unique(shadow, ids),
                tf.gather(*tf_embed.unique_rows(shadow, ids)),
                tf_embed.tfra.embedding_lookup_sparse(shadow, ragged.to_sparse(), None),
                tf_embed.tfra.safe_embedding_lookup_sparse(shadow, ragged.to_sparse()),
                ragged_ops.embedding_lookup_sparse(shadow, ragged),
                ragged_ops.safe_embedding_lookup_sparse(shadow, ragged),
            ):
                self.assertAllClose(rows, [[0.6, 0.8]])
            for look_up in (tf_embed.embedding_lookup, tf_embed.embedding_lookup_unique):
                self.assertAllClose(look_up(shadow, ids, max_norm=2.5), [[1.5, 2.0]])
            self.assertAllEqual(tf_embed.tfra.embedding_lookup(v, ids), [[3.0, 4.0]])

    def test_a_norm_of_rows_that_have_none_is_refused(self):
        whole = tf_embed.tfra.Variable(value_dtype=tf.int32)
        with self.assertRaisesRegex(TypeError, "`max_norm` must be None .* dtype int32"):
            tf_embed.tfra.embedding_lookup(whole, [1], max_norm=1.0)

    @parameterized.parameters(
        tf_embed.embedding_lookup, tf_embed.embedding_lookup_unique, tfra.shadow_ops
    )
    def test_rows_whose_squares_are_beyond_float16_are_scaled_down(self, lookup):
        v = tf_embed.tfra.Variable(dim=2, value_dtype=tf.float16, initializer=[300.0, 400.0])
        if lookup is shadow_ops:
            shadow = shadow_ops.ShadowVariable(v, max_norm=5.0)
            rows = shadow_ops.embedding_lookup(shadow, [1])
        else:
            rows = lookup(v, [1], max_norm=5.0)
        self.assertEqual(rows.dtype, tf.float16)
        self.assertAllClose(rows, [[3.0, 4.0]], rtol=1e-3)

    def test_the_trainable_is_returned_in_a_graph_too(self):
        v = tf_embed.tfra.Variable(dim=1)

        @tf.function
        def gradient(ids):
            with tf.GradientTape() as tape:
                rows, trainable = tf_embed.tfra.embedding_lookup(v, ids, return_trainable=True)
            return tape.gradient(rows, trainable).values

        self.assertAllEqual(gradient(tf.constant([3, 3], tf.int64)), [[1.0], [1.0]])


class PooledIdsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        combiner=["sum", "mean", "sqrtn"],
        weighted=[False, True],
        max_norm=[None, 1.1],
        container=["sparse", "ragged"],
    )
    @pytest.mark.smoke
    def test_rows_and_gradients(self, combiner, weighted, max_norm, container):
        rng = np.random.default_rng(4)
        v, dense = pair(rng, devices=["/CPU:0"] * 2)
        numbers, weights = sparse(rng, (6, 5))
        weights = np.abs(weights) + 0.1
        of = sparse_tensor if container == "sparse" else ragged_tensor
        factors = rng.normal(size=[6, DIM]).astype("f")
        with tf.GradientTape() as tape:
            rows = tf_embed.tfra.embedding_lookup_sparse(
                v,
                of(KEYS[numbers], numbers),
                of(weights, numbers) if weighted else None,
                combiner=combiner,
                max_norm=max_norm,
            )
            loss = tf.reduce_sum(factors * rows)
        with tf.GradientTape() as dense_tape:
            wanted = tf.nn.safe_embedding_lookup_sparse(  # it fills empty rows
                dense,
                sparse_tensor(numbers, numbers),
                sparse_tensor(weights, numbers) if weighted else None,
                combiner=combiner,
                max_norm=max_norm,
            )
            dense_loss = tf.reduce_sum(factors * wanted)
        self.assertEqual(rows.shape, [6, DIM])
        self.assertAllClose(rows, wanted, rtol=1e-5)
        found = gradients_of(v, tape.gradient(loss, v.anchor))
        self.assertAllClose(
            found, tf.convert_to_tensor(dense_tape.gradient(dense_loss, dense)), rtol=1e-5
        )

    @parameterized.product(
        combiner=["sum", "mean", "sqrtn"],
        default_id=[None, 2],
        weighted=[False, True],
        shape=[(4, 3), (2, 3, 4), (1, 2, 2, 5)],
    )
    @pytest.mark.smoke
    def test_safe_rows_of_any_rank_and_gradients(self, combiner, default_id, weighted, shape):
        rng = np.random.default_rng(5)
        v, dense = pair(rng)
        numbers, weights = sparse(rng, shape)
        factors = rng.normal(size=[*shape[:-1], DIM]).astype("f")
        with tf.GradientTape() as tape:
            rows = tf_embed.tfra.safe_embedding_lookup_sparse(
                v,
                sparse_tensor(KEYS[numbers], numbers),
                sparse_tensor(weights, numbers) if weighted else None,
                combiner=combiner,
                default_id=None if default_id is None else int(KEYS[default_id]),
            )
            loss = tf.reduce_sum(factors * rows)
        with tf.GradientTape() as dense_tape:
            wanted = tf.nn.safe_embedding_lookup_sparse(
                dense,
                sparse_tensor(numbers, numbers),
                sparse_tensor(weights, numbers) if weighted else None,
                combiner=combiner,
                default_id=default_id,
            )
            dense_loss = tf.reduce_sum(factors * wanted)
        self.assertAllClose(rows, wanted, rtol=1e-5)
        found = gradients_of(v, tape.gradient(loss, v.anchor))
        self.assertAllClose(
            found, tf.convert_to_tensor(dense_tape.gradient(dense_loss, dense)), rtol=1e-5
        )

    def test_ragged_ids_of_three_axes(self):
        v, dense = pair(np.random.default_rng(6))
        numbers = tf.ragged.constant([[[1, 2], []], [], [[3], [4, 5, 6], [1]]], dtype=tf.int64)
        ids = numbers.with_flat_values(tf.gather(KEYS, numbers.flat_values))
        sums = tf_embed.tfra.safe_embedding_lookup_sparse(v, ids, combiner="sum")
        rows = tf.gather(dense, numbers.flat_values)
        self.assertAllClose(sums.flat_values, [
            rows[0] + rows[1],
            tf.zeros([DIM]),
            rows[2],
            rows[3] + rows[4] + rows[5],
            rows[6],
        ])  # fmt: skip
        self.assertAllEqual(sums.row_splits, ids.row_splits)
        of_first = tfra.ragged_embedding_ops.embedding_lookup_sparse(v, ids, combiner="sum")
        self.assertAllClose(
            of_first, [rows[0] + rows[1], tf.zeros([DIM]), tf.reduce_sum(rows[2:], 0)]
        )

    def test_sparse_ids_of_three_axes_and_any_order_are_pooled_into_the_first(self):
        v, dense = pair(np.random.default_rng(7))
        ids = tf.SparseTensor([[2, 1, 0], [0, 1, 1], [0, 0, 3]], KEYS[[1, 2, 3]], [4, 2, 5])
        found = tf_embed.tfra.embedding_lookup_sparse(v, ids, None, combiner="mean")
        zeros = tf.zeros([DIM])
        self.assertAllClose(found, [(dense[2] + dense[3]) / 2, zeros, dense[1], zeros])

    @parameterized.product(
        lookup=[
            tf_embed.embedding_lookup_sparse,
            tf_embed.safe_embedding_lookup_sparse,
            tfra.ragged_embedding_ops.embedding_lookup_sparse,
            tfra.ragged_embedding_ops.safe_embedding_lookup_sparse,
        ],
        value_dtype=[tf.float32, tf.float64, tf.bfloat16],
        weight_dtype=[tf.int32, tf.int64, tf.uint8],
    )
    def test_weights_may_be_integers_and_a_combiner_none(self, lookup, value_dtype, weight_dtype):
        v = tf_embed.tfra.Variable(dim=1, value_dtype=value_dtype)
        v.upsert([1, 2, 3], tf.constant([[1.0], [2.0], [4.0]], value_dtype))
        ids = tf.RaggedTensor.from_row_lengths(tf.constant([1, 2, 3], tf.int64), [2, 1])
        whole = ids.with_values(tf.constant([1, 3, 5], weight_dtype))
        pooled = value_dtype if value_dtype == tf.float64 else tf.float32
        for combiner in ("sum", "mean", "sqrtn", None):
            found = lookup(v, ids, whole, combiner=combiner)
            self.assertEqual(found.dtype, pooled)
            floats = tf.cast(whole, tf.float32)
            self.assertAllEqual(found, lookup(v, ids, floats, combiner=combiner or "mean"))
        self.assertAllEqual(lookup(v, ids, combiner=None), [[1.5], [4.0]])
        if lookup is tf_embed.embedding_lookup_sparse:
            sparse = lookup(v, ids.to_sparse(), whole.to_sparse(), combiner=None, max_norm=9.0)
            self.assertAllEqual(sparse, [[7 / 4], [4.0]])

    @parameterized.parameters(1e19, None)
    def test_no_ids_at_all(self, max_norm):
        v = tf_embed.tfra.Variable(dim=2)
        ids = tf.SparseTensor(tf.zeros([0, 3], tf.int64), tf.zeros([0], tf.int64), [2, 0, 4])
        safe = tf_embed.tfra.safe_embedding_lookup_sparse(v, ids, max_norm=max_norm)
        self.assertEqual(safe.shape, [2, 0, 2])
        sums = tf_embed.tfra.embedding_lookup_sparse(v, ids, None, max_norm=max_norm)
        self.assertAllEqual(sums, tf.zeros([2, 2]))

    def test_strings_with_a_default(self):
        v = tf_embed.tfra.Variable(tf.string, dim=1)
        v.upsert(["a", "none"], [[1.0], [5.0]])
        ids = tf.RaggedTensor.from_row_lengths(["a", "a", "b"], [2, 0, 1])
        found = tf_embed.tfra.safe_embedding_lookup_sparse(v, ids, default_id="none")
        self.assertAllEqual(found, [[1.0], [5.0], [0.0]])

    def test_a_default_that_is_more_than_one_id_is_refused(self):
        ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
        with self.assertRaisesRegex(ValueError, "`default_id` must be one id. Received: .*3, 4"):
            tf_embed.tfra.safe_embedding_lookup_sparse(
                tf_embed.tfra.Variable(), ids, default_id=[3, 4]
            )

    def test_narrow_rows_are_pooled_in_float32(self):
        v = tf_embed.tfra.Variable(dim=1, value_dtype=tf.bfloat16, initializer=1.0)
        ids = tf.RaggedTensor.from_row_lengths(tf.range(300, dtype=tf.int64), [300])
        for max_norm in (None, 2.0):
            sums = tf_embed.tfra.embedding_lookup_sparse(v, ids, combiner="sum", max_norm=max_norm)
            self.assertEqual(sums.dtype, tf.float32)
            self.assertAllEqual(sums, [[300.0]])

    @parameterized.parameters(
        ({"sp_ids": tf.constant([[1]], tf.int64)}, TypeError, "`sp_ids` must be a tf.SparseTensor"),
        ({"combiner": "max"}, ValueError, "`combiner` must be None or one of sum, mean, sqrtn"),
        ({"sp_ids": [[1, 2]]}, TypeError, "must be a tf.SparseTensor or tf.RaggedTensor; tf_emb"),
        ({"sp_weights": tf.constant([[1.0]])}, TypeError, "`sp_weights` must be None or of the"),
        (
            {"sp_ids": tf.SparseTensor([[0]], tf.constant([1], tf.int64), [1])},
            ValueError,
            "`sp_ids` must have at least two axes",
        ),
        (
            {"sp_ids": tf.SparseTensor([[0, 0]], [1.0], [1, 1])},
            TypeError,
            "`sp_ids` of 'mine' must be of dtype int64",
        ),
        (
            {"sp_weights": tf.SparseTensor([[0, 0], [0, 1]], [True, False], [1, 2])},
            TypeError,
            "`sp_weights` must be floating or integers. Received: dtype=bool",
        ),
        (
            {"sp_weights": tf.SparseTensor([[0, 0]], [1.0], [1, 2])},
            ValueError,
            "Received: shapes of the indices or row splits",
        ),
        (
            {"sp_weights": tf.SparseTensor([[0, 0], [1, 1]], [1.0, 2.0], [2, 2])},
            tf.errors.InvalidArgumentError,
            "`sp_weights` must have the indices of `sp_ids`",
        ),
        (
            {
                "sp_ids": tf.ragged.constant([[1, 2]], dtype=tf.int64),
                "sp_weights": tf.ragged.constant([[[1.0], [2.0]]]),
            },
            ValueError,
            "`sp_weights` must be as ragged as `sp_ids`. Received: ragged ranks 2 and 1",
        ),
        (
            {"sp_ids": tf.ragged.constant([[[1, 2]]], ragged_rank=1, dtype=tf.int64)},
            ValueError,
            "`sp_ids` must be ragged along the last axis",
        ),
    )
    def test_what_is_wrong_is_refused(self, wrong, error, words):
        ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 2], tf.int64), [1, 2])
        v = tf_embed.tfra.Variable(dim=1, name="mine")
        with self.assertRaisesRegex(error, words):
            tf_embed.tfra.embedding_lookup_sparse(v, **{"sp_ids": ids, "sp_weights": None, **wrong})

    @parameterized.parameters(0, 2)
    def test_weights_that_a_graph_meets_are_as_many_as_ids(self, count):
        v = tf_embed.tfra.Variable(dim=1)
        kinds = [tf.SparseTensorSpec([None, None], dtype) for dtype in (v.key_dtype, tf.float32)]
        call = tf.function(partial(tf_embed.safe_embedding_lookup_sparse, v), input_signature=kinds)
        ids = tf.SparseTensor([[0, 0]], tf.constant([5], v.key_dtype), [1, 2])
        places = tf.constant([[0, 0], [0, 1]], tf.int64)[:count]
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "`sparse_weights` must have the indices of"
        ):
            call(ids, tf.SparseTensor(places, tf.ones([count]), [1, 2]))


class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*(kind for kind in KINDS if kind not in REFUSED))
    def test_ten_steps_through_each_lookup_equal_a_dense_variable(self, kind):
        rng = np.random.default_rng(8)
        tables, dense = zip(*(pair(rng, name=f"table_{i}") for i in range(4)), strict=True)
        dense = [keras.Variable(one.numpy(), name="embeddings") for one in dense]
        optimizer = tf_embed.DynamicEmbeddingOptimizer(KINDS[kind]())
        oracle = KINDS[kind]()
        anchors = [table.anchor for table in tables]
        for _ in range(10):
            # Every row is touched, some more than once.
            numbers = rng.permutation(np.concatenate([np.arange(ROWS), [0, 3, 3]])).reshape(5, 2)
            ids = tf.RaggedTensor.from_tensor(KEYS[numbers])
            factors = rng.normal(size=[4, 5, 2, DIM]).astype("f")
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(
                    factors[0] * tf_embed.tfra.embedding_lookup(tables[0], KEYS[numbers], name="a")
                ) + tf.reduce_sum(
                    factors[1] * tf_embed.tfra.embedding_lookup_unique(tables[1], KEYS[numbers])
                )
                sums = tf_embed.tfra.embedding_lookup_sparse(
                    tables[2], ids.to_sparse(), None, combiner="sum"
                )
                loss += tf.reduce_sum(factors[2][:, 0] * sums)
                means = tf_embed.tfra.safe_embedding_lookup_sparse(tables[3], ids.to_sparse())
                loss += tf.reduce_sum(factors[3][:, 0] * means)
            optimizer.apply(tape.gradient(loss, anchors), anchors)
            with tf.GradientTape() as tape:
                rows = [tf.gather(one.value, numbers) for one in dense]
                loss = tf.reduce_sum(factors[0] * rows[0]) + tf.reduce_sum(factors[1] * rows[1])
                loss += tf.reduce_sum(factors[2][:, 0] * tf.reduce_sum(rows[2], 1))
                loss += tf.reduce_sum(factors[3][:, 0] * tf.reduce_mean(rows[3], 1))
            gradients = tape.gradient(loss, [one.value for one in dense])
            oracle.apply([tf.convert_to_tensor(one) for one in gradients], dense)
        for table, one in zip(tables, dense, strict=True):
            self.assertAllClose(table.lookup(KEYS), one.value, **CLOSE)

# SPDX-License-Identifier: Apache-2.0
"""Rows of `MultiTableEmbedding`: initial rows, ids of any kind, separate and shared tables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import (
    KEY_TYPES,
    constant_tables,
    edges,
    layer,
    store,
    uniform_tables,
)
from support.oracles.reference import SEED
from tf_embed import one_embedding

NATIVE = {
    "uniform": (
        one_embedding.make_uniform_initializer(-0.5, 2.0),
        keras.initializers.RandomUniform(-0.5, 2.0, seed=3),
    ),
    "normal": (
        one_embedding.make_normal_initializer(1.0, 0.5),
        keras.initializers.RandomNormal(1.0, 0.5, seed=3),
    ),
    "constant": (one_embedding.make_constant_initializer(0.3), keras.initializers.Constant(0.3)),
    "truncated_normal": (
        one_embedding.make_trunc_normal_initializer(1.0, 2.0, -3.0, 5.0),
        keras.initializers.TruncatedNormal(1.0, 2.0, seed=3),
    ),
}
CUT = one_embedding.make_trunc_normal_initializer(0.0, 1.0, -0.25, 3.0)


def table(name: str) -> dict:
    return one_embedding.make_table(NATIVE[name][0])


def packed(ids: np.ndarray, table_number: int) -> np.ndarray:
    return ids.astype(np.int64) + table_number * 2**32


class InitialRowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(kind=list(NATIVE), dtype=["float32", "float16", "bfloat16"])
    def test_one_table_has_the_rows_of_a_dynamic_embedding(self, kind, dtype):
        ids = edges("int64")
        emb = layer([table(kind)], seed=3, dim=5, dtype=dtype)
        other = tf_embed.layers.DynamicEmbedding(
            5, value_dtype=dtype, initializer=NATIVE[kind][1], name="emb", dtype=dtype
        )
        self.assertAllEqual(emb(ids), other(ids))

    @parameterized.parameters("int32", "uint32")
    def test_tables_of_narrow_ids_have_the_rows_of_their_packed_keys(self, key_type):
        ids = edges(key_type)
        kinds = ["uniform", "constant", "normal"]
        emb = layer([table(kind) for kind in kinds], key_type, seed=3, dim=3)
        for number, kind in enumerate(kinds):
            other = tf_embed.layers.DynamicEmbedding(3, initializer=NATIVE[kind][1], name="emb")
            tables = np.full(ids.shape, number)
            self.assertAllEqual(emb(ids, tables), other(packed(ids, number)))

    @parameterized.parameters("int64", "uint64")
    def test_tables_of_wide_ids_have_the_rows_of_their_own_names(self, key_type):
        ids = edges(key_type)
        kinds = ["uniform", "constant", "normal"]
        emb = layer([table(kind) for kind in kinds], key_type, seed=3, dim=3)
        for number, kind in enumerate(kinds):
            other = tf_embed.Variable(
                key_dtype=key_type,
                dim=3,
                initializer=NATIVE[kind][1],
                name=f"emb/table_{number}",
            )
            self.assertAllEqual(emb(ids, np.full(ids.shape, number)), other.lookup(ids))

    @parameterized.parameters(*KEY_TYPES)
    def test_a_table_has_the_same_rows_beside_tables_of_other_initializers(self, key_type):
        ids = edges(key_type)
        alike = layer([table("uniform")] * 2, key_type)
        cut = one_embedding.make_table(CUT)
        mixed = layer([table("uniform"), cut], key_type)
        tables = np.zeros_like(ids)
        self.assertAllEqual(alike(ids, tables), mixed(ids, tables))

    def test_columns_have_the_rows_of_tables_of_their_own(self):
        columns = [one_embedding.make_column_options(NATIVE[one][0]) for one in NATIVE]
        dims = [1, 3, 2, 2]
        emb = layer([one_embedding.make_table(columns)], dim=dims, seed=3)
        ids = edges("int64")
        rows = emb(ids)
        self.assertEqual(rows.shape, [len(ids), 8])
        begin = 0
        for number, (kind, dim) in enumerate(zip(NATIVE, dims, strict=True)):
            alone = tf_embed.Variable(
                dim=dim, initializer=NATIVE[kind][1], name=f"emb/column_{number}"
            )
            self.assertAllEqual(rows[:, begin : begin + dim], alone.lookup(ids))
            begin += dim

    @parameterized.parameters(*KEY_TYPES)
    def test_columns_of_tables_differ_by_their_initializers(self, key_type):
        def columns(*values):
            make = one_embedding.make_constant_initializer
            return one_embedding.make_table(
                [one_embedding.make_column_options(make(one)) for one in values]
            )

        emb = layer([columns(1.0, 2.0), columns(3.0, 4.0)], key_type, dim=[1, 2])
        rows = emb(tf.constant([[9, 9], [2, 5]], key_type))
        self.assertAllEqual(rows, [[[1, 2, 2], [3, 4, 4]]] * 2)

    @parameterized.product(key_type=KEY_TYPES, mixed=[False, True])
    def test_rows_depend_on_no_order_and_no_batch(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0, 3.0) if mixed else uniform_tables(1.0) * 3
        rng = np.random.default_rng(SEED)
        ids = rng.integers(0, 50, [40, 3]).astype(key_type)
        emb = layer(tables, key_type)
        whole = emb(ids).numpy()
        again = layer(tables, key_type)
        order = rng.permutation(40)
        for line in order:
            self.assertAllEqual(again(ids[line : line + 1])[0], whole[line])
        every = np.broadcast_to(np.arange(3), ids.shape)
        flat = rng.permutation(ids.size)
        self.assertAllEqual(
            again(ids.reshape(-1)[flat], every.reshape(-1)[flat]), whole.reshape([-1, 2])[flat]
        )

    def test_seed_name_and_table_make_other_rows(self):
        ids = np.arange(64)

        def rows(number: int = 0, key_type: str = "int32", **options):
            emb = layer(uniform_tables(1.0) * 2, key_type, **options)
            return emb(ids, np.full(64, number)).numpy()

        self.assertAllEqual(rows(), rows())
        for key_type in ("int32", "int64"):
            first = rows(key_type=key_type)
            for other in (
                rows(1, key_type),
                rows(key_type=key_type, seed=1),
                rows(key_type=key_type, name="other"),
            ):
                self.assertFalse(np.equal(first, other).any(1).any())

    def test_without_tables_there_is_one_of_the_default_initializer(self):
        rows = layer(dim=64)(np.arange(2000)).numpy()
        self.assertAllClose([rows.mean(), rows.std()], [0.0, 0.05], atol=1e-3)
        ones = one_embedding.make_constant_initializer(1.0)
        self.assertAllEqual(layer(default_initializer=ones)(np.arange(3)), np.ones([3, 2]))

    def test_no_tables_of_tables_of_many_initializers_come_out_wrong(self):
        values = [float(number) for number in range(40)]
        for key_type in KEY_TYPES:
            emb = layer(constant_tables(*values), key_type, dim=1)
            rng = np.random.default_rng(SEED)
            tables = rng.integers(0, 40, [7, 5])
            ids = rng.integers(0, 10**9, [7, 5])
            self.assertAllEqual(emb(ids, tables)[..., 0], tables)


class IdsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    @parameterized.product(key_type=KEY_TYPES, mixed=[False, True])
    def test_every_id_of_every_table_has_a_row_of_its_own(self, key_type, mixed):
        tables = constant_tables(1.0, 2.0, 3.0) if mixed else constant_tables(0.0) * 3
        ids = edges(key_type)
        emb = layer(tables, key_type, dim=1, optimizer=keras.optimizers.SGD(1.0))
        every = np.stack([ids] * 3, -1)
        before = emb(every).numpy()
        wanted = before - np.arange(before.size).reshape(before.shape)
        with tf.GradientTape() as tape:
            # Each weight has a different gradient.
            loss = tf.reduce_sum(emb(every) * np.arange(before.size).reshape(before.shape))
        gradients = tape.gradient(loss, emb.trainable_variables)
        keras.optimizers.SGD().apply(gradients, emb.trainable_variables)
        self.assertAllEqual(emb(every), wanted)
        self.assertEqual(int(emb.size()), every.size)

    @parameterized.product(key_type=KEY_TYPES, mixed=[False, True])
    def test_padding_is_zeros_and_gets_neither_gradient_nor_row(self, key_type, mixed):
        tables = constant_tables(1.0, 2.0) if mixed else constant_tables(1.0) * 2
        kind = tf.as_dtype(key_type).as_numpy_dtype
        for padding in (0, int(np.iinfo(kind).max), int(np.iinfo(kind).min)):
            emb = layer(tables, key_type, padding_idx=padding, optimizer="sgd")
            ids = np.array([[padding, 5], [5, padding], [padding, padding]], kind)
            with tf.GradientTape() as tape:
                rows = emb(ids)
                loss = tf.reduce_sum(rows)
            other = 2.0 if mixed else 1.0
            self.assertAllEqual(rows[..., 0], [[0, other], [1, 0], [0, 0]])
            gradients = tape.gradient(loss, emb.trainable_variables)
            keras.optimizers.SGD().apply(gradients, emb.trainable_variables)
            self.assertEqual(int(emb.size()), 2)
            self.assertAllEqual(emb(ids)[2], np.zeros([2, 2]))

    @parameterized.parameters("int32", "int64")
    def test_only_padding_and_nothing_at_all_are_batches(self, key_type):
        for tables in (constant_tables(1.0, 2.0), constant_tables(1.0) * 2):
            emb = layer(tables, key_type, padding_idx=0)
            self.assertAllEqual(emb(np.zeros([3, 2], np.int32)), np.zeros([3, 2, 2]))
            self.assertEqual(emb(np.zeros([0, 2], np.int32)).shape, [0, 2, 2])

    @parameterized.parameters(*KEY_TYPES)
    def test_table_ids_may_have_any_shape_and_integer_dtype(self, key_type):
        emb = layer(constant_tables(1.0, 2.0, 3.0), key_type, dim=1)
        for shape in ([], [6], [2, 3], [1, 2, 3]):
            ids = np.ones(shape, np.int32)
            tables = (np.arange(ids.size) % 3).reshape(shape)
            for dtype in (np.int8, np.int32, np.uint64):
                rows = emb(tf.constant(ids), tf.constant(tables.astype(dtype)))
                self.assertAllEqual(rows, (tables + 1.0)[..., None])

    def test_equal_ids_are_one_row_where_ids_are_shared(self):
        for key_type in KEY_TYPES:
            emb = layer(uniform_tables(1.0) * 2, key_type, shared_ids=True, optimizer="sgd")
            self.assertLen(emb.row_tables, 1)
            ids = tf.constant([[7, 7]], key_type)
            rows = emb(ids)
            self.assertAllEqual(rows[0, 0], rows[0, 1])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(emb(ids))
            gradients = tape.gradient(loss, emb.trainable_variables)
            keras.optimizers.SGD().apply(gradients, emb.trainable_variables)
            self.assertAllClose(emb(ids), rows - 0.02, atol=1e-6)
            self.assertEqual(int(emb.size()), 1)

    @parameterized.parameters("int32", "int64")
    def test_a_shared_row_starts_by_the_table_with_which_it_came_first(self, key_type):
        optimizer = keras.optimizers.SGD(1.0)
        emb = layer(
            constant_tables(1.0, 2.0), key_type, dim=1, shared_ids=True, optimizer=optimizer
        )
        ids, tables = tf.constant([7, 7, 8], key_type), tf.constant([1, 0, 0])
        # An evaluation stores nothing, so no id has a first table yet.
        self.assertAllEqual(emb(ids, tables)[:, 0], [2, 2, 1])
        self.assertAllEqual(emb(ids[1:], tables[1:])[:, 0], [1, 1])
        self.assertEqual(int(emb.size()), 0)
        with tf.GradientTape() as tape:
            rows = emb(ids, tables, training=True)
            loss = tf.reduce_sum(rows)
        self.assertAllEqual(rows[:, 0], [2, 2, 1])
        gradients = tape.gradient(loss, emb.trainable_variables)
        keras.optimizers.SGD().apply(gradients, emb.trainable_variables)
        self.assertAllEqual(emb(ids, 1 - tables)[:, 0], [0, 0, 0])

    @parameterized.product(key_type=["int32", "int64"], mixed=[False, True])
    def test_evaluation_stores_nothing(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0) if mixed else uniform_tables(1.0) * 2
        emb = layer(tables, key_type)
        emb(np.arange(20).reshape([10, 2]))
        emb(np.arange(20).reshape([10, 2]), training=True)
        self.assertEqual(int(emb.size()), 0)

    @parameterized.parameters(
        (tf.constant([1.0, 2.0]), None, TypeError, "`ids` of 'emb' must be integers"),
        (tf.constant(["a"]), None, TypeError, "`ids` of 'emb'"),
        (tf.constant([1, 2, 3]), None, ValueError, r"`ids` of 'emb'.*\(3,\)"),
        (tf.constant(1), None, ValueError, "`ids` of 'emb'"),
        (tf.constant([1, 2]), tf.constant([0]), ValueError, "`table_ids` of 'emb'"),
        (tf.constant([1, 2]), tf.constant([0.0, 1.0]), TypeError, "`table_ids` of 'emb'"),
        (tf.ragged.constant([[1], [2, 3]]), None, TypeError, "must be dense: fill short lines up"),
        (tf.sparse.from_dense([[1, 2]]), None, TypeError, "dense"),
    )
    def test_bad_ids_are_refused_by_name(self, ids, table_ids, error, message):
        emb = layer(constant_tables(1.0, 2.0))
        with self.assertRaisesRegex(error, message):
            emb.forward(ids, table_ids)

    @parameterized.parameters("int32", "int64")
    def test_a_table_out_of_range_is_refused(self, key_type):
        emb = layer(constant_tables(1.0, 2.0), key_type)
        ids = tf.constant([1, 2])
        for bad in ([0, 2], [-1, 0]):
            for run in (emb, tf.function(lambda *given: emb(*given))):
                number = max(bad, key=abs)
                words = rf"from 0 to 1, and of the shape of `ids`(.|\n)*Received:\W+{number}\W+at"
                with self.assertRaisesRegex(tf.errors.InvalidArgumentError, words):
                    run(ids, tf.constant(bad))

    def test_an_id_that_the_key_type_does_not_hold_is_refused(self):
        emb = layer(key_type="int32")
        words = "must fit its key dtype int32; choose a wider `key_type`.*Received: 2147483648 at "
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, words):
            emb(tf.constant([2**31], tf.int64))
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "uint64"):
            layer(key_type="uint64")(tf.constant([-1]))

    def test_shapes_that_are_not_known_are_checked_when_they_are(self):
        emb = layer(constant_tables(1.0, 2.0), dim=1)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
        def rows(ids):
            return emb(ids)

        self.assertAllEqual(rows(tf.constant([[5, 6]], tf.int64))[..., 0], [[1, 2]])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must have a place for each of 2 tables, without"
        ):
            rows(tf.constant([[5, 6, 7]], tf.int64))

    def test_store_takes_no_name_twice_by_accident(self):
        ids = np.arange(8)
        one, two = layer(store_options=store("/tmp/a")), layer(store_options=store("/tmp/b"))
        one.build(), two.build()
        one.row_tables[0].upsert(ids, np.ones([8, 2], np.float32))
        self.assertEqual(int(two.size()), 0)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Training of `MultiTableEmbedding` against NumPy, `DynamicEmbedding` and Keras."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import (
    KEY_TYPES,
    DenseTables,
    constant_tables,
    layer,
    store,
    uniform_tables,
)
from support.oracles.reference import SEED
from tf_embed import one_embedding

OUTER = keras.optimizers.SGD


def train(emb, optimizer, ids, tables, factors):
    """Makes a step on the sum of rows times factors, and returns the loss."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(emb(ids, tables, training=True) * factors)
    variables = emb.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


def apart(key_type: str, num_tables: int, dim: int, initializers, **options):
    """A DynamicEmbedding for each table, with the table's initial rows."""
    layers = []
    for number in range(num_tables):
        wide = key_type in ("int64", "uint64") and num_tables > 1
        one = tf_embed.layers.DynamicEmbedding(
            dim, "int64", initializer=initializers[number], name="emb", **options
        )
        if wide:
            one._table_name = f"emb/table_{number}"
        layers.append(one)
    return layers


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        key_type=KEY_TYPES,
        kind=["constant", "alike", "mixed", "columns"],
        padding=[None, 3],
    )
    def test_steps_of_sgd_are_those_of_dense_tables_in_numpy(self, key_type, kind, padding):
        rng = np.random.default_rng(SEED)
        dim: int | list[int] = 3
        if kind == "constant":
            given = constant_tables(0.5, 0.5, 0.5)
        elif kind == "alike":
            given = uniform_tables(1.0) * 3
        elif kind == "mixed":
            given = uniform_tables(1.0, 2.0, 3.0)
        else:
            dim, make = [2, 1], one_embedding.make_constant_initializer
            given = [
                one_embedding.make_table(
                    [one_embedding.make_column_options(make(t + c)) for c in (0.0, 0.5)]
                )
                for t in range(3)
            ]
        own = keras.optimizers.SGD(0.25)
        emb = layer(given, key_type, dim=dim, optimizer=own, padding_idx=padding)
        initial = layer(given, key_type, dim=dim)
        kind_of = tf.as_dtype(key_type).as_numpy_dtype

        def first(table, one):
            return initial(np.array([one], kind_of), np.array([table]))[0].numpy()

        dense = DenseTables(first)
        outer = OUTER()
        for _ in range(6):
            ids = rng.integers(0, 9, [5, 3]).astype(key_type)
            tables = rng.integers(0, 3, [5, 3])
            factors = rng.integers(-4, 5, [5, 3, 3]).astype(np.float32)
            with self.subTest("lookup"):
                wanted = dense.find(ids, tables, padding)
                self.assertAllEqual(emb(ids, tables), wanted)
            train(emb, outer, ids, tables, factors)
            dense.step(ids, tables, factors, 0.25, padding)
        self.assertEqual(int(emb.size()), len(dense.rows))
        every = np.broadcast_to(np.arange(9)[:, None], [9, 3]).astype(key_type)
        columns = np.broadcast_to(np.arange(3), [9, 3])
        self.assertAllEqual(emb(every), dense.find(every, columns, padding))

    @parameterized.product(
        key_type=KEY_TYPES,
        optimizer=[
            *("sgd", "adagrad", "adam", "ftrl", "adamax", "rowwise_adagrad"),
            one_embedding.SmartDecayAdam(),
            one_embedding.Ftrl(0.1, 0.1, lambda1=0.01),
        ],
        mixed=[False, True],
    )
    def test_steps_have_the_bits_of_layers_of_their_own(self, key_type, optimizer, mixed):
        rng = np.random.default_rng(SEED)
        highs = (1.0, 2.0, 3.0) if mixed else (1.0,) * 3
        emb = layer(uniform_tables(*highs), key_type, dim=4, seed=5, optimizer=optimizer)
        initializers = [keras.initializers.RandomUniform(-high, high, seed=5) for high in highs]
        others = apart(key_type, 3, 4, initializers, optimizer=optimizer)
        stride = 2**32 if key_type in ("int32", "uint32") else 0
        outer, outers = OUTER(), [OUTER() for _ in others]
        for _ in range(5):
            ids = rng.integers(0, 30, [8, 3])
            factors = rng.normal(size=[8, 3, 4]).astype(np.float32)
            train(emb, outer, tf.constant(ids, key_type), None, factors)
            for number, (one, other) in enumerate(zip(others, outers, strict=True)):
                with tf.GradientTape() as tape:
                    rows = one(ids[:, number] + stride * number, training=True)
                    loss = tf.reduce_sum(rows * factors[:, number])
                variables = one.trainable_variables
                other.apply(tape.gradient(loss, variables), variables)
        every = np.broadcast_to(np.arange(30)[:, None], [30, 3])
        rows = emb(tf.constant(every, key_type))
        for number, one in enumerate(others):
            self.assertAllEqual(rows[:, number], one(every[:, number] + stride * number))

    def test_ftrl_starts_its_linear_term_at_zero(self):
        rate, first = 0.5, 0.1
        for key_type in ("int32", "int64"):
            own = keras.optimizers.Ftrl(rate, initial_accumulator_value=first)
            emb = layer(constant_tables(0.0, 0.0), key_type, dim=1, optimizer=own)
            train(emb, OUTER(), tf.constant([[5, 6]]), None, 2.0)
            # z = g - (sqrt(n + g^2) - sqrt(n)) / rate * 0, w = -z * rate / sqrt(n + g^2).
            self.assertAllClose(emb(tf.constant([[5, 6]]))[0, 0], [-2 * rate / np.sqrt(4.1)])

    @parameterized.parameters("int32", "int64")
    def test_the_optimizer_of_the_model_trains_the_tables(self, key_type):
        for tables in (uniform_tables(1.0) * 2, uniform_tables(1.0, 2.0)):
            own = layer(tables, key_type, optimizer=keras.optimizers.Adam(0.1))
            by_model = layer(tables, key_type)
            outer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            inner = OUTER()
            for step in range(4):
                ids = tf.constant([[1, 1], [step, 2]])
                train(own, inner, ids, None, 1.5)
                train(by_model, outer, ids, None, 1.5)
            self.assertAllEqual(own(ids), by_model(ids))

    def test_a_model_without_an_optimizer_for_tables_is_refused(self):
        emb = layer()
        with self.assertRaisesRegex(ValueError, "DynamicEmbeddingOptimizer"):
            train(emb, OUTER(), tf.constant([5]), None, 1.0)

    @parameterized.parameters("int32", "int64")
    def test_a_frozen_layer_does_not_train(self, key_type):
        emb = layer(uniform_tables(1.0) * 2, key_type, optimizer="sgd")
        emb.build()
        emb.trainable = False
        ids = tf.constant([[1, 2]])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(emb(ids))
        variables = [part.trainable_variables for part in emb.row_tables]
        flat = tf.nest.flatten(variables)
        OUTER().apply(tape.gradient(loss, flat), flat)
        self.assertEqual(int(emb.size()), 0)

    @parameterized.parameters(True, False)
    def test_a_frozen_layer_of_shared_ids_keeps_its_rows(self, traced):
        emb = layer(
            constant_tables(0.0, 1.0),
            dim=1,
            shared_ids=True,
            store_options=store(capacity=2),
            policy=tf_embed.TablePolicy(eviction="lru"),
            optimizer=keras.optimizers.SGD(1.0),
        )
        emb.build()
        (variable,), outer = emb.row_tables, OUTER()

        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(emb(ids, training=True))
            outer.apply(tape.gradient(loss, [variable.anchor]), [variable.anchor])

        step = tf.function(step) if traced else step

        def after(ids):
            step(tf.constant([ids]))
            keys, rows = variable.export()[:2]
            return dict(zip(keys.numpy().tolist(), rows[:, 0].numpy(), strict=True))

        trained = {1: -1.0, 2: 0.0}
        self.assertEqual(after([1, 2]), trained)
        emb.trainable = False
        # Rows of 3 and 4 would evict the rows of 1 and 2.
        self.assertEqual(after([3, 4]), trained)
        emb.trainable = True
        self.assertEqual(after([3, 4]), {3: -1.0, 4: 0.0})

    @parameterized.product(key_type=["int32", "int64"], mixed=[False, True])
    def test_loops_and_conditions_have_gradients(self, key_type, mixed):
        tables = uniform_tables(1.0, 2.0) if mixed else uniform_tables(1.0) * 2
        looped = layer(tables, key_type, optimizer="sgd")
        plain = layer(tables, key_type, optimizer="sgd")
        looped.build(), plain.build()
        ids = tf.constant([[1, 2], [1, 3], [4, 4]])

        @tf.function
        def step(given):
            with tf.GradientTape() as tape:
                rows = tf.map_fn(
                    lambda one: looped(one[None])[0], given, fn_output_signature=tf.float32
                )
                loss = tf.reduce_sum(rows)
            return tape.gradient(loss, looped.trainable_variables)

        OUTER().apply(step(ids), looped.trainable_variables)
        train(plain, OUTER(), ids, None, 1.0)
        self.assertAllClose(looped(ids), plain(ids), atol=1e-6)
        self.assertEqual(int(looped.size()), int(plain.size()))


class PolicyTest(tf.test.TestCase, parameterized.TestCase):
    def emb(self, policy, capacity=4, key_type="int32", tables=None, **options):
        return layer(
            tables or constant_tables(0.0, 0.0),
            key_type,
            dim=1,
            store_options=store(capacity=capacity),
            policy=policy,
            optimizer=keras.optimizers.SGD(1.0),
            **options,
        )

    def test_without_a_policy_what_comes_beyond_capacity_is_stored(self):
        for key_type in KEY_TYPES:
            emb = self.emb(None, key_type=key_type)
            train(emb, OUTER(), tf.constant(np.arange(200).reshape([100, 2])), None, 1.0)
            self.assertEqual(int(emb.size()), 200)

    def test_a_policy_without_an_order_grows(self):
        emb = self.emb(tf_embed.TablePolicy(eviction=None))
        train(emb, OUTER(), tf.constant([[1, 2], [3, 4], [5, 6]]), None, 1.0)
        self.assertEqual(int(emb.size()), 6)

    @parameterized.parameters([None], [(1.0, 2.0)])
    def test_capacity_is_the_bound_of_all_tables_and_the_lru_leaves(self, values):
        tables = None if values is None else constant_tables(*values)
        emb = self.emb(tf_embed.TablePolicy(), tables=tables)
        outer = OUTER()
        for ids in ([[1, 1]], [[2, 2]], [[1, 3]], [[4, 4]]):
            train(emb, outer, tf.constant(ids), None, 1.0)
            self.assertLessEqual(int(emb.size()), 4)
        (rows,) = emb.row_tables
        keys = sorted(rows.export()[0].numpy())
        self.assertEqual(keys, [1, 4, 2**32 + 3, 2**32 + 4])
        self.assertEqual(rows.stats()["evicted"], 3)

    def test_a_read_in_training_keeps_a_row(self):
        emb = self.emb(tf_embed.TablePolicy(), capacity=2)
        outer = OUTER()
        train(emb, outer, tf.constant([[1]]), tf.constant([[0]]), 1.0)
        train(emb, outer, tf.constant([[2]]), tf.constant([[0]]), 1.0)
        emb(tf.constant([[1]]), tf.constant([[0]]), training=True)
        train(emb, outer, tf.constant([[3]]), tf.constant([[0]]), 1.0)
        self.assertEqual(sorted(emb.row_tables[0].export()[0].numpy()), [1, 3])

    @parameterized.parameters([None], [(1.0, 2.0)])
    def test_what_finds_no_room_is_refused_and_counted(self, values):
        tables = None if values is None else constant_tables(*values)
        emb = self.emb(tf_embed.TablePolicy(), tables=tables)
        train(emb, OUTER(), tf.constant(np.arange(20).reshape([10, 2])), None, 1.0)
        self.assertEqual(int(emb.size()), 4)
        self.assertEqual(emb.row_tables[0].stats()["refused"], 16)
        # The first ids of the batch have rows; the others have their initial rows.
        first = (0.0, 0.0) if values is None else values
        rows = emb(np.arange(20).reshape([10, 2]))[..., 0]
        self.assertAllEqual(rows[:2], [[one - 1.0 for one in first]] * 2)
        self.assertAllEqual(rows[2:], [first] * 8)

    def test_a_policy_of_scores_refuses_all_that_comes_beyond_capacity(self):
        policy = tf_embed.TablePolicy(eviction="score", score_fn=lambda keys: -keys)
        emb = self.emb(policy, capacity=3)
        outer = OUTER()
        for one in (1, 2, 3, 4, 5):
            train(emb, outer, tf.constant([[one]]), tf.constant([[0]]), 1.0)
        self.assertEqual(sorted(emb.row_tables[0].export()[0].numpy()), [1, 2, 3])
        self.assertEqual(emb.row_tables[0].stats()["refused"], 2)

    def test_tables_of_wide_ids_have_equal_parts_of_the_capacity(self):
        emb = self.emb(tf_embed.TablePolicy(), capacity=5, key_type="int64")
        train(emb, OUTER(), tf.constant(np.arange(20).reshape([10, 2])), None, 1.0)
        self.assertEqual([int(one.size()) for one in emb.row_tables], [3, 2])

    def bounded(self, policy, capacity, num_folders=3, devices=None):
        """A layer of four tables of wide ids."""
        return layer(
            constant_tables(0.0, 0.0, 0.0, 0.0),
            dim=1,
            store_options=store([f"/tmp/rows/{n}" for n in range(num_folders)], capacity),
            policy=policy,
            devices=devices,
            optimizer=keras.optimizers.SGD(1.0),
        )

    @parameterized.parameters(
        (tf_embed.TablePolicy(), 40),
        (tf_embed.TablePolicy(max_rows=40), 1000),
        (tf_embed.TablePolicy(max_rows=40, eviction=None), 1000),
    )
    def test_the_parts_of_all_tables_and_folders_add_up_to_the_bound(self, policy, capacity):
        emb = self.bounded(policy, capacity)
        train(emb, OUTER(), tf.constant(np.arange(400).reshape([100, 4])), None, 1.0)
        sizes = [int(one.size()) for one in emb.row_tables]
        self.assertEqual(sizes, [4] * 4 + [3] * 8)
        again = type(emb).from_config(emb.get_config())  # divides the whole bound, not a part
        bounds = [one.table.options.policy.max_rows for one in again.row_tables]
        self.assertEqual(bounds, sizes)

    @parameterized.parameters(
        (tf_embed.TablePolicy(), 11, None, "`capacity` of `store_options`"),
        (tf_embed.TablePolicy(11), 100, None, "`max_rows` of `policy`"),
        (tf_embed.TablePolicy(), 11, ["/CPU:0"] * 3, "`capacity` of `store_options`"),
    )
    def test_a_bound_below_a_row_for_each_shard_is_refused(
        self, policy, capacity, devices, argument
    ):
        folders = 3 if devices is None else 1
        name = argument.split("`")[1]
        words = f"{argument} must be at least 12, a row for each shard of the tables of rows. "
        words += f"Received: {name}=11$"
        with self.assertRaisesRegex(ValueError, words):
            self.bounded(policy, capacity, folders, devices)

    def test_a_capacity_that_bounds_nothing_may_be_low(self):
        for policy in (None, tf_embed.TablePolicy(eviction=None)):
            emb = self.bounded(policy, 1)
            train(emb, OUTER(), tf.constant(np.arange(40).reshape([10, 4])), None, 1.0)
            self.assertEqual(int(emb.size()), 40)

    @parameterized.parameters([None], [(1.0, 2.0)])
    def test_an_evicted_row_that_comes_back_starts_anew(self, values):
        tables = None if values is None else constant_tables(*values)
        emb = self.emb(tf_embed.TablePolicy(), capacity=2, tables=tables)
        outer, first = OUTER(), 0.0 if values is None else values[0]
        zero = tf.constant([[0]])
        for one in (1, 1, 2, 3):
            train(emb, outer, tf.constant([[one]]), zero, 1.0)
        self.assertEqual(float(emb(tf.constant([[1]]), zero)[0, 0, 0]), first)
        train(emb, outer, tf.constant([[1]]), zero, 1.0)
        self.assertEqual(float(emb(tf.constant([[1]]), zero)[0, 0, 0]), first - 1.0)

    def test_admission_holds_rows_back(self):
        policy = tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(2))
        for tables in (constant_tables(0.0, 0.0), constant_tables(1.0, 2.0)):
            emb = self.emb(policy, tables=tables)
            outer = OUTER()
            train(emb, outer, tf.constant([[1, 1]]), None, 1.0)
            self.assertEqual(int(emb.size()), 0)
            train(emb, outer, tf.constant([[1, 2]]), None, 1.0)
            self.assertEqual(int(emb.size()), 1)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The ops of a table, each against the dict of reference.py."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import (
    FLOATING,
    HYPER,
    KEY_DTYPES,
    NO_OWNERS,
    RAW,
    VALUE_DTYPES,
    RawTable,
)
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS, SEED
from tf_embed.ops import slot_ops, whole_table_ops
from tf_embed.ops.new_table_ops import settings_text

pytestmark = pytest.mark.cpu


class FindAndAssignTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_dtype=KEY_DTYPES, value_dtype=VALUE_DTYPES)
    def test_find_gives_what_was_assigned_for_every_pair_of_dtypes(self, key_dtype, value_dtype):
        table = RawTable(3, key_dtype, value_dtype, num_shards=2, initial=7)
        keys = EXTREME_KEYS[key_dtype]
        rows = np.arange(len(keys) * 3).reshape(-1, 3) - 4
        table.assign(keys[1:], rows[1:])
        values, exists = table.find(keys)
        rows[0] = 7
        self.assertEqual(values.dtype, tf.as_dtype(value_dtype))
        self.assertAllEqual(values, rows.astype(values.dtype.as_numpy_dtype))
        self.assertAllEqual(exists, [False] + [True] * (len(keys) - 1))
        self.assertEqual(table.size(), len(keys) - 1)

    @parameterized.parameters(((),), ((0,),), ((3,),), ((2, 3),), ((2, 0, 3),), ((1, 2, 1, 3),))
    def test_keys_have_any_rank(self, shape):
        table = RawTable(2)
        keys = np.arange(int(np.prod(shape))).reshape(shape)
        rows = np.arange(keys.size * 2).reshape(*shape, 2)
        table.assign(keys, rows)
        values, exists = table.find(keys)
        self.assertAllEqual(values, rows)
        self.assertAllEqual(exists, np.ones(shape, bool))
        self.assertEqual(values.shape, (*shape, 2))

    def test_the_last_of_equal_keys_is_assigned_however_many_threads_work(self):
        rng = np.random.default_rng(SEED)
        keys = rng.integers(0, 500, 60_000)
        rows = np.arange(60_000 * 2).reshape(-1, 2)
        table = RawTable()
        table.assign(keys, rows)
        last = {int(key): row for key, row in zip(keys, rows, strict=True)}
        self.assertAllEqual(table.find(list(last))[0], list(last.values()))

    def test_find_or_insert_inserts_the_first_default_of_equal_keys(self):
        table = RawTable()
        table.assign([1], [[9.0, 9.0]])
        values, exists = table.find_or_insert([1, 2, 2], [[1, 1], [2, 2], [3, 3]])
        self.assertAllEqual(exists, [True, False, False])
        self.assertAllEqual(values[0], [9, 9])
        self.assertAllEqual(table.find([1, 2])[0], [[9, 9], [2, 2]])
        self.assertEqual(table.size(), 2)

    def test_defaults_are_the_initial_row_or_one_for_all_or_one_each(self):
        table = RawTable(initial=5)
        table.assign([1], [[1, 1]])
        self.assertAllEqual(table.find([1, 2])[0], [[1, 1], [5, 5]])
        self.assertAllEqual(table.find([1, 2], [6, 7])[0], [[1, 1], [6, 7]])
        self.assertAllEqual(table.find([1, 2], [[6, 6], [8, 9]])[0], [[1, 1], [8, 9]])

    def test_find_runs_in_a_function_and_in_a_data_pipeline(self):
        table = RawTable()
        table.assign([4, 5], [[4, 4], [5, 5]])
        find = tf.function(
            lambda keys: RAW.tf_embed_find(
                table=table.handle,
                keys=keys,
                owners=NO_OWNERS,
                defaults=np.zeros([0], np.float32),
                tokens=[],
                dim=2,
            )[0]
        )
        self.assertAllEqual(find(tf.constant([5, 4], tf.int64)), [[5, 5], [4, 4]])
        data = tf.data.Dataset.range(4, 6).batch(1).map(find, num_parallel_calls=2)
        self.assertAllEqual(list(data.as_numpy_iterator()), [[[4, 4]], [[5, 5]]])


class UpdateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("float16", "bfloat16")
    def test_slots_of_narrow_rows_are_float32(self, value_dtype):
        table = RawTable(1, value_dtype=value_dtype)
        for _ in range(10):
            table.apply([1], [[2.0**-9]], "adagrad", hyper=[0.0, 0.0, 1.0, 1e-7])
        slots = table.export().slots
        self.assertEqual(slots.dtype, tf.float32)
        self.assertAllEqual(slots, [[1.0 + 10 * 2.0**-18]])  # 1 in bfloat16 and in float16

    @parameterized.parameters(
        ("sgd", 0),
        ("momentum", 4),
        ("adagrad", 4),
        ("rowwise_adagrad", 1),
        ("adam", 8),
        ("adam_amsgrad", 12),
        ("rmsprop", 4),
        ("rmsprop_momentum", 8),
        ("rmsprop_centered", 8),
        ("rmsprop_centered_momentum", 12),
        ("ftrl", 8),
        ("smart_decay_adam", 10),
    )
    def test_a_row_carries_the_slots_of_its_rule(self, rule, slots):
        table = RawTable(4)
        table.apply([1, 2], np.ones([2, 4]), rule)
        self.assertEqual(table.export()[2].shape, (2, slots))
        self.assertEqual(table.export(with_slots=False)[2].shape, (2, 0))

    def test_an_import_beside_a_step_leaves_all_shards_one_rule(self):
        table, keys = RawTable(num_shards=2), np.arange(20000)
        table.assign(keys, np.ones([20000, 2]))
        without_a_rule = table.export()
        gradients = np.ones([20000, 2])
        for _ in range(40):
            step = threading.Thread(target=table.apply, args=(keys, gradients, "sgd"))
            step.start()
            table.take(without_a_rule)
            step.join()
            self.assertLen(table.export().keys, 20000)

    def test_another_rule_replaces_the_slots_and_keeps_the_weights(self):
        table = RawTable(2)
        table.apply([1, 2], np.ones([2, 2]), "adagrad")
        before = table.find([1, 2])[0]
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule="adagrad")), 0)
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule="adam")), 2)
        table.apply([3], np.ones([1, 2]), "adam")
        self.assertAllEqual(table.find([1, 2])[0], before)
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule="adam")), 0)
        keys, _, slots = table.export()[:3]
        self.assertEqual(slots.shape, (3, 4))
        self.assertAllEqual(slots.numpy()[keys.numpy() < 3], np.zeros([2, 4]))

    def test_updates_of_many_threads_are_all_made(self):
        table = RawTable(8, num_shards=2)
        keys = np.arange(200)

        def work() -> None:
            for _ in range(50):
                table.apply(keys, np.ones([200, 8]), hyper=[-1.0, 0.0])
                table.find(keys)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertAllEqual(table.find(keys)[0], np.full([200, 8], 200.0))

    def test_erase_ignores_absent_keys_and_forgets_slots(self):
        table = RawTable(1)
        table.apply([1, 2], [[1.0], [1.0]], "adagrad")
        table.erase([[1, 99]])
        self.assertEqual(table.size(), 1)
        self.assertAllEqual(table.find([1, 2])[1], [False, True])
        table.assign([1], [[0.0]])
        keys, _, slots = table.export()[:3]
        self.assertAllClose(slots.numpy()[keys.numpy() == 1], [[0.1]])


class WholeTableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(value_dtype=VALUE_DTYPES, key_dtype=("int64", "uint64", "uint32"))
    def test_import_restores_an_export_into_any_number_of_shards(self, value_dtype, key_dtype):
        one = RawTable(2, key_dtype, value_dtype, num_shards=3)
        keys = EXTREME_KEYS[key_dtype]
        one.assign(keys, np.arange(len(keys) * 2).reshape(-1, 2))
        if value_dtype in FLOATING:
            one.apply(keys[:3], np.ones([3, 2]), "adam")
        for shards in (1, 2, 3, 5):
            other = RawTable(2, key_dtype, value_dtype, num_shards=shards)
            other.assign([17], [[1, 1]])
            exported = one.export()
            other.take(exported)
            self.assertAllEqual(other.content()[0], one.content()[0])
            self.assertAllEqual(other.find(keys)[0], one.find(keys)[0])
            for ours, theirs in zip(one.export()[1:3], other.export()[1:3], strict=True):
                order, other_order = np.argsort(one.export()[0]), np.argsort(other.export()[0])
                self.assertAllEqual(tf.gather(ours, order), tf.gather(theirs, other_order))
            self.assertAllEqual(other.export()[3], one.export()[3])
            self.assertEqual(sum(other.size(shard) for shard in range(shards)), len(keys))

    def test_import_takes_seed_and_table_id_over(self):
        uniform = {"initializer": "uniform", "initializer_values": [0, 1]}
        one = RawTable(4, **uniform, seed=11, table_id=-12)
        other = RawTable(4, **uniform, seed=13, table_id=14)
        self.assertNotAllClose(one.find([1])[0], other.find([1])[0])
        exported = one.export()
        other.take(exported)
        self.assertAllEqual(one.find([1])[0], other.find([1])[0])

    def test_import_refuses_what_does_not_fit_and_changes_nothing(self):
        one, table = RawTable(2), RawTable(2)
        one.apply([1, 2], np.ones([2, 2]), "adam")
        table.assign([5], [[5, 5]])
        keys, values, slots, meta, *policy = (tensor.numpy() for tensor in one.export())
        errors = (tf.errors.InvalidArgumentError, tf.errors.DataLossError)
        for number in range(len(meta)):
            wrong = meta.copy()
            wrong[number] = 99
            if number in (1, 2, 10, 12):  # any seed, table id and new slots' values are valid
                continue
            with self.assertRaises(errors):
                table.take((keys, values, slots, wrong, *policy))
        for wrong in (
            ([1, 1], values, slots, meta),
            (keys, values[:1], slots, meta),
            (keys, values[:, :1], slots, meta),
            (keys, values, slots[:, :3], meta),
            (keys, values, slots, meta[:4]),
            (keys, values, slots, meta[:0]),
        ):
            with self.assertRaises(errors):
                wrong_keys = np.asarray(wrong[0], np.int64)
                table.take((wrong_keys, *wrong[1:], *policy))
        self.assertAllEqual(table.content()[0], [5])
        self.assertAllEqual(table.content()[1], [[5, 5]])

    def test_export_of_an_empty_table_is_empty(self):
        rows = RawTable(3).export()
        shapes = [one.shape for one in (rows.keys, rows.values, rows.slots, rows.statistics)]
        self.assertEqual(shapes, [(0,), (0, 3), (0, 0), (0, 0)])
        self.assertEqual(rows.meta.shape, (9,))
        self.assertAllEqual(rows.policy, [1, 0, 0])

    def test_an_export_beside_writers_holds_each_key_once(self):
        table = RawTable(1)
        stop = threading.Event()

        def write() -> None:
            rng = np.random.default_rng(SEED)
            while not stop.is_set():
                keys = rng.integers(0, 3000, 500)
                table.assign(keys, keys[:, None])
                table.erase(rng.integers(0, 3000, 300))

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(30):
                keys, values = table.export()[:2]
                self.assertLen(np.unique(keys), len(keys))
                self.assertAllEqual(values[:, 0], keys)
        finally:
            stop.set()
            thread.join()


@pytest.mark.smoke
class RandomVerbsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(shards=(1, 4), key_dtype=KEY_DTYPES)
    def test_a_table_does_what_a_dict_does(self, shards, key_dtype):
        rng = np.random.default_rng(SEED)
        pool = EXTREME_KEYS[key_dtype] + [int(key) for key in rng.integers(0, 2**31, 60)]
        table = RawTable(3, key_dtype, num_shards=shards, initial=0.5)
        oracle = reference.Table(3, initial=0.5)
        for _ in range(120):
            keys = reference.random_keys(rng, int(rng.integers(0, 40)), pool, key_dtype)
            rows = rng.integers(-8, 8, (len(keys), 3)) / 8  # so that sums are exact
            verb = rng.integers(0, 7)
            if verb == 0:
                table.assign(keys, rows)
                oracle.upsert(keys, rows)
            elif verb == 1:
                table.erase(keys)
                oracle.erase(keys)
            elif verb == 2:
                exists = rng.random(len(keys)) < 0.5
                table.accum(keys, rows, exists)
                oracle.accum(keys, rows, exists)
            elif verb == 3:
                self.assertAllEqual(table.find_or_insert(keys)[0], oracle.find_or_insert(keys)[0])
            elif verb == 4 and rng.random() < 0.1:
                RAW.tf_embed_clear(table=table.handle)
                oracle.clear()
            elif verb == 5:
                RAW.tf_embed_shrink(table=table.handle)
            else:
                table.apply(keys, rows, step=3)
                oracle.descend(keys, rows, 0.5)
            values, exists = table.find(pool)
            wanted, wanted_exists = oracle.find(np.array(pool, key_dtype))
            self.assertAllEqual(values, wanted)
            self.assertAllEqual(exists, wanted_exists)
            self.assertEqual(table.size(), len(oracle.rows))
        self.assertEqual(sorted(oracle.rows), table.content()[0].tolist())


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    def refused(self, message: str) -> Any:
        return self.assertRaisesRegex(tf.errors.InvalidArgumentError, message)

    def find(self, handle: tf.Tensor, keys: tf.Tensor, defaults: Any) -> tuple:
        return RAW.tf_embed_find(
            table=handle, keys=keys, owners=NO_OWNERS, defaults=defaults, tokens=[], dim=2
        )

    def assign(self, handle: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, dim: int) -> Any:
        return RAW.tf_embed_insert_or_assign(
            table=handle, keys=keys, owners=NO_OWNERS, values=values, scores=[], dim=dim
        )

    def test_another_dtype_or_dim_than_the_tables_is_refused_by_name(self):
        table = RawTable(2)
        with self.refused("`keys` of table 'raw' must be int64. Received: int32"):
            self.find(table.handle, tf.constant([1]), table.rows([]))
        with self.refused("holds float. Asked for: double"):
            self.find(table.handle, table.keys([1]), np.zeros(0))
        with self.refused(r"`values` of table 'raw' must have shape \[1,2\].*\[1,3\]"):
            self.assign(table.handle, table.keys([1]), tf.ones([1, 3]), dim=2)
        with self.refused("`dim` of table 'raw' must be 2. Received: dim=3"):
            self.assign(table.handle, table.keys([1]), tf.ones([1, 3]), dim=3)
        with self.refused(r"`exists` of table 'raw' must have the shape of the keys, \[2\]"):
            table.accum([1, 2], np.ones([2, 2]), [True])

    def test_a_shard_outside_of_the_table_is_refused_by_number(self):
        table = RawTable(2, num_shards=2)
        for owner in (-1, 2):
            with self.refused(rf"shard in \[0, 2\). Received: {owner} for key 7"):
                table.assign([7], [[1, 1]], owners=np.array([owner], np.int32))
        with self.refused("one shard for each of 1 keys. Received: 3"):
            table.find([7], owners=np.zeros([3], np.int32))
        for shard in (-2, 2):
            with self.refused(f"2 shards. Received: index={shard}"):
                table.size(shard)

    def test_hyper_parameters_and_steps_that_do_not_fit_are_refused(self):
        table = RawTable(1)
        for rule, hyper in HYPER.items():
            wanted = f"`hyper` of the rule '{rule}' must have {len(hyper)} numbers"
            with self.refused(f"{wanted}. Received: 3"):
                table.apply([1], [[1.0]], rule, hyper=[0.1, 0.0, 0.0])
        with self.refused("`step` must be at least 1. Received: 0"):
            table.apply([1], [[1.0]], step=0)
        for step in ([], [1], [1, 2]):
            with self.refused("`step` must be a scalar"):
                table.apply([1], [[1.0]], step=step)
        self.assertEqual(table.size(), 0)

    def test_a_handle_of_something_else_is_refused(self):
        other = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        with self.assertRaises((tf.errors.InvalidArgumentError, tf.errors.NotFoundError)):
            whole_table_ops.size(other.resource_handle, -1)

    def test_a_table_is_not_opened_as_one_of_another_kind(self):
        RawTable(2, shared_name="same")
        with self.refused("dim 2, in 1 shard and can't be opened as"):
            RawTable(3, shared_name="same")

    def test_tables_whose_settings_differ_in_one_bit_are_not_the_same(self):
        policy = {"admission": "bloom", "admission_error_rate": 0.3}
        table = RawTable(2, shared_name="bits", settings=policy)
        RawTable(2, shared_name="bits", settings=policy)
        rate = float(np.nextafter(np.float32(0.3), np.float32(1.0)))
        with self.refused("can't be opened as"):
            RawTable(2, shared_name="bits", settings=policy | {"admission_error_rate": rate})
        self.assertEqual(table.size(), 0)

    def test_attributes_of_earlier_graphs_are_read_as_settings(self):
        kind = {"key_dtype": tf.int64, "value_dtype": tf.float32, "dim": 2}
        path = os.path.join(self.get_temp_dir(), "a\nb\\c é")
        settings = {"max_rows": 9, "eviction": "lfu", "admission": "bloom", "log_evicted": True}
        settings |= {"admission_error_rate": 0.3, "host_bytes": 10**6, "path": path}
        first = RAW.tf_embed_table(shared_name="earlier", label="raw", **kind, **settings)
        self.assertTrue(os.path.isdir(path))

        def again(**settings: Any) -> tf.Tensor:
            return RAW.tf_embed_table(
                shared_name="earlier", **kind, settings=settings_text(settings)
            )

        self.assertEqual(int(whole_table_ops.size(again(**settings), -1)), 0)
        with self.refused("can't be opened as"):
            again(**settings | {"max_rows": 8})
        del first

    def test_initializer_values_must_be_as_many_as_the_kind_wants(self):
        with self.refused("`initializer_values` must be 2 numbers for initializer 'uniform'"):
            RawTable(2, initializer="uniform")

    def test_shapes_are_known_and_checked_while_a_graph_is_built(self):
        table = RawTable(2)
        with tf.Graph().as_default():
            handle = tf.compat.v1.placeholder(tf.resource, [])
            keys = tf.compat.v1.placeholder(tf.int64, [None, 3])
            empty = tf.zeros([0])
            values, exists = self.find(handle, keys, empty)
            self.assertEqual(values.shape.as_list(), [None, 3, 2])
            self.assertEqual(exists.shape.as_list(), [None, 3])
            with self.assertRaisesRegex(ValueError, "must be equal"):
                self.assign(handle, keys, tf.ones([4, 3, 5]), dim=2)
            exported = whole_table_ops.export(
                handle,
                key_dtype=tf.int64,
                value_dtype=tf.float32,
                slot_dtype=tf.float32,
                dim=2,
                with_slots=True,
            )
            self.assertEqual(exported[1].shape.as_list(), [None, 2])
        del table


if __name__ == "__main__":
    tf.test.main()

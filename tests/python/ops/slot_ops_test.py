# SPDX-License-Identifier: Apache-2.0
"""The ops for an optimizer outside of the table, which read and write whole rows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support.cases.raw_tables import FLOATING, KEY_DTYPES, NO_OWNERS, RawTable
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS, SEED
from tf_embed.ops import slot_ops
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.table.initializers import RowInitializer
from tf_embed.table.table import Table
from tf_embed.table.table_meta import TableMeta
from tf_embed.table.table_options import TableOptions

pytestmark = pytest.mark.cpu

RULE = ExternalRule(id=-77, widths=(2, 1), initial_values=(0.5, -1.0))


def find_slots(raw: RawTable, keys: Any, rule: ExternalRule = RULE, defaults: Any = ()) -> tuple:
    return slot_ops.find_slots(
        raw.handle,
        raw.keys(keys),
        NO_OWNERS,
        raw.rows(defaults),
        dim=raw.dim,
        slot_dtype=raw.slots_as,
        rule=rule,
    )


def assign_slots(
    raw: RawTable, keys: Any, rows: Any, slots: Any, rule: ExternalRule = RULE
) -> None:
    slots = tf.cast(np.asarray(slots), raw.slots_as)
    slot_ops.assign_slots(
        raw.handle, raw.keys(keys), NO_OWNERS, raw.rows(rows), slots, dim=raw.dim, rule=rule
    )


class SlotsTest(tf.test.TestCase, parameterized.TestCase):
    @pytest.mark.smoke
    @parameterized.product(key_dtype=KEY_DTYPES, value_dtype=FLOATING)
    def test_rows_come_back_as_they_were_assigned(self, key_dtype, value_dtype):
        table = RawTable(2, key_dtype, value_dtype, num_shards=2, initial=7)
        keys = EXTREME_KEYS[key_dtype]
        rows = np.arange(len(keys) * 2).reshape(-1, 2) - 3
        slots = np.arange(len(keys) * 3).reshape(-1, 3) / 8
        find_slots(table, keys)
        assign_slots(table, keys[1:], rows[1:], slots[1:])
        rows[0], slots[0] = 7, (0.5, 0.5, -1.0)
        values, found, exists = find_slots(table, keys)
        self.assertEqual(values.dtype, tf.as_dtype(value_dtype))
        self.assertEqual(found.dtype, table.slots_as)
        self.assertAllEqual(tf.cast(values, tf.float64), rows)
        self.assertAllEqual(found, slots)
        self.assertAllEqual(exists, [False] + [True] * (len(keys) - 1))
        self.assertAllEqual(table.find(keys)[0], values)

    def test_finding_slots_sets_the_rule_and_inserts_nothing(self):
        table = RawTable(2, num_shards=3)
        table.apply([1, 2], np.ones([2, 2]), "adam")
        weights = table.find([1, 2])[0]
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule=RULE)), 2)
        values, slots, exists = find_slots(table, [1, 2, 3])
        self.assertAllEqual(values[:2], weights)
        self.assertAllEqual(slots, [[0.5, 0.5, -1.0]] * 3)
        self.assertAllEqual(exists, [True, True, False])
        self.assertEqual(table.size(), 2)
        self.assertEqual(table.export()[2].shape, (2, 3))
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule=RULE)), 0)
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule="adam")), 2)

    @parameterized.parameters(((),), ((0,),), ((2, 3),), ((2, 0),))
    def test_keys_have_any_rank(self, shape):
        table = RawTable(2)
        keys = np.arange(int(np.prod(shape))).reshape(shape)
        rows, slots = np.ones([*shape, 2]), np.full([*shape, 3], 2.0)
        find_slots(table, keys)
        assign_slots(table, keys, rows, slots)
        values, found, exists = find_slots(table, keys)
        self.assertAllEqual(values, rows)
        self.assertAllEqual(found, slots)
        self.assertAllEqual(exists, np.ones(shape, bool))

    def test_the_last_of_equal_keys_is_assigned(self):
        table = RawTable(1)
        find_slots(table, [])
        assign_slots(table, [1, 1], [[1], [2]], [[1, 1, 1], [2, 2, 2]])
        values, slots, _ = find_slots(table, [1])
        self.assertAllEqual(values, [[2]])
        self.assertAllEqual(slots, [[2, 2, 2]])

    def test_defaults_are_the_rows_of_absent_keys(self):
        table = RawTable(2, initial=5)
        self.assertAllEqual(find_slots(table, [1, 2])[0], [[5, 5], [5, 5]])
        self.assertAllEqual(find_slots(table, [1], defaults=[6, 7])[0], [[6, 7]])
        each = find_slots(table, [1, 2], defaults=[[6, 6], [8, 9]])[0]
        self.assertAllEqual(each, [[6, 6], [8, 9]])

    def test_other_initial_values_are_those_of_new_rows_only(self):
        table = RawTable(1)
        find_slots(table, [])
        assign_slots(table, [1], [[1]], [[7, 8, 9]])
        rule = ExternalRule(RULE.id, RULE.widths, (float("nan"), 0.1))
        slots = find_slots(table, [1, 2], rule)[1].numpy()
        self.assertAllEqual(slots, np.array([[7, 8, 9], [np.nan, np.nan, 0.1]], np.float32))

    @parameterized.parameters(
        ExternalRule(-78, (2, 1), (0.0, 0.0)),
        ExternalRule(-77, (1, 2), (0.0, 0.0)),
        ExternalRule(-77, (3,), (0.0,)),
        ExternalRule(-77, (2, 1, 4), (0.0, 0.0, 0.0)),
        ExternalRule(-77, (), ()),
    )
    def test_another_id_or_other_widths_are_another_rule(self, rule):
        table = RawTable(1, num_shards=2)
        find_slots(table, [])
        assign_slots(table, [1], [[3]], [[7, 8, 9]])
        self.assertEqual(int(slot_ops.rows_of_other_rule(table.handle, rule=rule)), 1)
        values, slots, _ = find_slots(table, [1], rule)
        self.assertAllEqual(values, [[3]])
        self.assertAllEqual(slots, np.zeros([1, sum(rule.widths)]))

    @parameterized.parameters(1, 3)
    def test_assigning_slots_of_a_rule_that_was_replaced_is_refused_by_name(self, shards):
        table = RawTable(1, num_shards=shards)
        for replace in (lambda: None, lambda: table.apply([1], [[1.0]], "adam")):
            replace()
            before = table.export()
            with self.assertRaisesRegex(
                tf.errors.FailedPreconditionError, "optimizer of table 'raw' was changed"
            ):
                assign_slots(table, [1, 2, 3], np.ones([3, 1]), np.ones([3, 3]))
            for one, two in zip(before, table.export(), strict=True):
                self.assertAllEqual(one, two)

    def test_as_many_groups_as_a_rule_may_have_and_not_one_more(self):
        table = RawTable(1)
        widths = tuple(range(1, 17))
        slots = find_slots(table, [1], ExternalRule(1, widths, widths))[1]
        self.assertAllEqual(slots[0], np.repeat(widths, widths))
        with self.refused("`slot_widths` must be at most 16 numbers"):
            find_slots(table, [1], ExternalRule(1, (1,) * 17, (0.0,) * 17))

    @parameterized.parameters("int8", "int32", "int64")
    def test_integer_tables_have_no_slots(self, value_dtype):
        table = RawTable(1, value_dtype=value_dtype)
        with self.refused("holds int.*. Asked for: float"):
            slot_ops.find_slots(
                table.handle,
                table.keys([1]),
                NO_OWNERS,
                tf.zeros([0]),
                dim=1,
                slot_dtype=tf.float32,
                rule=RULE,
            )

    def test_slots_that_do_not_fit_are_refused(self):
        table = RawTable(2)
        find_slots(table, [])
        with self.refused(r"`slots` of table 'raw' must have shape \[1,3\].*\[1,4\]|must be equal"):
            assign_slots(table, [1], [[1, 1]], np.ones([1, 4]))
        with self.refused("of another type. Received: double"):
            rows, slots = table.rows([[1, 1]]), np.ones([1, 3])
            slot_ops.assign_slots(
                table.handle, table.keys([1]), NO_OWNERS, rows, slots, dim=2, rule=RULE
            )
        for rule in (
            ExternalRule(1, (1, 2), (0.0,)),
            ExternalRule(1, (0,), (0.0,)),
            ExternalRule(1, (-1,), (0.0,)),
        ):
            with self.refused("`slot_widths` must be"):
                find_slots(table, [1], rule)
        self.assertEqual(table.size(), 0)

    def test_shapes_are_known_while_a_graph_is_built(self):
        with tf.Graph().as_default():
            handle = tf.compat.v1.placeholder(tf.resource, [])
            keys = tf.compat.v1.placeholder(tf.int64, [None, 3])
            values, slots, exists = slot_ops.find_slots(
                handle, keys, NO_OWNERS, tf.zeros([0]), dim=2, slot_dtype=tf.float32, rule=RULE
            )
            self.assertEqual(values.shape.as_list(), [None, 3, 2])
            self.assertEqual(slots.shape.as_list(), [None, 3, 3])
            self.assertEqual(exists.shape.as_list(), [None, 3])

    def test_a_row_and_its_slots_are_read_together_beside_writers(self):
        table = RawTable(4, num_shards=2)
        keys = np.arange(64)
        find_slots(table, keys)
        stop = threading.Event()

        def write() -> None:
            version = 0
            while not stop.is_set():
                version += 1
                assign_slots(table, keys, np.full([64, 4], version), np.full([64, 3], version))

        assign_slots(table, keys, np.zeros([64, 4]), np.zeros([64, 3]))
        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(200):
                values, slots, _ = find_slots(table, keys)
                self.assertAllEqual(values[:, :3], slots)
                self.assertAllEqual(values[:, :1] + tf.zeros([1, 4]), values)
        finally:
            stop.set()
            thread.join()

    def refused(self, message: str) -> Any:
        return self.assertRaisesRegex(tf.errors.InvalidArgumentError, message)


class ExternalStateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*FLOATING)
    def test_import_restores_slots_and_rule_into_any_number_of_shards(self, value_dtype):
        rng = np.random.default_rng(SEED)
        one = RawTable(2, value_dtype=value_dtype, num_shards=3)
        keys = EXTREME_KEYS["int64"]
        rows, slots = rng.normal(size=(len(keys), 2)), rng.normal(size=(len(keys), 3))
        rule = ExternalRule(RULE.id, RULE.widths, (float("nan"), 3.0))
        find_slots(one, [], rule)
        assign_slots(one, keys, rows, slots, rule)
        for shards in (1, 2):
            other = RawTable(2, value_dtype=value_dtype, num_shards=shards)
            exported = one.export()
            other.take(exported)
            self.assertAllEqual(other.export()[3], exported[3])
            self.assertEqual(int(slot_ops.rows_of_other_rule(other.handle, rule=rule)), 0)
            for mine, theirs in zip(
                find_slots(one, keys, rule), find_slots(other, keys, rule), strict=True
            ):
                self.assertAllEqual(mine, theirs)

    @parameterized.parameters("float32", "float64")
    def test_the_meta_says_what_the_slots_of_a_new_row_are(self, value_dtype):
        table = RawTable(2, value_dtype=value_dtype)
        initial = TableMeta.of(table.export()[3]).initial_slots(table.slots_as)
        self.assertEqual(initial.shape, (0,))
        rule = ExternalRule(1, (2, 1, 3), (0.1, float("nan"), -0.5))
        slots = find_slots(table, [1], rule)[1]
        initial = TableMeta.of(table.export()[3]).initial_slots(table.slots_as)
        self.assertAllEqual(initial, slots[0])

    def test_every_flipped_number_of_the_meta_is_refused_or_free(self):
        one, table = RawTable(2), RawTable(2)
        find_slots(one, [])
        assign_slots(one, [1, 2], np.ones([2, 2]), np.ones([2, 3]))
        table.assign([5], [[5, 5]])
        keys, values, slots, meta, *policy = (tensor.numpy() for tensor in one.export())
        self.assertLen(meta, 9 + 2 * 2)
        free = {1: "seed", 2: "table id", 4: "rule id", 10: "initial value", 12: "initial value"}
        for number in range(len(meta)):
            for wrong_number in (-1, 0, 99, 2**62):
                wrong = meta.copy()
                wrong[number] = wrong_number
                if number in free or (wrong == meta).all():
                    continue
                with self.assertRaises(tf.errors.InvalidArgumentError):
                    table.take((keys, values, slots, wrong, *policy))
        self.assertAllEqual(table.content()[0], [5])


class TableTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_table_gives_and_takes_slots(self):
        table = Table(TableOptions("t", dim=2, num_shards=2))
        keys = tf.constant([[1, 2]], tf.int64)
        values, slots, exists = table.find_slots(keys, RULE)
        self.assertEqual((values.shape, slots.shape), ((1, 2, 2), (1, 2, 3)))
        self.assertAllEqual(exists, [[False, False]])
        table.assign_slots(keys, values + 1, slots + 1, RULE)
        again = table.find_slots(keys, RULE)
        self.assertAllEqual(again[0], values + 1)
        self.assertAllEqual(again[1], slots + 1)
        self.assertEqual(int(table.size()), 2)

    def test_new_rows_are_those_that_a_callable_draws(self):
        rows = iter(range(1, 100))

        def draw(shape: Any, dtype: Any = None) -> tf.Tensor:
            numbers = [[float(next(rows))] * shape[1] for _ in range(int(shape[0]))]
            return tf.constant(numbers, dtype)

        table = Table(TableOptions("t", dim=2, initializer=RowInitializer(draw=draw)))
        keys = tf.constant([4, 5, 4], tf.int64)
        values, slots, exists = table.find_slots(keys, RULE)
        self.assertAllEqual(values, [[1, 1], [2, 2], [1, 1]])
        self.assertAllEqual(slots, [[0.5, 0.5, -1.0]] * 3)
        self.assertAllEqual(exists, [False] * 3)
        table.assign_slots(keys[:1], values[:1] * 10, slots[:1], RULE)
        self.assertAllEqual(table.find_slots(keys, RULE)[0], [[10, 10], [3, 3], [10, 10]])

    def test_slots_are_found_and_assigned_in_a_function(self):
        table = Table(TableOptions("t", dim=2))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def step(keys: tf.Tensor) -> tf.Tensor:
            values, slots, _ = table.find_slots(keys, RULE)
            table.assign_slots(keys, values - 1.0, slots * 2.0, RULE)
            return slots

        step(tf.constant([1, 2], tf.int64))
        self.assertAllEqual(step(tf.constant([2], tf.int64)), [[1.0, 1.0, -2.0]])
        self.assertAllEqual(table.find(tf.constant([1, 2, 3], tf.int64))[0][:, 0], [-1, -2, 0])

    def test_binding_an_external_rule_says_whose_slots_start_anew(self):
        table = Table(TableOptions("items", dim=2))
        table.bind_rule(RULE)
        values, slots, _ = table.find_slots(tf.constant([1, 2], tf.int64), RULE)
        table.assign_slots(tf.constant([1, 2], tf.int64), values, slots, RULE)
        with self.assertNoLogs(level="WARNING"):
            table.bind_rule(RULE)
        with self.assertLogs(level="WARNING") as logs:
            table.bind_rule(ExternalRule(5, (1,), (0.0,)))
        self.assertRegex(logs.output[0], "'items' is now trained by the rule 'external'.* 2 rows")

    def test_slots_are_in_a_checkpoint(self):
        path = self.get_temp_dir() + "/checkpoint"
        keys = tf.constant([1, 2, 3], tf.int64)
        rng = np.random.default_rng(SEED)
        rows, slots = (tf.constant(rng.normal(size=(3, n)), tf.float32) for n in (2, 3))
        one = Table(TableOptions("one", dim=2, num_shards=2))
        one.find_slots(keys, RULE)
        one.assign_slots(keys, rows, slots, RULE)
        saved = tf.train.Checkpoint(table=one).write(path)
        other = Table(TableOptions("other", dim=2, num_shards=3))
        tf.train.Checkpoint(table=other).read(saved).assert_consumed()
        values, found, exists = other.find_slots(keys, RULE)
        self.assertAllEqual(values, rows)
        self.assertAllEqual(found, slots)
        self.assertAllEqual(exists, [True] * 3)
        order = reference.sorted_rows(*other.export()[:2])[0]
        self.assertAllEqual(order, keys)


if __name__ == "__main__":
    tf.test.main()

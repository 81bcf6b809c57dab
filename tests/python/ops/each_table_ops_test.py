# SPDX-License-Identifier: Apache-2.0
"""Ops of many tables, each with its own keys, against the ops of one table."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support.cases.each_tables import LISTS, MIXED, WIDE, Draw, apply_one, find_one
from support.cases.raw_tables import RawTable
from support.cases.refused_ops import RAW, RefusedTestCase
from support.oracles.reference import SEED
from tf_embed.ops import each_table_ops, pooling_ops
from tf_embed.ops.each_table_ops import PooledLookup, RowLookup, RowStep
from tf_embed.ops.lookup_gradient import token_of

CPU = "/CPU:0"
STEPS = 5


Find = Callable[[list[Any], list[Any]], list[tf.Tensor]]
Run = Callable[[Callable[[], Any]], Any]


def place(name: str) -> Any:
    """Where tables of a list are: keys of several widths are together on the CPU alone."""
    return tf.device(CPU) if name == "mixed" else contextlib.nullcontext()


def bits(tensors: list[tf.Tensor]) -> list[tuple[tf.TensorShape, bytes]]:
    return [(tensor.shape, tensor.numpy().tobytes()) for tensor in tensors]


def in_graph(function: Callable[[], Any]) -> Any:
    return tf.function(lambda: function(), autograph=False)()


def eagerly(function: Callable[[], Any]) -> Any:
    return function()


def find_alone(lookups: list[RowLookup], tokens: Sequence[Any] | None = None) -> list[tf.Tensor]:
    return list(map(find_one, lookups, tokens or [None] * len(lookups)))


def find_linked(lookups: list[RowLookup], tokens: Sequence[Any]) -> list[tf.Tensor]:
    return list(map(each_table_ops.link_rows, lookups, each_table_ops.find_each(lookups), tokens))


def find_pooled_alone(
    lookups: list[PooledLookup], tokens: Sequence[Any] | None = None
) -> list[tf.Tensor]:
    names = [field.name for field in dataclasses.fields(PooledLookup)]
    return [
        pooling_ops.find_pooled(**{name: getattr(lookup, name) for name in names}, token=token)
        for lookup, token in zip(lookups, tokens or [None] * len(lookups), strict=True)
    ]


def find_pooled_linked(
    lookups: list[PooledLookup], tokens: Sequence[Any] | None = None
) -> list[tf.Tensor]:
    tokens = tokens or [None] * len(lookups)
    found = each_table_ops.find_pooled_each(lookups)
    return [
        each_table_ops.link_pooled(*one, token) for one, token in zip(found, tokens, strict=True)
    ]


def apply_many(steps: list[RowStep]) -> None:
    each_table_ops.apply_each(steps)


class EachTableTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(name=list(LISTS), run=(eagerly, in_graph))
    def test_steps_of_many_are_the_steps_of_each(self, name, run):
        with place(name):
            one, many = (Draw(LISTS[name], SEED) for _ in range(2))
            for number in range(1, STEPS + 1):
                found = run(functools.partial(find_alone, one.lookups()))
                pooled = run(functools.partial(find_pooled_alone, one.pooled()))
                for step in one.steps(number):
                    apply_one(step)
                found_each = run(functools.partial(each_table_ops.find_each, many.lookups()))
                pooled_each = run(functools.partial(find_pooled_linked, many.pooled()))
                run(functools.partial(apply_many, many.steps(number)))
                self.assertEqual(bits(found_each), bits(found))
                self.assertEqual(bits(pooled_each), bits(pooled))
                self.assertEqual(many.exported(), one.exported())

    def test_a_table_may_be_looked_up_twice(self):
        draw = Draw(WIDE, SEED)
        for step in draw.steps(1):
            apply_one(step)
        lookups = draw.lookups() + draw.lookups()
        expected = [find_one(lookup) for lookup in lookups]
        self.assertEqual(bits(each_table_ops.find_each(lookups)), bits(expected))

    def test_shapes_are_known_in_a_graph(self):
        with tf.device(CPU):
            draw = Draw(MIXED, SEED)
            lookups, pooled = draw.lookups(), draw.pooled()

        @tf.function
        def shapes() -> None:
            rows = each_table_ops.find_each(lookups)
            sums = find_pooled_linked(pooled)
            for lookup, one in zip(lookups, rows, strict=True):
                self.assertEqual(one.shape, (*lookup.keys.shape, lookup.dim))
            for lookup, one in zip(pooled, sums, strict=True):
                self.assertEqual(one.shape, (4, lookup.dim))

        shapes.get_concrete_function()

    def test_threads_may_train_the_same_tables_in_other_orders(self):
        tables = [RawTable(2, num_shards=1 + i % 2) for i in range(12)]
        orders = (range(12), range(11, -1, -1), range(3, 12), [11, *range(8)])
        keys, none = tf.range(8, dtype=tf.int64), tf.zeros([0], tf.int32)

        def train(order: Sequence[int], gradient: float) -> None:
            lookups = [
                RowLookup(tables[i].handle, keys, none, tf.zeros([0]), 2, training=True)
                for i in order
            ]
            steps = [step_of(tables[i], keys, tf.fill([8, 2], gradient)) for i in order]
            for _ in range(40):
                each_table_ops.find_each(lookups)
                each_table_ops.apply_each(steps)

        threads = [
            threading.Thread(target=train, args=(order, float(number)))
            for number, order in enumerate(orders)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, table in enumerate(tables):
            total = 40.0 * sum(number for number, order in enumerate(orders) if i in order)
            self.assertAllEqual(table.find(keys)[0], tf.fill([8, 2], -total))


def step_of(table: RawTable, keys: Any, gradients: Any, **changes: Any) -> RowStep:
    """A step of sgd with the learning rate 1."""
    step = RowStep(
        table.handle,
        table.keys(keys),
        tf.zeros([0], tf.int32),
        table.rows(gradients),
        tf.constant([1.0, 0.0], tf.float64),
        tf.constant(1, tf.int64),
        tf.constant(True),
        table.dim,
        "sgd",
    )
    return dataclasses.replace(step, **changes)


class LinkTest(tf.test.TestCase, parameterized.TestCase):
    """Gradients of rows of an op of many, against those of an op for each."""

    def gradients(
        self, draw: Draw, lookups: list[Any], find: Find, run: Run = eagerly
    ) -> list[Any]:
        """The gradients of anchors and of weights. The last lookup is of no use."""
        anchors = [tf.Variable(tf.zeros([0, kind.dim], kind.value_dtype)) for kind in draw.kinds]
        weights = [one.weights for one in lookups if getattr(one, "weights", None) is not None]

        def compute() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                tokens = [
                    token_of(anchor, lookup.keys.dtype)
                    for anchor, lookup in zip(anchors, lookups, strict=True)
                ]
                found = find(lookups, tokens)[:-1]
                loss = tf.add_n([tf.reduce_sum(tf.cast(one, tf.float64) ** 2) for one in found])
            return tape.gradient(loss, [*anchors, *weights])

        return run(compute)

    def assert_same(self, one: list[Any], many: list[Any]) -> None:
        for expected, found in zip(one, many, strict=True):
            self.assertEqual(type(found), type(expected))
            if isinstance(expected, tf.IndexedSlices):
                self.assertAllEqual(found.indices, expected.indices)
                expected, found = expected.values, found.values
            if expected is not None:
                self.assertEqual(bits([found]), bits([expected]))

    @parameterized.product(name=list(LISTS), run=(eagerly, in_graph))
    def test_linked_rows_have_the_gradients_of_lookups(self, name, run):
        with place(name):
            draw = Draw(LISTS[name], SEED)
            for step in draw.steps(1):
                apply_one(step)
            lookups = draw.lookups()
            one = self.gradients(draw, lookups, find_alone, run)
            self.assertIsNone(one[-1])
            self.assert_same(one, self.gradients(draw, lookups, find_linked, run))

    def test_gradients_of_linked_rows_leave_a_loop(self):
        draw = Draw(WIDE, SEED)
        lookups = draw.lookups()

        def in_loop(find: Find) -> Find:
            def again(lookups: list[RowLookup], tokens: list[tf.Tensor]) -> list[tf.Tensor]:
                def body(i: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
                    found = find(lookups, tokens)[:-1]
                    return i + 1, [a + tf.reduce_sum(b) for a, b in zip(sums, found, strict=True)]

                zeros = [tf.zeros([], kind.value_dtype) for kind in draw.kinds[:-1]]
                sums = tf.while_loop(lambda i, _: i < 3, body, (0, zeros))[1]
                return [*sums, tf.zeros([])]

            return again

        one = self.gradients(draw, lookups, in_loop(find_alone), in_graph)
        self.assertLen(one[0].indices, 3 * lookups[0].keys.shape.num_elements())
        self.assert_same(one, self.gradients(draw, lookups, in_loop(find_linked), in_graph))

    @parameterized.product(name=list(LISTS), run=(eagerly, in_graph))
    def test_linked_pooled_rows_have_the_gradients_of_lookups(self, name, run):
        with place(name):
            draw = Draw(LISTS[name], SEED)
            for step in draw.steps(1):
                apply_one(step)
            lookups = draw.pooled()
            one = self.gradients(draw, lookups, find_pooled_alone, run)
            self.assertIsNone(one[len(draw.kinds) - 1])
            many = self.gradients(draw, lookups, find_pooled_linked, run)
            self.assert_same(one, many)


class RefusedTest(RefusedTestCase):
    def steps(self, **changes: Any) -> list[RowStep]:
        """Steps of tables, the second of which has changed arguments."""
        steps = [step_of(RawTable(2), [1], [[1.0, 1.0]]) for _ in range(9)]
        steps[1] = dataclasses.replace(steps[1], **changes)
        return steps

    @parameterized.parameters(
        ({"step": tf.constant(0, tf.int64)}, "`step` must be at least 1. Received: 0"),
        ({"hyper": tf.zeros([3], tf.float64)}, "`hyper` of the rule 'sgd' must have 2 numbers"),
        ({"gradients": tf.ones([1, 3])}, "`gradients` of table 'raw' must have shape"),
        ({"gradients": tf.ones([1, 2], tf.float64)}, "must be"),
        ({"owners": tf.constant([4])}, "4"),
        ({"owners": tf.constant([0, 0])}, "must give one shard for each of 1 keys. Received: 2"),
        ({"keys": tf.constant([1])}, "`keys` of table 'raw' must be int64. Received: int32"),
        ({"dim": 3}, "`dim` of table 'raw' must be 2. Received: dim=3"),
        ({"step": tf.constant([1], tf.int64)}, "`step` must be a scalar"),
        ({"trained": tf.constant([True])}, "`trained` must be a scalar"),
    )
    def test_an_error_names_its_table_and_the_other_tables_are_trained(self, wrong, words):
        with tf.device(CPU):
            steps = self.steps(**wrong)
            with self.refused(f"Table 1 of 9, 'raw': .*{words}"):
                each_table_ops.apply_each(steps)
            for step in [steps[0], *steps[2:]]:
                lookup = RowLookup(step.handle, step.keys, step.owners, tf.zeros([0]), 2)
                self.assertAllEqual(find_one(lookup), [[-1.0, -1.0]])

    def test_the_first_of_several_errors_is_raised(self):
        steps = self.steps(step=tf.constant(-7, tf.int64))
        steps[6] = dataclasses.replace(steps[6], hyper=tf.zeros([1], tf.float64))
        with self.refused("Table 1 of 9, 'raw': `step` must be at least 1. Received: -7"):
            each_table_ops.apply_each(steps)

    def test_a_table_has_one_step(self):
        steps = self.steps()
        steps[4] = steps[2]
        with self.refused("`tables` must be distinct. Received: table 'raw' as number 2 and 4"):
            each_table_ops.apply_each(steps)

    def test_lists_of_other_lengths_are_refused(self):
        steps = self.steps()
        tables = [step.handle for step in steps]
        arguments = {
            "tables": tables,
            "keys": [tf.constant([1], tf.int64)] * 9,
            "owners": [tf.zeros([0], tf.int32)] * 9,
            "defaults": [tf.zeros([0])] * 9,
            "dims": [2] * 9,
            "training": [False] * 9,
        }
        RAW.tf_embed_find_each(**arguments)
        for name in ("keys", "defaults", "dims", "training"):
            types = {"keys": "key_dtypes", "defaults": "value_dtypes"}
            words = f"`{types.get(name, name)}` must have one for each of 9 tables. Received: 8"
            with self.subTest(name), self.refused(words):
                RAW.tf_embed_find_each(**{**arguments, name: arguments[name][1:]})
        pooled = {
            **arguments,
            "bags": [],
            "weights": [],
            "pooled_dtypes": [tf.float32] * 9,
            "num_bags": [0] * 9,
            "has_weights": [False] * 9,
            "combiners": ["sum"] * 9,
            "has_padding": [False] * 9,
            "paddings": [0] * 9,
            "padding_texts": [""] * 9,
        }
        RAW.tf_embed_find_pooled_each(**pooled)
        splits = tf.constant([0, 1], tf.int64)
        for wrong, words in (
            ({"paddings": [0] * 8}, "`paddings` must have one for each of 9 tables. Received: 8"),
            ({"bags": [splits]}, "`bags` of all tables must be 0 tensors. Received: 1"),
            ({"num_bags": [1] + [0] * 8}, "`bags` of all tables must be 1 tensors. Received: 0"),
            ({"num_bags": [3] + [0] * 8}, "`num_bags` must be from 0 to 2. Received: 3"),
            ({"weights": [tf.ones([1])]}, "`weights` of all tables must be 0 tensors. Received: 1"),
            ({"found_dtypes": [tf.float32]}, "`found_dtypes` must be none or 0. Received: 1"),
        ):
            with self.subTest(words), self.refused(words):
                RAW.tf_embed_find_pooled_each(**{**pooled, **wrong})

    def test_rows_of_strings_are_refused(self):
        with tf.device(CPU):
            table = RawTable(2, value_dtype="string", initializer="constant")
            none = tf.constant([], tf.string)
            lookup = RowLookup(table.handle, table.keys([1]), tf.zeros([0], tf.int32), none, 2)
            with self.refused("string"):
                each_table_ops.find_each([lookup])


if __name__ == "__main__":
    tf.test.main()

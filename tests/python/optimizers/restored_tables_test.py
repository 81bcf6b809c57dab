# SPDX-License-Identifier: Apache-2.0
"""Tables of a restored optimizer, which may join it in another order than the saved one's did."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed

KEYS = (5, -1, 7)


def table(name: str) -> tf_embed.Variable:
    return tf_embed.Variable(dim=2, name=name, initializer=0.25)


def slices(number: float) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.fill([len(KEYS), 2], number), tf.constant(KEYS, tf.int64))


def wrapped(**options: Any) -> tf_embed.DynamicEmbeddingOptimizer:
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, **options))


def trained_in_turn(*tables: tf_embed.Variable) -> tf_embed.DynamicEmbeddingOptimizer:
    """An optimizer whose n-th step is the first one of the n-th table, and its gradients are -n."""
    optimizer = wrapped()
    for i, one in enumerate(tables):
        optimizer.apply([slices(-1.0 - i)], [one.anchor])
    return optimizer


def join(optimizer: tf_embed.DynamicEmbeddingOptimizer, *tables: tf_embed.Variable) -> None:
    """Makes a step without rows of each table."""
    for one in tables:
        no_rows = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64))
        optimizer.apply([no_rows], [one.anchor])


class RestoredTablesTest(tf.test.TestCase, parameterized.TestCase):
    def _written(self, **objects: Any) -> str:
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        return tf.train.Checkpoint(**objects).write(os.path.join(folder, "saved"))

    def _check(self, one: tf_embed.Variable, row: float) -> None:
        self.assertAllEqual(one.lookup(KEYS), np.full([len(KEYS), 2], row))

    def _check_untouched(self, *tables: tf_embed.Variable) -> None:
        for one in tables:
            self.assertEqual(int(one.size()), 0)

    @parameterized.parameters(False, True)
    @pytest.mark.smoke
    def test_rows_are_those_of_the_name_in_any_order(self, is_other_order):
        path = self._written(o=trained_in_turn(table("user"), table("item")))
        user, item, o = table("user"), table("item"), wrapped()
        status = tf.train.Checkpoint(o=o).read(path)
        join(o, *((item, user) if is_other_order else (user, item)))
        status.assert_consumed()
        self._check(user, 1.25)
        self._check(item, 2.25)

    def test_rows_are_right_after_a_second_save_in_another_order(self):
        path = self._written(o=trained_in_turn(*map(table, ("a", "b", "c"))))
        for order in ("cab", "bca"):
            tables, o = {name: table(name) for name in "abc"}, wrapped()
            status = tf.train.Checkpoint(o=o).read(path)
            join(o, *(tables[name] for name in order))
            status.assert_consumed()
            for row, one in enumerate(tables.values()):
                self._check(one, 1.25 + row)
            path = self._written(o=o)

    def test_gradients_wait_for_the_table_of_their_name(self):
        def objects() -> dict[str, Any]:
            o = wrapped(gradient_accumulation_steps=4)
            return {"o": o, "a": table("a"), "b": table("b")}

        saved, other = objects(), objects()
        for name, number in (("a", 4.0), ("b", 8.0)):
            saved["o"].apply([slices(number)], [saved[name].anchor])
        path = self._written(**saved)
        tf.train.Checkpoint(**other).read(path)
        join(other["o"], other["b"])
        no_rows = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64))
        other["o"].apply([no_rows, no_rows], [other["b"].anchor, other["a"].anchor])
        self._check(other["a"], 0.25 - 1.0)
        self._check(other["b"], 0.25 - 2.0)

    def test_models_with_layers_in_a_dict_agree(self):
        class TwoTables(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                names = ("user", "item")
                make = tf_embed.layers.DynamicEmbedding
                self.of = {name: make(2, name=name, initializer=0.25) for name in names}

            def call(self, ids: tf.Tensor) -> tf.Tensor:
                return self.of["user"](ids) + 2.0 * self.of["item"](ids)

        def train(model: keras.Model, optimizer: Any, *names: str) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.constant(KEYS)))
            variables = [model.of[name].variable.anchor for name in names]
            optimizer.apply(tape.gradient(loss, variables), variables)

        saved, model, o, other = TwoTables(), TwoTables(), wrapped(), wrapped()
        train(saved, o, "user", "item")
        path = self._written(model=saved, optimizer=o)
        tf.train.Checkpoint(model=model, optimizer=other).read(path)
        for name in ("item", "user"):
            train(model, other, name)
        train(saved, o, "user", "item")
        for name in ("user", "item"):
            self.assertAllEqual(
                model.of[name].variable.lookup(KEYS), saved.of[name].variable.lookup(KEYS)
            )

    @parameterized.parameters(
        (("b", "a"), ("a", "b")),
        (("b",), ("a", "b")),
        (("c",), ("a", "b")),
        (("b", "c"), ("a", "b")),
        (("t_4", "t_3"), ("t", "t_1")),
        (("t_3",), ("t", "t_1")),
    )
    def test_a_table_in_the_place_of_another_is_refused(self, joined, saved):
        path = self._written(o=trained_in_turn(*map(table, saved)))
        tables = [table(name) for name in joined]
        o = wrapped()
        join(o, *tables)
        with self.assertRaisesRegex(ValueError, "can't be restored: its tables have joined it as"):
            tf.train.Checkpoint(o=o).read(path)
        self._check_untouched(*tables)

    @parameterized.parameters((("a", "b"),), (("a", "b", "c"),), (("a", "c"),), (("t", "u"),))
    def test_tables_that_have_joined_in_the_same_order_are_restored_under_any_name(self, joined):
        path = self._written(o=trained_in_turn(table("a"), table("b")))
        tables, o = [table(name) for name in joined], wrapped()
        join(o, *tables)
        tf.train.Checkpoint(o=o).read(path)
        self._check(tables[0], 1.25)
        self._check(tables[1], 2.25)
        self._check_untouched(*tables[2:])

    def test_numbers_that_keras_gives_order_the_tables_of_one_build(self):
        path = self._written(o=trained_in_turn(table("t_1/rows"), table("t/rows")))
        first, second, o = table("t_5/rows"), table("t_12/rows"), wrapped()
        status = tf.train.Checkpoint(o=o).read(path)
        o.build([first.anchor, second.anchor])
        status.assert_consumed()
        self._check(first, 2.25)
        self._check(second, 1.25)

    def test_a_numbered_table_that_joins_alone_is_refused_if_it_may_be_any(self):
        path = self._written(o=trained_in_turn(table("t"), table("t_1")))
        first, second, o = table("t_2"), table("t_3"), wrapped()
        tf.train.Checkpoint(o=o).read(path)
        for _ in range(2):  # it stays refused
            with self.assertRaisesRegex(ValueError, r"'t_3', which may be any of \['t', 't_1'\]"):
                join(o, second)
        o.build([first.anchor, second.anchor])
        self._check(first, 1.25)
        self._check(second, 2.25)

    def test_a_new_table_gets_rows_of_no_other(self):
        path = self._written(o=trained_in_turn(table("a"), table("b")))
        a, b, new, o = table("a"), table("b"), table("new"), wrapped()
        tf.train.Checkpoint(o=o).read(path)
        with self.assertLogs(level="WARNING") as logs:
            join(o, new)
        self.assertIn("restores nothing for 'new'", logs.output[0])
        self.assertIn("['a', 'b']", logs.output[0])
        self._check_untouched(new)
        join(o, b, a)
        self._check(a, 1.25)
        self._check(b, 2.25)
        names = [one.table.options.name for one in o.table_trainers]
        self.assertEqual(names, ["new", "b", "a"])

    def test_a_table_that_is_new_after_all_others_gives_no_warning(self):
        path = self._written(o=trained_in_turn(table("a")))
        a, new, o = table("a"), table("new"), wrapped()
        tf.train.Checkpoint(o=o).read(path)
        with self.assertNoLogs(level="WARNING"):
            join(o, a, new)
        self._check(a, 1.25)
        self._check_untouched(new)


if __name__ == "__main__":
    tf.test.main()

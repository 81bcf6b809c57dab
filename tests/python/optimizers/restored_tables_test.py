# SPDX-License-Identifier: Apache-2.0
"""Tables of a restored optimizer, which may join it in another order than before the save."""

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


def numbered_tables(count: int, before: int = 0) -> list[tf_embed.Variable]:
    """Tables of layers without a name.

    Args:
        count: The number of tables.
        before: The number of other layers of the process, which Keras numbers first.
    """
    keras.utils.clear_session(free_memory=False)
    layers = [tf_embed.layers.DynamicEmbedding(2, initializer=0.25) for _ in range(before + count)]
    for layer in layers:
        layer.build()
    return [layer.variable for layer in layers[before:]]


def slices(number: float) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.fill([len(KEYS), 2], number), tf.constant(KEYS, tf.int64))


def wrapped(**options: Any) -> tf_embed.DynamicEmbeddingOptimizer:
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0, **options))


def trained_in_turn(*tables: tf_embed.Variable) -> tf_embed.DynamicEmbeddingOptimizer:
    """An optimizer whose n-th step trains the n-th table, with gradients of -n."""
    optimizer = wrapped()
    for i, one in enumerate(tables):
        optimizer.apply([slices(-1.0 - i)], [one.anchor])
    return optimizer


def join(optimizer: tf_embed.DynamicEmbeddingOptimizer, *tables: tf_embed.Variable) -> None:
    """Makes a step without rows for each table."""
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
        (("a",), ("a", "a")),
    )
    def test_a_table_in_the_place_of_another_is_refused(self, joined, saved):
        path = self._written(o=trained_in_turn(*map(table, saved)))
        tables = [table(name) for name in joined]
        o = wrapped()
        join(o, *tables)
        message = "can't be restored: its tables have joined it as|'a', which may be any of"
        with self.assertRaisesRegex(ValueError, message):
            tf.train.Checkpoint(o=o).read(path)
        self._check_untouched(*tables)

    @parameterized.parameters((("a", "b"),), (("a", "b", "c"),), (("a", "c"),), (("c", "d"),))
    def test_tables_that_have_joined_in_the_same_order_are_restored_under_any_name(self, joined):
        path = self._written(o=trained_in_turn(table("a"), table("b")))
        tables, o = [table(name) for name in joined], wrapped()
        join(o, *tables)
        checkpoint = tf.train.Checkpoint(o=o)
        if joined[1] == "b":
            with self.assertNoLogs(level="WARNING"):
                checkpoint.read(path)
        else:
            with self.assertLogs(level="WARNING") as logs:
                checkpoint.read(path)
            renamed = f"restores {joined[1]!r} from 'b', as if it had been renamed"
            self.assertIn(renamed, logs.output[-1])
        self._check(tables[0], 1.25)
        self._check(tables[1], 2.25)
        self._check_untouched(*tables[2:])

    @parameterized.product(before=(0, 1, 2), joins=("at once", "in turn", "before"))
    def test_tables_of_layers_without_a_name_go_by_their_numbers(self, before, joins):
        first, second = numbered_tables(2)
        path = self._written(o=trained_in_turn(second, first))
        first, second = numbered_tables(2, before)
        o = wrapped()
        if joins == "before":
            join(o, second, first)
        status = tf.train.Checkpoint(o=o).read(path)
        if joins == "in turn":
            with self.assertRaisesRegex(ValueError, "may be any of .*call `build` with the"):
                join(o, second)
            self._check_untouched(second)
        o.build([first.anchor, second.anchor])
        status.assert_consumed()
        self._check(first, 2.25)
        self._check(second, 1.25)

    def test_a_layer_without_a_name_more_or_less_is_refused(self):
        path = self._written(o=trained_in_turn(*numbered_tables(2)))
        for count in (1, 3):
            tables, o = numbered_tables(count), wrapped()
            tf.train.Checkpoint(o=o).read(path)
            with self.assertRaisesRegex(ValueError, "can't restore 'dynamic_embedding', which may"):
                o.build([one.anchor for one in tables])
            self._check_untouched(*tables)

    def test_numbers_that_users_give_are_names(self):
        path = self._written(o=trained_in_turn(table("f_1"), table("f_2")))
        old, new, o = table("f_1"), table("f_3"), wrapped()
        tf.train.Checkpoint(o=o).read(path)
        with self.assertLogs(level="WARNING"):
            o.build([new.anchor, old.anchor])
        self._check(old, 1.25)
        self._check_untouched(new)

    def test_tables_of_one_name_are_refused_if_they_join_in_turn(self):
        path = self._written(o=trained_in_turn(table("t"), table("t")))
        first, second, o = table("t"), table("t"), wrapped()
        tf.train.Checkpoint(o=o).read(path)
        for _ in range(2):  # it stays refused
            with self.assertRaisesRegex(ValueError, r"'t', which may be any of \['t', 't'\]"):
                join(o, second)
        o.build([first.anchor, second.anchor])
        self._check(first, 1.25)
        self._check(second, 2.25)

    @parameterized.product(builds=(True, False), with_dense=(True, False))
    def test_a_restore_again_is_of_the_same_tables(self, builds, with_dense):
        dense = [keras.Variable(np.ones([2], np.float32))] if with_dense else []
        a, b, saved = table("a"), table("b"), wrapped()
        saved.build([*dense, a.anchor, b.anchor])
        saved.apply([slices(-1.0), slices(-2.0)], [a.anchor, b.anchor])
        path = self._written(o=saved)
        a, b, o = table("a"), table("b"), wrapped()
        checkpoint = tf.train.Checkpoint(o=o)
        checkpoint.read(path)
        if builds:
            o.build([b.anchor, *dense, a.anchor])
        else:
            o.build(dense)
            join(o, b, a)
        for one in (a, b):
            one.upsert(KEYS, np.zeros([len(KEYS), 2]))
        checkpoint.read(path)
        self._check(a, 1.25)
        self._check(b, 2.25)
        path = self._written(o=o)
        a, b, o = table("a"), table("b"), wrapped()
        o.build([a.anchor, b.anchor, *dense])
        tf.train.Checkpoint(o=o).read(path).assert_existing_objects_matched()
        self._check(a, 1.25)
        self._check(b, 2.25)

    def test_many_tables_that_were_renamed_are_in_order_in_keras_files(self):
        store: dict[str, Any] = {}
        for prefix in "ab":
            tables = [table(f"{prefix}{number}") for number in range(12)]
            o = wrapped(gradient_accumulation_steps=4)
            anchors = [one.anchor for one in tables]
            o.build(anchors)
            if prefix == "a":
                o.apply([slices(float(number)) for number in range(12)], anchors)
                o.save_own_variables(store)
        o.load_own_variables(store)
        for number, trainer in enumerate(o.table_trainers):
            waiting, _ = trainer.accumulator.find(tf.constant(KEYS, tf.int64))
            self.assertAllEqual(waiting, np.full([len(KEYS), 2], float(number)))

    @parameterized.parameters(0, 1)
    def test_gradients_of_layers_without_a_name_wait_in_keras_files(self, before):
        store: dict[str, Any] = {}
        for begin, writes in ((0, True), (before, False)):
            first, second = numbered_tables(2, begin)
            o = wrapped(gradient_accumulation_steps=4)
            o.build([first.anchor, second.anchor])
            if writes:
                o.apply([slices(1.0), slices(2.0)], [first.anchor, second.anchor])
                o.save_own_variables(store)
        o.load_own_variables(store)
        for number, trainer in zip((1.0, 2.0), o.table_trainers, strict=True):
            waiting, _ = trainer.accumulator.find(tf.constant(KEYS, tf.int64))
            self.assertAllEqual(waiting, np.full([len(KEYS), 2], number))

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

# SPDX-License-Identifier: Apache-2.0
"""Tables that join an optimizer after it was built, and optimizers that are made after tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed

DIM = 3
KEYS = (5, -1, 7)
optimizers = keras.optimizers

KINDS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "adam": lambda: optimizers.Adam(0.1),
    "nadam": lambda: optimizers.Nadam(0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1),
    "average": lambda: optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5),
    "overwriting": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "global norm": lambda: optimizers.Adam(0.1, global_clipnorm=0.5),
    "loss scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.1)),
}


def table(name: str) -> tf_embed.Variable:
    return tf_embed.Variable(dim=DIM, name=name, initializer=0.25)


def slices(number: int) -> tf.IndexedSlices:
    values = np.random.default_rng(100 + number).normal(size=[len(KEYS), DIM])
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(KEYS, tf.int64))


class Pair:
    """A dense variable and two tables. The second table has gradients from the third step on.

    Args:
        kind: The optimizer.
        joins: Whether the second table joins the optimizer only in the third step.
        with_first: Whether the optimizer has the first table from the start.
    """

    def __init__(self, kind: str, *, joins: bool, with_first: bool = True) -> None:
        self.first, self.late = table("first"), table("late")
        self.dense = keras.Variable(np.ones([2], np.float32))
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(KINDS[kind]())
        self.with_first, self.joins = with_first, joins
        known = [self.dense, *([self.first.anchor] if with_first else [])]
        self.optimizer.build(known if joins else [*known, self.late.anchor])

    def step(self, number: int) -> None:
        pairs: list[tuple[Any, Any]] = [(tf.ones([2]), self.dense)]
        if self.with_first:
            pairs.append((slices(number), self.first.anchor))
        if number > 2:
            pairs.append((slices(-number), self.late.anchor))
        elif not self.joins:
            pairs.append((None, self.late.anchor))
        self.optimizer.apply_gradients(pairs)

    def train(self, begin: int, end: int, graph: bool) -> None:
        step = tf.function(self.step) if graph else self.step
        for number in range(begin, end):
            step(number)

    def content(self) -> list[np.ndarray]:
        slots = self.late.slot_variables(self.optimizer)
        return [one.lookup(KEYS).numpy() for one in (self.first, self.late, *slots)]


class JoiningTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *((kind, True, True) for kind in KINDS),
        ("nadam", False, True),
        ("accumulation", True, False),
    )
    def test_a_table_that_joins_is_trained_as_if_it_had_been_there(self, kind, with_first, graph):
        contents = []
        for joins in (False, True):
            pair = Pair(kind, joins=joins, with_first=with_first)
            pair.train(1, 7, graph)
            anchors = [one.anchor for one in (pair.first, pair.late)]
            pair.optimizer.finalize_variable_values([pair.dense, *anchors])
            every = pair.optimizer.inner_optimizer.gradient_accumulation_steps or 1
            self.assertEqual(int(pair.optimizer.iterations), 6 // every)
            contents.append(pair.content())
        for found, expected in zip(*contents, strict=True):
            self.assertAllClose(found, expected, rtol=2e-5, atol=2e-6)
        self.assertNotAllClose(contents[0][1], np.full([len(KEYS), DIM], 0.25))

    @parameterized.parameters("nadam", "accumulation")
    def test_a_checkpoint_has_it(self, kind):
        saved, other = (Pair(kind, joins=True) for _ in range(2))
        saved.train(1, 6, graph=False)

        def checkpoint(pair: Pair) -> tf.train.Checkpoint:
            return tf.train.Checkpoint(
                first=pair.first, late=pair.late, dense=pair.dense, optimizer=pair.optimizer
            )

        path = checkpoint(saved).write(os.path.join(self.get_temp_dir(), "joined"))
        checkpoint(other).read(path)
        for pair in (saved, other):
            pair.train(6, 9, graph=True)
        for found, expected in zip(other.content(), saved.content(), strict=True):
            self.assertAllClose(found, expected, rtol=2e-5, atol=2e-6)

    def test_what_waits_in_accumulators_is_found_by_the_name_of_the_table(self):
        saved, store = Pair("accumulation", joins=True), {}
        saved.train(1, 4, graph=False)
        saved.optimizer.save_own_variables(store)
        other = Pair("accumulation", joins=True, with_first=False)
        for variable in (other.late, other.first):  # in the other order
            gradient = tf.IndexedSlices(tf.zeros([0, DIM]), tf.zeros([0], tf.int64))
            other.optimizer.apply([gradient], [variable.anchor])
        other.optimizer.load_own_variables(store)
        found = {
            one.table.options.name: one.accumulator.find(tf.constant(KEYS, tf.int64))[0]
            for one in other.optimizer.table_trainers
        }
        self.assertAllClose(found["first"], slices(3).values)
        self.assertAllClose(found["late"], slices(-3).values)

    def test_a_table_that_has_joined_alone_gets_what_waits_for_it(self):
        saved, store = Pair("accumulation", joins=True), {}
        saved.train(1, 4, graph=False)
        saved.optimizer.save_own_variables(store)
        other = Pair("accumulation", joins=False, with_first=False)
        other.optimizer.load_own_variables(store)
        (trainer,) = other.optimizer.table_trainers
        found, _ = trainer.accumulator.find(tf.constant(KEYS, tf.int64))
        self.assertAllClose(found, slices(-3).values)

    def test_dense_variables_are_those_that_the_optimizer_was_built_with(self):
        optimizer = tf_embed.DynamicEmbeddingOptimizer("sgd")
        optimizer.build([table("v").anchor])
        with self.assertRaisesRegex(ValueError, "Unknown variable"):
            optimizer.apply([tf.ones([2])], [keras.Variable(np.ones([2], np.float32))])

    @pytest.mark.smoke
    def test_a_table_that_another_optimizer_has_trained_joins_with_new_slots(self):
        v, other = table("v"), table("other")
        before, after = (
            tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(0.1, name="adam")) for _ in range(2)
        )
        before.apply([slices(1)], [v.anchor])
        after.apply([slices(1)], [other.anchor])
        after.apply([slices(0)], [v.anchor])
        (momentum, _) = v.slot_variables(after)
        self.assertAllClose(momentum.lookup(KEYS), 0.1 * slices(0).values)

    def test_finalizing_values_of_an_unknown_table_does_nothing(self):
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.SGD(0.1, use_ema=True))
        v = table("v")
        v.upsert(KEYS, tf.ones([3, DIM]))
        optimizer.build([keras.Variable(np.ones([2], np.float32))])
        optimizer.finalize_variable_values([v.anchor])
        self.assertAllEqual(v.lookup(KEYS), tf.ones([3, DIM]))
        self.assertEmpty(optimizer.table_trainers)


class LateOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_one_that_was_restored_keeps_slots_in_its_first_step(self, graph):
        v, w = table("v"), table("v")
        saved, restored = (
            tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(0.1)) for _ in range(2)
        )
        saved.apply([slices(1)], [v.anchor])
        path = tf.train.Checkpoint(v=v, optimizer=saved).write(self.get_temp_dir() + "/adam")
        tf.train.Checkpoint(v=w, optimizer=restored).read(path)

        def step(optimizer: Any, variable: tf_embed.Variable) -> None:
            optimizer.apply([slices(2)], [variable.anchor])

        for optimizer, variable in ((saved, v), (restored, w)):
            run = tf.function(step) if graph else step
            run(optimizer, variable)
        for one, other in zip(v.slot_variables(saved), w.slot_variables(restored), strict=True):
            self.assertAllClose(one.lookup(KEYS), other.lookup(KEYS))
        self.assertAllClose(v.lookup(KEYS), w.lookup(KEYS))

    @parameterized.parameters("adam", "nadam", "loss scale")
    def test_the_optimizer_within_names_the_same_slots(self, kind):
        v, base = table("v"), KINDS[kind]()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(base)
        self.assertEqual(v.slot_variables(base), [])
        optimizer.apply([slices(1)], [v.anchor])
        inner = getattr(base, "inner_optimizer", base)
        for one in (base, inner):
            self.assertEqual(v.slot_variables(one), v.slot_variables(optimizer))
        self.assertLen(v.slot_variables(base), 2)
        self.assertEqual(v.slot_variables(optimizers.Adam()), [])

    def test_slots_have_names_of_their_own(self):
        v, optimizer = table("u"), tf_embed.DynamicEmbeddingOptimizer(optimizers.Adafactor(0.1))
        optimizer.apply([slices(1)], [v.anchor])
        names = [one.name for one in v.slot_variables(optimizer)]
        self.assertEqual(names, ["u/adafactor/r", "u/adafactor/velocity"])

    @parameterized.parameters(
        ("Nadam", 786478824040203061), ("Adafactor", 7868460466436195227), ("RMSprop", "rmsprop")
    )
    def test_saved_slots_are_of_the_rule_of_later_versions(self, name, rule):
        v, optimizer = table("v"), getattr(optimizers, name)(0.1)
        tf_embed.DynamicEmbeddingOptimizer(optimizer).apply([slices(1)], [v.anchor])
        for slot in v.slot_variables(optimizer):
            self.assertEqual(getattr(slot.rule, "id", slot.rule), rule)

    def test_what_a_slot_views_does_not_change(self):
        v, optimizer = table("v"), tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(0.1))
        optimizer.apply([slices(1)], [v.anchor])
        momentum, velocity = v.slot_variables(optimizer)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            momentum.begin = velocity.begin


class TracedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(0, 3)
    def test_a_table_that_joins_in_a_traced_step_takes_over_once(self, dense_steps):
        rows = []
        for in_graph in (False, True):
            v, dense = table("v"), keras.Variable(np.ones([2], np.float32))
            optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.Nadam(0.1))
            optimizer.build([dense])
            for _ in range(dense_steps):
                optimizer.apply([tf.ones([2])], [dense])

            def step(values: tf.Tensor, v: Any = v, optimizer: Any = optimizer) -> None:
                gradient = tf.IndexedSlices(values, tf.constant(KEYS, tf.int64))
                optimizer.apply([gradient], [v.anchor])

            run = tf.function(step) if in_graph else step
            for number in (1.0, 2.0, -3.0, 0.5, 0.5):
                run(tf.fill([len(KEYS), DIM], number))
            rows.append(v.lookup(KEYS))
        self.assertAllEqual(*rows)


if __name__ == "__main__":
    tf.test.main()

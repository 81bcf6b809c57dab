# SPDX-License-Identifier: Apache-2.0
"""Steps that read rows, compute outside of a table and write rows back take turns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.ops import turn_ops

LOSS_SCALE = keras.optimizers.LossScaleOptimizer
DIM = 2
KEYS = (3, 1, 4)
PATIENCE = 60  # seconds; a turn that is never given back takes all of them


class Counting(keras.optimizers.Optimizer):
    """SGD that counts each row's steps in a slot. A lost update is missing in row and slot."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.counts = [self.add_variable_from_reference(one, name="count") for one in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        count = self.counts[self._get_variable_index(variable)]
        self.assign_add(count, tf.ones_like(gradient))
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * gradient)


class Failing(Counting):
    """Fails at run time in steps with a negative gradient."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        bad = tf.debugging.Assert(tf.reduce_all(gradient > 0), ["a negative gradient"])
        with tf.control_dependencies([] if bad is None else [bad]):
            super().update_step(tf.identity(gradient), variable, learning_rate)


def table(name: str = "v", **options: Any) -> tf_embed.Variable:
    return tf_embed.Variable(dim=DIM, name=name, **options)


def wrapped(inner: Any, **options: Any) -> tf_embed.DynamicEmbeddingOptimizer:
    return tf_embed.DynamicEmbeddingOptimizer(inner, **options)


def slices(keys: Any = KEYS, number: float = 1.0) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.fill([len(keys), DIM], number), tf.constant(list(keys), tf.int64))


def step_of(optimizer: Any, *variables: tf_embed.Variable, graph: bool) -> Callable[..., None]:
    """A step of several tables with gradients that are all equal to a number."""

    def step(number: Any = 1.0) -> None:
        gradients = [slices(number=number) for _ in variables]
        optimizer.apply(gradients, [one.anchor for one in variables])

    return tf.function(step) if graph else step


def in_threads(steps: list[Callable[[], None]], count: int) -> None:
    """Makes `count` steps of each of `steps`, in parallel threads."""
    barrier, errors = threading.Barrier(len(steps)), []

    def run(step: Callable[[], None]) -> None:
        try:
            barrier.wait(PATIENCE)
            for _ in range(count):
                step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[step], daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a step never ended"
    assert not errors, errors


class TurnOpsTest(tf.test.TestCase):
    @pytest.mark.smoke
    def test_a_turn_is_waited_for(self):
        v = table()
        handle = v.table.resource_handle
        turn = turn_ops.take_turn(handle)
        taken = threading.Event()

        def wait() -> None:
            turn_ops.end_turn(handle, turn_ops.take_turn(handle))
            taken.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self.assertFalse(taken.is_set())
        turn_ops.end_turn(handle, turn)
        turn_ops.end_turn(handle, turn)  # the turn has ended already
        self.assertTrue(taken.wait(PATIENCE))
        thread.join()

    def test_a_turn_ends_with_its_last_tensor(self):
        v = table()
        handle = v.table.resource_handle
        for _ in range(2):
            turn = turn_ops.take_turn(handle)
            copied = tf.identity(turn)
            del turn, copied

    def test_a_step_that_waits_can_be_cancelled(self):
        v = table()
        handle = v.table.resource_handle
        turn = turn_ops.take_turn(handle)

        @tf.function
        def waits_and_fails(number: tf.Tensor) -> tf.Tensor:
            waiting = turn_ops.take_turn(handle)
            with tf.control_dependencies([tf.debugging.assert_equal(number, 1.0)]):
                tf.identity(0)
            with tf.control_dependencies([waiting]):
                return tf.constant(1)

        with self.assertRaises(tf.errors.InvalidArgumentError):
            waits_and_fails(tf.constant(0.0))
        turn_ops.end_turn(handle, turn)
        turn_ops.end_turn(handle, turn_ops.take_turn(handle))

    def test_the_turn_of_another_table_is_refused(self):
        variables = table("a"), table("b")
        first, second = (one.table.resource_handle for one in variables)
        turn = turn_ops.take_turn(first)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`turn` must be one of .*'b'"):
            turn_ops.end_turn(second, turn)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`turn` must be one of .*'b'"):
            turn_ops.end_turn(
                second,
                tf.raw_ops.EmptyTensorList(
                    element_shape=-1, max_num_elements=0, element_dtype=tf.int32
                ),
            )
        turn_ops.end_turn(first, turn)


class ThreadsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(graph=(True, False), shared=(True, False))
    def test_no_update_of_threads_is_lost(self, graph, shared):
        v, threads, count = table(), 4, 300 if graph else 40
        one = wrapped(Counting(1.0))
        optimizers = [
            one if shared else wrapped(Counting(1.0), share_slots=True) for _ in range(threads)
        ]
        optimizers[0].build([v.anchor])
        in_threads([step_of(each, v, graph=graph) for each in optimizers], count)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -1.0 * threads * count))
        (slot,) = v.slot_variables(optimizers[0])
        self.assertAllEqual(slot.lookup(KEYS), tf.fill([len(KEYS), DIM], 1.0 * threads * count))

    def test_optimizers_that_are_built_meanwhile_lose_no_update(self):
        v, threads, count = table(), 4, 60
        optimizers = [wrapped(Counting(1.0)) for _ in range(threads)]
        in_threads([step_of(each, v, graph=True) for each in optimizers], count)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -1.0 * threads * count))

    def test_nor_do_those_whose_rule_runs_in_the_table(self):
        v, threads, count = table(), 4, 60
        optimizers = [wrapped(keras.optimizers.SGD(1.0, momentum=1e-30)) for _ in range(threads)]
        in_threads([step_of(each, v, graph=True) for each in optimizers], count)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -1.0 * threads * count))

    @parameterized.parameters(
        lambda: keras.optimizers.SGD(1.0, momentum=0.9),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=1.0),
    )
    def test_the_first_step_of_several_threads_builds_once(self, make):
        for _ in range(20):
            v, optimizer = table(), wrapped(make())

            def step(key: int, v: Any = v, optimizer: Any = optimizer) -> None:
                optimizer.apply([slices([key])], [v.anchor])

            in_threads([functools.partial(step, key) for key in range(3)], 2)
            self.assertLen(optimizer.table_trainers, 1)
            rows = v.lookup(range(3))
            self.assertAllEqual(rows, tf.broadcast_to(rows[:1], rows.shape))
            wanted = -2.0 if isinstance(optimizer.inner_optimizer, LOSS_SCALE) else -2.9
            self.assertAllClose(rows[0], tf.fill([DIM], wanted))

    def test_an_optimizer_may_be_built_while_another_is_looked_for(self):
        v, optimizers = table(), [wrapped("sgd", share_slots=True) for _ in range(9)]
        optimizers[0].build([v.anchor])
        for _, other in zip(v.table.trainers, optimizers[1:], strict=False):
            other.build([v.anchor])
        # If a table's set grew during this iteration, the next element would raise.
        for _ in v.table.trainers:
            optimizers[-1].build([v.anchor])
        self.assertLen(v.table.trainers, 3)

    @parameterized.parameters(True, False)
    def test_tables_in_opposite_orders_do_not_wait_in_a_circle(self, graph):
        first, second, count = table("a"), table("b"), 100 if graph else 20
        orders = [(first, second), (second, first)] * 2
        steps = [step_of(wrapped(Counting(1.0)), *order, graph=graph) for order in orders]
        in_threads(steps, count)
        for v in (first, second):
            self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -4.0 * count))

    def test_a_table_that_is_looked_up_twice_in_a_step_makes_one(self):
        v, optimizer = table(), wrapped(Counting(1.0))

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n(
                    [tf.reduce_sum(tf_embed.embedding_lookup(v, KEYS)) for _ in range(2)]
                )
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        in_threads([step] * 4, 25)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -200.0))

    def test_steps_in_a_loop_of_a_graph_take_turns(self):
        v, optimizer = table(), wrapped(Counting(1.0))
        optimizer.build([v.anchor])

        @tf.function
        def steps() -> None:
            for _ in tf.range(20):
                optimizer.apply([slices()], [v.anchor])

        in_threads([steps] * 3, 2)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -120.0))

    def test_accumulated_gradients_of_threads_are_kept(self):
        v, threads, count = table(), 4, 30
        optimizers = [
            wrapped(Counting(1.0, gradient_accumulation_steps=3), share_slots=True)
            for _ in range(threads)
        ]
        in_threads([step_of(each, v, graph=True) for each in optimizers], count)
        self.assertAllClose(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -1.0 * threads * count / 3))

    def test_other_verbs_do_not_wait_for_a_turn(self):
        v = table()
        v.upsert([1], [[1.0, 2.0]])
        with v.table.turn():
            v.upsert([2], [[3.0, 4.0]])
            self.assertAllEqual(v.lookup([1, 2]), [[1.0, 2.0], [3.0, 4.0]])
            keys, _ = v.export()
            self.assertCountEqual(keys.numpy().tolist(), [1, 2])
            v.remove([1])
            path = tf.train.Checkpoint(v=v).write(self.get_temp_dir() + "/within")
            tf.train.Checkpoint(v=v).read(path).assert_consumed()
        self.assertEqual(int(v.size()), 1)


class FailureTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_a_step_that_fails_gives_its_turn_back(self, graph):
        v, errors = table(), []
        step = step_of(wrapped(Failing(1.0)), v, graph=graph)
        step(tf.constant(1.0))
        for _ in range(2):
            try:
                step(tf.constant(-1.0))
            except tf.errors.InvalidArgumentError as error:
                errors.append(error)  # keeps the objects of its traceback
        self.assertLen(errors, 2)
        in_threads([lambda: step(tf.constant(1.0))] * 2, 5)
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -11.0))

    def test_a_step_that_fails_beside_others_gives_its_turn_back(self):
        v = table()
        good = step_of(wrapped(Counting(1.0), share_slots=True), v, graph=True)
        bad = step_of(wrapped(Failing(1.0), share_slots=True), v, graph=True)

        def fail() -> None:
            try:
                bad(tf.constant(-1.0))
            except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError):
                return
            raise AssertionError("it did not fail")

        in_threads([fail, fail], 20)
        good()
        self.assertAllEqual(v.lookup(KEYS), tf.fill([len(KEYS), DIM], -1.0))


class FitTest(tf.test.TestCase):
    def test_fit_and_averages_take_turns(self):
        count = 20
        layer = tf_embed.layers.DynamicEmbedding(DIM, initializer=0.0, combiner="sum")
        model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
        optimizer = wrapped(Counting(1.0, use_ema=True, ema_overwrite_frequency=3))
        model.compile(optimizer, loss=lambda _, y: tf.reduce_sum(y, -1))
        x = tf.tile([list(KEYS)], [count, 1])
        model.fit(x, tf.zeros([count]), batch_size=1, verbose=0)
        self.assertEqual(int(optimizer.iterations), count)
        self.assertEqual(int(layer.variable.size()), len(KEYS))
        (slot, _) = layer.variable.slot_variables(optimizer)
        self.assertAllEqual(slot.lookup(KEYS), tf.fill([len(KEYS), DIM], float(count)))


if __name__ == "__main__":
    tf.test.main()

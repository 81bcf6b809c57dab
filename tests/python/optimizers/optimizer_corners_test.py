# SPDX-License-Identifier: Apache-2.0
"""Cases in which training could fail silently: users' own optimizers, freezing, gaps."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from tf_embed.layers import DynamicEmbedding

DIM = 3
optimizers = keras.optimizers
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def table(name: str = "v", **options: Any) -> tf_embed.Variable:
    return tf_embed.Variable(dim=options.pop("dim", DIM), name=name, **options)


def slices(keys: Any, number: float = 1.0, dim: int = DIM) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.fill([len(keys), dim], number), tf.constant(list(keys), tf.int64))


class Big:
    """An object that its owner drops."""


class Plain(optimizers.Optimizer):
    """SGD, but not Keras's, so it runs on gathered rows."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * gradient)


class PositiveRate(Plain):
    def __init__(self, learning_rate: float = 0.1, **options: Any) -> None:
        if learning_rate <= 0.0:
            raise ValueError("a positive rate")
        super().__init__(learning_rate, **options)


class RateOfBuild(Plain):
    """Reads its learning rate only once, when it is built."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.first_rate = float(self.learning_rate)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, self.first_rate)


class RateOfAnotherName(Plain):
    def __init__(self, gamma: float = 0.5, name: str = "mine", **options: Any) -> None:
        super().__init__(learning_rate=gamma, name=name, **options)
        self.gamma = gamma

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "gamma": self.gamma}
        del config["learning_rate"]
        return config


class ScheduleOfItsOwn(RateOfAnotherName):
    def __init__(self, gamma: float = 0.5, **options: Any) -> None:
        super().__init__(gamma, **options)
        self.learning_rate = optimizers.schedules.PiecewiseConstantDecay([1], [gamma, 2 * gamma])


class IntegerSlot(Plain):
    """Divides a gradient by the number of its row's steps."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.counts = [
            self.add_variable(shape=one.shape, dtype="int32", name="count") for one in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        count = self.counts[self._get_variable_index(variable)]
        self.assign_add(count, tf.ones_like(count))
        super().update_step(gradient / tf.cast(count, variable.dtype), variable, learning_rate)


class ManySlots(Plain):
    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slots = [self.add_optimizer_variables(variables, f"slot{i}") for i in range(17)]


class UnevenSlots(Plain):
    """The weights of its slots have different initial values."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.slots = [self.add_variable_from_reference(one, "slot") for one in variables]
        for one in self.slots:
            numbers = tf.cumsum(tf.ones_like(tf.reshape(one.value, [-1])))
            one.assign(tf.reshape(numbers, tf.shape(one.value)))


class SlotOfItsOwn(Plain):
    """Momentum in variables that Keras's optimizer does not track."""

    def __init__(self, learning_rate: float, make: Callable[..., Any], **options: Any) -> None:
        super().__init__(learning_rate, **options)
        self.make = make

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.momentums = [self.make(tf.zeros_like(tf.convert_to_tensor(one))) for one in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        momentum = self.momentums[self._get_variable_index(variable)]
        momentum.assign(0.9 * momentum + gradient)
        super().update_step(momentum, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "make": self.make}


class NeedsTheShape(Plain):
    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self.momentums = [keras.Variable(tf.zeros(one.shape)) for one in variables]


class UsersOptimizerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        kind=(Plain, PositiveRate, RateOfBuild, RateOfAnotherName, ScheduleOfItsOwn, IntegerSlot),
        way=("wrapper", "own"),
    )
    @pytest.mark.smoke
    def test_it_trains_rows_as_it_trains_dense_variables(self, kind, way):
        dense, of_dense = keras.Variable(np.zeros([2, DIM], np.float32)), kind(0.5)
        inner = kind(0.5)
        layer = DynamicEmbedding(
            DIM, initializer="zeros", optimizer=inner if way == "own" else None
        )
        layer.build()
        outer = optimizers.SGD() if way == "own" else tf_embed.DynamicEmbeddingOptimizer(inner)
        for number in (1.0, -2.0, 5.0):
            of_dense.apply([tf.fill([2, DIM], number)], [dense])
            outer.apply([slices([1, 2], number)], [layer.variable.anchor])
        self.assertAllClose(layer.variable.lookup([1, 2]), dense, **CLOSE)
        self.assertNotAllClose(dense, tf.zeros([2, DIM]))

    @parameterized.parameters(
        (lambda: SlotOfItsOwn(0.1, tf.Variable), "SlotOfItsOwn as it is: its step fails"),
        (lambda: SlotOfItsOwn(0.1, keras.Variable), "SlotOfItsOwn as it is: its step fails"),
        (lambda: UnevenSlots(0.1), "'.*slot' starts neither from a number nor from the weights"),
        (lambda: NeedsTheShape(0.1), "NeedsTheShape: it can't be built on a number of rows"),
        (
            lambda: ManySlots(0.1),
            "ManySlots: it has 17 variables for each of the model's, and rows keep",
        ),
    )
    def test_what_cannot_train_rows_is_refused_when_it_is_built(self, make, sentence):
        v = table()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
        with self.assertRaisesRegex(ValueError, f"can't be trained by .*{sentence}"):
            optimizer.build([v.anchor])

    def test_exclusion_from_weight_decay_comes_before_the_optimizer_is_built(self):
        v = table()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.AdamW())
        optimizer.build([v.anchor])
        with self.assertRaisesRegex(ValueError, "before the optimizer is built"):
            optimizer.exclude_from_weight_decay(var_list=[v.anchor])

    def test_a_step_that_builds_the_optimizer_is_traced_without_a_warning(self):
        v = table()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam(clipnorm=1.0))
        own = DynamicEmbedding(DIM, optimizer="adam")
        own.build()
        outer = optimizers.SGD()

        @tf.function
        def step() -> None:
            optimizer.apply([slices([1])], [v.anchor])
            outer.apply([slices([1])], [own.variable.anchor])

        with self.assertNoLogs("tensorflow", "WARNING"):
            step()


class GapsTest(tf.test.TestCase, parameterized.TestCase):
    """Steps without a gradient for a table."""

    @parameterized.parameters(True, False)
    def test_accumulated_gradients_come_out_at_their_step_also_without_a_gradient(self, in_graph):
        v, w = table(), keras.Variable(1.0)
        inner = optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        optimizer.build([v.anchor, w])
        for gradient, wanted in ((slices([1]), 0.0), (None, -0.5), (None, -0.5), (None, -0.5)):
            step = functools.partial(optimizer.apply, [gradient, tf.constant(1.0)], [v.anchor, w])
            tf.function(step)() if in_graph else step()
            self.assertAllClose(v.lookup([1]), [[wanted] * DIM])

    @parameterized.product(in_graph=(True, False), kind=("SGD", "Lamb"))
    @pytest.mark.smoke
    def test_rows_that_are_removed_do_not_come_back_by_accumulated_gradients(self, in_graph, kind):
        inner = getattr(optimizers, kind)(1.0, gradient_accumulation_steps=2)
        v, optimizer = table(), tf_embed.DynamicEmbeddingOptimizer(inner)

        def run(action: Callable[[], Any]) -> None:
            def body() -> None:
                action()

            tf.function(body)() if in_graph else body()

        def step(*keys: int) -> None:
            run(lambda: optimizer.apply([slices(keys)], [v.anchor]))

        step(1, 2)
        run(lambda: v.remove([1]))
        step(7)
        self.assertCountEqual(v.export()[0].numpy(), [2, 7])
        step(1, 2)
        run(v.clear)
        step(9)
        self.assertAllEqual(v.export()[0], [9])

    @parameterized.product(in_graph=(True, False), kind=("SGD", "Lamb"))
    def test_a_policy_may_remove_rows_within_an_accumulated_step(self, in_graph, kind):
        class TwoRows(tf_embed.tfra.RestrictPolicy):
            def apply_update(self, ids: Any) -> None:
                self.apply_restriction(2)

            def apply_restriction(self, num_reserved: Any, **_: Any) -> None:
                self.var.remove(tf.sort(self.var.export()[0])[num_reserved:])

        v = tf_embed.tfra.Variable(dim=DIM, restrict_policy=TwoRows)
        inner = getattr(optimizers, kind)(1.0, gradient_accumulation_steps=2)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)

        def step() -> None:
            optimizer.apply([slices([1, 2, 3])], [v.anchor])

        run = tf.function(step) if in_graph else step
        for _ in range(4):
            run()
        self.assertCountEqual(v.export()[0].numpy(), [1, 2])

    def test_averages_take_the_place_of_weights_at_their_step_also_without_a_gradient(self):
        v, w = table(), keras.Variable(1.0)
        inner = optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(inner)
        for gradient, wanted in ((slices([1]), -1.0), (slices([1]), -2.0), (None, -1.5)):
            optimizer.apply([gradient, tf.constant(1.0)], [v.anchor, w])
            self.assertAllClose(v.lookup([1]), [[wanted] * DIM])

    def test_nadams_product_goes_on_while_a_table_is_frozen(self):
        v, w = table(), keras.Variable(np.zeros([1, DIM], np.float32))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.Nadam(0.1))
        dense, other = keras.Variable(np.zeros([1, DIM], np.float32)), keras.Variable(0.0)
        of_dense = optimizers.Nadam(0.1)
        optimizer.build([v.anchor, w])
        of_dense.build([dense, other])
        step = tf.function(lambda: optimizer.apply([slices([1]), tf.ones([1, DIM])], [v.anchor, w]))
        for frozen in (False, True, True, True, False, False):
            v.anchor.frozen = frozen
            step()
            gradient = None if frozen else tf.ones([1, DIM])
            of_dense.apply([gradient, tf.constant(1.0)], [dense, other])
            self.assertAllClose(v.lookup([1]), dense, **CLOSE)

    def test_the_end_of_fit_leaves_a_frozen_table_alone(self):
        layer = DynamicEmbedding(2, initializer="ones")
        model = keras.Sequential(
            [keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        inner = optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)
        model.compile(tf_embed.DynamicEmbeddingOptimizer(inner), "mse")
        ids = np.array([[1, 2]])
        model.fit(ids, np.ones(1), epochs=3, verbose=0)
        layer.trainable = False
        rows = [[5.0, 5.0], [6.0, 6.0]]
        layer.variable.upsert([1, 2], rows)
        model.fit(ids, np.ones(1), epochs=4, verbose=0)
        self.assertAllEqual(layer.variable.lookup([1, 2]), rows)


class ReplicasTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (lambda: optimizers.Lion(), False, "Lion"),
        (lambda: optimizers.Adam(global_clipnorm=1.0), False, "global_clipnorm"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), False, "LossScale"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), True, "LossScale"),
        (lambda: optimizers.Lion(), True, "Lion"),
    )
    def test_what_replicas_cannot_do_is_refused_also_when_it_was_built_elsewhere(
        self, make, is_own, name
    ):
        strategy = two_replicas()
        own = None
        if is_own:
            own = optimizers.SGD() if name == "LossScale" else make()
        layer = DynamicEmbedding(DIM, optimizer=own)
        layer.build()
        dense = keras.Variable(1.0)
        outer = make() if not is_own or name == "LossScale" else optimizers.SGD()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(outer)
        if not is_own:
            optimizer.build([layer.variable.anchor, dense])

        def replica() -> None:
            optimizer.apply([slices([1]), tf.constant(1.0)], [layer.variable.anchor, dense])

        with self.assertRaisesRegex(ValueError, f"MirroredStrategy.*{name}"):
            tf.function(lambda: strategy.run(replica))()
        self.assertEqual(int(layer.variable.size()), 0)

    def test_one_replica_is_refused_as_several_are(self):
        layer = DynamicEmbedding(DIM)
        layer.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.Lion())
        optimizer.build([layer.variable.anchor])

        def replica() -> None:
            optimizer.apply([slices([1])], [layer.variable.anchor])

        strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
        with self.assertRaisesRegex(ValueError, "MirroredStrategy.*Lion"):
            tf.function(lambda: strategy.run(replica))()
        self.assertEqual(int(layer.variable.size()), 0)


class MemoryTest(tf.test.TestCase):
    def test_a_traced_step_goes_with_its_function(self):
        v, dense = table(), keras.Variable(1.0)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(optimizers.Adam())
        variables = [*v.trainable_variables, dense]
        optimizer.build(variables)

        def graph_of_a_step() -> weakref.ref:
            @tf.function
            def step(keys: tf.Tensor) -> None:
                with tf.GradientTape() as tape:
                    rows = tf_embed.embedding_lookup(v, keys)
                    loss = tf.reduce_sum(rows) + dense * 2.0
                optimizer.apply(tape.gradient(loss, variables), variables)

            keys = tf.constant([1, 2], tf.int64)
            step(keys)
            return weakref.ref(step.get_concrete_function(keys).graph)

        graph = graph_of_a_step()
        gc.collect()
        self.assertIsNone(graph())
        self.assertEqual(int(optimizer.iterations), 1)

    def test_a_step_keeps_no_objects_of_the_caller_alive(self):
        def freed_after_steps() -> bool:
            big = Big()
            ref = weakref.ref(big)
            layer, dense = DynamicEmbedding(DIM, optimizer="sgd"), keras.layers.Dense(1)
            optimizer = optimizers.SGD(0.1)
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(dense(layer(tf.constant([1, 2]))))
                variables = layer.trainable_variables + dense.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
            del big
            gc.collect()
            return ref() is None

        self.assertTrue(freed_after_steps())

    def test_a_look_at_the_optimizer_within_keeps_no_objects_of_the_caller_alive(self):
        optimizer = tf_embed.DynamicEmbeddingOptimizer("sgd")

        def freed_after_a_look() -> bool:
            big = Big()
            ref = weakref.ref(big)
            optimizer.inner_optimizer.learning_rate = 0.5
            del big
            gc.collect()
            return ref() is None

        self.assertTrue(freed_after_a_look())


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Tapes of every kind around lookups: as around a dense embedding, or refused with an error."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases import control_flow_cases
from support.cases.control_flow_cases import DIM, IDS, PLACES, VOCABULARY, Dense, Dynamic, loss_of
from support.oracles.reference import SEED
from tf_embed.ops import lookup_gradient

# Functions that take an embedding and return a value. The dense embedding must give the same value.

IN_ORDER = tf.constant([[0, 1, 2], [3, 4, 5]])  # so that the slices are the rows of the matrix


def gradient_of(embed: Any, ids: Any, place: Any = PLACES["plain"], **options: Any) -> Any:
    with tf.GradientTape(**options) as tape:
        tape.watch(embed.source)
        loss = tf.reduce_sum(tf.sin(place(embed, ids)))
    return embed.matrix(tape.gradient(loss, embed.source))


def persistent_tape(place: Any) -> Any:
    def gradients(embed: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            rows = place(embed, tf.constant(IDS))
            one, other = tf.reduce_sum(rows), loss_of(rows**2)
        wanted = (one, other, [one, other])
        return [embed.matrix(tape.gradient(target, embed.source)) for target in wanted]

    return gradients


def upstream_gradients(embed: Any) -> Any:
    with tf.GradientTape() as tape:
        rows = control_flow_cases.for_loop(embed, tf.constant(IDS))
    upstream = tf.reshape(tf.range(9.0), [3, DIM])
    return embed.matrix(tape.gradient(rows, embed.source, output_gradients=upstream))


def unconnected_as_zero(embed: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(control_flow_cases.for_loop(embed, tf.constant(IDS))))
    return embed.matrix(tape.gradient(loss, embed.source, unconnected_gradients="zero"))


def stopped(embed: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.stop_gradient(embed(IN_ORDER)))
    assert tape.gradient(loss, embed.source) is None
    return loss


def second_gradient(place: Any) -> Any:
    def gradients(embed: Any, ids: Any = IN_ORDER) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(tf.sin(place(embed, ids)))
            gradient = inner.gradient(loss, embed.source)
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            penalty = tf.reduce_sum(values**2)
        return embed.matrix(outer.gradient(penalty, embed.source))

    return gradients


def in_a_function(embed: Any, ids: Any) -> Any:
    return tf.function(embed)(ids)


def if_it_starts_with_zero(embed: Any, ids: Any) -> Any:
    return tf.cond(ids[0] == 0, lambda: embed(ids), lambda: 0.0 * embed(ids))


def in_each_iteration(gradient: Any, place: Any = PLACES["plain"]) -> Any:
    """Tapes within a loop in a graph."""

    def gradients(embed: Any) -> Any:
        total = tf.zeros([VOCABULARY, DIM])
        for line in tf.constant(IN_ORDER):
            total = total * 2.0 + gradient(embed, line)
        return total

    return gradients


def in_a_branch(embed: Any) -> Any:
    return tf.cond(
        tf.reduce_sum(embed.source) < 1e9,
        lambda: gradient_of(embed, tf.constant(IDS)),
        lambda: tf.zeros([VOCABULARY, DIM]),
    )


def slices_of_a_branch(embed: Any) -> Any:
    def slices(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(embed(ids)))
        return tape.gradient(loss, embed.source)

    first, second = tf.constant(IDS), tf.constant(IDS[:1])
    return embed.matrix(
        tf.cond(tf.reduce_sum(embed.source) < 1e9, lambda: slices(first), lambda: slices(second))
    )


def weights() -> Any:
    return tf.Variable(np.random.default_rng(SEED).normal(size=[DIM, DIM]), dtype=tf.float32)


def jacobian_of_weights(pfor: bool) -> Any:
    kernel = weights()

    def jacobian(embed: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            targets = tf.reduce_sum(tf.sin(embed(IN_ORDER) @ kernel), 1)
        return tape.jacobian(targets, kernel, experimental_use_pfor=pfor)

    return jacobian


def jacobian_of_rows(embed: Any) -> Any:
    with tf.GradientTape() as tape:
        rows = embed(IN_ORDER)
        tape.watch(rows)
        targets = tf.reduce_sum(tf.sin(rows), 1)
    return tape.batch_jacobian(targets, rows)


def forward_gradient_of_weights(place: Any) -> Any:
    kernel = weights()

    def jvp(embed: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(kernel, tf.ones([DIM, DIM])) as accumulator:
            targets = tf.sin(place(embed, IN_ORDER) @ kernel)
        return accumulator.jvp(targets)

    return jvp


def of_each_line(mapped: Any) -> Any:
    return lambda embed: mapped(lambda line: gradient_of(embed, line), IN_ORDER)


TAPES: dict[str, Callable[[Any], Any]] = {
    "persistent": persistent_tape(PLACES["plain"]),
    "persistent_over_a_condition": persistent_tape(control_flow_cases.cond),
    "watching_what_it_is_told": lambda embed: gradient_of(
        embed, IN_ORDER, control_flow_cases.scan, watch_accessed_variables=False
    ),
    "upstream_gradients": upstream_gradients,
    "unconnected_as_zero": unconnected_as_zero,
    "stopped": stopped,
    "second_gradient": second_gradient(PLACES["plain"]),
    "second_gradient_of_a_function": second_gradient(in_a_function),
    "in_each_iteration": in_each_iteration(gradient_of),
    "in_each_iteration_around_a_loop": in_each_iteration(
        lambda embed, line: gradient_of(embed, line, control_flow_cases.map_fn)
    ),
    "in_each_iteration_around_a_condition": in_each_iteration(
        lambda embed, line: gradient_of(embed, line, if_it_starts_with_zero)
    ),
    "in_each_iteration_around_a_function": in_each_iteration(
        lambda embed, line: gradient_of(embed, line, in_a_function)
    ),
    "second_gradient_in_each_iteration": in_each_iteration(second_gradient(PLACES["plain"])),
    "in_a_branch": in_a_branch,
    "slices_of_a_branch": slices_of_a_branch,
    "in_map_fn": of_each_line(lambda f, lines: tf.map_fn(f, lines, fn_output_signature=tf.float32)),
    "in_vectorized_map": of_each_line(tf.vectorized_map),
    "jacobian_of_weights": jacobian_of_weights(True),
    "jacobian_of_weights_in_a_loop": jacobian_of_weights(False),
    "jacobian_of_rows": jacobian_of_rows,
    "forward_gradient_of_weights": forward_gradient_of_weights(PLACES["plain"]),
    "forward_gradient_of_weights_over_a_loop": forward_gradient_of_weights(
        control_flow_cases.map_fn
    ),
}


class TapesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(name=tuple(TAPES), in_function=(False, True))
    def test_a_tape_gives_what_it_gives_for_a_dense_embedding(self, name, in_function):
        def result(embed: Any) -> Any:
            run = lambda: TAPES[name](embed)  # noqa: E731
            return tf.function(run)() if in_function else run()

        self.assertAllClose(result(Dynamic()), result(Dense()), rtol=1e-5, atol=1e-5)


# Gradients that can't be right are refused. Each function takes an embedding and raises.

OURS = "The gradient of a dynamic embedding can't be made a tensor"
# TensorFlow's error if slices were added up or left a tf.function.
NO_DENSE_FORM = "num_segments == -1|non-negative but is -1|vectorizing the jacobian"
# TensorFlow's error for every resource that is not a variable, also tf.lookup's tables.
NO_HANDLE_DATA = "variable without handle data"


def gradient(embed: Any, place: Any, ids: Any = IDS) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(place(embed, tf.convert_to_tensor(ids))))
    return tape.gradient(loss, embed.source)


def norm(place: Any) -> Any:
    return lambda embed: tf.norm(gradient(embed, place))


def jacobian(place: Any, pfor: bool = True) -> Any:
    def of_rows(embed: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            targets = tf.reduce_sum(place(embed, tf.constant(IDS)), 1)
        return tape.jacobian(targets, embed.source, experimental_use_pfor=pfor)

    return of_rows


def batch_jacobian(embed: Any) -> Any:
    with tf.GradientTape(persistent=True) as tape:
        targets = tf.reduce_sum(embed(tf.constant(IDS)), 1)
    return tape.batch_jacobian(targets, embed.source)


def recomputed(recompute: Any) -> Any:
    return lambda embed: gradient(
        embed, lambda embed, ids: recompute(lambda scale: embed(ids) * scale)(tf.constant(2.0))
    )


def function_in_a_loop(ids: Any) -> Any:
    return lambda embed: (
        gradient(embed, lambda embed, ids: control_flow_cases.map_fn(tf.function(embed), ids), ids)
        + tf.zeros([])
    )


def slices_in_vectorized_map(embed: Any) -> Any:
    return tf.vectorized_map(
        lambda line: gradient(embed, PLACES["plain"], line), tf.constant(IDS), warn=False
    )


def map_in_vectorized_map(embed: Any) -> Any:
    return gradient(
        embed,
        lambda embed, ids: tf.vectorized_map(
            lambda line: control_flow_cases.map_fn(embed, line), ids, warn=False
        ),
    )


def forward_gradient(embed: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(embed.source, tf.zeros([0, DIM])) as accumulator:
        rows = embed(tf.constant(IDS))
    return accumulator.jvp(rows)


ANY = (TypeError, ValueError, tf.errors.InvalidArgumentError)
REFUSED: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "norm": (norm(PLACES["plain"]), TypeError, OURS),
    "norm_of_a_loop": (norm(control_flow_cases.for_loop), ANY, f"{OURS}|{NO_DENSE_FORM}"),
    "norm_of_two_lookups": (norm(PLACES["twice"]), ANY, NO_DENSE_FORM),
    "jacobian": (jacobian(PLACES["plain"]), TypeError, OURS),
    "jacobian_in_a_loop": (jacobian(PLACES["plain"], False), TypeError, OURS),
    "jacobian_of_two_lookups": (jacobian(PLACES["twice"]), ANY, NO_DENSE_FORM),
    "batch_jacobian": (batch_jacobian, ValueError, "Need first dimension"),
    "recompute_grad": (recomputed(tf.recompute_grad), TypeError, OURS),
    "remat": (recomputed(keras.remat), TypeError, OURS),
    "slices_in_vectorized_map": (slices_in_vectorized_map, TypeError, OURS),
    "forward_gradient": (forward_gradient, TypeError, "variant|type_value"),
    "map_in_vectorized_map": (map_in_vectorized_map, ValueError, NO_HANDLE_DATA),
}
REFUSED_IN_GRAPHS: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "function_in_a_loop": (function_in_a_loop(IDS), ANY, NO_DENSE_FORM),
    # For these keys, -1, only the number of rows shows TensorFlow that something is wrong.
    "function_in_a_loop_of_negative_keys": (function_in_a_loop(IDS * 0), ANY, NO_DENSE_FORM),
    "persistent_tape_over_a_loop": (
        persistent_tape(control_flow_cases.for_loop),
        ValueError,
        NO_HANDLE_DATA,
    ),
    "second_gradient_over_a_loop": (
        second_gradient(control_flow_cases.map_fn),
        ValueError,
        NO_HANDLE_DATA,
    ),
    "second_gradient_over_a_condition": (
        second_gradient(
            lambda embed, ids: tf.cond(ids[0, 0] == 0, lambda: embed(ids), lambda: embed(ids[:1]))
        ),
        ValueError,
        "can't pass a loop or a condition",
    ),
}


class NarrowTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        look_up=[tf_embed.embedding_lookup, tf_embed.embedding_lookup_unique],
        dtype=["bfloat16", "float16"],
        in_function=[False, True],
    )
    def test_gradients_of_an_id_that_comes_often_are_summed_in_float32(
        self, look_up, dtype, in_function
    ):
        v = tf_embed.Variable(dim=1, value_dtype=dtype)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build(v.trainable_variables)

        def step() -> None:
            with tf.GradientTape() as tape:
                rows = look_up(v, tf.constant([[7] * 1000, [8] * 1000], v.key_dtype))
                loss = 2.0 * tf.reduce_sum(tf.cast(rows, tf.float32))
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        (tf.function(step) if in_function else step)()
        # Sums in the dtype of the rows would give -512 for bfloat16.
        self.assertAllEqual(v.lookup([7, 8]), [[-2000.0], [-2000.0]])


class RefusedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*REFUSED)
    def test_what_has_no_gradient_is_refused(self, name):
        function, error, message = REFUSED[name]
        with self.assertRaisesRegex(error, message):
            function(Dynamic())

    @parameterized.parameters(*REFUSED, *REFUSED_IN_GRAPHS)
    def test_what_has_no_gradient_is_refused_in_a_tf_function(self, name):
        function, error, message = {**REFUSED, **REFUSED_IN_GRAPHS}[name]
        embed = Dynamic()
        with self.assertRaisesRegex(error, message):
            tf.function(lambda: function(embed))()

    @parameterized.parameters(False, True)
    def test_a_zero_for_a_table_that_was_not_looked_up_is_no_gradient(self, in_function):
        embed = Dynamic()
        optimizer = tf_embed.DynamicEmbeddingOptimizer("adam")
        (anchor,) = embed.trainable_variables
        optimizer.build([anchor])

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.constant(1.0)
            zero = tape.gradient(loss, anchor.value, unconnected_gradients="zero")
            optimizer.apply([zero], [anchor])

        with self.assertRaisesRegex(ValueError, "must be a tf.IndexedSlices.*asks for zeros"):
            tf.function(step)() if in_function else step()

    def test_a_gradient_that_a_loop_has_lost_trains_nothing(self):
        embed = Dynamic()
        optimizer = tf_embed.DynamicEmbeddingOptimizer("sgd")
        variables = embed.trainable_variables
        optimizer.build(variables)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                rows = control_flow_cases.map_fn(tf.function(embed), tf.constant(IDS))
                loss = tf.reduce_sum(rows)
            optimizer.apply(tape.gradient(loss, variables), variables)

        with self.assertRaisesRegex(ValueError, "a tf.function that looks up is called in a loop"):
            step()

    @parameterized.parameters("for_loop", "map_fn", "scan")
    def test_a_loop_of_a_kind_that_is_not_known_is_refused(self, place):
        embed = Dynamic()
        with (
            unittest.mock.patch.object(lookup_gradient, "_CONTROL_FLOW", ()),
            self.assertRaisesRegex(TypeError, f"{OURS}|NOT CONVERTIBLE TO TENSOR"),
        ):
            tf.function(lambda: gradient(embed, PLACES[place]))()


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""Places for a lookup in control flow, and two embeddings to use there, one dense and one dynamic.

A *place* is a function of an embedding and ids that returns rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

# The key of each id: the ends of the range, and negative keys, which TensorFlow drops silently
# when it makes slices dense.
KEYS = {
    "int64": [-1, 5, -(2**63), 2**63 - 1, 0, -7],
    "int32": [-1, 5, -(2**31), 2**31 - 1, 0, -7],
    "uint64": [2**64 - 1, 5, 2**63, 2**63 - 1, 0, 7],
    "uint32": [2**32 - 1, 5, 2**31, 2**31 - 1, 0, 7],
}
VOCABULARY, DIM, STEPS = 6, 3, 4
IDS = np.array([[0, 1, 1], [2, 0, 3], [3, 3, 3], [4, 0, 2]])  # 5 is never looked up
ROWS = np.random.default_rng(SEED).normal(size=[VOCABULARY, DIM]).astype(np.float32)


class Embedding(keras.layers.Layer):
    """The base of both embeddings."""

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape, DIM)


class Dense(Embedding):
    """The oracle: its gradient is a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.add_weight(shape=(VOCABULARY, DIM), initializer="zeros")
        self.rows.assign(ROWS)
        self.source = self.rows.value

    def call(self, ids: Any) -> Any:
        return tf.tensordot(tf.one_hot(ids, VOCABULARY), self.rows, 1)

    def matrix(self, gradient: Any) -> Any:
        return gradient


class Dynamic(Embedding):
    """The same rows in a dynamic table."""

    def __init__(self, key_dtype: str = "int64", **options: Any) -> None:
        super().__init__()
        self.table = DynamicEmbedding(DIM, key_dtype, **options)
        self.table.build()
        self.keys = np.array(KEYS[key_dtype], key_dtype)
        self.table.variable.upsert(self.keys, ROWS)
        self.source = self.table.variable.trainable_variables[0].value

    def call(self, ids: Any) -> Any:
        return self.table(tf.gather(self.keys, ids))

    def matrix(self, gradient: Any) -> Any:
        """The gradient of all ids as a matrix. It must be slices, and their keys must be known."""
        if not isinstance(gradient, tf.IndexedSlices):
            raise AssertionError(f"The gradient was lost: {gradient}")
        at = tf.cast(gradient.indices, tf.int64)[:, tf.newaxis] == self.keys.astype(np.int64)
        return tf.matmul(tf.cast(at, tf.float32), gradient.values, transpose_a=True)


def while_loop(embed: Any, ids: Any) -> Any:
    return tf.while_loop(
        lambda i, rows: i < STEPS,
        lambda i, rows: (i + 1, tf.tanh(rows) + embed(ids[i])),
        (0, tf.zeros([3, DIM])),
    )[1]


def for_loop(embed: Any, ids: Any) -> Any:
    rows = tf.zeros([3, DIM])
    for line in ids:
        rows = tf.tanh(rows) + embed(line)
    return rows


def for_loop_with_break(embed: Any, ids: Any) -> Any:
    rows = tf.zeros([3, DIM])
    for i in tf.range(10):
        if i == 3:
            break
        rows = tf.tanh(rows) + embed(ids[i])
    return rows


def loop_in_loop(embed: Any, ids: Any) -> Any:
    total = tf.zeros([DIM])
    for line in ids:
        for one in line:
            total = tf.tanh(total) + embed(one)
    return total


def loop_over_conditions(embed: Any, ids: Any) -> Any:
    rows = tf.zeros([3, DIM])
    for i in tf.range(STEPS):
        if i % 2 == 0:
            rows += embed(ids[i])
        elif i == 1:
            rows *= 2.0
        else:
            rows *= embed(ids[i])
    return rows


def map_fn(embed: Any, ids: Any) -> Any:
    return tf.map_fn(embed, ids, fn_output_signature=tf.float32)


def map_in_map(embed: Any, ids: Any) -> Any:
    return tf.map_fn(lambda line: map_fn(embed, line), ids, fn_output_signature=tf.float32)


def map_over_ragged(embed: Any, ids: Any) -> Any:
    ragged = tf.RaggedTensor.from_row_lengths(tf.reshape(ids, [-1]), [5, 0, 1, 6])
    return tf.map_fn(
        lambda line: tf.reduce_sum(embed(line), 0), ragged, fn_output_signature=tf.float32
    )


def scan(embed: Any, ids: Any) -> Any:
    return tf.scan(lambda rows, line: tf.tanh(rows) + embed(line), ids, tf.zeros([3, DIM]))


def fold(embed: Any, ids: Any) -> Any:
    return tf.foldr(lambda rows, line: tf.tanh(rows) + embed(line), ids, tf.zeros([3, DIM]))


def no_iteration(embed: Any, ids: Any) -> Any:
    return for_loop(embed, ids[:0]) + embed(ids)


def cond(embed: Any, ids: Any) -> Any:
    return tf.cond(ids[0, 0] == 0, lambda: embed(ids), lambda: 3.0 * embed(ids[::-1]))


def cond_one_branch(embed: Any, ids: Any) -> Any:
    return tf.cond(ids[0, 0] == 0, lambda: embed(ids), lambda: tf.zeros([STEPS, 3, DIM]))


def cond_other_branch(embed: Any, ids: Any) -> Any:
    return embed(ids) + tf.cond(ids[0, 0] == 1, lambda: embed(ids), lambda: tf.zeros([DIM]))


def cond_in_cond(embed: Any, ids: Any) -> Any:
    return tf.cond(
        ids[0, 0] == 0, lambda: cond_one_branch(embed, ids), lambda: tf.zeros([STEPS, 3, DIM])
    )


def switch_case(embed: Any, ids: Any) -> Any:
    branches = [lambda: embed(ids[:2]), lambda: 2.0 * embed(ids[2:]), lambda: tf.ones([2, 3, DIM])]
    return tf.switch_case(ids[0, 1], branches)


def case(embed: Any, ids: Any) -> Any:
    pairs = [(ids[0, 0] == 1, lambda: embed(ids)), (ids[0, 1] == 1, lambda: 2.0 * embed(ids))]
    return tf.case(pairs, default=lambda: tf.zeros([STEPS, 3, DIM]))


def loop_in_cond(embed: Any, ids: Any) -> Any:
    return tf.cond(ids[0, 0] == 0, lambda: scan(embed, ids), lambda: tf.zeros([STEPS, 3, DIM]))


def function_in_cond(embed: Any, ids: Any) -> Any:
    lookup = tf.function(embed)
    return tf.cond(ids[0, 0] == 0, lambda: lookup(ids), lambda: tf.zeros([STEPS, 3, DIM]))


def function_in_functions(embed: Any, ids: Any) -> Any:
    lookup = tf.function(embed)
    return tf.function(lambda lines: lookup(lines) + tf.function(lookup)(lines[::-1]))(ids)


def loop_in_function(embed: Any, ids: Any) -> Any:
    return tf.function(lambda lines: map_fn(embed, lines))(ids)


def custom_gradient(embed: Any, ids: Any) -> Any:
    @tf.custom_gradient
    def doubled(rows: Any) -> Any:
        return rows, lambda upstream: 2.0 * upstream

    return doubled(embed(ids))


def in_custom_gradient(embed: Any, ids: Any) -> Any:
    @tf.custom_gradient
    def scaled(scale: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = embed(ids) * scale

        def gradient(upstream: Any, variables: Any = None) -> Any:
            return tf.zeros([]), tape.gradient(rows, variables, output_gradients=upstream)

        return rows, gradient

    return scaled(tf.constant(2.0))


@keras.saving.register_keras_serializable(package="lookups_test")
class Cell(keras.layers.Layer):
    """Adds up rows: its inputs, or its lookups of the inputs if it has an embedding."""

    def __init__(self, embed: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.embed, self.state_size, self.output_size = embed, DIM, DIM

    def build(self, _: Any) -> None:
        pass

    def call(self, step: Any, states: Any) -> Any:
        rows = self.embed(tf.cast(step[:, 0], tf.int32)) if self.embed else step
        rows += tf.tanh(states[0])
        return rows, [rows]


def rnn(**options: Any) -> Callable[..., Any]:
    return lambda embed, ids: keras.layers.RNN(Cell(embed), **options)(ids[..., tf.newaxis])


def bidirectional(embed: Any, ids: Any) -> Any:
    return keras.layers.Bidirectional(keras.layers.RNN(Cell(), return_sequences=True))(embed(ids))


def keras_while_loop(embed: Any, ids: Any) -> Any:
    return keras.ops.while_loop(
        lambda i, rows: i < STEPS,
        lambda i, rows: (i + 1, tf.tanh(rows) + embed(ids[i])),
        (0, tf.zeros([3, DIM])),
    )[1]


def keras_scan(embed: Any, ids: Any) -> Any:
    def step(rows: Any, line: Any) -> Any:
        rows = tf.tanh(rows) + embed(line)
        return rows, rows

    return keras.ops.scan(step, tf.zeros([3, DIM]), ids)[1]


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda embed, ids: embed(ids),
    "twice": lambda embed, ids: embed(ids) * embed(ids[::-1]),
    "while_loop": while_loop,
    "for_loop": for_loop,
    "for_loop_with_break": for_loop_with_break,
    "loop_in_loop": loop_in_loop,
    "loop_over_conditions": loop_over_conditions,
    "loop_and_plain": lambda embed, ids: scan(embed, ids) * embed(ids),
    "map_fn": map_fn,
    "map_in_map": map_in_map,
    "map_over_ragged": map_over_ragged,
    "vectorized_map": lambda embed, ids: tf.vectorized_map(embed, ids),
    "vectorized_map_in_map": lambda embed, ids: tf.map_fn(
        lambda line: tf.vectorized_map(embed, line), ids, fn_output_signature=tf.float32
    ),
    "scan": scan,
    "fold": fold,
    "no_iteration": no_iteration,
    "cond": cond,
    "cond_one_branch": cond_one_branch,
    "cond_other_branch": cond_other_branch,
    "cond_in_cond": cond_in_cond,
    "switch_case": switch_case,
    "case": case,
    "loop_in_cond": loop_in_cond,
    "function_in_cond": function_in_cond,
    "function_in_functions": function_in_functions,
    "loop_in_function": loop_in_function,
    "custom_gradient": custom_gradient,
    "in_custom_gradient": in_custom_gradient,
    "rnn": rnn(),
    "rnn_unrolled": rnn(unroll=True, return_sequences=True),
    "rnn_backwards": rnn(go_backwards=True, return_sequences=True),
    "bidirectional": bidirectional,
    "time_distributed": lambda embed, ids: keras.layers.TimeDistributed(embed)(
        ids[..., tf.newaxis]
    ),
    "keras_while_loop": keras_while_loop,
    "keras_fori_loop": lambda embed, ids: keras.ops.fori_loop(
        0, STEPS, lambda i, rows: tf.tanh(rows) + embed(ids[i]), tf.zeros([3, DIM])
    ),
    "keras_scan": keras_scan,
    "keras_map": lambda embed, ids: keras.ops.map(embed, ids),
    "keras_vectorized_map": lambda embed, ids: keras.ops.vectorized_map(embed, ids),
    "keras_cond": lambda embed, ids: keras.ops.cond(
        ids[0, 0] == 0, lambda: embed(ids), lambda: embed(ids[::-1])
    ),
    "keras_switch": lambda embed, ids: keras.ops.switch(
        ids[0, 1], [lambda: embed(ids[:1]), lambda: 2.0 * embed(ids[:1])]
    ),
}


def loss_of(rows: Any) -> Any:
    """A loss in which each number of `rows` has a different weight."""
    weights = tf.reshape(tf.range(1.0, tf.cast(tf.size(rows), tf.float32) + 1.0), tf.shape(rows))
    return tf.reduce_sum(rows * tf.sin(weights))

# SPDX-License-Identifier: Apache-2.0
"""The gradient of the weights of bags, if the lookup is in a condition or a loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe

Body = Callable[[tf.Tensor], tf.Tensor]
ROWS = np.array([[0.0, 0.0], [10.0, 10.0], [20.0, 20.0], [30.0, 30.0]], np.float32)


def plain(body: Body, weights: tf.Variable) -> tf.Tensor:
    return body(weights)


def in_cond(body: Body, weights: tf.Variable) -> tf.Tensor:
    return tf.cond(tf.reduce_sum(weights) > 0, lambda: body(weights), lambda: tf.zeros([1, 4]))


def in_cond_of_a_tensor(body: Body, weights: tf.Variable) -> tf.Tensor:
    tensor = weights * 1.0
    return tf.cond(tf.reduce_sum(tensor) > 0, lambda: body(tensor), lambda: tf.zeros([1, 4]))


def in_loop(body: Body, weights: tf.Variable) -> tf.Tensor:
    tensor = weights * 1.0

    def again(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, total + body(tensor)

    return tf.while_loop(lambda i, _: i < 2, again, (0, tf.zeros([1, 4])))[1]


def in_map(body: Body, weights: tf.Variable) -> tf.Tensor:
    return tf.map_fn(body, tf.stack([weights, weights]), fn_output_signature=tf.float32)


PLACES = (plain, in_cond, in_cond_of_a_tensor, in_loop, in_map)


def gradient(place: Callable[[Body, tf.Variable], tf.Tensor], body: Body) -> np.ndarray:
    """Of the sum of an output, for four weights."""
    weights = tf.Variable([0.5, 0.5, 1.0, 2.0])

    @tf.function(autograph=False)
    def compute() -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(place(body, weights))
        return tf.convert_to_tensor(tape.gradient(total, weights))

    return compute().numpy()


def dense(ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Two bags of two ids, side by side, by TensorFlow's own ops."""
    rows = tf.gather(tf.constant(ROWS), ids) * weights[:, tf.newaxis]
    return tf.reshape(tf.reduce_sum(tf.reshape(rows, [2, 2, 2]), 1), [1, 4])


class WeightsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(place=PLACES, padding_id=(None, 3))
    def test_a_layer(self, place, padding_id):
        layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum", padding_id=padding_id)
        layer.build()
        layer.variable.upsert(range(4), ROWS)
        ids = tf.constant([[1, 2], [3, 1]], tf.int64)

        def body(weights: tf.Tensor) -> tf.Tensor:
            return tf.reshape(layer(ids, weights=tf.reshape(weights, [2, 2])), [1, 4])

        wanted = gradient(place, lambda weights: dense(tf.reshape(ids, [-1]), weights))
        if padding_id is not None:
            wanted[2] = 0.0
        self.assertAllEqual(gradient(place, body), wanted)

    @parameterized.product(place=PLACES, outside=(False, True))
    def test_a_table_batched_layer(self, place, outside):
        layer = tbe.TableBatchedEmbeddingBags(
            [(4, 2), (4, 2)],
            optimizer="EXACT_SGD",
            bounds_check_mode=tbe.BoundsCheckMode.IGNORE,
        )
        for rows in layer.split_embedding_weights():
            rows.assign(ROWS)
        ids = tf.constant([1, 9 if outside else 2, 3, 1], tf.int64)
        offsets = tf.constant([0, 2, 4], tf.int64)

        def body(weights: tf.Tensor) -> tf.Tensor:
            pooled = layer(ids, offsets, per_sample_weights=weights)
            return tf.ensure_shape(pooled, [1, 4])

        wanted = gradient(place, lambda weights: dense(tf.where(ids < 4, ids, 0), weights))
        self.assertAllEqual(gradient(place, body), wanted)

    def test_an_expired_row_has_no_part_in_it(self):
        policy = tf_embed.TablePolicy(eviction="ttl", ttl_seconds=10)
        for padding_id in (None, 3):
            layer = tf_embed.layers.DynamicEmbedding(
                2, combiner="sum", initializer="ones", policy=policy, padding_id=padding_id
            )
            layer.build()
            layer.variable.set_clock(time_ms=1_000_000)
            layer.variable.upsert(range(4), ROWS)
            layer.variable.set_clock(time_ms=1_020_000)
            weights = tf.Variable([[0.5, 0.5, 0.5]])
            with tf.GradientTape() as tape:
                pooled = layer(tf.constant([[1, 2, 3]]), weights=weights, training=True)
            last = 1.0 if padding_id is None else 0.0
            self.assertAllEqual(pooled, [[1.0 + last / 2] * 2])
            self.assertAllEqual(tape.gradient(pooled, weights), [[2.0, 2.0, 2.0 * last]])


if __name__ == "__main__":
    tf.test.main()

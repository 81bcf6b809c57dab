# SPDX-License-Identifier: Apache-2.0
"""The gradient of bags' weights, in conditions and loops, and if rows change before it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import tbe

Body = Callable[[tf.Tensor], tf.Tensor]
Change = Callable[[], None] | None  # a change of the rows, between the lookup and the gradient
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
    """The gradient of the sum of an output, for four weights."""
    weights = tf.Variable([0.5, 0.5, 1.0, 2.0])

    @tf.function(autograph=False)
    def compute() -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(place(body, weights))
        return tf.convert_to_tensor(tape.gradient(total, weights))

    return compute().numpy()


def dense(ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Two bags of two ids, concatenated, by TensorFlow's own ops."""
    rows = tf.gather(tf.constant(ROWS), ids) * weights[:, tf.newaxis]
    return tf.reshape(tf.reduce_sum(tf.reshape(rows, [2, 2, 2]), 1), [1, 4])


def at_once(body: Body, weights: tf.Variable, change: Change) -> np.ndarray:
    return _gradient(body, weights, change).numpy()


def lookup_in_a_function(body: Body, weights: tf.Variable, change: Change) -> np.ndarray:
    return at_once(tf.function(body), weights, change)


def lookup_in_a_loop(body: Body, weights: tf.Variable, change: Change) -> np.ndarray:
    @tf.function
    def summed(tensor: tf.Tensor) -> tf.Tensor:
        total = tf.zeros_like(body(tensor))
        for _ in tf.range(2):
            total += body(tensor)
        return total

    return at_once(summed, weights, change)


def all_in_a_function(body: Body, weights: tf.Variable, change: Change) -> np.ndarray:
    return tf.function(lambda: _gradient(body, weights, change))().numpy()


def _gradient(body: Body, weights: tf.Variable, change: Change) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(body(weights)))
    if change is not None:
        change()
    return tape.gradient(loss, weights)


WAYS = (at_once, lookup_in_a_function, lookup_in_a_loop, all_in_a_function)


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

    def test_a_vectorized_map_of_ids_of_which_some_are_padding(self):
        layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum", padding_id=3)
        layer.build()
        layer.variable.upsert(range(4), ROWS)
        ids, weights = tf.constant([[1, 3], [2, 1]], tf.int64), tf.Variable([[0.5, 2.0]] * 2)

        @tf.function
        def compute() -> tf.Tensor:
            with tf.GradientTape() as tape:
                lines = tf.vectorized_map(
                    lambda line: layer(line[0][tf.newaxis], line[1][tf.newaxis]),
                    (ids, weights * 1.0),
                )
                total = tf.reduce_sum(lines)
            return tape.gradient(total, weights)

        self.assertAllEqual(compute(), [[20.0, 0.0], [40.0, 20.0]])

    def test_a_loaded_saved_model_has_the_gradient(self):
        module = tf.Module()
        module.layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum")
        module.layer.build()
        module.layer.variable.upsert(range(4), ROWS)
        ids, weights = tf.constant([[1, 3]], tf.int64), tf.Variable([[0.5, 2.0]])
        module.pooled = tf.function(lambda ids, weights: module.layer(ids, weights))
        module.pooled.get_concrete_function(ids, tf.constant(weights))
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(loaded.pooled(ids, weights * 1.0))
        self.assertAllEqual(tape.gradient(total, weights), [[20.0, 60.0]])

    @parameterized.product(way=WAYS, padding_id=(None, 3), combiner=("sum", "mean", "sqrtn"))
    def test_a_layer_whose_rows_have_changed_since(self, way, padding_id, combiner):
        layer = tf_embed.layers.DynamicEmbedding(2, combiner=combiner, padding_id=padding_id)
        layer.build()
        ids = tf.constant([[1, 2, 5], [3, 1, 0]], tf.int64)  # 5 has no row

        def change() -> None:
            layer.variable.upsert([1, 3, 5], [[7.0, 8.0], [9.0, 7.0], [6.0, 6.0]])
            layer.variable.remove([2])

        def gradient(changes: bool) -> np.ndarray:
            layer.variable.clear()
            layer.variable.upsert(range(4), ROWS)
            weights = tf.Variable([[0.5, 0.5, 1.0], [2.0, 0.25, 3.0]])
            return way(lambda w: layer(ids, weights=w), weights, change if changes else None)

        wanted = gradient(changes=False)
        self.assertGreater(np.abs(wanted).max(), 1.0)
        self.assertAllClose(gradient(changes=True), wanted)

    def test_a_second_gradient_is_of_the_rows_of_the_lookup(self):
        layer = tf_embed.layers.DynamicEmbedding(2, combiner="sum")
        layer.build()
        layer.variable.upsert(range(4), ROWS)
        weights = tf.Variable([[0.5, 2.0]])
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(layer(tf.constant([[1, 2]]), weights=weights) ** 2)
            layer.variable.upsert([1, 2], ROWS[:2])
            penalty = tf.reduce_sum(inner.gradient(loss, weights))
        rows = outer.gradient(penalty, layer.trainable_variables)[0]
        # The loss is |w1 a + w2 b|^2 in each column; the penalty 2 (a + b) (w1 a + w2 b).
        a, b, w1, w2 = 10.0, 20.0, 0.5, 2.0
        pooled, both = w1 * a + w2 * b, a + b
        wanted = {1: 2 * (pooled + both * w1), 2: 2 * (pooled + both * w2)}
        found: dict[int, float] = {}
        for key, row in zip(rows.indices.numpy().tolist(), rows.values.numpy(), strict=True):
            found[key] = found.get(key, 0.0) + float(row[0])
        self.assertAllClose(found, wanted)

    @parameterized.product(way=WAYS, combiner=("SUM", "MEAN"), optimizer=("EXACT_SGD", "NONE"))
    def test_a_table_batched_layer_whose_rows_have_changed_since(self, way, combiner, optimizer):
        layer = tbe.TableBatchedEmbeddingBags(
            [(4, 2), (None, 3), (4, 1)],
            feature_table_map=[1, 0, 1, 2],
            pooling_mode=tbe.PoolingMode[combiner],
            optimizer=optimizer,
        )
        ids = tf.constant([1, 3, 2, 3, 1, 0, 2, 2], tf.int64)
        offsets = tf.constant([0, 2, 2, 3, 4, 5, 7, 7, 8], tf.int64)

        def write(scale: float) -> None:
            for table in layer.tables:
                rows = np.arange(4 * table.dim, dtype=np.float32).reshape([4, table.dim])
                table.upsert(range(4), scale * rows)

        def gradient(changes: bool) -> np.ndarray:
            write(1.0)
            weights = tf.Variable([0.5, 0.5, 1.0, 2.0, 0.25, 3.0, 1.5, 1.0])
            return way(
                lambda w: layer(ids, offsets, per_sample_weights=w),
                weights,
                (lambda: write(-3.0)) if changes else None,
            )

        wanted = gradient(changes=False)
        self.assertGreater(np.abs(wanted).max(), 1.0)
        self.assertAllClose(gradient(changes=True), wanted)

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

# SPDX-License-Identifier: Apache-2.0
"""Defects of TFRA that tf_embed does not have, and that no other test covers.

`beside_tfra_defects_test.py` shows the wrong answers of TFRA itself, if it is installed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED

NUM_THREADS = 6


def in_threads(work: Callable[[int], None], num_threads: int = NUM_THREADS) -> None:
    """Calls `work` with each thread's number in parallel, and raises the first error, if any."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def sum_of(variable: tf_embed.Variable, ids: Any, name: str | None = None) -> tf.Tensor:
    return tf.reduce_sum(tf_embed.tfra.embedding_lookup(variable, ids, name=name))


class StepTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("apply_gradients", "minimize")
    def test_a_key_looked_up_under_two_names_gets_one_summed_update(self, way):
        v = tf_embed.tfra.Variable(dim=1)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        names = ("user", "item")
        trained = [v.get_trainable_by_name(name) for name in names]
        loss = lambda: sum(sum_of(v, [5], name) for name in names)  # noqa: E731
        if way == "minimize":
            optimizer.minimize(loss, trained)
        else:
            with tf.GradientTape() as tape:
                value = loss()
            optimizer.apply_gradients(zip(tape.gradient(value, trained), trained, strict=True))
        self.assertAllEqual(v.lookup([5]), [[-2.0]])

    def test_an_anchor_with_two_gradients_is_refused_and_nothing_changes(self):
        v = tf_embed.tfra.Variable(dim=1, name="users")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
        with tf.GradientTape(persistent=True) as tape:
            losses = [sum_of(v, [5]), sum_of(v, [6])]
        gradients = [tape.gradient(loss, v.anchor) for loss in losses]
        with self.assertRaisesRegex(ValueError, "'users' must stand once.*two gradients"):
            optimizer.apply(gradients, [v.anchor, v.anchor])
        self.assertEqual(int(v.size()), 0)

    def test_restricting_one_of_two_variables_leaves_the_other_with_its_slots(self):
        restricted = tf_embed.tfra.Variable(
            dim=2, name="first", restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy
        )
        other = tf_embed.tfra.Variable(dim=2, name="second")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        for number in range(3):
            optimizer.minimize(
                lambda n=number: sum_of(restricted, range(n, 20)) + sum_of(other, range(20)),
                [restricted.anchor, other.anchor],
            )
        keys = np.arange(20)
        before = [one.lookup(keys) for one in (other, *other.get_slot_variables(optimizer))]
        self.assertEqual(int(restricted.restrict(5)), 15)
        self.assertEqual(
            [int(one.size()) for one in restricted.get_slot_variables(optimizer)], [5, 5]
        )
        self.assertEqual([int(one.size()) for one in other.get_slot_variables(optimizer)], [20, 20])
        after = [one.lookup(keys) for one in (other, *other.get_slot_variables(optimizer))]
        for one, two in zip(before, after, strict=True):
            self.assertAllEqual(one, two)

    @parameterized.parameters(1, 4)
    def test_a_step_of_adam_is_a_lookup_of_each_table_and_one_update(self, num_tables):
        tables = [tf_embed.tfra.Variable(dim=2, name=f"v{i}") for i in range(num_tables)]
        anchors = [table.anchor for table in tables]
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build(anchors)

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = tf.add_n([sum_of(table, ids) for table in tables])
            optimizer.apply(tape.gradient(loss, anchors), anchors)

        graph = step.get_concrete_function(tf.TensorSpec([None], tf.int64)).graph.as_graph_def()
        nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
        used = [one.op for one in nodes if one.op.startswith("TfEmbed")]
        # These ops do not reach the table.
        used = [kind for kind in used if kind not in ("TfEmbedToken", "TfEmbedUnlessFrozen")]
        update = "TfEmbedApply" if num_tables == 1 else "TfEmbedApplyEach"
        self.assertCountEqual(used, ["TfEmbedFind"] * num_tables + [update])


class RowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        key_dtype=(tf.int64, tf.int32, tf.string), dim=(1, 99, 100, 101, 128, 257)
    )
    def test_rows_of_any_length_under_keys_of_any_dtype(self, key_dtype, dim):
        rng = np.random.default_rng(SEED)
        v = tf_embed.tfra.Variable(
            key_dtype=key_dtype, dim=dim, initializer=-1.0, devices=["/CPU:0"] * 2
        )
        wanted: dict[int, np.ndarray] = {}

        def keys_of(numbers):
            if key_dtype == tf.string:
                return tf.constant([f"key number {n}, longer than a short string" for n in numbers])
            return tf.constant(numbers, key_dtype)

        for _ in range(4):
            numbers = rng.integers(-60, 60, 50)
            rows = rng.normal(size=[50, dim]).astype(np.float32)
            v.upsert(keys_of(numbers), rows)
            wanted.update(zip(numbers.tolist(), rows, strict=True))
        numbers = list(range(-60, 60))
        absent = np.full(dim, -1, np.float32)
        self.assertAllEqual(v.lookup(keys_of(numbers)), [wanted.get(n, absent) for n in numbers])
        self.assertEqual(int(v.size()), len(wanted))

    def test_times_go_on_behind_the_year_2038(self):
        v = tf_embed.tfra.Variable(dim=1, restrict_policy=tf_embed.tfra.TimestampRestrictPolicy)
        for key, year in enumerate((2037, 2039, 2106, 2107)):
            v.set_clock(time_ms=(year - 1970) * 365 * 86_400_000)
            v.upsert([key], [[0.0]])
        v.restrict(2)
        self.assertCountEqual(v.export()[0].numpy().tolist(), [2, 3])


class ThreadsTest(tf.test.TestCase, parameterized.TestCase):
    """TFRA loses updates of concurrent steps without bp_v2, and counts of policies also with it."""

    def test_of_300_exports_during_writes_each_has_each_key_once_and_each_row_whole(self):
        v = tf_embed.tfra.Variable(dim=8, devices=["/CPU:0"] * 2)
        stop = threading.Event()

        def write(number: int) -> None:
            rng = np.random.default_rng(SEED + number)
            while not stop.is_set():
                keys = rng.integers(0, 3000, 200)
                v.upsert(keys, np.repeat(rng.random([200, 1], np.float32), 8, axis=1))
                v.remove(rng.integers(0, 3000, 50))

        def work(number: int) -> None:
            if number:
                write(number)
                return
            try:
                for _ in range(300):
                    keys, rows = (part.numpy() for part in v.export())
                    self.assertLen(np.unique(keys), len(keys))
                    self.assertTrue((rows == rows[:, :1]).all())
            finally:
                stop.set()

        in_threads(work, 3)

    @parameterized.parameters(tf.float32, tf.int64)
    def test_accum_loses_nothing(self, value_dtype):
        v = tf_embed.tfra.Variable(dim=4, value_dtype=value_dtype)
        keys = tf.range(20, dtype=tf.int64)
        v.upsert(keys, tf.zeros([20, 4], value_dtype))
        zeros, ones = tf.zeros([40, 4], value_dtype), tf.ones([40, 4], value_dtype)
        twice = tf.concat([keys, keys], 0)

        def work(number: int) -> None:
            for _ in range(50):
                v.accum(twice, zeros, ones * (number + 1), tf.ones([40], tf.bool))

        in_threads(work)
        total = 2 * 50 * sum(range(1, NUM_THREADS + 1))
        self.assertAllEqual(v.lookup(keys), np.full([20, 4], total))

    @parameterized.parameters(False, True)
    @pytest.mark.of_cpu("there, threads get each other's outputs of TensorFlow's eager ops")
    def test_steps_of_several_optimizers_lose_nothing(self, bp_v2):
        # Gradients are integers, so sums are exact in any order. Rows come by these steps.
        v = tf_embed.tfra.Variable(dim=4, bp_v2=bp_v2)
        optimizers = [
            tf_embed.tfra.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0), bp_v2=bp_v2)
            for _ in range(NUM_THREADS)
        ]
        for optimizer in optimizers:
            optimizer.build([v.anchor])

        def work(number: int) -> None:
            rng = np.random.default_rng(SEED + number)
            for _ in range(50):
                ids = tf.constant(rng.permutation(30)[:20])
                ids = tf.concat([ids, ids], 0)
                with tf.GradientTape() as tape:
                    loss = (number + 1) * sum_of(v, ids)
                optimizers[number].apply([tape.gradient(loss, v.anchor)], [v.anchor])

        in_threads(work)
        counts = np.zeros(30)
        for number in range(NUM_THREADS):
            rng = np.random.default_rng(SEED + number)
            for _ in range(50):
                counts[rng.permutation(30)[:20]] += 2 * (number + 1)
        self.assertAllEqual(v.lookup(range(30)), np.repeat(-counts[:, None], 4, axis=1))

    def test_a_policy_counts_every_step(self):
        v = tf_embed.tfra.Variable(dim=1, restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy)
        in_threads(lambda number: [v.upsert([1, number + 10], [[0.0]] * 2) for _ in range(50)])
        counts = v.row_statistics([1, 10, 15])["count"].numpy().tolist()
        self.assertEqual(counts, [50 * NUM_THREADS, 50, 50])

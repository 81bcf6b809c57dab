# SPDX-License-Identifier: Apache-2.0
"""Many tables trained by a single op, against a separate op for each table."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.table_batches import HYPER, Bags, apply, make_tables, packed, rows_of
from tf_embed.ops import table_batch_ops
from tf_embed.ops.lookup_gradient import token_of
from tf_embed.tbe.batch_anchor import BatchAnchor


class StepsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        combiner=["sum", "mean"], weighted=[False, True], num_tables=[3, 12], lookups=[1, 2]
    )
    @pytest.mark.smoke
    def test_a_step_is_that_of_each_table_to_the_bit(self, combiner, weighted, num_tables, lookups):
        rng = np.random.default_rng(7)
        ours, theirs = make_tables(num_tables), make_tables(num_tables)
        for step in (1, 2, 3):
            some = [Bags(rng, num_tables, 6, weighted) for _ in range(lookups)]
            slices = [packed(bags, ours, combiner) for bags in some]
            together = tf.IndexedSlices(
                tf.concat([one.values for one in slices], 0),
                tf.concat([one.indices for one in slices], 0),
            )
            apply(ours, together, combiner, step)
            for i, table in enumerate(theirs):
                parts = [bags.gradients_of(i, combiner) for bags in some]
                table.table.apply(
                    tf.constant(np.concatenate([keys for keys, _ in parts])),
                    tf.constant(np.concatenate([rows for _, rows in parts])),
                    rule="adam",
                    hyper=HYPER,
                    step=tf.constant(step, tf.int64),
                )
        for one, other in zip(ours, theirs, strict=True):
            self.assertEqual(rows_of(one), rows_of(other))
            self.assertGreater(int(one.size()), 4)

    def test_gradients_pass_a_loop(self):
        rng = np.random.default_rng(8)
        ours, theirs = make_tables(), make_tables()
        bags = Bags(rng, 3, 4, True)
        anchor = BatchAnchor([table.table for table in ours], "all")

        @tf.function
        def looped():
            with tf.GradientTape() as tape:
                token = token_of(anchor.value, tf.int64)
                _, loss = tf.while_loop(
                    lambda i, loss: i < 3,
                    lambda i, loss: (
                        i + 1,
                        loss
                        + tf.reduce_sum(
                            bags.find(ours, "sum", packs=True, tokens=[token]) * bags.gradient
                        ),
                    ),
                    (0, 0.0),
                )
            return tape.gradient(loss, anchor.value)

        apply(ours, looped(), "sum")
        once = packed(bags, theirs, "sum")
        thrice = tf.IndexedSlices(tf.tile(once.values, [3, 1]), tf.tile(once.indices, [3]))
        apply(theirs, thrice, "sum")
        for one, other in zip(ours, theirs, strict=True):
            self.assertEqual(rows_of(one), rows_of(other))

    def test_no_batch_is_no_step_on_any_row(self):
        tables = make_tables()
        none = tf.IndexedSlices(tf.zeros([0, 1]), tf.zeros([0], tf.int64))
        apply(tables, none, "sum")
        self.assertEqual([int(table.size()) for table in tables], [0, 0, 0])

    def test_elements_of_gradients_are_clipped(self):
        tables = make_tables()
        bags = Bags(np.random.default_rng(9), 3, 4, False)
        anchor = BatchAnchor([table.table for table in tables], "all")
        with tf.GradientTape() as tape:
            token = token_of(anchor.value, tf.int64)
            values = bags.find(tables, "sum", packs=True, max_gradient=0.25, tokens=[token])
            loss = tf.reduce_sum(values * bags.gradient)
        slices = tape.gradient(loss, anchor.value)
        self.assertAllEqual(slices.values[:, 0], np.clip(bags.gradient, -0.25, 0.25))

    def test_uses_are_dated_by_the_clock_of_each_table(self):
        policy = tf_embed.TablePolicy(max_rows=100, eviction="lfu")
        first, second = (
            tf_embed.Variable(dim=1, initializer="zeros", policy=policy, name=name)
            for name in ("first", "second")
        )
        for table, steps in ((first, 7), (second, 1)):
            for _ in range(steps):
                table.upsert([1], [[1.0]])

        def find() -> None:
            table_batch_ops.find_pooled_tables(
                [table.table.resource_handle for table in (first, second)],
                tf.constant([1, 1], tf.int64),
                tf.constant([0, 1, 2], tf.int64),
                tf.constant([[0, 0, 1, 0, 2], [1, 1, 1, 1, 2]], tf.int64),
                tf.constant(2, tf.int64),
                None,
                row_dtypes=[tf.float32] * 2,
                dims=[1, 1],
                combiner="sum",
                training=True,
            )

        before = {name: one.numpy() for name, one in second.row_statistics([1]).items()}
        find()
        used = {name: one.numpy() for name, one in second.row_statistics([1]).items()}
        second.upsert([2], [[1.0]])
        find()
        again = {name: one.numpy() for name, one in second.row_statistics([1]).items()}
        self.assertEqual(used["last_step"], before["last_step"] + 1)
        self.assertEqual(again["last_step"], used["last_step"] + 1)
        self.assertEqual(again["count"], before["count"] + 2)

    @parameterized.named_parameters(
        ("cut", lambda words: words[:-1]),
        ("torn", lambda words: words[1:]),
        ("short", lambda words: words[:3]),
        ("longer", lambda words: tf.concat([words, words[:2]], 0)),
        ("many_keys", lambda words: tf.tensor_scatter_nd_update(words, [[2]], [2**62])),
        ("many_pieces", lambda words: tf.tensor_scatter_nd_update(words, [[4]], [2**61])),
        ("no_bags", lambda words: tf.tensor_scatter_nd_update(words, [[3]], [-1])),
        ("size", lambda words: tf.tensor_scatter_nd_update(words, [[1]], [5])),
    )
    def test_what_is_no_batch_is_refused_and_changes_nothing(self, damage):
        tables = make_tables()
        slices = packed(Bags(np.random.default_rng(10), 3, 4, True), tables, "sum")
        damaged = tf.IndexedSlices(slices.values, damage(slices.indices))
        with self.assertRaises(tf.errors.InvalidArgumentError):
            apply(tables, damaged, "sum")
        self.assertEqual([int(table.size()) for table in tables], [0, 0, 0])

    def test_gradients_that_are_too_few_are_refused(self):
        tables = make_tables()
        slices = packed(Bags(np.random.default_rng(11), 3, 4, True), tables, "sum")
        short = tf.IndexedSlices(slices.values[:-1], slices.indices)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`gradients` must be those"):
            apply(tables, short, "sum")

    def test_tables_of_several_shards_are_refused(self):
        tables = make_tables(devices="/CPU:0")
        slices = packed(Bags(np.random.default_rng(12), 3, 4, True), tables, "sum")
        tables[1] = tf_embed.Variable(
            dim=1, value_dtype=tf.bfloat16, devices=["/CPU:0"] * 2, name="two"
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "'two'.*one shard.*2"):
            apply(tables, slices, "sum")

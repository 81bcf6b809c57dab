# SPDX-License-Identifier: Apache-2.0
"""Counts of waiting keys, split by owner and merged, against tables with the same counts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support.cases.policy_tables import keys_of, train, upsert, variable
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy
from tf_embed.table import admission_counts


def counting(max_keys: int | None = None, **options: Any) -> Any:
    order = options.pop("order", "lru")
    return variable(TablePolicy(eviction=order, admission=CounterAdmission(3, max_keys)), **options)


def with_policy(v: Any, policy: tf.Tensor) -> Any:
    other = counting()
    other.table.import_(v.table.export()._replace(policy=policy))
    return other


class AdmissionCountsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters((None, "lru"), (10, "lru"), (None, "epoch_lru"))
    def test_counts_of_owners_together_are_those_of_one_table(self, max_keys, order):
        owners = [counting(max_keys, order=order) for _ in range(2)]
        for owner, v in enumerate(owners):
            upsert(v, [100 + owner])
            for step in range(2):
                train(v, [owner, owner + 2, owner + 4][: 3 - step])
        others = [one.table.export().policy for one in owners]
        splits = [admission_counts._split(one) for one in others]

        def gather(parts: list[tf.Tensor]) -> list[tf.Tensor]:
            self.assertAllEqual(parts[0], splits[0][1])
            return [tf.concat([split[place] for split in splits], 0) for place in (1, 2)]

        both = admission_counts.gathered(others[0], gather)
        one = with_policy(owners[0], both)
        train(one, range(6))
        self.assertEqual(keys_of(one), [0, 1, 2, 3, 100])
        for rank in range(2):
            own = admission_counts.chosen(both, lambda keys, rank=rank: keys % 2 == rank, tf.int64)
            self.assertAllEqual(own, others[rank])
            self.assertAllEqual(admission_counts.chosen(own, lambda k: k == k, tf.int64), own)

    @parameterized.parameters(tf.uint64, tf.uint32, tf.int32, tf.int64)
    def test_keys_are_those_of_the_table(self, dtype):
        v = counting(key_dtype=dtype)
        keys = tf.constant([0, 5, dtype.max, dtype.max - 1, dtype.min], dtype)
        v.table.apply(
            keys,
            tf.ones([5, 1]),
            rule="sgd",
            hyper=tf.constant([1.0, 0.0], tf.float64),
            step=tf.constant(1, tf.int64),
        )
        seen = []
        admission_counts.chosen(
            v.table.export().policy,
            lambda some: seen.extend(some.numpy().tolist()) or tf.ones(tf.shape(some), tf.bool),
            dtype,
        )
        self.assertCountEqual(seen, set(keys.numpy().tolist()))

    def test_what_has_no_counts_or_is_damaged_stays_as_it_is(self):
        v = counting()
        train(v, [1, 2, 3])
        whole = v.table.export().policy
        filters = variable(TablePolicy(admission=BloomAdmission(2, 0.1)))
        train(filters, [1, 2])
        vectors = [variable().table.export().policy, filters.table.export().policy]
        vectors += [whole[:end] for end in range(len(whole))]
        vectors += [tf.concat([whole, [0]], 0)]
        for place in range(3, len(whole)):
            for value in (-1, 2**62, -(2**63)):
                changed = whole.numpy()
                changed[place] = value
                vectors.append(tf.constant(changed))
        for vector in vectors:
            kept = admission_counts.chosen(
                vector, lambda keys: tf.ones(tf.shape(keys), tf.bool), tf.int64
            )
            self.assertAllEqual(kept, vector)

    def test_in_a_graph_it_is_the_same(self):
        v = counting()
        train(v, [1, 2, 3])
        policy = v.table.export().policy
        choose = tf.function(
            lambda one: admission_counts.chosen(one, lambda keys: keys > 1, tf.int64)
        )
        expected = admission_counts.chosen(policy, lambda keys: keys > 1, tf.int64)
        self.assertAllEqual(choose(policy), expected)
        self.assertLess(len(expected), len(policy))

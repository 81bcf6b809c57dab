# SPDX-License-Identifier: Apache-2.0
"""Policies of tables of strings: a row and its string are inserted and removed together."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.replicas import two_replicas
from support.oracles.reference import SEED
from tf_embed import CounterAdmission, TablePolicy


class StringPoliciesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("lru", 1), ("lfu", 3), ("ttl", 1), ("score", 3))
    def test_each_row_is_in_the_table_or_in_the_log_with_its_string(self, order, shards):
        rng = np.random.default_rng(SEED)
        v = tf_embed.Variable(
            key_dtype=tf.string,
            value_dtype=tf.int64,
            devices=["/CPU:0"] * shards,
            policy=TablePolicy(500, order, log_evicted=True),
        )
        shadow: dict[bytes, int] = {}
        for batch in range(60):
            numbers = rng.zipf(1.1, 200) % 5_000
            keys = np.array([b"\0word %d " % n + b"x" * (n % 40) for n in numbers], object)
            values = np.arange(batch * 200, batch * 200 + 200)
            v.upsert(keys, values[:, None])
            for key, row in zip(*(one.numpy() for one in v.drain_evicted()), strict=True):
                self.assertEqual(shadow.pop(key), row[0])
            shadow.update(zip(keys.tolist(), values.tolist(), strict=True))
            self.assertLessEqual(int(v.size()), 500)
        keys, rows = v.export()
        found = dict(zip(keys.numpy().tolist(), rows[:, 0].numpy().tolist(), strict=True))
        self.assertEqual(found, shadow)
        self.assertGreater(v.stats()["evicted"], 1000)

    def test_restrict_takes_strings_along(self):
        v = tf_embed.tfra.Variable(
            key_dtype=tf.string,
            dim=2,
            policy=TablePolicy(eviction="lru", log_evicted=True),
            restrict_policy=tf_embed.tfra.FrequencyRestrictPolicy,
        )
        words = [f"word {i}" for i in range(1000)]
        v.upsert(words, tf.zeros([1000, 2]))
        v.upsert(words[:300], tf.ones([300, 2]))
        v.restrict(300)
        self.assertCountEqual([key.decode() for key in v.export()[0].numpy()], words[:300])
        self.assertCountEqual([key.decode() for key in v.drain_evicted()[0].numpy()], words[300:])
        v.upsert(words[500:600], tf.ones([100, 2]))
        self.assertAllEqual(v.lookup(words[500:600]), tf.ones([100, 2]))

    def test_keys_that_wait_for_admission_leave_no_string(self):
        v = tf_embed.Variable(
            key_dtype=tf.string, dim=1, policy=TablePolicy(admission=CounterAdmission(2))
        )
        optimizer = tf_embed.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))

        def step(words):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, tf.constant(words)))
            variables = v.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        step(["a", "b"])
        self.assertEqual(int(v.size()), 0)
        step(["b", "c"])
        self.assertAllEqual(v.export()[0], [b"b"])
        self.assertEqual(v.stats()["held_back"], 3)

    def test_the_log_keeps_strings_that_are_values(self):
        v = tf_embed.Variable(
            value_dtype=tf.string, dim=2, policy=TablePolicy(1000, "lru", log_evicted=True)
        )
        for batch in range(20):
            keys = np.arange(batch * 300, batch * 300 + 300)
            v.upsert(keys, [[f"{key}", f"value of {key}"] for key in keys])
        keys, rows = (one.numpy() for one in v.drain_evicted())
        self.assertLen(keys, 5000)
        for key, row in zip(keys, rows, strict=True):
            self.assertEqual(row.tolist(), [b"%d" % key, b"value of %d" % key])

    def test_several_replicas_are_refused_by_name(self):
        with (
            two_replicas().scope(),
            self.assertRaisesRegex(ValueError, "string keys are for one replica"),
        ):
            tf_embed.Variable(key_dtype=tf.string)

    def test_a_checkpoint_carries_statistics_of_strings(self):
        policy = TablePolicy(4, "lru")
        v = tf_embed.Variable(key_dtype=tf.string, dim=1, policy=policy)
        v.upsert(["a", "b", "c", "d"], tf.zeros([4, 1]))
        v.upsert(["a", "c"], tf.zeros([2, 1]))
        path = tf.train.Checkpoint(v=v).write(self.get_temp_dir() + "/checkpoint")
        other = tf_embed.Variable(key_dtype=tf.string, dim=1, policy=policy)
        tf.train.Checkpoint(v=other).read(path).assert_consumed()
        other.upsert(["e", "f"], tf.zeros([2, 1]))
        self.assertCountEqual(other.export()[0].numpy(), [b"a", b"c", b"e", b"f"])


if __name__ == "__main__":
    tf.test.main()

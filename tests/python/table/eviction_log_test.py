# SPDX-License-Identifier: Apache-2.0
"""The log of evicted rows loses no row and invents none."""

from __future__ import annotations

import threading

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import EXTREME_KEYS, SEED
from tf_embed import TablePolicy


class EvictionLogTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("lru", 1), ("lfu", 3), ("ttl", 7), ("score", 3))
    def test_a_million_upserts_leave_each_row_in_the_table_or_in_the_log(self, order, shards):
        rng = np.random.default_rng(SEED)
        v = tf_embed.Variable(
            value_dtype=tf.int64,
            devices=["/CPU:0"] * shards,
            policy=TablePolicy(10_000, order, log_evicted=True),
        )
        shadow: dict[int, int] = {}
        for batch in range(250):
            keys = rng.zipf(1.1, 4000) % 100_000 - 50_000
            values = np.arange(batch * 4000, batch * 4000 + 4000)
            v.upsert(keys, values[:, None])
            # The rows that an upsert evicts are from before that upsert.
            for key, row in zip(*(one.numpy() for one in v.drain_evicted()), strict=True):
                self.assertEqual(shadow.pop(int(key)), row[0])
            shadow.update(zip(keys.tolist(), values.tolist(), strict=True))
        keys, rows = v.export()
        self.assertEqual(
            dict(zip(keys.numpy().tolist(), rows[:, 0].numpy().tolist(), strict=True)), shadow
        )
        stats = v.stats()
        self.assertEqual(stats["admitted"] - stats["evicted"], len(shadow))
        self.assertEqual(stats["undrained"], 0)

    def test_a_key_that_left_twice_stands_twice_in_order(self):
        v = tf_embed.Variable(policy=TablePolicy(1, log_evicted=True))
        for number, key in enumerate([1, 2, 1, 2]):
            v.upsert([key], [[number]])
        self.assertEqual(v.stats()["undrained"], 3)
        keys, rows = v.drain_evicted()
        self.assertAllEqual(keys, [1, 2, 1])
        self.assertAllEqual(rows, [[0.0], [1.0], [2.0]])
        self.assertAllEqual(v.drain_evicted()[0], [])

    def test_restriction_and_expiry_are_logged_and_removal_is_not(self):
        v = tf_embed.Variable(policy=TablePolicy(ttl_seconds=1, log_evicted=True))
        v.set_clock(time_ms=0)
        v.upsert([1, 2], [[1.0], [2.0]])
        v.set_clock(time_ms=999)
        v.upsert([2, 3, 4], [[2.0], [3.0], [4.0]])
        v.remove([3])
        v.set_clock(time_ms=1000)
        v.restrict(1)
        keys, rows = v.drain_evicted()
        self.assertEqual(keys.numpy()[0], 1)  # the expired key
        self.assertLen(keys, 2)
        self.assertAllEqual(rows[:, 0], tf.cast(keys, tf.float32))
        v.clear()
        self.assertAllEqual(v.drain_evicted()[0], [])

    @parameterized.parameters(*EXTREME_KEYS)
    def test_keys_of_every_dtype(self, key_dtype):
        v = tf_embed.Variable(
            key_dtype=key_dtype, policy=TablePolicy(log_evicted=True), devices=["/CPU:0"] * 2
        )
        wanted = np.array(EXTREME_KEYS[key_dtype], key_dtype)
        v.upsert(wanted, np.zeros([len(wanted), 1], np.float32))
        v.restrict(0)
        keys, _ = v.drain_evicted()
        self.assertEqual(keys.dtype, v.key_dtype)
        self.assertAllEqual(np.sort(keys), np.sort(wanted))

    def test_threads_lose_no_row(self):
        v = tf_embed.Variable(policy=TablePolicy(500, log_evicted=True), devices=["/CPU:0"] * 3)
        drained: list[np.ndarray] = []

        def write(thread: int) -> None:
            for batch in range(40):
                begin = thread * 1_000_000 + batch * 100
                keys = np.arange(begin, begin + 100)
                v.upsert(keys, keys[:, None].astype(np.float32))
                if thread == 0:
                    drained.append(np.stack([one.numpy().ravel() for one in v.drain_evicted()]))

        threads = [threading.Thread(target=write, args=[thread]) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        drained.append(np.stack([one.numpy().ravel() for one in v.drain_evicted()]))
        left = np.concatenate(drained, axis=1)
        self.assertAllEqual(left[1], left[0].astype(np.float32))
        every = np.concatenate([left[0], v.export()[0]]).astype(np.int64)
        wanted = [np.arange(t * 1_000_000, t * 1_000_000 + 4000) for t in range(4)]
        refused = v.stats()["refused"]
        self.assertLen(np.unique(every), len(every))
        self.assertContainsSubset(every.tolist(), np.concatenate(wanted).tolist())
        self.assertLen(every, 16_000 - refused)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The ops of the exchange between workers, on one machine: what is packed is what is unpacked."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from reference import SEED

from tf_embed import _library
from tf_embed.ops import exchange_ops
from tf_embed.ops.exchange_ops import Part, PartType

RAW = _library.load()


class ExchangeOpsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("int64", "int32", "uint64", "uint32", "string")
    def test_keys_are_brought_together_by_owner_once_each(self, dtype):
        draw = np.random.default_rng(SEED)
        numbers = draw.integers(0, 50, size=[20, 5])
        values = numbers.astype("S") if dtype == "string" else numbers.astype(dtype)
        keys = tf.constant(values.astype(object) if dtype == "string" else values, dtype)
        no_owners = tf.zeros([0], tf.int32)
        routed, places, counts = exchange_ops.route_keys(
            keys, no_owners, num_workers=3, owner_rule="hash"
        )
        self.assertEqual(tf.gather(routed, places).numpy().tolist(), keys.numpy().tolist())
        self.assertLen(set(routed.numpy().tolist()), len(routed))
        self.assertEqual(int(tf.reduce_sum(counts)), len(routed))
        # Each worker of another batch has the same keys.
        some = tf.reshape(keys, [-1])[::7]
        others, _, other_counts = exchange_ops.route_keys(
            some, no_owners, num_workers=3, owner_rule="hash"
        )
        parts = [tf.split(one, n) for one, n in ((routed, counts), (others, other_counts))]
        for all_keys, some_keys in zip(*parts, strict=True):
            self.assertContainsSubset(some_keys.numpy().tolist(), all_keys.numpy().tolist())

    def test_what_workers_pack_is_what_they_unpack(self):
        counts = tf.constant([[2, 0, 1], [1, 3, 0]])
        strings = tf.constant([b"", b"a\0b", b"x" * 999])
        rows = tf.constant(np.random.default_rng(SEED).normal(size=[4, 2]), tf.float32)
        parts = [Part(0, strings), Part(1, rows), Part(1, rows, "bfloat16")]
        types = [
            PartType(0, tf.string),
            *[PartType(1, tf.float32, 2, one) for one in ("same", "bfloat16")],
        ]
        rounded = tf.cast(tf.cast(rows, tf.bfloat16), tf.float32).numpy()
        for rank in (-1, 0, 1, 2):
            sent = exchange_ops.Sent(parts, counts, rank)
            words = exchange_ops.message_words(sent)
            capacity = tf.cast(tf.reduce_max(words), tf.int64)
            messages = exchange_ops.pack_messages(sent, capacity)
            found = exchange_ops.unpack_messages(messages, counts, types, sent)
            self.assertAllEqual(found[0], strings)
            self.assertAllEqual(found[1], rows)
            # A worker's own rows do not travel.
            own = slice(*{-1: (0, 0), 0: (0, 1), 1: (1, 4), 2: (4, 4)}[rank])
            expected = rounded.copy()
            expected[own] = rows[own]
            self.assertAllEqual(found[2], expected)
            if rank >= 0:
                self.assertEqual(int(words[rank]), 0)
                self.assertAllEqual(messages[rank], tf.zeros_like(messages[rank]))

    def test_own_parts_must_be_those_that_were_packed(self):
        sent = exchange_ops.Sent([Part(0, tf.constant([1, 2, 3]))], tf.constant([[1, 2]]), 1)
        messages = exchange_ops.pack_messages(sent, tf.constant(3, tf.int64))
        types, counts = [PartType(0, tf.int32)], tf.constant([[1, 1]])
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`own_counts` must be those"):
            exchange_ops.unpack_messages(messages, counts, types, sent)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`rank` must be less than"):
            exchange_ops.message_words(sent._replace(rank=2))

    def test_counts_must_be_a_matrix(self):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`counts` must be a matrix"):
            RAW.tf_embed_message_words(
                parts=[tf.zeros([0])],
                counts=tf.zeros([2], tf.int32),
                part_tables=[0],
                wire_types=["same"],
            )

    @parameterized.parameters(
        ("num_workers", {"num_workers": 2**30, "num_tables": 2**31 - 1}),
        ("num_tables", {"num_workers": 1, "num_tables": 2**17}),
    )
    def test_a_plan_of_more_than_can_be_counted_is_refused(self, name, sizes):
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, f"`{name}`"):
            RAW.tf_embed_plan_exchange(
                gathered=tf.zeros([0], tf.int32),
                rank=0,
                reply_tables=[],
                reply_row_bytes=[],
                **sizes,
            )

    def test_a_watch_must_have_seconds_that_a_clock_has(self):
        for seconds in (0.0, -1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`seconds`"):
                exchange_ops.start_watch(seconds, "x")
        watch, _ = exchange_ops.start_watch(5.0, "x")
        self.assertEqual(int(exchange_ops.end_watch(watch, tf.constant(7))), 7)


if __name__ == "__main__":
    tf.test.main()

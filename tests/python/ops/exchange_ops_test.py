# SPDX-License-Identifier: Apache-2.0
"""The ops of the exchange between workers, on a single machine: unpacking inverts packing."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.oracles.reference import SEED
from tf_embed import _library
from tf_embed.ops import exchange_ops, routing_ops, watch_ops
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
        (routed,), (places,), counts = routing_ops.route_keys(
            [keys], [no_owners], num_workers=3, owner_rules=["hash"]
        )
        self.assertEqual(tf.gather(routed, places).numpy().tolist(), keys.numpy().tolist())
        self.assertLen(set(routed.numpy().tolist()), len(routed))
        self.assertEqual(int(tf.reduce_sum(counts)), len(routed))
        # In another batch, a key goes to the same worker.
        some = tf.reshape(keys, [-1])[::7]
        (others,), _, other_counts = routing_ops.route_keys(
            [some], [no_owners], num_workers=3, owner_rules=["hash"]
        )
        parts = [tf.split(one, n[0]) for one, n in ((routed, counts), (others, other_counts))]
        for all_keys, some_keys in zip(*parts, strict=True):
            self.assertContainsSubset(some_keys.numpy().tolist(), all_keys.numpy().tolist())

    def test_several_tables_are_routed_as_each_by_itself(self):
        draw = np.random.default_rng(SEED)
        keys = [
            tf.constant(draw.integers(-9, 9, size=[7, 3])),
            tf.constant([b"a", b"b", b"a"]),
            tf.constant(draw.integers(0, 9, size=[5]), tf.uint32),
            tf.zeros([0], tf.int64),
        ]
        none = tf.zeros([0], tf.int32)
        owners = [none, none, tf.zeros([5], tf.int32), none]
        rules = ["remainder", "hash", "hash", "hash"]
        together = routing_ops.route_keys(keys, owners, num_workers=2, owner_rules=rules)
        for i, (some, of, rule) in enumerate(zip(keys, owners, rules, strict=True)):
            alone = routing_ops.route_keys([some], [of], num_workers=2, owner_rules=[rule])
            for one, another in zip(together[:2], alone[:2], strict=True):
                self.assertAllEqual(one[i], another[0])
            self.assertAllEqual(together[2][i], alone[2][0])
        self.assertAllEqual(together[2][2:], [[len(set(keys[2].numpy())), 0], [0, 0]])

    @parameterized.parameters("float32", "float64", "bfloat16", "float16")
    def test_gradients_are_summed_by_key_and_brought_together_by_owner(self, dtype):
        draw = np.random.default_rng(SEED)
        keys = [
            tf.constant(draw.integers(0, 9, size=[50])),
            tf.constant(draw.integers(0, 9, size=[20]).astype("S").astype(object)),
        ]
        gradients = [tf.constant(draw.normal(size=[n, 3]), dtype) for n in (50, 20)]
        none, rules = [tf.zeros([0], tf.int32)] * 2, ["hash"] * 2
        expected = routing_ops.route_keys(keys, none, num_workers=3, owner_rules=rules)
        found = routing_ops.route_gradients(keys, gradients, none, num_workers=3, owner_rules=rules)
        self.assertAllEqual(found[2], expected[2])
        wide = tf.float64 if dtype == "float64" else tf.float32
        for i in range(2):
            self.assertAllEqual(found[0][i], expected[0][i])
            size = tf.size(expected[0][i])
            sums = tf.math.unsorted_segment_sum(tf.cast(gradients[i], wide), expected[1][i], size)
            self.assertAllEqual(found[1][i], sums)

    def test_rows_of_a_batch_have_gradients_of_distinct_keys(self):
        keys = tf.constant([[7, 5], [7, 7]])
        routed, places = tf.constant([5, 7]), tf.constant([[1, 0], [1, 1]])
        rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        factors = tf.constant([[[1.0], [2.0]], [[3.0], [4.0]]])
        with tf.GradientTape(persistent=True) as tape:
            token = tf.zeros([0, 2])
            tape.watch([token, factors])
            of_batch = routing_ops.routed_rows(keys, routed, rows, places, token)
            loss = tf.reduce_sum(of_batch * factors)
            (slices,) = tape.gradient(loss, [token])
            squares = tf.reduce_sum(slices.values**2)
        self.assertAllEqual(of_batch, tf.gather(rows, places))
        self.assertAllEqual(slices.indices, routed)
        self.assertAllEqual(slices.values, [[2.0, 2.0], [8.0, 8.0]])
        # The gradient of 2 * 2^2 + 2 * (1 + 3 + 4)^2.
        of_factors = tape.gradient(squares, factors)
        self.assertAllEqual(of_factors, [[[32.0], [8.0]], [[32.0], [32.0]]])

    @parameterized.parameters("bfloat16", "float16")
    def test_narrow_gradients_are_summed_in_float32(self, dtype):
        routed, places = tf.constant([5], tf.int64), tf.zeros([3000], tf.int32)
        _, sums = RAW.tf_embed_routed_rows_gradient(
            gradient=tf.ones([3000, 1], dtype), routed=routed, places=places, dim=1
        )
        self.assertAllEqual(sums, tf.constant([[3000]], dtype))

    @parameterized.parameters(([1, 3],), ([1],), ([1, 2, 2],))
    def test_keys_of_a_batch_must_be_those_that_were_noted(self, keys):
        for dtype in ("int64", "int32", "string"):
            some, noted = (
                tf.constant([str(one) for one in of])
                if dtype == "string"
                else tf.constant(of, dtype)
                for of in (keys, [1, 2])
            )
            arguments = {
                "routed": noted,
                "rows": tf.ones([2, 1]),
                "places": tf.constant([0, 1]),
                "noted": noted,
                "label": "items",
            }
            self.assertAllEqual(routing_ops.routed_rows(noted, **arguments), [[1.0], [1.0]])
            with self.assertRaisesRegex(
                (tf.errors.InvalidArgumentError, ValueError),
                "'items' must depend on the inputs|shape",
            ):
                routing_ops.routed_rows(some, **arguments)

    def test_places_must_be_those_of_rows(self):
        keys, routed = tf.constant([5, 6]), tf.constant([5, 6])
        for places in ([0, 2], [-1, 0]):
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`places` must be from 0"):
                routing_ops.routed_rows(keys, routed, tf.ones([2, 1]), tf.constant(places))
            with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`places` must be from 0"):
                RAW.tf_embed_routed_rows_gradient(
                    gradient=tf.ones([2, 1]), routed=routed, places=tf.constant(places), dim=1
                )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`rows` must have one row"):
            routing_ops.routed_rows(keys, routed, tf.ones([3, 1]), tf.constant([0, 1]))

    def test_a_frozen_table_has_a_gradient_of_no_keys(self):
        keys, gradients = tf.constant([5, 6]), tf.ones([2, 3])
        found = routing_ops.unless_frozen(keys, gradients, tf.constant(True))
        self.assertAllEqual(found[0], keys)
        self.assertAllEqual(found[1], gradients)
        found = routing_ops.unless_frozen(keys, gradients, tf.constant(False))
        self.assertEqual([one.shape.as_list() for one in found], [[0], [0, 3]])

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
            # A worker's own rows are not sent.
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
                watch_ops.start_watch(seconds, "x")
        watch, _ = watch_ops.start_watch(5.0, "x")
        self.assertEqual(int(watch_ops.end_watch(watch, tf.constant(7))), 7)


if __name__ == "__main__":
    tf.test.main()

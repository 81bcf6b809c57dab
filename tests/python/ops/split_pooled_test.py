# SPDX-License-Identifier: Apache-2.0
"""`split_pooled` in one process: simulated replies of owners give a single table's pooled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support.oracles.reference import SEED
from tf_embed.ops import bag_exchange_ops, routing_ops
from tf_embed.ops.bag_exchange_ops import SplitPooled

WORKERS, BAGS = 3, 40
CONTAINERS = ("lines", "splits", "sparse")
BYTES = {"row_bytes": 16, "sum_bytes": 16}


def keys_of(dtype: str, numbers: np.ndarray) -> tf.Tensor:
    if dtype == "string":
        return tf.constant(numbers.astype("S").astype(object))
    return tf.constant(numbers.astype(dtype))


def numbers_of(keys: tf.Tensor) -> np.ndarray:
    """The drawn numbers of keys."""
    return keys.numpy().astype(np.int64)


def batch_of(container: str, most: int, length: int) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Numbers of keys, the bag of each, and the tensors that define the bags."""
    draw = np.random.default_rng(SEED)
    if container == "lines":
        numbers = draw.integers(0, most, [BAGS, length])
        return numbers, np.repeat(np.arange(BAGS), length), ()
    lengths = draw.integers(0, 2 * length + 1, BAGS)
    bags = np.repeat(np.arange(BAGS), lengths)
    numbers = draw.integers(0, most, len(bags))
    if container == "splits":
        return numbers, bags, (tf.constant(np.concatenate([[0], np.cumsum(lengths)])),)
    draw.shuffle(bags)
    places = np.stack([bags, np.arange(len(bags))], axis=1)
    return numbers, bags, (tf.constant(places), tf.constant([BAGS, len(bags)], tf.int64))


def split(keys: tf.Tensor, bags: tuple, **options: Any) -> SplitPooled:
    options = {"padding": None, "rank": 1, "owner_rule": "hash", **BYTES, **options}
    owners = options.pop("owners", tf.zeros([0], tf.int32))
    return bag_exchange_ops.split_pooled(keys, owners, bags, num_workers=WORKERS, **options)


def pooled(found: SplitPooled, rows_of: Any) -> np.ndarray:
    """The sums of all bags, from the replies of owners."""
    rows = rows_of(found.asked)[found.places.numpy()]
    sums = np.zeros([BAGS, rows.shape[1]])
    np.add.at(sums, found.place_bags.numpy(), rows)
    ends = np.cumsum(found.lengths.numpy())
    of_keys = rows_of(found.bag_keys)
    for bag, begin, end in zip(
        found.sum_bags.numpy(), ends - found.lengths.numpy(), ends, strict=True
    ):
        sums[bag] += of_keys[begin:end].sum(axis=0)
    return sums


def bytes_of(found: SplitPooled, key_bytes: int, rank: int) -> int:
    """The bytes sent to other workers and back, with gradients."""
    asked, keys, sums = np.delete(found.counts.numpy(), rank, axis=1).sum(axis=1)
    row, some = BYTES["row_bytes"], BYTES["sum_bytes"]
    return asked * (2 * key_bytes + row + some) + keys * key_bytes + sums * (4 + 2 * some)


class SplitPooledTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        dtype=("int64", "int32", "uint64", "uint32", "string"),
        container=CONTAINERS,
        ask_by=("bags", "keys"),
        padded=(False, True),
    )
    def test_answers_make_the_sums_of_one_table(self, dtype, container, ask_by, padded):
        numbers, bags, makes_bags = batch_of(container, 30, 5)
        keys = keys_of(dtype, numbers)
        padding = None if not padded else "7" if dtype == "string" else 7
        found = split(keys, makes_bags, ask_by=ask_by, padding=padding)
        rows = np.random.default_rng(1).normal(size=[30, 4])
        expected = np.zeros([BAGS, 4])
        counted = numbers.reshape([-1]) != 7 if padded else np.ones(numbers.size, bool)
        np.add.at(expected, bags[counted], rows[numbers.reshape([-1])[counted]])
        self.assertAllClose(pooled(found, lambda some: rows[numbers_of(some)]), expected)
        # The positions lead to the keys of the batch.
        flat = numbers.reshape([-1])
        places = found.place_positions.numpy()
        self.assertAllEqual(flat[places], numbers_of(found.asked)[found.places.numpy()])
        self.assertAllEqual(flat[found.key_positions.numpy()], numbers_of(found.bag_keys))
        positions = [*places, *found.key_positions.numpy()]
        self.assertCountEqual(positions, np.flatnonzero(counted))
        # Only one of the two ways is used, and keys are in the order of the owners.
        self.assertEqual(ask_by == "bags", not found.asked.shape[0])
        for some, counts in ((found.asked, 0), (found.bag_keys, 1)):
            routed, places, per_worker = routing_ops.route_keys(
                [some],
                [tf.zeros([0], tf.int32)],
                num_workers=WORKERS,
                owner_rules=["hash"],
            )
            owners = np.searchsorted(np.cumsum(per_worker[0]), places[0], side="right")
            self.assertAllEqual(owners, np.sort(owners))
            self.assertAllEqual(np.bincount(owners, minlength=WORKERS), found.counts[counts])
            del routed
        self.assertEqual(int(tf.reduce_sum(found.counts[2])), len(found.lengths))

    @parameterized.parameters(*CONTAINERS)
    def test_it_asks_in_the_way_that_sends_less(self, container):
        chosen = set()
        for most, length in ((5, 6), (60, 3), (10**6, 1), (10**6, 12)):
            numbers, _, bags = batch_of(container, most, length)
            keys = tf.constant(numbers)
            sent = {way: bytes_of(split(keys, bags, ask_by=way), 8, 1) for way in ("bags", "keys")}
            found = split(keys, bags)
            self.assertEqual(bytes_of(found, 8, 1), min(sent.values()))
            chosen.add(bool(found.bag_keys.shape[0]))
        self.assertEqual(chosen, {False, True})

    def test_weights_and_long_strings_make_bags_dearer(self):
        numbers, _, bags = batch_of("splits", 10**6, 12)
        self.assertTrue(split(tf.constant(numbers), bags).bag_keys.shape[0])
        self.assertFalse(split(tf.constant(numbers), bags, weight_bytes=64).bag_keys.shape[0])
        repeated = numbers % 50
        self.assertTrue(split(keys_of("string", repeated), bags).asked.shape[0])
        # The keys are sent again with the gradients.
        long = tf.strings.join(["x" * 400, tf.strings.as_string(tf.constant(numbers))])
        self.assertTrue(split(long, bags).bag_keys.shape[0])

    def test_owners_of_a_function_and_unsigned_remainders(self):
        numbers, _, bags = batch_of("splits", 30, 5)
        owners = tf.constant(numbers % 2 + 1, tf.int32)
        for ask_by in ("bags", "keys"):
            found = split(tf.constant(numbers), bags, owners=owners, ask_by=ask_by)
            keys = found.bag_keys if ask_by == "bags" else found.asked
            counts = found.counts[1 if ask_by == "bags" else 0].numpy()
            self.assertEqual(counts[0], 0)
            self.assertAllEqual(keys[: counts[1]] % 2, np.zeros(counts[1]))
        keys = tf.constant([2**64 - 1, 2**63], tf.uint64)
        found = split(keys, (), owner_rule="remainder", ask_by="keys")
        self.assertAllEqual(
            found.counts[0], np.bincount([(2**64 - 1) % 3, 2**63 % 3], minlength=WORKERS)
        )

    def test_padding_of_uint64_is_found_by_its_bits(self):
        keys = tf.constant([[2**64 - 1, 5, 5]], tf.uint64)
        found = split(keys, (), padding=2**64 - 1, ask_by="bags")
        self.assertAllEqual(found.bag_keys, tf.constant([5, 5], tf.uint64))
        self.assertAllEqual(found.lengths, [2])

    def test_nothing_is_asked_for_nothing(self):
        for keys, bags in (
            (tf.zeros([0, 3], tf.int64), ()),
            (tf.zeros([4, 0], tf.int64), ()),
            (tf.zeros([0], tf.int64), (tf.zeros([1], tf.int64),)),
            (tf.constant([[7, 7]], tf.int64), ()),
        ):
            for ask_by in ("bags", "keys", "less"):
                found = split(keys, bags, padding=7, ask_by=ask_by)
                self.assertEqual([int(tf.size(one)) for one in found[:-1]], [0] * 8)
                self.assertAllEqual(found.counts, np.zeros([3, WORKERS]))

    @parameterized.named_parameters(
        ("owners", {"owners": tf.zeros([2], tf.int32)}, "`owners` must have one worker"),
        ("worker", {"owners": tf.constant([3, 0, 0])}, "3"),
        ("two owners", {"owners": tf.constant([0, 1, 1])}, "function of the key"),
        ("rank", {"rank": 3}, "`rank` must be from 0 to 2"),
        ("row bytes", {"row_bytes": 0}, "row_bytes"),
        ("bags", {"bags": (tf.constant([0, 2]),)}, "3"),
        ("scalar", {"keys": tf.constant(5)}, "axis to pool over"),
        ("strings", {"keys": tf.constant(["a"]), "owner_rule": "remainder"}, "must be hash"),
    )
    def test_what_is_wrong_is_refused(self, arguments, words):
        arguments = dict(arguments)
        keys = arguments.pop("keys", tf.constant([1, 1, 2], tf.int64))
        bags = arguments.pop("bags", ())
        with self.assertRaisesRegex((tf.errors.InvalidArgumentError, ValueError), words):
            split(keys, bags, **arguments)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The shard that owns a key. Rows do not depend on it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles import reference
from support.oracles.reference import EXTREME_KEYS, SEED


def by_hash(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    return tf.math.floormod(tf.bitwise.bitwise_xor(keys, keys // 7), shard_num)


class PartitionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(key_dtype=("int64", "int32", "uint64", "uint32"), shards=(1, 2, 3, 7))
    def test_the_default_is_the_remainder_and_the_table_computes_the_same(self, key_dtype, shards):
        keys = np.array(EXTREME_KEYS[key_dtype], key_dtype)
        owners = tf_embed.default_partition_fn(tf.constant(keys), shards)
        self.assertEqual(owners.dtype, tf.int32)
        self.assertAllEqual(owners, [key % shards for key in EXTREME_KEYS[key_dtype]])
        v = tf_embed.Variable(key_dtype, devices=["/CPU:0"] * shards)
        v.upsert(keys, np.zeros([len(keys), 1]))
        self.assertAllEqual(
            [int(v.table.size(index)) for index in range(shards)],
            np.bincount(owners, minlength=shards),
        )

    def test_any_shape_of_keys_and_every_kind_of_tensor(self):
        self.assertAllEqual(tf_embed.default_partition_fn([[4], [-1]], 3), [[1], [2]])
        partition = tf.function(tf_embed.default_partition_fn)
        self.assertAllEqual(partition(tf.constant([4, -1], tf.int64), 1), [0, 0])

    def test_a_partitioner_of_ones_own_places_the_keys(self):
        seen = []

        def second(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
            seen.append((keys.shape.rank, shard_num))
            return tf.ones_like(keys)

        v = tf_embed.Variable(devices=["/CPU:0"] * 2, partitioner=second)
        v.upsert([[1, 2], [3, 4]], np.arange(4.0).reshape(2, 2, 1))
        self.assertEqual([int(v.table.size(0)), int(v.table.size(1))], [0, 4])
        self.assertAllEqual(v.lookup([3, 9]), [[2.0], [0.0]])
        self.assertEqual(set(seen), {(1, 2)})

    def test_the_number_of_shards_is_checked_when_a_graph_runs(self):
        v = tf_embed.Variable(devices=["/CPU:0"] * 2, partitioner=lambda keys, shards: keys[1:] * 0)
        lookup = tf.function(v.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "`partitioner` of .* must give one shard for each key"
        ):
            lookup(tf.constant([1, 2], tf.int64))

    @parameterized.named_parameters(
        (
            "dtype",
            lambda k, n: tf.zeros_like(k, tf.float32),
            TypeError,
            "must give int32 or int64. Received: dtype=float32",
        ),
        (
            "shape",
            lambda k, n: tf.zeros([1], tf.int32),
            ValueError,
            "give one shard for each key, shape",
        ),
        (
            "range",
            lambda k, n: tf.fill(tf.shape(k), n),
            tf.errors.InvalidArgumentError,
            r"a shard in \[0, 2\). Received: 2 for key 1",
        ),
        (
            "beyond_int32",
            lambda k, n: tf.fill(tf.shape(k), tf.constant(2**32, tf.int64)),
            tf.errors.InvalidArgumentError,
            rf"a shard in \[0, 2\). Received: {2**31 - 1} for key 1",
        ),
        (
            "below_int32",
            lambda k, n: tf.fill(tf.shape(k), tf.constant(-(2**40), tf.int64)),
            tf.errors.InvalidArgumentError,
            rf"a shard in \[0, 2\). Received: -{2**31} for key 1",
        ),
        (
            "negative",
            lambda k, n: tf.fill(tf.shape(k), tf.constant(-7, tf.int64)),
            tf.errors.InvalidArgumentError,
            r"a shard in \[0, 2\). Received: -7 for key 1",
        ),
    )
    def test_a_partitioner_that_gives_no_shards_is_refused(self, partitioner, error, message):
        v = tf_embed.Variable(devices=["/CPU:0"] * 2, partitioner=partitioner)
        with self.assertRaisesRegex(error, message):
            v.upsert([1, 2], [[1.0], [2.0]])
        self.assertEqual(int(v.size()), 0)


class ShardedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(shards=(2, 5), partitioner=(tf_embed.default_partition_fn, by_hash))
    def test_sharded_verbs_equal_unsharded_ones_bit_for_bit(self, shards, partitioner):
        def run(**options: Any) -> list[Any]:
            rng = np.random.default_rng(SEED)
            v = tf_embed.Variable(
                dim=5, initializer=keras.initializers.RandomNormal(seed=1), name="v", **options
            )
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            results = []
            for _ in range(10):
                keys = rng.integers(-50, 50, 300)
                rows = rng.normal(size=[300, 5]).astype(np.float32)
                v.upsert(keys[:50], rows[:50])
                old, exists = v.lookup(keys, return_exists=True)
                v.accum(keys, old, rows, exists)
                v.remove(keys[250:])
                slices = tf.IndexedSlices(tf.constant(rows), tf.constant(keys))
                optimizer.apply([slices], v.trainable_variables)
                results += [old, exists, v.lookup(keys)]
            return results + list(reference.sorted_rows(*v.export()))

        sharded = run(devices=["/CPU:0"] * shards, partitioner=partitioner)
        for one, other in zip(run(), sharded, strict=True):
            self.assertAllEqual(one, other)


if __name__ == "__main__":
    tf.test.main()

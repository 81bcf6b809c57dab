# SPDX-License-Identifier: Apache-2.0
"""Restriction by policies in the form of TFRA's, the table's own and users'."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed.tfra import FrequencyRestrictPolicy, RestrictPolicy, TimestampRestrictPolicy
from tf_embed.tfra.keras.layers import Embedding

ORDERS = {TimestampRestrictPolicy: "ttl", FrequencyRestrictPolicy: "lfu"}


@keras.saving.register_keras_serializable(package="restrict_test")
class KeepOften(RestrictPolicy):
    """Counts uses in another variable, like policies for TFRA."""

    def __init__(self, var: tf_embed.Variable) -> None:
        super().__init__(var)
        self.counts = tf_embed.tfra.Variable(
            key_dtype=var.key_dtype, value_dtype=tf.int32, name=f"{var.name}/counts"
        )

    @property
    def status(self) -> tf_embed.Variable:
        return self.counts

    def apply_update(self, ids: tf.Tensor) -> None:
        self.counts.upsert(ids, self.counts.lookup(ids) + 1)

    def apply_restriction(self, num_reserved: Any, trigger: int = 0) -> tf.Tensor:
        keys, counts = self.counts.export()
        if keys.shape[0] <= trigger:
            return tf.constant(0)
        rare = tf.argsort(counts[:, 0])[: keys.shape[0] - num_reserved]
        gone = tf.gather(keys, rare)
        self.var.remove(gone)
        self.counts.remove(gone)
        return tf.size(gone)


def variable(restrict_policy: Any, shards: int = 1, **options: Any) -> tf_embed.Variable:
    devices = ["/CPU:0"] * shards
    return tf_embed.tfra.Variable(
        dim=2, restrict_policy=restrict_policy, devices=devices, **options
    )


def upsert(v: tf_embed.Variable, keys: Any) -> None:
    v.upsert(keys, np.zeros([len(keys), v.dim], np.float32))


def keys_of(v: tf_embed.Variable) -> list[int]:
    return sorted(v.export()[0].numpy().tolist())


class RestrictTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(policy=list(ORDERS), shards=(1, 3), num_reserved=(0, 7, 60, 10_000))
    def test_the_rows_of_the_oracle_stay(self, policy, shards, num_reserved):
        rng = np.random.default_rng(SEED)
        v, oracle = variable(policy, shards), PolicyOracle(ORDERS[policy], None, shards)
        for number in range(20):
            v.set_clock(time_ms=number // 2)
            oracle.now_ms = number // 2
            keys = [int(key) % 300 - 100 for key in rng.zipf(1.2, 60)]
            upsert(v, keys)
            oracle.update(keys, trains=False)
        self.assertEqual(int(v.restrict(num_reserved)), oracle.restrict(num_reserved))
        self.assertEqual(keys_of(v), oracle.keys())

    @parameterized.parameters(*ORDERS)
    def test_nothing_goes_until_there_are_more_rows_than_the_trigger(self, policy):
        v = variable(policy)
        upsert(v, range(10))
        self.assertEqual(int(v.restrict(4, trigger=10)), 0)
        self.assertEqual(int(v.size()), 10)
        self.assertEqual(int(v.restrict(4, trigger=tf.constant(9))), 6)
        self.assertEqual(int(v.size()), 4)

    @parameterized.parameters(*ORDERS)
    def test_restrict_in_a_graph_takes_tensors(self, policy):
        v = variable(policy, 3)
        upsert(v, range(10))
        restrict = tf.function(lambda count, trigger: v.restrict(count, trigger=trigger))
        self.assertEqual(int(restrict(tf.constant(4), tf.constant(20))), 0)
        self.assertEqual(int(restrict(tf.constant(4), tf.constant(5))), 6)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "`num_reserved`"):
            restrict(tf.constant(-4), tf.constant(1))

    def test_status_is_what_a_policy_goes_by(self):
        v = variable(FrequencyRestrictPolicy)
        upsert(v, [1, 2])
        upsert(v, [2, 2])
        status = v.restrict_policy.status
        keys, counts = status.export()
        self.assertEqual(dict(zip(keys.numpy(), counts.numpy()[:, 0], strict=True)), {1: 1, 2: 2})
        self.assertAllEqual(status.lookup([[2], [7]]), [[[2]], [[0]]])
        self.assertEqual(int(status.size()), 2)
        v = variable(TimestampRestrictPolicy)
        v.set_clock(time_ms=77)
        upsert(v, [1])
        self.assertAllEqual(v.restrict_policy.status.lookup([1]), [[77]])

    @parameterized.parameters(*ORDERS)
    def test_a_policy_for_a_variable_that_does_not_keep_what_it_needs_is_refused(self, policy):
        for restrict_policy in (None, *ORDERS):
            v = variable(restrict_policy)
            if restrict_policy is policy:
                self.assertIs(policy(v).var, v)
            elif not set(policy.statistics) <= set(v.row_statistics([1])):
                words = f"what the table keeps from its first row on.*={policy.__name__}"
                with self.assertRaisesRegex(ValueError, words):
                    policy(v)

    @parameterized.parameters(*ORDERS)
    def test_a_table_keeps_only_what_its_policy_needs(self, policy):
        v = variable(policy)
        self.assertEqual(list(v.row_statistics([1])), ["exists", *policy.statistics])

    def test_a_table_policy_bounds_and_a_restrict_policy_restricts(self):
        v = variable(FrequencyRestrictPolicy, policy=tf_embed.TablePolicy(3, "lru"))
        for keys in ([1], [1], [2], [3], [4]):
            upsert(v, keys)
        self.assertEqual(keys_of(v), [2, 3, 4])
        upsert(v, [2])
        v.restrict(1)
        self.assertEqual(keys_of(v), [2])

    @parameterized.parameters("timestamp", 3, TimestampRestrictPolicy(None), dict)
    def test_what_is_no_class_of_policies_is_refused(self, policy):
        with self.assertRaisesRegex(TypeError, "`restrict_policy` must be a subclass"):
            variable(policy)
        with self.assertRaisesRegex((TypeError, ValueError), "`restrict_policy` must be"):
            Embedding(2, restrict_policy=policy)


class ScoresTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_restrict_policy_alone_has_an_order(self):
        v = variable(FrequencyRestrictPolicy)
        upsert(v, [5])
        upsert(v, [5, 6])
        keys, scores = v.export_keys_and_scores(1)
        found = dict(zip(keys.numpy().tolist(), scores.numpy().tolist(), strict=True))
        self.assertEqual(found, {5: 2, 6: 1})

    def test_the_order_of_a_policy_comes_first(self):
        v = variable(FrequencyRestrictPolicy, policy=tf_embed.TablePolicy(eviction="lru"))
        upsert(v, [5, 6])
        self.assertAllEqual(tf.function(v.export_keys_and_scores)(7)[1], [1, 1])
        upsert(v, [5, 6])
        self.assertAllEqual(v.export_keys_and_scores(7)[1], [2, 2])

    @parameterized.parameters(
        (None, 8, TypeError, "or with a tf_embed.tfra.HkvHashTableCreator. Received: policy=None"),
        (tf_embed.TablePolicy(), 0, ValueError, "`split_size`"),
        (tf_embed.TablePolicy(), 2.0, TypeError, "`split_size`"),
    )
    def test_a_bad_export_is_refused(self, policy, split_size, error, message):
        with self.assertRaisesRegex(error, message):
            variable(None, policy=policy).export_keys_and_scores(split_size)

    def test_a_policy_of_the_table_takes_no_trigger(self):
        v = variable(None, policy=tf_embed.TablePolicy())
        with self.assertRaisesRegex(
            TypeError, "takes `num_reserved` alone, without a restrict_policy. Received: trigger"
        ):
            v.restrict(1, trigger=2)


class UsersPolicyTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_sees_each_step_with_distinct_keys_and_restricts(self):
        v = variable(KeepOften, 3)
        upsert(v, [1, 2, 1])
        v.accum([2, 3], tf.zeros([2, 2]), tf.ones([2, 2]), [True, False])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        nadam = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Nadam(0.1))

        def step(which: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.tfra.embedding_lookup(v, [3, 4, 3]))
            which.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        step(optimizer)
        tf.function(lambda: step(optimizer))()
        step(nadam)
        v.lookup([1, 1], training=True)
        self.assertAllEqual(v.restrict_policy.status.lookup([1, 2, 3, 4]), [[1], [2], [4], [3]])
        self.assertEqual(int(v.restrict(2, trigger=10)), 0)
        self.assertEqual(int(v.restrict(2)), 2)
        self.assertEqual(keys_of(v), [3, 4])

    def test_what_it_keeps_is_in_checkpoints(self):
        v = variable(KeepOften)
        upsert(v, [1, 2])
        upsert(v, [2])
        path = tf.train.Checkpoint(v=v).write(tempfile.mkdtemp(dir=self.get_temp_dir()) + "/c")
        other = variable(KeepOften, 3)
        tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.assertAllEqual(other.restrict_policy.status.lookup([1, 2]), [[1], [2]])

    def test_a_deep_copy_has_one_of_its_own(self):
        v = variable(KeepOften)
        upsert(v, [1, 2])
        copied = copy.deepcopy(v)
        upsert(v, [1])
        upsert(copied, [2])
        self.assertIs(copied.restrict_policy.var, copied)
        for one, counts in ((v, [[2], [1]]), (copied, [[1], [2]])):
            self.assertAllEqual(one.restrict_policy.status.lookup([1, 2]), counts)

    def test_one_that_needs_an_unknown_statistic_is_refused(self):
        class Typo(RestrictPolicy):
            statistics = ("last_step", "freq")

        with self.assertRaisesRegex(
            ValueError, "Typo must be of .*, for it to be a `restrict_policy`. .*'freq'"
        ):
            variable(Typo)

    def test_one_without_a_restriction_says_so(self):
        with self.assertRaisesRegex(NotImplementedError, "RestrictPolicy must have"):
            variable(RestrictPolicy).restrict(1)

    @parameterized.parameters(KeepOften, *ORDERS)
    def test_a_layer_keeps_the_class_in_its_config(self, policy):
        layer = Embedding(2, restrict_policy=policy)
        again = Embedding.from_config(layer.get_config())
        self.assertIs(again.restrict_policy, policy)
        self.assertIsInstance(again.variable.restrict_policy, policy)

    def test_a_class_that_keras_does_not_know_is_refused_by_its_name(self):
        config = {**Embedding(2).get_config(), "restrict_policy": "nobody>Knows"}
        # Keras makes a TypeError of whatever a layer raises here.
        with self.assertRaisesRegex(TypeError, "must be registered.*nobody>Knows"):
            Embedding.from_config(config)


if __name__ == "__main__":
    tf.test.main()

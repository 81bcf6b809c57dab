# SPDX-License-Identifier: Apache-2.0
"""Policies of tables with rows on disk: the tests of tables in memory, and both side by side."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import eviction_log_test
import keras
import numpy as np
import policies_test
import refusing_bound_test
import restrict_test
import scores_test
import string_policies_test
import tensorflow as tf
from absl.testing import parameterized
from policies_test import ORDERS, popular_keys

import tf_embed
from support.cases.on_disk import OnDisk
from support.oracles.reference import SEED
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy
from tf_embed.optimizers.rules import hyper_parameters

DIM = 3
ROW_BYTES = 16 + 2 * 12 + 8 + 1  # with the slots of Adam, padded, and a mark
CACHE_ROWS = 60


class OracleTest(OnDisk, policies_test.OracleTest):
    """With the keys of policy_oracle.py after each step."""


class AdmissionTest(OnDisk, policies_test.AdmissionTest):
    """Keys that wait for a row."""


class BoundTest(OnDisk, policies_test.BoundTest):
    """Tables with a bound."""

    def test_memory_shrinks_after_a_big_restriction(self):
        v = policies_test.variable(TablePolicy(), dim=16)
        for first in range(0, 40_000, 10_000):
            policies_test.upsert(v, list(range(first, first + 10_000)))
        before = v.stats()
        v.restrict(1000)
        after = v.stats()
        self.assertEqual(after["rows"], 1000)
        self.assertLess(10 * after["disk_live_bytes"], before["disk_live_bytes"])
        self.assertLess(after["disk_bytes"], before["disk_bytes"] / 2)


class RefusingBoundTest(OnDisk, refusing_bound_test.RefusingBoundTest):
    """Bounds that refuse."""


class ScoresTest(OnDisk, scores_test.ExportTest):
    """Scores of rows in all tiers."""


class EpochTest(OnDisk, scores_test.EpochTest):
    """Epochs."""


class ScoreFunctionTest(OnDisk, scores_test.ScoreFunctionTest):
    """Scores that come with rows."""


class RestrictTest(OnDisk, restrict_test.RestrictTest):
    """Policies as TFRA has them."""


class UsersPolicyTest(OnDisk, restrict_test.UsersPolicyTest):
    """Policies of a user's own."""


class EvictionLogTest(OnDisk, eviction_log_test.EvictionLogTest):
    """Rows that left."""

    host_bytes = 8_000


class StringPoliciesTest(OnDisk, string_policies_test.StringPoliciesTest):
    """Keys that are strings."""


class Pair:
    """A table in memory and one on disk that do the same.

    Args:
        folder: The folder of the rows on disk.
        policy: Of both.
        shards: Of both, because a bound is divided by shards.
    """

    def __init__(self, folder: str, policy: TablePolicy, shards: int) -> None:
        self._folder = folder
        self._make = lambda storage: tf_embed.Variable(
            dim=DIM,
            name="mine",
            initializer=keras.initializers.RandomNormal(seed=1),
            devices=["/CPU:0"] * shards,
            policy=policy,
            storage=storage,
        )
        self.memory, self.disk = self.new()

    def new(self) -> list[tf_embed.Variable]:
        path = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        return [
            self._make(None),
            self._make(tf_embed.Storage(host_bytes=CACHE_ROWS * ROW_BYTES, path=path)),
        ]

    def do(self, verb: Any) -> Any:
        """Calls `verb` with either table, and gives both results."""
        return verb(self.memory), verb(self.disk)

    def swap(self, way: str) -> None:
        """Saves either table and restores it into a new one of the other kind."""
        old, new = (self.disk, self.memory), self.new()
        for v, other in zip(old, new, strict=True):
            path = os.path.join(tempfile.mkdtemp(dir=self._folder), "save")
            if way == "files":
                v.save_to_file_system(path)
                other.load_from_file_system(path)
            else:
                tf.train.Checkpoint(v=v).write(path)
                tf.train.Checkpoint(v=other).read(path).assert_consumed()
        self.memory, self.disk = new


def train(v: tf_embed.Variable, keys: np.ndarray, step: int) -> None:
    """A step of Adam, whose gradients are functions of the key."""
    gradients = np.sin(np.arange(DIM) + keys[:, None]).astype(np.float32)
    v.table.apply(
        tf.constant(keys),
        tf.constant(gradients),
        rule="adam",
        hyper=hyper_parameters(keras.optimizers.Adam(0.1), weight_decay=False),
        step=tf.constant(step, tf.int64),
    )


def content(v: tf_embed.Variable) -> list[np.ndarray]:
    """Keys, weights, slots and statistics, by key."""
    exported = v.table.export()
    parts = (exported.keys, exported.values, exported.slots, exported.statistics)
    order = np.argsort(exported.keys)
    return [part.numpy()[order] for part in parts]


def plain(v: tf_embed.Variable, keys: np.ndarray) -> np.ndarray:
    """A lookup of training."""
    return v.lookup(keys, training=True).numpy()


def pooled(v: tf_embed.Variable, keys: np.ndarray) -> np.ndarray:
    """A lookup of training with a bag for each key."""
    bags = tf.RaggedTensor.from_row_lengths(tf.constant(keys), tf.ones_like(keys))
    return tf_embed.embedding_lookup_sparse(v, bags, None, training=True).numpy()


class SideBySideTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, pair: Pair) -> None:
        names = (*policies_test.COUNTED, "rows", "undrained")
        self.assertEqual(*pair.do(lambda v: {name: v.stats()[name] for name in names}))
        for one, other in zip(*pair.do(content), strict=True):
            self.assertAllEqual(one, other)

    def assert_same_log(self, pair: Pair) -> None:
        def log(v: tf_embed.Variable) -> list[np.ndarray]:
            """The rows that left, by key: rows that left together are in no order."""
            keys, rows = (part.numpy() for part in v.drain_evicted())
            order = np.argsort(keys, kind="stable")
            return [keys[order], rows[order]]

        for one, other in zip(*pair.do(log), strict=True):
            self.assertAllEqual(one, other)

    @parameterized.product(order=ORDERS, shards=(1, 3), way=("checkpoint", "files"))
    def test_random_steps_with_saves_between_the_tiers(self, order, shards, way):
        rng = np.random.default_rng(SEED)
        policy = TablePolicy(
            200,
            order,
            CounterAdmission(2) if shards == 1 else BloomAdmission(2, 0.01),
            log_evicted=True,
            steps_per_epoch=9 if order.startswith("epoch") else None,
        )
        pair = Pair(self.get_temp_dir(), policy, shards)
        demoted = evicted = 0
        for number in range(120):
            pair.do(lambda v, number=number: v.set_clock(time_ms=number // 2))
            keys = np.array(popular_keys(rng, 40, 1500), np.int64)
            rows = rng.normal(size=[len(keys), DIM]).astype(np.float32)
            scores = rng.integers(-50, 50, len(keys))
            verbs = {
                "train": lambda v, keys=keys, number=number: train(v, keys, number + 1),
                "upsert": lambda v, keys=keys, rows=rows: v.upsert(keys, rows),
                "use": lambda v, keys=keys: v.lookup(keys, training=True).numpy(),
                "look": lambda v, keys=keys: v.lookup(keys).numpy(),
                "prefetch": lambda v, keys=keys: v.prefetch(keys),
                "remove": lambda v, keys=keys: v.remove(keys[:3]),
                "restrict": lambda v: int(v.restrict(150)),
                "score": lambda v, keys=keys, scores=scores: (
                    v.set_scores(keys, scores) if order == "score" else None
                ),
            }
            chances = [8, 3, 4, 2, 1, 1, 1, 2]
            name = rng.choice(list(verbs), p=np.divide(chances, sum(chances)))
            memory, disk = pair.do(verbs[name])
            if isinstance(memory, np.ndarray):
                self.assertAllEqual(memory, disk)
            if number % 10 == 9:
                self.assert_same(pair)
                self.assert_same_log(pair)
            if number % 40 == 39:
                stats = pair.disk.stats()
                demoted, evicted = demoted + stats["demoted"], evicted + stats["evicted"]
                pair.swap(way)
                self.assert_same(pair)
        self.assertGreater(min(demoted, evicted), 100)

    @parameterized.product(order=("lru", "lfu", "ttl"), shards=(1, 3))
    def test_rows_expire_wherever_they_are(self, order, shards):
        rng = np.random.default_rng(SEED)
        policy = TablePolicy(eviction=order, ttl_seconds=0.05, log_evicted=True)
        pair = Pair(self.get_temp_dir(), policy, shards)

        def live(v: tf_embed.Variable) -> list[np.ndarray]:
            """Expired rows leave some sooner, some later."""
            found = content(v)
            last_time = v.row_statistics(found[0])["last_time_ms"].numpy()
            return [part[last_time + 50 > now] for part in found]

        for number in range(80):
            now = 5 * number
            pair.do(lambda v, now=now: v.set_clock(time_ms=now))
            keys = np.array(popular_keys(rng, 60, 4000), np.int64)
            pair.do(lambda v, keys=keys: v.lookup(keys, training=True))
            pair.do(lambda v, keys=keys, number=number: train(v, keys, number + 1))
            if number % 10 == 9:
                for one, other in zip(*pair.do(live), strict=True):
                    self.assertAllEqual(one, other)
        pair.do(lambda v: v.restrict(10**6))
        self.assert_same(pair)
        self.assert_same_log(pair)
        stats = pair.disk.stats()
        self.assertGreater(min(stats["expired"], stats["demoted"]), 100)

    def test_a_restriction_takes_all_expired_rows_first(self):
        policy = TablePolicy(eviction="lfu", ttl_seconds=0.05)
        memory, disk = Pair(self.get_temp_dir(), policy, 1).do(lambda v: v)
        keys = np.random.default_rng(SEED).permutation(6000)
        live = np.arange(10_000, 10_040)
        for v in (memory, disk):
            v.set_clock(time_ms=0)
            for first in [*range(0, 6000, 30)] * 2:  # so they rank higher
                policies_test.upsert(v, keys[first : first + 30].tolist())
            v.set_clock(time_ms=20)
            policies_test.upsert(v, live.tolist())  # a search for expired rows stops anywhere
            v.set_clock(time_ms=50)
            v.restrict(len(live))
            self.assertCountEqual(v.export()[0].numpy(), live)

    @parameterized.parameters(plain, pooled)
    def test_training_misses_expired_rows_of_any_tier(self, lookup):
        pair = Pair(self.get_temp_dir(), TablePolicy(ttl_seconds=0.05), 1)
        pair.do(lambda v: v.set_clock(time_ms=0))
        for first in [*range(0, 400, 20), 0]:  # at last those that the store has with older weights
            rows = np.full([20, DIM], 5.0, np.float32)
            pair.do(lambda v, first=first, rows=rows: v.upsert(np.arange(first, first + 20), rows))
        pair.do(lambda v: v.set_clock(time_ms=50))
        for keys in (np.arange(10), np.arange(300)):  # these are more than may come up together
            memory, disk = pair.do(lambda v, keys=keys: lookup(v, keys))
            self.assertAllEqual(memory, disk)
            self.assertLess(np.max(disk), 5.0)

    @parameterized.parameters(plain, pooled)
    def test_training_uses_rows_of_any_tier(self, lookup):
        pair = Pair(self.get_temp_dir(), TablePolicy(eviction="lfu", ttl_seconds=0.05), 1)
        keys = np.arange(300)  # more than may come up together
        pair.do(lambda v: v.set_clock(time_ms=0))
        pair.do(lambda v: policies_test.upsert(v, keys))
        pair.do(lambda v: v.set_clock(time_ms=30))
        pair.do(lambda v: lookup(v, keys))
        pair.do(lambda v: v.set_clock(time_ms=60))
        pair.do(lambda v: v.restrict(10**6))
        self.assertEqual(pair.disk.size(), len(keys))
        self.assert_same(pair)


if __name__ == "__main__":
    tf.test.main()

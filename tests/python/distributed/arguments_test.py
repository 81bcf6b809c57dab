# SPDX-License-Identifier: Apache-2.0
"""Arguments of `tf_embed.distributed` that are refused. No cluster is needed."""

from __future__ import annotations

import types
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed.distributed import WorkerSharding
from tf_embed.sharded import routing, servers, workers
from tf_embed.sharded.worker_lookups import PooledAnswer
from tf_embed.table.lookups import Lookup

KEYS = tf.constant([1, 2, 3], tf.int64)


def fake_workers(replicas: int) -> workers.Workers:
    """The worker of a strategy with one process and this number of replicas."""
    cluster = tf.train.ClusterSpec({"localhost": ["localhost:1"]})
    resolver = types.SimpleNamespace(cluster_spec=lambda: cluster, task_type="localhost", task_id=0)
    strategy: Any = types.SimpleNamespace(cluster_resolver=resolver, num_replicas_in_sync=replicas)
    return workers.Workers(strategy, WorkerSharding())


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (
            lambda: tf_embed.distributed.is_chief(3),
            TypeError,
            "`strategy` must be a tf.distribute.Strategy. Received: strategy=3",
        ),
        (
            lambda: tf_embed.distributed.look_up_together([(keras.layers.Dense(1),)]),
            ValueError,
            "`calls` must have tuples of a layer and its arguments",
        ),
        (
            lambda: tf_embed.Variable(distribution=3),
            TypeError,
            '`distribution` must be "sharded", "local" or a tf_embed.dist.*distribution=3',
        ),
        (
            lambda: servers.servers_of(tf.distribute.get_strategy(), "a/b"),
            ValueError,
            "`run_id` must have 1 to .* characters, without a slash. Received: run_id='a/b'",
        ),
        (
            lambda: servers.Servers(),
            ValueError,
            "with tables needs a task `ps` in its cluster. Received: the devices",
        ),
        (
            lambda: fake_workers(2),
            ValueError,
            "need one replica for each worker: let each worker see one .* 2 replicas on 1 workers",
        ),
    )
    def test_a_wrong_argument_is_named(self, call, error, message):
        with self.assertRaisesRegex(error, message):
            call()

    @parameterized.parameters(
        (lambda keys, count: tf.zeros([3]), TypeError, "`owner` of 'v' must give int32 or int64"),
        (
            lambda keys, count: tf.zeros([2], tf.int32),
            ValueError,
            r"must give one worker for each key, shape \(3,\). Received: shape=\(2,\)",
        ),
        (
            lambda keys, count: tf.fill([3], 2),
            tf.errors.InvalidArgumentError,
            "must give workers from 0 to 1. Received",
        ),
    )
    def test_an_owner_is_a_worker_for_each_key(self, owner, error, message):
        with self.assertRaisesRegex(error, message):
            routing.owners_of(KEYS, 2, WorkerSharding(owner=owner), "v")

    def test_a_process_has_a_bound_on_its_tables(self):
        made = fake_workers(1)
        with mock.patch.object(workers, "MAX_CHANNELS", 1):
            made.new_channels(1, WorkerSharding())
            with self.assertRaisesRegex(ValueError, "make at most half a million tables that are"):
                made.new_channels(1, WorkerSharding())

    def test_another_build_of_the_library_is_named(self):
        cpus = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")]
        builds = [tf.constant(build) for build in ("mine", "mine", "theirs")]
        with (
            mock.patch.object(servers, "_names_of_cpus", return_value=cpus),
            mock.patch.object(servers.process_ops, "build_of_library", side_effect=builds),
            mock.patch.object(servers.tf, "device"),
            self.assertRaisesRegex(
                RuntimeError, "must have the same build of .*mine in this one, theirs in worker 0"
            ),
        ):
            servers.Servers().check_builds()

    def test_a_pooled_lookup_has_the_ids_of_the_one_before_the_step(self):
        table = tf_embed.Variable(dim=1, name="items").table
        answer = PooledAnswer(Lookup(table, KEYS, training=False), tf.zeros([3, 1]))
        same = Lookup(table, tf.identity(KEYS), training=False)
        self.assertAllEqual(answer(same), tf.zeros([3, 1]))
        for keys in (KEYS + 1, KEYS[:2]):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError,
                "'items' must depend on the inputs of the model alone, because the lookups of a "
                "step are made together before it",
            ):
                answer(Lookup(table, keys, training=False))


if __name__ == "__main__":
    tf.test.main()

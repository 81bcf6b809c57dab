# SPDX-License-Identifier: Apache-2.0
"""Rows that are loaded after their time to live, and `Variable.restart_ttl`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed

TTL, SECOND = 60, 1000
KEYS = np.arange(8)
FRESH = 3  # the number of keys with a later write


def new(name: str = "items", shards: int = 1, **options: Any) -> tf_embed.Variable:
    """A variable with its clock at 0."""
    policy = tf_embed.TablePolicy(ttl_seconds=TTL, track_changes=options.pop("tracks", False))
    v = tf_embed.Variable(
        **{"dim": 1, "name": name, "policy": policy, "devices": ["/CPU:0"] * shards, **options}
    )
    v.set_clock(time_ms=0)
    return v


def fill(v: tf_embed.Variable) -> None:
    """Writes all keys at time 0, and some of them again at 50 seconds."""
    v.upsert(KEYS, np.ones([len(KEYS), v.dim]))
    v.set_clock(time_ms=50 * SECOND)
    v.upsert(KEYS[:FRESH], np.ones([FRESH, v.dim]))


def by_checkpoint(path: str, v: tf_embed.Variable) -> Callable[[tf_embed.Variable], Any]:
    saved = tf.train.Checkpoint(v=v).write(path)
    return lambda other: tf.train.Checkpoint(v=other).read(saved)


def by_row_files(path: str, v: tf_embed.Variable) -> Callable[[tf_embed.Variable], Any]:
    v.save_rows(path)
    return lambda other: other.load_rows(path)


def by_snapshot(path: str, v: tf_embed.Variable) -> Callable[[tf_embed.Variable], Any]:
    tf_embed.Snapshots(path, v).save("one")
    return lambda other: tf_embed.Snapshots(path, other).load("one")


class RestartTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "save")

    def exists(self, v: tf_embed.Variable) -> list[bool]:
        """Whether training finds each key."""
        return v.lookup(KEYS, return_exists=True, training=True)[1].numpy().tolist()

    @parameterized.product(load=(by_checkpoint, by_row_files, by_snapshot), restarts=(False, True))
    def test_a_load_tells_of_expired_rows_which_a_restart_keeps(self, load, restarts):
        v = new()
        fill(v)
        load_into = load(self.path, v)
        other = new()
        other.set_clock(time_ms=100 * SECOND)
        with self.assertLogs("absl", "WARNING") as logs:
            load_into(other)
        self.assertLen(logs.output, 1)
        self.assertIn("'items': 5 of its 8 rows have expired", logs.output[0])
        self.assertIn("ttl_seconds=60", logs.output[0])
        if not restarts:
            self.assertEqual(self.exists(other), [True] * FRESH + [False] * 5)
            return
        self.assertEqual(int(other.restart_ttl()), 5)
        other.set_clock(time_ms=159 * SECOND)
        self.assertEqual(self.exists(other), [True] * 8)

    def test_a_load_without_expired_rows_says_nothing(self):
        v = new()
        fill(v)
        load_into = by_checkpoint(self.path, v)
        other = new()
        other.set_clock(time_ms=59 * SECOND)
        with self.assertNoLogs("absl", "WARNING"):
            load_into(other)

    @parameterized.parameters("m.keras", "m.weights.h5", "set_weights")
    def test_a_model_tells_of_expired_rows_which_a_restart_keeps(self, way):
        def new_model(time_ms: int) -> tuple[keras.Model, tf_embed.Variable]:
            policy = tf_embed.TablePolicy(ttl_seconds=TTL)
            layer = tf_embed.layers.DynamicEmbedding(1, optimizer="sgd", policy=policy, name="t")
            model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
            layer.variable.set_clock(time_ms=time_ms)
            return model, layer.variable

        model, v = new_model(0)
        fill(v)
        path = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), way)
        if way == "m.keras":
            model.save(path)
        elif way == "m.weights.h5":
            model.save_weights(path)
        other, rows = new_model(100 * SECOND)
        with self.assertLogs("absl", "WARNING") as logs:
            if way == "m.keras":  # the loaded variable has the system's clock
                rows = keras.models.load_model(path).layers[0].variable
            elif way == "m.weights.h5":
                other.load_weights(path)
            else:
                other.set_weights(model.get_weights())
        expired = 8 if way == "m.keras" else 5
        self.assertIn(f"'t': {expired} of its 8 rows have expired", logs.output[0])
        self.assertEqual(int(rows.restart_ttl()), expired)
        self.assertEqual(int(rows.restart_ttl()), 0)
        self.assertEqual(self.exists(rows), [True] * 8)

    @parameterized.parameters(
        {"shards": 3},
        {"key_dtype": "string"},
        {"storage": True},
        {"tracks": True},
        {"storage": True, "tracks": True, "shards": 2},
    )
    def test_each_kind_of_table_restarts_all_rows(self, storage=False, **options):
        if storage:
            path = tempfile.mkdtemp(dir=self.get_temp_dir())
            options["storage"] = tf_embed.Storage(host_bytes=4096, path=path)
        keys = [str(key) for key in range(1000)] if "key_dtype" in options else np.arange(1000)
        v = new(**options)
        v.upsert(keys, np.ones([1000, 1]))
        v.set_clock(step=77, time_ms=100 * SECOND)
        before = v.row_statistics(keys)
        self.assertEqual(int(v.restart_ttl()), 1000)
        after = v.row_statistics(keys)
        self.assertAllEqual(after["last_time_ms"], [100 * SECOND] * 1000)
        self.assertAllEqual(after["last_step"], before["last_step"])
        self.assertEqual(int(v.size()), 1000)

    def test_rows_that_were_restarted_expire_later(self):
        v = new()
        fill(v)
        v.set_clock(time_ms=100 * SECOND)
        v.restart_ttl()
        v.set_clock(time_ms=160 * SECOND)
        self.assertEqual(self.exists(v), [False] * 8)

    def test_it_runs_in_a_graph(self):
        v = new()
        fill(v)
        v.set_clock(time_ms=100 * SECOND)
        self.assertEqual(int(tf.function(v.restart_ttl)()), 5)
        self.assertEqual(int(v.restart_ttl()), 0)

    def test_a_clock_before_the_time_to_live_has_no_expired_rows(self):
        v = new()
        fill(v)
        v.set_clock(time_ms=10 * SECOND)
        self.assertEqual(int(v.restart_ttl()), 0)

    def test_a_table_without_a_time_to_live_is_refused(self):
        for policy in (None, tf_embed.TablePolicy(eviction="ttl")):
            v = tf_embed.Variable(dim=1, name="items", policy=policy)
            with self.assertRaisesRegex(ValueError, "'items' has no time to live .* Received: "):
                v.restart_ttl()


if __name__ == "__main__":
    tf.test.main()

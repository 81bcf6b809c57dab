# SPDX-License-Identifier: Apache-2.0
"""`sok.incremental_model_dump`: the rows that were used since a given time."""

from __future__ import annotations

import datetime
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from tf_embed import sok

START = datetime.datetime(2026, 1, 1)
START_MS = 1000 * int(START.replace(tzinfo=datetime.timezone.utc).timestamp())
KINDS: dict[str, dict[str, Any]] = {
    "ttl": {"policy": tf_embed.TablePolicy(eviction="ttl")},
    "expiring": {"policy": tf_embed.TablePolicy(ttl_seconds=1000.0)},
    "refusing": {"policy": tf_embed.TablePolicy(100, eviction=None, ttl_seconds=1000.0)},
    "frequent": {"policy": tf_embed.TablePolicy(100, "lfu", ttl_seconds=1000.0)},
    "timestamps": {"restrict_policy": tf_embed.tfra.TimestampRestrictPolicy},
    "tracked": {"policy": tf_embed.TablePolicy(eviction="ttl", track_changes=True)},
}


def table(**options: Any) -> tf_embed.Variable:
    return tf_embed.tfra.Variable(dim=2, devices=["/CPU:0"] * 2, name="items", **options)


def at(milliseconds: float) -> datetime.datetime:
    return START + datetime.timedelta(milliseconds=milliseconds)


class IncrementalDumpTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_it_has_the_rows_of_uses_at_that_time_or_later(self, kind):
        rng = np.random.default_rng(3)
        v = table(**KINDS[kind])
        rows: dict[int, tuple[int, list[float]]] = {}
        for step in range(10):
            v.set_clock(time_ms=START_MS + 10 * step)
            keys = rng.choice(50, 8, replace=False)
            values = rng.random([8, 2]).astype(np.float32)
            v.upsert(keys, values)
            for key, row in zip(keys.tolist(), values.tolist(), strict=True):
                rows[key] = 10 * step, row
        used = next(iter(rows))
        v.lookup([used], training=True)
        rows[used] = 90, rows[used][1]
        v.lookup(list(range(50)))  # does not count as a use
        for since in (-1000, 0, 1, 45, 50, 90, 90.5, 91):
            keys, values = sok.incremental_model_dump(v, at(since))
            found = dict(zip(keys.tolist(), values.tolist(), strict=True))
            expected = {key: row for key, (time, row) in rows.items() if time >= int(since)}
            self.assertEqual(found, expected, f"since {since}")

    def test_rows_of_training_steps_are_among_them(self):
        v = table(**KINDS["ttl"])
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        for step, keys in enumerate(([1, 2, 3], [2, 9])):
            v.set_clock(time_ms=START_MS + step)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys) ** 2.0 + 1.0)
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
        keys, values = sok.incremental_model_dump(v, at(1))
        self.assertCountEqual(keys, [2, 9])
        self.assertAllEqual(values, v.lookup(keys))

    def test_of_a_list_of_tables_it_gives_lists(self):
        tables = [table(**KINDS["ttl"]), table(**KINDS["timestamps"])]
        tables[1].upsert([7], [[1.0, 2.0]])
        keys, rows = sok.incremental_model_dump(tables, START, sess=None)
        self.assertEqual([one.tolist() for one in keys], [[], [7]])
        self.assertEqual([one.tolist() for one in rows], [[], [[1.0, 2.0]]])
        self.assertEqual(rows[0].shape, (0, 2))
        self.assertEqual(sok.incremental_model_dump([], START), ([], []))

    def test_a_time_with_a_zone_is_that_moment(self):
        v = table(**KINDS["ttl"])
        v.set_clock(time_ms=START_MS)
        v.upsert([1], [[1.0, 1.0]])
        zone = datetime.timezone(datetime.timedelta(hours=2))
        for hours, count in ((2, 1), (3, 0), (0, 1)):
            moment = datetime.datetime(2026, 1, 1, hours, tzinfo=zone)
            self.assertLen(sok.incremental_model_dump(v, moment)[0], count)

    def test_string_keys_come_as_strings(self):
        v = table(key_dtype=tf.string, **KINDS["ttl"])
        v.upsert(["a", "b"], [[1.0, 1.0]] * 2)
        self.assertCountEqual(sok.incremental_model_dump(v, START)[0], [b"a", b"b"])

    @parameterized.parameters(
        (lambda: (table(), START), ValueError, "`vars` must keep the times.*'items'"),
        (
            lambda: (table(policy=tf_embed.TablePolicy(5, "lru")), START),
            ValueError,
            r"`vars` must keep the times.*policy=TablePolicy\(max_rows=5\)",
        ),
        (lambda: (tf.Variable([1.0]), START), TypeError, "`vars` must be a tf_embed.Variable"),
        (
            lambda: (table(**KINDS["ttl"]), 1.5),
            TypeError,
            "`time_threshold` must be a datetime.*1.5",
        ),
        (
            lambda: (table(**KINDS["ttl"]), START.date()),
            TypeError,
            "`time_threshold` must be a datetime",
        ),
    )
    def test_bad_arguments_get_one_clear_error(self, make, error, message):
        with self.assertRaisesRegex(error, message):
            sok.incremental_model_dump(*make())

# SPDX-License-Identifier: Apache-2.0
"""Table policies: each table equals the dicts of policy_oracle.py after each step."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.policy_tables import (
    COUNTED,
    ORDERS,
    SHARDS,
    keys_of,
    popular_keys,
    train,
    upsert,
    variable,
)
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed import BloomAdmission, CounterAdmission, TablePolicy


class OracleTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, v: tf_embed.Variable, oracle: PolicyOracle) -> None:
        stats = v.stats()
        self.assertEqual(keys_of(v), oracle.keys())
        self.assertEqual({name: stats[name] for name in COUNTED}, oracle.counts)
        kept = v.row_statistics(oracle.keys())
        self.assertTrue(kept.pop("exists").numpy().all())
        uses = {key: use for rows in oracle.shards for key, use in rows.items()}
        self.assertEqual(sorted(uses), oracle.keys())
        for name, values in kept.items():
            self.assertAllEqual(values, [getattr(use, name) for _, use in sorted(uses.items())])

    @parameterized.parameters(itertools.product(ORDERS, SHARDS))
    def test_the_keys_after_each_step_are_those_of_the_oracle(self, order, shards):
        rng = np.random.default_rng(SEED)
        steps = 7 if order.startswith("epoch") else None
        policy = TablePolicy(
            61, order, CounterAdmission(2), log_evicted=True, steps_per_epoch=steps
        )
        v = variable(policy, shards)
        oracle = PolicyOracle(order, 61, shards, n=2, steps_per_epoch=steps)
        for number in range(120):
            v.set_clock(time_ms=number // 3)
            oracle.now_ms = number // 3
            keys = popular_keys(rng, 40, 300)
            if number % 4 == 1:
                v.lookup(keys, training=True)
                oracle.look_up(keys)
                v.lookup(popular_keys(rng, 40, 300))  # changes no statistics
            if order == "score":
                scores = {key: int(rng.integers(-50, 50)) for key in keys}
                v.set_scores(list(scores), list(scores.values()))
                for key, rows in itertools.product(scores, oracle.shards):
                    if key in rows:
                        rows[key].score = scores[key]
            trains = number % 5 != 0
            (train if trains else upsert)(v, keys)
            oracle.update(keys, trains)
            self.assert_same(v, oracle)
            left = v.drain_evicted()[0].numpy().tolist()
            self.assertEqual(sorted(left), sorted(oracle.left))
            oracle.left.clear()

    @parameterized.parameters(*SHARDS)
    def test_expired_rows_are_absent_in_training_and_go_in_the_end(self, shards):
        rng = np.random.default_rng(SEED)
        v = variable(TablePolicy(ttl_seconds=0.05, eviction="ttl"), shards)
        oracle = PolicyOracle("ttl", None, shards, ttl_ms=50)
        for number in range(100):
            v.set_clock(time_ms=10 * number)
            oracle.now_ms = 10 * number
            keys = popular_keys(rng, 30, 400)
            train(v, keys)
            oracle.update(keys, trains=True)
            held = keys_of(v)
            self.assertContainsSubset(oracle.keys(), held)
            uses = {key: use for rows in oracle.shards for key, use in rows.items()}
            for key in set(held) - set(oracle.keys()):
                # The oracle removes only the expired rows of its batch, the table also others.
                self.assertTrue(oracle.expired(uses[key]))
        v.restrict(10**6)
        oracle.restrict(10**6)
        self.assert_same(v, oracle)

    @parameterized.parameters(itertools.product(ORDERS[:3], SHARDS, (0, 1, 50, 100, 1000)))
    def test_restrict_leaves_exactly_the_last_in_order(self, order, shards, num_reserved):
        rng = np.random.default_rng(SEED)
        v, oracle = variable(TablePolicy(eviction=order), shards), PolicyOracle(order, None, shards)
        for number in range(20):
            v.set_clock(time_ms=number // 2)
            oracle.now_ms = number // 2
            keys = popular_keys(rng, 60, 300)
            upsert(v, keys)
            oracle.update(keys, trains=False)
        self.assertEqual(int(v.restrict(tf.constant(num_reserved))), oracle.restrict(num_reserved))
        self.assertEqual(keys_of(v), oracle.keys())
        self.assertEqual(v.stats()["evicted"], oracle.counts["evicted"])

    def test_hit_rates_are_those_of_a_simulation(self):
        rng = np.random.default_rng(SEED)
        drifting = [
            [key + 20 * step for key in popular_keys(rng, 100, 5000)] for step in range(100)
        ]
        for order in ORDERS:
            v, oracle = variable(TablePolicy(400, order)), PolicyOracle(order, 400)
            hits = wanted = 0
            for step, keys in enumerate(drifting):
                v.set_clock(time_ms=step)
                oracle.now_ms = step
                hits += int(tf.reduce_sum(tf.cast(v.lookup(keys, return_exists=True)[1], tf.int32)))
                wanted += sum(key in oracle.shards[0] for key in keys)
                upsert(v, keys)
                oracle.update(keys, trains=False)
            print(f"{order}: {hits / 10_000:.4f} of lookups hit")
            self.assertEqual(hits, wanted)
            self.assertEqual(v.stats()["hits"], hits)


@pytest.mark.smoke
class AdmissionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 300)
    def test_a_counter_makes_the_row_at_exactly_the_nth_step(self, n):
        v = variable(TablePolicy(admission=CounterAdmission(n)), shards=3)
        for step in range(1, n + 2):
            train(v, [7, 8, 7])
            self.assertEqual(keys_of(v), [7, 8] if step >= n else [])
        # Gradients before the n-th step are dropped. A key's gradients in a step are summed.
        self.assertAllEqual(v.lookup([7, 8]), [[-4.0], [-2.0]])
        self.assertEqual(v.stats()["held_back"], 2 * (n - 1))

    def test_a_counter_makes_as_many_rows_as_a_dict(self):
        rng = np.random.default_rng(SEED)
        oracle = PolicyOracle(n=4)
        v = variable(TablePolicy(admission=CounterAdmission(4)), shards=3)
        for _ in range(60):
            keys = popular_keys(rng, 2000, 50_000)
            train(v, keys)
            oracle.update(keys, trains=True)
        self.assertEqual(keys_of(v), oracle.keys())
        self.assertGreater(len(oracle.keys()), 500)

    @parameterized.parameters((2, 0.1), (2, 0.01), (5, 0.01), (100, 0.05))
    def test_a_bloom_filter_is_never_late_and_seldom_early(self, n, error_rate):
        rng = np.random.default_rng(SEED)
        v = variable(TablePolicy(admission=BloomAdmission(n, error_rate)))
        once = rng.integers(-(2**63), 2**63 - 1, 40_000)
        for keys in np.split(once, 20):
            train(v, keys)
        early = int(v.size()) / once.size
        print(f"n={n}, error_rate={error_rate}: {early:.5f} of the keys were early")
        self.assertLess(early, error_rate)
        often = np.unique(rng.integers(0, 2**62, 1000))
        for _ in range(n):
            train(v, often)
        self.assertTrue(tf.reduce_all(v.lookup(often, return_exists=True)[1]))

    @parameterized.parameters(CounterAdmission(3), BloomAdmission(3, 0.01))
    def test_upsert_accum_and_restoring_need_no_admission(self, admission):
        v = variable(TablePolicy(admission=admission))
        v.upsert([1], [[5.0]])
        v.accum([2], [[0.0]], [[6.0]], [False])
        self.assertEqual(keys_of(v), [1, 2])
        other = variable(TablePolicy(admission=admission))
        other.table.import_(v.table.export())
        self.assertEqual(keys_of(other), [1, 2])

    @parameterized.parameters(CounterAdmission(3), BloomAdmission(3, 1e-6))
    def test_what_was_counted_goes_on_after_restoring(self, admission):
        v = variable(TablePolicy(admission=admission), shards=3)
        train(v, [1, 2])
        train(v, [2])
        other = variable(TablePolicy(admission=admission))
        other.table.import_(v.table.export())
        train(other, [1, 2])
        self.assertEqual(keys_of(other), [2])
        train(other, [1])
        self.assertEqual(keys_of(other), [1, 2])

    @parameterized.parameters(
        (CounterAdmission(2), BloomAdmission(2, 0.01)),
        (BloomAdmission(2, 0.01), CounterAdmission(2)),
        (BloomAdmission(2, 0.01), BloomAdmission(200, 0.01)),
        (None, CounterAdmission(2)),
        (CounterAdmission(2), None),
    )
    def test_counts_of_another_admission_are_dropped_and_rows_kept(self, before, after):
        v, other = (variable(TablePolicy(admission=one)) for one in (before, after))
        upsert(v, [5])
        train(v, [1])
        train(other, [1])
        other.table.import_(v.table.export())
        train(other, [1])
        self.assertEqual(keys_of(other), [1, 5] if after is None or before is None else [5])

    def test_clear_forgets_what_was_counted(self):
        v = variable(TablePolicy(admission=CounterAdmission(2)))
        train(v, [1])
        v.clear()
        train(v, [1])
        self.assertEqual(keys_of(v), [])

    def test_max_keys_bounds_the_memory_of_keys_that_wait(self):
        sizes = {}
        for max_keys in (None, 1000):
            v = variable(TablePolicy(admission=CounterAdmission(2, max_keys)))
            for begin in range(0, 200_000, 10_000):
                train(v, np.arange(begin, begin + 10_000))
            sizes[max_keys] = v.stats()["admission_bytes"]
        self.assertLess(5 * sizes[1000], sizes[None])

    @parameterized.parameters(CounterAdmission(2), BloomAdmission(2, 1e-6))
    def test_a_callable_initializer_waits_for_admission_too(self, admission):
        v = variable(
            TablePolicy(admission=admission), initializer=lambda shape, dtype: tf.fill(shape, 9.0)
        )
        train(v, [1])
        self.assertEqual(keys_of(v), [])
        train(v, [1, 2])
        self.assertEqual(keys_of(v), [1])
        self.assertAllEqual(v.lookup([1]), [[8.0]])

    def test_a_key_with_a_callable_initializer_waits_anew_once_it_was_evicted(self):
        policy = TablePolicy(1, admission=CounterAdmission(2))
        v = variable(policy, initializer=lambda shape, dtype: tf.fill(shape, 9.0))
        for keys, held in (([1], []), ([1], [1]), ([2], [1]), ([2], [2]), ([1], [2]), ([1], [1])):
            train(v, keys)
            self.assertEqual(keys_of(v), held)


class BoundTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*ORDERS)
    def test_a_batch_larger_than_the_bound_has_the_rest_refused_and_counted(self, order):
        v = variable(TablePolicy(5, order))
        upsert(v, [100, 101])
        upsert(v, list(range(9)))
        self.assertEqual(keys_of(v), [0, 1, 2, 3, 4])
        stats = v.stats()
        self.assertEqual((stats["refused"], stats["evicted"], stats["admitted"]), (4, 2, 7))

    def test_rows_of_the_batch_stay_however_low_they_are(self):
        v = variable(TablePolicy(3, "score"))
        upsert(v, [1, 2, 3])
        v.set_scores([1, 2, 3], [-9, 5, 6])
        upsert(v, [1, 4])
        self.assertEqual(keys_of(v), [1, 3, 4])

    def test_reads_that_are_not_of_training_are_no_use_of_a_row(self):
        v = variable(TablePolicy(9, "lfu"))
        wrapped = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1, use_ema=True))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, [1, 2], training=True))
        wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
        upsert(v, [3])  # a key without slots
        before = {name: one.numpy() for name, one in v.row_statistics([1, 2, 3]).items()}
        for slot in v.slot_variables(wrapped):
            slot.lookup([1, 2, 3])
        v.lookup([1, 2, 3])
        after = v.row_statistics([1, 2, 3])
        for name, statistic in before.items():
            self.assertAllEqual(after[name], statistic, name)
        v.lookup([1], training=True)
        self.assertGreater(int(v.row_statistics([1])["count"][0]), before["count"][0])

    def test_statistics_of_keys_of_unknown_rank(self):
        v = variable(TablePolicy(9, "lfu"))
        upsert(v, [3])
        of = tf.function(v.row_statistics, input_signature=[tf.TensorSpec(None, v.key_dtype)])
        self.assertAllEqual(of(tf.constant([[3], [4]], v.key_dtype))["count"], [[1], [0]])

    def test_an_evicted_key_comes_back_with_its_initial_row_and_fresh_slots(self):
        v = variable(TablePolicy(2), initializer=0.5)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(1.0))

        def step(keys: list[int]) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys))
            optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)

        step([1])
        first = v.lookup([1]).numpy()
        step([1])
        step([2])
        step([3])
        self.assertEqual(keys_of(v), [2, 3])
        self.assertAllEqual(v.lookup([1]), [[0.5]])
        step([1])
        self.assertAllEqual(v.lookup([1]), first)

    @parameterized.parameters(keras.optimizers.Adam, keras.optimizers.Nadam)
    def test_every_kind_of_rule_obeys_admission_and_bound(self, optimizer):
        v = variable(TablePolicy(3, admission=CounterAdmission(2)), shards=3)
        oracle = PolicyOracle("lru", 3, 3, n=2)
        wrapped = tf_embed.DynamicEmbeddingOptimizer(optimizer(0.1))
        rng = np.random.default_rng(SEED)
        for _ in range(30):
            keys = rng.integers(0, 12, 6).tolist()
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys, training=True))
            oracle.look_up(keys)
            wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            oracle.update(keys, trains=True)
            self.assertEqual(keys_of(v), oracle.keys())
            stats = v.stats()
            self.assertEqual({name: stats[name] for name in COUNTED}, oracle.counts)

    def test_an_expired_row_starts_anew_in_every_kind_of_rule(self):
        for optimizer in (keras.optimizers.Adagrad, keras.optimizers.Nadam):
            v = variable(TablePolicy(ttl_seconds=1), initializer=0.5)
            wrapped = tf_embed.DynamicEmbeddingOptimizer(optimizer(0.25))
            after = []
            for time_ms in (0, 10, 5000):
                v.set_clock(time_ms=time_ms)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(2.0 * tf_embed.embedding_lookup(v, [1]))
                gradients = tape.gradient(loss, v.trainable_variables)
                wrapped.apply(gradients, v.trainable_variables)
                after.append(v.table.export()[1:3])
            self.assertEqual(v.stats()["expired"], 1)
            if optimizer is keras.optimizers.Adagrad:  # does not depend on the number of the step
                self.assertAllEqual(after[0][0], after[2][0])
            self.assertNotAllClose(after[1][0] - after[2][0], [[0.0]])
            self.assertEqual(v.row_statistics([1])["last_time_ms"].numpy().tolist(), [5000])

    def test_gradients_that_are_accumulated_are_not_bounded(self):
        v = variable(TablePolicy(2))
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        wrapped = tf_embed.DynamicEmbeddingOptimizer(optimizer)
        for keys in ([1, 2], [1, 3], [1, 4]):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(3.0 * tf_embed.embedding_lookup(v, keys))
            wrapped.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
        # There is room for two of the four keys. Their rows have the sums of all three steps.
        for key, row in zip(*v.export(), strict=True):
            self.assertEqual(row[0], -3.0 if key == 1 else -1.0)
        self.assertEqual((int(v.size()), v.stats()["refused"]), (2, 2))

    def test_restrict_touches_no_other_variable(self):
        one, other = variable(TablePolicy(), name="one"), variable(TablePolicy(), name="other")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        anchors = [*one.trainable_variables, *other.trainable_variables]
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(tf_embed.embedding_lookup(v, range(50))) for v in (one, other))
        optimizer.apply(tape.gradient(loss, anchors), anchors)
        before = other.table.export()
        self.assertEqual(int(one.restrict(10)), 40)
        exported = one.table.export()
        self.assertEqual((exported.keys.shape, exported.slots.shape), ((10,), (10, 2)))
        for tensor, same in zip(before, other.table.export(), strict=True):
            self.assertAllEqual(tensor, same)

    def test_memory_shrinks_after_a_big_restriction(self):
        v = variable(TablePolicy(), dim=16)
        upsert(v, list(range(200_000)))
        before = v.stats()
        v.restrict(1000)
        after = v.stats()
        total = ("payload_bytes", "index_bytes", "slack_bytes")
        self.assertEqual(after["rows"], 1000)
        self.assertLess(20 * sum(after[one] for one in total), sum(before[one] for one in total))


class StatsTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_table_without_policy_keeps_nothing_beside_its_rows(self):
        v = variable(dim=4)
        upsert(v, [1, 2, 3])
        v.lookup([1, 9], training=True)
        self.assertEqual(list(v.row_statistics([1])), ["exists"])
        stats = v.stats()
        self.assertEqual((stats["rows"], stats["payload_bytes"]), (3, 48))
        self.assertEqual((stats["hits"], stats["misses"]), (1, 1))
        self.assertEqual(v.table.export().statistics.shape, (3, 0))

    def test_load_and_probe_length_are_those_of_an_index(self):
        v = variable(init_size=1)
        self.assertEqual(v.stats()["mean_probe_length"], 0.0)
        upsert(v, list(range(50_000)))
        stats = v.stats()
        self.assertBetween(stats["load"], 0.2, 0.85)
        self.assertBetween(stats["mean_probe_length"], 1.0, 1.5)
        self.assertGreater(stats["index_bytes"], 50_000 * 12)

    def test_stats_in_a_graph_are_those_of_eager_execution(self):
        v = variable(TablePolicy(2))
        upsert(v, [1, 2, 3])
        in_graph = tf.function(v.stats)()
        numbers = {name: one.numpy() for name, one in in_graph.items()}
        known = {name: None if np.isnan(one) else one for name, one in numbers.items()}
        self.assertEqual(known, v.stats())

    def test_a_key_counts_once_a_step(self):
        v = variable(TablePolicy(eviction="lfu"))
        upsert(v, [1, 1, 2])
        for _ in range(3):
            v.lookup([1, 1], training=True)
        tf_embed.embedding_lookup(v, [1], training=True)
        train(v, [1, 1])
        v.lookup([1, 2])
        v.lookup([1, 2], return_exists=True)
        self.assertAllEqual(v.row_statistics([1, 2, 3])["count"], [2, 1, 0])
        self.assertAllEqual(v.row_statistics([1, 2, 3])["last_step"], [2, 1, 0])

    def test_scores_are_signed_and_the_last_position_wins(self):
        v = variable(TablePolicy(eviction="score"), shards=3)
        upsert(v, [1, 2, 3])
        v.set_scores([1, 2, 2, 9], [-(2**63), 5, 2**63 - 1, 1])
        self.assertAllEqual(
            v.row_statistics([[1, 2], [3, 9]])["score"], [[-(2**63), 2**63 - 1], [0, 0]]
        )
        v.restrict(2)
        self.assertEqual(keys_of(v), [2, 3])


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (lambda: TablePolicy(0), ValueError, "`max_rows` must be at least 1"),
        (lambda: TablePolicy(2.5), TypeError, "`max_rows` must be an int"),
        (lambda: TablePolicy(2**60 + 1), ValueError, f"`max_rows` must be at most {2**60}"),
        (lambda: TablePolicy(5, "fifo"), ValueError, "`eviction` must be .*'fifo'"),
        (
            lambda: TablePolicy(admission=3),
            TypeError,
            "must be a CounterAdmission or a BloomAdmission. Received",
        ),
        (lambda: TablePolicy(ttl_seconds=0), ValueError, "`ttl_seconds` must be from 0.001"),
        (lambda: TablePolicy(ttl_seconds="1"), TypeError, "`ttl_seconds` must be a number"),
        (lambda: TablePolicy(ttl_seconds=float("inf")), ValueError, "`ttl_seconds` must be from"),
        (lambda: TablePolicy(ttl_seconds=10**400), ValueError, "`ttl_seconds` must be from"),
        (lambda: TablePolicy(eviction=["lru"]), ValueError, "`eviction` must be None or one of"),
        (lambda: BloomAdmission(2, 1e-300), ValueError, "`error_rate` must be from 1e-9 to 0.5"),
        (lambda: TablePolicy(log_evicted=1), TypeError, "`log_evicted` must be a bool"),
        (lambda: TablePolicy(track_changes=1), TypeError, "`track_changes` must be a bool"),
        (lambda: CounterAdmission(0), ValueError, "`n` must be at least 1"),
        (lambda: CounterAdmission(2**32), ValueError, f"`n` must be at most {2**32 - 1}"),
        (lambda: CounterAdmission(1, 2**60 + 1), ValueError, f"`max_keys` must be at .* {2**60}"),
        (lambda: BloomAdmission(2**16, 0.1), ValueError, f"`n` must be at most {2**16 - 1}"),
        (lambda: CounterAdmission(1, 0), ValueError, "`max_keys` must be at least 1"),
        (lambda: BloomAdmission(1, 1.0), ValueError, "`error_rate` must be from 1e-9 to 0.5"),
        (lambda: BloomAdmission(1, None), TypeError, "`error_rate` must be a number"),
        (lambda: variable("lru"), TypeError, "`policy` must be a tf_embed.TablePolicy.*'lru'"),
        (lambda: variable(TablePolicy(2), 3), ValueError, "`max_rows` of `policy`.*3 shards"),
        (lambda: variable().drain_evicted(), ValueError, "keeps no evicted rows: make it with"),
        (lambda: variable(TablePolicy(3)).drain_evicted(), ValueError, "log_evicted=True"),
        (
            lambda: variable().set_scores([1], [1]),
            ValueError,
            r'tf_embed.TablePolicy\(eviction="score"\). Received: None',
        ),
        (
            lambda: variable(TablePolicy(eviction="score")).set_scores([1], [1, 2]),
            ValueError,
            "`scores` .* must have the shape of the keys",
        ),
        (lambda: variable(TablePolicy()).restrict(-1), ValueError, "`num_reserved` must be"),
        (lambda: variable(TablePolicy()).restrict(1.5), TypeError, "`num_reserved` must be"),
        (
            lambda: variable(TablePolicy(eviction=None)).restrict(1),
            ValueError,
            "does not say which rows leave first",
        ),
        (lambda: variable().set_clock(step=0), ValueError, "`step` must be at least 1"),
        (lambda: variable().set_clock(step=2**63 - 1), ValueError, "`step` must be at most 46116"),
        (
            lambda: variable().set_clock(step=tf.constant(2**63 - 1)),
            tf.errors.InvalidArgumentError,
            "has steps from 1 to 4611686018427387904",
        ),
        (lambda: variable(TablePolicy(3)).set_clock(epoch=1), ValueError, "keeps no epochs"),
        (
            lambda: variable(TablePolicy(3, "epoch_lru")).set_clock(epoch=2**31),
            ValueError,
            "`epoch` must be at most 2147483647",
        ),
        (lambda: TablePolicy(steps_per_epoch=3), ValueError, "`steps_per_epoch` goes .*'lru'"),
        (lambda: TablePolicy(3, "epoch_lru", steps_per_epoch=0), ValueError, "must be at least 1"),
        (lambda: TablePolicy(3, score_fn=abs), ValueError, "`score_fn` goes with eviction='score'"),
        (lambda: TablePolicy(3, "score", score_fn=3), TypeError, "`score_fn` must be callable"),
        (
            lambda: upsert(variable(TablePolicy(3, "score", score_fn=lambda _: [1.5])), [1]),
            TypeError,
            r"`score_fn\(keys\)` of .* must be of dtype int64",
        ),
        (
            lambda: upsert(variable(TablePolicy(3, "score", score_fn=lambda _: [1])), [1, 2]),
            ValueError,
            "`score_fn` of .* must give a score for each of the keys",
        ),
        (
            lambda: variable().lookup([1], training=tf.constant(True)),
            TypeError,
            "`training` must be a Python bool",
        ),
        (
            lambda: tf_embed.embedding_lookup(variable(), [1], training=tf.constant(True)),
            TypeError,
            "`training` must be a Python bool",
        ),
        (lambda: variable().set_clock(time_ms=-1), ValueError, "`time_ms` must be at least 0"),
        (lambda: variable().set_clock(time_ms="now"), TypeError, "`time_ms` must be an int"),
        (
            lambda: variable().set_clock(step=tf.constant(1.5)),
            TypeError,
            "`step` must be an integer. Received: step of dtype float32",
        ),
        (
            lambda: variable().set_clock(step=tf.constant([1])),
            ValueError,
            r"`step` must be one integer. Received: step of shape \(1,\)",
        ),
    )
    def test_a_bad_value_gets_one_clear_error(self, make, error, message):
        with self.assertRaisesRegex(error, message):
            make()

    @parameterized.parameters(
        TablePolicy(),
        TablePolicy(5, "lfu", CounterAdmission(3, 100), 2.5, True),
        TablePolicy(eviction=None, admission=BloomAdmission(2, 0.01)),
        TablePolicy(5, "epoch_lfu", steps_per_epoch=9),
        TablePolicy(5, None),
        TablePolicy(2**60, admission=CounterAdmission(2**32 - 1, 2**60)),
        TablePolicy(admission=BloomAdmission(2**16 - 1, 0.5)),
    )
    def test_the_config_makes_the_same_policy(self, policy):
        self.assertEqual(TablePolicy.from_config(policy.get_config()), policy)
        saved = keras.saving.serialize_keras_object(policy)
        self.assertEqual(keras.saving.deserialize_keras_object(saved), policy)

    @parameterized.parameters(
        (TablePolicy(), ("last_step",)),
        (TablePolicy(5), ("last_step",)),
        (TablePolicy(5, "lfu"), ("count", "last_step")),
        (TablePolicy(eviction=None), ()),
        (TablePolicy(5, None), ()),
        (TablePolicy(5, None, ttl_seconds=1.0), ("last_time_ms",)),
    )
    def test_a_table_keeps_the_statistics_of_its_order_bound_and_ttl(self, policy, kept):
        self.assertEqual(set(policy.kept), set(kept))

    def test_a_variable_without_policy_warns_and_restricts_nothing(self):
        v = variable()
        upsert(v, [1, 2])
        with self.assertLogs(level="WARNING") as logs:
            self.assertIsNone(v.restrict(1))
        self.assertIn("has no policy", logs.output[0])
        self.assertEqual(int(v.size()), 2)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's arguments and methods for caches, in a table-batched layer with rows on disk."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed import TablePolicy, tbe
from tf_embed.tbe import layer_arguments

CACHED = tbe.EmbeddingLocation.MANAGED_CACHING
ROWS, DIM, BATCH = 3000, 4, 64


class CachesTest(tf.test.TestCase, parameterized.TestCase):
    def storage(self, **options: Any) -> tf_embed.Storage:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        return tf_embed.Storage(path=folder, **options)

    def layer(self, specs: Any = ((ROWS, DIM, CACHED),), **options: Any) -> Any:
        given = {"storage": self.storage(), "optimizer": "ADAM", "initializer": 1.0, **options}
        given.setdefault("table_names", [f"table_{number}" for number in range(len(specs))])
        return tbe.TableBatchedEmbeddingBags(list(specs), **given)

    def batches(self, count: int = 20, tables: int = 1) -> list[tuple[tf.Tensor, tf.Tensor]]:
        rng = np.random.default_rng(SEED)
        offsets = tf.range(0, tables * BATCH + 1, 4)
        return [(tf.constant(rng.integers(0, ROWS, tables * BATCH)), offsets) for _ in range(count)]

    def train(self, layer: Any, ahead: bool = False, tables: int = 1) -> None:
        optimizer = keras.optimizers.SGD()
        batches = self.batches(tables=tables)
        for number, batch in enumerate(batches):
            if ahead and number + 1 < len(batches):
                layer.prefetch(*batches[number + 1])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(*batch, training=True) ** 2)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

    def capacities(self, layer: Any) -> list[int]:
        return [table.memory_report().tiers[0].capacity_rows for table in layer.tables]

    @parameterized.parameters(
        ({}, 608),  # 20% are 600 rows, 18.75 sets
        ({"cache_load_factor": 0.5}, 1504),
        ({"cache_load_factor": 1e-9}, 32),
        ({"cache_sets": 3}, 96),
        ({"cache_sets": 3, "cache_load_factor": 0.9}, 96),
        ({"cache_sets": 5, "cache_reserved_memory": 1e12}, 160),
        ({"cache_load_factor": 0.1, "optimizer": "EXACT_SGD"}, 320),
        ({"cache_load_factor": 0.1, "optimizer": None}, 320),
        ({"cache_load_factor": 0.1, "weights_precision": "FP16"}, 320),
        ({"cache_load_factor": 0.1, "optimizer": "EXACT_ROWWISE_ADAGRAD"}, 320),
    )
    def test_the_size_of_a_cache_is_a_part_of_the_rows(self, options, rows):
        layer = self.layer(**options)
        self.assertEqual(self.capacities(layer), [rows])

    @parameterized.parameters(
        ("ADAM", {}),
        ("EXACT_ADAGRAD", {}),
        ("EXACT_SGD", {}),
        ("EXACT_ROWWISE_ADAGRAD", {}),
        ("ADAM", {"optimizer_state_dtypes": {"momentum1": "FP16", "momentum2": "BF16"}}),
        ("PARTIAL_ROWWISE_ADAM", {"optimizer_state_dtypes": {"momentum1": "FP16"}}),
        ("ADAM", {"weights_precision": "BF16"}),
    )
    def test_so_many_rows_fit_with_all_that_the_optimizer_keeps(self, optimizer, options):
        layer = self.layer(optimizer=optimizer, cache_sets=4, **options)
        self.train(layer)
        self.assertEqual(self.capacities(layer), [128])
        stats = layer.tables[0].stats()
        self.assertBetween(stats["cache_rows"], 100, 128)
        self.assertGreater(stats["disk_rows"], 500)

    def test_caches_share_sets_by_their_rows(self):
        specs = [(300, 2, CACHED), (100, 8, CACHED), (None, 2, CACHED), (100, 2)]
        storages = [self.storage(), self.storage(), self.storage(), None]
        layer = self.layer(
            specs,
            storage=storages,
            policy=[None, None, TablePolicy(max_rows=600), None],
            cache_sets=10,
        )
        self.assertEqual(self.capacities(layer), [96, 32, 192, None])
        self.assertEqual(layer.tables[2].memory_report().statistics_bytes, 8)

    def test_host_bytes_that_are_given_count(self):
        layer = self.layer(storage=self.storage(host_bytes=40 * 49), cache_sets=9)
        self.assertEqual(self.capacities(layer), [40])

    @parameterized.parameters(
        ([(None, DIM, CACHED)], {}, "EmbeddingLocation.MANAGED_CACHING, rows=None"),
        ([(9, DIM, "MANAGED")], {}, "location=EmbeddingLocation.MANAGED, rows=9"),
        ([(9, DIM)], {}, "location=None, rows=9"),
        ([(None, DIM, CACHED)], {"policy": TablePolicy(eviction="lfu")}, "MANAGED_CACHING"),
    )
    def test_a_cache_of_unknown_size_is_refused(self, specs, options, message):
        wanted = "`host_bytes` or `gpu_bytes` of the `storage` of 'table_0' must be given.*"
        with self.assertRaisesRegex(ValueError, wanted + message):
            self.layer(specs, **options)

    def test_a_config_has_what_was_given(self):
        layer = self.layer(cache_load_factor=0.3)
        config = layer.get_config()
        again = type(layer).from_config(config)
        self.assertEqual(again.get_config(), config)
        self.assertEqual(self.capacities(again), self.capacities(layer))
        self.assertIsNone(config["storage"][0]["config"]["host_bytes"])

    def test_rows_are_those_of_memory_whatever_the_cache_is(self):
        wanted = self.layer(storage=None)
        self.train(wanted)
        for options in (
            {"cache_sets": 4},
            {"cache_load_factor": 0.04, "cache_algorithm": "LFU"},
            {"cache_sets": 4, "prefetch_pipeline": True},
        ):
            layer = self.layer(**options)
            self.train(layer, ahead=True)
            stats = layer.tables[0].stats()
            self.assertGreater(stats["promoted"], 100)
            for one, other in zip(
                layer.tables[0].table.export()[:3], wanted.tables[0].table.export()[:3], strict=True
            ):
                self.assertAllEqual(np.sort(one, axis=0), np.sort(other, axis=0))

    def test_a_step_reads_what_was_not_prefetched(self):
        layer = self.layer(cache_sets=4, prefetch_pipeline=True, gather_uvm_cache_stats=True)
        self.train(layer, ahead=False)
        self.assertGreater(layer.get_uvm_cache_stats()[3], 0)

    def test_a_pipeline_goes_with_lru_alone(self):
        with self.assertRaisesRegex(ValueError, "`prefetch_pipeline` needs CacheAlgorithm.LRU.*LF"):
            self.layer(cache_algorithm="LFU", prefetch_pipeline=True)

    def test_misses_are_rows_that_came_up(self):
        metrics = tbe.RecordCacheMetrics(
            record_cache_miss_counter=True, record_tablewise_cache_miss=True
        )
        layer = self.layer(
            [(ROWS, DIM, CACHED), (ROWS, DIM, CACHED), (ROWS, DIM)],
            storage=[self.storage(), self.storage(), None],
            cache_sets=8,
            record_cache_metrics=metrics,
        )
        self.train(layer, tables=3)
        promoted = [table.stats()["promoted"] for table in layer.tables]
        self.assertGreater(min(promoted[:2]), 0)
        self.assertAllEqual(layer.get_table_wise_cache_miss(), promoted)
        self.assertAllEqual(layer.get_cache_miss_counter(), [-1, sum(promoted)])
        layer.reset_uvm_cache_stats()
        ids = np.arange(16)  # few enough for a cache to promote at once
        once, again = (tf.constant(np.tile(ids, times)) for times in (3, 6))
        layer.prefetch(once, tf.constant([0, 16, 32, 48]))
        misses = layer.get_table_wise_cache_miss().numpy()
        self.assertBetween(misses[0], 1, 16)
        layer.prefetch(again, tf.constant([0, 32, 64, 96]))
        self.assertAllEqual(layer.get_table_wise_cache_miss(), misses)

    @parameterized.parameters(None, tbe.RecordCacheMetrics())
    def test_misses_that_are_not_recorded_are_not_reported(self, metrics):
        layer = self.layer(record_cache_metrics=metrics)
        with self.assertRaisesRegex(
            ValueError, "must have `record_cache_miss_counter` to read misses"
        ):
            layer.get_cache_miss_counter()
        with self.assertRaisesRegex(
            ValueError, "must have `record_tablewise_cache_miss` to read misses"
        ):
            layer.get_table_wise_cache_miss()

    def test_statistics_that_are_not_gathered_are_not_reported(self):
        with self.assertRaisesRegex(ValueError, "must be set to read statistics of its caches"):
            self.layer().get_uvm_cache_stats()
        layer = self.layer(gather_uvm_cache_stats=True)
        with self.assertRaisesRegex(ValueError, "counts of a single step are not kept"):
            layer.get_uvm_cache_stats(use_local_cache=True)
        with self.assertRaisesRegex(RuntimeError, "cache statistics of .* in eager execution"):
            tf.function(layer.get_uvm_cache_stats)()

    @pytest.mark.of_cpu("there, these arguments have an effect")
    def test_the_log_names_what_has_no_effect_and_nothing_else(self):
        options = {"cache_load_factor": 0.5, "prefetch_pipeline": True}
        for storage, specs, said in (
            (self.storage(), [(9, DIM, CACHED)], []),
            (self.storage(host_bytes=999), [(9, DIM, CACHED)], ["cache_load_factor"]),
            (None, [(9, DIM)], ["cache_load_factor", "prefetch_pipeline"]),
        ):
            layer_arguments._say_once.cache_clear()
            with self.assertLogs(level="WARNING") as logs:
                tf.get_logger().warning("one line at least")
                self.layer(specs, storage=storage, cache_reserved_memory=1.0, **options)
            names = [
                line.split("'")[1]
                for line in logs.output
                if "has no effect here. The one cache is" in line
            ]
            self.assertEqual(names, said)
            self.assertIn(
                "_memory' has no effect, because a cache takes no more than its", logs.output[-1]
            )
            self.assertFalse([line for line in logs.output if "means" in line])
        for storage, words in (
            (self.storage(), "CacheAlgorithm.LFU means LRU"),
            (None, "'cache_algorithm' has no effect here. The one cache is"),
        ):
            layer_arguments._say_once.cache_clear()
            with self.assertLogs(level="WARNING") as logs:
                self.layer(storage=storage, cache_algorithm="LFU")
            self.assertIn(words, logs.output[0])

    @parameterized.parameters(
        ("enforce_hbm", True, "`embedding_specs` and `storage` say where rows are"),
        ("device", 0, "`embedding_specs` and `storage` say where rows are"),
        ("uvm_non_rowwise_momentum", True, "optimizer states are parts of the rows"),
        ("use_experimental_tbe", True, "there is one implementation"),
        (
            "stats_reporter_config",
            tbe.TBEStatsReporterConfig(),
            "tf_embed.callbacks.TableMetrics reports statistics",
        ),
        ("multipass_prefetch_config", tbe.MultiPassPrefetchConfig(), "`prefetch` makes one pass"),
        ("uvm_host_mapped", True, "rows of EmbeddingLocation.MANAGED are in pinned"),
    )
    @pytest.mark.of_cpu("there, these arguments have an effect")
    def test_a_setting_without_effect_is_told_its_own_reason(self, name, value, reason):
        layer_arguments._say_once.cache_clear()
        with self.assertLogs(level="WARNING") as logs:
            self.layer([(9, DIM)], storage=None, **{name: value})
        (line,) = logs.output
        self.assertIn(f"'{name}' has no effect, because {reason}", line)
        self.assertNotIn("cache", line)

        layer_arguments._say_once.cache_clear()
        with self.assertLogs(level="WARNING") as logs:
            self.layer([(9, DIM, CACHED)], storage=None)
        self.assertIn("MANAGED_CACHING means host memory here, where rows lie", logs.output[0])


if __name__ == "__main__":
    tf.test.main()

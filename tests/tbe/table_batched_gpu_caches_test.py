# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers whose tables have a cache in a GPU's memory behave as on the CPU.

`make test-gpu` runs this; see tests/python/table/gpu_tables_test.py.
"""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.gpus import NEEDS_GPU
from support.oracles.reference import SEED
from tf_embed import TablePolicy, tbe
from tf_embed.table.placement import CPU, Placement
from tf_embed.tbe import layer_arguments

pytestmark = NEEDS_GPU

CACHED = tbe.EmbeddingLocation.MANAGED_CACHING
ROWS, DIM, BAGS = 3000, 4, 64


class GpuCachesTest(tf.test.TestCase, parameterized.TestCase):
    def storage(self, tiers: str) -> tf_embed.Storage | None:
        if tiers == "arguments":
            return None
        if tiers == "host":
            return tf_embed.Storage(gpu_bytes=9000, gpu_cache=True)
        return tf_embed.Storage(
            gpu_bytes=9000,
            host_bytes=9000 if tiers == "host and disk" else None,
            path=tempfile.mkdtemp(dir=self.get_temp_dir()),
        )

    def layer(self, specs: Any, on_cpu: bool = False, **options: Any) -> Any:
        names = [f"table_{number}" for number in range(len(specs))]
        initializer = keras.initializers.RandomUniform(seed=SEED)
        given = {"table_names": names, "cache_sets": 12, "initializer": initializer, **options}
        if not on_cpu:
            return tbe.TableBatchedEmbeddingBags(list(specs), **given)
        given["storage"] = None
        with mock.patch(
            "tf_embed.tbe.layer.place_together", return_value=Placement((CPU,), "of a test")
        ):
            return tbe.TableBatchedEmbeddingBags(list(specs), **given)

    def train(self, layer: Any, weighted: bool = False, steps: int = 30) -> list[np.ndarray]:
        rng = np.random.default_rng(SEED)
        tables = len(layer.tables)
        optimizer = keras.optimizers.SGD()
        outputs = []
        for number in range(steps):
            lengths = rng.integers(0, 5, tables * BAGS)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            indices = tf.constant(rng.integers(0, ROWS, offsets[-1]))
            weights = rng.normal(size=offsets[-1]).astype(np.float32) if weighted else None
            given = (indices, tf.constant(offsets), weights)
            if number % 3 == 0:
                layer.prefetch(*given[:2])
            with tf.GradientTape() as tape:
                pooled = layer(*given, training=True)
                loss = tf.reduce_sum((pooled - 1.0) ** 2)
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            outputs.append(pooled.numpy())
        outputs.append(layer(*given).numpy())
        return outputs

    def rows(self, variable: tf_embed.Variable) -> list[np.ndarray]:
        exported = variable.table.export()
        order = np.argsort(exported.keys.numpy())
        return [part.numpy()[order] for part in exported[:3]]

    @parameterized.product(
        tiers=("arguments", "host", "disk", "host and disk"),
        case=(
            ("EXACT_SGD", "SUM", True),
            ("EXACT_ADAGRAD", "MEAN", False),
            ("ADAM", "MEAN", True),
            ("EXACT_ROWWISE_ADAGRAD", "SUM", False),
        ),
    )
    def test_steps_and_lookups_are_those_of_the_cpu(self, tiers, case):
        optimizer, pooling, weighted = case
        specs = [(ROWS, DIM, CACHED), (None, 3, "DEVICE"), (ROWS, 8, CACHED)]
        storages = [self.storage(tiers), None, self.storage(tiers)]
        options = {"optimizer": optimizer, "pooling_mode": pooling, "learning_rate": 0.05}
        layers = (
            self.layer(specs, storage=storages, **options),
            self.layer(specs, on_cpu=True, **options),
        )
        self.assertIn("GPU", layers[0].tables[0].table.options.device.upper())
        outputs = [self.train(layer, weighted) for layer in layers]
        for one, other in zip(*outputs, strict=True):
            self.assertAllEqual(one, other)
        for one, other in zip(*(layer.tables for layer in layers), strict=True):
            for part, wanted in zip(self.rows(one), self.rows(other), strict=True):
                self.assertAllEqual(part, wanted)
        for number in (0, 2):
            stats = layers[0].tables[number].stats()
            self.assertGreater(stats["promoted"], 100)
            self.assertEqual(stats["host_rows"] > 0, tiers != "disk")
            self.assertEqual(stats["disk_rows"] > 0, "disk" in tiers)

    @parameterized.product(
        tiers=("arguments", "host", "disk", "host and disk"), pooling=("SUM", "MEAN")
    )
    def test_rows_of_bytes_are_those_of_the_cpu(self, tiers, pooling):
        specs = [(ROWS, DIM, CACHED), (ROWS, 8, CACHED)]
        options: dict[str, Any] = {
            "weights_precision": tbe.SparseType.INT8,
            "optimizer": tbe.OptimType.NONE,
            "initializer": None,
            "pooling_mode": pooling,
        }
        layers = (
            self.layer(specs, storage=[self.storage(tiers) for _ in specs], **options),
            self.layer(specs, on_cpu=True, **options),
        )
        rng = np.random.default_rng(SEED)
        for number, (_, dim, _) in enumerate(specs):
            rows = tbe.quantized_rows.quantize(rng.normal(size=[ROWS, dim]).astype("f"))
            for layer in layers:
                layer.tables[number].upsert(np.arange(ROWS), rows)
        for _ in range(5):
            offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, len(specs) * BAGS))])
            indices = tf.constant(rng.integers(0, ROWS, offsets[-1]))
            found = [layer(indices, tf.constant(offsets)) for layer in layers]
            self.assertAllEqual(*found)
        stats = layers[0].tables[0].stats()
        self.assertGreater(stats["host_rows"] + stats["disk_rows"], 0)

    @parameterized.parameters(
        ({"cache_sets": 0}, [608, 192]),  # 20% are 600 rows, 18.75 sets
        ({"cache_sets": 0, "cache_load_factor": 0.5}, [1504, 480]),
        ({"cache_sets": 4}, [128, 32]),
    )
    def test_fbgemm_says_how_large_a_cache_is(self, options, capacities):
        layer = self.layer(
            [(ROWS, DIM, CACHED), (None, DIM, CACHED), (None, DIM, CACHED), (ROWS, 2, "MANAGED")],
            policy=[None, TablePolicy(max_rows=960), None, None],
            **options,
        )
        tiers = [variable.memory_report().tiers for variable in layer.tables]
        self.assertEqual([each[0].capacity_rows for each in tiers[:2]], capacities)
        # Without a number of rows, or with another location, rows are in pinned memory.
        self.assertEqual([each[0].capacity_rows for each in tiers[2:]], [0, 0])
        self.assertFalse(layer.tables[2].table.options.has_tiers)

    def test_the_log_says_which_table_has_no_cache(self):
        for specs, said in (([(9, DIM, CACHED)], 0), ([(None, DIM, CACHED)], 1)):
            layer_arguments._say_once.cache_clear()
            with self.assertLogs(level="WARNING") as logs:
                tf.get_logger().warning("one line at least")
                self.layer(specs, cache_sets=0)
            lines = [one for one in logs.output if "MANAGED_CACHING has no effect" in one]
            self.assertLen(lines, said)

    def test_a_layer_is_saved_and_loaded(self):
        layer = self.layer([(ROWS, DIM, CACHED)], optimizer="ADAM")
        self.train(layer, steps=10)
        keys = np.arange(ROWS)
        wanted = layer.tables[0].lookup(keys)
        prefix = tf.train.Checkpoint(layer=layer).write(f"{self.get_temp_dir()}/c")
        layer.tables[0].clear()
        tf.train.Checkpoint(layer=layer).read(prefix)
        self.assertAllEqual(layer.tables[0].lookup(keys), wanted)


if __name__ == "__main__":
    tf.test.main()

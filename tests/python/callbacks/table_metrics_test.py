# SPDX-License-Identifier: Apache-2.0
"""`TableMetrics` finds, writes and logs metrics, and changes nothing."""

from __future__ import annotations

import pathlib
import re
import tempfile
import unittest.mock
from collections import defaultdict
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed import tbe
from tf_embed.callbacks import TableMetrics, table_metrics
from tf_embed.layers import DynamicEmbedding

IDS = np.random.default_rng(SEED).integers(0, 40, [48, 2])
LABELS = np.random.default_rng(SEED).normal(size=[48, 1])


def model_of(name: str = "items", **options: Any) -> keras.Model:
    keras.utils.set_random_seed(SEED)
    layer = DynamicEmbedding(3, name=name, initializer="normal", optimizer="adam")
    ids = keras.Input([2], dtype="int64")
    model = keras.Sequential([ids, layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False, **options)
    return model


def scalars(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """The step and the value of each scalar in the files of a folder."""
    found = defaultdict(list)

    def numbers(path: pathlib.Path) -> list[int]:
        """The numbers in the name of a file: a time, and a count that goes from 9 to 10."""
        return [int(number) for number in re.findall(r"\d+", path.name)]

    for path in sorted(folder.glob("events*"), key=numbers):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name in ("scalars", "")
                found[value.tag].append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


class CountedLookups:
    """Statistics of a table with a cache. Of ten lookups, one more than before is a hit."""

    def __init__(self) -> None:
        self.calls = 0
        self._stats_of = table_metrics.stats_of

    def __call__(self, table: Any) -> dict[str, Any]:
        self.calls += 1
        hits = self.calls * (self.calls - 1) // 2
        return {
            **self._stats_of(table),
            "cache_hits": hits,
            "cache_misses": 10 * self.calls - hits,
        }


class TableMetricsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    @pytest.mark.smoke
    @parameterized.parameters({}, {"run_eagerly": True})
    def test_training_is_the_same_with_it(self, **options):
        results = []
        for callbacks in ([], [TableMetrics(log_dir=self.folder(), every=2)]):
            model = model_of(**options)
            given = {"verbose": 0, "callbacks": callbacks}
            fitted = model.fit(IDS, LABELS, 8, epochs=2, shuffle=False, **given)
            losses = [*fitted.history["loss"], model.evaluate(IDS, LABELS, **given)]
            keys, rows = (part.numpy() for part in model.layers[0].variable.export())
            results.append((losses, np.sort(keys), rows[np.argsort(keys)]))
            self.assertEqual(list(fitted.history), ["loss"])
        for one, other in zip(*results, strict=True):
            self.assertAllEqual(one, other)

    @parameterized.parameters(
        (1, [2, 4, 6, 6, 8, 10, 12, 12]),
        (2, [2, 4, 6, 6, 8, 10, 12, 12]),
        (4, [4, 6, 6, 10, 12, 12]),  # the second call of an epoch has 2 batches
    )
    @pytest.mark.of_cpu("rows are in host memory")
    def test_it_writes_every_so_many_batches_and_at_the_end_of_an_epoch(self, per_execution, steps):
        folder = self.folder()
        model = model_of(steps_per_execution=per_execution)
        metrics = TableMetrics(log_dir=folder, every=2)
        model.fit(IDS, LABELS, 8, epochs=2, verbose=0, callbacks=[metrics])
        found = scalars(folder / "train")
        self.assertEqual([step for step, _ in found["items/rows"]], steps)
        self.assertEqual(found["items/rows"][-1][1], len(np.unique(IDS)))
        self.assertEqual(found["items/tiers/host/rows"], found["items/rows"])
        self.assertEqual(found["items/tiers/host/bytes"][-1][1], 36 * len(np.unique(IDS)))
        self.assertIn("items/index_bytes", found)
        self.assertNotIn("items/cache_hit_rate", found)
        self.assertFalse((folder / "validation").exists())
        model.fit(IDS, LABELS, 8, verbose=0, callbacks=[metrics])
        self.assertEqual(scalars(folder / "train")["items/rows"][-1][0], 18)

    @parameterized.parameters(
        ("repeated", [8, 8, 16, 16]),  # Keras trains 8 batches, not 6
        ("unknown", [6, 6, 12, 12]),
    )
    def test_it_counts_the_batches_that_an_epoch_had(self, kind, steps):
        folder = self.folder()
        model = model_of(steps_per_execution=4)
        data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(8)
        options = {}
        if kind == "repeated":
            data, options = data.repeat(), {"steps_per_epoch": 6}
        else:
            data = data.filter(lambda *batch: True)
        metrics = TableMetrics(log_dir=folder, every=5)
        model.fit(data, epochs=2, verbose=0, callbacks=[metrics], **options)
        found = [step for step, _ in scalars(folder / "train")["items/rows"]]
        self.assertEqual(found, steps)

    def test_it_counts_the_batches_of_an_epoch_that_goes_on(self):
        folder = self.folder()
        metrics = TableMetrics(log_dir=folder, every=2)
        metrics.set_model(model_of())
        metrics.on_train_begin()
        metrics.on_epoch_begin(3)
        for batch in (900, 901, 902):
            metrics.on_train_batch_begin(batch)
            metrics.on_train_batch_end(batch)
        metrics.on_epoch_end(3)
        metrics.on_train_end()
        self.assertEqual([step for step, _ in scalars(folder / "train")["items/rows"]], [2, 3])

    def test_evaluation_is_written_apart(self):
        folder = self.folder()
        model, metrics = model_of(), TableMetrics(log_dir=folder, every=1)
        model.fit(IDS, LABELS, 8, verbose=0, validation_data=(IDS, LABELS), callbacks=[metrics])
        self.assertEqual([step for step, _ in scalars(folder / "validation")["items/hits"]], [6])
        model.evaluate(IDS, LABELS, verbose=0, callbacks=[metrics])
        self.assertLen(scalars(folder / "validation")["items/hits"], 2)

    def test_the_hit_rate_is_in_the_logs(self):
        model, seen = model_of(), []
        later = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(logs.get("cache_hit_rate"))
        )
        counted = CountedLookups()
        with unittest.mock.patch.object(table_metrics, "stats_of", counted):
            history = model.fit(
                IDS, LABELS, 8, shuffle=False, verbose=0, callbacks=[TableMetrics(every=3), later]
            )
        # Calls 1 and 2 begin the intervals of training and of the epoch. Calls 3 and 4 end two.
        self.assertEqual(seen[:2], [None, None])
        self.assertAllClose(seen[2:], [0.15, 0.15, 0.15, 0.3])
        # From call 2 to the last, which is call 6.
        self.assertAllClose(history.history["cache_hit_rate"], [(15 - 1) / 40])

    def test_the_progress_bar_shows_it(self):
        shown = []

        class Bar(keras.callbacks.ProgbarLogger):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                shown.append(set(logs))

        with unittest.mock.patch.object(table_metrics, "stats_of", CountedLookups()):
            model_of().fit(IDS, LABELS, 8, callbacks=[TableMetrics(every=1), Bar()], verbose=2)
        self.assertEqual(shown[-1], {"loss", "cache_hit_rate"})

    def test_evaluation_returns_what_it_did(self):
        model = model_of(metrics=["mae"])
        model.fit(IDS, LABELS, 8, verbose=0)
        with unittest.mock.patch.object(table_metrics, "stats_of", CountedLookups()):
            result = model.evaluate(IDS, LABELS, 8, verbose=0, callbacks=[TableMetrics(every=1)])
        self.assertLen(result, 2)

    def test_tables_may_be_named(self):
        layer, v = DynamicEmbedding(2, name="layers"), tf_embed.Variable(name="variables")
        layer.build()
        model = model_of()
        for tables, names in (
            (v, {"variables"}),
            ([layer, v, layer.variable], {"layers", "variables"}),
            ([model.layers[0]], {"items"}),
            ([], set()),
            (None, {"items"}),
        ):
            folder = self.folder()
            metrics = TableMetrics(tables, log_dir=folder)
            model.fit(IDS, LABELS, verbose=0, callbacks=[metrics])
            found = {tag.split("/")[0] for tag in scalars(folder / "train")}
            self.assertEqual(found, names)

    def test_it_finds_tables_in_nested_layers_and_in_batched_ones(self):
        class Inner(keras.layers.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.items = DynamicEmbedding(2, name="nested", optimizer="sgd")

            def call(self, ids: Any) -> Any:
                return keras.ops.sum(self.items(ids), axis=[1, 2])[:, None]

        ids = keras.Input([2], dtype="int64")
        batched = tbe.TableBatchedEmbeddingBags(
            [(None, 2), (None, 3)], feature_table_map=[0, 1], table_names=["one", "two"]
        )
        pooled = batched([ids, ids])
        outputs = keras.layers.Dense(1)(pooled) + Inner()(ids)
        model = keras.Model(ids, outputs)
        model.compile("sgd", "mse", jit_compile=False)
        folder = self.folder()
        model.fit(IDS, LABELS, verbose=0, callbacks=[TableMetrics(log_dir=folder)])
        found = {tag.split("/")[0] for tag in scalars(folder / "train")}
        self.assertEqual(found, {"nested", "one", "two"})

    def test_what_makes_no_sense_is_refused(self):
        with self.assertRaisesRegex(TypeError, "`tables` must be tf_embed.Variables or layers"):
            TableMetrics([3])
        with self.assertRaisesRegex(TypeError, "`tables` must be a list or a tuple"):
            TableMetrics("items")
        with self.assertRaisesRegex(ValueError, "`every` must be at least 1. Received: every=0"):
            TableMetrics(every=0)
        with self.assertRaisesRegex(TypeError, "`log_dir` must be a str or a path"):
            TableMetrics(log_dir=3)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""`TableMetrics`: statistics of tables while a model is trained or evaluated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.callbacks.batch_count import BatchCount
from tf_embed.callbacks.summary_metadata import SCALAR
from tf_embed.snapshots.sources import sources_of, tables_in
from tf_embed.table.table import Table
from tf_embed.variable.memory_report import memory_report
from tf_embed.variable.row_statistics import stats_of

HIT_RATE = "cache_hit_rate"


class TableMetrics(keras.callbacks.Callback):
    """Writes statistics of tables to TensorBoard, and the hit rate to the progress bar.

    Every `every` batches, and at the end of an epoch and of an evaluation, it writes these scalars
    of each table to `log_dir`, in the subfolders "train" and "validation":

        <table>/<name>                     each number of `Variable.stats()`, without None
        <table>/interval/cache_hit_rate    the ratio since the last write, if there was a lookup
        <table>/tiers/<tier>/rows          rows in each tier, "gpu", "host" or "disk"
        <table>/tiers/<tier>/bytes         bytes in each tier

    The step of a scalar is the number of batches that this callback has seen in training.

    In training and evaluation it also adds "cache_hit_rate" to the `logs` of each batch, for the
    progress bar and later callbacks. It is the rate of the last interval, over all tables together.
    In the logs of an epoch, and so in the `History` of `fit`, it is the rate of the whole epoch,
    validation included. Tables without a `path` in their `storage` have no hit rate.

    The callback reads counters between steps and changes nothing. It ignores `predict`.
    keras.callbacks.TensorBoard draws no rows of tables: their histograms are empty.

    Args:
        tables: The `tf_embed.Variable` or layer with tables, or a list of these. Default: None, the
            tables of all layers of the model that are among its weights.
        log_dir: A folder for TensorBoard, a str or an os.PathLike. Default: None, nothing is
            written.
        every: Number of batches between two writes, an int from 1. Default: 100.

    Raises:
        TypeError: If `tables` holds something else, `log_dir` is not a path, or `every` is not an
            int.
        ValueError: If `every` is less than 1, or `log_dir` is empty.

    Example:
        >>> import keras, numpy as np, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, optimizer="sgd")
        >>> model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> metrics = tf_embed.callbacks.TableMetrics(every=10)
        >>> x, y = np.array([[1], [2]]), np.array([0.0, 1.0])
        >>> history = model.fit(x, y, callbacks=[metrics], verbose=0)
    """

    def __init__(self, tables: Any = None, log_dir: Any = None, every: int = 100) -> None:
        super().__init__()
        self._given = None if tables is None else sources_of(tables)
        self._log_dir = None if log_dir is None else validation.path_of(log_dir, "log_dir")
        self._every = validation.int_in(every, "every")
        self._writers: dict[str, Any] = {}
        self._seen = 0  # training batches in all epochs and calls of fit
        self._batches = BatchCount()
        self._training = _Interval()
        self._epoch = _Interval()
        self._evaluation = _Interval()

    # Training.

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts an interval."""
        self._training.begin(self._tables(), self._seen)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts an epoch's interval."""
        self._batches.begin_epoch(self.model)
        self._epoch.begin(self._tables(), self._seen)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins to count batches."""
        self._batches.begin(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes if `every` batches have passed, and puts the hit rate into the logs."""
        self._seen += self._batches.end(batch, self.model, self.params)
        if self._seen - self._training.step >= self._every:
            self._write(self._training, "train", self._seen)
        self._training.put_rate(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes, and puts the epoch's hit rate into the logs."""
        self._write(self._training, "train", self._seen)
        self._epoch.end(self._tables(), self._seen)
        self._epoch.put_rate(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the files."""
        self._close()

    # Evaluation.

    def on_test_begin(self, logs: Any = None) -> None:
        """Starts an interval of evaluation."""
        self._evaluation.begin(self._tables(), 0)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Updates the hit rate every `every` batches, and puts it into the logs."""
        if batch + 1 - self._evaluation.step >= self._every:
            self._evaluation.end(self._tables(), batch + 1)
        self._evaluation.put_rate(logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Writes."""
        self._write(self._evaluation, "validation", self._seen)
        for writer in self._writers.values():
            writer.flush()

    def _tables(self) -> list[Table]:
        """Returns the tables. They are collected at each call, because layers may be built late."""
        sources: Iterable[Any] = [] if self.model is None else [self.model]
        if self._given is not None:
            sources = self._given
        return tables_in(sources)

    def _write(self, interval: _Interval, name: str, step: int) -> None:
        """Ends an interval and writes its statistics."""
        tables = self._tables()
        stats = interval.end(tables, step)
        if self._log_dir is None or not tables:
            return
        if name not in self._writers:
            folder = os.path.join(self._log_dir, name)
            self._writers[name] = tf.summary.create_file_writer(folder)
        with self._writers[name].as_default():
            for table, numbers, rate in zip(tables, stats, interval.rates, strict=True):
                _write_table(table, numbers, rate, step)

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class _Interval:
    """The batches between two reads of the statistics.

    Attributes:
        step: The batch at which the current interval began.
        rate: The hit rate of the last interval over all tables, or None if it had no lookup.
        rates: The hit rate of each table.
    """

    def __init__(self) -> None:
        self.step = 0
        self.rate: float | None = None
        self.rates: list[float | None] = []
        self._before: dict[int, tuple[int, int]] = {}

    def begin(self, tables: Sequence[Table], step: int) -> None:
        """Begins an interval and drops the counts of earlier intervals."""
        self._before.clear()
        self.end(tables, step)
        self.rate = None

    def end(self, tables: Sequence[Table], step: int) -> list[dict[str, Any]]:
        """Ends the current interval, begins the next, and returns each table's statistics."""
        stats = [stats_of(table) for table in tables]
        hits, misses, self.rates = 0, 0, []
        for table, numbers in zip(tables, stats, strict=True):
            now = numbers["cache_hits"], numbers["cache_misses"]
            # A table that was made within the interval counts from 0.
            before = self._before.get(id(table), (0, 0))
            self._before[id(table)] = now
            self.rates.append(_rate(now[0] - before[0], now[1] - before[1]))
            hits, misses = hits + now[0] - before[0], misses + now[1] - before[1]
        self.rate = _rate(hits, misses)
        self.step = step
        return stats

    def put_rate(self, logs: dict[str, Any] | None) -> None:
        """Puts the rate of the last interval into the logs, if there is one."""
        if logs is not None and self.rate is not None:
            logs[HIT_RATE] = self.rate


def _rate(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses > 0 else None


def _write_table(table: Table, stats: dict[str, Any], rate: float | None, step: int) -> None:
    """Writes the scalars of a table to the default writer."""
    name = table.options.name
    scalars = {f"{name}/{one}": number for one, number in stats.items()}
    if rate is not None:
        scalars[f"{name}/interval/{HIT_RATE}"] = rate
    for tier in memory_report(table).tiers:
        scalars[f"{name}/tiers/{tier.name}/rows"] = tier.rows
        scalars[f"{name}/tiers/{tier.name}/bytes"] = tier.bytes
    for tag, number in scalars.items():
        if number is not None:
            tf.summary.write(tag, float(number), step, metadata=SCALAR)

# SPDX-License-Identifier: Apache-2.0
"""`TableProjector`: rows of tables in TensorBoard."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.callbacks.summary_metadata import HISTOGRAM
from tf_embed.callbacks.used_rows import RowsWithNumbers, used_rows
from tf_embed.snapshots.sources import sources_of, tables_in
from tf_embed.table.table import Table

_RUN = "rows"  # the subfolder, which TensorBoard shows as a run
_MOST_ROWS = 100_000  # TensorBoard's projector shows no more
_BUCKETS = 30  # of a histogram, as by tf.summary.histogram
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_MOST_CHARACTERS = 80  # of a table's name in the name of a file


class TableProjector(keras.callbacks.Callback):
    """Shows the most used rows of tables in TensorBoard's embedding projector, with their keys.

    It also writes a histogram of the norms of all rows of each table, `<table>/row_norm`, whose
    step is the epoch. Everything is in the subfolder "rows" of `log_dir`, so it may be the folder
    of `keras.callbacks.TensorBoard` and of `TableMetrics` too. The package tensorboard is needed to
    see the rows, not to write them.

    The most used rows are those with the highest count of uses. A table whose policy keeps no
    count (see `TablePolicy`) is judged by its scores, otherwise by the last use. Without any
    statistics, the rows with the largest norms are shown, because training moves a row each time
    that it is used. The projector can color rows by these numbers. Rows with a NaN or an infinite
    weight are left out.

    All rows are read, block by block. If the weights of a table take more than 256 MiB, or are in
    several tiers, they are first written to a file in `log_dir`, or in the folder for temporary
    files if `log_dir` is not on this machine. The file is removed at once. The histogram of a
    table with over a million rows is of a million evenly spaced rows.

    TensorBoard reads the rows when it starts and keeps them; restart it to see later rows. If a
    table is sharded over workers, each worker shows its own rows, and needs its own `log_dir`.

    Args:
        log_dir: A folder for TensorBoard, a str or an os.PathLike.
        tables: The `tf_embed.Variable` or layer with tables, or a list of these. Default: None, the
            tables of all layers of the model that are among its weights.
        rows: The most rows of a table to show, an int from 1 to 100,000, the most that the
            projector takes. Default: 1000.
        every_n_epochs: Number of epochs between two writes, an int from 1. Rows are also written
            when training ends. Default: 1.

    Raises:
        TypeError: If `tables` holds something else, `log_dir` is not a path, or a number is not an
            int.
        ValueError: If a number is out of range, or `log_dir` is empty. When training begins, if a
            table has rows of strings, or in Redis, which lists no rows.

    Example:
        >>> import keras, numpy as np, os, tempfile, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, optimizer="sgd", name="items")
        >>> model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> log_dir = tempfile.mkdtemp()
        >>> projector = tf_embed.callbacks.TableProjector(log_dir)
        >>> x, y = np.array([[1], [2]]), np.array([0.0, 1.0])
        >>> history = model.fit(x, y, callbacks=[projector], verbose=0)
        >>> with open(os.path.join(log_dir, "rows", "0_items_keys.tsv")) as file:
        ...     sorted(line.split()[0] for line in file)
        ['1', '2', 'key']
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        tables: Any = None,
        rows: int = 1000,
        every_n_epochs: int = 1,
    ) -> None:
        super().__init__()
        self._folder = os.path.join(validation.path_of(log_dir, "log_dir"), _RUN)
        self._given = None if tables is None else sources_of(tables)
        self._rows = validation.int_in(rows, "rows", most=_MOST_ROWS)
        self._every = validation.int_in(every_n_epochs, "every_n_epochs")
        self._writer: Any = None
        self._unwritten: int | None = None  # the last epoch, if its rows are not written

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the tables that exist."""
        self._unwritten = None
        self._tables()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes rows if `every_n_epochs` epochs have passed."""
        self._unwritten = epoch
        if (epoch + 1) % self._every == 0:
            self._write(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes rows unless they are written, and closes the files."""
        if self._unwritten is not None:
            self._write(self._unwritten)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _tables(self) -> list[Table]:
        """Returns the tables. They are collected at each call, because layers may be built late."""
        sources: Iterable[Any] = [self.model] if self._given is None else self._given
        tables = tables_in(sources)
        for table in tables:
            options = table.options
            if options.value_dtype == tf.string or options.redis is not None:
                kind = "rows of strings" if options.redis is None else "its rows in Redis"
                raise ValueError(
                    "`tables` must have rows of numbers that a table can list. Received: "
                    f"{options.name!r}, which has {kind}"
                )
        return tables

    def _write(self, epoch: int) -> None:
        self._unwritten = None
        tables = self._tables()
        if not tables:
            return
        tf.io.gfile.makedirs(self._folder)
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        config = []
        for number, table in enumerate(tables):
            used, norms = used_rows(table, self._rows, self._folder)
            if used is None or not used.keys.size:  # TensorBoard can't read a file without rows
                continue
            name = table.options.name
            file_name = f"{number}_{_NOT_IN_NAMES.sub('_', name)[:_MOST_CHARACTERS]}"
            self._put(f"{file_name}.tsv", _text_of_rows(used.rows))
            self._put(f"{file_name}_keys.tsv", _text_of_keys(used))
            config.append(_embedding(name, file_name))
            with self._writer.as_default():
                _write_histogram(f"{name}/row_norm", norms, epoch)
        self._put("projector_config.pbtxt", "".join(config))
        self._writer.flush()

    def _put(self, name: str, text: str) -> None:
        """Replaces a file, which TensorBoard may be reading."""
        path = os.path.join(self._folder, name)
        with tf.io.gfile.GFile(path + ".new", "w") as file:
            file.write(text)
        tf.io.gfile.rename(path + ".new", path, overwrite=True)


def _embedding(name: str, file_name: str) -> str:
    """The entry of a table in TensorBoard's ProjectorConfig, a message of protobuf as text."""
    # A string of JSON is a string of protobuf, because a table's name has no control characters.
    fields = {
        "tensor_name": name,
        "tensor_path": f"{file_name}.tsv",
        "metadata_path": f"{file_name}_keys.tsv",
    }
    lines = [f"  {field}: {json.dumps(one, ensure_ascii=False)}" for field, one in fields.items()]
    return "\n".join(["embeddings {", *lines, "}\n"])


def _text_of_rows(rows: np.ndarray) -> str:
    text = io.StringIO()
    np.savetxt(text, rows, fmt="%.7g", delimiter="\t")
    return text.getvalue()


def _text_of_keys(used: RowsWithNumbers) -> str:
    """A line for each row after a line of column names, which TensorBoard wants of two or more."""
    lines = ["\t".join(["key", *used.numbers])]
    for key, *numbers in zip(used.keys.tolist(), *used.numbers.values(), strict=True):
        lines.append("\t".join([_text_of_key(key), *map(_text_of_number, numbers)]))
    return "\n".join([*lines, ""])


def _text_of_number(number: int | float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.7g}"


def _text_of_key(key: int | bytes) -> str:
    """A key as text without tabs and line ends; distinct keys have distinct texts."""
    if not isinstance(key, bytes):
        return str(key)
    return "".join(map(_text_of_character, key.decode(errors="surrogateescape")))


def _text_of_character(one: str) -> str:
    if one.isprintable() and one != "\\":
        return one
    if "\udc80" <= one <= "\udcff":  # a byte that is not of UTF-8
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode()


def _write_histogram(tag: str, numbers: np.ndarray, step: int) -> None:
    """Writes a histogram to the default writer: rows of [left, right, count], float64."""
    counts, edges = np.histogram(numbers, _BUCKETS)
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    tf.summary.write(tag, tf.constant(buckets, tf.float64), step, metadata=HISTOGRAM)

# SPDX-License-Identifier: Apache-2.0
"""The ops that describe, read and write saved rows, block by block, typed.

For eager execution, on the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


class DescribedRows(NamedTuple):
    """A save, without its rows.

    Attributes:
        numbers: Numbers of `SaveNumbers`, int64.
        names: Names of the dtypes of keys and of values, and of the folder of the save since which
            it has the changes; string [3].
        meta: State of the table outside its rows, int64 [m].
    """

    numbers: tf.Tensor
    names: tf.Tensor
    meta: tf.Tensor


class SaveNumbers(NamedTuple):
    """The numbers of a described save.

    Attributes:
        save: The number of the save, by its bits.
        milliseconds: Its time since 1970.
        since: The number of the save since which it has the changes. 0: it has all rows.
        processes: How many processes saved.
        files: Number of files of rows.
        links: Number of linked files.
        rows: Number of rows in all files.
        bytes: Size of all files.
        statistics: The bits of the statistics of a row.
        step: The step of the table's clock. 0: none.
        epoch: The epoch of the table's clock.
    """

    save: int
    milliseconds: int
    since: int
    processes: int
    files: int
    links: int
    rows: int
    bytes: int
    statistics: int
    step: int
    epoch: int


class ReadRows(NamedTuple):
    """A block of rows.

    Attributes:
        keys: [n].
        weights: [n, dim].
        slots: [n, slots of a row].
        statistics: The words of the statistics, int64 [n, statistics of a row].
        kept: The bits of these statistics, int64 scalar.
    """

    keys: tf.Tensor
    weights: tf.Tensor
    slots: tf.Tensor
    statistics: tf.Tensor
    kept: tf.Tensor


class OpenRows(NamedTuple):
    """Open files of rows. Every byte has been checked.

    Attributes:
        rows: The files, a variant scalar.
        counts: Numbers of blocks, of rows, of weights in a row, of slots in a row; int64 [4].
        types: Names of the dtypes of keys and of values, string [2].
        meta: State of the table outside its rows, int64 [m]; m is 0 if no table saved them.
    """

    rows: tf.Tensor
    counts: tf.Tensor
    types: tf.Tensor
    meta: tf.Tensor


def slot_dtype_of(value_dtype: tf.DType) -> tf.DType:
    """The dtype of slots in files: the dtype in which rules compute."""
    return tf.float64 if value_dtype == tf.float64 else tf.float32


def describe_rows(folder: str, file_name: str) -> DescribedRows:
    """Finds saved rows and describes them, without reading them."""
    with tf.device("/CPU:0"):
        return DescribedRows(*_raw.tf_embed_describe_rows(folder=folder, file_name=file_name))


def open_rows(folder: str, file_name: str, *, alone: bool = False) -> OpenRows:
    """Finds saved rows and checks them.

    Args:
        alone: Whether to leave out the saves that a save of changes builds on.
    """
    with tf.device("/CPU:0"):
        return OpenRows(
            *_raw.tf_embed_open_row_stream(folder=folder, file_name=file_name, alone=alone)
        )


def read_rows(
    rows: tf.Tensor, block: int, *, key_dtype: tf.DType, value_dtype: tf.DType
) -> ReadRows:
    """Reads a block of rows."""
    with tf.device("/CPU:0"):
        return ReadRows(
            *_raw.tf_embed_read_row_stream(
                rows=rows,
                block=tf.constant(block, tf.int64),
                key_dtype=key_dtype,
                value_dtype=value_dtype,
                slot_dtype=slot_dtype_of(value_dtype),
            )
        )


def begin_rows(
    folder: str, file_name: str, meta: tf.Tensor, *, value_dtype: tf.DType, dim: int
) -> tf.Tensor:
    """Begins a save; a variant scalar. If it is dropped unfinished, its file is removed.

    Args:
        folder: The folder of the files.
        file_name: The stem of the files' names.
        meta: The `meta` of an `OpenRows`, to keep its slots and seed; or int64 [0].
        value_dtype: Dtype of weights.
        dim: How many weights a row has.
    """
    with tf.device("/CPU:0"):
        return _raw.tf_embed_begin_row_stream(
            folder=folder, file_name=file_name, meta=meta, value_dtype=value_dtype, dim=dim
        )


def append_rows(stream: tf.Tensor, keys: tf.Tensor, weights: tf.Tensor, slots: tf.Tensor) -> None:
    """Writes rows with distinct int64 keys."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_append_row_stream(stream=stream, keys=keys, weights=weights, slots=slots)


def finish_rows(stream: tf.Tensor) -> None:
    """Ends a save, which replaces an earlier save of the same name."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_finish_row_stream(stream=stream)

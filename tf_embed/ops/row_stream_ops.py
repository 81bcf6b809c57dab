# SPDX-License-Identifier: Apache-2.0
"""The ops that read and write saved rows block by block, typed. For eager execution, on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


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


def open_rows(folder: str, file_name: str) -> OpenRows:
    """Finds saved rows and checks them."""
    with tf.device("/CPU:0"):
        return OpenRows(*_raw.tf_embed_open_row_stream(folder=folder, file_name=file_name))


def read_rows(
    rows: tf.Tensor, block: int, *, key_dtype: tf.DType, value_dtype: tf.DType
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Reads a block of rows: keys [n], weights [n, dim] and slots [n, slots]."""
    with tf.device("/CPU:0"):
        keys, weights, slots = _raw.tf_embed_read_row_stream(
            rows=rows,
            block=tf.constant(block, tf.int64),
            key_dtype=key_dtype,
            value_dtype=value_dtype,
            slot_dtype=slot_dtype_of(value_dtype),
        )
    return keys, weights, slots


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

# SPDX-License-Identifier: Apache-2.0
"""The ops by which a table follows another table, typed."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


class PublishedRows(NamedTuple):
    """Open files of a save. Every byte has been checked.

    Attributes:
        rows: The files, a variant scalar, as `row_file_ops.load_saved_rows` takes them.
        num_blocks: How many blocks of rows they have, int64 scalar.
    """

    rows: tf.Tensor
    num_blocks: tf.Tensor


def open_published_rows(handle: tf.Tensor, folder: str, file_name: str, save: int) -> PublishedRows:
    """Finds and checks a save, without the saves that it builds on. The table is not changed.

    Args:
        file_name: The stem of the files' names.
        save: The number of the save.
    """
    # Numbers of saves are unsigned, and ops take int64 of the same bits.
    signed = save - 2**64 if save >= 2**63 else save
    return PublishedRows(
        *_raw.tf_embed_open_published_rows(
            table=handle, folder=folder, file_name=file_name, save=tf.constant(signed, tf.int64)
        )
    )


def begin_published_rows(handle: tf.Tensor, rows: tf.Tensor, *, key_dtype: tf.DType) -> tf.Tensor:
    """Prepares a table for a save; returns the keys [n] to remove."""
    return _raw.tf_embed_begin_published_rows(table=handle, rows=rows, key_dtype=key_dtype)

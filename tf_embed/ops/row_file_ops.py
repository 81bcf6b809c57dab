# SPDX-License-Identifier: Apache-2.0
"""The ops that save a table's rows as files and load them, typed."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()

# Owners that are no shard: the table's own rule decides, or the row is not loaded.
TABLES_CHOICE = -2
LEFT_OUT = -3


@dataclasses.dataclass(frozen=True)
class Place:
    """The location of a save and the process that wrote it.

    Attributes:
        folder: A path, a string scalar.
        folder_variable: An environment variable; if it is set when the op runs, it is the folder.
            Empty: no variable.
        file_name: The stem of the files' names.
        rank: Which process this is.
        processes: How many there are.
    """

    folder: tf.Tensor
    folder_variable: str
    file_name: str
    rank: int
    processes: int

    def arguments(self) -> dict[str, Any]:
        """The arguments of the ops."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Part(NamedTuple):
    """This process's part of a save.

    Attributes:
        save: The number of the save.
        rank: Which process this is.
        processes: How many there are.
    """

    save: int
    rank: int
    processes: int

    def arguments(self) -> dict[str, tf.Tensor]:
        """The arguments of the ops."""
        return {name: tf.constant(value, tf.int64) for name, value in self._asdict().items()}


class SavedRows(NamedTuple):
    """Open files of rows. Every byte has been checked.

    Attributes:
        rows: The files, a variant scalar.
        num_blocks: How many blocks of rows they have, int64 scalar.
        by_key: Whether another number of processes saved them, bool scalar. Each process then picks
            its rows by key.
        waiting: Keys that wait for a row in the table since then, [n]. Empty for filters and
            strings.
    """

    rows: tf.Tensor
    num_blocks: tf.Tensor
    by_key: tf.Tensor
    waiting: tf.Tensor


def save_rows(
    handle: tf.Tensor,
    place: Place,
    *,
    buffer_bytes: int,
    links: bool = False,
    with_slots: bool = True,
) -> tf.Operation | None:
    """Writes a consistent snapshot of all rows; files of a table over disk may be linked."""
    return _raw.tf_embed_save_rows(
        table=handle,
        buffer_bytes=buffer_bytes,
        links=links,
        with_slots=with_slots,
        **place.arguments(),
    )


def rows_saved(handle: tf.Tensor) -> tf.Tensor:
    """The rows that saves have written so far, int64 scalar. Does not wait for a running save."""
    return _raw.tf_embed_rows_saved(table=handle)


def open_saved_rows(
    handle: tf.Tensor,
    place: Place,
    *,
    whole: bool,
    with_slots: bool,
    key_dtype: tf.DType,
) -> SavedRows:
    """Finds and checks saved rows, and prepares the table for them."""
    return SavedRows(
        *_raw.tf_embed_open_saved_rows(
            table=handle,
            whole=whole,
            with_slots=with_slots,
            key_dtype=key_dtype,
            **place.arguments(),
        )
    )


def forget_waiting(handle: tf.Tensor, keys: tf.Tensor) -> tf.Operation | None:
    """Forgets the counts of keys [n] that wait for a row."""
    return _raw.tf_embed_forget_waiting(table=handle, keys=keys)


def saved_row_counts(handle: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The number of rows in each block of files, int64."""
    return _raw.tf_embed_saved_row_counts(table=handle, rows=rows)


def saved_keys(
    handle: tf.Tensor, rows: tf.Tensor, block: tf.Tensor, *, key_dtype: tf.DType
) -> tf.Tensor:
    """The keys of a block of rows, [n]."""
    return _raw.tf_embed_saved_keys(table=handle, rows=rows, block=block, key_dtype=key_dtype)


def load_saved_rows(
    handle: tf.Tensor, rows: tf.Tensor, block: tf.Tensor, owners: tf.Tensor
) -> tf.Operation | None:
    """Puts the rows of a block into the table.

    Args:
        owners: The shard of each key, int32; TABLES_CHOICE, or LEFT_OUT for a row that is not to
            be loaded. Or int32 [0], which is the table's choice for all.
    """
    return _raw.tf_embed_load_saved_rows(table=handle, rows=rows, block=block, owners=owners)


def save_part(
    handle: tf.Tensor,
    folder: str,
    file_name: str,
    part: Part,
    *,
    buffer_bytes: int,
    with_slots: bool = True,
) -> None:
    """Writes all rows of a table, as they are now, as a part of a save."""
    with tf.device("/CPU:0"):
        arguments = part.arguments()
    # Outside of the block, because the op runs on the device of its table.
    _raw.tf_embed_save_rows_part(
        table=handle,
        folder=folder,
        file_name=file_name,
        buffer_bytes=buffer_bytes,
        with_slots=with_slots,
        **arguments,
    )

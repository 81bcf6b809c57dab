# SPDX-License-Identifier: Apache-2.0
"""The ops of snapshots, typed. For eager execution, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def begin_snapshot(handles: Sequence[tf.Tensor], since: Sequence[int]) -> tf.Tensor:
    """Begins a snapshot of tables that keep track of changes, at this moment; a variant scalar.

    Args:
        handles: The tables.
        since: For each the number of the save since which changes are wanted; 0: all rows.
    """
    with tf.device("/CPU:0"):
        return _raw.tf_embed_begin_snapshot(
            tables=list(handles), since=tf.constant(list(since), tf.int64)
        )


def write_snapshot(
    snapshot: tf.Tensor, number: int, folder: str, file_name: str, since_name: str
) -> int:
    """Writes one of the tables of a snapshot to files; the number of the save.

    Args:
        snapshot: What `begin_snapshot` gave.
        number: Which of the tables, from 0.
        folder: Where the files are put.
        file_name: What they are named after.
        since_name: The name of the folder beside it that these are changes of; "" if it has all.
    """
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_write_snapshot(
            snapshot=snapshot,
            number=tf.constant(number, tf.int64),
            folder=folder,
            file_name=file_name,
            since_name=since_name,
        )
    return int(save)


def note_snapshot(handle: tf.Tensor, save: int) -> None:
    """Says that a table has just the rows of a save."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_note_snapshot(table=handle, save=tf.constant(save, tf.int64))


def fold_rows(folder: str, file_name: str, to_folder: str, to_file_name: str) -> int:
    """Writes a save of changes and all that it is changes of as one; the number of the new save."""
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_fold_rows(
            folder=folder, file_name=file_name, to_folder=to_folder, to_file_name=to_file_name
        )
    return int(save)


def put_file(folder: str, file_name: str, text: str) -> None:
    """Puts a small file in a folder at once."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_put_file(folder=folder, file_name=file_name, text=text)

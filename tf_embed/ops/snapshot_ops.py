# SPDX-License-Identifier: Apache-2.0
"""The ops of snapshots, typed. For eager execution, on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import row_file_ops

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
    snapshot: tf.Tensor,
    number: int,
    folder: str,
    file_name: str,
    since_name: str,
    part: row_file_ops.Part | None = None,
    *,
    with_slots: bool = True,
) -> int:
    """Writes one of the tables of a snapshot to files; the number of the save.

    Args:
        snapshot: The result of `begin_snapshot`.
        number: Which of the tables, from 0.
        folder: The folder of the files.
        file_name: The stem of the files' names.
        since_name: The name of the folder beside it that these are changes of; "" if it has all.
        part: Which part of the save this is. None: it is the whole one.
        with_slots: Whether the optimizer slots of rows are written.
    """
    with tf.device("/CPU:0"):
        arguments = {
            "snapshot": snapshot,
            "number": tf.constant(number, tf.int64),
            "folder": folder,
            "file_name": file_name,
            "since_name": since_name,
            "with_slots": with_slots,
        }
        if part is None:
            return int(_raw.tf_embed_write_snapshot(**arguments))
        return int(_raw.tf_embed_write_snapshot_part(**arguments, **part.arguments()))


def join_rows(folder: str, file_name: str, processes: int) -> int:
    """Makes one save of the parts of processes; its number."""
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_join_rows(
            folder=folder, file_name=file_name, processes=tf.constant(processes, tf.int64)
        )
    return int(save)


def note_snapshot(handle: tf.Tensor, save: int) -> None:
    """Says that a table has just the rows of a save, by its number."""
    # Numbers of saves are unsigned, and ops take int64 of the same bits.
    signed = save - 2**64 if save >= 2**63 else save
    with tf.device("/CPU:0"):
        _raw.tf_embed_note_snapshot(table=handle, save=tf.constant(signed, tf.int64))


def drop_snapshot(handle: tf.Tensor, save: int) -> None:
    """Says that no snapshot will have the changes since a save, by its number."""
    signed = save - 2**64 if save >= 2**63 else save
    with tf.device("/CPU:0"):
        _raw.tf_embed_drop_snapshot(table=handle, save=tf.constant(signed, tf.int64))


def fold_rows(folder: str, file_name: str, to_folder: str, to_file_name: str) -> int:
    """Writes a save of changes and all that it is changes of as one; the number of the new save."""
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_fold_rows(
            folder=folder, file_name=file_name, to_folder=to_folder, to_file_name=to_file_name
        )
    return int(save)


def aside_of(file_name: str) -> re.Pattern[str]:
    """The names under which `put_file` writes a file before it is complete.

    A process that is killed leaves one. The digits are random (`Folder::Replace`).

    Args:
        file_name: A pattern of the file's name.
    """
    return re.compile(rf"(?:{file_name})\.[0-9a-f]{{16}}\.aside")


def put_file(folder: str, file_name: str, text: str | bytes) -> None:
    """Puts a small file in a folder at once."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_put_file(folder=folder, file_name=file_name, text=text)

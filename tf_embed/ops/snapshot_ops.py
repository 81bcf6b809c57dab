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
    """Begins a snapshot, as of now, of tables that track changes; a variant scalar.

    Args:
        since: For each table, the save since which changes are wanted, by number; 0: all rows.
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
    """Writes a table of a snapshot to files; returns the number of the save.

    Args:
        snapshot: The result of `begin_snapshot`.
        number: Which of the tables, from 0.
        folder: The folder of the files.
        file_name: The stem of the files' names.
        since_name: The name of the folder beside it that the changes build on; "" if the save is
            complete.
        part: Which part of the save this is. None: the whole save.
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
    """Joins the parts of processes to one save; returns its number."""
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_join_rows(
            folder=folder, file_name=file_name, processes=tf.constant(processes, tf.int64)
        )
    return int(save)


def note_snapshot(handle: tf.Tensor, save: int) -> None:
    """Tells a table that its rows equal a save, by its number."""
    # Numbers of saves are unsigned, and ops take int64 of the same bits.
    signed = save - 2**64 if save >= 2**63 else save
    with tf.device("/CPU:0"):
        _raw.tf_embed_note_snapshot(table=handle, save=tf.constant(signed, tf.int64))


def drop_snapshot(handle: tf.Tensor, save: int) -> None:
    """Tells a table that no later snapshot will build on a save, by its number."""
    signed = save - 2**64 if save >= 2**63 else save
    with tf.device("/CPU:0"):
        _raw.tf_embed_drop_snapshot(table=handle, save=tf.constant(signed, tf.int64))


def fold_rows(folder: str, file_name: str, to_folder: str, to_file_name: str) -> int:
    """Merges a save of changes with the saves that it builds on; the number of the new save."""
    with tf.device("/CPU:0"):
        save = _raw.tf_embed_fold_rows(
            folder=folder, file_name=file_name, to_folder=to_folder, to_file_name=to_file_name
        )
    return int(save)


def aside_of(file_name: str) -> re.Pattern[str]:
    """The names under which `put_file` writes a file before it is complete.

    A process that is killed leaves such a file. The digits are random (`Folder::Replace`).

    Args:
        file_name: A pattern of the file's name.
    """
    return re.compile(rf"(?:{file_name})\.[0-9a-f]{{16}}\.aside")


def put_file(folder: str, file_name: str, text: str | bytes) -> None:
    """Writes a small file into a folder atomically."""
    with tf.device("/CPU:0"):
        _raw.tf_embed_put_file(folder=folder, file_name=file_name, text=text)

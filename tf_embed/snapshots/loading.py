# SPDX-License-Identifier: Apache-2.0
"""Checks the files of a snapshot, and loads them into tables: all of them or none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_embed.snapshots import manifest
from tf_embed.snapshots.manifest import SnapshotInfo, TableFiles
from tf_embed.table.table import Table
from tf_embed.variable.row_files import RowFiles


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of one table of a snapshot, for one table.

    Attributes:
        table: The table that gets them.
        files: Their files.
        has: Says of keys [n] which of them `table` is to have, bool [n]. None: all.
    """

    table: Table
    files: TableFiles
    has: Callable[[tf.Tensor], tf.Tensor] | None = None


def check_chain(folder: str, info: SnapshotInfo) -> None:
    """Refuses a snapshot whose files, or those it is changes of, are others than it says.

    Args:
        folder: The folder of the snapshot; those that it is changes of are beside it.
        info: What its file says.

    Raises:
        tf.errors.OpError: If they are, or are not there.
    """
    manifest.check_saves(folder, info)
    seen = {info.name}
    while info.since is not None and info.since not in seen:
        seen.add(info.since)
        base = os.path.join(os.path.dirname(folder), info.since)
        if not manifest.exists(base):
            raise tf.errors.DataLossError(
                None,
                None,
                f"'{folder}' has changes of a save in '{base}', which is not there any more.",
            )
        info = manifest.read(base)
        manifest.check_saves(base, info)


def load_parts(folder: str, info: SnapshotInfo, parts: Sequence[Part]) -> None:
    """Loads rows into tables that are empty, and still are if this fails.

    Args:
        folder: The folder of the snapshot.
        info: What its file says.
        parts: What goes where.

    Raises:
        tf.errors.OpError: If files are damaged, missing, or of another kind of table.
    """
    check_chain(folder, info)
    try:
        for part in parts:
            rows = RowFiles(part.table, is_named=True)
            rows.load_all(folder, part.files.file_name, part.has)
    except BaseException:  # also an interrupt: some tables would have rows, and others none
        for part in parts:
            part.table.clear()
        raise

# SPDX-License-Identifier: Apache-2.0
"""Validation of a snapshot's files, and all-or-nothing loading into tables."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_embed.saving.progress import RowCalls
from tf_embed.snapshots import manifest
from tf_embed.snapshots.manifest import SnapshotInfo, TableFiles
from tf_embed.table.collective_calls import CollectiveCalls, agree
from tf_embed.table.table import Table
from tf_embed.variable.row_files import RowFiles


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of a table of a snapshot, and the table that they are loaded into.

    Attributes:
        table: The table that receives the rows.
        files: The files of the rows.
        has: A filter: maps keys [n] to bool [n], true for the keys to load. None: all keys.
    """

    table: Table
    files: TableFiles
    has: Callable[[tf.Tensor], tf.Tensor] | None = None


def check_chain(folder: str, info: SnapshotInfo) -> list[SnapshotInfo]:
    """Checks that the files of a snapshot and of its base snapshots are from their saves.

    Args:
        folder: The folder of the snapshot. The snapshots that it builds on are its siblings.
        info: The manifest of the snapshot.

    Returns:
        The snapshot, and the snapshots that it builds on.

    Raises:
        tf.errors.OpError: If files are missing, or from another save.
    """
    manifest.check_saves(folder, info)
    chain = [info]
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
        chain.append(info)
    return chain


def load_parts(
    folder: str,
    info: SnapshotInfo,
    parts: Sequence[Part],
    calls: CollectiveCalls,
    row_calls: RowCalls | None = None,
) -> None:
    """Loads rows into empty tables. The tables are empty again if this fails.

    For a table that is sharded over workers, each worker loads the rows that it owns. For a table
    on parameter servers, each server loads the rows that it owns.

    Args:
        folder: The folder of the snapshot.
        parts: The rows to load, with their destinations.
        calls: The processes that load the snapshot.
        row_calls: Called as rows are loaded, except for the last call.

    Raises:
        tf.errors.OpError: If files are damaged, missing, or of another kind of table.
    """
    chain: list[SnapshotInfo] = []
    calls.run(lambda: chain.extend(check_chain(folder, info)))
    # Another save may have replaced the snapshot after some process read the manifest.
    agree(calls, lambda: _digest(info), f"snapshot in {folder!r}")
    if row_calls is not None:
        row_calls.expect(_rows_to_read(chain, parts))
    try:
        calls.run(lambda: _load(folder, parts, row_calls))
    except BaseException:  # also an interrupt, which would leave only some tables loaded
        for part in parts:
            part.table.clear()
        raise


def _rows_to_read(chain: Sequence[SnapshotInfo], parts: Sequence[Part]) -> int:
    """Returns the number of rows in all files that parts are read from, once for each table."""
    number = 0
    for part in parts:
        place = chain[0].tables.index(part.files)
        rows = sum(info.tables[place].rows for info in chain)
        number += rows * len(part.table.parts)
    return number


def _load(folder: str, parts: Sequence[Part], row_calls: RowCalls | None) -> None:
    for part in parts:
        for table in part.table.parts:
            has = _both(part.has, table.spread.owns)
            with tf.device(table.options.device):
                RowFiles(table).load_all(folder, part.files.file_name, has, row_calls)


def _digest(info: SnapshotInfo) -> str:
    return hashlib.blake2b(repr(info).encode(), digest_size=8).hexdigest()


_Filter = Callable[[tf.Tensor], tf.Tensor]


def _both(has: _Filter | None, owns: _Filter | None) -> _Filter | None:
    """Returns a filter of keys that both filters accept. None: accepts all keys."""
    if has is None or owns is None:
        return has or owns
    return lambda keys: tf.logical_and(has(keys), owns(keys))

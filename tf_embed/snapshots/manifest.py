# SPDX-License-Identifier: Apache-2.0
"""The manifest of a snapshot: the file that makes a folder a snapshot.

The manifest is written last and atomically. A folder without a manifest is not, or not yet, a
snapshot. For each table, the manifest holds the base name of the row files and the number of their
save. The row files have a separate manifest, with lengths and checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.saving import guarded_files
from tf_embed.snapshots import checked_json

FILE = "snapshot.json"
ASIDE = snapshot_ops.aside_of(re.escape(FILE))  # the names of the file while it is written

_MAX_TRIES = 100
_MOST_BYTES = 2**25  # maximum size of a manifest of rows, as in cc/core/files/row_manifest.h
_MOST_SHOWN = 200  # characters of a name, in messages
_SAVE = re.compile(r"^save ([0-9a-f]{16})$", re.MULTILINE)
_ROWS = re.compile(r"^file \S+ (\d+) (\d+) [0-9a-f]{8}$", re.MULTILINE)
_LINKS = re.compile(r"^link \S+ (\d+) [0-9a-f]{8}$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class TableFiles:
    """The files of a table.

    Attributes:
        table: The table's name when it was saved.
        file_name: The base name of the files.
        save: The number of the save that wrote the files.
        rows: Number of rows in the files.
        bytes: Size of the files, including linked files.
    """

    table: str
    file_name: str
    save: int
    rows: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class SnapshotInfo:
    """The manifest of a snapshot, which is read without its rows.

    Attributes:
        name: The snapshot's name.
        since: The name of the snapshot that it builds on. None if it has all rows.
        time: The start of the save, in seconds since 1970 by the system's clock. If the clock was
            set back, a time just after the newest snapshot in the folder.
        tables: A `TableFiles` for each table, in the order of the tables.
        keys: A description of the key encoding, from the layer that saved the snapshot. None if it
            is unknown, or the snapshot has the tables' keys unchanged.
    """

    name: str
    since: str | None
    time: float
    tables: tuple[TableFiles, ...]
    keys: str | None = None

    @property
    def rows(self) -> int:
        """Number of rows in its files. An incremental snapshot counts the rows that changed."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(table.bytes for table in self.tables)


def exists(folder: str) -> bool:
    """Whether a folder is a snapshot."""
    return bool(tf.io.gfile.exists(os.path.join(folder, FILE)))


def write(folder: str, info: SnapshotInfo) -> None:
    """Writes the manifest, once the row files exist. Replaces an earlier snapshot."""
    body = dataclasses.asdict(info)
    if info.keys is None:
        del body["keys"]
    checked_json.write(folder, FILE, body)


def read(folder: str) -> SnapshotInfo:
    """Reads the manifest.

    Raises:
        tf.errors.DataLossError: If the manifest is damaged, or of another format.
        tf.errors.NotFoundError: If the folder has no manifest.
    """
    path = os.path.join(folder, FILE)
    with checked_json.reading(path) as body:
        tables = tuple(table_files(path, table) for table in body.pop("tables"))
        info = checked_json.record(SnapshotInfo, {**body, "tables": tables})
        if info.since is not None:
            _check_inside(path, "since", info.since)
    # If the folder was renamed, the snapshot has the new name.
    return dataclasses.replace(info, name=os.path.basename(folder))


def table_files(path: str, fields: dict[str, Any]) -> TableFiles:
    """Parses the part of a manifest that describes the files of a table.

    Args:
        path: The path of the manifest, for messages.
        fields: The part of the manifest's body.

    Raises:
        TypeError: If a field is missing, or of another type.
        tf.errors.DataLossError: If a file name leads out of the folder.
    """
    found = checked_json.record(TableFiles, fields)
    _check_inside(path, "file_name", found.file_name)
    return found


def _check_inside(path: str, field: str, name: str) -> None:
    """Refuses a name that leads out of its folder."""
    if not guarded_files.is_name(name):
        raise tf.errors.DataLossError(
            None,
            None,
            f"'{path}' is damaged: its `{field}` must be a name, not a path. Received: "
            f"{name[:_MOST_SHOWN]!r}",
        )


def files_of(folder: str, file_name: str, table: str) -> TableFiles:
    """Reads the manifest of row files that were just written.

    Raises:
        tf.errors.DataLossError: If the file is not such a manifest.
    """
    path = _rows_manifest(folder, file_name)
    text = guarded_files.read(path, _MOST_BYTES).decode("utf-8", "replace")
    save = _SAVE.search(text)
    if save is None:
        raise tf.errors.DataLossError(None, None, f"'{path}' is damaged.")
    numbers = [(int(size), int(rows)) for size, rows in _ROWS.findall(text)]
    return TableFiles(
        table=table,
        file_name=file_name,
        save=int(save.group(1), 16),
        rows=sum(rows for _, rows in numbers),
        bytes=sum(size for size, _ in numbers) + sum(map(int, _LINKS.findall(text))),
    )


def _rows_manifest(folder: str, file_name: str) -> str:
    return os.path.join(folder, f"{file_name}.rank0of1.manifest")


def check_saves(folder: str, info: SnapshotInfo) -> None:
    """Checks that the row files are from the save that the snapshot names.

    Raises:
        tf.errors.OpError: If row files are missing, or from another save.
    """
    for table in info.tables:
        found = files_of(folder, table.file_name, table.table)
        if found != table:
            raise tf.errors.DataLossError(
                None,
                None,
                f"'{_rows_manifest(folder, table.file_name)}' is damaged, or names files of rows "
                "that are not those of the snapshot.",
            )


def names_in(folder: str) -> Sequence[str]:
    """Returns the names in a folder. Returns none if the folder does not exist."""
    if not tf.io.gfile.isdir(folder):
        return []
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    except tf.errors.NotFoundError:  # the folder was removed in the meantime
        return []


def all_in(
    path: str, damaged: dict[str, tf.errors.DataLossError] | None = None
) -> Sequence[SnapshotInfo]:
    """Returns all snapshots in a folder. Another process may save or remove some concurrently.

    Args:
        damaged: Receives the error of each damaged manifest, by the snapshot's name. Default: the
            first error is raised.

    Raises:
        tf.errors.DataLossError: If a manifest is damaged and `damaged` is None.
    """
    found: list[SnapshotInfo] = []
    for _ in range(_MAX_TRIES):
        names, found = names_in(path), []
        if damaged is not None:
            damaged.clear()
        for name in names:
            folder = os.path.join(path, name)
            with contextlib.suppress(tf.errors.NotFoundError):  # removed after the listing
                if exists(folder):
                    try:
                        found.append(read(folder))
                    except tf.errors.DataLossError as error:
                        if damaged is None:
                            raise
                        damaged[name] = error
        # If a snapshot was removed, a newer snapshot may exist that the list of names lacks.
        if names_in(path) == names:
            break
    return found

# SPDX-License-Identifier: Apache-2.0
"""The file that makes a folder a snapshot.

It is written last, and replaced at once, so a folder without it is none, or none yet. It names the
files of rows of each table by what they are named after, and the number of their save. These have
a manifest of their own, with lengths and checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.saving import guarded_files
from tf_embed.snapshots import checked_json

FILE = "snapshot.json"
ASIDE = f"{FILE}.aside"  # while it is written

_MAX_TRIES = 100
_MOST_BYTES = 2**25  # of a manifest of rows, as in cc/core/files/row_manifest.h
_MOST_SHOWN = 200  # characters of a name, in messages
_SAVE = re.compile(r"^save ([0-9a-f]{16})$", re.MULTILINE)
_ROWS = re.compile(r"^file \S+ (\d+) (\d+) [0-9a-f]{8}$", re.MULTILINE)
_LINKS = re.compile(r"^link \S+ (\d+) [0-9a-f]{8}$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class TableFiles:
    """The files of one table.

    Attributes:
        table: The table's name when it was saved.
        file_name: What its files are named after.
        save: The number of their save.
        rows: Number of rows in them.
        bytes: Their size, with that of linked files.
    """

    table: str
    file_name: str
    save: int
    rows: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class SnapshotInfo:
    """What is known of a snapshot without reading its rows.

    Attributes:
        name: Its name.
        since: The name of the snapshot that it has the changes of; None if it has all rows.
        time: When it was begun, in seconds since 1970 by the system's clock; but if that was set
            back, just after the newest one in the folder.
        tables: A `TableFiles` for each table, in their order.
        keys: What the keys are made of, in words of the layer that saved them. None: it is not
            known, or keys are as the tables have them.
    """

    name: str
    since: str | None
    time: float
    tables: tuple[TableFiles, ...]
    keys: str | None = None

    @property
    def rows(self) -> int:
        """Number of rows in its files; of changes, those that changed."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(table.bytes for table in self.tables)


def exists(folder: str) -> bool:
    """Whether a folder is a snapshot."""
    return bool(tf.io.gfile.exists(os.path.join(folder, FILE)))


def write(folder: str, info: SnapshotInfo) -> None:
    """Makes the folder a snapshot, whose files are there; in place of an earlier one."""
    body = dataclasses.asdict(info)
    if info.keys is None:
        del body["keys"]
    checked_json.write(folder, FILE, body)


def read(folder: str) -> SnapshotInfo:
    """Reads the file.

    Raises:
        tf.errors.DataLossError: If it is damaged, or of another format.
        tf.errors.NotFoundError: If there is none.
    """
    path = os.path.join(folder, FILE)
    with checked_json.reading(path) as body:
        tables = tuple(table_files(path, table) for table in body.pop("tables"))
        info = checked_json.record(SnapshotInfo, {**body, "tables": tables})
        if info.since is not None:
            _check_inside(path, "since", info.since)
    # A folder that was renamed is a snapshot of its new name.
    return dataclasses.replace(info, name=os.path.basename(folder))


def table_files(path: str, fields: dict[str, Any]) -> TableFiles:
    """What a body says of the files of a table.

    Args:
        path: The file that has the body.
        fields: The part of the body.

    Raises:
        TypeError: If a field is missing, or of another type.
        tf.errors.DataLossError: If the files would lie in another folder.
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
    """What the manifest of rows says of files that were just written.

    Raises:
        tf.errors.DataLossError: If it is no such manifest.
    """
    path = os.path.join(folder, f"{file_name}.rank0of1.manifest")
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


def check_saves(folder: str, info: SnapshotInfo) -> None:
    """Refuses files of rows that are of another save than the snapshot says.

    Raises:
        tf.errors.OpError: If they are, or are not there.
    """
    for table in info.tables:
        found = files_of(folder, table.file_name, table.table)
        if found != table:
            raise tf.errors.DataLossError(
                None, None, f"'{folder}' has files of rows that are not those of the snapshot."
            )


def names_in(folder: str) -> Sequence[str]:
    """The names in a folder; none if it is not there."""
    if not tf.io.gfile.isdir(folder):
        return []
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    except tf.errors.NotFoundError:  # it has gone since
        return []


def all_in(path: str) -> Sequence[SnapshotInfo]:
    """All snapshots in a folder, while another process may save and remove some.

    Raises:
        tf.errors.DataLossError: If the file of one is damaged.
    """
    found: list[SnapshotInfo] = []
    for _ in range(_MAX_TRIES):
        names, found = names_in(path), []
        for name in names:
            folder = os.path.join(path, name)
            with contextlib.suppress(tf.errors.NotFoundError):  # it was removed just now
                if exists(folder):
                    found.append(read(folder))
        # If a snapshot has gone, a newer one may be there that was not in the list of names.
        if names_in(path) == names:
            break
    return found

# SPDX-License-Identifier: Apache-2.0
"""The folder of a snapshot: names in it, and how it becomes one and goes."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.snapshots import manifest
from tf_embed.snapshots.manifest import SnapshotInfo

# Files of rows, which are named after the table's place and a number of the snapshot.
_OURS = re.compile(r"rows_\d+-[0-9a-f]{8}\.rank\d+of\d+\.")


def folder_name(name: Any, argument: str) -> str:
    """A name as that of a folder.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is a path.
    """
    name = validation.name_of(name, argument)
    if "/" in name or "\n" in name or name in (".", ".."):
        raise ValueError(
            f"`{argument}` must be the name of a folder, not a path. Received: {argument}={name!r}"
        )
    return name


def new_number() -> str:
    """A number of a snapshot, which no other has."""
    return secrets.token_hex(4)


def file_name(place: int, number: str) -> str:
    """The name of a table's files.

    Args:
        place: The table's place in the snapshot, from 0.
        number: What `new_number` gave for the snapshot.
    """
    return f"rows_{place}-{number}"


def commit(folder: str, info: SnapshotInfo) -> SnapshotInfo:
    """Makes the folder a snapshot, and removes the files of one that it replaces."""
    manifest.write(folder, info)
    kept = tuple(f"{table.file_name}." for table in info.tables)
    for name in manifest.names_in(folder):
        if _OURS.match(name) and not name.startswith(kept):
            _remove_files([os.path.join(folder, name)])
    return info


def remove(folder: str) -> None:
    """Removes a snapshot: first what makes it one."""
    if manifest.exists(folder):
        tf.io.gfile.remove(os.path.join(folder, manifest.FILE))
    names = [name for name in manifest.names_in(folder) if _OURS.match(name)]
    _remove_files(os.path.join(folder, name) for name in names)
    if not manifest.names_in(folder):
        _remove_files([folder])


def is_left_over(folder: str) -> bool:
    """Whether a folder has nothing but what a crashed save left."""
    files = manifest.names_in(folder)
    return bool(files) and all(map(_OURS.match, files))


def _remove_files(paths: Iterable[str]) -> None:
    """Removes files or empty folders. That one stays is no harm, and logged."""
    for path in paths:
        try:
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
        except tf.errors.OpError as error:
            logging.warning("Can't remove %r: %s", path, error)

# SPDX-License-Identifier: Apache-2.0
"""The files in the folder of a snapshot: how they come there, and how they go."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.saving import durable, guarded_files
from tf_embed.snapshots import manifest
from tf_embed.snapshots.manifest import SnapshotInfo

_OURS = re.compile(rf"rows_\d+-[0-9a-f]{{8}}\.rank\d+of\d+\.|{re.escape(manifest.ASIDE)}$")


def folder_name(name: Any, argument: str) -> str:
    """A name as that of a folder.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is a path.
    """
    name = validation.name_of(name, argument)
    if not guarded_files.is_name(name):
        raise ValueError(
            f"`{argument}` must be the name of a folder, not a path. Received: {argument}={name!r}"
        )
    return name


def dependents(path: str, name: str) -> list[str]:
    """The snapshots in a folder that have the changes since one; those that can be read."""
    return [info.name for info in readable(path) if info.since == name]


def next_time(path: str) -> float:
    """The time of a snapshot that begins now: later than those of the others in a folder.

    If the system's clock was set back, the newest snapshot would be taken for an old one otherwise,
    and removed as such.
    """
    times = [info.time for info in readable(path) if math.isfinite(info.time)]
    return max(time.time(), math.nextafter(max(times, default=0.0), math.inf))


def readable(path: str, names: Sequence[str] | None = None) -> Iterator[SnapshotInfo]:
    """The snapshots in a folder that can be read.

    A damaged one can't be loaded anyway, and must not stand in the way of new ones.

    Args:
        path: The folder.
        names: The snapshots to read. Default: all.
    """
    for name in manifest.names_in(path) if names is None else names:
        folder = os.path.join(path, name)
        # Loading a damaged one raises: see above. NotFoundError: it was removed just now.
        with contextlib.suppress(tf.errors.DataLossError, tf.errors.NotFoundError):
            if manifest.exists(folder):
                yield manifest.read(folder)


def check_no_base(path: str, name: str, argument: str) -> None:
    """Refuses to replace a snapshot that others need.

    Raises:
        ValueError: If a snapshot has the changes since that one.
    """
    if found := dependents(path, name):
        raise ValueError(
            f"`{argument}` must not be the name of a snapshot since which {found[0]!r} has the "
            f"changes. Received: {argument}={name!r}"
        )


def new_number() -> str:
    """A number of a snapshot, which no other has."""
    return secrets.token_hex(4)


def name_of(place: int, number: str) -> str:
    """What the files of rows of a table are named after.

    Args:
        place: The table's place in the snapshot.
        number: What `new_files` or `new_number` gave.
    """
    return f"rows_{place}-{number}"


def is_left_over(folder: str) -> bool:
    """Whether a folder has nothing but files of a save that crashed."""
    names = manifest.names_in(folder)
    return bool(names) and manifest.FILE not in names and all(map(_OURS.match, names))


@contextlib.contextmanager
def new_files(folder: str) -> Iterator[str]:
    """Gives a number for the names of new files, and removes these if they make no snapshot."""
    number = new_number()
    try:
        yield number
    except BaseException:
        give_up(folder, number)
        raise


def give_up(folder: str, number: str) -> None:
    """Removes new files that make no snapshot. That some stay is no harm."""
    with contextlib.suppress(tf.errors.OpError):  # no snapshot names them
        _give_up(folder, number)


def _give_up(folder: str, number: str) -> None:
    mine = re.compile(rf"rows_\d+-{number}\.")
    # It may be a snapshot all the same, if only the last step to the disk has failed.
    present = manifest.read(folder).tables if manifest.exists(folder) else ()
    if any(mine.match(f"{table.file_name}.") for table in present):
        return
    names = [name for name in manifest.names_in(folder) if mine.match(name)]
    _remove_files(os.path.join(folder, name) for name in [*names, manifest.ASIDE])
    if not manifest.names_in(folder):
        _remove_files([folder])


def commit(folder: str, info: SnapshotInfo) -> SnapshotInfo:
    """Makes the folder a snapshot, and removes the files of one that it replaces.

    Raises:
        tf.errors.AbortedError: If another process has saved there meanwhile, and so has removed
            the new files.
        tf.errors.OpError: If it can't be written.
    """
    _check_unharmed(folder, info)
    manifest.write(folder, info)
    try:
        _check_unharmed(folder, info)  # another save may have removed them just now
    except tf.errors.AbortedError:
        if _is_of(folder, info):
            _remove_files([os.path.join(folder, manifest.FILE)])
        raise
    kept = tuple(f"{table.file_name}." for table in info.tables)
    for name in manifest.names_in(folder):
        # Another save may have taken the folder over.
        if _OURS.match(name) and not name.startswith(kept) and _is_of(folder, info):
            _remove_files([os.path.join(folder, name)])
    return info


def _check_unharmed(folder: str, info: SnapshotInfo) -> None:
    try:
        manifest.check_saves(folder, info)
    except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
        raise tf.errors.AbortedError(
            None, None, f"'{folder}' is used by another save, which has removed files of this one."
        ) from error


def _is_of(folder: str, info: SnapshotInfo) -> bool:
    """Whether a folder has that very snapshot."""
    return manifest.exists(folder) and manifest.read(folder).tables == info.tables


def remove(folder: str) -> None:
    """Removes a snapshot: first what makes it one."""
    if manifest.exists(folder):
        tf.io.gfile.remove(os.path.join(folder, manifest.FILE))
        durable.sync(folder)  # or a crash of the machine may bring it back without its rows
    names = [name for name in manifest.names_in(folder) if _OURS.match(name)]
    _remove_files(os.path.join(folder, name) for name in names)
    if not manifest.names_in(folder):
        _remove_files([folder])


def _remove_files(paths: Iterable[str]) -> None:
    """Removes files or empty folders. That one stays is no harm, and logged."""
    for path in paths:
        try:
            guarded_files.remove_link(path)
            if not tf.io.gfile.exists(path):
                continue
            if tf.io.gfile.isdir(path):
                guarded_files.remove_tree(path)
            else:
                tf.io.gfile.remove(path)
        except tf.errors.OpError as error:
            logging.warning("Can't remove %r: %s", path, error)  # no snapshot names it

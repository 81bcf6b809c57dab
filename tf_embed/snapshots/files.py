# SPDX-License-Identifier: Apache-2.0
"""Creation and removal of the files in a snapshot's folder."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.saving import durable, guarded_files
from tf_embed.snapshots import manifest
from tf_embed.snapshots.manifest import SnapshotInfo

_MOST_BYTES = 255  # maximum size of a name in a local file system

_OURS = re.compile(rf"rows_\d+-[0-9a-f]{{8}}\.rank\d+of\d+\.|{manifest.ASIDE.pattern}$")


def folder_name(name: Any, argument: str) -> str:
    """Returns `name` after a check that it can name a folder.

    Raises:
        TypeError: If `name` is not a str.
        ValueError: If `name` is a path.
    """
    name = validation.name_of(name, argument)
    if not guarded_files.is_name(name):
        raise ValueError(
            f"`{argument}` must be the name of a folder, not a path. Received: {argument}={name!r}"
        )
    return name


def new_folder_name(name: Any, argument: str) -> str:
    """Returns `name` after a check that a file system can have a new folder of that name.

    Raises:
        TypeError: If `name` is not a str.
        ValueError: If `name` is a path, or too long.
    """
    name = folder_name(name, argument)
    if (size := len(name.encode())) > _MOST_BYTES:
        raise ValueError(
            f"`{argument}` must fit the name of a folder, {_MOST_BYTES} bytes of UTF-8. Received: "
            f"{argument}={validation.shown(name)} of {size} bytes"
        )
    return name


def dependents(path: str, name: str) -> list[str]:
    """Returns the names of the readable snapshots in a folder that build on snapshot `name`."""
    return [info.name for info in readable(path) if info.since == name]


def next_time(path: str) -> float:
    """Returns the time of a snapshot that begins now, later than all others in the folder.

    Otherwise, if the clock was set back, the newest snapshot would look old, and `keep` would
    remove it.
    """
    times = [info.time for info in readable(path) if math.isfinite(info.time)]
    return max(time.time(), math.nextafter(max(times, default=0.0), math.inf))


def readable(path: str, names: Sequence[str] | None = None) -> Iterator[SnapshotInfo]:
    """Yields the readable snapshots in a folder.

    A damaged snapshot can't be loaded anyway, and must not block new ones.

    Args:
        path: The folder.
        names: The snapshots to read. Default: all.
    """
    for name in manifest.names_in(path) if names is None else names:
        folder = os.path.join(path, name)
        # Damaged: see above. NotFoundError: the snapshot was just removed.
        with contextlib.suppress(tf.errors.DataLossError, tf.errors.NotFoundError):
            if manifest.exists(folder):
                yield manifest.read(folder)


def loadable(path: str) -> tuple[list[SnapshotInfo], dict[str, tf.errors.DataLossError]]:
    """Reads the manifests of the snapshots in a folder.

    Returns:
        The snapshots whose manifests can be read, including the manifests of all snapshots that
        they build on, oldest first. And the errors of all other snapshots, by name.
    """
    errors: dict[str, tf.errors.DataLossError] = {}
    found = {info.name: info for info in manifest.all_in(path, errors)}
    whole = []
    for info in sorted(found.values(), key=age):
        gap = _gap(info.name, found.get)
        if gap is None:
            whole.append(info)
        # Otherwise another process has removed both after the listing.
        elif manifest.exists(folder := os.path.join(path, info.name)):
            base = os.path.join(path, gap)
            errors[info.name] = tf.errors.DataLossError(
                None, None, f"'{folder}' has changes since '{base}', which can't be read."
            )
    return whole, errors


def is_loadable(path: str, name: str) -> bool:
    """Whether the manifests of a snapshot and of all that it builds on can be read."""
    return _gap(name, lambda one: next(readable(path, [one]), None)) is None


def _gap(name: str, find: Callable[[str], SnapshotInfo | None]) -> str | None:
    """Returns the first name that is not found among a snapshot and all that it builds on."""
    seen: set[str] = set()
    since: str | None = name
    while since is not None and since not in seen:
        seen.add(since)
        info = find(since)
        if info is None:
            return since
        since = info.since
    return None


def age(info: SnapshotInfo) -> tuple[float, str]:
    """Returns the key by which snapshots are sorted, oldest first."""
    return info.time, info.name


def warn(path: str, errors: Mapping[str, tf.errors.DataLossError]) -> None:
    """Warns of snapshots that are left out."""
    for name, error in errors.items():
        # The other snapshots are usable without it.
        logging.warning("Snapshot %r is left out: %s", os.path.join(path, name), error.message)


def check_no_base(path: str, name: str, argument: str) -> None:
    """Refuses to replace a snapshot that others build on.

    Raises:
        ValueError: If another snapshot has the changes since `name`.
    """
    if found := dependents(path, name):
        raise ValueError(
            f"`{argument}` must not be the name of a snapshot since which {found[0]!r} has the "
            f"changes. Received: {argument}={name!r}"
        )


def new_number() -> str:
    """Returns a random number that identifies a snapshot, as hexadecimal digits."""
    return secrets.token_hex(4)


def name_of(place: int, number: str) -> str:
    """Returns the base name of the row files of a table.

    Args:
        place: The table's index in the snapshot.
        number: The number from `new_files` or `new_number`.
    """
    return f"rows_{place}-{number}"


def is_left_over(folder: str) -> bool:
    """Whether a folder holds only the files of a save that crashed."""
    names = manifest.names_in(folder)
    return bool(names) and manifest.FILE not in names and all(map(_OURS.match, names))


@contextlib.contextmanager
def new_files(folder: str) -> Iterator[str]:
    """Yields a number for the names of new files. Removes the files if the block raises."""
    number = new_number()
    try:
        yield number
    except BaseException:
        give_up(folder, number)
        raise


def give_up(folder: str, number: str) -> None:
    """Removes new files that belong to no snapshot. Files that can't be removed are harmless."""
    with contextlib.suppress(tf.errors.OpError):  # no snapshot refers to them
        _give_up(folder, number)


def _give_up(folder: str, number: str) -> None:
    mine = re.compile(rf"rows_\d+-{number}\.")
    # The snapshot may be complete: perhaps only the last flush to the disk has failed.
    present = manifest.read(folder).tables if manifest.exists(folder) else ()
    if any(mine.match(f"{table.file_name}.") for table in present):
        return
    names = [name for name in manifest.names_in(folder) if mine.match(name)]
    _remove_files(os.path.join(folder, name) for name in names)
    if not manifest.names_in(folder):
        _remove_files([folder])


def commit(folder: str, info: SnapshotInfo) -> SnapshotInfo:
    """Writes the manifest, which completes the snapshot, and removes files that it replaces.

    Raises:
        tf.errors.AbortedError: If another process has saved to the folder in the meantime, and so
            has removed the new files.
        tf.errors.OpError: If the manifest can't be written.
    """
    _check_unharmed(folder, info)
    manifest.write(folder, info)
    try:
        _check_unharmed(folder, info)  # another save may have removed files since the first check
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
    """Whether a folder holds the snapshot that `info` describes, rather than another save's."""
    return manifest.exists(folder) and manifest.read(folder).tables == info.tables


def remove(folder: str) -> None:
    """Removes a snapshot: first its manifest, then its rows."""
    if manifest.exists(folder):
        tf.io.gfile.remove(os.path.join(folder, manifest.FILE))
        durable.sync(folder)  # otherwise a power cut may restore the manifest without the rows
    names = [name for name in manifest.names_in(folder) if _OURS.match(name)]
    _remove_files(os.path.join(folder, name) for name in names)
    if not manifest.names_in(folder):
        _remove_files([folder])


def _remove_files(paths: Iterable[str]) -> None:
    """Removes files or folders. A failure is harmless, and logged."""
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
            logging.warning("Can't remove %r: %s", path, error)  # no snapshot refers to it

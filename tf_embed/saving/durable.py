# SPDX-License-Identifier: Apache-2.0
"""Files and names that survive a crash of the machine, in folders of this machine.

A file system may keep writes, renames and removals in memory for half a minute, and flush them to
disk in any order. If a file system is not local, these functions do nothing: an object store
answers when an object is safe.
"""

from __future__ import annotations

import errno
import os

import tensorflow as tf

_SCHEME = "file://"


def sync(path: str, *, must_be_readable: bool = True) -> None:
    """Flushes a file, or the names in a folder, to disk.

    Args:
        must_be_readable: Whether it is an error if this process may not read the path. Otherwise
            the path is skipped.

    Raises:
        tf.errors.UnavailableError: If it can't be.
    """
    local = local_path(path)
    if local is None:
        return
    try:
        opened = os.open(local, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EACCES and not must_be_readable:
            return
        raise _unavailable(path, error) from error
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # can't be flushed, such as some shared folders
            raise _unavailable(path, error) from error
    finally:
        os.close(opened)


def sync_tree(path: str) -> None:
    """Flushes all files and names in a folder to disk, but not the name of the folder itself.

    Raises:
        tf.errors.UnavailableError: If something can't be.
    """
    local = local_path(path)
    if local is None:
        return
    for folder, _, names in os.walk(local):
        for name in names:
            sync(os.path.join(folder, name))
        sync(folder)


def sync_parent(path: str) -> None:
    """Flushes the name of a file or folder to disk.

    Raises:
        tf.errors.UnavailableError: If its folder can't be.
    """
    local = local_path(path)
    if local is not None:
        # A process may make files in a folder that it may not read.
        sync(os.path.dirname(os.path.abspath(local)), must_be_readable=False)


def local_path(path: str) -> str | None:
    """The path for system calls; None if the file system is not local."""
    path = path.removeprefix(_SCHEME)
    return None if "://" in path else path


def _unavailable(path: str, error: OSError) -> tf.errors.UnavailableError:
    return tf.errors.UnavailableError(
        None, None, f"'{path}' can't be brought to the disk: {error.strerror}."
    )

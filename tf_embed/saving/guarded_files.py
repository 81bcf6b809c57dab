# SPDX-License-Identifier: Apache-2.0
"""Files in folders with untrusted content.

Such a folder may come from an untrusted archive. So a small file is read up to a bound. Symbolic
links are followed for reads, but not for writes or removals.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator

import tensorflow as tf

from tf_embed.saving.durable import local_path

_CHUNK_BYTES = 2**16


def is_name(name: str) -> bool:
    """Returns whether a string is a plain file name, not a path."""
    return name not in ("", ".", "..") and not any(one in name for one in "/\n\0")


def read(path: str, most_bytes: int) -> bytes:
    """Reads a file as a whole.

    Raises:
        tf.errors.DataLossError: If the file has more bytes, or is a pipe or a device.
        tf.errors.OpError: If the file can't be read.
    """
    check_regular(path)
    contents = bytearray()
    with tf.io.gfile.GFile(path, "rb") as file:
        # In chunks, so that a file that never ends stops at the bound.
        while chunk := file.read(_CHUNK_BYTES):
            contents += chunk
            if len(contents) > most_bytes:
                raise tf.errors.DataLossError(
                    None, None, f"'{path}' is damaged: it has more than {most_bytes} bytes."
                )
    return bytes(contents)


def check_regular(path: str) -> None:
    """Refuses a pipe, a socket or a device. A read of these may never end.

    Raises:
        tf.errors.DataLossError: If the path is one.
    """
    local = local_path(path)
    if local is not None and _is_special(local):
        raise tf.errors.DataLossError(None, None, f"'{path}' is damaged: it is no regular file.")


def remove_link(path: str) -> None:
    """Removes a symbolic link, so that a write to `path` stays in this folder.

    Raises:
        tf.errors.UnavailableError: If the link can't be removed.
    """
    local = local_path(path)
    if local is not None and os.path.islink(local):
        with _removing(path):
            os.unlink(local)


def remove_tree(path: str) -> None:
    """Removes a folder and its contents. If `path` is a symbolic link, removes only the link.

    Raises:
        tf.errors.OpError: If the folder or a part of it can't be removed.
    """
    local = local_path(path)
    if local is None:
        tf.io.gfile.rmtree(path)
        return
    with _removing(path):
        if os.path.islink(local):
            os.unlink(local)
        else:
            shutil.rmtree(local)


def _is_special(local: str) -> bool:
    """Returns whether a path is a pipe, a socket or a device."""
    try:
        mode = os.stat(local).st_mode
    except OSError:
        return False  # the read raises the error
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextlib.contextmanager
def _removing(path: str) -> Iterator[None]:
    """Raises the error of a removal as a TensorFlow error that names the path."""
    try:
        yield
    except OSError as error:
        where = "" if error.filename is None else f" ({error.filename!r})"
        raise tf.errors.UnavailableError(
            None, None, f"'{path}' can't be removed: {error.strerror}{where}."
        ) from error

# SPDX-License-Identifier: Apache-2.0
"""A folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

import tensorflow as tf

from tf_embed.saving import durable, guarded_files

_SAVED_MODEL = "saved_model.pb"


@contextlib.contextmanager
def new_folder(path: str, overwrite: bool) -> Iterator[str]:
    """Makes a folder beside `path`, which becomes `path` if the block ends well.

    Args:
        path: Where it goes.
        overwrite: Whether a SavedModel that is there is replaced.

    Raises:
        ValueError: If something is there, and it is not a SavedModel that may be replaced. Also if
            it came while the block ran.
        tf.errors.OpError: If it can't be written. What was there is there still, or has the name
            that the message says. A crash between two renames leaves it under such a name, too.
    """
    path = os.path.normpath(path) if "://" not in path else path.rstrip("/")
    _check_free(path, overwrite)
    parent, name = os.path.split(path)
    stem = os.path.join(parent, f".{name}.{uuid.uuid4().hex[:8]}")
    written, replaced = f"{stem}.writing", f"{stem}.replaced"
    try:
        tf.io.gfile.makedirs(written)
        yield written
        _check_free(path, overwrite)
        durable.sync_tree(written)
        if tf.io.gfile.exists(path):
            tf.io.gfile.rename(path, replaced)
        try:
            tf.io.gfile.rename(written, path)
        except BaseException as error:
            if tf.io.gfile.exists(replaced):
                _put_back(replaced, path, error)
            raise
        durable.sync_parent(path)  # before what it replaces is removed
    finally:
        # Without the new one, what it replaces is the only one.
        for leftover in (written, replaced) if tf.io.gfile.exists(path) else (written,):
            if tf.io.gfile.exists(leftover):
                guarded_files.remove_tree(leftover)


def _put_back(replaced: str, path: str, failure: BaseException) -> None:
    """Gives a folder its name again.

    Raises:
        tf.errors.UnavailableError: If it can't have it. The message has the name that it has.
    """
    try:
        tf.io.gfile.rename(replaced, path)
    except tf.errors.OpError as error:
        raise tf.errors.UnavailableError(
            None,
            None,
            f"'{path}' can't be replaced ({failure}), and what was there is '{replaced}' now, "
            f"because it can't be renamed again: {error}",
        ) from failure


def _check_free(path: str, overwrite: bool) -> None:
    if not tf.io.gfile.exists(path):
        return
    if not overwrite:
        raise ValueError(
            f"`path` must not exist, or `overwrite` must be True. Received: path={path!r}"
        )
    is_folder = tf.io.gfile.isdir(path)
    if not is_folder or (
        tf.io.gfile.listdir(path) and not tf.io.gfile.exists(os.path.join(path, _SAVED_MODEL))
    ):
        raise ValueError(
            f"`path` must be a SavedModel or an empty folder to be overwritten. Received: "
            f"path={path!r}"
        )

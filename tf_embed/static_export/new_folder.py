# SPDX-License-Identifier: Apache-2.0
"""Atomic creation of a folder."""

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
    """Creates a temporary folder next to `path`, and renames it to `path` if the block succeeds.

    Args:
        path: The final path.
        overwrite: Whether to replace an existing SavedModel.

    Raises:
        ValueError: If `path` exists, and is not a SavedModel that may be replaced. Also if it was
            created while the block ran.
        tf.errors.OpError: If the folder can't be written. An existing SavedModel is kept at `path`,
            or under the name in the message. A crash between the two renames also leaves it under
            such a name.
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
        durable.sync_parent(path)  # the rename must be durable before the old folder is removed
    finally:
        # If the new folder is not in place, the replaced folder is the only copy.
        for leftover in (written, replaced) if tf.io.gfile.exists(path) else (written,):
            if tf.io.gfile.exists(leftover):
                guarded_files.remove_tree(leftover)


def _put_back(replaced: str, path: str, failure: BaseException) -> None:
    """Renames a folder back to its old name.

    Raises:
        tf.errors.UnavailableError: If the rename fails. The message has the folder's current name.
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

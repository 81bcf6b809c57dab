# SPDX-License-Identifier: Apache-2.0
"""A folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

import tensorflow as tf

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
        if tf.io.gfile.exists(path):
            tf.io.gfile.rename(path, replaced)
        try:
            tf.io.gfile.rename(written, path)
        except BaseException:
            if tf.io.gfile.exists(replaced):
                tf.io.gfile.rename(replaced, path)
            raise
    finally:
        for leftover in (written, replaced):
            if tf.io.gfile.exists(leftover):
                tf.io.gfile.rmtree(leftover)


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

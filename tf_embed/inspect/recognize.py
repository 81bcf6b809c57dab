# SPDX-License-Identifier: Apache-2.0
"""`save_at`: which kind of save a path is."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import tensorflow as tf

from tf_embed.inspect import array_saves, row_saves
from tf_embed.inspect.saves import InspectError, Member, Save, folder_size, reading, time_of
from tf_embed.saving import guarded_files
from tf_embed.serving import publication
from tf_embed.snapshots import files, manifest
from tf_embed.variable.row_files import names_of_saves

_KINDS = (
    "a snapshot, a publication, a folder of these, row files, a checkpoint, a SavedModel, a .keras "
    "file or a .weights.h5 file"
)
_SEGMENT = re.compile(r"rows-\d{16}\.seg")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"


def save_at(path: str) -> Save:
    """Recognizes and describes the save at a path, without its rows.

    Raises:
        InspectError: If there is none, or what describes it is damaged.
    """
    path = path if path == "/" else path.rstrip("/")
    with reading(path):
        if tf.io.gfile.isdir(path):
            return _of_folder(path)
        if tf.io.gfile.exists(path):
            return _of_file(path)
        if tf.io.gfile.exists(f"{path}.index"):
            return array_saves.checkpoint(path)
    raise InspectError(f"'{path}' is not there: it is no file, no folder and no checkpoint.")


def _of_file(path: str) -> Save:
    folder, name = os.path.split(path)
    if name in (manifest.FILE, publication.FILE) or name.endswith((".manifest", ".rows")):
        return _of_folder(folder or ".")
    if name.endswith(".index"):
        return array_saves.checkpoint(path.removesuffix(".index"))
    if found := re.fullmatch(r"(.+)\.data-\d{5}-of-\d{5}", path):
        return array_saves.checkpoint(found.group(1))
    if name == "saved_model.pb":
        return array_saves.saved_model(folder or ".")
    if name.endswith(".weights.json"):
        raise InspectError(f"'{path}' lists files of weights: name one of its .weights.h5 files.")
    guarded_files.check_regular(path)
    with tf.io.gfile.GFile(path, "rb") as file:
        start = file.read(len(_HDF5))
    if name.endswith((".keras", ".h5")) or start == _HDF5 or start.startswith(_ZIP):
        return array_saves.keras_file(path)
    raise InspectError(f"'{path}' is not a file that tf_embed writes. It must be {_KINDS}.")


def _of_folder(path: str) -> Save:
    names = manifest.names_in(path)
    if publication.FILE in names:
        return row_saves.one_publication(os.path.abspath(path) if "://" not in path else path)
    if manifest.FILE in names:
        return row_saves.snapshot(os.path.abspath(path) if "://" not in path else path)
    if "saved_model.pb" in names:
        return array_saves.saved_model(path)
    if array_saves.MEMBER in names:
        return array_saves.keras_file(path)
    if files.is_left_over(path):
        raise InspectError(f"'{path}' is no whole snapshot: it has rows, and no {manifest.FILE}.")
    if names_of_saves(names):
        return row_saves.row_files(path)
    if publication.versions_in(path):
        return row_saves.publications(path)
    if any(tf.io.gfile.exists(os.path.join(path, name, manifest.FILE)) for name in names):
        return row_saves.snapshots(path)
    if prefix := _checkpoint_in(path, names):
        return array_saves.checkpoint(prefix)
    if storage := _storage(path, names):
        return storage
    raise InspectError(f"'{path}' holds nothing that tf_embed writes. It must be {_KINDS}.")


def _checkpoint_in(path: str, names: Sequence[str]) -> str | None:
    """The newest checkpoint in a folder, or its only one."""
    if "checkpoint" in names:
        guarded_files.read(os.path.join(path, "checkpoint"), 2**20)
        latest = tf.train.latest_checkpoint(path)
        # Never outside of the folder, whatever the file says.
        if latest is not None and os.path.dirname(latest) == path:
            return str(latest)
    found = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if len(found) > 1:
        raise InspectError(f"'{path}' has several checkpoints: name one of {sorted(found)}.")
    return os.path.join(path, found[0]) if found else None


def _storage(path: str, names: Sequence[str]) -> Save | None:
    """The working files of tables with a `Storage`."""
    places = [path, *(os.path.join(path, name) for name in names)]
    found = [one for one in places if any(map(_SEGMENT.fullmatch, manifest.names_in(one)))]
    if not found:
        return None
    return Save(
        kind="storage",
        path=path,
        time=None,
        bytes=sum(map(folder_size, found)),
        members=tuple(
            Member(
                os.path.relpath(one, path),
                None,
                0,
                folder_size(one),
                max(time_of(os.path.join(one, name)) for name in manifest.names_in(one)),
            )
            for one in found
        ),
        members_are="tables",
        notes=(
            "These are the working files of running tables with a tf_embed.Storage. Which rows in "
            "them count is known to their process alone, so only save_rows, a snapshot or another "
            "save of the tables can be read.",
        ),
    )

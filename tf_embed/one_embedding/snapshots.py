# SPDX-License-Identifier: Apache-2.0
"""`Snapshots`: all rows of a layer under a name, in its folder; and where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.variable.variable import Variable

FILES = "rows"

_FOLDER = "snapshots"


class Snapshots:
    """Saves and loads the rows of a layer that has one table of rows.

    Args:
        owner: The layer's name.
        path: The folder of the store.
        members: The tables of rows.
    """

    def __init__(self, owner: str, path: str, members: Sequence[Variable]) -> None:
        self._owner = owner
        self._path = path
        self._members = list(members)

    def save(self, name: str) -> None:
        """See `MultiTableEmbedding.save_snapshot`."""
        (member,) = self._checked("save_snapshot")
        folder = self._folder(name)
        tf.io.gfile.makedirs(folder)
        member.save_to_file_system(folder, file_name_list=[FILES])

    def load(self, name: str) -> None:
        """See `MultiTableEmbedding.load_snapshot`."""
        (member,) = self._checked("load_snapshot")
        folder = self._folder(name)
        of_no_layer = folder_of(self._path, None, name)
        if not has_rows(folder) and has_rows(of_no_layer):
            folder = of_no_layer  # a writer put it there for any layer
        if not tf.io.gfile.isdir(folder):
            raise ValueError(
                f"`snapshot_name` must be the name of a snapshot of {self._owner!r} in "
                f"{self._path!r}. Received: snapshot_name={name!r}"
            )
        if member.table.options.is_on_gpu:
            raise ValueError(
                f"`load_snapshot` is for layers on the CPU so far: give {self._owner!r} "
                f"devices='/CPU:0'. Received: devices={member.devices}"
            )
        rows = int(member.size())
        if rows:
            raise RuntimeError(
                f"{self._owner!r} must have no rows when it loads a snapshot, or rows that came "
                f"after the snapshot would stay. Received: {rows} rows"
            )
        member.load_from_file_system(folder, file_name_list=[FILES])

    def _checked(self, method: str) -> list[Variable]:
        """The one table.

        Raises:
            RuntimeError: If this is in a graph.
            ValueError: If there are several: a crash would leave some of an earlier snapshot.
        """
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"`{method}` of {self._owner!r} runs in eager execution. Received: a call in a "
                "graph"
            )
        if len(self._members) > 1:
            raise ValueError(
                f"`{method}` is for layers with one table of rows. {self._owner!r} has one for "
                "each of its tables, as their ids have 64 bits, and for each folder: use "
                f"`model.save` or tf.train.Checkpoint. Received: {len(self._members)} tables"
            )
        return self._members

    def _folder(self, name: str) -> str:
        return folder_of(self._path, self._owner, name)


def folder_of(path: str, layer_name: str | None, snapshot_name: Any) -> str:
    """The folder of a snapshot.

    Args:
        path: The folder of the store.
        layer_name: The layer's name. None: that of a snapshot for any layer.
        snapshot_name: The snapshot's name.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is a path.
    """
    name = validation.name_of(snapshot_name, "snapshot_name")
    if "/" in name or name in (".", ".."):
        raise ValueError(
            "`snapshot_name` must be the name of a folder, not a path. Received: "
            f"snapshot_name={name!r}"
        )
    return os.path.join(path, _FOLDER, *([] if layer_name is None else [layer_name]), name)


def has_rows(folder: str) -> bool:
    """Whether a folder has a snapshot: the manifest of one, which comes last."""
    return any(
        name.startswith(f"{FILES}.rank") and name.endswith(".manifest") for name in _names(folder)
    )


def layers_with(path: str, snapshot_name: str) -> list[str | None]:
    """The layers that have a snapshot of that name in a folder; None stands for any layer."""
    layers = [None, *sorted(_names(os.path.join(path, _FOLDER)))]
    return [one for one in layers if has_rows(folder_of(path, one, snapshot_name))]


def _names(folder: str) -> list[str]:
    if not tf.io.gfile.isdir(folder):
        return []
    return [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]

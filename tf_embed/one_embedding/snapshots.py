# SPDX-License-Identifier: Apache-2.0
"""`Snapshots`: all rows of a layer under a name, in its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from tf_embed import validation
from tf_embed.variable.variable import Variable

_FOLDER = "snapshots"
_FILES = "rows"


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
        member.save_to_file_system(folder, file_name_list=[_FILES])

    def load(self, name: str) -> None:
        """See `MultiTableEmbedding.load_snapshot`."""
        (member,) = self._checked("load_snapshot")
        folder = self._folder(name)
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
        member.load_from_file_system(folder, file_name_list=[_FILES])

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
        name = validation.name_of(name, "snapshot_name")
        if "/" in name or name in (".", ".."):
            raise ValueError(
                "`snapshot_name` must be the name of a folder, not a path. Received: "
                f"snapshot_name={name!r}"
            )
        return os.path.join(self._path, _FOLDER, self._owner, name)

# SPDX-License-Identifier: Apache-2.0
"""`LayerSnapshots`: the snapshots of a layer in its first folder, and their paths."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf
from typing_extensions import override

from tf_embed.saving.progress import Progress, RowCalls, calls_of
from tf_embed.snapshots import PendingSnapshot, Snapshots, manifest
from tf_embed.snapshots.files import check_no_base, folder_name, readable
from tf_embed.snapshots.loading import Part, load_parts
from tf_embed.snapshots.manifest import SnapshotInfo
from tf_embed.table.sharding import default_partition_fn
from tf_embed.variable.variable import Variable

_FOLDER = "snapshots"


class _SnapshotsOfKeys(Snapshots):
    """Snapshots that record their key layout, and refuse to load other layouts.

    Args:
        path: The folder of the snapshots.
        tables: As in `Snapshots`.
        keys: The key layout of the tables, see `KeySpace.keys_in_words`.
    """

    def __init__(self, path: str, tables: Sequence[Variable], owner: str, keys: str) -> None:
        super().__init__(path, tables)
        self._owner = owner
        self._keys = keys
        self._loaded: dict[str, float] = {}  # the times of the loaded snapshots

    def _folder(self, name: str, argument: str) -> str:
        return os.path.join(self.path, snapshot_name_of(name, argument))

    @override
    def save(
        self,
        name: str,
        *,
        since: str | None = None,
        wait: bool = True,
        if_busy: str = "wait",
        progress: Progress = None,
    ) -> PendingSnapshot:
        self._calls().run(lambda: self._check_replaces(name))
        pending = super().save(name, since=since, wait=wait, if_busy=if_busy, progress=progress)
        _savers[self._real_folder(name)] = self
        return pending

    @override
    def fold(self, name: str, to: str | None = None) -> SnapshotInfo:
        if to is not None:
            self._calls().run(lambda: self._check_replaces(to))
        return super().fold(name, to)

    @override
    def load(self, name: str, *, progress: Progress = None) -> None:
        self.together(lambda: self.check_keys(name))
        super().load(name, progress=progress)
        self._note_loaded(name)

    def together(self, function: Callable[[], None]) -> None:
        """Runs a function while no files are written. If it fails on one worker, all raise."""
        calls = self._calls()
        self._be_alone()
        calls.run(function)

    def load_parts(
        self, folder: str, info: SnapshotInfo, parts: Sequence[Part], progress: Progress
    ) -> None:
        """Loads a snapshot into tables with another number of folders."""
        calls = self._calls()
        row_calls: list[RowCalls | None] = []
        calls.run(lambda: row_calls.append(calls_of(progress, prints=calls.rank == 0)))
        load_parts(folder, info, parts, calls, row_calls[0])
        if row_calls[0] is not None:
            row_calls[0].end()
        self._note_loaded(info.name)

    def _note_loaded(self, name: str) -> None:
        for info in readable(self.path, [name]):
            self._loaded[name] = info.time

    def _check_replaces(self, name: str) -> None:
        """Refuses to replace a snapshot of another layer of this name.

        Raises:
            ValueError: If another layer that is alive saved it, and this layer has not loaded it.
        """
        self._folder(name, "name")
        if not self._is_of_another(name):
            return
        gc.collect()  # reference cycles may keep a deleted layer alive
        if self._is_of_another(name):
            raise ValueError(
                f"`name` of each layer that saves into {self.path!r} must be its own, because "
                f"snapshots are in a folder of that name: another layer named {self._owner!r} "
                "has saved this one. Give the snapshot, or one of the layers, another name, load "
                "the snapshot before it is replaced, or delete the other layer. Received: snapshot "
                f"{name!r} of a second layer"
            )

    def _is_of_another(self, name: str) -> bool:
        saver = _savers.get(self._real_folder(name))
        if saver in (None, self):
            return False
        if saver._pending is not None and not saver._pending.done():
            return True
        found = list(readable(self.path, [name]))
        return bool(found) and found[0].time != self._loaded.get(name)

    def _real_folder(self, name: str) -> str:
        """The resolved folder of a snapshot, the same for all layers."""
        folder = self._folder(name, "name")
        return folder if "://" in folder else os.path.realpath(folder)

    def check_keys(self, name: str) -> None:
        """Refuses a snapshot whose rows would be loaded under the keys of other ids.

        Raises:
            ValueError: If its key layout differs. Snapshots of writers, and of older layers, record
                no layout and are accepted.
        """
        folder = os.path.join(self.path, folder_name(name, "name"))
        found = manifest.read(folder).keys if manifest.exists(folder) else None
        if found not in (None, self._keys):
            raise ValueError(
                f"`snapshot_name` must be the name of a snapshot whose keys are {self._keys}, as "
                f"those of {self._owner!r} are. Received: snapshot_name={name!r}, whose keys are "
                f"{found}"
            )


# The layer of this process that last saved the snapshot in a folder.
_savers: weakref.WeakValueDictionary[str, _SnapshotsOfKeys] = weakref.WeakValueDictionary()


class LayerSnapshots:
    """Saves and loads all rows of a layer.

    Args:
        path: The first folder of the store.
        members: The tables of rows: for each table, or for all tables together, one per folder.
        keys: The key layout of the tables, see `KeySpace.keys_in_words`.

    Attributes:
        snapshots: The `tf_embed.Snapshots` of the layer's tables of rows.
    """

    def __init__(
        self, owner: str, path: str, members: Sequence[Variable], num_folders: int, keys: str
    ) -> None:
        self._owner = owner
        self._path = path
        self._members = list(members)
        self._num_folders = num_folders
        self.snapshots = self._snapshots_in(folder_of_layer(path, owner), keys)
        self._keys = keys

    def save(self, name: str, since: str | None, wait: bool, progress: Progress) -> PendingSnapshot:
        """Saves all rows, or the rows that changed since a snapshot."""
        self._check_eager("save_snapshot")
        name = snapshot_name_of(name, "snapshot_name")
        snapshots = self.snapshots
        snapshots.together(lambda: check_no_base(snapshots.path, name, "snapshot_name"))
        return self.snapshots.save(name, since=since, wait=wait, progress=progress)

    def load(self, name: str, progress: Progress) -> None:
        """Replaces all rows with a snapshot, which may have another number of folders."""
        self._check_eager("load_snapshot")
        found: list[tuple[str, SnapshotInfo]] = []
        self.snapshots.together(lambda: found.append(self._find(name)))
        path, info = found[0]
        folder = os.path.join(path, name)
        if rows := sum(int(member.size()) for member in self._members):
            raise RuntimeError(
                f"{self._owner!r} must have no rows when it loads a snapshot, or rows that came "
                f"after the snapshot would stay. Received: {rows} rows"
            )
        snapshots = self.snapshots
        # A writer's snapshot for any layer is in a separate folder.
        if path != snapshots.path:
            snapshots = self._snapshots_in(path, self._keys)
        # With another number of folders, each folder reads all files and picks its rows by key.
        num_folders = self._folders_of(name, info)
        if num_folders == self._num_folders:
            snapshots.load(name, progress=progress)
        else:
            snapshots.together(lambda: snapshots.check_keys(name))
            snapshots.load_parts(folder, info, self._parts_by_key(info, num_folders), progress)

    def _find(self, name: str) -> tuple[str, SnapshotInfo]:
        """Returns the folder of a snapshot, and its manifest."""
        # The second folder holds the snapshots that a writer made for any layer.
        for path in (self.snapshots.path, folder_of_layer(self._path, None)):
            folder = os.path.join(path, folder_name(name, "snapshot_name"))
            if manifest.exists(folder):
                return path, manifest.read(folder)
        raise ValueError(
            f"`snapshot_name` must be the name of a snapshot of {self._owner!r} in "
            f"{self._path!r}. Received: snapshot_name={name!r}"
        )

    def _snapshots_in(self, path: str, keys: str) -> _SnapshotsOfKeys:
        return _SnapshotsOfKeys(path, self._members, self._owner, keys)

    def _check_eager(self, method: str) -> None:
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"`{method}` of {self._owner!r} runs in eager execution. Received: a call in a "
                "graph"
            )

    def _folders_of(self, name: str, info: SnapshotInfo) -> int:
        """The number of folders of the layer that saved a snapshot.

        Raises:
            ValueError: If the snapshot has another number of tables, regardless of folders.
        """
        # Rows in several folders are tables with the same name.
        wanted = len(self._members) // self._num_folders
        found = len({files.table for files in info.tables})
        if found != wanted:
            writer = "make_persistent_table_writer writes them"
            hint = f". {writer} by num_tables={wanted}" if info.keys is None and wanted > 1 else ""
            raise ValueError(
                f"`snapshot_name` must be the name of a snapshot of {wanted} tables of rows, as "
                f"{self._owner!r} has. Received: snapshot_name={name!r}, which has {found}{hint}"
            )
        return len(info.tables) // wanted

    def _parts_by_key(self, info: SnapshotInfo, saved_folders: int) -> list[Part]:
        """All files of a table for each of its folders. Each folder picks its rows from them."""
        parts = []
        for number, member in enumerate(self._members):
            table, folder = divmod(number, self._num_folders)
            first = table * saved_folders
            for files in info.tables[first : first + saved_folders]:
                parts.append(Part(member.table, files, _is_in(folder, self._num_folders)))
        return parts


def snapshot_name_of(name: str, argument: str) -> str:
    """Checks the name of a layer's snapshot.

    A layer's folder may itself be a snapshot, if a writer used the layer's name as the snapshot
    name.

    Raises:
        TypeError: If it is not a str.
        ValueError: If it is a path, or the file that makes a folder a snapshot.
    """
    name = folder_name(name, argument)
    if name == manifest.FILE or manifest.ASIDE.fullmatch(name):
        raise ValueError(
            f"`{argument}` must not be the name of the file that makes a folder a snapshot. "
            f"Received: {argument}={name!r}"
        )
    return name


def folder_of_layer(path: str, layer_name: str | None) -> str:
    """The folder of a layer's snapshots.

    Args:
        path: The first folder of the store.
        layer_name: The layer's name. None: the folder of snapshots for any layer.
    """
    return os.path.join(path, _FOLDER, *([] if layer_name is None else [layer_name]))


def layers_with(path: str, snapshot_name: str) -> list[str | None]:
    """The layers that have a snapshot of that name in a folder; None stands for any layer."""
    layers = [None, *manifest.names_in(folder_of_layer(path, None))]
    return [
        one
        for one in layers
        if manifest.exists(os.path.join(folder_of_layer(path, one), snapshot_name))
    ]


def _is_in(folder: int, num_folders: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of keys that tests whether lookups find their rows in a folder."""
    return lambda keys: tf.equal(default_partition_fn(keys, num_folders), folder)

# SPDX-License-Identifier: Apache-2.0
"""Models the state of a folder after a power failure.

`Disk` replays the log of `file_calls` up to a moment. `Disk.after_crash` then gives a folder that a
file system may show after the reboot. The model of a crash:

- The bytes and the length of a file are durable once an fsync or fdatasync of that file has
  returned. Later writes may be lost: each as a whole, its end, or any of its pages of 4,096 bytes.
  Lost bytes before the end of a file are zeros.
- A change of names (a new file, folder or link, a rename, a removal) is durable once an fsync of
  its folder has returned. An fsync of the file itself does nothing for its name. Later changes may
  be lost, each by itself, in any order. A rename is one change, also between folders. It is durable
  once either folder is synchronized.
- A file without a name is gone, even if it was synchronized.

POSIX promises no more than this. ext4, xfs and btrfs keep more order, so one of the four LOSSES
keeps the order of a journal. Disks that acknowledge unwritten data or lose durable data are not
modeled.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Iterable

from file_calls import Record

PAGE = 4096
# The part of unsynchronized changes that stays: nothing; all, as after the kill of a process; names
# in the order of their changes up to a moment, as in a journal; anything.
LOSSES = ("nothing stays", "all stays", "a journal", "anything")


@dataclasses.dataclass(eq=False)
class _Node:
    """A file or a folder.

    Attributes:
        names: The children of a folder as the running process sees them; None for a file.
    """

    names: dict[str, _Node] | None = None


@dataclasses.dataclass(eq=False)
class _Change:
    """A change of names, or of the bytes of a file.

    Attributes:
        names: For each changed name: the folder, the name and its new node; None if removed.
        file: The file whose bytes change; None if names do.
        offset: The offset of the bytes; the new size if `data` is None.
        data: The bytes.
        is_sure: Whether the change is durable.
    """

    names: tuple[tuple[_Node, str, _Node | None], ...] = ()
    file: _Node | None = None
    offset: int = 0
    data: bytes | None = None
    is_sure: bool = False


class Disk:
    """The changes of a process to an initially empty folder.

    Args:
        records: The log, up to the moment of the crash.
        forgets: "files" or "folders" for a disk that ignores their synchronization.
    """

    def __init__(self, records: Iterable[Record], forgets: str = "") -> None:
        self._root = _Node({})
        self._files: dict[int, _Node] = {}  # by number of the open file
        self._changes: list[_Change] = []
        self._unsure: list[_Change] = []
        self._forgets = forgets
        for record in records:
            getattr(self, f"_do_{record.kind}")(record)

    def after_crash(self, loss: str, draw: random.Random) -> dict[str, bytes | None]:
        """The content of each file, and None for each folder, by the path below the folder."""
        stays = _stays(loss, draw, self._unsure)
        kept = [one for one in self._changes if one.is_sure or id(one) in stays]
        names: dict[_Node, dict[str, _Node]] = {self._root: {}}
        contents: dict[_Node, bytearray] = {}
        for change in kept:
            if change.file is not None:
                whole = contents.setdefault(change.file, bytearray())
                _write(whole, change, None if change.is_sure else loss, draw)
            for folder, name, node in change.names:
                children = names.setdefault(folder, {})
                children.pop(name, None)
                if node is not None:
                    children[name] = node
        found: dict[str, bytes | None] = {}
        todo = [("", self._root)]
        while todo:
            path, node = todo.pop()
            if node.names is None:
                found[path] = bytes(contents.get(node, b""))
                continue
            if path:
                found[path] = None
            for name, child in names.get(node, {}).items():
                todo.append((f"{path}/{name}" if path else name, child))
        return found

    # One method for each kind of record.

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in filter(None, path.split("/")):
            if node is None or node.names is None:
                return None
            node = node.names.get(name)
        return node

    def _place(self, path: str) -> tuple[_Node, str]:
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        if folder is None or folder.names is None:
            raise ValueError(f"The log has no folder for {path!r}.")
        return folder, name

    def _add(self, change: _Change) -> None:
        self._changes.append(change)
        self._unsure.append(change)

    def _set(self, *paths: tuple[str, _Node | None]) -> None:
        names = tuple((*self._place(path), node) for path, node in paths)
        for folder, name, node in names:
            assert folder.names is not None
            folder.names.pop(name, None)
            if node is not None:
                folder.names[name] = node
        self._add(_Change(names=names))

    def _do_open(self, record: Record) -> None:
        node = self._find(record.path)
        if node is None:
            node = _Node()
            self._set((record.path, node))
        elif record.cut:
            self._add(_Change(file=node))
        self._files[record.handle] = node

    def _do_mark(self, record: Record) -> None:
        pass

    def _do_mkdir(self, record: Record) -> None:
        self._set((record.path, _Node({})))

    def _do_unlink(self, record: Record) -> None:
        self._set((record.path, None))

    def _do_rename(self, record: Record) -> None:
        self._set((record.path, None), (record.other, self._find(record.path)))

    def _do_link(self, record: Record) -> None:
        self._set((record.other, self._find(record.path)))

    def _do_write(self, record: Record) -> None:
        file = self._files[record.handle]
        self._add(_Change(file=file, offset=record.offset, data=record.data))

    def _do_truncate(self, record: Record) -> None:
        self._add(_Change(file=self._files[record.handle], offset=record.offset))

    def _do_sync(self, record: Record) -> None:
        node = self._files[record.handle]
        if self._forgets == ("files" if node.names is None else "folders"):
            return
        left = []
        for change in self._unsure:
            if change.file is node or any(folder is node for folder, _, _ in change.names):
                change.is_sure = True
            else:
                left.append(change)
        self._unsure = left


def _stays(loss: str, draw: random.Random, unsure: list[_Change]) -> set[int]:
    """The ids of the unsynchronized changes that stay."""
    if loss == "nothing stays":
        return set()
    if loss == "all stays":
        return set(map(id, unsure))
    if loss == "anything":
        return {id(one) for one in unsure if draw.random() < 0.5}
    names = [one for one in unsure if one.file is None]
    bytes_ = [one for one in unsure if one.file is not None and draw.random() < 0.5]
    return set(map(id, [*names[: draw.randint(0, len(names))], *bytes_]))


def _write(whole: bytearray, change: _Change, loss: str | None, draw: random.Random) -> None:
    """Makes a change of bytes, or a part of it."""
    begin = change.offset
    if change.data is None:
        whole[begin:] = bytes(max(0, begin - len(whole)))
        return
    data = change.data
    pages = range(0, len(data), PAGE)
    kept = [True] * len(pages)
    if loss not in (None, "all stays"):
        if draw.random() < 0.3:
            data = data[: draw.randint(0, len(data))]
        elif draw.random() < 0.5:
            kept = [draw.random() < 0.5 for _ in pages]
    if len(whole) < begin + len(data):
        whole.extend(bytes(begin + len(data) - len(whole)))
    for at, stays in zip(pages, kept, strict=True):
        if stays:
            some = data[at : at + PAGE]
            whole[begin + at : begin + at + len(some)] = some


def put(found: dict[str, bytes | None], folder: pathlib.Path) -> None:
    """Makes the folder that `Disk.after_crash` gave. It must not exist yet."""
    folder.mkdir()
    for path, content in sorted(found.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def content_of(folder: pathlib.Path) -> dict[str, bytes | None]:
    """The present content of a folder, in the form of `Disk.after_crash`."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }

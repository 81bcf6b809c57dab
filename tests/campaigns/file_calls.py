# SPDX-License-Identifier: Apache-2.0
"""Intercepts the calls of a process that change files, to log them or make them fail.

`start_under` runs a program again with the library of file_calls.cc preloaded. Then `watch` starts
the log of a process, mostly a forked process, and `records_in` reads it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib
import struct
from collections.abc import Iterator

import preload

_SOURCE = pathlib.Path(__file__).with_name("file_calls.cc")
_VARIABLE = "TF_EMBED_FILE_CALLS"  # has the path of the library in a program that runs under it
_HEADER = struct.Struct("<IIIIQQQ")
# In the order of Kind in file_calls.cc.
KINDS = ("open", "write", "truncate", "sync", "rename", "link", "unlink", "mkdir", "mark")


@dataclasses.dataclass(frozen=True)
class Record:
    """A logged call, which has returned.

    Attributes:
        kind: One of KINDS.
        path: For calls with a name: the path below the folder; "" for the folder itself.
        other: The new name of a rename or a link.
        made: For an open: whether it made the file, or may have.
        cut: For an open: whether it cut the file to no bytes.
        handle: The number of an open file; "open" gives it.
        offset: The offset of written bytes; the new size of "truncate".
        data: The bytes of "write" and "mark".
    """

    kind: str
    path: str
    other: str
    made: bool
    cut: bool
    handle: int
    offset: int
    data: bytes


def start_under() -> None:
    """Runs this program again under the library, unless it does already."""
    preload.start_under(_SOURCE, _VARIABLE)


def remove_library() -> None:
    """Removes the library that `start_under` built. The program continues."""
    preload.remove_library(_VARIABLE)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.file_calls_mark.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.file_calls_fail.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
    library.file_calls_count.restype = ctypes.c_int64
    return library


def watch(folder: pathlib.Path, log: pathlib.Path | None = None) -> None:
    """Watches a folder from now on, in this process.

    Args:
        folder: An existing folder.
        log: The path of the log; None for no log.
    """
    path = str(folder.resolve()).encode()
    _library().file_calls_begin(path, b"" if log is None else str(log).encode())


def mark(data: bytes) -> None:
    """Puts a record into the log."""
    _library().file_calls_mark(data, len(data))


def fail(kind: str, passes: int, error: int, for_good: bool = False) -> None:
    """Makes a call fail.

    Args:
        kind: One of KINDS.
        passes: How many calls of that kind succeed before.
        error: The errno.
        for_good: Whether all later calls of that kind fail too.
    """
    _library().file_calls_fail(KINDS.index(kind), passes, error, for_good)


def count(kind: str) -> int:
    """How many calls of a kind there were."""
    return int(_library().file_calls_count(KINDS.index(kind)))


def shorten(on: bool) -> None:
    """Whether writes take only a part of their bytes."""
    _library().file_calls_shorten(on)


def slow(microseconds: int) -> None:
    """Makes each call take longer."""
    _library().file_calls_slow(microseconds)


def records_in(log: pathlib.Path) -> Iterator[Record]:
    """The records of a log, without an incomplete record at its end."""
    data = log.read_bytes()
    at = 0
    while at + _HEADER.size <= len(data):
        kind, path, other, flags, handle, offset, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + path + other + size > len(data):
            return
        first, second = data[at : at + path], data[at + path : at + path + other]
        at += path + other
        yield Record(
            kind=KINDS[kind],
            path=os.fsdecode(first),
            other=os.fsdecode(second),
            made=bool(flags & 1),
            cut=bool(flags & 2),
            handle=handle,
            offset=offset,
            data=data[at : at + size],
        )
        at += size

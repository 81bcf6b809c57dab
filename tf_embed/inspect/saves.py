# SPDX-License-Identifier: Apache-2.0
"""`Save`: saved tables of any kind, as the readers describe them and as all else reads them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_embed.ops import row_stream_ops
from tf_embed.saving.row_streams import Block

BLOCK_BYTES = 2**22  # of rows that are read at once, if the files have no blocks
# What TensorFlow adds to the errors of eager ops.
_OF_OPS = re.compile(r"^\{\{function_node .*?\}\} | \[Op:\w+\]( name: )?$")


class InspectError(Exception):
    """What can't be read, with the reason: the message for the user."""


@dataclasses.dataclass(frozen=True)
class SavedTable:
    """A table of a save.

    Attributes:
        name: Its name; in Keras files and checkpoints its place.
        rows: Number of rows. In a save of changes: of rows that changed.
        dim: Number of weights of a row.
        key_dtype: The name of the dtype of keys.
        value_dtype: The name of the dtype of weights.
        slots: Number of optimizer slots of a row.
        rule: The name of the rule of the slots. "": none.
        step: The step of the table's clock or of its own optimizer. None if it is unknown.
        statistics: The names of the saved statistics of rows.
        bytes: Size of its files, or of its arrays.
        read: Yields all rows, block by block. Checks them before it yields them.
        num_rows: Counts the rows that `read` yields. None: as many as `rows`.
    """

    name: str
    rows: int
    dim: int
    key_dtype: str
    value_dtype: str
    slots: int
    rule: str
    step: int | None
    statistics: tuple[str, ...]
    bytes: int
    read: Callable[[], Iterator[Block]]
    num_rows: Callable[[], int] | None = None

    def count_rows(self) -> int:
        """The number of rows that `read` yields."""
        return self.rows if self.num_rows is None else self.num_rows()


@dataclasses.dataclass(frozen=True)
class Member:
    """A save in a folder of saves, or in a chain.

    Attributes:
        name: Its name.
        since: The save since which it has the changes. None: it has all rows.
        rows: Number of rows in its files.
        bytes: Size of its files.
        time: When it was saved, in seconds since 1970.
    """

    name: str
    since: str | None
    rows: int
    bytes: int
    time: float


@dataclasses.dataclass(frozen=True)
class Save:
    """Saved tables.

    Attributes:
        kind: What it is, such as "snapshot".
        path: Where it is.
        time: When it was saved, in seconds since 1970. None if it is unknown.
        bytes: Size of its files.
        tables: The tables.
        members: The saves of its chain, or of the folder, newest first.
        members_are: The heading of `members`.
        notes: Sentences for the reader.
        checks: Check every checksum of all files.
    """

    kind: str
    path: str
    time: float | None
    bytes: int
    tables: tuple[SavedTable, ...] = ()
    members: tuple[Member, ...] = ()
    members_are: str = ""
    notes: tuple[str, ...] = ()
    checks: tuple[Callable[[], None], ...] = ()

    @property
    def checked_bytes(self) -> int:
        """Size of all that `checks` read."""
        return sum(one.bytes for one in self.members) or self.bytes


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns whatever a reader raises into an `InspectError` that names the path."""
    try:
        yield
    except InspectError:
        raise
    # Readers of other libraries raise errors of any class for damaged files.
    except Exception as error:
        message = error.message if isinstance(error, tf.errors.OpError) else str(error)
        message = _OF_OPS.sub("", message)
        message = " ".join((message or type(error).__name__).split())
        if isinstance(error, KeyError):
            message = f"{message} is missing"
        if path not in message:
            message = f"'{path}' can't be read: {message}"
        raise InspectError(message) from error


def file_size(path: str) -> int:
    """Size of a file."""
    return int(tf.io.gfile.stat(path).length)


def folder_size(path: str) -> int:
    """Size of all files in a folder and its folders."""
    return sum(
        file_size(os.path.join(folder, name))
        for folder, _, names in tf.io.gfile.walk(path)
        for name in names
    )


def time_of(path: str) -> float:
    """When a file was written, in seconds since 1970."""
    return float(tf.io.gfile.stat(path).mtime_nsec / 1e9)


def empty_block(table: SavedTable) -> Block:
    """A block without rows, of the dtypes of a table."""
    key_dtype, value_dtype = (
        np.dtype(object if name == "string" else tf.as_dtype(name).as_numpy_dtype)
        for name in (table.key_dtype, table.value_dtype)
    )
    slot_dtype = row_stream_ops.slot_dtype_of(tf.as_dtype(table.value_dtype))
    return Block(
        np.zeros([0], key_dtype),
        np.zeros([0, table.dim], value_dtype),
        np.zeros([0, table.slots], slot_dtype.as_numpy_dtype),
        {name: np.zeros([0], np.int64) for name in table.statistics},
    )


def of_known_dtype(weights: np.ndarray) -> np.ndarray:
    """Weights in a dtype that everything knows: float32 for narrower floats. No weight changes."""
    return weights.astype(np.float32) if weights.dtype.name in ("bfloat16", "float16") else weights


def floats_of(weights: np.ndarray) -> np.ndarray:
    """Weights as float64 [n, dim].

    Raises:
        InspectError: If they are strings.
    """
    if weights.dtype == object:
        raise InspectError("The weights are strings, which have neither a norm nor a difference.")
    return weights.astype(np.float64)

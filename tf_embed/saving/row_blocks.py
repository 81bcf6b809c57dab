# SPDX-License-Identifier: Apache-2.0
"""All rows of a table as of a single moment, block by block."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_embed.ops import row_file_ops
from tf_embed.saving.row_streams import RowReader
from tf_embed.table.table import Table

# Size of a block, which is a second copy of its rows in memory.
BLOCK_BYTES = 2**26
_FILE_NAME = "rows"
_BUFFER_BYTES = 2**22


@dataclasses.dataclass(frozen=True)
class RowBlocks:
    """The rows of a table.

    Attributes:
        num_rows: Number of rows.
        read: Yields the keys [n] and rows [n, dim] block by block.
    """

    num_rows: int
    read: Callable[[], Iterator[tuple[tf.Tensor, tf.Tensor]]]

    def __iter__(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        return self.read()


@contextlib.contextmanager
def blocks_of(table: Table, folder: str, most_bytes: int | None = None) -> Iterator[RowBlocks]:
    """Yields the rows of a table, which are valid within the block.

    A table with rows in lower tiers may not fit in memory, so it is saved to files first. A table
    in memory is copied in memory, up to `most_bytes`.

    Args:
        table: The table.
        folder: A folder for such files. If it is not on this machine, a temporary folder is used.
        most_bytes: The size of weights above which rows in memory are saved to files too. Default:
            no bound.
    """
    is_large = most_bytes is not None and _bytes_of(table) > most_bytes
    if is_large or table.options.has_tiers:
        # In that folder, because its disk is meant for files of this size.
        local = folder if os.path.isdir(folder) else None
        with tempfile.TemporaryDirectory(dir=local) as saved:
            yield _of_files(table, saved)
    else:
        yield _of_copy(table)


def _bytes_of(table: Table) -> int:
    # The method of the base is no collective call.
    return int(Table.size(table)) * table.options.dim * table.options.value_dtype.size


def _of_copy(table: Table) -> RowBlocks:
    exported = table.export(with_slots=False, with_policy=False)
    # Blocks are written from host memory.
    with tf.device("/CPU:0"):
        keys, rows = tf.identity(exported.keys), tf.identity(exported.values)
    num_rows = int(tf.size(keys))
    length = max(1, BLOCK_BYTES // (table.options.dim * max(1, rows.dtype.size)))

    def read() -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        for begin in range(0, num_rows, length):
            yield keys[begin : begin + length], rows[begin : begin + length]

    return RowBlocks(num_rows, read)


def _of_files(table: Table, folder: str) -> RowBlocks:
    place = row_file_ops.Place(
        folder=tf.constant(folder),
        folder_variable="",
        file_name=_FILE_NAME,
        rank=0,
        processes=1,
    )
    with table.save_turn:
        row_file_ops.save_rows(
            table.resource_handle, place, buffer_bytes=_BUFFER_BYTES, with_slots=False
        )
    reader = RowReader(os.fspath(folder), _FILE_NAME, of_any_type=True)

    def read() -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        with tf.device("/CPU:0"):
            for keys, rows, _ in reader.blocks():
                yield tf.constant(keys), tf.constant(rows)
        reader.close()

    return RowBlocks(reader.num_rows, read)

# SPDX-License-Identifier: Apache-2.0
"""Puts rows in the variables of a SavedModel that was written with empty ones, block by block.

TensorFlow saves a variable from memory, and only as a whole. But its files may have the slices of a
tensor one by one, and several sets of files can be made one. So the values of all other variables
are written again, the slices of tables beside them, and all of that is merged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_embed.static_export.row_blocks import RowBlocks
from tf_embed.static_export.stock_table import StockTable

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class Filling(NamedTuple):
    """What goes in the variables of a table.

    Attributes:
        name: Where the table is in the model that was saved, such as "tables/0".
        table: The table.
        blocks: Its rows.
    """

    name: str
    table: StockTable
    blocks: RowBlocks


class VariableFiles:
    """The files of the variables of a SavedModel.

    Args:
        folder: The SavedModel.
        names: Where the tables are in it, whose variables are empty.
    """

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        self._prefix = os.path.join(folder, "variables", "variables")
        self._parts: list[str] = []
        empty = {f"{name}/{part}{_SUFFIX}" for name in names for part in ("keys", "rows")}
        saved = tf.train.load_checkpoint(self._prefix).get_variable_to_dtype_map()
        assert empty <= saved.keys(), sorted(empty - saved.keys())
        others = {name: dtype for name, dtype in saved.items() if name not in empty}
        values = tf.raw_ops.RestoreV2(
            prefix=self._prefix,
            tensor_names=list(others),
            shape_and_slices=[""] * len(others),
            dtypes=list(others.values()),
        )
        self._write(list(others), [""] * len(others), values)

    def fill(self, filling: Filling) -> None:
        """Writes the rows of a table."""
        keys_name, rows_name = (f"{filling.name}/{part}{_SUFFIX}" for part in ("keys", "rows"))
        zeros = filling.table.row_of_zeros
        num_rows, width = filling.blocks.num_rows, zeros.shape[1]
        keys = _Tensor(keys_name, [num_rows], filling.table.keys.dtype)
        rows = _Tensor(rows_name, [num_rows + 1, width], filling.table.rows.dtype)
        self._append({rows: zeros})
        for of_keys, of_rows in filling.table.stored_blocks(filling.blocks):
            self._append({keys: of_keys, rows: of_rows})
        for tensor in (keys, rows):
            assert tensor.written == tensor.shape[0], (tensor.name, tensor.written, tensor.shape)
            whole = tensor.whole()
            if whole is not None:
                self._write([tensor.name], [""], [whole])

    def finish(self) -> None:
        """Puts all that was written in place of the files that were there."""
        for old in list(self._files_of(self._prefix)):
            tf.io.gfile.remove(old)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._parts,
            destination_prefix=self._prefix,
            delete_old_dirs=False,
        )

    def _append(self, blocks: Mapping[_Tensor, tf.Tensor]) -> None:
        """Writes the next slice of some tensors, in one file."""
        places = {tensor: tensor.next(block) for tensor, block in blocks.items()}
        now = {tensor: place for tensor, place in places.items() if place is not None}
        if now:
            names = [tensor.name for tensor in now]
            self._write(names, list(now.values()), [blocks[tensor] for tensor in now])

    def _write(self, names: list[str], slices: list[str], tensors: list[tf.Tensor]) -> None:
        part = f"{self._prefix}_part_{len(self._parts)}"
        self._parts.append(part)
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=part, tensor_names=names, shape_and_slices=slices, tensors=tensors
            )

    @staticmethod
    def _files_of(prefix: str) -> Iterator[str]:
        yield f"{prefix}.index"
        yield from tf.io.gfile.glob(f"{prefix}.data-*")


class _Tensor:
    """A tensor that is written by slices along its first axis.

    TensorFlow does not restore slices of strings, so these are kept to be written as a whole; and
    so is a tensor without rows, which has no slices.

    Args:
        name: Its name in the files.
        shape: Its shape.
        dtype: Its dtype.

    Attributes:
        written: How many of its rows have come.
    """

    def __init__(self, name: str, shape: list[int], dtype: tf.DType) -> None:
        self.name = name
        self.shape = shape
        self.written = 0
        self._is_whole = dtype == tf.string or shape[0] == 0
        self._kept = [tf.zeros([0, *shape[1:]], dtype)] if self._is_whole else []

    def next(self, block: tf.Tensor) -> str | None:
        """The next slice, as the ops that save name it; None if the block is kept."""
        count = block.shape[0]
        first = f"{self.written},{count}"
        self.written += count
        if self._is_whole:
            self._kept.append(block)
            return None
        place = ":".join([first, *("-" for _ in self.shape[1:])])
        return " ".join([*map(str, self.shape), place])

    def whole(self) -> tf.Tensor | None:
        """All blocks, if they were kept."""
        return tf.concat(self._kept, 0) if self._is_whole else None

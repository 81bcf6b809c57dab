# SPDX-License-Identifier: Apache-2.0
"""Writes rows block by block to the files of a SavedModel whose table variables are empty.

TensorFlow saves a variable from memory, and only as a whole. But its files may contain slices of a
tensor, and several sets of files can be merged. So this module rewrites the values of all other
variables, writes the slices of the tables beside them, and merges all the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf_embed.saving.row_blocks import RowBlocks
from tf_embed.static_export.stock_table import StockTable

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class Filling(NamedTuple):
    """The contents of a table's variables.

    Attributes:
        name: The path of the table in the saved model, such as "tables/0".
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
        names: The paths of the tables with empty variables in the saved model.
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
        # Row 0, for absent keys.
        self._append({rows: zeros})
        for of_keys, of_rows in filling.table.stored_blocks(filling.blocks):
            self._append({keys: of_keys, rows: of_rows})
        for tensor in (keys, rows):
            assert tensor.written == tensor.shape[0], (tensor.name, tensor.written, tensor.shape)
            whole = tensor.whole()
            if whole is not None:
                self._write([tensor.name], [""], [whole])

    def finish(self) -> None:
        """Replaces the old files with the merged new files."""
        # The merged files have the same names.
        for old in list(self._files_of(self._prefix)):
            tf.io.gfile.remove(old)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=self._parts,
            destination_prefix=self._prefix,
            # The parts are in the folder of the merged files.
            delete_old_dirs=False,
        )

    def _append(self, blocks: Mapping[_Tensor, tf.Tensor]) -> None:
        """Writes the next slice of each given tensor to a file."""
        places = {tensor: tensor.next(block) for tensor, block in blocks.items()}
        now = {tensor: place for tensor, place in places.items() if place is not None}
        if now:
            names = [tensor.name for tensor in now]
            self._write(names, list(now.values()), [blocks[tensor] for tensor in now])

    def _write(self, names: list[str], slices: list[str], tensors: list[tf.Tensor]) -> None:
        part = f"{self._prefix}_part_{len(self._parts)}"
        self._parts.append(part)
        # SaveV2 runs on the CPU only.
        with tf.device("/CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=part, tensor_names=names, shape_and_slices=slices, tensors=tensors
            )

    @staticmethod
    def _files_of(prefix: str) -> Iterator[str]:
        yield f"{prefix}.index"
        yield from tf.io.gfile.glob(f"{prefix}.data-*")


class _Tensor:
    """A tensor that is written in slices along its first axis.

    TensorFlow can't restore slices of strings, so string slices are collected and written as a
    whole. A tensor without rows has no slices, and is also written as a whole.

    Args:
        name: Its name in the files.
        shape: Its shape.
        dtype: Its dtype.

    Attributes:
        written: Number of rows so far.
    """

    def __init__(self, name: str, shape: list[int], dtype: tf.DType) -> None:
        self.name = name
        self.shape = shape
        self.written = 0
        self._is_whole = dtype == tf.string or shape[0] == 0
        self._kept = [tf.zeros([0, *shape[1:]], dtype)] if self._is_whole else []

    def next(self, block: tf.Tensor) -> str | None:
        """Returns the slice spec of the next block for SaveV2, or None if the block is kept."""
        count = block.shape[0]
        first = f"{self.written},{count}"
        self.written += count
        if self._is_whole:
            self._kept.append(block)
            return None
        place = ":".join([first, *("-" for _ in self.shape[1:])])
        return " ".join([*map(str, self.shape), place])

    def whole(self) -> tf.Tensor | None:
        """Returns all blocks as a tensor, or None if they were not kept."""
        return tf.concat(self._kept, 0) if self._is_whole else None

# SPDX-License-Identifier: Apache-2.0
"""`RowReader` and `RowWriter`: saved rows as NumPy arrays, block by block, without a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_embed.ops import row_stream_ops
from tf_embed.table.policies import STATISTICS

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]

# Dtypes of the rows of persistent tables.
KEY_DTYPES = (tf.int64, tf.int32, tf.uint64, tf.uint32)
VALUE_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)


class Block(NamedTuple):
    """Some rows of a table.

    Attributes:
        keys: [n].
        weights: [n, dim].
        slots: [n, slots of a row].
        statistics: The statistics of the rows' use, int64 [n], by name.
    """

    keys: np.ndarray
    weights: np.ndarray
    slots: np.ndarray
    statistics: dict[str, np.ndarray]


def statistics_of(words: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """Returns statistics by name.

    Args:
        words: The words of the statistics as they are saved, int64 [n, statistics of a row].
        bits: The bits of the statistics.

    Raises:
        ValueError: If the bits have another number of statistics than the words.
    """
    kept = [name for name, bit in STATISTICS.items() if bits & bit]
    if words.ndim != 2 or words.shape[1] != len(kept):
        raise ValueError(f"{list(words.shape)} words are not of {len(kept)} statistics")
    found = {name: words[:, place] for place, name in enumerate(kept)}
    if "score" in found:  # saved so that words compare as unsigned numbers
        found["score"] = found["score"] ^ np.int64(-(2**63))
    return found


class RowReader:
    """The rows of a save. Every byte is checked when the save is opened.

    Args:
        file_name: The stem of the files' names.
        alone: Whether to leave out the saves that a save of changes builds on. Default: False.
        of_any_type: Whether keys may be strings, and weights integers, bools or strings. Default:
            False.

    Attributes:
        num_rows: Number of rows.
        dim: Number of weights in a row.
        slots: Number of optimizer slots in a row.
        key_dtype: Dtype of keys.
        value_dtype: Dtype of weights.
        slot_dtype: Dtype of slots.
        meta: State of the table outside its rows, for `RowWriter`.

    Raises:
        TypeError: If keys or weights have a dtype that is not supported.
        tf.errors.OpError: If there is no such save, or a file is damaged.
    """

    def __init__(
        self, folder: str, file_name: str, *, alone: bool = False, of_any_type: bool = False
    ) -> None:
        opened = row_stream_ops.open_rows(folder, file_name, alone=alone)
        self._rows: tf.Tensor | None = opened.rows
        counts = (int(count) for count in opened.counts.numpy())
        self._num_blocks, self.num_rows, self.dim, self.slots = counts
        names = [name.decode() for name in opened.types.numpy()]
        self.key_dtype, self.value_dtype = map(tf.as_dtype, names)
        self.slot_dtype = row_stream_ops.slot_dtype_of(self.value_dtype)
        self.meta = opened.meta
        are_numbers = self.key_dtype in KEY_DTYPES and self.value_dtype in VALUE_DTYPES
        if not (of_any_type or are_numbers):
            raise TypeError(
                "Rows that are read without a table must have integer keys and floating weights. "
                f"Received: {names[0]} keys and {names[1]} weights in {folder!r}"
            )

    def blocks(self) -> Iterator[Rows]:
        """Reads keys [n], weights [n, dim] and slots [n, slots], block by block."""
        for block in self.blocks_with_statistics():
            yield block[:3]

    def blocks_with_statistics(self) -> Iterator[Block]:
        """Reads rows with their statistics, block by block."""
        for block in range(self._num_blocks):
            # The caller may have closed the files between two blocks.
            if self._rows is None:
                return
            read = row_stream_ops.read_rows(
                self._rows, block, key_dtype=self.key_dtype, value_dtype=self.value_dtype
            )
            keys, weights, slots, words, kept = (one.numpy() for one in read)
            yield Block(keys, weights, slots, statistics_of(words, int(kept)))

    def close(self) -> None:
        """Closes the files."""
        self._rows = None


class RowWriter:
    """A save of rows with int64 keys, which appears only when it is finished.

    Args:
        file_name: The stem of the files' names.
        meta: `RowReader.meta`, to keep that save's optimizer state and seed. Default: neither.

    Raises:
        tf.errors.OpError: If the files can't be made.
    """

    def __init__(
        self,
        folder: str,
        file_name: str,
        value_dtype: tf.DType,
        dim: int,
        meta: tf.Tensor | None = None,
    ) -> None:
        meta = tf.zeros([0], tf.int64) if meta is None else meta
        self._stream: tf.Tensor | None = row_stream_ops.begin_rows(
            folder, file_name, meta, value_dtype=value_dtype, dim=dim
        )

    def append(self, keys: np.ndarray, weights: np.ndarray, slots: np.ndarray) -> None:
        """Writes rows. Keys must be distinct in a call; of two calls, the later row is loaded.

        Raises:
            tf.errors.OpError: If the file can't be written.
        """
        row_stream_ops.append_rows(
            self._stream, tf.constant(keys), tf.constant(weights), tf.constant(slots)
        )

    def finish(self) -> None:
        """Replaces an earlier save by this save.

        Raises:
            tf.errors.OpError: If that fails. Then the earlier save is still there.
        """
        stream, self._stream = self._stream, None
        row_stream_ops.finish_rows(stream)

    def drop(self) -> None:
        """Removes the files, unless they are finished."""
        self._stream = None

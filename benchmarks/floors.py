# SPDX-License-Identifier: Apache-2.0
"""What the same bytes cost without a table, in the same rounds as the tables; see floor_ops.cc."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from settings import BUILD

FLOOR = "floor"
_KEYS_OF_LINE = 4  # of a table's index, on average
_ENTRIES = 16
_ALIGNMENT = 2 << 20  # of a table's memory


def _aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """An array of ones, whose pages are there."""
    size = np.dtype(dtype).itemsize
    memory = np.ones(shape[0] * shape[1] + _ALIGNMENT // size, dtype)
    begin = -memory.ctypes.data % _ALIGNMENT // size
    return memory[begin : begin + shape[0] * shape[1]].reshape(shape)


def ops() -> Any:
    """The ops of floor_ops.cc."""
    return tf.load_op_library(str(BUILD / "floor_ops.so"))


class Array:
    """An array of rows, with an index that is not searched.

    Args:
        rows: The number of rows.
        dim: Number of weights of a row.
        slots: Values of an optimizer for each weight.
    """

    def __init__(self, rows: int, dim: int, slots: int = 0) -> None:
        width = dim * (1 + slots)
        bits = max(1, (rows // _KEYS_OF_LINE - 1).bit_length())
        numbers = _aligned((1 << bits, _ENTRIES), np.uint32)
        # Each row is in as many entries as any other.
        numbers[:] = (
            np.random.default_rng(1).permutation(numbers.size).reshape(numbers.shape) % rows
        )
        self._arrays = (numbers, _aligned((rows, width), np.float32))
        self._attributes = {
            "lines": numbers.ctypes.data,
            "line_bits": bits,
            "rows": self._arrays[1].ctypes.data,
            "dim": dim,
            "width": width,
        }
        self._floor = ops().tf_embed_bench_floor
        self.lookup = tf.function(lambda ids: self._call("find", ids))
        self.upsert = tf.function(lambda ids, rows: self._call("write", ids, rows) is None)
        self.accum = tf.function(
            lambda ids, old, new, exists: self._call("accum", ids, old, new) is None
        )
        self.step = tf.function(self._step)

    def _call(self, verb: str, ids: tf.Tensor, *given: tf.Tensor, length: int = 1) -> tf.Tensor:
        return self._floor(keys=ids, given=given, verb=verb, length=length, **self._attributes)

    def _step(self, ids: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
        """A lookup, and the step. Ids [bags, length] are pooled."""
        length = ids.shape[1] if ids.shape.rank == 2 else 1
        rows = self._call("find", ids, length=length)
        with tf.control_dependencies([rows]):
            self._call("step", ids, gradients, length=length)
        return rows

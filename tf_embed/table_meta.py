"""The numbers that say what a saved table is besides its rows, as cc/core/table_meta.h has them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

_SEED, _TABLE_ID, _GROUPS = 1, 2, 9


@dataclasses.dataclass(frozen=True, eq=False)
class TableMeta:
    """The numbers, read.

    Attributes:
        numbers: int64 vector, as an export gives it.
    """

    numbers: np.ndarray

    @classmethod
    def of(cls, meta: Any) -> TableMeta:
        """The meta that an export gave."""
        return cls(np.asarray(meta))

    def initial_slots(self, dtype: tf.DType) -> np.ndarray:
        """What the slots of a new row are, [slots of a row]."""
        widths, values = self.numbers[_GROUPS::2], self.numbers[_GROUPS + 1 :: 2].copy()
        return np.repeat(values.view(np.float64), widths).astype(dtype.as_numpy_dtype)

    def with_seed_of(self, other: Any) -> tf.Tensor:
        """These numbers with the seed and table id of another meta; int64 vector."""
        numbers = self.numbers.copy()
        for place in (_SEED, _TABLE_ID):
            numbers[place] = np.asarray(other)[place]
        return tf.constant(numbers)

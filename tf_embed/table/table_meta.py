# SPDX-License-Identifier: Apache-2.0
"""The description of a table in a save: its kind, and the numbers of table_meta.h."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import _library

_SEED, _TABLE_ID, _RULE, _DIM, _SLOTS, _GROUPS = 1, 2, 3, 6, 7, 9
_WIDTH = 0xFFFFFFFF  # the bits of a group's width; the higher bits are its type


@dataclasses.dataclass(frozen=True, eq=False)
class TableMeta:
    """Reads the numbers.

    Attributes:
        numbers: int64 vector, as an export returns it.
    """

    numbers: np.ndarray

    @classmethod
    def of(cls, meta: Any) -> TableMeta:
        """The meta that an export returned."""
        return cls(np.asarray(meta))

    @property
    def rule(self) -> str:
        """The name of the rule that the slots belong to; "" if there is none.

        "external" is an optimizer that runs outside of the table.
        """
        number = int(self.numbers[_RULE])
        rules = _library.vocabulary()["rules"]
        names = {known["number"]: name for name, known in rules.items()}
        return "" if number == 0 else names.get(number, "external")

    @property
    def dim(self) -> int:
        """Number of weights of a row."""
        return int(self.numbers[_DIM])

    @property
    def slots(self) -> int:
        """Number of slots of a row."""
        return int(self.numbers[_SLOTS])

    def initial_slots(self, dtype: tf.DType) -> np.ndarray:
        """The slots of a new row, [slots of a row]."""
        widths, values = self.numbers[_GROUPS::2], self.numbers[_GROUPS + 1 :: 2].copy()
        # The initial values are float64, saved by their bits among int64 numbers.
        return np.repeat(values.view(np.float64), widths & _WIDTH).astype(dtype.as_numpy_dtype)

    def with_seed_of(self, other: Any) -> tf.Tensor:
        """These numbers with the seed and table id of another meta; int64 vector."""
        numbers = self.numbers.copy()
        for place in (_SEED, _TABLE_ID):
            numbers[place] = np.asarray(other)[place]
        return tf.constant(numbers)


class SavedKind(tf.train.experimental.PythonState):
    """The kind of a table in a checkpoint, to refuse the rows of another kind with its name.

    TensorFlow reads it before any tensor. Its own error on a tensor of another dtype would not name
    the kind of the table.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind

    def serialize(self) -> str:
        """The kind, as it is saved."""
        return self._kind

    def deserialize(self, string_value: Any) -> None:
        """Compares the kind with the saved kind.

        Raises:
            ValueError: If they differ.
        """
        saved = tf.compat.as_text(string_value)
        if saved != self._kind:
            raise ValueError(
                f"{self._name!r} can't be restored: it has {self._kind}, and the checkpoint has "
                f"{saved}."
            )

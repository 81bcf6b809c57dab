"""What Keras's `get_weights` gives for a table: an empty array that carries the rows.

Keras asks each weight for its value as a NumPy array, and hands arrays of the same shapes back in
`set_weights`. A table's weight, its anchor, has the shape (0, dim), so the value has no room for
rows; they go beside it, in a subclass. What makes a new array of it, as NumPy's arithmetic does,
leaves the rows behind, and that array is refused: rows are never lost without a word.

As in any `get_weights`, what an optimizer keeps is not in it. The table's slots stay as they are
where rows are replaced.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.table import Table, kind_of
from tf_embed.table_meta import TableMeta


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All rows of a table at one moment. The tensors are immutable, so copies share them.

    Attributes:
        name: The table's name.
        keys: [n].
        values: [n, dim].
        meta: As `Table.export` gives it.
        statistics: [n, statistics of a row].
        policy: As `Table.export` gives it.
    """

    name: str
    keys: tf.Tensor
    values: tf.Tensor
    meta: tf.Tensor
    statistics: tf.Tensor
    policy: tf.Tensor


class RowsArray(np.ndarray):
    """An array of shape (0, dim), and the rows of a table beside it.

    Copies and pickles have the rows too. All else that NumPy makes of it has none.
    """

    _rows: Rows | None

    @classmethod
    def of(cls, rows: Rows) -> RowsArray:
        """The array that carries some rows."""
        array = np.zeros((0, rows.values.shape[1]), rows.values.dtype.as_numpy_dtype).view(cls)
        array._rows = rows
        return array

    @property
    def rows(self) -> Rows | None:
        """The rows, None where they were left behind."""
        return self._rows

    def __array_finalize__(self, template: Any) -> None:
        self._rows = None

    def copy(self, order: Any = "C") -> RowsArray:
        """A copy with the rows."""
        copied = super().copy(order)
        copied._rows = self._rows
        return copied

    def __copy__(self) -> RowsArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> RowsArray:
        return self.copy()

    def __reduce__(self) -> Any:
        return super().__reduce__() if self._rows is None else (RowsArray.of, (self._rows,))

    def __repr__(self) -> str:
        if self._rows is None:
            return super().__repr__()
        return (
            f"<{self._rows.keys.shape[0]} rows of {self._rows.name!r}, shape={self.shape}, "
            f"dtype={self.dtype.name}>"
        )


def take(table: Table) -> RowsArray:
    """The rows of a table as they are now."""
    rows = table.export(with_slots=False)._asdict()
    del rows["slots"]
    return RowsArray.of(Rows(table.options.name, **rows))


def put(table: Table, value: Any) -> None:
    """Replaces the rows of a table, and its seed, by those that `take` gave of this or another.

    Rows that stay keep their optimizer slots, new ones get initial ones. The other table may have
    another number of shards.

    Args:
        table: The table.
        value: The array.

    Raises:
        ValueError: There are no rows beside the array, or rows of another dim or dtype. The table
            is as it was then.
    """
    name = table.options.name
    rows = value.rows if isinstance(value, RowsArray) else None
    if rows is None:
        raise ValueError(
            f"The rows of {name!r} are not in the value: assign what `get_weights` gave, or a copy "
            "or pickle of it; NumPy's functions leave the rows behind. Received: "
            f"{type(value).__name__}"
        )
    kind = kind_of(rows.keys.dtype, rows.values.dtype, rows.values.shape[1])
    if kind != table.options.kind:
        raise ValueError(
            f"{name!r} can't take the rows of {rows.name!r}: it has {table.options.kind}, and they "
            f"have {kind}."
        )
    slots, meta = _slots_and_meta(table, rows)
    table.import_(rows.keys, rows.values, slots, meta, rows.statistics, rows.policy)


def _slots_and_meta(table: Table, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
    """What a table keeps for rows: their slots, initial ones where it lacks a row, and its meta."""
    keys, _, present, numbers, _, _ = table.export()
    meta = TableMeta.of(numbers)
    slots = np.tile(meta.initial_slots(present.dtype), (rows.keys.shape[0], 1))
    places, found = _places(keys.numpy(), rows.keys.numpy())
    slots[found] = np.asarray(memoryview(present))[places]  # not .numpy(), which copies
    return tf.constant(slots), meta.with_seed_of(rows.meta)


def _places(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where in `keys` the wanted ones stand, and which of them do."""
    order = np.argsort(keys)
    if not keys.size:
        return order, np.zeros(wanted.shape, bool)
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), keys.size - 1)
    found = keys[order[at]] == wanted
    return order[at[found]], found

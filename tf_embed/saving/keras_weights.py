# SPDX-License-Identifier: Apache-2.0
"""The value of a table in Keras's `get_weights`: an empty array that carries the rows.

Keras asks each weight for its value as a NumPy array, and passes arrays of the same shapes to
`set_weights`. A table's weight, its anchor, has the shape (0, dim), so the value has no room for
rows; a subclass of the array carries them. An array that is computed from it, such as by NumPy's
arithmetic, lacks the rows and is refused: rows are never lost silently.

As in any `get_weights`, optimizer state is not included. The table keeps its slots when rows are
replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed.ops.whole_table_ops import Exported
from tf_embed.table import expiry
from tf_embed.table.table import Table
from tf_embed.table.table_meta import TableMeta
from tf_embed.table.table_options import kind_of


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """All rows of a table at one moment. The tensors are immutable, so copies share them.

    Attributes:
        name: The table's name.
        keys: [n].
        values: [n, dim].
        meta: As returned by `Table.export`.
        statistics: [n, statistics of a row].
        policy: As returned by `Table.export`.
    """

    name: str
    keys: tf.Tensor
    values: tf.Tensor
    meta: tf.Tensor
    statistics: tf.Tensor
    policy: tf.Tensor


class RowsArray(np.ndarray):
    """An array of shape (0, dim) that also carries the rows of one or several tables.

    Copies and pickles carry the rows too. Other NumPy results do not.
    """

    _rows: tuple[Rows, ...]

    @classmethod
    def of(cls, *rows: Rows) -> RowsArray:
        """The array that carries the rows of a table; of several, see `of_batch`."""
        if len(rows) != 1:
            return cls.of_batch(*rows)
        dim, dtype = rows[0].values.shape[1], rows[0].values.dtype.as_numpy_dtype
        return cls._carrying(np.zeros((0, dim), dtype), rows)

    @classmethod
    def of_batch(cls, *rows: Rows) -> RowsArray:
        """The array of tables that one optimizer trains together: of shape (0, 1) and float32."""
        return cls._carrying(np.zeros((0, 1), np.float32), rows)

    @classmethod
    def _carrying(cls, empty: np.ndarray, rows: tuple[Rows, ...]) -> RowsArray:
        array = empty.view(cls)
        array._rows = rows
        return array

    @property
    def rows(self) -> tuple[Rows, ...]:
        """The rows of each table; empty if NumPy dropped them."""
        return self._rows

    def __array_finalize__(self, template: Any) -> None:
        # NumPy calls this for each new array. Views and results do not have the template's rows.
        self._rows = ()

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except IndexError as error:
            names = ", ".join(repr(one.name) for one in self._rows)
            raise IndexError(
                f"The rows of {names} have no index: look them up by `lookup(ids)` of a "
                f"tf_embed.Variable, such as `layer.variable`. {error}"
            ) from error

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
        if not self._rows:
            return super().__reduce__()
        alike = RowsArray.of(*self._rows)
        same = (alike.shape, alike.dtype) == (self.shape, self.dtype)
        return (RowsArray.of if same else RowsArray.of_batch, self._rows)

    def __repr__(self) -> str:
        if not self._rows:
            return super().__repr__()
        rows = ", ".join(f"{one.keys.shape[0]} rows of {one.name!r}" for one in self._rows)
        return f"<{rows}, shape={self.shape}, dtype={self.dtype.name}>"


def get_weights(table: Table) -> RowsArray:
    """The rows of a table as they are now."""
    return RowsArray.of(_rows_of(table))


def get_batch_weights(tables: Iterable[Table]) -> RowsArray:
    """The rows of tables that one optimizer trains together, as they are now."""
    return RowsArray.of_batch(*(_rows_of(table) for table in tables))


def _rows_of(table: Table) -> Rows:
    rows = table.export_all(with_slots=False)._asdict()
    del rows["slots"]
    return Rows(table.options.name, **rows)


def set_weights(value: Any, *tables: Table, owner: str | None = None) -> None:
    """Replaces the rows of tables, and their seeds, by the result of `get_weights`.

    The rows may be from other tables, with another number of shards. Rows that stay keep their
    optimizer slots, and new rows get initial slots.

    Args:
        owner: The owner's name in messages. Default: the name of the first table.

    Raises:
        ValueError: If the array carries no rows, or rows of another dim or dtype. The tables do not
            change then.
    """
    owner = owner or tables[0].options.name
    all_rows = value.rows if isinstance(value, RowsArray) else ()
    if not all_rows:
        raise ValueError(
            f"The rows of {owner!r} are not in the value: assign what `get_weights` gave, or a "
            "copy or pickle of it; NumPy's functions leave the rows behind. Rows that you compute, "
            "as in a soft update of a target network, are written by `upsert` of a "
            f"tf_embed.Variable. Received: {type(value).__name__}"
        )
    if len(all_rows) != len(tables):
        raise ValueError(
            f"{owner!r} can't take the rows of {len(all_rows)} tables: it has {len(tables)}."
        )
    for table, rows in zip(tables, all_rows, strict=True):
        kind = kind_of(rows.keys.dtype, rows.values.dtype, rows.values.shape[1])
        if kind != table.options.kind:
            raise ValueError(
                f"{table.options.name!r} can't take the rows of {rows.name!r}: it has "
                f"{table.options.kind}, and they have {kind}."
            )
    # In a second loop, so that no table changes unless all kinds match.
    for table, rows in zip(tables, all_rows, strict=True):
        slots, meta = _slots_and_meta(table, rows)
        table.import_(Exported(rows.keys, rows.values, slots, meta, rows.statistics, rows.policy))
        expiry.warn_of_expired(table)


def _slots_and_meta(table: Table, rows: Rows) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns slots of rows, initial slots for rows that the table lacks, and the table's meta."""
    keys, _, present, numbers, _, _ = table.export()
    meta = TableMeta.of(numbers)
    slots = np.tile(meta.initial_slots(present.dtype), (rows.keys.shape[0], 1))
    places, found = _places(keys.numpy(), rows.keys.numpy())
    slots[found] = np.asarray(memoryview(present))[places]  # not .numpy(), which copies
    return tf.constant(slots), meta.with_seed_of(rows.meta)


def _places(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the wanted keys in `keys`, and whether each is present."""
    order = np.argsort(keys)
    # Below, positions are clipped to the last key, and an empty table has none.
    if not keys.size:
        return order, np.zeros(wanted.shape, bool)
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), keys.size - 1)
    found = keys[order[at]] == wanted
    return order[at[found]], found

# SPDX-License-Identifier: Apache-2.0
"""`KeySpace`: maps the ids of several tables to int64 keys, each with its own row."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tf_embed import validation
from tf_embed.layers.ids import cast_ids

# The distance between the keys of a table of 32-bit ids and the next table's keys.
_STRIDE = 2**32


class Batch(NamedTuple):
    """The flat ids of a call.

    Attributes:
        keys: int64 [n].
        tables: int64 [n], the table of each key; None if there is a single table.
        is_kept: bool [n], False for padding; None if there is no padding.
        shape: The static shape of the ids.
        sizes: The same as a tensor.
        is_by_column: Whether the last axis of the ids is the tables.
    """

    keys: tf.Tensor
    tables: tf.Tensor | None
    is_kept: tf.Tensor | None
    shape: tf.TensorShape
    sizes: tf.Tensor
    is_by_column: bool


@dataclasses.dataclass(frozen=True)
class KeySpace:
    """The conversion of tables' ids to keys.

    An id of 32 bits and its table fit in a key of 64 bits: the key is id + table * 2^32. So one
    table has the rows of all tables. Wider ids are keys without conversion, with a separate table
    of rows for each table. Shared ids are keys of one table.

    Attributes:
        owner: The layer's name, for messages.
        key_type: Name of the ids' dtype.
        shared_ids: Whether equal ids of two tables share a row.
        padding_idx: An id that has no row, or None.
    """

    owner: str
    key_type: str
    num_tables: int
    shared_ids: bool
    padding_idx: int | None

    @property
    def is_packed(self) -> bool:
        """Whether keys contain the table number."""
        narrow = tf.as_dtype(self.key_type).size == 4
        return narrow and self.num_tables > 1 and not self.shared_ids

    @property
    def is_apart(self) -> bool:
        """Whether each table needs its own table of rows."""
        wide = tf.as_dtype(self.key_type).size == 8
        return wide and self.num_tables > 1 and not self.shared_ids

    @property
    def keys_in_words(self) -> str:
        """Describes the key layout. Rows can move between tables of equal layout."""
        return f"{self.num_tables} tables of {self.key_type} ids" if self.is_packed else "ids"

    def tables_of(self, keys: tf.Tensor) -> tf.Tensor:
        """The table of each packed key [n], int64 [n]."""
        # Keys of negative ids are below the key of id 0 of their table.
        half = _STRIDE // 2 if self.key_type == "int32" else 0
        return tf.math.floordiv(keys + tf.constant(half, tf.int64), _STRIDE)

    def batch(self, ids: Any, table_ids: Any) -> Batch:
        """The keys of ids.

        Args:
            ids: A tensor of integers. With `table_ids`, or with a single table, any shape;
                otherwise the last axis is the tables.
            table_ids: None, or integers of the shape of `ids`.

        Raises:
            TypeError: If they are not dense integers.
            ValueError: If their shapes do not fit.
            tf.errors.InvalidArgumentError: At run time, if an id does not fit the key type, or a
                table id is out of range.
        """
        key_type = tf.as_dtype(self.key_type)
        ids = cast_ids(_dense(ids, "ids", self.owner), key_type, self.owner, setting="key_type")
        by_column = table_ids is None and self.num_tables > 1
        if by_column:
            ids = self._with_columns(ids)
        keys = tf.bitcast(ids, tf.int64) if key_type == tf.uint64 else tf.cast(ids, tf.int64)
        keys = tf.reshape(keys, [-1])
        tables = self._tables(ids, table_ids)
        is_kept = None
        if self.padding_idx is not None:
            is_kept = tf.not_equal(keys, tf.constant(_signed(self.padding_idx), tf.int64))
        if self.is_packed:
            assert tables is not None  # there are several tables
            keys += tables * _STRIDE
        return Batch(keys, tables, is_kept, ids.shape, tf.shape(ids), by_column)

    def _with_columns(self, ids: tf.Tensor) -> tf.Tensor:
        """Checks that the last axis of ids has an item for each table.

        Raises:
            ValueError: If it does not.
        """
        check_columns(ids.shape, self.num_tables, self.owner)
        if ids.shape.rank is not None and ids.shape[-1] is not None:
            return ids
        wanted = tf.debugging.assert_equal(
            tf.shape(ids)[-1],
            self.num_tables,
            f"The last axis of `ids` of {self.owner!r} must have a place for each of "
            f"{self.num_tables} tables, without `table_ids`.",
        )
        return validation.with_dependencies(ids, wanted)

    def _tables(self, ids: tf.Tensor, table_ids: Any) -> tf.Tensor | None:
        """The table of each id, flat, int64 [n]; None if there is a single table."""
        if table_ids is None:
            if self.num_tables == 1:
                return None
            columns = tf.range(self.num_tables, dtype=tf.int64)
            return tf.reshape(tf.broadcast_to(columns, tf.shape(ids)), [-1])
        tables = _dense(table_ids, "table_ids", self.owner)
        if not tables.dtype.is_integer:
            raise TypeError(
                f"`table_ids` of {self.owner!r} must be integers. Received: "
                f"dtype={tables.dtype.name}"
            )
        check_same_shape(ids.shape, tables.shape, self.owner)
        message = (
            f"`table_ids` of {self.owner!r} must be from 0 to {self.num_tables - 1}, and of the "
            "shape of `ids`."
        )
        # A number beyond int64 becomes negative.
        tables = tf.cast(tables, tf.int64)
        if not (ids.shape.is_fully_defined() and tables.shape.is_fully_defined()):
            same = tf.debugging.assert_equal(tf.shape(ids), tf.shape(tables), message)
            tables = validation.with_dependencies(tables, same)
        tables = validation.in_range(tables, 0, self.num_tables - 1, message)
        return tf.reshape(tables, [-1]) if self.num_tables > 1 else None


def check_columns(shape: Any, num_tables: int, owner: str) -> None:
    """Refuses ids without table ids whose last axis is not the tables.

    Raises:
        ValueError: If it is not.
    """
    shape = tf.TensorShape(shape)
    if shape.rank is None or num_tables == 1:
        return
    if shape.rank == 0 or shape[-1] not in (None, num_tables):
        raise ValueError(
            f"`ids` of {owner!r} must be of shape (batch, {num_tables}), an id for each table, or "
            f"come with `table_ids`. Received: ids of shape {shape}"
        )


def check_same_shape(ids: Any, table_ids: Any, owner: str) -> None:
    """Refuses table ids whose shape differs from the ids'.

    Raises:
        ValueError: If the shapes differ.
    """
    if not tf.TensorShape(ids).is_compatible_with(table_ids):
        raise ValueError(
            f"`table_ids` of {owner!r} must be of the shape of `ids`, {tf.TensorShape(ids)}. "
            f"Received: table_ids of shape {tf.TensorShape(table_ids)}"
        )


def _dense(value: Any, argument: str, owner: str) -> tf.Tensor:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"`{argument}` of {owner!r} must be dense: fill short lines up with `padding_idx`. "
            f"Received: {type(value).__name__}"
        )
    return validation.as_tensor(value, argument, owner)


def _signed(number: int) -> int:
    """The int64 with the bits of a uint64."""
    return number - 2**64 if number >= 2**63 else number

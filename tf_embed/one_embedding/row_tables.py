# SPDX-License-Identifier: Apache-2.0
"""The tables that hold the rows of a layer, and one lookup in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed.layers.table_layer import TableLayer
from tf_embed.one_embedding.batch import Batch, KeySpace
from tf_embed.one_embedding.row_drawer import RowDrawer
from tf_embed.table import lookups
from tf_embed.table.lookups import Lookup
from tf_embed.table.sharding import default_partition_fn
from tf_embed.variable.anchor import unless_frozen
from tf_embed.variable.lookup import gradient_token
from tf_embed.variable.variable import Variable


class RowTable(TableLayer):
    """A table of rows with int64 keys; a part of a layer, which looks up its rows."""

    def __init__(
        self, dim: int, value_dtype: Any, initializer: Any, table_name: str, **options: Any
    ) -> None:
        super().__init__(
            dim,
            "int64",
            value_dtype,
            initializer,
            # `TableLayer` formats the name.
            table_name=table_name.replace("{", "{{").replace("}", "}}"),
            padding_id=None,
            partitioner=None,
            unknown_value=None,
            distribution=None,
            **options,
        )


class RowLookup:
    """Looks up the ids of a call, differentiably.

    Args:
        keys: Maps ids to keys.
        members: The tables of rows: for each table, or for all tables together, one per folder.
        drawers: Drawers of initial rows, for tables that do not draw their own.
    """

    def __init__(
        self,
        keys: KeySpace,
        members: Sequence[Variable],
        num_folders: int,
        dim: int,
        drawers: Sequence[RowDrawer],
    ) -> None:
        self._key_space = keys
        self._members = list(members)
        self._num_folders = num_folders
        self._dim = dim
        # Only the lookup knows the first table of a shared id, so the initial row is drawn here.
        is_shared = keys.shared_ids and keys.num_tables > 1
        self._drawer_of_shared = drawers[0] if is_shared and drawers else None

    def find(self, batch: Batch, training: bool) -> tf.Tensor:
        """The rows of a batch [n, dim], of the dtype of rows; zeros for padding."""
        is_apart = self._key_space.is_apart and self._num_folders == 1
        if is_apart and batch.is_by_column and batch.is_kept is None:
            # Each column belongs to a member.
            columns = tf.unstack(tf.reshape(batch.keys, [-1, len(self._members)]), axis=1)
            found = [
                self._find_in(member, keys, None, training)
                for member, keys in zip(self._members, columns, strict=True)
            ]
            return tf.reshape(tf.stack(found, axis=1), [-1, self._dim])
        routes = self._routes(batch)
        if routes is None and batch.is_kept is None:
            return self._find_in(self._members[0], batch.keys, batch.tables, training)
        found = []
        for number, member in enumerate(self._members):
            places = tf.where(self._is_of(number, routes, batch))
            tables = None if batch.tables is None else tf.gather_nd(batch.tables, places)
            rows = self._find_in(member, tf.gather_nd(batch.keys, places), tables, training)
            found.append(tf.scatter_nd(places, rows, [tf.size(batch.keys, tf.int64), self._dim]))
        # Each member has zeros at the keys of other members.
        return tf.add_n(found)

    def prefetch(self, batch: Batch) -> list[tf.Operation]:
        """The ops that promote the rows of a batch from disk."""
        routes = self._routes(batch)
        ops = []
        for number, member in enumerate(self._members):
            if member.table.options.has_tiers:
                keys = tf.boolean_mask(batch.keys, self._is_of(number, routes, batch))
                ops.append(member.table.prefetch(keys))
        return ops

    def _is_of(self, number: int, routes: tf.Tensor | None, batch: Batch) -> tf.Tensor:
        """The mask of the keys whose rows are in a member, bool [n]."""
        if routes is None:
            return tf.ones_like(batch.keys, tf.bool) if batch.is_kept is None else batch.is_kept
        is_of = tf.equal(routes, number)
        return is_of if batch.is_kept is None else tf.logical_and(is_of, batch.is_kept)

    def _routes(self, batch: Batch) -> tf.Tensor | None:
        """The number of the member of each key, int64 [n]; None if there is a single member."""
        if len(self._members) == 1:
            return None
        folders = tf.constant(0, tf.int64)
        if self._num_folders > 1:
            folders = tf.cast(default_partition_fn(batch.keys, self._num_folders), tf.int64)
        if not self._key_space.is_apart:
            return folders
        assert batch.tables is not None  # as there are several
        return batch.tables * self._num_folders + folders

    def _find_in(
        self, member: Variable, keys: tf.Tensor, tables: tf.Tensor | None, training: bool
    ) -> tf.Tensor:
        """Rows of keys in a member."""
        table, defaults = member.table, None
        if self._drawer_of_shared is not None:
            assert tables is not None  # as there are several
            defaults = self._rows_of_first(keys, tables)
            # The step does not know the first table of an id, so rows are inserted before it. A
            # lookup that is only recorded runs again later.
            if training and lookups.recording() is None:
                _insert_unless_frozen(member, keys, defaults)
        lookup = Lookup(table, keys, training, token=gradient_token(member), defaults=defaults)
        return table.look_up(lookup)

    def _rows_of_first(self, keys: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        """Initial rows of shared ids, from the table of each id's first occurrence in the batch."""
        assert self._drawer_of_shared is not None
        _, which = tf.unique(keys)
        places = tf.range(tf.size(keys))
        first = tf.math.unsorted_segment_min(places, which, tf.size(keys))
        return self._drawer_of_shared.rows_of(keys, tf.gather(tables, tf.gather(first, which)))


def _insert_unless_frozen(member: Variable, keys: tf.Tensor, defaults: tf.Tensor) -> None:
    """Inserts the rows of absent keys that a step would insert, unless frozen at run time."""
    assert member.anchor is not None  # tables of layers are trainable
    # A slice instead of a condition, so that workers that disagree do not wait for each other.
    keys, defaults = unless_frozen(member.anchor, tf.size(keys), keys, defaults)
    member.table.find_or_insert(keys, defaults, training=True)

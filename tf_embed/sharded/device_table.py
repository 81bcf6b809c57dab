# SPDX-License-Identifier: Apache-2.0
"""`DeviceTable`: a table whose shards are on several GPUs of this process.

Each GPU has a table with its shards, a part. Gradients and rows are gathered and copied between the
GPUs by TensorFlow. Rows of equal keys are copied once, and each gradient is copied: the part sums
those of a key in the order of the batch, as a table on one GPU does. So both have the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed.ops import pooling_ops
from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.sharded.device_shards import DeviceShards
from tf_embed.sharded.parted_table import PartedTable
from tf_embed.sharded.spreads import AcrossDevices, OnDevice
from tf_embed.table import callable_rows
from tf_embed.table.lookups import Lookup
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions


class DeviceTable(PartedTable):
    """A table whose shards are on several GPUs.

    Args:
        options: The options of the whole table.
    """

    spread: AcrossDevices

    def __init__(self, options: TableOptions) -> None:
        self._shards = DeviceShards(options)
        self.spread = AcrossDevices(self._shards)
        parts = [Table(self._shards.options_of(number)) for number in range(self.spread.count)]
        for number, part in enumerate(parts):
            part.spread = OnDevice(self._shards, number)
        # It never has a row, so a lookup in it gives the rows of `defaults`. Their gradients, and
        # their sums in bags, are then those of any table on a GPU.
        self._front = Table(
            TableOptions(
                name=options.name,
                key_dtype=options.key_dtype,
                value_dtype=options.value_dtype,
                dim=options.dim,
                init_size=0,
                device=options.device,
            )
        )
        super().__init__(options, parts)

    # The copy of a table of one process.
    __deepcopy__ = Table.__deepcopy__

    # Lookups.

    @override
    def find(
        self,
        keys: tf.Tensor,
        defaults: tf.Tensor | None = None,
        token: tf.Tensor | None = None,
        *,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)

        def find(part: Table, some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return part.find(some, training=training)

        # Without a token the rows go to the device of the caller at once.
        with contextlib.nullcontext() if token is None else tf.device(self.options.device):
            rows, exists = self._joined(find, routed.counts, [routed.keys])
            rows, exists = routed.of_batch(rows), routed.of_batch(exists)
            if defaults is not None:
                rows = tf.where(exists[..., tf.newaxis], rows, tf.cast(defaults, rows.dtype))
            elif self.options.initializer.is_of_python:
                rows = callable_rows.put_in(self.options, keys, rows, exists)
            if token is not None:
                rows, _ = self._front.find(keys, rows, token)
        return self._with_shape(rows, keys), exists

    @override
    def _look_up(self, lookup: Lookup) -> tf.Tensor:
        """Fetches the rows, and pools them on the first device."""
        keys, defaults, pooling = lookup.keys, lookup.defaults, lookup.pooling
        if pooling is None:
            return super()._look_up(lookup)
        with tf.device(self.options.device):
            if pooling.padding is None:
                rows = self.find(keys, defaults, training=lookup.training)[0]
            else:
                rows = self._rows_but(pooling.padding, keys, defaults, lookup.training)
            of_front = dataclasses.replace(lookup, table=self._front, defaults=rows, training=False)
            return self._front.pool(of_front)

    def _rows_but(
        self,
        padding: pooling_ops.Padding,
        keys: tf.Tensor,
        defaults: tf.Tensor | None,
        training: bool,
    ) -> tf.Tensor:
        """The rows of keys, keys.shape + [dim]; zeros for padding, which is not looked up."""
        dim, flat = self.options.dim, tf.reshape(keys, [-1])
        pooling = Pooling((), None, "sum", padding)
        places = tf.where(tf.logical_not(pooling.is_padding(flat)))
        if defaults is not None:
            shape = tf.concat([tf.shape(keys), [dim]], 0)
            of_each = tf.reshape(tf.broadcast_to(defaults, shape), [-1, dim])
            defaults = tf.gather_nd(of_each, places)
        rows, _ = self.find(tf.gather_nd(flat, places), defaults, training=training)
        rows = tf.scatter_nd(places, rows, [tf.size(flat, tf.int64), dim])
        return self._with_shape(tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0)), keys)

    @override
    def find_or_insert(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None, *, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        options = self.options
        if defaults is None and options.initializer.is_of_python:
            # A row that has expired is absent to the op, and present here.
            may_expire = options.policy is not None and options.policy.ttl_seconds is not None
            skipped = None if may_expire else self.row_statistics(keys)[1]
            defaults = callable_rows.drawn(options, keys, skipped)
        return super().find_or_insert(keys, defaults, training=training)

    # Training.

    @override
    def apply(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        *,
        rule: str,
        hyper: tf.Tensor,
        step: tf.Tensor,
        distinct: bool = False,
        stochastic_rounding: bool = False,
        unless_frozen: tf.Tensor | None = None,
        joins: bool = False,
    ) -> tf.Operation | None:
        del joins  # the parts step by themselves, each on its device
        if self.options.initializer.is_of_python:
            self.find_or_insert(keys, training=True)  # as in `Table`
        routed, order, counts = self._each(keys)
        rows = tf.gather(self._rows_of(keys, gradients), order)

        def apply(part: Table, some: tf.Tensor, rows: tf.Tensor) -> Any:
            return part.apply(
                some,
                rows,
                rule=rule,
                hyper=hyper,
                step=step,
                distinct=distinct,
                stochastic_rounding=stochastic_rounding,
                unless_frozen=unless_frozen,
            )

        return self._updated(keys, self._done(apply, counts, [routed, rows]))

    @override
    def insert_or_assign(
        self, keys: tf.Tensor, values: tf.Tensor, distinct: bool = False
    ) -> tf.Operation | None:
        return self._updated(keys, super().insert_or_assign(keys, values, distinct))

    @override
    def accum(
        self, keys: tf.Tensor, old_values: tf.Tensor, new_values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Operation | None:
        return self._updated(keys, super().accum(keys, old_values, new_values, exists))

    @override
    def find_slots(
        self, keys: tf.Tensor, rule: ExternalRule
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        routed = self.spread.route(keys)
        found = self._joined(
            lambda part, some: part.find_slots(some, rule), routed.counts, [routed.keys]
        )
        rows, slots, exists = map(routed.of_batch, found)
        if self.options.initializer.is_of_python:
            rows = callable_rows.put_in(self.options, keys, rows, exists)
        return self._with_shape(rows, keys), slots, exists

    @override
    def assign_slots(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        rule: str | ExternalRule,
        initial_value: float = 0.0,
    ) -> tf.Operation | None:
        # Keys are distinct, so none of the rows is lost.
        routed, order, counts = self._each(keys)
        sent = [routed]
        for rows in (values, slots):
            shape = tf.stack([tf.size(keys), tf.shape(rows)[-1]])
            sent.append(tf.gather(tf.reshape(rows, shape), order))

        def assign(part: Table, some: tf.Tensor, rows: tf.Tensor, slots: tf.Tensor) -> Any:
            return part.assign_slots(some, rows, slots, rule, initial_value)

        return self._updated(keys, self._done(assign, counts, sent))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The turns of all parts, in their order, so that two blocks never wait for each other."""
        with contextlib.ExitStack() as turns:
            for part in self._parts:
                turns.enter_context(part.turn())
            yield

    # Waiting gradients of removed keys are dropped.

    @override
    def erase(self, keys: tf.Tensor) -> tf.Operation | None:
        self.trainers.forget(keys)
        return super().erase(keys)

    @override
    def clear(self) -> tf.Operation | None:
        self.trainers.forget()
        return super().clear()

    @override
    def size(self, shard: int = -1) -> tf.Tensor:
        if shard < 0:
            return super().size()
        number, place = self._shards.place_of(shard)
        return self._parts[number].size(place)

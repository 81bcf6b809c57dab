# SPDX-License-Identifier: Apache-2.0
"""The ops on all rows of a table, typed."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


class Exported(NamedTuple):
    """A consistent snapshot of a whole table.

    Attributes:
        keys: [n].
        values: [n, dim].
        slots: [n, slots of a row].
        meta: int64 vector: seed, table id, rule and slot groups, see cc/core/files/table_meta.h.
        statistics: int64 [n, statistics of a row]: the usage statistics of each row.
        policy: int64 vector: the table's clock, its set of statistics, and the admission counts.
    """

    keys: tf.Tensor
    values: tf.Tensor
    slots: tf.Tensor
    meta: tf.Tensor
    statistics: tf.Tensor
    policy: tf.Tensor


def size(handle: tf.Tensor, shard: int | tf.Tensor) -> tf.Tensor:
    """Number of keys in a shard, or in all shards if `shard` is -1; int64 scalar."""
    return _raw.tf_embed_size(table=handle, shard=tf.cast(shard, tf.int64))


def export(
    handle: tf.Tensor,
    *,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    slot_dtype: tf.DType,
    dim: int,
    with_slots: bool,
    with_policy: bool = True,
) -> Exported:
    """Copies the whole table.

    Args:
        with_slots: Whether to copy slots; otherwise their width is 0.
        with_policy: Whether to copy statistics, clock and admission counts; otherwise the width of
            the statistics is 0.
    """
    exported = _raw.tf_embed_export(
        table=handle,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        slot_dtype=slot_dtype,
        dim=dim,
        with_slots=with_slots,
        with_policy=with_policy,
    )
    return Exported(*exported)


def stats(handle: tf.Tensor) -> tf.Tensor:
    """Returns counts of a table's events; an int64 vector, see cc/core/store/store_stats.h."""
    return _raw.tf_embed_stats(table=handle)


def origin(handle: tf.Tensor) -> tf.Tensor:
    """The seed and the table id, int64 [2], from which a table draws random initial rows."""
    return _raw.tf_embed_origin(table=handle)

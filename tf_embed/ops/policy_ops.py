# SPDX-License-Identifier: Apache-2.0
"""The ops of admission and eviction, typed."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import _library

_raw = _library.load()


def restrict(handle: tf.Tensor, num_reserved: tf.Tensor, *, order: str) -> tf.Tensor:
    """Removes rows until `num_reserved` are left; the number of removed rows, int64 scalar.

    Args:
        num_reserved: int64 scalar.
        order: The order of removal, a name of `policies.ORDERS`.
    """
    return _raw.tf_embed_restrict(table=handle, num_reserved=num_reserved, order=order)


def drain_evicted(
    handle: tf.Tensor, *, key_dtype: tf.DType, value_dtype: tf.DType, dim: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Keys [n] and rows [n, dim] that the policy has evicted since the last call."""
    return _raw.tf_embed_drain_evicted(
        table=handle, key_dtype=key_dtype, value_dtype=value_dtype, dim=dim
    )


def row_statistics(
    handle: tf.Tensor, keys: tf.Tensor, owners: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the usage statistics of rows. The call itself is not a use.

    Returns:
        int64, keys.shape + [5]: last step, last time in milliseconds, number of steps, score,
        latest epoch, 0 for statistics that are not kept and for absent keys; and whether the table
        holds each key, keys.shape.
    """
    return _raw.tf_embed_row_statistics(table=handle, keys=keys, owners=owners)


def set_scores(
    handle: tf.Tensor, keys: tf.Tensor, owners: tf.Tensor, scores: tf.Tensor
) -> tf.Operation | None:
    """Sets the scores of rows, int64, keys.shape; absent keys are skipped."""
    return _raw.tf_embed_set_scores(table=handle, keys=keys, owners=owners, scores=scores)


def set_clock(
    handle: tf.Tensor,
    step: int | tf.Tensor,
    milliseconds: int | tf.Tensor,
    epoch: int | tf.Tensor,
) -> tf.Operation | None:
    """Sets the clock by which a table notes uses.

    Args:
        step: The number of the present step, -1 to leave it.
        milliseconds: The time since 1970, at which the clock then stands; -1 for the system's time,
            -2 to leave it.
        epoch: The number of the present epoch, -1 to leave it to the steps.
    """
    return _raw.tf_embed_set_clock(
        table=handle,
        step=tf.cast(step, tf.int64),
        milliseconds=tf.cast(milliseconds, tf.int64),
        epoch=tf.cast(epoch, tf.int64),
    )


def expired_rows(handle: tf.Tensor, *, renews: bool = False) -> tf.Tensor:
    """The number of rows that have expired and are still there, int64 scalar.

    Args:
        renews: Whether the time to live of all rows begins now.
    """
    return _raw.tf_embed_expired_rows(table=handle, renews=renews)


def export_scores(
    handle: tf.Tensor, split_size: int | tf.Tensor, *, key_dtype: tf.DType, order: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """All keys [n] and the number that an order compares first, int64 [n].

    Args:
        split_size: How many rows are copied at a time, at most.
        order: A name of `policies.ORDERS` whose statistics the table keeps.
    """
    return _raw.tf_embed_export_scores(
        table=handle, split_size=tf.cast(split_size, tf.int64), key_dtype=key_dtype, order=order
    )

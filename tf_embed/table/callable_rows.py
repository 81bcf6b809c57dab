# SPDX-License-Identifier: Apache-2.0
"""The rows of absent keys for a table's ops, if Python draws them and not the table."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import policy_ops, pooling_ops
from tf_embed.table.initializers import drawn_rows
from tf_embed.table.table_options import TableOptions

_raw = _library.load()


def defaults(
    handle: tf.Tensor,
    options: TableOptions,
    keys: tf.Tensor,
    owners: tf.Tensor,
    empty: tf.Tensor,
    padding: pooling_ops.Padding | None,
) -> tf.Tensor:
    """The `defaults` argument of an op that gives absent keys rows that Python draws.

    A row is drawn for each new key. If rows expire, it is drawn for present keys too, because a row
    that a lookup finds may be absent to the op.

    Args:
        keys: Any shape.
        owners: Their shards, as the ops take them.
        empty: The argument if no rows are drawn.
        padding: None, or a key that is never looked up, so no row is drawn for it.

    Returns:
        keys.shape + [dim], or `empty`.
    """
    skipped = None
    if options.policy is None or options.policy.ttl_seconds is None:
        if options.redis is None:
            # Unlike a lookup, it counts no key and reads no row from a disk.
            _, skipped = policy_ops.row_statistics(handle, keys, owners)
        else:
            _, skipped = _raw.tf_embed_find(
                table=handle, keys=keys, owners=owners, defaults=empty, tokens=[], dim=options.dim
            )
    if padding is not None:
        is_padding = tf.equal(keys, tf.constant(padding, keys.dtype))
        skipped = is_padding if skipped is None else tf.logical_or(skipped, is_padding)
    rows = drawn(options, keys, skipped)
    return empty if rows is None else rows


def put_in(options: TableOptions, keys: tf.Tensor, rows: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
    """Fills in the rows of the keys that a lookup did not find.

    Args:
        keys: Any shape.
        rows: The rows that the lookup returned, keys.shape + [dim]; zeros for absent keys.
        exists: Which keys are present, keys.shape.

    Returns:
        The rows. Their gradient goes to `rows`, also for absent keys.
    """
    new = drawn(options, keys, exists)
    if new is None:
        return rows
    if options.value_dtype.is_floating:
        # The sum passes the gradients of absent keys to the lookup, unlike tf.where.
        return rows + tf.stop_gradient(new)
    return tf.where(exists[..., tf.newaxis], rows, new)


def drawn(options: TableOptions, keys: tf.Tensor, skipped: tf.Tensor | None) -> tf.Tensor | None:
    """The rows that Python draws for keys; see `initializers.drawn_rows`."""
    kind = {"dim": options.dim, "value_dtype": options.value_dtype, "name": options.name}
    return drawn_rows(options.initializer, keys, skipped, **kind)

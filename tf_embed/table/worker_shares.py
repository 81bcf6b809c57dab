# SPDX-License-Identifier: Apache-2.0
"""How a number of rows is divided among workers."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import validation
from tf_embed.exchange.workers import Workers


def share_of(rank: int, num_reserved: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """How many rows a worker keeps, in proportion to the rows that it has; int64 scalar.

    The shares of all workers add up to `num_reserved`, or to all rows if there are fewer. No share
    is larger than the rows of its worker.

    Args:
        rank: The worker.
        num_reserved: How many rows stay, int64 scalar.
        sizes: How many rows each worker has, int64 [workers].
    """
    total = tf.reduce_sum(sizes)
    kept = tf.minimum(num_reserved, total)
    up_to = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(sizes)], 0)[rank : rank + 2]
    # Floor of kept * up_to / total. The product may have more than 64 bits, so the quotient is
    # taken of floats and then corrected by the remainder, for which the lower 64 bits suffice.
    divisor = tf.maximum(total, 1)
    wide = tf.cast(kept, tf.float64) * tf.cast(up_to, tf.float64)
    quotients = tf.cast(wide / tf.cast(divisor, tf.float64), tf.int64)
    bounds = quotients + (kept * up_to - quotients * divisor) // divisor
    return bounds[1] - bounds[0]


def agreed_share(workers: Workers, gathered: tf.Tensor, name: str) -> tf.Tensor:
    """The share of this worker.

    Args:
        workers: The workers.
        gathered: Of each, how many rows it has and how many it wants to stay, int64 [2 * workers].
        name: The table's, for messages.

    Raises:
        InvalidArgumentError: They want different numbers. All workers raise it.
    """
    numbers = tf.reshape(gathered, [-1, 2])
    if workers.places is not None:
        numbers = tf.gather(numbers, workers.places)
    sizes, wanted = tf.unstack(numbers, axis=1)
    same = tf.debugging.assert_equal(
        wanted,
        wanted[0],
        f"`num_reserved` must be the same on all workers, of the table {name!r}.",
    )
    wanted = validation.with_dependencies(wanted, same)
    return share_of(workers.rank, wanted[0], sizes)

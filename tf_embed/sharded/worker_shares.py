# SPDX-License-Identifier: Apache-2.0
"""Division of a number of rows among workers."""

from __future__ import annotations

import tensorflow as tf

from tf_embed import validation


def share_of(rank: int, num_reserved: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """The rows that a worker keeps, in proportion to the rows that it has; int64 scalar.

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
    # computed in floats and then corrected by the remainder, for which the lower 64 bits suffice.
    divisor = tf.maximum(total, 1)
    wide = tf.cast(kept, tf.float64) * tf.cast(up_to, tf.float64)
    quotients = tf.cast(wide / tf.cast(divisor, tf.float64), tf.int64)
    bounds = quotients + (kept * up_to - quotients * divisor) // divisor
    return bounds[1] - bounds[0]


def agreed(numbers: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Checks that all workers call `restrict` with the same numbers.

    Args:
        numbers: For each worker, its number of rows, `num_reserved` and `trigger`, int64 [workers,
            3].
        name: The table's name, for messages.

    Returns:
        The number of rows of each worker, int64 [workers], and the common `num_reserved` and
        `trigger`.

    Raises:
        InvalidArgumentError: If the arguments differ. All workers raise it.
    """
    sizes, reserved, triggers = tf.unstack(numbers, axis=1)
    checks = [
        tf.debugging.Assert(
            tf.reduce_all(tf.equal(wanted, wanted[0])),
            [
                f"`{argument}` must be the same on all workers, of the table {name!r}. Received "
                f"of each worker{default}:",
                wanted,
            ],
            summarize=-1,  # all of them
        )
        for argument, wanted, default in (
            ("num_reserved", reserved, ""),
            ("trigger", triggers, ", -1 for none"),
        )
    ]
    sizes = validation.with_dependencies(sizes, *checks)
    return sizes, reserved[0], triggers[0]

# SPDX-License-Identifier: Apache-2.0
"""A time-out for all collectives of a block, without a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import watch_ops

DEFAULT_SECONDS = 300.0


def timeout(
    seconds: float = DEFAULT_SECONDS, what: str = "a step"
) -> contextlib.AbstractContextManager[None]:
    """Ends the collectives of a block with an error if the block takes too long.

    For eager code that calls a step of several workers. A worker that waits for a hung worker
    raises tf.errors.DeadlineExceededError, and must be restarted from a checkpoint. Unlike the
    `timeout_seconds` of tf.distribute.experimental.CommunicationOptions, it keeps no thread asleep
    for each collective until the time is over.

    Args:
        seconds: How long the block may take, a number above 0. Default: 300.
        what: The work of the block, for the message; a name with the rules of a `tf_embed.Variable`
            name.

    Returns:
        A context manager.

    Raises:
        TypeError: If `seconds` is not a number, or `what` is not a str.
        ValueError: If `seconds` is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> with tf_embed.distributed.timeout(60):
        ...     total = tf.reduce_sum([1, 2])
        >>> int(total)
        3
    """
    seconds = validation.positive_number(seconds, "seconds", most=1e8)
    what = validation.name_of(what, "what")
    return _watched(float(seconds), what)


class RenewedTimeout:
    """A time-out that begins again with each step, so that time between steps counts too."""

    def __init__(self) -> None:
        self._watch: tf.Tensor | None = None

    def renew(self, seconds: float, what: str = "a step") -> None:
        """Ends the collectives of this process unless it is renewed or ended in time."""
        # Eager, because the watch must start now and not in each run of a graph.
        with tf.init_scope():
            self._watch, _ = watch_ops.start_watch(float(seconds), what)

    def end(self) -> None:
        """Ends the time-out. A watch ends with its last tensor."""
        self._watch = None


@contextlib.contextmanager
def _watched(seconds: float, what: str) -> Iterator[None]:
    with tf.init_scope():
        watch, _ = watch_ops.start_watch(seconds, what)
    try:
        yield
    finally:
        with tf.init_scope():
            watch_ops.end_watch(watch, tf.constant(True))

# SPDX-License-Identifier: Apache-2.0
"""Questions about the workers of a strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_embed import validation

MOST_NUMBERS = 8


def worker_count(strategy: tf.distribute.Strategy) -> int:
    """The number of processes in a strategy's steps: 1 unless it is a multi-worker strategy."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return max(1, len(cluster.get("chief", ())) + len(cluster.get("worker", ())))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process prints and writes models.

    It does if it is the task "chief", or worker 0 if there is no chief, or if the strategy is not a
    multi-worker strategy.

    Args:
        strategy: A tf.distribute.Strategy.

    Returns:
        A bool.

    Raises:
        TypeError: If `strategy` is not a strategy.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> tf_embed.distributed.is_chief(tf.distribute.get_strategy())
        True
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise TypeError(
            "`strategy` must be a tf.distribute.Strategy. Received: strategy="
            f"{validation.shown(strategy)}"
        )
    if worker_count(strategy) == 1:
        return True
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return (resolver.task_type, resolver.task_id) == ("chief" if has_chief else "worker", 0)


@functools.cache
# A function for each strategy, so that later calls trace nothing.
def _gather(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from the numbers of this worker to the numbers of all replicas."""

    @tf.function
    def gather(numbers: tf.Tensor) -> tf.Tensor:
        def replica() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # Each replica fills its own row, so that the sum over replicas is a gather.
            one_hot = tf.one_hot(
                context.replica_id_in_sync_group, context.num_replicas_in_sync, dtype=tf.int64
            )
            return context.all_reduce(tf.distribute.ReduceOp.SUM, one_hot[:, None] * numbers)

        return strategy.experimental_local_results(strategy.run(replica))[0]

    return gather


def numbers_of_workers(
    strategy: tf.distribute.Strategy, numbers: Sequence[int] = ()
) -> list[list[int]]:
    """Some numbers, at most `MOST_NUMBERS`, of each replica, in the replicas' order.

    Every worker must call it at the same point, so it is also a barrier.
    """
    # Always the same length: TensorFlow remembers the shape of a collective.
    padded = [*numbers, *[0] * (MOST_NUMBERS - len(numbers))]
    rows = _gather(strategy)(tf.constant(padded, tf.int64)).numpy()
    return [[int(one) for one in row[: len(numbers)]] for row in rows]

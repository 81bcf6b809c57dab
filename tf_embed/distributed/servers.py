# SPDX-License-Identifier: Apache-2.0
"""The main function of each process in a cluster with parameter servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from tf_embed import validation
from tf_embed.exchange.servers import servers_of

# The chief's exit code after the loss of a server, which tells a supervisor to restart both. It is
# EX_TEMPFAIL of sysexits.h.
LOST_SERVER_EXIT_CODE = 75


class ServerLostError(RuntimeError):
    """A parameter server has died. This process can't continue training, but a new chief can."""


def run_with_servers(
    train: Callable[[tf.distribute.ParameterServerStrategy], Any], *, run_id: str | None = None
) -> Any:
    """Runs the task of this process in training with parameter servers, as `TF_CONFIG` names it.

    A worker, `worker`, and a parameter server, `ps`, serve until they are terminated. The chief
    waits for them, compares their builds of the op library with its own, and calls `train` with a
    strategy. Tables that are made in the strategy's scope have their rows on the servers. If
    `train` raises `ServerLostError`, the chief prints it and exits at once, with code 75.

    Args:
        train: A function of the tf.distribute.ParameterServerStrategy, called on the chief.
        run_id: The name of this run's tables on the servers. A chief that reuses the `run_id` of a
            dead one finds the rows that the servers still have. Default: a unique name, which makes
            new tables.

    Returns:
        The result of `train`, on the chief. Other tasks do not return.

    Raises:
        RuntimeError: If a server or a worker has another build of the op library.
        TypeError: If `train` is not a function, or `run_id` is not a str.
        ValueError: If there is no `TF_CONFIG` with a cluster, or `run_id` is not a valid name.

    Example:
        >>> import tf_embed
        >>> def train(strategy):
        ...     with strategy.scope():
        ...         return tf_embed.Variable(dim=8)
        >>> if __name__ == "__main__" and "TF_CONFIG" in os.environ:
        ...     tf_embed.distributed.run_with_servers(train)
    """
    validation.function_of(train, "train")
    # Makes calls to a dead server fail at once.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec()
    if "ps" not in cluster.jobs or "worker" not in cluster.jobs:
        raise ValueError(
            "The environment variable TF_CONFIG must have a cluster with tasks `worker` and `ps`. "
            f"Received: TF_CONFIG={os.environ.get('TF_CONFIG')}"
        )
    if resolver.task_type in ("worker", "ps"):
        _serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    servers_of(strategy, run_id)
    try:
        return train(strategy)
    except ServerLostError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()  # os._exit does not flush. sys.exit would wait for the dead server.
        os._exit(LOST_SERVER_EXIT_CODE)


def _serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> NoReturn:
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()
    raise AssertionError("A server that was joined never ends.")

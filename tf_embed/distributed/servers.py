# SPDX-License-Identifier: Apache-2.0
"""The processes of a cluster with parameter servers: what each of them runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from tf_embed import validation
from tf_embed.exchange.servers import servers_of

# What the chief exits with after it has lost a server, so that a supervisor starts both again: the
# code that sysexits.h calls EX_TEMPFAIL.
LOST_SERVER_EXIT_CODE = 75


class ServerLostError(RuntimeError):
    """A parameter server has died. This process can train no further; a new chief can."""


def run_with_servers(
    train: Callable[[tf.distribute.ParameterServerStrategy], Any], *, run_id: str | None = None
) -> Any:
    """Runs this process's part in training with parameter servers, as `TF_CONFIG` says.

    A worker, `worker`, and a parameter server, `ps`, serve until they are ended. The chief waits
    for them, compares their builds of the op library with its own, and calls `train` with a
    strategy. Tables that are made in the strategy's scope have their rows on the servers. If
    `train` raises `ServerLostError`, the chief prints it and exits at once, with code 75.

    Args:
        train: Called on the chief with the tf.distribute.ParameterServerStrategy.
        run_id: What this run's tables are called on the servers. A chief with the `run_id` of an
            earlier one, which has died, finds the rows that the servers have. Default: a name that
            no other run has, so the tables are new ones.

    Returns:
        What `train` gives. Only on the chief.

    Raises:
        RuntimeError: A server or a worker has another build of the op library.
        TypeError: `train` is no function, or `run_id` no str.
        ValueError: There is no `TF_CONFIG` with a cluster, or `run_id` is no name.

    Example:
        >>> import tf_embed
        >>> def train(strategy):
        ...     with strategy.scope():
        ...         return tf_embed.Variable(dim=8)
        >>> if __name__ == "__main__" and "TF_CONFIG" in os.environ:
        ...     tf_embed.distributed.run_with_servers(train)
    """
    validation.function_of(train, "train")
    # A call to a server that has died fails at once.
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
        sys.stdout.flush()  # what follows is no sys.exit: TensorFlow would wait for the server
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

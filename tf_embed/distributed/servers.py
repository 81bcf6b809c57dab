# SPDX-License-Identifier: Apache-2.0
"""The main function of each process in a cluster with parameter servers."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow as tf

from tf_embed import validation
from tf_embed.launch.servers import LOST_SERVER
from tf_embed.sharded.servers import Servers, servers_of

# The errors of calls to a process that has died, or whose connection was lost.
CONNECTION_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.UnavailableError,
)
# Parts of gRPC's messages about connections.
_OF_GRPC = re.compile(r"failed to connect|[Ss]ocket closed|[Cc]onnection re|recvmsg|GOAWAY")


class ServerLostError(RuntimeError):
    """A parameter server has died, or a call to it has lost its connection.

    This process can't continue training, but a new chief can.
    """


@contextlib.contextmanager
def server_errors(servers: Servers) -> Iterator[None]:
    """Raises any error in the block as ServerLostError if a server has died."""
    try:
        yield
    except ServerLostError:
        raise
    except Exception as error:
        lost = servers.lost()
        if not lost and _is_of_connection(error):
            raise lost_connection(error) from error
        if not lost:
            raise
        raise ServerLostError(
            f"The server ps {' and '.join(map(str, lost))} has died, and its rows with it: start "
            "it and the chief again, with the same `run_id` and `checkpoint_dir`. Received: "
            f"{type(error).__name__}: {error}"
        ) from error


def lost_connection(error: Exception) -> ServerLostError:
    """Returns the error that a chief raises if a call failed and all servers still run."""
    return ServerLostError(
        "A call has lost its connection to a server that still runs: start the chief again, with "
        f"the same `run_id` and `checkpoint_dir`. Received: {type(error).__name__}: {error}"
    )


def _is_of_connection(error: Exception) -> bool:
    """Returns whether gRPC raised an error, rather than an op, such as a write to a full disk."""
    is_any = isinstance(error, CONNECTION_ERRORS) and "/job:ps/" in str(error)
    return is_any and _OF_GRPC.search(str(error)) is not None


def run_with_servers(
    train: Callable[[tf.distribute.ParameterServerStrategy], Any], *, run_id: str | None = None
) -> Any:
    """Runs the task of this process in training with parameter servers, as `TF_CONFIG` names it.

    A worker, `worker`, and a parameter server, `ps`, serve until they are terminated. The chief
    waits for them, compares their builds of the op library with its own, and calls `train` with a
    strategy. Tables that are made in the strategy's scope have their rows on the servers. If a
    server dies, or a worker dies before `train` begins, the chief prints a `ServerLostError` and
    exits at once, with code 75.

    Args:
        train: A function of the tf.distribute.ParameterServerStrategy, called on the chief.
        run_id: The name of this run's tables on the servers. A chief that reuses the `run_id` of a
            dead chief finds the rows that the servers still have. Default: a unique name, which
            makes new tables.

    Returns:
        The result of `train`, on the chief. Other tasks do not return.

    Raises:
        RuntimeError: If a server or a worker has a different build of the op library.
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
    try:
        with _starting():
            servers = servers_of(strategy, run_id)
        with server_errors(servers):
            return train(strategy)
    except ServerLostError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()  # os._exit does not flush. sys.exit would wait for the dead server.
        os._exit(LOST_SERVER)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except CONNECTION_ERRORS as error:
        raise ServerLostError(
            "A server or a worker has died while the chief was starting: start it and the chief "
            f"again. Received: {type(error).__name__}: {error}"
        ) from error


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

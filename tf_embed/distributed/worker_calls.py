# SPDX-License-Identifier: Apache-2.0
"""`WorkerCalls`: calls of functions on the workers of a cluster with parameter servers."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tf_embed.distributed.servers import CONNECTION_ERRORS, lost_connection
from tf_embed.sharded.servers import Servers

_SECONDS_BETWEEN_COPIES = 0.05

Note = TypeVar("Note")


class WorkerCalls(Generic[Note]):
    """Calls of functions on any workers, whose results are fetched in the order of the calls.

    A call that a worker did not finish runs again on another worker.

    Args:
        converted: Makes a context in which a function begins, ends, or its result is fetched. The
            context may replace the error of the call by another error.
    """

    def __init__(
        self,
        coordinator: Any,
        servers: Servers,
        converted: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._coordinator = coordinator
        self._servers = servers
        self._converted = converted
        self._pending: collections.deque[tuple[Note, Any]] = collections.deque()
        self._has_failed = False

    def __len__(self) -> int:
        """The number of calls whose results have not been fetched."""
        return len(self._pending)

    def add(self, function: Callable[..., Any], args: Sequence[Any], note: Note) -> None:
        """Begins a call. `fetch` returns `note` with the result.

        Raises:
            Exception: As in `fetch`.
        """
        with self._errors():
            self._pending.append((note, self._coordinator.schedule(function, args=tuple(args))))

    def fetch(self) -> tuple[Note, Any]:
        """Waits for the first call and returns its note and its result.

        Raises:
            ServerLostError: If a call has lost its connection to a server that still runs.
            Exception: The first call that failed; any of them if a server has died.
        """
        with self._errors():
            note, result = self._pending.popleft()
            return note, fetched(result)

    def settle(self) -> None:
        """Waits for all calls. A finished call may run again if its worker was taken for dead.

        Raises:
            Exception: As in `fetch`.
        """
        with self._errors():
            self._coordinator.join()

    def drop(self) -> bool:
        """Waits for all calls and drops their results. Returns whether all succeeded."""
        self._pending.clear()
        if self._has_failed or self._servers.lost():
            return False  # calls to a dead server may never end
        try:
            self.settle()
        except Exception:  # the caller raises the error for which it drops the calls
            return False
        return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        with self._converted(), self._first_raised():
            yield

    @contextlib.contextmanager
    def _first_raised(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._has_failed = True
            if self._servers.lost():
                raise
            first = self._first_error(error)
            if isinstance(first, CONNECTION_ERRORS):
                raise lost_connection(first) from first
            if first is error:
                raise
            raise first from error

    def _first_error(self, error: Exception) -> Exception:
        # The coordinator keeps the first error, which `join` raises and forgets. Other errors are
        # of calls that it then cancelled.
        try:
            self._coordinator.join()
        except Exception as first:
            return first
        return error


def fetched(result: tf.distribute.coordinator.RemoteValue) -> Any:
    """Waits for the result of a call on a worker, which is not None, and returns it.

    Two threads copy a result from its worker: this thread, and the coordinator's. If the worker
    dies during the copies, both fail, and the coordinator calls the function on another worker. So
    a failed copy is not an error of the call. An error of the call is kept in `result`, which
    raises the same object each time.

    Args:
        result: The result that `ClusterCoordinator.schedule` returned.

    Raises:
        tf.errors.OpError: If the function failed, or a server has died.
    """
    last = None
    while True:
        try:
            found = result.get()
        except tf.errors.OpError as error:
            if error is last:
                raise
            last = error
        else:
            # None means that the coordinator is about to write an error into `result`.
            if found is not None:
                return found
        time.sleep(_SECONDS_BETWEEN_COPIES)

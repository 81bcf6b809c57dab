# SPDX-License-Identifier: Apache-2.0
"""Calls that all workers make together: they succeed on all of them, or raise on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from typing_extensions import override


class CollectiveCalls(Protocol):
    """Runs calls on all processes that have a part of a table.

    Attributes:
        count: How many processes there are.
        rank: Which of them this is.
    """

    count: int
    rank: int

    def run(self, function: Callable[[], Any]) -> list[Any]:
        """Calls a function on each worker, and returns the results of all of them.

        Args:
            function: Returns a value that JSON can hold, of at most 2 KiB.

        Raises:
            Exception: If the function raised it here. If it raised on another worker, an error of
                the same kind, which names the worker.
        """
        ...


def agree(calls: CollectiveCalls, function: Callable[[], Any], what: str) -> None:
    """Checks that all workers call something with the same argument.

    Args:
        calls: The processes that call it.
        function: Checks a value of this worker, and returns it; see `CollectiveCalls.run`.
        what: The name of the value, for the message.

    Raises:
        ValueError: If the values differ. All workers raise it.
    """
    for rank, other in enumerate(values := calls.run(function)):
        if other != values[0]:
            raise ValueError(
                f"All workers must have the same {what}. Received: worker 0 has {values[0]!r}, "
                f"worker {rank} has {other!r}"
            )


class OneProcess(CollectiveCalls):
    """The calls of a process that has all rows."""

    count = 1
    rank = 0

    @override
    def run(self, function: Callable[[], Any]) -> list[Any]:
        return [function()]

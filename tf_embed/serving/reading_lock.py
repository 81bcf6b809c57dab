# SPDX-License-Identifier: Apache-2.0
"""`ReadingLock`: several readers, or one update."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ReadingLock:
    """A fair shared/exclusive lock: later readers cannot starve a waiting update.

    A thread that already reads may enter `reading` again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._waiting = 0  # updates
        self._updates = False
        # The nesting depth of `reading` in this thread.
        self._mine = threading.local()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keeps updates out of a block."""
        depth = getattr(self._mine, "depth", 0)
        with self._changed:
            # A thread that already reads must not wait for an update, which waits for the thread.
            self._changed.wait_for(lambda: depth or not (self._updates or self._waiting))
            self._readers += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def check_not_reading(self, method: str) -> None:
        """Refuses a call that would deadlock: it waits for an update, which waits for this thread.

        Raises:
            RuntimeError: If this thread reads.
        """
        if getattr(self._mine, "depth", 0):
            raise RuntimeError(
                f"`{method}` must not be called within `reading`, which keeps updates out. "
                "Received: a call of the same thread"
            )

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Keeps readers and other updates out of a block.

        Raises:
            RuntimeError: If this thread reads.
        """
        self.check_not_reading("update")
        with self._changed:
            self._waiting += 1
            # `_waiting` keeps new readers out during the wait.
            try:
                self._changed.wait_for(lambda: not (self._updates or self._readers))
            finally:  # also if Ctrl-C ends the wait, because readers must then stop waiting
                self._waiting -= 1
                self._changed.notify_all()
            self._updates = True
        try:
            yield
        finally:
            with self._changed:
                self._updates = False
                self._changed.notify_all()

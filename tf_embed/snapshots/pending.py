# SPDX-License-Identifier: Apache-2.0
"""`PendingSnapshot`: a snapshot under way."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tf_embed.snapshots.manifest import SnapshotInfo


class PendingSnapshot:
    """A snapshot that is being written by a thread. Made by `Snapshots.save`.

    A program that ends waits for it.

    Args:
        name: The snapshot's name.
        write: Writes it. Called once.
        background: Whether by a thread of its own; else before this returns.

    Attributes:
        name: The snapshot's name.
    """

    def __init__(self, name: str, write: Callable[[], SnapshotInfo], background: bool) -> None:
        self.name = name
        self._write: Callable[[], SnapshotInfo] | None = write
        self._info: SnapshotInfo | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name=f"snapshot {name}")
            self._thread.start()
        else:
            self._run()

    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> None:
        """Waits until it is over, whether or not it could be written."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> SnapshotInfo:
        """Waits until it is written.

        Returns:
            What was written.

        Raises:
            tf.errors.OpError: If it could not be written, or the table was cleared or got another
                optimizer meanwhile. No snapshot is there then.
            RuntimeError: If this process was forked from the one that writes it.
        """
        self.join()
        if self._error is not None:
            raise self._error
        if self._info is None:
            raise RuntimeError(
                f"The snapshot {self.name!r} must be waited for by the process that writes it. "
                "Received: a call in one that was forked from it"
            )
        return self._info

    def _run(self) -> None:
        assert self._write is not None
        try:
            self._info = self._write()
        except BaseException as error:
            self._error = error
        finally:
            self._write = None  # it holds the snapshot's rows

# SPDX-License-Identifier: Apache-2.0
"""`PendingSnapshot`: a snapshot that is being written."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tf_embed.snapshots.manifest import SnapshotInfo


class PendingSnapshot:
    """A snapshot that a thread is writing. `Snapshots.save` returns it.

    A process waits for the thread before it exits.

    Args:
        name: The snapshot's name.
        write: A function that writes the snapshot. It is called once.
        background: Whether a thread calls `write`. Otherwise the constructor calls it.

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
        """Returns whether the write has succeeded or failed."""
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> None:
        """Waits until the write has succeeded or failed."""
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> SnapshotInfo:
        """Waits until the snapshot is written.

        Returns:
            The manifest of the snapshot.

        Raises:
            tf.errors.OpError: If the write failed, or the table was cleared or got another
                optimizer in the meantime. The folder then holds no snapshot.
            RuntimeError: If this process was forked from the process that writes the snapshot.
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

# SPDX-License-Identifier: Apache-2.0
"""`launch_elastic`: synchronous workers, some of which may die and rejoin.

Synchronous training can't continue after the loss of a worker, and TensorFlow can't recover within
the same processes. So all workers end, and the remaining number restarts from the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Mapping, Sequence

from tf_embed.launch.launches import MAX_RESTARTS, Launch, count_of, seconds_of
from tf_embed.launch.processes import Group, Outcome, say

# Delay after the end of a worker, before the workers that died with it are counted.
_LOSS_SECONDS = 0.5
# Delay after a path changes, for its writer to finish.
_SETTLED_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class ElasticOutcome(Outcome):
    """The outcome of the workers.

    Attributes:
        sizes: Number of workers at the start and after each restart.
    """

    sizes: tuple[int, ...] = ()


def launch_elastic(
    command: Sequence[str],
    *,
    workers: int,
    min_workers: int = 1,
    max_restarts: int = 3,
    rejoin_after_seconds: float | None = None,
    rejoin_on: str | os.PathLike[str] | None = None,
    timeout_seconds: float | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    grace_seconds: float = 10.0,
    environment: Mapping[str, str] | None = None,
) -> ElasticOutcome:
    """Runs a Python program as several workers. If a worker dies, restarts it without that worker.

    The program must resume from its last checkpoint by itself. If a worker fails, all other workers
    are ended. The program then restarts without the workers that were killed by signals, at least
    one worker less. A worker that hangs counts as failed, because the other workers time out.

    Dead workers rejoin if a `rejoin_` argument is given. All workers are then ended, and the
    program restarts with `workers` workers. If both are given, the launcher first waits for the
    time, and then for a change of `rejoin_on`.

    Args:
        command: As in `launch`.
        workers: Initial and maximum number of workers, from 1 to 256.
        min_workers: Minimum number of workers, from 1 to `workers`. Dead workers are replaced as
            needed to keep this number.
        max_restarts: Maximum number of failures after which the program restarts. Restarts for
            rejoining workers do not count.
        rejoin_after_seconds: Time until a dead worker rejoins. Default: 0 with `rejoin_on`,
            otherwise dead workers never rejoin.
        rejoin_on: A file or folder that changes when a checkpoint is complete. Workers rejoin one
            second after the change, so that little is trained twice. Examples: the file
            `checkpoint` of a tf.train.CheckpointManager, the folder of `tf_embed.Snapshots`.
        timeout_seconds: Time until running workers are ended, over all starts together; None for
            no limit.
        log_dir: A folder for the files `worker-0.log` and so on, with the output of all starts.
        grace_seconds: Time for a worker to end after SIGTERM, before SIGKILL.
        environment: Environment of the workers, as in `launch`.

    Returns:
        The outcome of the last start, and the number of workers of each start. All processes of the
        launch have ended by then.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        KeyboardInterrupt: At Ctrl-C, after it was passed on and all workers have ended.
    """
    count_of(workers, "workers", 1)
    count_of(min_workers, "min_workers", 1, workers)
    count_of(max_restarts, "max_restarts", 0, MAX_RESTARTS)
    if rejoin_after_seconds is not None:
        seconds_of(rejoin_after_seconds, "rejoin_after_seconds", 0)
    if rejoin_on is not None and not isinstance(rejoin_on, (str, os.PathLike)):
        raise TypeError(f"`rejoin_on` must be a path. Received: rejoin_on={rejoin_on!r}")
    path = None if rejoin_on is None else os.fspath(rejoin_on)
    comes_back = rejoin_after_seconds is not None or path is not None
    launch = Launch(command, workers, timeout_seconds, log_dir, grace_seconds, environment)
    sizes, failures, count = [workers], 0, workers
    with launch:
        while True:
            rejoin = _Rejoin(rejoin_after_seconds or 0.0, path)
            with launch.cluster(worker=count) as cluster:
                for index in range(count):
                    cluster.start("worker", index)
                may_come = comes_back and count < workers
                outcome = cluster.group.wait(launch.deadline, rejoin.is_due if may_come else _never)
                failed = outcome is not None and outcome.worker is not None
                goes_on = outcome is None or (failed and failures < max_restarts)
                if outcome is not None:
                    failures += failed
                    # `_lost` sleeps, so it is only called if the launch continues.
                    count = max(min_workers, count - (_lost(cluster.group) if goes_on else 0))
                else:
                    count = workers
                _say_how(outcome, count if goes_on else None)
            if outcome is not None and not goes_on:
                return ElasticOutcome(**dataclasses.asdict(outcome), sizes=tuple(sizes))
            sizes.append(count)


def _say_how(outcome: Outcome | None, count: int | None) -> None:
    """Prints the reason of a restart or end and, for a restart, the number of workers."""
    what = "workers come back" if outcome is None else outcome.reason
    if what:
        say(what if count is None else f"{what}; going on with workers: {count}")


def _lost(group: Group) -> int:
    """Returns the number of workers killed by signals, or 1 if a worker failed or hangs.

    SIGABRT does not count, because a worker may abort itself after the loss of another worker.
    """
    time.sleep(_LOSS_SECONDS)
    # Collects the status of workers that have ended by now.
    group.running()
    endings = [task.status or 0 for task in group.tasks]
    return max(1, sum(status < 0 and status != -signal.SIGABRT for status in endings))


def _never() -> bool:
    return False


class _Rejoin:
    """Decides when dead workers rejoin.

    Args:
        after_seconds: Minimum time until they rejoin.
        path: A file or folder that must change after that time, or None to wait for no change.
    """

    def __init__(self, after_seconds: float, path: str | None) -> None:
        self._from = time.monotonic() + after_seconds
        self._path = path
        self._seen: tuple[int, ...] | None = None  # the path as it was
        self._settled_at = float("inf")

    def is_due(self) -> bool:
        """Returns whether they rejoin now. The launcher polls this."""
        now = time.monotonic()
        if now < self._from or self._path is None:
            return now >= self._from
        found = _version(self._path)
        if self._seen is None:
            self._seen = found
        elif found != self._seen:
            self._settled_at = min(self._settled_at, now + _SETTLED_SECONDS)
        return now >= self._settled_at


def _version(path: str) -> tuple[int, ...]:
    """Returns the inode, modification time and size, which change if `path` is written."""
    try:
        found = os.stat(path)
    except OSError:
        return ()  # a missing path also has a version, so that its creation is a change
    return (found.st_ino, found.st_mtime_ns, found.st_size)

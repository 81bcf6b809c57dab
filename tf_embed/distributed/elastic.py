# SPDX-License-Identifier: Apache-2.0
"""`launch_elastic`: workers in step, of which some may die and come back.

Workers in step can't go on without one of them, and TensorFlow can't either in their processes. So
all end and start again, from the last checkpoint, as many as there are.

The launcher's modules need nothing but the standard library: see `run.py`.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Mapping, Sequence

from tf_embed.distributed.launches import MAX_RESTARTS, Launch, count_of, seconds_of
from tf_embed.distributed.processes import Group, Outcome, say

# From the end of one worker to the count of those that ended with it.
_LOSS_SECONDS = 0.5
# From the change of a path to the end of what is written there.
_SETTLED_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class ElasticOutcome(Outcome):
    """How the workers ended.

    Attributes:
        sizes: How many workers there were at the start and after each restart.
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
    """Runs a Python program as several workers, and again with those that are left if one dies.

    The program must go on by itself from its last checkpoint. If a worker fails, all others are
    ended, and the program is started again with one worker less, or as many less as signals have
    ended. A worker that hangs counts like one that fails: the time-out of the others ends these.

    Workers come back if one of the `rejoin_` arguments is given: all workers are ended and started
    again, `workers` of them. With both, the time is over first, and then `rejoin_on` changes.

    Args:
        command: What follows `python`: a script and its arguments, or "-m", a module and its
            arguments.
        workers: How many to begin with, and at most, from 1 to 256.
        min_workers: How many at least, from 1 to `workers`. If there were fewer, others take the
            place of those that died.
        max_restarts: How many failures are followed by a restart. Restarts for workers that come
            back do not count.
        rejoin_after_seconds: How long a worker stays away. Default: 0 with `rejoin_on`, otherwise
            until the end.
        rejoin_on: A file or folder that changes when a checkpoint is whole. Workers come back once
            a second after that, so that little is trained twice. Examples: the file `checkpoint` of
            a tf.train.CheckpointManager, the folder of `tf_embed.Snapshots`.
        timeout_seconds: When to end workers that still run, of all starts together; None for never.
        log_dir: A folder for the files `worker-0.log` and so on, with the output of all starts.
        grace_seconds: How long a worker may take to end after SIGTERM, before SIGKILL.
        environment: Environment of the workers, as in `launch`.

    Returns:
        How the last start ended, and how many workers each had. By then no process of theirs runs.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        KeyboardInterrupt: After it has passed Ctrl-C on, and all workers have ended.
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
                    count = max(min_workers, count - (_lost(cluster.group) if goes_on else 0))
                else:
                    count = workers
                _say_how(outcome, count if goes_on else None)
            if outcome is not None and not goes_on:
                return ElasticOutcome(**dataclasses.asdict(outcome), sizes=tuple(sizes))
            sizes.append(count)


def _say_how(outcome: Outcome | None, count: int | None) -> None:
    """Says what has happened and, if it goes on, with how many workers."""
    what = "workers come back" if outcome is None else outcome.reason
    if what:
        say(what if count is None else f"{what}; going on with workers: {count}")


def _lost(group: Group) -> int:
    """How many workers signals have ended; 1 if none, because one has failed or hangs.

    A worker that aborts itself may do so because another one is gone.
    """
    time.sleep(_LOSS_SECONDS)
    group.running()
    endings = [task.status or 0 for task in group.tasks]
    return max(1, sum(status < 0 and status != -signal.SIGABRT for status in endings))


def _never() -> bool:
    return False


class _Rejoin:
    """Knows when workers that died come back.

    Args:
        after_seconds: How long they stay away at least.
        path: What then must change; None: nothing.
    """

    def __init__(self, after_seconds: float, path: str | None) -> None:
        self._from = time.monotonic() + after_seconds
        self._path = path
        self._seen: tuple[int, ...] | None = None  # the path as it was
        self._settled_at = float("inf")

    def is_due(self) -> bool:
        """Whether they come back now. Called again and again."""
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
    """What changes if a file or folder is written."""
    try:
        found = os.stat(path)
    except OSError:
        return ()  # missing, which is a state like others
    return (found.st_ino, found.st_mtime_ns, found.st_size)

# SPDX-License-Identifier: Apache-2.0
"""`launch_with_servers`: launches a chief, workers and parameter servers, and restarts them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence

from tf_embed.launch.launches import MAX_RESTARTS, Cluster, Launch, count_of
from tf_embed.launch.processes import POLL_SECONDS, TIMED_OUT, Outcome, Task, say

# The chief's exit code after the loss of a server, which tells a supervisor to restart both. It is
# EX_TEMPFAIL of sysexits.h.
LOST_SERVER = 75
# Time for the chief to detect that a server has died.
_CHIEF_SECONDS = 60.0
# Time for the launcher to see the end of a server, after a chief that lost it has exited.
_SERVER_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class ServersOutcome(Outcome):
    """The outcome of the tasks.

    Attributes:
        restarts: The restarted tasks in order, such as "worker 0", "ps 1", "chief".
    """

    restarts: tuple[str, ...] = ()


def launch_with_servers(
    command: Sequence[str],
    *,
    workers: int,
    servers: int,
    max_restarts: int = 3,
    timeout_seconds: float | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    grace_seconds: float = 10.0,
    environment: Mapping[str, str] | None = None,
) -> ServersOutcome:
    """Runs a Python program as a chief, workers and parameter servers, until the chief has ended.

    The program calls `tf_embed.distributed.run_with_servers`. The launch restarts a worker that
    ends. If a server ends, the chief exits with code 75, and both are restarted. A chief that was
    killed by a signal is restarted as well. It resumes training if the program gives a `run_id` and
    the trainer a `checkpoint_dir`. If the chief exits with another code, the launch is over.

    Args:
        command: As in `launch`.
        workers: Number of workers, from 1 to 256.
        servers: Number of servers, from 1 to 256.
        max_restarts: Maximum number of failures after which tasks are restarted.
        timeout_seconds: Time until all tasks are terminated, or None for no limit.
        log_dir: A folder for the files `chief-0.log`, `worker-0.log`, `ps-0.log` and so on.
        grace_seconds: Time for a task to end after SIGTERM, before SIGKILL.
        environment: Environment of the tasks, as in `launch`.

    Returns:
        The outcome of the chief, or of the task that failed too often. All processes of the launch
        have ended by then.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        KeyboardInterrupt: At Ctrl-C, after it was passed on and all tasks have ended.
    """
    count_of(workers, "workers", 1)
    count_of(servers, "servers", 1)
    count_of(max_restarts, "max_restarts", 0, MAX_RESTARTS)
    processes = workers + servers
    launch = Launch(command, processes, timeout_seconds, log_dir, grace_seconds, environment)
    with launch, launch.cluster(chief=1, worker=workers, ps=servers) as cluster:
        supervisor = _Supervisor(cluster, max_restarts)
        for job, count in (("ps", servers), ("worker", workers), ("chief", 1)):
            for index in range(count):
                cluster.start(job, index)
        outcome = supervisor.wait(launch.deadline)
        if outcome.reason:
            say(outcome.reason)
        return ServersOutcome(**dataclasses.asdict(outcome), restarts=tuple(supervisor.restarts))


class _Supervisor:
    """Restarts the tasks of a cluster."""

    def __init__(self, cluster: Cluster, max_restarts: int) -> None:
        self.restarts: list[str] = []
        self._cluster = cluster
        self._group = cluster.group
        self._left = max_restarts
        self._chief_must_end_at = float("inf")

    def wait(self, deadline: float) -> Outcome:
        """Waits until the chief is done, too many tasks have failed, or the deadline has passed."""
        while True:
            (chief,) = self._tasks("chief")
            if chief.ended():
                outcome = self._after_chief(chief)
            else:
                outcome = self._beside_chief(chief)
            if outcome is not None:
                return outcome
            if time.monotonic() >= deadline:
                return Outcome(TIMED_OUT, None, "time is up")
            time.sleep(POLL_SECONDS)

    def _after_chief(self, chief: Task) -> Outcome | None:
        """Restarts the chief and dead servers, or returns the outcome if the launch is over."""
        status = chief.status or 0
        if status == 0:
            return Outcome()
        # A chief that was killed by a signal is restarted; a failed chief is not.
        if status > 0 and status != LOST_SERVER:
            return chief.failure()
        dead = self._ended("ps")
        until = time.monotonic() + _SERVER_SECONDS
        while status == LOST_SERVER and not dead and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            dead = self._ended("ps")
        self._chief_must_end_at = float("inf")
        return self._restart([*dead, chief])

    def _beside_chief(self, chief: Task) -> Outcome | None:
        """Restarts workers. Ends the chief if it fails to notice that a server has died."""
        for worker in self._ended("worker"):
            if (outcome := self._restart([worker])) is not None:
                return outcome
        if not self._ended("ps"):
            return None
        now = time.monotonic()
        self._chief_must_end_at = min(self._chief_must_end_at, now + _CHIEF_SECONDS)
        if now >= self._chief_must_end_at:
            self._group.end(tasks=[chief])
        return None

    def _restart(self, tasks: Sequence[Task]) -> Outcome | None:
        """Restarts tasks that have ended, or returns a failure if no restarts are left."""
        if self._left == 0:
            first = tasks[0]
            worker = first.index if first.job == "worker" else None
            return first.failure() or Outcome(1, worker, first.ending())
        self._left -= 1
        endings = " and ".join(task.ending() for task in tasks)
        say(f"{endings}; starting again")
        for task in tasks:
            self._group.forget(task)
            self._cluster.start(task.job, task.index)
            self.restarts.append(task.name)
        return None

    def _tasks(self, job: str) -> list[Task]:
        return [task for task in self._group.tasks if task.job == job]

    def _ended(self, job: str) -> list[Task]:
        return [task for task in self._tasks(job) if task.ended()]

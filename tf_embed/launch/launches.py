# SPDX-License-Identifier: Apache-2.0
"""`Launch`: the common base of all ways to launch a program on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from tf_embed.launch.processes import Group, Task, reserved_ports

MAX_TASKS = 256  # per job
MAX_RESTARTS = 1_000_000


def count_of(value: Any, argument: str, least: int, most: int = MAX_TASKS) -> int:
    """Checks and returns a number of tasks or restarts.

    Raises:
        TypeError: If `value` is not an int.
        ValueError: If `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{argument}` must be an int. Received: {argument}={value!r}")
    if not least <= value <= most:
        raise ValueError(
            f"`{argument}` must be from {least} to {most}. Received: {argument}={value}"
        )
    return value


def seconds_of(value: Any, argument: str, least: float) -> float:
    """Checks and returns a number of seconds.

    Raises:
        TypeError: If `value` is not a number.
        ValueError: If `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={value!r}")
    if not least <= value < float("inf"):
        raise ValueError(
            f"`{argument}` must be finite and at least {least:g}. Received: {argument}={value!r}"
        )
    return float(value)


class Launch:
    """A program, with the settings to start its tasks.

    Args:
        command: The arguments of `python`.
        processes: Number of working processes, which share the processors.
        timeout_seconds: Time until running tasks are ended, or None for no limit.
        log_dir: A folder for a log file of each task, or None for no log files.
        grace_seconds: Time for a task to end after a signal.
        environment: Environment of the tasks, or None for this process's.

    Attributes:
        deadline: The end of the time limit, by the monotonic clock.

    Raises:
        TypeError, ValueError: If an argument is wrong.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        timeout_seconds: float | None,
        log_dir: str | os.PathLike[str] | None,
        grace_seconds: float,
        environment: Mapping[str, str] | None,
    ) -> None:
        command = [os.fspath(part) for part in command]
        if not command:
            raise ValueError("`command` must name a script. Received: command=[]")
        if not command[0].startswith("-") and not os.path.isfile(command[0]):
            raise ValueError(f"`command` must begin with a script. Received: command={command!r}")
        self._command = [sys.executable, *command]
        self.deadline = float("inf")
        if timeout_seconds is not None:
            timeout_seconds = seconds_of(timeout_seconds, "timeout_seconds", 0.001)
            self.deadline = time.monotonic() + timeout_seconds
        self._grace_seconds = seconds_of(grace_seconds, "grace_seconds", 0)
        base = dict(os.environ if environment is None else environment)
        base.setdefault("PYTHONUNBUFFERED", "1")  # a killed task would lose its last lines
        self._environment = base | _thread_settings(base, processes)
        self._folder = None if log_dir is None else pathlib.Path(log_dir)
        self._logs: dict[str, IO[bytes]] = {}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def cluster(self, **tasks: int) -> Iterator[Cluster]:
        """Gives addresses to the tasks of each job. The end of the block ends all tasks."""
        with contextlib.ExitStack() as stack:
            # Reserved until all tasks have ended, because a task may be restarted.
            ports = iter(stack.enter_context(reserved_ports(sum(tasks.values()))))
            addresses = {
                job: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
                for job, count in tasks.items()
            }
            group = Group(self._grace_seconds)
            # Runs after `ended_at_exit` below has ended the tasks, and reads their last output.
            stack.callback(group.close)
            stack.enter_context(group.ended_at_exit())
            yield Cluster(self, group, addresses)

    def start(self, group: Group, addresses: Mapping[str, list[str]], job: str, index: int) -> Task:
        """Starts a task of a cluster. A restarted task appends to its log."""
        config = {"cluster": addresses, "task": {"type": job, "index": index}}
        environment = {**self._environment, "TF_CONFIG": json.dumps(config)}
        return group.start(job, index, self._command, environment, self._log(job, index))

    def _log(self, job: str, index: int) -> IO[bytes] | None:
        if self._folder is None:
            return None
        name = f"{job}-{index}.log"
        if name not in self._logs:
            self._logs[name] = open(self._folder / name, "wb")  # noqa: SIM115  until `close`
        return self._logs[name]

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *error: object) -> None:
        for log in self._logs.values():
            with contextlib.suppress(OSError):  # a full disk, which `_written` has reported
                log.close()


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The addresses of a cluster, and its tasks."""

    launch: Launch
    group: Group
    addresses: Mapping[str, list[str]]

    def start(self, job: str, index: int) -> Task:
        """Starts a task, or restarts an ended task."""
        return self.launch.start(self.group, self.addresses, job, index)


def _thread_settings(environment: Mapping[str, str], processes: int) -> dict[str, str]:
    """Gives each process an equal share of the processors, unless the user set thread counts."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    if processes == 1 or any(name in environment for name in names):
        return {}
    # Only the processors that this process may use: a container may have fewer than the machine.
    return dict.fromkeys(names, str(max(1, len(os.sched_getaffinity(0)) // processes)))

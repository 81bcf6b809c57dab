# SPDX-License-Identifier: Apache-2.0
"""Processes that a launcher starts on this machine, and that end with it.

No process stays behind. Each task leads a process group, which is ended as a whole. A guard process
reads a pipe from the launcher. The pipe ends when the launcher is killed, and then the guard kills
the groups. Each task also asks the kernel to be killed when the launcher dies, which covers the
moment before the guard knows its group.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

TIMED_OUT = 124
# The interval at which a launcher looks for tasks that ended.
POLL_SECONDS = 0.02
# Time to read output that is still in pipes when all tasks have ended.
_DRAIN_SECONDS = 5.0

# A stub that asks for SIGKILL on the death of its parent, and then becomes the program. 1 is
# PR_SET_PDEATHSIG. The request survives exec. A function between fork and exec would not be safe in
# a process with other threads.
_TASK = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Reads the ids of groups, one per line; a minus means that the group has ended. At the end of its
# input it kills the remaining groups.
_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    if line == "done\\n":
        os._exit(0)
    group = int(line)
    groups.add(group) if group > 0 else groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of the tasks.

    Attributes:
        code: 0 if all workers exited with 0; otherwise the first failing code, 128 + the number of
            the signal that ended the worker, or 124 after the timeout.
        worker: The index of the first worker that failed; None if none did, or after the timeout.
        reason: A sentence about the failure; empty if there was none.
    """

    code: int = 0
    worker: int | None = None
    reason: str = ""


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserves ports of the loopback interface, so that the system gives them to no other process.

    The sockets stay bound and do not listen. Linux lets a server with SO_REUSEADDR, such as gRPC's,
    listen on such a port, but does not assign the port to other sockets.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            bound = stack.enter_context(socket.socket())
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("127.0.0.1", 0))
            ports.append(bound.getsockname()[1])
        yield ports


class Task:
    """A task: its process, the group that it leads, and its output.

    Attributes:
        job: "worker", "chief" or "ps".
        index: The task's number in its job.
        name: Job and index, for messages: "worker 0".
        group: The number of its process group.
        status: None while it runs; then as Popen.returncode.
    """

    def __init__(
        self, job: str, index: int, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        self.job, self.index = job, index
        self.name = job if job == "chief" else f"{job} {index}"
        self.status: int | None = None
        # Isolated and without `site`, so the stub starts fast and imports none of the user's files.
        stub = [sys.executable, "-I", "-S", "-c", _TASK, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            stub,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A session is a group too. Python 3.10 cannot start a group alone.
            start_new_session=True,
        )
        self.group = self._process.pid

    def outputs(self) -> list[tuple[IO[bytes], Any]]:
        """Returns its pipes, each with the launcher's stream that receives the output."""
        assert self._process.stdout is not None and self._process.stderr is not None
        return [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]

    def send(self, number: int) -> None:
        """Sends a signal to the whole group. Does nothing if the task has ended."""
        if self.status is None:
            # The group may have just ended. PermissionError: its number was reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, number)

    def ended(self) -> bool:
        """Returns whether it has ended. If so, kills the rest of its group."""
        if self.status is not None:
            return True
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        if os.waitid(os.P_PID, self.group, options) is None:
            return False
        # Not reaped yet, so no other group can have this number.
        self.send(signal.SIGKILL)
        self.status = self._process.wait()
        return True

    def ending(self) -> str:
        """Returns a sentence about its end, without a full stop."""
        status = self.status or 0
        if status >= 0:
            return f"{self.name} exited with code {status}"
        name = signal.Signals(-status).name if -status in set(signal.Signals) else "unnamed"
        return f"{self.name} was ended by signal {-status} ({name})"

    def failure(self) -> Outcome | None:
        """Returns its failure, or None if it did not fail."""
        status = self.status or 0
        if status == 0:
            return None
        worker = self.index if self.job == "worker" else None
        return Outcome(status if status > 0 else 128 - status, worker, self.ending())


class Group:
    """Tasks that run together, and the guard that outlives the launcher.

    Args:
        grace_seconds: Time for a task to end after a signal, before SIGKILL.

    Attributes:
        tasks: The tasks in the order of their start.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.tasks: list[Task] = []
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # In a new session, because Ctrl-C must not end the guard.
            start_new_session=True,
        )

    def start(
        self,
        job: str,
        index: int,
        command: Sequence[str],
        environment: dict[str, str],
        log: IO[bytes] | None = None,
    ) -> Task:
        """Starts a task. Its output is copied to the launcher's, and to `log` if given."""
        task = Task(job, index, command, environment)
        self.tasks.append(task)
        self._tell_guard(str(task.group))
        for pipe, stream in task.outputs():
            arguments = (pipe, stream, f"[{task.name}] ", log)
            # A daemon: a process that left its group may hold the pipe open forever.
            reader = threading.Thread(target=self._copy, args=arguments, daemon=True)
            reader.start()
            self._readers.append(reader)
        return task

    def forget(self, task: Task) -> None:
        """Removes a task that has ended."""
        self.tasks.remove(task)
        self._tell_guard(str(-task.group))

    def running(self) -> list[Task]:
        """Returns the tasks that have not ended."""
        return [task for task in self.tasks if not task.ended()]

    def wait(
        self, deadline: float, interrupted: Callable[[], bool] = lambda: False
    ) -> Outcome | None:
        """Waits until all tasks have ended, a task has failed, or the deadline has passed.

        Args:
            deadline: The end of the time limit, by the monotonic clock.
            interrupted: Polled; returns True to stop the wait.

        Returns:
            The outcome, or None if the wait was interrupted.
        """
        while True:
            running = self.running()
            failures = [task.failure() for task in self.tasks]
            if failed := next((one for one in failures if one is not None), None):
                return failed
            if not running:
                return Outcome()
            if time.monotonic() >= deadline:
                return self.timed_out()
            if interrupted():
                return None
            time.sleep(POLL_SECONDS)

    def timed_out(self) -> Outcome:
        """Returns the outcome of a time-out at this point."""
        names = ", ".join(task.name.removeprefix("worker ") for task in self.running())
        return Outcome(TIMED_OUT, None, f"time is up with workers still running: {names}")

    def end(self, number: int = signal.SIGTERM, tasks: Sequence[Task] | None = None) -> None:
        """Ends tasks, by default all, with a signal, and after the grace period with SIGKILL."""
        ends = list(self.tasks if tasks is None else tasks)

        def run() -> bool:
            return not all(task.ended() for task in ends)

        try:
            for task in ends:
                task.send(number)
            deadline = time.monotonic() + self._grace_seconds
            while run() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        finally:  # also at a second Ctrl-C
            for task in ends:
                task.send(signal.SIGKILL)
            while run():
                time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    def ended_at_exit(self) -> Iterator[None]:
        """Ends all tasks at the end of the block: by SIGINT after Ctrl-C, otherwise by SIGTERM."""
        try:
            yield
        except KeyboardInterrupt:
            self.end(signal.SIGINT)
            raise
        except BaseException:
            self.end()
            raise
        self.end()

    def close(self) -> None:
        """Reads the remaining output and dismisses the guard."""
        self._tell_guard("done")
        deadline = time.monotonic() + _DRAIN_SECONDS
        for reader in self._readers:
            # A process that left its group may hold the pipe open.
            reader.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):  # the guard was killed
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        self._guard.wait()

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):  # it was killed; the kernel still kills the tasks
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()

    def _copy(self, pipe: IO[bytes], stream: Any, prefix: str, log: IO[bytes] | None) -> None:
        with pipe:
            for line in pipe:
                if not line.endswith(b"\n"):
                    line += b"\n"
                # All tasks share a lock, so that their lines do not mix.
                with self._lock:
                    with contextlib.suppress(OSError, ValueError):  # the reader is gone
                        stream.write(prefix + line.decode(errors="replace"))
                        stream.flush()
                    if log is not None and not _written(line, log):
                        log = None


def _written(line: bytes, log: IO[bytes]) -> bool:
    """Writes a line to a log. Returns False if the log can't be written any more."""
    try:
        log.write(line)
        log.flush()
    except ValueError:  # closed
        return False
    except OSError as error:
        say(f"The log {log.name!r} ends here, as it can't be written: {error}")
        return False
    return True


def say(sentence: str) -> None:
    """Prints a sentence of the launcher."""
    print(f"[launcher] {sentence}.", file=sys.stderr, flush=True)

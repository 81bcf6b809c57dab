# SPDX-License-Identifier: Apache-2.0
"""Launches the workers of a multi-worker strategy as processes of one machine.

    python -m tf_embed.distributed.run --workers 2 [--timeout SECONDS] [--log-dir DIR] train.py ...

Each worker is a Python process with `TF_CONFIG` in its environment, so that
`tf.distribute.MultiWorkerMirroredStrategy()` finds the others. Each line of its output gets a
prefix such as `[worker 0]`. If a worker fails, the others are ended. Then the launcher exits with
the first failing code: 128 + the signal if a signal ended the worker, and 124 after `--timeout`.

How no process stays behind: each worker leads a process group, which is ended as a whole. A guard
process reads a pipe from the launcher. The pipe ends when the launcher is killed, and then the
guard kills the groups. A worker itself also asks the kernel to be killed when the launcher dies,
which covers the moment before the guard knows its group.

This module needs nothing but the standard library. `python -m` imports the package above it, and so
TensorFlow; `python path/to/tf_embed/distributed/run.py` starts without.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn

MAX_WORKERS = 256
TIMED_OUT = 124

# How often it looks for workers that ended.
_POLL_SECONDS = 0.02
# For output that is still in pipes when all workers have ended.
_DRAIN_SECONDS = 5.0

# Becomes the program after it has asked for SIGKILL on the death of its parent: 1 is
# PR_SET_PDEATHSIG. The request survives exec. A function between fork and exec would not be safe
# beside other threads.
_WORKER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Reads the ids of groups, a line each. It kills them at the end of its input.
_GUARD = """
import os, signal, sys
groups = []
for line in sys.stdin:
    if line == "done\\n":
        os._exit(0)
    groups.append(int(line))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the workers ended.

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
def _reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports of the loopback interface that the system gives to no other process.

    The sockets stay bound and do not listen. Linux lets a server with SO_REUSEADDR, as gRPC's is,
    listen on such a port, and hands the port out for nothing else.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            bound = stack.enter_context(socket.socket())
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("127.0.0.1", 0))
            ports.append(bound.getsockname()[1])
        yield ports


def _thread_settings(environment: Mapping[str, str], workers: int) -> dict[str, str]:
    """An equal part of the processors for each worker, unless the user set a number of threads."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    if workers == 1 or any(name in environment for name in names):
        return {}
    return dict.fromkeys(names, str(max(1, len(os.sched_getaffinity(0)) // workers)))


class _Worker:
    """One worker: its process, the group that it leads, and its output."""

    def __init__(self, index: int, command: Sequence[str], environment: dict[str, str]):
        self.index = index
        self.status: int | None = None  # as Popen.returncode
        stub = [sys.executable, "-I", "-S", "-c", _WORKER, str(os.getpid()), *command]
        self._process = subprocess.Popen(
            stub,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self.group = self._process.pid

    def outputs(self) -> list[tuple[IO[bytes], Any]]:
        """Its pipes, each with the stream of the launcher that it goes to."""
        assert self._process.stdout is not None and self._process.stderr is not None
        return [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]

    def send(self, number: int) -> None:
        """Sends a signal to the whole group. Does nothing if the worker has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, number)

    def ended(self) -> bool:
        """Whether it has ended. If so, the rest of its group is killed."""
        if self.status is not None:
            return True
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        if os.waitid(os.P_PID, self.group, options) is None:
            return False
        # Not reaped yet, so that no other group can have this number.
        self.send(signal.SIGKILL)
        self.status = self._process.wait()
        return True

    def failure(self) -> Outcome | None:
        """How it failed; None if it did not."""
        status = self.status or 0
        if status == 0:
            return None
        if status > 0:
            return Outcome(status, self.index, f"worker {self.index} exited with code {status}")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else "unnamed"
        reason = f"worker {self.index} was ended by signal {-status} ({name})"
        return Outcome(128 - status, self.index, reason)


class _Group:
    """All workers, and the guard that outlives the launcher."""

    def __init__(self, grace_seconds: float):
        self.workers: list[_Worker] = []
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self, index: int, command: Sequence[str], environment: dict[str, str]) -> None:
        worker = _Worker(index, command, environment)
        self.workers.append(worker)
        self._tell_guard(str(worker.group))

    def read_outputs(self, logs: Sequence[IO[bytes]]) -> None:
        """Copies the workers' output to the launcher's, and to `logs` if there are any."""
        for worker in self.workers:
            log = logs[worker.index] if logs else None
            for pipe, stream in worker.outputs():
                arguments = (pipe, stream, f"[worker {worker.index}] ", log)
                reader = threading.Thread(target=self._copy, args=arguments, daemon=True)
                reader.start()
                self._readers.append(reader)

    def wait(self, deadline: float) -> Outcome:
        """Waits until all have ended, or one has failed, or time is up."""
        while True:
            running = self._running()
            failures = [worker.failure() for worker in self.workers]
            if failed := next((one for one in failures if one is not None), None):
                return failed
            if not running:
                return Outcome()
            if time.monotonic() >= deadline:
                names = ", ".join(str(worker.index) for worker in running)
                return Outcome(TIMED_OUT, None, f"time is up with workers still running: {names}")
            time.sleep(_POLL_SECONDS)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends all workers by a signal, and after the grace period by SIGKILL."""
        try:
            for worker in self.workers:
                worker.send(number)
            deadline = time.monotonic() + self._grace_seconds
            while self._running() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        finally:  # also at a second Ctrl-C
            for worker in self.workers:
                worker.send(signal.SIGKILL)
            while self._running():
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Reads what is left of the output and dismisses the guard."""
        self._tell_guard("done")
        deadline = time.monotonic() + _DRAIN_SECONDS
        for reader in self._readers:
            # A process that left its group may hold the pipe open.
            reader.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        self._guard.wait()

    def _running(self) -> list[_Worker]:
        return [worker for worker in self.workers if not worker.ended()]

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: workers still have the kernel's word
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()

    def _copy(self, pipe: IO[bytes], stream: Any, prefix: str, log: IO[bytes] | None) -> None:
        with pipe:
            for line in pipe:
                if not line.endswith(b"\n"):
                    line += b"\n"
                with self._lock:
                    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                        stream.write(prefix + line.decode(errors="replace"))
                        stream.flush()
                    if log is not None:
                        with contextlib.suppress(ValueError):  # closed
                            log.write(line)
                            log.flush()


def _number(value: Any, argument: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={value!r}")
    if not least <= value < float("inf"):
        raise ValueError(
            f"`{argument}` must be finite and at least {least:g}. Received: {argument}={value!r}"
        )
    return float(value)


def launch(
    command: Sequence[str],
    *,
    workers: int,
    timeout_seconds: float | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    grace_seconds: float = 10.0,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs a Python program as several workers on this machine, and waits for them.

    Args:
        command: What follows `python`: a script and its arguments, or "-m", a module and its
            arguments.
        workers: How many, from 1 to 256.
        timeout_seconds: When to end workers that still run; None for never.
        log_dir: A folder for the files `worker-0.log` and so on, which get the workers' output
            without prefixes. It is made if it does not exist.
        grace_seconds: How long a worker may take to end after SIGTERM, before SIGKILL.
        environment: Environment of the workers; that of this process by default. `TF_CONFIG` is
            set in it. So are OMP_NUM_THREADS and TF_NUM_INTRAOP_THREADS, to an equal part of the
            processors, if there are several workers and neither is set.

    Returns:
        How they ended. By then no process of theirs runs.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        KeyboardInterrupt: After it has passed Ctrl-C on, and all workers have ended.
    """
    command = [os.fspath(part) for part in command]
    if not command:
        raise ValueError("`command` must name a script. Received: command=[]")
    if not command[0].startswith("-") and not os.path.isfile(command[0]):
        raise ValueError(f"`command` must begin with a script. Received: command={command!r}")
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"`workers` must be an int. Received: workers={workers!r}")
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"`workers` must be from 1 to {MAX_WORKERS}. Received: workers={workers}")
    deadline = float("inf")
    if timeout_seconds is not None:
        deadline = time.monotonic() + _number(timeout_seconds, "timeout_seconds", 0.001)
    grace_seconds = _number(grace_seconds, "grace_seconds", 0)
    base = dict(os.environ if environment is None else environment)
    base.setdefault("PYTHONUNBUFFERED", "1")  # else the last lines of a killed worker are lost
    base |= _thread_settings(base, workers)

    with contextlib.ExitStack() as stack:
        logs: list[IO[bytes]] = []
        if log_dir is not None:
            folder = pathlib.Path(log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(workers):
                logs.append(stack.enter_context(open(folder / f"worker-{index}.log", "wb")))
        ports = stack.enter_context(_reserved_ports(workers))
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        group = _Group(grace_seconds)
        stack.callback(group.close)
        try:
            for index in range(workers):
                config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
                group.start(
                    index, [sys.executable, *command], {**base, "TF_CONFIG": json.dumps(config)}
                )
            group.read_outputs(logs)
            outcome = group.wait(deadline)
            if outcome.reason:
                print(f"[launcher] {outcome.reason}.", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            group.end(signal.SIGINT)
            raise
        except BaseException:
            group.end()
            raise
        group.end()
        return outcome


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        message = message[0].upper() + message[1:]
        self.exit(2, f"{message.rstrip('.')}.\n")


class _EndedBy(BaseException):
    """A signal asked the launcher to end."""


def _raise_ended(number: int, frame: Any) -> NoReturn:
    del frame
    raise _EndedBy(number)


def _whole(text: str) -> int:
    """A number of workers."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_WORKERS):
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_WORKERS}. Received: {text}")
    return int(text)


def _seconds(text: str) -> float:
    """A positive number of seconds."""
    with contextlib.suppress(ValueError):
        if 0.001 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a positive number of seconds. Received: {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = _Parser(
        prog="python -m tf_embed.distributed.run",
        description="Runs a Python program as the workers of a multi-worker strategy.",
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=_whole, required=True, help="how many workers")
    parser.add_argument("--timeout", type=_seconds, help="seconds until all workers are ended")
    parser.add_argument("--log-dir", help="folder for a file of each worker's output")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("the following argument is required: a script")
    if not os.path.isfile(options.command[0]):
        parser.error(f"argument script: must be a file. Received: {options.command[0]}")
    if options.log_dir is not None:
        try:
            os.makedirs(options.log_dir, exist_ok=True)
        except OSError as error:
            parser.error(
                f"argument --log-dir: must be a folder. Received: {options.log_dir} "
                f"({error.strerror})"
            )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_ended)
    try:
        outcome = launch(
            options.command,
            workers=options.workers,
            timeout_seconds=options.timeout,
            log_dir=options.log_dir,
        )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except _EndedBy as ended:
        return 128 + int(ended.args[0])
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())

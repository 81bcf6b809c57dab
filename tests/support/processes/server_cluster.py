# SPDX-License-Identifier: Apache-2.0
"""A cluster with parameter servers, as processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from support import PYTHONPATH
from tf_embed.launch.processes import reserved_ports

_SECONDS = 300  # far more than any program takes
_FILE_SECONDS = 120


def wait_for(path: pathlib.Path) -> None:
    """Waits until a program has written a file."""
    deadline = time.monotonic() + _FILE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


class Cluster:
    """Processes of a chief, workers and servers. All run the same program.

    Args:
        folder: The folder for their output, in files such as `ps-0.log`.
        program: A Python file that calls `run_with_servers`.
        ports: A port for each task.
        workers: The number of workers.
        servers: The number of servers.
    """

    def __init__(
        self, folder: pathlib.Path, program: str, ports: list[int], workers: int, servers: int
    ) -> None:
        self._folder = folder
        self._program = program
        hosts = [f"127.0.0.1:{port}" for port in ports]
        self._cluster = {
            "chief": hosts[:1],
            "worker": hosts[1 : 1 + workers],
            "ps": hosts[1 + workers :],
        }
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        for number in range(workers):
            self.start("worker", number)
        for number in range(servers):
            self.start("ps", number)

    def start(self, job: str, task: int, *arguments: str) -> None:
        """Starts a process of the cluster, or starts it again."""
        config = {"cluster": self._cluster, "task": {"type": job, "index": task}}
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")]),
            "TF_CONFIG": json.dumps(config),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": "1",
        }
        with open(self._folder / f"{job}-{task}.log", "ab") as log:
            self.processes[job, task] = subprocess.Popen(
                [sys.executable, self._program, *arguments],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_chief(self, *arguments: str) -> None:
        """Starts the chief with arguments for the program."""
        self.start("chief", 0, *arguments)

    def run_chief(self, *arguments: str) -> int:
        """Runs the chief to its end, and returns its exit code."""
        self.start_chief(*arguments)
        return self.wait("chief", 0)

    def wait(self, job: str, task: int) -> int:
        """Waits for the end of a process, and returns its exit code."""
        return self.processes[job, task].wait(_SECONDS)

    def kill(self, job: str, task: int) -> None:
        """Kills a process by SIGKILL."""
        process = self.processes[job, task]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self, job: str, task: int) -> str:
        """All output of a task, also of its earlier processes."""
        return (self._folder / f"{job}-{task}.log").read_text(errors="replace")

    def result(self) -> Any:
        """The chief's last line of JSON."""
        lines = [line for line in self.log("chief", 0).splitlines() if line.startswith("{")]
        return json.loads(lines[-1])

    def end(self) -> None:
        """Kills all running processes."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def cluster(
    folder: pathlib.Path, program: str, *, workers: int = 2, servers: int = 2
) -> Iterator[Cluster]:
    """A cluster without its chief. The with block starts the chief."""
    with reserved_ports(1 + workers + servers) as ports:
        made = Cluster(folder, program, ports, workers, servers)
        try:
            yield made
        finally:
            made.end()


class ClusterTestCase(tf.test.TestCase):
    """Tests of clusters.

    Attributes:
        folder: A new folder for each test.
    """

    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def run_chief(self, made: Cluster, *arguments: str) -> Any:
        """Runs the chief, which must succeed, and returns its result."""
        self.assertEqual(made.run_chief(*arguments), 0, made.log("chief", 0))
        return made.result()

# SPDX-License-Identifier: Apache-2.0
"""Redis servers that a test starts and ends, on free ports of this machine."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any

import tf_embed

_START_SECONDS = 20.0
_numbers = itertools.count()


def free_port() -> int:
    """Returns a free port. Another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RedisProcess:
    """An empty redis-server, which runs until `close`.

    Args:
        *arguments: Further arguments of redis-server.
    """

    def __init__(self, *arguments: str) -> None:
        for program in ("redis-server", "redis-cli"):
            if shutil.which(program) is None:
                raise RuntimeError(f"There is no {program}: apt-get install redis-server")
        self._arguments = arguments
        self._folder = tempfile.mkdtemp()
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(5):  # another process may have taken the port
            self.port = free_port()
            if self._start():
                return
        raise RuntimeError(f"redis-server does not start with {arguments}.")

    def kill(self) -> None:
        """Kills the server by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Starts an empty server on the same port again."""
        if not self._start():
            raise RuntimeError(f"redis-server does not start again on port {self.port}.")

    def close(self) -> None:
        """Ends the server, and removes its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, *words: str) -> str:
        """Returns the server's answer to a command, as redis-cli shows it."""
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *words], capture_output=True, check=True
        )
        return done.stdout.decode(errors="replace").strip()

    def server(self, **arguments: Any) -> tf_embed.RedisServer:
        """The `RedisServer` for this server, with a new table name unless `table` is given."""
        arguments = {"timeout_seconds": 10.0, "table": f"t{next(_numbers)}", **arguments}
        return tf_embed.RedisServer(port=self.port, **arguments)

    def storage(self, **arguments: Any) -> tf_embed.Storage:
        """A storage on this server; see `server`."""
        return tf_embed.Storage(redis=self.server(**arguments))

    def _start(self) -> bool:
        self._process = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", self._folder, *self._arguments),
            ],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return True
            time.sleep(0.01)
        self.kill()
        return False

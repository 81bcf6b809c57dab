"""FBGEMM in its own process, told what to do."""

from __future__ import annotations

import os
import pathlib
import subprocess

import numpy as np

from settings import FBGEMM_PYTHON
from timing import Seconds


class Server:
    """See `fbgemm_server.py`; the times that it answers are its own."""

    def __init__(self, optimizer: str, rows: int, dim: int) -> None:
        if not FBGEMM_PYTHON.exists():
            raise RuntimeError(f"FBGEMM's environment is missing at {FBGEMM_PYTHON}.")
        self._dim = dim
        self._process = subprocess.Popen(
            [
                os.fspath(FBGEMM_PYTHON),
                os.fspath(pathlib.Path(__file__).with_name("fbgemm_server.py")),
                optimizer,
                str(rows),
                str(dim),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Else its threads keep the cores busy between two steps, and ours wait.
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
        self._count = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self, ids: np.ndarray) -> None:
        """Hands over the ids of the next calls."""
        self._count = len(ids)
        self._ask(b"ids %d\n" % len(ids) + ids.astype(np.int64).tobytes())

    def forward(self) -> Seconds:
        """Rows of the ids."""
        return self._ask(b"forward\n")

    def step(self) -> Seconds:
        """Forward, backward and update."""
        return self._ask(b"step\n")

    def rows(self) -> np.ndarray:
        """The rows of the ids, not timed."""
        self._ask(b"rows\n")
        size = 4 * self._count * self._dim
        return np.frombuffer(self._answers.read(size), np.float32).reshape(-1, self._dim)

    @property
    def _answers(self):
        return self._process.stdout

    def _ask(self, command: bytes) -> Seconds:
        self._process.stdin.write(command)
        self._process.stdin.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"FBGEMM's process ended: {self._process.wait()}.")
        return Seconds(answer)

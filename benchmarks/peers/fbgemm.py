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

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self, ids: np.ndarray) -> None:
        """Hands over a batch; each call takes one, in order."""
        self._ask(b"ids %d\n" % len(ids) + ids.astype(np.int64).tobytes())

    def forward(self) -> Seconds:
        """Rows of a batch."""
        return self._ask(b"forward\n")

    def step(self) -> Seconds:
        """Forward, backward and update."""
        return self._ask(b"step\n")

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Rows, not timed."""
        self.take(ids)
        self._ask(b"rows\n")
        rows = np.frombuffer(self._answers.read(4 * len(ids) * self._dim), np.float32)
        return rows.reshape(-1, self._dim)

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

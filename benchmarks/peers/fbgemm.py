# SPDX-License-Identifier: Apache-2.0
"""FBGEMM in its own process, run by commands."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess

import numpy as np

from settings import FBGEMM_PYTHON
from timing import Seconds


class _Process:
    """A program that answers commands in another process."""

    def __init__(self, program: str, *arguments: object) -> None:
        if not FBGEMM_PYTHON.exists():
            raise RuntimeError(f"FBGEMM's environment is missing at {FBGEMM_PYTHON}.")
        self._process = subprocess.Popen(
            [
                os.fspath(FBGEMM_PYTHON),
                os.fspath(pathlib.Path(__file__).with_name(program)),
                *map(str, arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                # Otherwise FBGEMM's threads keep the cores busy between two steps, and ours wait.
                "OMP_WAIT_POLICY": "passive",
                "PYTHONPATH": os.fspath(pathlib.Path(__file__).parents[1]),
            },
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends the program, and waits until its memory is freed."""
        self._process.stdin.close()
        self._process.wait()

    def _read(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(self._answers.read(4 * math.prod(shape)), np.float32).reshape(shape)

    @property
    def _answers(self):
        return self._process.stdout

    def _ask(self, command: bytes) -> list[Seconds]:
        self._process.stdin.write(command)
        self._process.stdin.flush()
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError(f"FBGEMM's process ended: {self._process.wait()}.")
        return [Seconds(word) for word in answer.split()]


class Server(_Process):
    """See `fbgemm_server.py`, which measures the times that it answers."""

    def __init__(self, optimizer: str, rows: int, dim: int) -> None:
        super().__init__("fbgemm_server.py", optimizer, rows, dim)
        self._dim = dim

    def take(self, ids: np.ndarray) -> None:
        """Queues a batch. Each call takes the first queued batch."""
        self._ask(b"ids %d\n" % len(ids) + ids.astype(np.int64).tobytes())

    def forward(self) -> Seconds:
        """Looks up the rows of a batch."""
        return self._ask(b"forward\n")[0]

    def step(self) -> Seconds:
        """Forward, backward and update."""
        return self._ask(b"step\n")[0]

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """The rows of ids, not timed."""
        self.take(ids)
        self._ask(b"rows\n")
        return self._read((len(ids), self._dim))


class TablesServer(_Process):
    """See `fbgemm_tables_server.py`."""

    def __init__(self, optimizer: str, tables: int, rows: int, dim: int, bags: int) -> None:
        super().__init__("fbgemm_tables_server.py", optimizer, tables, rows, dim, bags)
        self._shape = bags, tables * dim

    def take(self, indices: np.ndarray, offsets: np.ndarray) -> None:
        """Queues a batch. Each call takes the first queued batch."""
        words = np.concatenate([indices, offsets]).astype(np.int64)
        self._ask(b"batch %d\n" % len(indices) + words.tobytes())

    def step(self) -> tuple[Seconds, Seconds]:
        """The seconds of the forward, and of the backward with the update."""
        forward, backward = self._ask(b"step\n")
        return forward, backward

    def pooled(self, indices: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The pooled rows of a batch, not timed."""
        self.take(indices, offsets)
        self._ask(b"pooled\n")
        return self._read(self._shape)

# SPDX-License-Identifier: Apache-2.0
"""Saves a variable in children that die while they save.

    killed_saves.py cut|kill FOLDER [snapshots]

Each child has its own folder in FOLDER. It repeatedly saves rows that are all equal to a number,
and then to the next number. `cut`: file sizes have a limit, and the system ends the process by
SIGXFSZ at the write that would exceed it. `kill`: the parent kills the child after some time.
Prints a list with an object for each child: whether it died by a signal, and the numbers that its
folder may hold. `snapshots`: a layer of two tables saves snapshots.

The processes are forked after the import of TensorFlow and before its first op.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

import numpy as np

import tf_embed
from support.cases import one_embedding_cases

# The sizes at which the second save is cut: after a byte, in the middle and near the end of a file.
# Row files are 5 KB long, so a larger limit would cut nothing.
CUTS = (1, 30, 500, 2000, 3300)
SECONDS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class Rows:
    """Saves the rows of a variable."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._variable = tf_embed.Variable(dim=4, name="v")

    def save(self, number: int) -> None:
        self._variable.upsert(range(200), np.full([200, 4], float(number)))
        self._variable.save_rows(self._folder, buffer_bytes=1000)


class Snapshots:
    """Saves the rows of a layer of two tables."""

    def __init__(self, folder: str) -> None:
        self._layer = one_embedding_cases.layer(
            one_embedding_cases.uniform_tables(1.0, 1.0),
            dim=4,
            name="v",
            store_options=one_embedding_cases.store(folder),
        )

    def save(self, number: int) -> None:
        for variable in self._layer.row_tables:
            variable.upsert(range(200), np.full([200, 4], float(number)))
        self._layer.save_snapshot("s")


def child(kind: type[Rows | Snapshots], folder: str, most_bytes: int, ready: int) -> None:
    saved = kind(folder)
    saved.save(0)
    os.write(ready, b".")
    if most_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    number = 1
    while True:
        saved.save(number)
        number += 1


def run(
    kind: type[Rows | Snapshots], folder: str, most_bytes: int, seconds: float
) -> dict[str, object]:
    reads, ready = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(kind, folder, most_bytes, ready)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os.close(ready)
    os.read(reads, 1)
    os.close(reads)
    if not most_bytes:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    # A cut child has only its first save. A killed child may have died after any save.
    values = [0] if most_bytes else list(range(10_000))
    return {"died": os.WIFSIGNALED(status), "values": values}


if __name__ == "__main__":
    how, parent, *what = sys.argv[1:]
    kind = Snapshots if what else Rows
    plans = [(cut, 0.0) for cut in CUTS] if how == "cut" else [(0, one) for one in SECONDS]
    rounds = [
        run(kind, os.path.join(parent, str(number)), *plan) for number, plan in enumerate(plans)
    ]
    json.dump(rounds, sys.stdout)

# SPDX-License-Identifier: Apache-2.0
"""Trains examples/kill_and_resume.py in children that die at planned steps.

It reads a JSON list of plans and executes them in order, each in its own process. The processes
are forked after the import of TensorFlow and before its first op, so they need not repeat the
import. A plan has

    method, tables, folder: see `kill_and_resume.train`.
    log: the file for a line a step.
    kill_at: the step after which it dies by SIGKILL; 0 for never.
    cut_at: the step after which no file may become longer than `most_bytes`; 0 for never. The
        system ends the process by SIGXFSZ at the write that would exceed it, in the middle of a
        file.

It prints the numbers of the signals that ended them, 0 for a child that finished.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import signal
import sys
from typing import Any

import kill_and_resume

kill_and_resume.STEPS = 40


def child(plan: dict[str, Any]) -> None:
    with open(plan["log"], "w") as log:

        def report(step: int, loss: float) -> None:
            print(step, float(loss).hex(), file=log, flush=True)
            if step == plan["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == plan["cut_at"]:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_FSIZE, (plan["most_bytes"], plan["most_bytes"]))

        folder = pathlib.Path(plan["folder"])
        kill_and_resume.train(plan["method"], plan["tables"], folder, report)


def ended_by(plan: dict[str, Any]) -> int:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            child(plan)
            status = 0
        except BaseException as error:
            print(f"{plan}: {error!r}", file=sys.stderr, flush=True)
        os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("A child failed.")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


if __name__ == "__main__":
    json.dump([ended_by(plan) for plan in json.load(sys.stdin)], sys.stdout)

# SPDX-License-Identifier: Apache-2.0
"""Programs that tests launch as the workers of a strategy, and the results of the workers.

A program is a module with functions (strategy, rank, folder), which ends with `run_as_worker`. The
value that a function returns is pickled for the test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from support import PYTHONPATH

SECONDS = 240  # far more than any program takes


@dataclasses.dataclass(frozen=True)
class Launched:
    """The outcome of the workers.

    Attributes:
        code: The exit code of the launcher.
        results: The results of each worker that finished, by rank.
        printed: The output of all workers.
    """

    code: int
    results: dict[int, Any]
    printed: str


def step_of_replicas(strategy: Any, step: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """A tf.function that runs a step on each replica, and sums each result over all replicas."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True)
    def step_of_all(*batch: Any) -> Any:
        return [strategy.reduce("SUM", one, axis=None) for one in strategy.run(step, args=batch)]

    return step_of_all


def launch(
    script: str,
    cases: Sequence[str],
    workers: int,
    folder: str | None = None,
    seconds: int = SECONDS,
    grace_seconds: float = 20,
) -> Launched:
    """Runs functions of a program in sequence on several workers.

    Args:
        script: The path of the program.
        cases: Names of functions.
        workers: Number of workers.
        folder: The folder that the functions get. Default: a new folder.
        seconds: The time after which running workers are ended.
        grace_seconds: The time that other workers may run on after one has failed.
    """
    from tf_embed.distributed import run

    with tempfile.TemporaryDirectory() as results:
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TF_CPP_MIN_LOG_LEVEL": "3"}
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            outcome = run.launch(
                [script, ",".join(cases), results, folder or results],
                workers=workers,
                timeout_seconds=seconds,
                grace_seconds=grace_seconds,
                environment=environment,
            )
        found = {
            int(path.suffix[1:]): pickle.loads(path.read_bytes())
            for path in pathlib.Path(results).glob("result.*")
        }
    return Launched(outcome.code, found, out.getvalue() + err.getvalue()[-8000:])


def run_as_worker(functions: dict[str, Callable[..., Any]], code: int = 0) -> None:
    """Ends a program: runs the functions that `launch` asked for.

    Args:
        functions: The program's functions by name.
        code: The exit code. If it is not 0, the launcher ends the other workers.
    """
    import tensorflow as tf

    cases, results, folder = sys.argv[1:]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id
    found = {case: functions[case](strategy, rank, folder) for case in cases.split(",")}
    path = pathlib.Path(results) / f"result.{rank}"
    partial = path.with_name(f"unfinished.{rank}")
    partial.write_bytes(pickle.dumps(found))
    partial.rename(path)
    if code:
        os._exit(code)  # not through destructors, which wait for other workers


def said_by(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The class and the message of a call's error."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

# SPDX-License-Identifier: Apache-2.0
"""Launches a program as the processes of a cluster, all on this machine.

    python -m tf_embed.distributed.run --workers 2 [--timeout SECONDS] [--log-dir DIR] train.py ...

Each worker is a Python process with `TF_CONFIG` in its environment, so that
`tf.distribute.MultiWorkerMirroredStrategy()` finds the others. Each line of its output gets a
prefix such as `[worker 0]`. If a worker fails, the others are ended. Then the launcher exits with
the first failing code: 128 + the signal if a signal killed the worker, and 124 after `--timeout`.
With `--elastic` the program restarts with the remaining workers. With `--servers 2` the cluster has
a chief, workers and two parameter servers, and failed tasks are restarted.

This module and its imports need only the standard library. `python -m` imports the parent package,
and so TensorFlow. `python path/to/tf_embed/distributed/run.py` starts without TensorFlow.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

if (
    not __package__
):  # started by path: define the package without the __init__ that loads TensorFlow
    sys.modules["tf_embed"] = types.ModuleType("tf_embed")
    sys.modules["tf_embed"].__path__ = [str(pathlib.Path(__file__).resolve().parents[1])]

from tf_embed.launch.elastic import ElasticOutcome, launch_elastic
from tf_embed.launch.launches import MAX_RESTARTS, MAX_TASKS, Launch, count_of
from tf_embed.launch.processes import TIMED_OUT, Outcome, say
from tf_embed.launch.servers import ServersOutcome, launch_with_servers

__all__ = [
    "TIMED_OUT",
    "ElasticOutcome",
    "Outcome",
    "ServersOutcome",
    "launch",
    "launch_elastic",
    "launch_with_servers",
]


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
        command: The arguments of `python`: a script and its arguments, or "-m", a module and its
            arguments.
        workers: Number of workers, from 1 to 256.
        timeout_seconds: Time until running workers are ended, or None for no limit.
        log_dir: A folder for the files `worker-0.log` and so on, with the workers' output without
            prefixes. It is created if it does not exist.
        grace_seconds: Time for a worker to end after SIGTERM, before SIGKILL.
        environment: Environment of the workers, by default this process's. `TF_CONFIG` is set in
            it. With several workers, OMP_NUM_THREADS and TF_NUM_INTRAOP_THREADS are set to an equal
            share of the processors if neither is set.

    Returns:
        The outcome of the workers. All processes of the launch have ended by then.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        KeyboardInterrupt: At Ctrl-C, after it was passed on and all workers have ended.
    """
    count_of(workers, "workers", 1)
    launch = Launch(command, workers, timeout_seconds, log_dir, grace_seconds, environment)
    with launch, launch.cluster(worker=workers) as cluster:
        for index in range(workers):
            cluster.start("worker", index)
        outcome = cluster.group.wait(launch.deadline)
        assert outcome is not None  # nothing interrupts it
        if outcome.reason:
            say(outcome.reason)
        return outcome


class _Parser(argparse.ArgumentParser):
    """Reports a wrong option in one sentence."""

    def error(self, message: str) -> NoReturn:
        message = message[0].upper() + message[1:]
        self.exit(2, f"{message.rstrip('.')}.\n")


class _EndedBy(BaseException):
    """A signal asked the launcher to end."""


def _raise_ended(number: int, frame: Any) -> NoReturn:
    del frame
    raise _EndedBy(number)


def _number_from(least: int, most: int) -> Callable[[str], int]:
    """Returns a parser of a number of tasks or restarts."""

    def parse(text: str) -> int:
        # `int` also accepts other digits and underscores.
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}. Received: {text}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    """Parses a positive number of seconds."""
    with contextlib.suppress(ValueError):  # not a number: raises below
        if 0.001 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a positive number of seconds. Received: {text}")


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m tf_embed.distributed.run",
        description="Runs a Python program as the processes of a cluster on this machine.",
        allow_abbrev=False,
    )
    tasks, restarts = _number_from(1, MAX_TASKS), _number_from(0, MAX_RESTARTS)
    parser.add_argument("--workers", type=tasks, required=True, help="how many workers")
    parser.add_argument("--servers", type=tasks, help="how many parameter servers, beside a chief")
    parser.add_argument("--timeout", type=_seconds, help="seconds until all processes are ended")
    parser.add_argument("--log-dir", help="folder for a file of each process's output")
    parser.add_argument(
        "--max-restarts", type=restarts, help="with --servers or --elastic: failures; default 3"
    )
    parser.add_argument(
        "--elastic", action="store_true", help="if a worker dies, start again with those left"
    )
    elastic = parser.add_argument_group("with --elastic")
    elastic.add_argument("--min-workers", type=tasks, help="how many workers at least; default 1")
    elastic.add_argument(
        "--rejoin-after", type=_seconds, help="seconds after which workers that died come back"
    )
    elastic.add_argument("--rejoin-on", help="file or folder at whose next change they come back")
    # All arguments after the script belong to the script.
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script and its arguments")
    return parser


def _run(options: argparse.Namespace) -> Outcome:
    """Launches the program with the options of the command line."""
    common = {
        "workers": options.workers,
        "timeout_seconds": options.timeout,
        "log_dir": options.log_dir,
        **_given(options, _RESTARTS),
    }
    if options.servers is not None:
        return launch_with_servers(options.command, servers=options.servers, **common)
    if options.elastic:
        return launch_elastic(options.command, **common, **_given(options, _ELASTIC))
    return launch(options.command, **common)


# The function arguments of command-line options, by option.
_RESTARTS = {"max_restarts": "max_restarts"}
_ELASTIC = {
    "min_workers": "min_workers",
    "rejoin_after": "rejoin_after_seconds",
    "rejoin_on": "rejoin_on",
}


def _given(options: argparse.Namespace, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options that were given, as function arguments."""
    values = {argument: getattr(options, name) for name, argument in names.items()}
    return {argument: value for argument, value in values.items() if value is not None}


def _check(parser: _Parser, options: argparse.Namespace) -> None:
    """Ends this process if options conflict."""
    if options.elastic and options.servers is not None:
        parser.error("argument --elastic: does not go with --servers")
    for name in _ELASTIC:
        if getattr(options, name) is not None and not options.elastic:
            parser.error(f"argument --{name.replace('_', '-')}: needs --elastic")
    if options.max_restarts is not None and not options.elastic and options.servers is None:
        parser.error("argument --max-restarts: needs --elastic or --servers")
    if (options.min_workers or 1) > options.workers:
        parser.error(
            f"argument --min-workers: must be at most --workers, {options.workers}. Received: "
            f"{options.min_workers}"
        )
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    # Raise signals as exceptions, so that the `with` blocks of the launch end all tasks.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_ended)
    try:
        return _run(options).code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # the status that shells give
    except _EndedBy as ended:
        return 128 + int(ended.args[0])


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Calls every public name of tf_embed with hostile values.

    hostile_calls.py [--names=upsert,lookup] [--every=N] [--seed=S] [--show=taken]
        [--also=FILE] [--seconds=60]

Each argument of each call of `hostile_cases.CALLS` gets each value of its kind. The other arguments
get good values. The outcomes of a call are:

- refused: a ValueError, a TypeError or an error of TensorFlow that names the argument or the table,
  and shows the value or its fault;
- taken: accepted, for a reason that the kind of the argument gives;
- unlisted: accepted, for no such reason;
- riddle: another exception, a message that does not explain the fault, or an error that is raised
  only at the first use of the result;
- crash: the process died or gave no answer in time;
- uncovered: no call, but a public name or argument without a case.

All outcomes except the first two are findings. They are printed before the figures, each on a line.
The exit status is 1 if there is a finding.

The calls run in a child process, which announces each call. If a call ends the process or takes
more than `--seconds`, a new process continues with the next call. `--every=N` runs an N-th of the
values of each argument, drawn by the seed. `--also` names a Python file with more `CALLS`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from typing import IO, Any

START_SECONDS = 300.0  # for imports, on a busy machine
FINDINGS = ("unlisted", "riddle", "crash", "uncovered")
ADDRESS_SPACE = 24 << 30


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """For each call the public name, the argument, and the name of the value."""
    from hostile_cases import CALLS

    calls = {**CALLS, **_more(options.also)}
    wanted = [name for name in (options.names or "").split(",") if name]
    draw = random.Random(options.seed)
    for name, call in calls.items():
        if wanted and not any(one in name for one in wanted):
            continue
        for argument, kind in call.kinds.items():
            values = list(kind.values)
            if options.every > 1:
                values = sorted(draw.sample(values, -(-len(values) // options.every)))
            yield from ((name, argument, value) for value in values)


def _more(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    spec = importlib.util.spec_from_file_location("more_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["more_cases"] = module
    spec.loader.exec_module(module)
    return module.CALLS


def outcome(call: Any, name: str, argument: str, value: str) -> tuple[str, str]:
    """The outcome of a call, and its details."""
    import tensorflow as tf

    kind = call.kinds[argument]
    try:
        hostile = kind.values[value]()
    except Exception:
        return "skipped", ""  # this TensorFlow can't even make it
    made: list[Any] = []
    try:
        made.append(call.run(argument, hostile))
        call.then(made[0])
    except Exception as error:
        is_good = isinstance(error, (ValueError, TypeError, tf.errors.OpError))
        message = str(error)
        said = f"{type(error).__name__}: {message[:300]!r}"
        if made and value not in kind.late:
            return "riddle", f"refused at the first use only: {said}"
        if value in kind.others:
            return "refused", said
        says = _names(message, argument, call) and _shows(message, hostile)
        quotes = isinstance(error, tf.errors.OpError) and _quotes(message, hostile)
        return "refused" if is_good and (says or quotes) else "riddle", said
    if value in kind.takes:
        return "taken", kind.takes[value]
    return "unlisted", "taken"


def _names(message: str, argument: str, call: Any) -> bool:
    """Whether the message names the argument, the table or the layer."""
    subjects = (argument, "hostile_table", "hostile_layer", *call.says)
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", message) for one in subjects)


def _shows(message: str, hostile: Any) -> bool:
    """Whether the message shows the value or its fault."""
    forms = [type(hostile).__name__]
    for show in (repr, str):
        try:
            forms.append(show(hostile)[:40])
        except Exception:
            continue
    words = ("Received", "received", "dtype", "shape", "got", "Got", "Condition x")
    return any(one and one in message for one in (*forms, *words))


def _quotes(message: str, hostile: Any) -> bool:
    """Whether an error of TensorFlow has the value itself, such as the name of a file."""
    while isinstance(hostile, list) and len(hostile) == 1:
        (hostile,) = hostile
    if hasattr(hostile, "numpy"):
        hostile = hostile.numpy()
    if isinstance(hostile, bytes):
        hostile = hostile.decode(errors="replace")
    return isinstance(hostile, str) and (repr(hostile) in message or hostile[:200] in message)


def child(options: argparse.Namespace) -> None:
    """Makes all calls from a number on, and reports each through a pipe."""
    import faulthandler
    import resource

    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    from hostile_cases import CALLS

    def tell(*what: Any) -> None:
        os.write(options.pipe, (json.dumps(what) + "\n").encode())

    calls = {**CALLS, **_more(options.also)}
    if not options.child:
        for line in unknown_names(options.names or ""):
            tell("uncovered", line)
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    for number, (name, argument, value) in enumerate(cases(options)):
        if number < options.child:
            continue
        tell("begins", number, f"{name}({argument}={value})")
        tell(*outcome(calls[name], name, argument, value))
    os.chdir("/")
    folder.cleanup()
    os._exit(0)  # skips destructors, which are not under test


def _lines(pipe: int, seconds: float) -> Iterator[str | None]:
    """Yields lines as they arrive; None after a time-out."""
    rest = b""
    patience = START_SECONDS
    while True:
        if not select.select([pipe], [], [], patience)[0]:
            yield None
            return
        patience = seconds
        block = os.read(pipe, 1 << 16)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode()


def outcomes(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """The outcome, name and message of each call, from as many children as needed."""
    first: int | None = 0
    while first is not None:
        with tempfile.TemporaryFile() as errors:
            first = yield from _child_outcomes(options, first, errors)


def _child_outcomes(
    options: argparse.Namespace, first: int, errors: IO[bytes]
) -> Generator[tuple[str, str, str], None, int | None]:
    """Yields a child's outcomes. Returns the number of the call after a fatal call, or None."""
    reads, writes = os.pipe()
    arguments = [*sys.argv[1:], f"--child={first}", f"--pipe={writes}"]
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], pass_fds=[writes], stderr=errors
    )
    os.close(writes)
    number, call = -1, ""
    is_late = False
    for line in _lines(reads, options.seconds):
        if line is None:
            is_late = True
            process.kill()
            continue
        result, *rest = json.loads(line)
        if result == "begins":
            number, call = rest
        elif result == "uncovered":
            yield result, rest[0], ""
        else:
            yield result, call, rest[0]
            call = ""
    os.close(reads)
    process.wait()
    if process.returncode == 0:
        return None
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()[-2000:]
    if not call:
        raise RuntimeError(f"A child died between two calls: {said}")
    how = f"no answer in {options.seconds:g} s" if is_late else f"rc {process.returncode}"
    yield "crash", call, f"{how}: {said!r}"
    return number + 1


def unknown_names(wanted: str) -> list[str]:
    """Public names and arguments without cases."""
    from hostile_cases import CALLS, EXEMPT
    from public_names import parameters, public_names

    found = []
    names = public_names()
    for name, value in names.items():
        if any(re.fullmatch(pattern, name) for pattern in EXEMPT):
            continue
        if wanted and not any(one in name for one in wanted.split(",")):
            continue
        arguments = set(parameters(value))
        known = set(CALLS[name].kinds) | set(CALLS[name].apart) if name in CALLS else set()
        found += [f"{name}({argument}) has no cases" for argument in sorted(arguments - known)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--also")
    parser.add_argument("--show", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--child", type=int)
    parser.add_argument("--pipe", type=int)
    options = parser.parse_args()
    if options.child is not None:
        child(options)
    counts: Counter[str] = Counter()
    for result, call, said in outcomes(options):
        counts[result] += 1
        if result in FINDINGS or result in options.show.split(","):
            print(f"{result}: {call} {said}", flush=True)
    calls = counts.total() - counts["uncovered"]
    shown = ("refused", "taken", *FINDINGS)
    print(f"{calls} calls, " + ", ".join(f"{counts[one]} {one}" for one in shown))
    return int(any(counts[one] for one in FINDINGS) or not calls)


if __name__ == "__main__":
    sys.exit(main())

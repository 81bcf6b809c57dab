# SPDX-License-Identifier: Apache-2.0
"""Random calls of every raw op, to find calls that end the process or never return.

    python tests/campaigns/raw_ops.py [--calls=500] [--seed=1] [--processes=1] [--limit=120]
    python tests/campaigns/raw_ops.py --replay=SEED:NUMBER        a call again, in its block
    python tests/campaigns/raw_ops.py --replay=SEED:FIRST-NUMBER  also the calls from FIRST on

An op may accept or refuse any call. It must not end the process or hang. Most calls are right
except for one to three wrong arguments; some are wrong altogether. Children make the calls, some
eagerly and some in a tf.function, and announce each call. The last line has the figures. The exit
status is 1 if a call ended a child or took longer than `--limit` seconds.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import faulthandler
import os
import pathlib
import queue
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

# A new child continues after this many calls, since tables stay in memory.
CALLS_OF_CHILD = 500
# A child's address space may grow by this much, so that the machine does not run out of memory.
# TensorFlow's Python may hang at the limit.
CHILD_BYTES = 8 << 30
# The figures so far are printed after this many calls, for a campaign that is stopped.
CALLS_BETWEEN_FIGURES = 5000
# Time limits of a child: to start or make tables before its first call, and to end.
STARTING_SECONDS = 600
ENDING_SECONDS = 300


@dataclasses.dataclass
class Figures:
    """The counts of outcomes."""

    calls: int = 0
    taken: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0

    def add(self, other: Figures) -> None:
        """Adds the figures of another child."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        return (
            f"raw ops: {self.calls} calls, {self.taken} taken, {self.refused} refused, "
            f"{self.crashes} crashes, {self.hangs} hangs"
        )


# A child.


def make_calls(arguments: argparse.Namespace) -> None:
    """Makes the calls from `first` up to `last`, and reports each on the pipe."""
    faulthandler.enable(all_threads=False)
    import tensorflow as tf
    from raw_op_calls import CALLS_IN_BLOCK, Block

    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + CHILD_BYTES,) * 2)
    plant, _, planted = arguments.plant.partition(":")
    folder = tempfile.mkdtemp(dir=os.getcwd())
    block = None
    with os.fdopen(arguments.pipe, "w", buffering=1) as pipe:
        for number in range(arguments.first, arguments.last):
            if block is None or number % CALLS_IN_BLOCK == 0:
                if block is not None:
                    block.close()
                # A child that starts within a block gets the tables of the block's start.
                block = Block(arguments.seed, number // CALLS_IN_BLOCK, folder)
            call = None  # ends the turns that the last call holds
            try:
                call = block.call(arguments.seed, number)
            except tf.errors.OpError as error:  # another call has left a table without memory
                print(f"call {number} has no arguments: {error}".replace("\n", " "), file=pipe)
                print("refused", file=pipe)
                continue
            print(f"call {number} {call}".replace("\n", " "), file=pipe)
            if plant and number == int(planted):
                _do_planted(plant)
            try:
                call.make()
            except Exception as error:  # any refusal
                print("refused", type(error).__name__, file=pipe)
                if arguments.verbose:
                    print(f"    {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            else:
                print("taken", file=pipe)


def _do_planted(plant: str) -> None:
    """Misbehaves as a test has asked, to show that the campaign notices."""
    if plant == "abort":
        os.abort()
    signal.pause()


# The parent.


class Child:
    """A process that makes calls, and the pipe of its reports."""

    def __init__(self, arguments: argparse.Namespace, first: int, last: int, folder: str) -> None:
        reader, writer = os.pipe()
        command = [
            *(sys.executable, os.path.abspath(__file__), f"--seed={arguments.seed}"),
            *(f"--first={first}", f"--last={last}", f"--pipe={writer}"),
            f"--plant={arguments.plant}",
            *(["--verbose"] if arguments.verbose else []),
        ]
        self._errors = open(os.path.join(folder, "stderr"), "w+")  # noqa: SIM115
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        self._process = subprocess.Popen(
            command, cwd=folder, pass_fds=[writer], stderr=self._errors, env=environment
        )
        os.close(writer)
        self._reader = reader
        self._unread = b""

    def line(self, seconds: float) -> str | None:
        """The child's next line; "" at its end, None after a time-out."""
        while b"\n" not in self._unread:
            if not select.select([self._reader], [], [], seconds)[0]:
                return None
            more = os.read(self._reader, 1 << 16)
            if not more:
                return ""
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def end(self, hangs: bool = False) -> tuple[int, str]:
        """Waits for the end, or enforces it.

        Returns:
            The status and the end of stderr.
        """
        os.close(self._reader)
        if hangs:
            self._process.send_signal(signal.SIGABRT)  # prints the stacks of its threads
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().splitlines()
        self._errors.close()
        return status, "\n".join(f"    {line[:300]}" for line in lines[-25:])


def run_child(
    arguments: argparse.Namespace, first: int, last: int, figures: Figures
) -> tuple[int, str]:
    """Makes some calls in a child.

    Returns:
        The number of the next call, and a description of the failure or "".
    """
    folder = tempfile.mkdtemp(prefix="raw_ops_")
    child = Child(arguments, first, last, folder)
    number, call = first, ""
    try:
        while True:
            line = child.line(arguments.limit if call else STARTING_SECONDS)
            if line is None:
                figures.hangs += 1
                _, errors = child.end(hangs=True)
                what = f"took longer than {arguments.limit} s" if call else "did not begin"
                return number + 1, f"call {number} {what}: {call}\n{errors}"
            word, _, rest = line.partition(" ")
            if word == "call":
                number, call = int(rest.partition(" ")[0]), rest
                figures.calls += 1
                if arguments.verbose:
                    print(line)
            elif word in ("refused", "taken"):
                setattr(figures, word, getattr(figures, word) + 1)
                call = ""
            else:
                status, errors = child.end()
                if status == 0 and not call:
                    return last, ""
                figures.crashes += 1
                how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
                return number + 1, f"call {number} ended the process, {how}: {call}\n{errors}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(arguments: argparse.Namespace) -> Figures:
    """Makes all calls, in several children at a time, and prints their failures."""
    whole = Figures()
    parts: queue.Queue[tuple[int, int]] = queue.Queue()
    # A child makes whole blocks of calls, few enough that every process gets some.
    share = min(CALLS_OF_CHILD, -(-arguments.calls // arguments.processes // 50) * 50)
    for first in range(0, arguments.calls, share):
        parts.put((first, min(first + share, arguments.calls)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                first, last = parts.get_nowait()
            except queue.Empty:
                return
            begin = first
            while begin < last:
                figures = Figures()
                after, wrong = run_child(arguments, begin, last, figures)
                with lock:
                    before = whole.calls // CALLS_BETWEEN_FIGURES
                    whole.add(figures)
                    if whole.calls // CALLS_BETWEEN_FIGURES > before:
                        print(whole, flush=True)
                    if wrong:
                        print(wrong)
                        print(f"    --replay={arguments.seed}:{begin}-{after - 1}", flush=True)
                begin = after

    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        for done in [pool.submit(work) for _ in range(arguments.processes)]:
            done.result()
    return whole


def replay(arguments: argparse.Namespace) -> Figures:
    """Makes a call and its predecessors again."""
    seed, _, numbers = arguments.replay.partition(":")
    first, _, last = numbers.rpartition("-")
    arguments.seed, arguments.verbose = int(seed), True
    figures = Figures()
    begin = int(first) if first else int(last) // 50 * 50
    _, wrong = run_child(arguments, begin, int(last) + 1, figures)
    if wrong:
        print(wrong)
    return figures


def main() -> None:
    """Runs a campaign or a replay; in a child, makes some calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one call")
    parser.add_argument("--replay", default="", help="SEED:NUMBER or SEED:FIRST-NUMBER")
    parser.add_argument("--verbose", action="store_true", help="print each call")
    for hidden in ("--first", "--last", "--pipe"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plant", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.calls < 0 or arguments.processes < 1 or arguments.limit <= 0:
        parser.error("`--calls` must be at least 0, `--processes` and `--limit` positive.")
    if arguments.pipe is not None:
        make_calls(arguments)
        return
    figures = replay(arguments) if arguments.replay else run(arguments)
    print(f"{figures}, seed {arguments.seed}")
    sys.exit(1 if figures.crashes or figures.hangs else 0)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Processes that a campaign forks, listens to and kills, and the campaign's loop."""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gc
import json
import os
import pathlib
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import figures

Report = Callable[..., None]


class Finding(Exception):  # noqa: N818 - it is not an error of this program
    """A failed check."""


class Process:
    """A forked process and its reports, each a line of JSON."""

    def __init__(self, work: Callable[[Report], None], errors: pathlib.Path):
        self.errors, self.said, self.rest = errors, [], b""
        self.reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writes)
            return
        status = 1
        try:
            os.dup2(os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 2)
            faulthandler.enable()
            # A line is a single write, and shorter than a pipe's buffer.
            work(lambda event, **more: os.write(writes, f"{json.dumps([event, more])}\n".encode()))
            gc.collect()  # frees the table, as the end of Python would
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(status)

    def read(self, seconds: float) -> bool:
        """Reads reports for at most `seconds`. Returns False if the process has ended."""
        if not select.select([self.reads], [], [], max(0.0, seconds))[0]:
            return True
        some = os.read(self.reads, 1 << 16)
        *lines, self.rest = (self.rest + some).split(b"\n")
        self.said += [tuple(json.loads(line)) for line in lines]
        return bool(some)

    def wait_for(self, event: str, stall: float) -> bool:
        """Waits until it reports `event`. Returns False if it ends first."""
        heard = time.monotonic()
        while all(one != event for one, _ in self.said):
            before = len(self.said)
            if not self.read(1.0):
                return False
            heard = time.monotonic() if len(self.said) > before else heard
            if time.monotonic() - heard > stall:
                os.kill(self.pid, signal.SIGABRT)
                os.waitpid(self.pid, 0)
                raise Finding(f"it said nothing for {stall} s\n{self.errors.read_text()[-3000:]}")
        return True

    def end(self, kill: bool) -> int:
        """Waits for the end, or kills.

        Returns:
            The number of the signal that ended the process; 0 for none.
        """
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        while self.read(1.0):
            pass
        os.close(self.reads)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise Finding(f"it failed: {self.errors.read_text()[-3000:]}")
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number not in (0, signal.SIGKILL):
            raise Finding(f"it ended by signal {number}\n{self.errors.read_text()[-3000:]}")
        return number

    def finding(self, stall: float) -> str:
        """Waits until it reports "end" and ends.

        Returns:
            Its finding, or "".
        """
        try:
            has_reported = self.wait_for("end", stall)
            number = self.end(kill=False)
        except Finding as finding:
            return str(finding)
        if number:  # the kernel kills too, for example if memory is used up
            return f"it ended by signal {number}"
        return "" if has_reported else "it ended and did not report its end"


class Campaign(Protocol):
    """The interface that `run_campaign` needs.

    Attributes:
        counts: The count of each outcome; "killed" counts processes.
    """

    counts: collections.Counter[str]

    def kill_one(self, number: int) -> None:
        """Starts a process and kills it. Raises `Finding`."""

    def start_again(self) -> None:
        """Drops all state after a finding."""


def run_campaign(
    name: str,
    doc: str,
    make: Callable[[pathlib.Path, argparse.Namespace], Campaign],
    plants: Sequence[str],
    kills: int,
) -> int:
    """Kills processes until enough were killed or there are five findings, and prints figures.

    Args:
        name: The campaign's name.
        doc: Its docstring. `--help` shows the first line.
        make: Makes it from an empty folder and the arguments `kills`, `seed`, `stall` and `plant`.
        plants: The names of faults that can be planted.
        kills: The default of `--kills`.

    Returns:
        The exit status: 1 if there are findings.
    """
    parser = figures.options(doc, plants)
    parser.add_argument("--kills", "--count", type=int, default=kills)
    arguments = parser.parse_args()
    begin = time.monotonic()
    failures, number = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        campaign = make(pathlib.Path(folder), arguments)
        while campaign.counts["killed"] < arguments.kills and number < 2 * arguments.kills + 10:
            number += 1
            try:
                campaign.kill_one(number)
            except Finding as finding:
                failures += 1
                print(f"process {number}: {finding}", flush=True)
                campaign.start_again()
                if failures == 5:
                    break
    print(f"{name}: {campaign.counts['killed']} of {number} processes killed")
    return figures.show(name, campaign.counts["killed"], failures, begin, campaign.counts)

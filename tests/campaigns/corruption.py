# SPDX-License-Identifier: Apache-2.0
"""Damages files of every format at random, a single damage at a time, and reads them.

    python tests/campaigns/corruption.py [--count=1000] [--seed=1] [--only=FORMAT]

Each of formats.FORMATS gets `--count` damages, of the kinds in damages.KINDS. These are findings
for a format of tf_embed:

- a load of damaged files succeeds, if it reads every byte, or gives wrong rows;
- the error is neither a tf.errors.OpError nor a ValueError;
- the message names neither the folder nor the file;
- a table has rows after a failed load.

For formats of TensorFlow, Keras and TFRA the figures count the outcomes. Wrong rows are a finding
if they have a checksum of tf_embed or TensorFlow: in .keras, .weights.h5 and checkpoints. These are
findings for every format:

- the process ends, or is silent for `--stall` seconds;
- the load needs over 1 GiB more memory than for intact files;
- the restored files do not load, or load with other rows.

`--plant` makes the campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import figures
import tensorflow as tf
from damages import KINDS, Damages, files_in
from formats import FORMATS, Format, limit_memory
from killed_process import Finding, Process, Report

MORE_BYTES = 1 << 30
PLANTS = ("none", "rows", "wrong", "end", "memory")


class Damaged:
    """The files of a format, and the outcomes of their damages."""

    def __init__(
        self, form: Format, folder: pathlib.Path, plant: str, seed: int, report: Report
    ) -> None:
        self.form, self.folder, self.plant, self.report = form, folder, plant, report
        self.draw = random.Random(f"{form.name} {seed}")
        earlier = self._saved(7)
        whole = self._saved(100)
        self.damages = Damages(self.draw, folder, whole, earlier)
        self.whole = whole
        self.expected = form.load(folder)
        limit_memory(MORE_BYTES)

    def _saved(self, seed: int) -> dict[pathlib.Path, bytes]:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.form.save(self.folder, seed)
        return files_in(self.folder)

    def one(self, number: int) -> None:
        """Damages the files, loads them, and restores them."""
        kind = self.draw.choice([one for one in KINDS if one not in self.form.kinds_without])
        words, files = self.damages.next(kind)
        self.report("trying", number=number, words=f"{kind}: {words}")
        # These two show what is reported of files that load.
        if self.plant not in ("none", "wrong"):
            for file, content in files.items():
                if content is None:
                    file.unlink()
                else:
                    file.write_bytes(content)
        try:
            outcome, finding = self._outcome(files)
        finally:
            for file in files:
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(self.whole[file])
        # After the damage, the intact files load again in the bounded memory.
        if number % 10 == 0 and not finding:
            found = self.form.load(self.folder)
            if found != self.expected:
                finding = "once it is mended, the rows are others"
        gc.collect()
        self.report("done", outcome=outcome, kind=kind, finding=finding)

    def _outcome(self, files: dict[pathlib.Path, bytes | None]) -> tuple[str, str]:
        """Loads damaged files. Returns the outcome, and the finding or ""."""
        form, plant = self.form, self.plant
        form.loaded = [] if form.name != "snapshots" else form.loaded
        if plant == "end":
            os.abort()
        try:
            if plant == "memory":
                bytearray(2 * MORE_BYTES)
            found = form.load(self.folder)
        except (MemoryError, tf.errors.ResourceExhaustedError) as error:
            return "memory", f"it needs too much memory: {error!r:.500}"
        except Exception as error:
            return self._error(error, files)
        if plant == "wrong":
            found = "other other"
        if form.reads_all:
            return "loaded", "it was loaded"
        if found == self.expected:
            return "harmless", ""
        if not form.has_checksums:
            return "wrong rows, in a format without checksums", ""
        if found.split()[0] == self.expected.split()[0]:
            return "wrong dense weights", ""
        return "wrong rows", "it was loaded, and rows are wrong"

    def _error(self, error: Exception, files: dict[pathlib.Path, bytes | None]) -> tuple[str, str]:
        text = str(error)
        if self.plant == "rows" and self.form.loaded:
            self.form.loaded[0].upsert([1], [[1.0] * 3])
        rows = [int(one.size()) for one in self.form.loaded]
        if any(rows) and self.form.is_ours:
            return "rows left", f"a table has {rows} rows after {text:.500}"
        if any(str(file) in text for file in files):
            outcome = "error that names the file"
        elif str(self.folder) in text:
            outcome = "error that names the folder, or another file"
        else:
            outcome = "error without a name"
            if self.form.is_ours:
                return outcome, f"the message names no file: {text:.500}"
        if self.form.is_ours and not isinstance(error, (tf.errors.OpError, ValueError)):
            return outcome, f"it raised {type(error).__name__}: {text:.500}"
        return outcome, ""


def damage(
    name: str, folder: pathlib.Path, begin: int, arguments: argparse.Namespace, report: Report
) -> None:
    """Makes the damages of a format whose numbers are `begin` or higher."""
    damaged = Damaged(
        FORMATS[name](), folder, arguments.plant or "", arguments.seed * 10**6 + begin, report
    )
    for number in range(begin, arguments.count):
        damaged.one(number)


class Campaign:
    """The counts of damages, outcomes and findings."""

    def __init__(self, folder: pathlib.Path, arguments: argparse.Namespace) -> None:
        self.folder, self.arguments = folder, arguments
        self.counts: collections.Counter[str] = collections.Counter()
        self.damages = self.failures = 0

    def run(self, name: str) -> None:
        """Damages files of a format. A new process continues after one that died."""
        begin = failures = 0
        while begin < self.arguments.count and failures < 5:
            process = Process(
                lambda report, begin=begin: damage(
                    name, self.folder / "files", begin, self.arguments, report
                ),
                self.folder / "errors",
            )
            try:
                process.wait_for("never", self.arguments.stall)
                process.end(kill=False)
                died = ""
            except Finding as finding:
                died = str(finding)
            words = ""
            for event, more in process.said:
                if event == "trying":
                    words, begin = more["words"], more["number"] + 1
                    self.damages += 1
                    continue
                self.counts[f"{name}: {more['outcome']}"] += 1
                if more["finding"]:
                    failures += 1
                    if failures <= 5:
                        print(f"{name}, {words}: {more['finding']}", flush=True)
            if died:
                failures += 1
                print(f"{name}, {words}: {died}", flush=True)
            elif begin < self.arguments.count:
                raise RuntimeError(f"{name}: it ended after {begin} damages")
        self.failures += failures
        print(f"{name}: {begin} damages, {failures} findings", flush=True)


def main() -> int:
    parser = figures.options(__doc__, PLANTS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", choices=tuple(FORMATS), action="append")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(pathlib.Path(folder).resolve(), arguments)
        for name in arguments.only or FORMATS:
            campaign.run(name)
    return figures.show("corruption", campaign.damages, campaign.failures, begin, campaign.counts)


if __name__ == "__main__":
    sys.exit(main())

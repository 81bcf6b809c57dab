# SPDX-License-Identifier: Apache-2.0
"""Tables on one processor, under a clock that jumps, and in a process that runs out of memory.

    python tests/campaigns/surroundings.py [--seconds=120] [--seed=1] [--only=clock]

- processor: the load of `load.py`, on one processor, with one thread in each TensorFlow pool.
- clock: the system's clock jumps by days, back and forth, between writes, lookups and snapshots. A
  row must be expired if and only if its last use is at least the TTL ago by the present clock. The
  newest snapshot must be the last.
- memory: the address space is limited, and a table is filled until memory runs out. The write must
  fail with RESOURCE_EXHAUSTED, and the table must keep all earlier rows. It must accept rows again
  once others are removed. Tables are in memory, over disk, with string keys, with a log of evicted
  rows, or filled by an optimizer.

A process that ends, or is silent for `--stall` seconds, is a finding too. `--plant` makes the
campaign misbehave on purpose, to show that it notices.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import pathlib
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is loaded

import preload

CLOCK = pathlib.Path(__file__).with_name("jumping_clock.cc")
VARIABLE = "TF_EMBED_JUMPING_CLOCK"

if __name__ == "__main__":
    preload.start_under(CLOCK, VARIABLE)

import figures  # noqa: E402
import load  # noqa: E402
from killed_process import Process, Report  # noqa: E402

PLANTS = ("waits", "clock", "memory")
LOADS = ("refusing", "tiers-bounded")
TABLES = ("plain", "strings", "tiers", "logged", "trained")
TTL_SECONDS = 600
DAY = 86_400
ROOM = 200 << 20  # bytes of address space
RESERVE = 48 << 20  # bytes of ROOM, held back and freed once
DIM = 64
BATCH = 1_000


class WrongError(Exception):
    """A table that is not as it must be."""


# One processor.


def on_one_processor(
    name: str, seconds: float, folder: pathlib.Path, seed: int, plant: str, report: Report
) -> None:
    """The load on a table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    report("begun")
    if plant == "waits":
        wait_for_each_other()
    load.load(name, seconds, folder, "", seed, report)


def wait_for_each_other() -> None:
    """Runs two ops of a graph that each need a thread."""
    import tensorflow as tf

    both = threading.Barrier(2)

    def wait() -> int:
        return both.wait()

    @tf.function
    def graph() -> tf.Tensor:
        return tf.py_function(wait, [], tf.int64) + tf.py_function(wait, [], tf.int64)

    graph()


# A clock that jumps.


def set_clock(seconds: int) -> None:
    """Sets this process's system clock, in seconds after the true time."""
    library = ctypes.CDLL(None)
    library.jumping_clock_set.argtypes = [ctypes.c_int64]
    library.jumping_clock_set(seconds)


def under_a_clock_that_jumps(
    seconds: float, folder: pathlib.Path, seed: int, plant: str, report: Report
) -> None:
    """Compares tables with a TTL with a dict of the times of the last uses."""
    import numpy as np

    import tf_embed

    draw = random.Random(seed)
    tables = {}
    for name in ("memory", "tiers"):
        storage = None
        if name == "tiers":
            storage = tf_embed.Storage(host_bytes=4096, path=folder / "rows")
        policy = tf_embed.TablePolicy(ttl_seconds=TTL_SECONDS, track_changes=True)
        make: dict[str, Any] = {"dim": 4, "policy": policy, "storage": storage, "initializer": 0.0}
        variable = tf_embed.Variable(name=name, devices=["/CPU:0"] * 2, **make)
        tables[name] = variable, tf_embed.Snapshots(folder / name, variable)
    last: dict[int, float] = {}  # the time of the last use
    until, jumps, clock = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until or jumps < 20:
        # Half of the jumps are longer than the TTL. A minute is far longer than an iteration.
        clock = draw.choice((clock, 0)) + draw.choice((60, DAY)) * draw.randint(-7, 7)
        set_clock(clock)
        if plant == "clock":
            for variable, _ in tables.values():
                variable.set_clock(time_ms=int(time.time() * 1000) if jumps == 0 else None)
        jumps += 1
        written, used = ([draw.randrange(400) for _ in range(40)] for _ in range(2))
        now = time.time()
        last = {key: used_at for key, used_at in last.items() if used_at + TTL_SECONDS > now}
        last |= {key: now for key in used if key in last} | dict.fromkeys(written, now)
        for name, (variable, snapshots) in tables.items():
            variable.lookup(np.array(used), training=True)
            values = np.repeat(np.array(written, np.float32)[:, None], 4, axis=1)
            variable.upsert(np.array(written), values)
            variable.restrict(10**6)
            keys, rows = (part.numpy() for part in variable.export())
            if sorted(keys.tolist()) != sorted(last):
                wrong = sorted(set(keys.tolist()) ^ set(last))
                raise WrongError(f"{name}, jump {jumps}: rows that differ: {wrong}")
            if (rows != keys[:, None]).any():
                raise WrongError(f"{name}, jump {jumps}: a wrong row")
            if jumps % 5 == 0:
                snapshots.save(str(jumps))
                if snapshots.keep(2) and snapshots.latest() != str(jumps):
                    raise WrongError(f"{snapshots.latest()!r} is no snapshot of jump {jumps}")
        report("jump", number=jumps)
    report("figures", found={"jumps": jumps})
    report("end")


# No memory.


class Filled:
    """A table that is filled with batches of rows, and checks of its content."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        import keras
        import numpy as np
        import tensorflow as tf

        import tf_embed

        self.np, self.tf, self.tf_embed = np, tf, tf_embed
        self.name = name
        storage, policy, key_dtype = None, None, "int64"
        if name == "tiers":
            storage = tf_embed.Storage(host_bytes=1 << 40, path=folder / "rows")
        if name == "logged":
            policy = tf_embed.TablePolicy(max_rows=20_000, eviction="lru", log_evicted=True)
        if name == "strings":
            key_dtype = "string"
        self.variable = tf_embed.Variable(
            dim=DIM,
            name=name,
            key_dtype=key_dtype,
            initializer=0.0,
            storage=storage,
            policy=policy,
        )
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(-1.0, 0.5))
        self.optimizer.build(self.variable.trainable_variables)
        self.number = np.arange(BATCH)
        self.rows = np.zeros([BATCH, DIM], np.float32)

    def keys(self, batch: int) -> Any:
        """The keys of a batch."""
        self.rows[:] = (self.number + batch)[:, None]
        numbers = self.number + batch * BATCH
        if self.name == "strings":
            return self.np.array([f"key {number}" for number in numbers], object)
        return numbers

    def put(self, batch: int) -> None:
        """Writes a batch."""
        keys = self.keys(batch)
        if self.name != "trained":
            self.variable.upsert(keys, self.rows)
            return
        variables = self.variable.trainable_variables
        with self.tf.GradientTape() as tape:
            rows = self.tf_embed.embedding_lookup(self.variable, keys)
        gradients = tape.gradient(rows, variables, output_gradients=self.tf.constant(self.rows))
        self.optimizer.apply(gradients, variables)

    def check(self, batches: range) -> None:
        """Checks the rows of batches; in a bounded table, the rows that are still there.

        Raises:
            WrongError: If a row is wrong or missing.
        """
        for batch in batches:
            keys = self.keys(batch)
            rows, exists = (part.numpy() for part in self.variable.lookup(keys, return_exists=True))
            if self.name != "logged" and not exists.all():
                raise WrongError(f"batch {batch} of {batches.stop} has rows no more")
            wrong = exists & (rows != self.rows).any(1)
            if wrong.any():
                raise WrongError(
                    f"batch {batch} of {batches.stop} has {wrong.sum()} wrong rows, such as "
                    f"{rows[wrong][0]}, which must be {self.rows[wrong][0]}"
                )

    def put_until_refused(self, first: int, most: int) -> int:
        """Writes batches until the table refuses a batch. Returns their number, at most `most`."""
        for batch in range(first, first + most):
            try:
                self.put(batch)
            except self.tf.errors.ResourceExhaustedError:
                return batch - first
        return most


def without_memory(name: str, folder: pathlib.Path, seed: int, plant: str, report: Report) -> None:
    """Fills a table in a process that runs out of memory."""
    table = Filled(name, folder)
    drain = table.variable.drain_evicted if name == "logged" else lambda: None
    table.put(0)
    table.check(range(1))
    table.variable.remove(table.keys(0))
    table.variable.size()
    drain()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    reserve = bytearray(RESERVE)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    report("limited")
    full = table.put_until_refused(0, 2_000)
    again = table.put_until_refused(full, 3)
    resource.setrlimit(resource.RLIMIT_AS, (limit + RESERVE, -1))
    del reserve
    report("refused", batches=full)
    if full in (0, 2_000) or again == 3:
        raise WrongError(f"{full} batches came in, and {again} of the next 3")
    if plant == "memory":
        table.variable.remove(table.keys(full // 2)[:1])
    table.check(range(full))
    freed = full // 4
    drain()
    for batch in range(freed):
        table.variable.remove(table.keys(batch))
    first = full + 10  # a refused batch may be in the table in part
    more = table.put_until_refused(first, freed // 2)
    if more < freed // 2:
        raise WrongError(f"{freed} of {full} batches left, and only {more} others came")
    table.check(range(freed, full))
    table.check(range(first, first + more))
    drain()
    table.variable.clear()
    report("figures", found={"batches before the first refusal": full})
    report("end")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="of what goes by time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="such as processor, or memory: tiers")
    parser.add_argument("--stall", type=float, default=120.0, help="seconds without a word")
    parser.add_argument("--plant", choices=PLANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed, plant, seconds = arguments.seed, arguments.plant or "", arguments.seconds / 3
    works: dict[str, Callable[[pathlib.Path, Report], None]] = {
        "clock": lambda folder, report: under_a_clock_that_jumps(
            seconds, folder, seed, plant, report
        )
    }
    for name in LOADS:
        works[f"processor: {name}"] = lambda folder, report, name=name: on_one_processor(
            name, seconds, folder, seed, plant, report
        )
    for name in TABLES:
        works[f"memory: {name}"] = lambda folder, report, name=name: without_memory(
            name, folder, seed, plant, report
        )
    if arguments.only:
        works = {n: work for n, work in works.items() if n.startswith(tuple(arguments.only))}
    if not works:
        parser.error(f"there is nothing of {arguments.only}")
    begin, failures = time.monotonic(), 0
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as parent:
        for place, (name, work) in enumerate(works.items()):
            folder = pathlib.Path(parent, str(place))
            folder.mkdir()
            process = Process(
                lambda report, work=work, folder=folder: work(folder, report), folder / "errors"
            )
            wrong = process.finding(arguments.stall)
            for _, more in (one for one in process.said if one[0] == "figures"):
                wrong = wrong or more.get("wrong", "")
                counts.update({f"{name}: {what}": found for what, found in more["found"].items()})
            failures += bool(wrong)
            print(f"{name}: {wrong or 'fine'}", flush=True)
    preload.remove_library(VARIABLE)
    return figures.show("surroundings", len(works), failures, begin, counts)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs all operations of a Variable at once, for minutes, on tables of each kind, also on disk.

    python tests/campaigns/stress.py [--seconds=60] [--kinds=plain,lfu] [--threads=5] [--seed=1]

Each kind runs in its own process for its share of the time. Threads call random operations. A row
repeats a single number, so that a torn row shows. Rows with a single writer thread must read back
as written, if the kind has no eviction. If a process dies or makes no call for `--stall` seconds,
the stacks of its threads are printed. The exit status is 1 if any kind failed.

`--plant` makes the process misbehave on purpose, to show that the campaign notices.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

DIM = 8
KEYS = 3000  # keys that all threads share
BATCH = 200
OWN_KEYS = 40  # keys of each thread
BOUND = 1000
PLANTS = ("crash", "hang", "lost", "torn", "error")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of table, and the operations that it allows."""

    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    key_dtype: str = "int64"
    value_dtype: str = "float32"
    replaces: bool = False  # whether it is cleared, restored and loaded
    cache_rows: int = 0  # float32 rows in host memory; all others are on disk. 0: no disk
    slots: bool = False  # whether rows have slots
    keys: int = KEYS

    @property
    def is_tracked(self) -> bool:
        return bool(self.policy.get("track_changes"))

    @property
    def keeps_all(self) -> bool:
        return not self.policy.keys() - {"track_changes"} and not self.replaces


def kinds() -> dict[str, Kind]:
    import tf_embed

    counter, tracked = tf_embed.CounterAdmission(2, 500), {"track_changes": True}
    return {
        "plain": Kind(),
        "replaced": Kind(replaces=True),
        "half": Kind(value_dtype="float16", replaces=True),
        "strings": Kind(key_dtype="string"),
        "strings-replaced": Kind(key_dtype="string", replaces=True),
        "lru": Kind({"max_rows": BOUND, "eviction": "lru", "log_evicted": True}, replaces=True),
        "lfu": Kind({"max_rows": BOUND, "eviction": "lfu"}, replaces=True),
        "refusing": Kind({"max_rows": BOUND, "eviction": None}, replaces=True),
        "strings-refusing": Kind(
            {"max_rows": BOUND, "eviction": None}, key_dtype="string", replaces=True
        ),
        "disk-refusing": Kind({"max_rows": BOUND, "eviction": None}, cache_rows=500, replaces=True),
        "ttl": Kind({"ttl_seconds": 0.05}, replaces=True),
        "admission": Kind({"admission": counter}, replaces=True),
        "strings-lfu": Kind(
            {"max_rows": BOUND, "eviction": "lfu", "log_evicted": True, "admission": counter},
            key_dtype="string",
            replaces=True,
        ),
        "disk": Kind(cache_rows=1000, slots=True),
        "disk-replaced": Kind(cache_rows=1000, slots=True, replaces=True, keys=20_000),
        "disk-half": Kind(cache_rows=500, value_dtype="float16", replaces=True, keys=40_000),
        "disk-strings": Kind(cache_rows=1000, key_dtype="string"),
        "disk-tiny": Kind(cache_rows=20),  # fewer than a batch has
        "tracked": Kind(tracked, slots=True),
        "tracked-lfu": Kind({**tracked, "max_rows": BOUND, "eviction": "lfu"}, replaces=True),
        "tracked-disk": Kind(tracked, cache_rows=1000, slots=True, replaces=True, keys=20_000),
    }


class WrongRowError(Exception):
    """A row or a table that is not as it must be."""


class Stress:
    """A table and the operations on it."""

    def __init__(self, name: str, folder: str, seed: int):
        import keras
        import numpy as np
        import tensorflow as tf

        import tf_embed

        self.np, self.tf, self.tf_embed = np, tf, tf_embed
        self.kind = kinds()[name]
        self.seed, self.folder = seed, folder
        policy = tf_embed.TablePolicy(**self.kind.policy) if self.kind.policy else None
        self.v = tf_embed.Variable(
            key_dtype=self.kind.key_dtype,
            value_dtype=self.kind.value_dtype,
            dim=DIM,
            name=name,
            devices=["/CPU:0"] * 2,
            initializer=-1.0,
            policy=policy,
            storage=self.storage(),
        )
        self.checkpoint = tf.train.Checkpoint(v=self.v)
        momentum = 0.5 if self.kind.slots else 0.0
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5, momentum))
        self.optimizer.build(self.v.trainable_variables)
        self.v.upsert(self.keys(np.arange(self.kind.keys)), self.rows(self.kind.keys, 1.0))
        if self.kind.slots:
            # From here on saves have slots. A load of rows without slots changes the optimizer,
            # which concurrent steps refuse.
            self.train(np.random.default_rng(seed))
        self.path = self.checkpoint.write(os.path.join(folder, "first"))
        if self.kind.replaces:
            self.v.save_rows(folder)
        if self.kind.is_tracked:
            self.snapshots = tf_embed.Snapshots(os.path.join(folder, "snapshots"), self.v)
            self.other = tf_embed.Variable(  # snapshots are loaded into it
                dim=DIM, name="other", devices=["/CPU:0"] * 3, policy=policy
            )
            self.last, self.turn = "", threading.Lock()
        self.find = tf.function(lambda keys: self.v.lookup(keys))
        self.calls: dict[str, int] = {}
        self.owned: dict[int, float] = {}  # the number in a thread's own rows
        self.hangs = False

    def storage(self) -> Any:
        if not self.kind.cache_rows:
            return None
        row_bytes = DIM * 4 * (2 if self.kind.slots else 1) + 8
        return self.tf_embed.Storage(
            host_bytes=self.kind.cache_rows * row_bytes, path=os.path.join(self.folder, "tiers")
        )

    def keys(self, numbers: Any) -> Any:
        if self.kind.key_dtype == "string":
            return self.np.array([f"key {number}" * (1 + number % 9) for number in numbers], object)
        return self.np.asarray(numbers, "int64")

    def rows(self, count: int, number: float) -> Any:
        return self.np.full([count, DIM], number, self.kind.value_dtype)

    def check(self, rows: Any, what: str) -> Any:
        rows = self.np.asarray(rows).reshape(-1, DIM)
        if (rows != rows[:, :1]).any():
            raise WrongRowError(f"{what}: a torn row: {rows[(rows != rows[:, :1]).any(1)][0]}")
        return rows[:, 0]

    def operations(self) -> dict[str, tuple[int, Callable[[Any], Any]]]:
        """Maps the name of each operation to its weight in draws and its function."""
        v, tf = self.v, self.tf
        some = lambda random: self.keys(random.integers(0, self.kind.keys, BATCH))  # noqa: E731
        number = lambda random: float(random.integers(0, 100))  # noqa: E731
        ragged = lambda random: tf.RaggedTensor.from_uniform_row_length(  # noqa: E731
            tf.constant(some(random)), 5
        )
        of_keys = {
            "upsert": (8, lambda r: v.upsert(some(r), self.rows(BATCH, number(r)))),
            "lookup": (8, lambda r: self.check(v.lookup(some(r)), "lookup")),
            "lookup of training": (
                4,
                lambda r: self.check(v.lookup(some(r), training=True), "lookup"),
            ),
            "lookup of a tf.function": (4, lambda r: self.check(self.find(some(r)), "tf.function")),
            "pooled": (
                8,
                lambda r: self.check(
                    self.tf_embed.embedding_lookup_sparse(v, ragged(r), None), "pooled"
                ),
            ),
            "accum": (
                3,
                lambda r: v.accum(
                    some(r),
                    self.rows(BATCH, 1.0),
                    self.rows(BATCH, 2.0),
                    r.integers(0, 2, BATCH).astype(bool),
                ),
            ),
            "remove": (2, lambda r: v.remove(some(r)[:20])),
            "export": (2, lambda r: self.exported()),
            "size": (1, lambda r: v.size()),
            "stats": (1, lambda r: v.stats()),
            "checkpoint": (1, self.write_checkpoint),
        }
        of_policies = {
            "restrict": (2, lambda r: v.restrict(BOUND // 2)),
            "statistics": (1, lambda r: v.row_statistics(some(r))),
        }
        of_replaced = {
            "clear": (1, lambda r: v.clear()),
            "restore": (1, lambda r: self.checkpoint.read(self.path)),
            "save files": (1, lambda r: v.save_rows(self.folder)),
            "load files": (1, lambda r: v.load_rows(self.folder)),
        }
        of_disk = {
            "prefetch": (8, lambda r: v.prefetch(some(r))),
            "shrink": (1, lambda r: v.table.shrink()),
        }
        operations = dict(of_keys)
        if self.kind.cache_rows:
            operations |= of_disk
        if self.kind.policy.get("eviction"):
            operations |= of_policies
        if self.kind.policy.get("log_evicted"):
            operations["drain"] = (2, lambda r: self.check(v.drain_evicted()[1], "drain"))
        if self.kind.replaces:
            operations |= of_replaced
        if self.kind.is_tracked:
            operations["snapshot"] = (3, self.snapshot)
        return operations

    def write_checkpoint(self, random: Any) -> None:
        self.checkpoint.write(os.path.join(self.folder, f"c{threading.get_ident()}"))

    def exported(self) -> None:
        keys, rows = (part.numpy() for part in self.v.export())
        self.check(rows, "export")
        if len(set(keys.tolist())) != len(keys):
            raise WrongRowError("export: a key twice")
        if self.kind.key_dtype == "string" and any(not key for key in keys):
            raise WrongRowError("export: an empty key")
        bound = self.kind.policy.get("max_rows")
        if bound and len(keys) > bound:
            raise WrongRowError(f"export: {len(keys)} rows where {bound} are the most")

    def snapshot(self, random: Any) -> None:
        """Saves, folds or keeps snapshots, one thread at a time, and loads the last snapshot."""
        if not self.turn.acquire(blocking=False):
            return
        try:
            since = self.last if random.integers(0, 4) else ""
            name = f"{time.monotonic_ns()}"
            self.last = ""
            wait = bool(random.integers(0, 2))
            self.snapshots.save(name, since=since or None, wait=wait).wait()
            if random.integers(0, 3):
                self.last = name
            else:
                self.snapshots.fold(name)
            if not random.integers(0, 3):
                self.snapshots.keep(2)
            self.other.clear()
            self.tf_embed.Snapshots(self.snapshots.path, self.other).load(name)
            self.check_loaded()
        except self.tf.errors.FailedPreconditionError:
            if not self.kind.replaces:
                raise
        finally:
            self.turn.release()

    def check_loaded(self) -> None:
        """Checks that a snapshot is of a single moment: all of a thread's rows are of one batch."""
        keys, rows = (part.numpy() for part in self.other.export())
        numbers = self.check(rows, "snapshot")
        if len(set(keys.tolist())) != len(keys):
            raise WrongRowError("snapshot: a key twice")
        if not self.kind.keeps_all:
            return
        own = keys >= self.kind.keys
        for thread in set(((keys[own] - self.kind.keys) // OWN_KEYS).tolist()):
            first = self.kind.keys + thread * OWN_KEYS
            mine = numbers[(keys >= first) & (keys < first + OWN_KEYS)]
            if len(mine) != OWN_KEYS or len(set(mine.tolist())) != 1:
                raise WrongRowError(f"snapshot: of no one moment: {mine.tolist()}")

    def train(self, random: Any) -> None:
        """A step. A single thread makes steps, since a Keras optimizer is not thread-safe."""
        keys = self.keys(random.integers(0, self.kind.keys, BATCH))
        with self.tf.GradientTape() as tape:
            loss = self.tf.reduce_sum(self.tf_embed.embedding_lookup(self.v, keys))
        variables = self.v.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def own(self, thread: int, random: Any) -> None:
        """Writes and checks the rows that only this thread writes."""
        first = self.kind.keys + thread * OWN_KEYS
        keys = self.keys(range(first, first + OWN_KEYS))
        if thread in self.owned:  # the rows may have moved to another tier since
            self.check_own(keys, self.owned[thread])
        self.owned[thread] = float(random.integers(0, 100))
        self.v.upsert(keys, self.rows(OWN_KEYS, self.owned[thread]))
        self.check_own(keys, self.owned[thread])

    def check_own(self, keys: Any, number: float) -> None:
        read = self.check(self.v.lookup(keys), "own rows")
        if self.kind.keeps_all and (read != number).any():
            raise WrongRowError(f"own rows: wrote {number}, read {sorted(set(read.tolist()))}")

    def run(self, thread: int) -> None:
        random = self.np.random.default_rng([self.seed, thread])
        operations = self.operations() | {"own rows": (6, lambda r: self.own(thread, r))}
        if thread == 0:
            operations["train"] = (12, self.train)
        names = [name for name, (weight, _) in operations.items() for _ in range(weight)]
        while not self.hangs:
            name = names[random.integers(len(names))]
            operations[name][1](random)
            self.calls[f"{thread} {name}"] = self.calls.get(f"{thread} {name}", 0) + 1

    def misbehave(self, plant: str) -> None:
        if plant == "crash":
            os.abort()
        elif plant == "lost":
            self.v.remove(self.keys(range(self.kind.keys, self.kind.keys + OWN_KEYS)))
        elif plant == "torn":
            self.v.upsert(self.keys(range(BATCH)), self.np.arange(BATCH * DIM).reshape(-1, DIM))
        elif plant == "error":
            self.v.upsert([], self.rows(1, 0.0))


def child(arguments: argparse.Namespace) -> None:
    """Runs a kind. Prints lines of JSON: the number of calls so far, or the failure."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        stress = Stress(arguments.child, folder, arguments.seed)

        one = threading.Lock()  # its first holder ends the process, while the others wait

        def fail(error: BaseException) -> None:
            one.acquire()
            print(json.dumps({"wrong": f"{type(error).__name__}: {error}"[:600]}), flush=True)
            os._exit(1)

        def work(do: Callable[[], None]) -> None:
            try:
                do()
            except BaseException as error:
                fail(error)

        def plant() -> None:
            while sum(stress.calls.values()) < 50:
                time.sleep(0.01)
            stress.hangs = arguments.plant == "hang"
            while not stress.hangs:
                stress.misbehave(arguments.plant)

        works: list[Callable[[], None]]
        works = [lambda i=i: stress.run(i) for i in range(arguments.threads)]
        if arguments.plant:
            works.append(plant)
        for do in works:
            threading.Thread(target=work, args=(do,), daemon=True).start()
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            with one:
                print(json.dumps({"calls": sum(dict(stress.calls).values())}), flush=True)
        os._exit(0)  # threads run until the process ends


def run_kind(name: str, seconds: float, arguments: argparse.Namespace) -> tuple[int, str]:
    """Returns the number of calls, and a description of the failure or ""."""
    command = [sys.executable, __file__, f"--child={name}", f"--seconds={seconds}"]
    command += [f"--threads={arguments.threads}", f"--seed={arguments.seed}"]
    command += [f"--plant={arguments.plant}"] if arguments.plant else []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        last = {"at": time.monotonic() + 60.0, "calls": 0}  # it imports TensorFlow first
        stalled = threading.Event()

        def watch() -> None:
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - last["at"] > arguments.stall:
                    stalled.set()
                    process.send_signal(
                        signal.SIGABRT
                    )  # faulthandler prints the stacks of all threads
                    return

        threading.Thread(target=watch, daemon=True).start()
        wrong = ""
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            wrong = said.get("wrong", wrong)
            if said.get("calls", 0) > last["calls"]:
                last.update(at=time.monotonic(), calls=said["calls"])
        status = process.wait()
        errors.seek(0)
        stacks = errors.read()[-6000:]
    if stalled.is_set():
        wrong = f"no call for {arguments.stall} s\n{stacks}"
    elif status and not wrong:
        wrong = f"ended with {status}\n{stacks}"
    return int(last["calls"]), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of all kinds together")
    parser.add_argument("--kinds", default="", help="comma-separated; default: all")
    parser.add_argument("--threads", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stall", type=float, default=30.0, help="seconds without a call")
    parser.add_argument("--plant", choices=PLANTS, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
    names = arguments.kinds.split(",") if arguments.kinds else list(kinds())
    total, failures = 0, 0
    for name in names:
        calls, wrong = run_kind(name, arguments.seconds / len(names), arguments)
        total, failures = total + calls, failures + bool(wrong)
        print(f"{name:18} {calls:9,} calls  {wrong or 'fine'}", flush=True)
    print(
        f"stress: {total:,} calls of {len(names)} kinds of tables in {arguments.seconds:.0f} s, "
        f"{failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

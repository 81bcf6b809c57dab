# SPDX-License-Identifier: Apache-2.0
"""Measures the freshness of served rows: the seconds from a gradient to a changed answer.

    python benchmarks/freshness.py [--rows=1000000] [--dim=16] [--every=1.0] [--poll=0.1]
        [--seconds=30] [FOLDER]

This process trains a table and publishes it every `--every` seconds. Another process follows and
looks rows up all the time. Each step trains 4,096 random keys, and a key that all steps train by
the same gradient. So its row shows the number of steps in an answer. Prints an object of JSON:

    fresh_p50, fresh_p99, fresh_max   seconds from the apply of a step to the first answer that has
                                      it, over all steps
    steps                             number of steps
    publications, rows_published      publications meanwhile, and mean number of rows in each
    bytes_published                   mean number of bytes in each
    publish_seconds                   until `publish(wait=False)` returns, the median
    update_seconds                    until the follower has loaded a publication, the median
    steps_a_second                    of training
    lookups_a_second                  of 1,024 keys, by one thread, while it follows
    other_cores                       cores that other work kept busy

The folder should be on the disk in question; written files are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import machine
import tf_embed
from tf_embed.serving import Follower, Publisher

BATCH = 65536
STEP = 4096
LOOKUP = 1024
PROBE = -1  # the key that all steps train
_START_SECONDS = 600.0
_WARM = 3  # steps and publications before


def train(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Trains and publishes, while another process serves."""
    policy = tf_embed.TablePolicy(eviction=None, track_changes=True)
    rows, dim = arguments.rows, arguments.dim
    variable = tf_embed.Variable(dim=dim, policy=policy, init_size=rows, initializer=0.0)
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([variable.anchor])
    for begin in range(0, rows, BATCH):
        keys = np.arange(begin, min(rows, begin + BATCH))
        variable.upsert(keys, np.zeros([len(keys), dim], np.float32))
    draw = np.random.default_rng(0)
    batches = [np.append(draw.integers(0, rows, STEP), PROBE) for _ in range(64)]
    gradients = tf.constant(np.append(draw.normal(size=[STEP, dim]), -np.ones([1, dim]), axis=0))
    gradients = tf.cast(gradients, tf.float32)

    def step(number: int) -> None:
        slices = tf.IndexedSlices(gradients, tf.constant(batches[number % 64]))
        optimizer.apply([slices], [variable.anchor])

    publisher = Publisher(variable, folder / "published")
    for number in range(_WARM):
        step(number)
        publisher.publish(wait=False)
    publisher.wait()
    server = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], f"--serve={folder}"], stdin=subprocess.DEVNULL
    )
    try:
        _wait_for(folder / "ready", server)
        watch = machine.LoadWatch([os.getpid(), server.pid])
        applied, begun = [float("nan")] * _WARM, []
        begin = time.monotonic()
        next_time = begin + arguments.every
        while time.monotonic() - begin < arguments.seconds:
            step(len(applied))
            applied.append(time.monotonic())
            if applied[-1] >= next_time:
                publisher.publish(wait=False)
                begun.append(time.monotonic() - applied[-1])
                next_time = applied[-1] + arguments.every
        elapsed = time.monotonic() - begin
        publisher.publish()
        load = watch.load()
        (folder / "stop").write_text(str(len(applied)))
        server.wait(timeout=_START_SECONDS)
    finally:
        server.kill()
    served = json.loads((folder / "served.json").read_text())
    seconds = _freshness(applied, served.pop("answers"))
    fresh_p50, fresh_p99, fresh_max = np.quantile(seconds, [0.5, 0.99, 1.0])
    return {
        **{name: getattr(arguments, name) for name in ("rows", "dim", "every", "poll")},
        "fresh_p50": fresh_p50,
        "fresh_p99": fresh_p99,
        "fresh_max": fresh_max,
        "steps": len(seconds),
        "publications": len(begun),
        "publish_seconds": float(np.median(begun)),
        "steps_a_second": len(seconds) / elapsed,
        **served,
        "other_cores": load.others,
    }


def _freshness(applied: list[float], answers: list[list[float]]) -> np.ndarray:
    """The seconds of each step until an answer had it.

    Args:
        applied: The time of each step's apply.
        answers: Pairs of time and steps: the time of the first answer with that many steps.
    """
    found, done = [], _WARM
    for when, steps in answers:
        found += [when - one for one in applied[done : int(steps)]]
        done = max(done, int(steps))
    return np.array(found)


def _wait_for(path: pathlib.Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("The serving process did not begin to serve.")
        time.sleep(0.01)


def serve(arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    """Follows, and looks rows up until the trainer has ended and an answer had its last step."""
    variable = tf_embed.Variable(dim=arguments.dim, initializer=0.0)
    follower = Follower(variable, folder / "published")
    draw = np.random.default_rng(1)
    keys = [
        tf.constant(np.append(draw.integers(0, arguments.rows, LOOKUP - 1), PROBE))
        for _ in range(64)
    ]
    updates, published, over = [], [], threading.Event()
    follower.update()

    def follow() -> None:
        while not over.wait(arguments.poll):
            begin = time.monotonic()
            if follower.update():
                updates.append(time.monotonic() - begin)
                assert follower.publication is not None
                published.append((follower.publication.rows, follower.publication.bytes))

    thread = threading.Thread(target=follow)
    thread.start()
    last = float(variable.lookup(keys[0])[-1, 0])
    answers, lookups, stop = [], 0, folder / "stop"
    (folder / "ready").touch()
    begin = time.monotonic()
    wanted = float("inf")
    while last < wanted:
        steps = float(variable.lookup(keys[lookups % 64])[-1, 0])
        lookups += 1
        if steps > last:
            answers.append((time.monotonic(), steps))
            last = steps
        if lookups % 64 == 0 and stop.exists():
            wanted = float(stop.read_text() or "inf")
    elapsed = time.monotonic() - begin
    over.set()
    thread.join()
    rows, sizes = np.mean(published, axis=0)
    served = {
        "answers": answers,
        "update_seconds": float(np.median(updates)),
        "rows_published": float(rows),
        "bytes_published": float(sizes),
        "lookups_a_second": lookups / elapsed,
    }
    (folder / "served.json").write_text(json.dumps(served))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between publications")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between two looks")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--serve", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments, arguments.serve)
        return
    folder = pathlib.Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        print(json.dumps(train(arguments, folder), indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Rows a second of tables in Redis, of tf_embed and of TFRA, compared with a table in memory.

    redis_tables.py [--dim=64] [--keys=200000] [--seconds=2]

This program starts the server on a free port of this machine, so calls wait only for the server and
for copies through the loopback device. Steps are Adam's. TFRA's steps are the leanest of its ops: a
lookup and an upsert of the rows and of each slot, which are three tables in Redis. Batches have
distinct keys with rows. Calls are of a `tf.function`, and tables take turns. In addition to the
rates it prints the processor time of a row, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import tf_embed  # noqa: E402
from peers import tfra  # noqa: E402
from support.processes.redis_servers import RedisProcess  # noqa: E402

BATCHES = (1, 16, 256, 4096, 65536)
# The order of `apply`: learning rate, weight decay, beta_1, beta_2, epsilon.
ADAM = (0.001, 0.0, 0.9, 0.999, 1e-7)
ROWS_A_CALL = 50_000


class Rate(NamedTuple):
    """The rate of calls with batches in turn.

    Attributes:
        rows_a_second: Rows in a second.
        client_us: Microseconds of this process's time for a row, in all its threads.
        server_us: Microseconds of the server's time for a row.
    """

    rows_a_second: float
    client_us: float
    server_us: float


def server_seconds(server: RedisProcess) -> float:
    """Processor time that a server has used."""
    lines = [line.partition(":") for line in server.command("INFO", "cpu").splitlines()]
    used = {name: value for name, _, value in lines}
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def rate_of(
    call: Callable[[tf.Tensor], object], batches: list, seconds: float, server: RedisProcess
) -> Rate:
    """Times calls.

    Args:
        call: The function to time.
        batches: Keys of each call.
        seconds: The least duration of the measurement.
        server: The server, also if the calls do not use it.
    """
    call(batches[0])
    before, of_client = server_seconds(server), time.process_time()
    done, number, begin = 0, 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        batch = batches[number % len(batches)]
        call(batch)
        done, number = done + int(batch.shape[0]), number + 1
    of_client = time.process_time() - of_client
    of_server = server_seconds(server) - before
    return Rate(done / elapsed, 1e6 * of_client / done, 1e6 * of_server / done)


def calls_of(variable: tf_embed.Variable) -> dict[str, Callable[[tf.Tensor], object]]:
    """The timed calls, by name."""

    @tf.function(reduce_retracing=True)
    def lookup(keys: tf.Tensor) -> tf.Tensor:
        return variable.lookup(keys)

    @tf.function(reduce_retracing=True)
    def step(keys: tf.Tensor) -> tf.Tensor:
        gradients = tf.ones([tf.shape(keys)[0], variable.dim])
        hyper, number = tf.constant(ADAM, tf.float64), tf.constant(1, tf.int64)
        variable.table.apply(keys, gradients, rule="adam", hyper=hyper, step=number)
        return keys[0]

    return {"lookup": lookup, "step": step}


def calls_of_tfra(trainer: tfra.HandWrittenAdam) -> dict[str, Callable[[tf.Tensor], object]]:
    """The timed calls of a TFRA table, by name."""
    dim = trainer.variable.dim

    @tf.function(reduce_retracing=True)
    def lookup(keys: tf.Tensor) -> tf.Tensor:
        return trainer.lookup(keys)

    @tf.function(reduce_retracing=True)
    def step(keys: tf.Tensor) -> tf.Tensor:
        return trainer.step(keys, tf.ones([tf.shape(keys)[0], dim]))

    return {"lookup": lookup, "step": step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = RedisProcess()
        stack.callback(server.close)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        calls = {
            name: calls_of(tf_embed.Variable(dim=options.dim, storage=storage))
            for name, storage in {"memory": None, "Redis": server.storage()}.items()
        }
        creator = tfra.redis_creator(server.port, folder)
        calls["TFRA"] = calls_of_tfra(tfra.HandWrittenAdam(options.dim, creator))
        for one in calls.values():
            for first in range(0, options.keys, ROWS_A_CALL):
                one["step"](tf.range(first, min(first + ROWS_A_CALL, options.keys), dtype=tf.int64))
        a, b, c = os.getloadavg()
        print(f"{datetime.date.today()}, {os.cpu_count()} cores, load {a:.1f} {b:.1f} {c:.1f}")
        print(f"{options.keys} rows of dim {options.dim}; microseconds are of a row")
        names = ["memory", "Redis", "TFRA's", "Redis / TFRA's", "memory, us", "Redis", "its server"]
        names += ["TFRA's", "its server"]
        print("| batch | verb | 1,000 rows/s: " + " | ".join(names) + " |")
        print("|---" * (len(names) + 2) + "|")
        random = np.random.default_rng(1)
        for size in (size for size in BATCHES if size <= options.keys):
            draws = [random.choice(options.keys, size, replace=False) for _ in range(8)]
            batches = [tf.constant(draw, tf.int64) for draw in draws]
            for verb in ("lookup", "step"):
                memory, redis, peer = (
                    rate_of(one[verb], batches, options.seconds, server) for one in calls.values()
                )
                rates = [f"{one.rows_a_second / 1000:,.1f}" for one in (memory, redis, peer)]
                rates.append(f"{redis.rows_a_second / peer.rows_a_second:.2f}")
                times = [memory.client_us, redis.client_us, redis.server_us]
                times += [peer.client_us, peer.server_us]
                cells = [f"{size:,}", verb, *rates, *(f"{one:.2f}" for one in times)]
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

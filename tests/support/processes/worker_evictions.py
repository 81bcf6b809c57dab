# SPDX-License-Identifier: Apache-2.0
"""Restriction and prefetching of tables that workers share. A program for `worker_programs`."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker
from tf_embed.distributed import WorkerSharding

DIM = 2
# By name: the order, and the arguments of the variable.
ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lru": ("lru", {"policy": tf_embed.TablePolicy(eviction="lru")}),
    "lfu": ("lfu", {"policy": tf_embed.TablePolicy(eviction="lfu")}),
    "expiring": ("ttl", {"policy": tf_embed.TablePolicy(eviction="ttl", ttl_seconds=0.05)}),
    "timestamps": ("ttl", {"restrict_policy": tf_embed.tfra.TimestampRestrictPolicy}),
    "frequencies": ("lfu", {"restrict_policy": tf_embed.tfra.FrequencyRestrictPolicy}),
    "refusing": (
        "lfu",
        {
            "policy": tf_embed.TablePolicy(150, eviction=None),
            "restrict_policy": tf_embed.tfra.FrequencyRestrictPolicy,
        },
    ),
}
# The `num_reserved` of successive calls.
RESERVED = (10**6, 60, 31, 1, 0)
NUMBERS = ("last_step", "last_time_ms", "count")


def owner(keys: tf.Tensor, workers: int) -> tf.Tensor:
    """Gives most of the keys to worker 0."""
    return tf.cast(keys % 10 >= 8, tf.int32)


def fill(v: tf_embed.Variable, rank: int) -> None:
    """Makes steps in which the workers use different keys, some of them often."""
    for step in range(12):
        v.set_clock(time_ms=10 * step)
        rng = np.random.default_rng([step, rank])
        keys = rng.zipf(1.3, 12) % 200 if step % 4 else rng.integers(0, 200, 9 * rank)
        v.upsert(keys.astype(np.int64), np.full([len(keys), DIM], float(step), np.float32))


def own_rows(v: tf_embed.Variable) -> dict[int, dict[str, int]]:
    """The keys of this worker, and their usage statistics."""
    keys = v.export()[0]
    kept = v.row_statistics(keys)
    columns = [kept[name].numpy().tolist() for name in NUMBERS if name in kept]
    names = [name for name in NUMBERS if name in kept]
    return {
        key: dict(zip(names, numbers, strict=True))
        for key, *numbers in zip(keys.numpy().tolist(), *columns, strict=True)
        for numbers in [numbers]
    }


def restrict(strategy: Any, rank: int, folder: str) -> Any:
    found = {}
    for name, (_, options) in ORDERS.items():
        with strategy.scope():
            v = tf_embed.tfra.Variable(
                dim=DIM,
                devices=["/CPU:0"] * 2,
                name=name,
                distribution=WorkerSharding(owner=owner),
                **options,
            )
        fill(v, rank)
        found[name] = [(None, own_rows(v), int(v.size()))]
        in_graph = tf.function(v.restrict)
        for number, reserved in enumerate(RESERVED):
            wanted = tf.constant(reserved, tf.int64)
            removed = in_graph(wanted) if number % 2 else v.restrict(reserved)
            found[name].append((int(removed), own_rows(v), int(v.size())))
        if name == "refusing":  # there is room again
            v.upsert(np.arange(400), np.ones([400, DIM]))
            found["room"] = int(v.size()), v.stats()["refused"]
    return found


def trigger(strategy: Any, rank: int, folder: str) -> Any:
    """Rows leave only if all workers together have more rows than `trigger`."""
    with strategy.scope():
        v = tf_embed.tfra.Variable(
            dim=1, devices="/CPU:0", restrict_policy=tf_embed.tfra.TimestampRestrictPolicy
        )
    v.upsert(np.arange(40 * rank, 40 * rank + 40), np.zeros([40, 1]))
    in_graph = tf.function(lambda most: v.restrict(50, trigger=most))
    found = []
    for most in (80, 79, 10):
        found.append((int(in_graph(tf.constant(most, tf.int64))), int(v.size())))
    return found, int(v.restrict_policy.status.size())


def prefetch(strategy: Any, rank: int, folder: str) -> Any:
    path = os.path.join(folder, f"tiers-{rank}")
    with strategy.scope():
        v = tf_embed.Variable(
            dim=DIM,
            devices="/CPU:0",
            name="tiers",
            storage=tf_embed.Storage(host_bytes=1 << 13, path=path),
        )
    keys = np.arange(3000)
    v.upsert(keys[rank::2], np.stack([keys[rank::2]] * DIM, 1))
    names = ("rows", "promoted", "cache_hits", "cache_misses")
    found = {}

    def counted(name: str, verb: Any) -> Any:
        before = v.stats()
        got = verb()
        found[name] = {one: v.stats()[one] - before[one] for one in names}
        return got

    # The first keys have long left the cache. Both workers ask for key 2, and for new keys.
    wanted = [[5, 2, 7, 2, 9000], [0, 2, 9001]][rank]
    counted("prefetch", lambda: v.prefetch(wanted))
    found["rows"] = counted("lookup", lambda: v.lookup(wanted[:3])).numpy()
    counted("empty", lambda: v.prefetch([11, 12, 13] if rank else []))

    @tf.function
    def in_graph(keys: tf.Tensor) -> None:
        v.prefetch(keys)

    counted("graph", lambda: in_graph(tf.constant([[14], [15]], tf.int64) + 2 * rank))

    # From another thread, while this thread looks up.
    failures = []

    def ahead() -> None:
        try:
            for step in range(20):
                v.prefetch(np.arange(100 * step, 100 * step + 10 * rank))
        except Exception as failure:  # shown by the test
            failures.append(repr(failure))

    thread = threading.Thread(target=ahead)
    thread.start()
    right = True
    for step in range(20):
        some = np.arange(100 * step, 100 * step + 20)
        right &= bool(np.all(v.lookup(some).numpy()[:, 0] == some))
    thread.join()
    found["beside steps"] = right, failures, int(v.size())
    return found


if __name__ == "__main__":
    run_as_worker(globals())

# SPDX-License-Identifier: Apache-2.0
"""Workers that hang, die or deviate from the others, and refusals of tables on workers.

A program of `worker_programs`.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from typing import Any

import keras
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker, said_by
from tf_embed.distributed import WorkerSharding

SECONDS = 3
# Longer than any test waits: the launcher ends a worker that hangs.
FOR_EVER = 1000


class OwnPolicy(tf_embed.tfra.RestrictPolicy):
    """A user's, which would see the rows of one worker."""


def table(strategy: Any, name: str = "table", seconds: float = SECONDS, **options: Any) -> Any:
    options = {"dim": 1, "devices": "/CPU:0", **options}
    sharding = WorkerSharding(timeout_seconds=seconds)
    with strategy.scope():
        return tf_embed.tfra.Variable(name=name, distribution=sharding, **options)


def errors_of(function: Any, *args: Any) -> dict[str, Any]:
    """The error of a call in which other workers took no part, and the error of the next call."""
    # The launcher ends all workers once one has failed. This worker must write its result first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return {"said": said_by(function, *args), "said later": said_by(function, *args)}


def sleep_for_ever() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # instead of TensorFlow's
    time.sleep(FOR_EVER)


def hang(strategy: Any, rank: int, folder: str) -> Any:
    """The last worker stops taking part."""
    v = table(strategy)
    v.upsert([rank, 5], [[1.0]] * 2)
    if rank == strategy.num_replicas_in_sync - 1:
        sleep_for_ever()
    return errors_of(v.lookup, [1, 2, 3])


def killed(strategy: Any, rank: int, folder: str) -> Any:
    """The last worker is killed, long before the time-out."""
    v = table(strategy, seconds=FOR_EVER)
    v.upsert([rank, 5], [[1.0]] * 2)
    if rank == strategy.num_replicas_in_sync - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return errors_of(lambda: [v.lookup([1, 2, 3]) for _ in range(1000)])


def order(strategy: Any, rank: int, folder: str) -> Any:
    """Workers call two tables in different orders."""
    tables = [table(strategy, name, dim=dim) for name, dim in (("first", 1), ("second", 3))]
    if rank:
        tables.reverse()

    def use() -> None:
        for v in tables:
            v.upsert([1, 2], [[1.0] * v.dim] * 2)
        for v in tables:
            rows = v.lookup([1, 2, 3, 4])
            assert rows.numpy().tolist() == [[1.0] * v.dim] * 2 + [[0.0] * v.dim] * 2

    return errors_of(use)


def steps(strategy: Any, rank: int, folder: str) -> Any:
    """Worker 0 makes two steps more."""
    v = table(strategy)
    with strategy.scope():
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
        optimizer.build(v.trainable_variables)

    def replica_step(keys: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, keys) ** 2)
        variables = v.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    @tf.function
    def step(keys: tf.Tensor) -> None:
        strategy.run(replica_step, args=(keys,))

    for _ in range(3):
        step(tf.constant([1, 2, rank], tf.int64))
    if rank:
        sleep_for_ever()
    return errors_of(step, tf.constant([1, 2, 3], tf.int64))


def missing(strategy: Any, rank: int, folder: str) -> Any:
    """Worker 0 makes a table that the others do not make."""
    first = table(strategy)
    del first
    if rank:
        sleep_for_ever()
    return errors_of(table, strategy, "second")


def refusals(strategy: Any, rank: int, folder: str) -> dict[str, str]:
    """The errors of all refused calls. Afterwards, a table still works."""
    found = {}
    # Tables that differ between workers.
    found["name"] = said_by(table, strategy, f"table_{rank}")
    found["dim"] = said_by(table, strategy, dim=2 + rank)
    found["dtype"] = said_by(table, strategy, value_dtype=["float32", "float64"][rank])
    found["key dtype"] = said_by(table, strategy, key_dtype=["int32", "int64"][rank])
    found["policy"] = said_by(table, strategy, policy=tf_embed.TablePolicy(max_rows=10 + rank))
    rows = [0.5] * 700 + [float(rank)]
    found["long"] = said_by(table, strategy, dim=len(rows), initializer=rows)
    by_score = tf_embed.TablePolicy(9, eviction="score", score_fn=lambda keys: tf.abs(keys))
    found["score_fn"] = said_by(table, strategy, policy=by_score)
    found["order"] = said_by(
        lambda: [table(strategy, name) for name in (["a", "b"] if rank else ["b", "a"])]
    )
    # Arguments that a table refuses.
    found["restrict_policy"] = said_by(table, strategy, restrict_policy=OwnPolicy)
    found["strings"] = said_by(table, strategy, value_dtype=tf.string)
    found["max_rows"] = said_by(table, strategy, policy=tf_embed.TablePolicy(max_rows=1))
    found["owner"] = said_by(
        lambda: tf_embed_table_with(strategy, WorkerSharding(owner=lambda keys, workers: keys + 9))
    )
    found["string remainder"] = said_by(
        lambda: tf_embed_table_with(
            strategy, WorkerSharding(owner="remainder"), key_dtype=tf.string
        )
    )
    v = table(strategy, "good", policy=tf_embed.TablePolicy(eviction="lru"))
    found["restrict"] = said_by(v.restrict, 1 + rank)
    for name, policy in RESTRICTED.items():
        found.update(refused_triggers(table(strategy, name, **policy), rank))
    with strategy.scope():
        layer = tf_embed.layers.DynamicEmbedding(1, devices="/CPU:0", name="ahead")
        layer.build()
    found["prefetch"] = said_by(layer.prefetch, tf.data.Dataset.range(3))
    filters = tf_embed.TablePolicy(admission=tf_embed.BloomAdmission(2, 0.01))
    found["filters"] = said_by(table(strategy, "filters", policy=filters).table.export_all)
    found["slots"] = said_by(v.table.assign_slots, tf.constant([1]), None, None, "sgd")
    found["copy"] = said_by(copy.deepcopy, v)
    found.update(refused_optimizers(strategy, v))
    v.upsert([rank, 7], [[1.0]] * 2)
    found["at last"] = str(v.lookup([0, 1, 7, 9]).numpy().tolist())
    return found


RESTRICTED: dict[str, Any] = {
    "by time": {"restrict_policy": tf_embed.tfra.TimestampRestrictPolicy},
    "by count": {
        "restrict_policy": tf_embed.tfra.FrequencyRestrictPolicy,
        "policy": tf_embed.TablePolicy(eviction="ttl", ttl_seconds=1000),
    },
}


def refused_triggers(v: Any, rank: int) -> dict[str, str]:
    """Arguments of `restrict` that differ, also such that one worker would have nothing to do."""
    name = v.name
    v.upsert([rank, 5, 6], [[1.0]] * 3)
    in_graph = tf.function(lambda most: v.restrict(2, trigger=most))
    said = {
        f"{name}, trigger": said_by(v.restrict, 2, trigger=[3, 1000][rank]),
        f"{name}, in a graph": said_by(in_graph, tf.constant([3, 1000][rank], tf.int64)),
        f"{name}, one trigger": said_by(v.restrict, 2, **({"trigger": 2} if rank else {})),
        f"{name}, num_reserved": said_by(v.restrict, 1 + rank, trigger=2),
    }
    left = int(v.size()), int(v.restrict(3, trigger=4)), int(v.restrict(3, trigger=3))
    return {**said, f"{name}, rows": str((*left, int(v.size())))}


def refused_optimizers(strategy: Any, v: Any) -> dict[str, str]:
    k = keras.optimizers
    optimizers = {
        "Nadam": lambda: k.Nadam(),
        "Lion": lambda: k.Lion(),
        "clipnorm=1.0": lambda: k.SGD(0.1, clipnorm=1.0),
        "global_clipnorm=1.0": lambda: k.SGD(0.1, global_clipnorm=1.0),
        "use_ema=True": lambda: k.SGD(0.1, use_ema=True),
        "gradient_accumulation_steps=2": lambda: k.SGD(0.1, gradient_accumulation_steps=2),
        "LossScaleOptimizer": lambda: k.LossScaleOptimizer(k.SGD(0.1)),
    }
    found = {}

    def build(make: Any) -> None:
        optimizer = tf_embed.DynamicEmbeddingOptimizer(make())
        optimizer.build(v.trainable_variables)

    def build_layer(make: Any) -> None:
        layer = tf_embed.layers.DynamicEmbedding(1, optimizer=make(), name="own", devices="/CPU:0")
        layer.build()

    for name, make in optimizers.items():
        with strategy.scope():
            found[name] = said_by(build, make)
            found[f"{name}, own"] = said_by(build_layer, make)
        found[f"{name}, out of the scope"] = said_by(build, make)
    return found


def tf_embed_table_with(strategy: Any, sharding: WorkerSharding, **options: Any) -> None:
    with strategy.scope():
        v = tf_embed.Variable(dim=1, devices="/CPU:0", distribution=sharding, **options)
    v.lookup(tf.constant([1, 2], v.key_dtype) if v.key_dtype != tf.string else ["a"])


if __name__ == "__main__":
    run_as_worker(globals(), code=0 if "refusals" in sys.argv[1] else 3)

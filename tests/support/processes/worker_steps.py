# SPDX-License-Identifier: Apache-2.0
"""Steps of training on workers that share tables, or in one process with all batches.

A program for `worker_programs`; a test runs the same code in its own process as the oracle.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker

DIM, STEPS, BATCH = 4, 20, 24
KEYS = np.array([*range(-12, 28), 2**62, -(2**62)], np.int64)  # 0 is padding in bags
TTL_MS = 60_000
SHARDING = tf_embed.distributed.WorkerSharding(owner="remainder")

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.3),
    "adam": lambda: keras.optimizers.Adam(0.05),
    # Not from 0: there, a row's first step has the same length for any gradient. If the terms of a
    # sum cancel, the tiny rest depends on their order, and the step would show it.
    "rowwise": lambda: tf_embed.optimizers.RowwiseAdagrad(0.3, initial_accumulator_value=0.1),
}
POLICIES: dict[str, Any] = {
    "unbounded": None,
    "bounded": tf_embed.TablePolicy(max_rows=16, eviction="lru"),
    "ttl": tf_embed.TablePolicy(eviction="ttl", ttl_seconds=TTL_MS // 1000),
    "admission": tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(3)),
}


def batch_of(step: int, rank: int, workers: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [n, 3] and labels [n] of a worker. Workers have batches of different lengths."""
    draw = np.random.default_rng([step, rank])
    # Few keys at a time, which change with the steps, so that rows grow old.
    some = KEYS[draw.integers(step, min(step + 18, len(KEYS)), size=[BATCH, 3])]
    begin, end = (rank * BATCH // workers, (rank + 1) * BATCH // workers)
    size = end - begin if step % 5 != 1 else (0 if rank == 0 else end - begin)
    return some[:size], draw.normal(size=[size]).astype(np.float32)


def batches_of(step: int, ranks: Sequence[int], workers: int) -> list[tf.Tensor]:
    parts = [batch_of(step, rank, workers) for rank in ranks]
    return [tf.constant(np.concatenate(one)) for one in zip(*parts, strict=True)]


class Layers:
    """A table of each policy in a layer, a dense variable, and an optimizer for all.

    Args:
        optimizer: A name of `OPTIMIZERS`.
        own: Whether each table has its own optimizer.
        shards: Number of shards of a table in this process.
        policies: Names of `POLICIES`.
    """

    def __init__(self, optimizer: str, own: bool, shards: int, policies: Sequence[str]) -> None:
        make = OPTIMIZERS[optimizer]
        self.layers = {
            name: tf_embed.layers.DynamicEmbedding(
                DIM,
                combiner="sqrtn",
                padding_id=0,
                initializer=keras.initializers.RandomUniform(-0.5, 0.5, seed=3),
                optimizer=make() if own else None,
                devices=["/CPU:0"] * shards,
                policy=POLICIES[name],
                unknown_value=0.25 if name == "admission" else None,
                unknown_in_training=name == "admission" and own,
                distribution=SHARDING,
                name=f"{name}_{optimizer}_{own}",
            )
            for name in policies
        }
        for layer in self.layers.values():
            layer.build()
        self.dense = keras.Variable(np.linspace(-1, 1, DIM, dtype=np.float32), name="dense")
        self.optimizer = (
            keras.optimizers.SGD(0.1) if own else tf_embed.DynamicEmbeddingOptimizer(make())
        )
        self.variables = [self.dense]
        for layer in self.layers.values():
            self.variables += layer.variable.trainable_variables
        self.optimizer.build(self.variables)
        self._now_ms = 0

    def step(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            errors = [
                tf.linalg.matvec(layer(ids, training=True), self.dense.value) - labels
                for layer in self.layers.values()
            ]
            loss = tf.add_n([tf.reduce_sum(one**2) for one in errors]) / BATCH
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def set_clock(self, step: int) -> None:
        self._now_ms = step * 10_000
        if "ttl" in self.layers:
            self.layers["ttl"].variable.set_clock(time_ms=self._now_ms)

    def found(self) -> dict[str, Any]:
        """All rows, whether they exist, and their slots."""
        found = {"dense": self.dense.numpy()}
        for name, layer in self.layers.items():
            v = layer.variable
            rows, exists = (one.numpy() for one in v.lookup(KEYS, return_exists=True))
            if name == "ttl":  # the table may still hold expired rows
                exists &= v.row_statistics(KEYS)["last_time_ms"].numpy() + TTL_MS > self._now_ms
            else:
                found[f"{name} size"] = int(v.size())
            found[f"{name} exists"] = exists.astype(int)
            found[f"{name} rows"] = np.where(exists[:, None], rows, 0.0)
            slots = v.slot_variables(layer.optimizer or self.optimizer)
            for number, slot in enumerate(slots):
                values = slot.lookup(KEYS)
                found[f"{name} slot {number}"] = np.where(exists[:, None], values, 0.0)
        return found


def oracle(optimizer: str, own: bool, workers: int, policies: Sequence[str] = ()) -> Any:
    """The results of one process, with a shard for each worker."""
    layers = Layers(optimizer, own, workers, policies or list(POLICIES))
    step = tf.function(layers.step, reduce_retracing=True)
    losses = []
    for number in range(STEPS):
        layers.set_clock(number)
        losses.append(float(step(*batches_of(number, range(workers), workers))))
    return {**layers.found(), "losses": np.array(losses)}


def distributed_step(strategy: Any, layers: Layers) -> Any:
    signature = [tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None], tf.float32)]

    @tf.function(input_signature=signature)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(layers.step, args=(ids, labels))
        return strategy.reduce("SUM", losses, axis=None)

    return step


def trained(strategy: Any, rank: int, optimizer: str, own: bool) -> Any:
    workers = strategy.num_replicas_in_sync
    with strategy.scope():
        layers = Layers(optimizer, own, 1, list(POLICIES))
    step = distributed_step(strategy, layers)
    losses = []
    for number in range(STEPS):
        layers.set_clock(number)
        losses.append(float(step(*batches_of(number, [rank], workers))))
    return {**layers.found(), "losses": np.array(losses)}


@dataclasses.dataclass(frozen=True)
class Setup:
    """The optimizer and the tables of a training."""

    optimizer: str
    own: bool


SETUPS = {
    f"{optimizer} {'own' if own else 'wrapped'}": Setup(optimizer, own)
    for optimizer in OPTIMIZERS
    for own in (False, True)
    if not own or optimizer in ("adam", "rowwise")
}


def training(strategy: Any, rank: int, folder: str) -> Any:
    del folder
    return {
        name: trained(strategy, rank, setup.optimizer, setup.own) for name, setup in SETUPS.items()
    }


def threads(strategy: Any, rank: int, folder: str) -> list[int]:
    """The number of threads of this process after 50 steps and after 150 steps."""
    del folder
    with strategy.scope():
        layers = Layers("sgd", False, 1, ["unbounded"])
    step = distributed_step(strategy, layers)
    counts = []
    for number in range(150):
        step(*batches_of(number % STEPS, [rank], strategy.num_replicas_in_sync))
        if number in (49, 149):
            counts.append(len(os.listdir("/proc/self/task")))
    return [*counts, threading.active_count()]


if __name__ == "__main__":
    run_as_worker(globals())

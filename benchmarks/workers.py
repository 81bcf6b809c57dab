# SPDX-License-Identifier: Apache-2.0
"""Tables that are sharded over workers of this machine: bytes sent, and times of steps.

    python benchmarks/workers.py [--workers 1 2 4] [--batch 16384] [--dim 16] [--steps 50]

For each number of workers it starts as many processes and prints an object of JSON:

    exchange_ms, find_ms, dense_ms, apply_ms
                             the parts of a step, each separately (`Parts`): both exchanges,
                             the look-up of rows by their owner, the dense model forward and
                             backward with its all-reduce, and the rule, run by the owner
    parts_ms, whole_ms       their sum, and the whole step; ids by Zipf's law
    lookup_ms, step_ms       a lookup, and a lookup with a step of Adagrad, without a dense model
    bytes_per_step           bytes that all workers send in a step, by the loopback device's counter
    bytes_over_need          the same, over the bytes of the distinct ids that others own: a key and
                             a row for a lookup, a key and a gradient for a step
    bytes_without_distinct   the same need if equal ids were sent as often as they occur
    bag_bytes_per_step       bytes_per_step of a lookup that sums the rows of bags of 32 ids
    bag_rows_bytes_per_step  the same if rows are looked up, and the batch's worker sums them
    one_table_ms, 26_tables_ms, tables_ratio
                             a step of `fit` with this number of tables, of 16 ids each

A part begins on all workers at once; whole steps follow each other. The slowest worker counts. Each
part is a separate call, so the sum has more calls than a step, and no two parts run together.

Run it on a machine without other work. All workers share its processors, so the times of four
workers on two processors are not the times of a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.ops.exchange_ops import Part, PartType
from tf_embed.sharded import routing
from tf_embed.sharded.strategies import numbers_of_workers, worker_count
from tf_embed.sharded.worker_table import gradients_to_owners
from tf_embed.table.table import Table

KEY_BYTES = 8
BAG = 32  # ids
IDS_PER_EXAMPLE = 16
HIDDEN = 64  # units of the dense model
PARTS = ("exchange_rows", "lookup", "dense", "exchange_gradients", "apply")
PAUSE = 0.005  # longer than any worker needs to leave a barrier
EXPONENT, NUM_KEYS = 1.2, 1 << 40


def zipf_ids(seed: int, count: int) -> np.ndarray:
    """Ids by Zipf's law over the keys from 1 to `NUM_KEYS`, int64."""
    random = np.random.default_rng(seed)
    drawn = np.zeros([0], np.int64)
    while len(drawn) < count:
        some = random.zipf(EXPONENT, 2 * count)
        drawn = np.concatenate([drawn, some[(some > 0) & (some <= NUM_KEYS)]])
    return drawn[:count]


def loopback_bytes() -> int:
    """Bytes that the loopback device has sent."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise OSError("There is no loopback device.")


def milliseconds(call: Callable[[], object], steps: int) -> float:
    """The mean time of a call, after three uncounted calls."""
    for _ in range(3):
        call()
    begin = time.perf_counter()
    for _ in range(steps):
        call()
    return (time.perf_counter() - begin) / steps * 1000


class Parts:
    """The parts of a training step, and the whole step, each as a tf.function.

    A step on the ids of this worker looks rows up, runs a small dense model forward and backward,
    and trains both. Its parts, in order:

        exchange_rows       keys go to their owners, existing rows return
        lookup              the owner finds the rows
        dense               the dense model forward and backward, and its optimizer with the
                            all-reduce
        exchange_gradients  gradients of equal keys are summed, and go to the owners
        apply               the owner runs the rule

    All parts work on the same ids, so that together they do the work of the whole step. A single
    worker has no exchanges.

    Args:
        strategy: The strategy.
        ids: The ids of this worker, int64; as many as a multiple of `IDS_PER_EXAMPLE`.
        dim: Numbers in a row.
    """

    def __init__(self, strategy: tf.distribute.Strategy, ids: np.ndarray, dim: int) -> None:
        self._strategy = strategy
        self._ids = tf.constant(ids)
        self._dim = dim
        with strategy.scope():
            self._variable = tf_embed.Variable(dim=dim, init_size=2 * len(ids))
            self._dense = [
                keras.Variable(keras.random.normal(shape, stddev=0.1, seed=1))
                for shape in ([IDS_PER_EXAMPLE * dim, HIDDEN], [HIDDEN], [HIDDEN, 1], [1])
            ]
            self._optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
            self._optimizer.build([*self._variable.trainable_variables, *self._dense])
            self._dense_optimizer = keras.optimizers.Adagrad(0.01)
            self._dense_optimizer.build(self._dense)
        table: Table = self._variable.trainable_variables[0].table
        gradients = tf.fill([len(ids), dim], 1e-3)
        self._calls: dict[str, Callable[[], Any]] = {}
        keys, sums = self._ids, gradients  # those that come to this worker
        if table.spread.is_collective:
            self._make_exchanges(table, gradients)
            keys, sums = self._calls["exchange_gradients"]()
        trainer = self._optimizer.table_trainers[0]

        @tf.function
        def apply() -> None:
            trainer.train(keys, sums)

        @tf.function
        def lookup() -> tf.Tensor:
            return Table.find(table, keys)[0]

        rows = tf.fill([len(ids), dim], 1e-2)

        @tf.function
        def dense() -> tf.Tensor:
            def replica() -> tf.Tensor:
                with tf.GradientTape() as tape:
                    tape.watch(rows)
                    loss = self._loss(rows)
                of_rows, *of_dense = tape.gradient(
                    loss, [rows, *(one.value for one in self._dense)]
                )
                self._dense_optimizer.apply(of_dense, self._dense)
                return of_rows

            return self._strategy.run(replica)

        self._calls.update(lookup=lookup, dense=dense, apply=apply)

    def _make_exchanges(self, table: Any, gradients: tf.Tensor) -> None:
        ids, types = self._ids, [PartType(0, tf.float32, self._dim)]

        @tf.function
        def received() -> tf.Tensor:
            routed = table.spread.route(ids)
            sent = [Part(0, routed.keys)]
            return routing.to_owners(table.spread.reads, [routed.counts], sent, types).parts[0]

        there = tf.fill([len(received()), self._dim], 1e-2)

        @tf.function
        def exchange_rows() -> tf.Tensor:
            routed = table.spread.route(ids)
            sent = [Part(0, routed.keys)]
            got = routing.to_owners(table.spread.reads, [routed.counts], sent, types)
            parts = [Part(0, there)]
            (rows,) = routing.reply(table.spread.reads, got.plan, parts, [routed.counts])
            return routed.of_batch(rows)

        routed = table.spread.route(ids)  # as the lookup has left it
        size = tf.size(routed.keys)

        @tf.function
        def exchange_gradients() -> tuple[tf.Tensor, tf.Tensor]:
            sums = tf.math.unsorted_segment_sum(gradients, routed.places, size)
            (keys,), (sums,) = gradients_to_owners([table], [routed.keys], [sums])
            return keys, sums

        self._calls.update(exchange_rows=exchange_rows, exchange_gradients=exchange_gradients)

    def _loss(self, rows: tf.Tensor) -> tf.Tensor:
        first, bias, last, offset = (one.value for one in self._dense)
        examples = tf.reshape(rows, [-1, IDS_PER_EXAMPLE * self._dim])
        hidden = tf.nn.relu(examples @ first + bias)
        return tf.reduce_mean(tf.square(hidden @ last + offset - 1.0))

    def _whole(self) -> Callable[[], object]:
        variables = [*self._variable.trainable_variables, *self._dense]

        @tf.function
        def step() -> None:
            def replica() -> None:
                with tf.GradientTape() as tape:
                    loss = self._loss(tf_embed.embedding_lookup(self._variable, self._ids))
                gradients = tape.gradient(loss, [getattr(one, "value", one) for one in variables])
                self._optimizer.apply(gradients, variables)

            self._strategy.run(replica)

        return step

    def times(self, steps: int) -> dict[str, float]:
        """The milliseconds of each part and of the whole step: medians of the slowest worker.

        All workers begin each part at the same time, so they must be on one machine. Whole steps
        follow each other, as in training.
        """
        calls = {name: self._calls[name] for name in PARTS if name in self._calls}
        whole = self._whole()
        for call in (*calls.values(), whole):
            for _ in range(3):
                call()
        seconds: dict[str, list[float]] = {name: [] for name in (*calls, "whole")}
        for _ in range(steps):
            for name, call in calls.items():
                begin = self._begin_together()
                call()
                seconds[name].append(time.perf_counter() - begin)
        self._begin_together()
        for _ in range(steps):
            begin = time.perf_counter()
            whole()
            seconds["whole"].append(time.perf_counter() - begin)
        medians = {name: float(np.median(some)) for name, some in seconds.items()}
        if worker_count(self._strategy) > 1:
            mine = [round(1e9 * one) for one in medians.values()]
            slowest = np.max(numbers_of_workers(self._strategy, mine), axis=0) / 1e9
            medians = dict(zip(medians, slowest.tolist(), strict=True))
        return {name: 1000 * one for name, one in medians.items()}

    def _begin_together(self) -> float:
        """Waits for all workers, and then for a time that they agree on. Returns that time.

        Workers do not leave a barrier at the same time, which would count for the next part.
        """
        if worker_count(self._strategy) == 1:
            return time.perf_counter()
        clocks = numbers_of_workers(self._strategy, [time.perf_counter_ns()])
        begin = max(clock for (clock,) in clocks) / 1e9 + PAUSE
        time.sleep(max(0.0, begin - time.perf_counter()))
        return time.perf_counter()


def work(batch: int, dim: int, steps: int, folder: pathlib.Path) -> None:
    """Runs in a worker. Worker 0 writes the figures."""
    several = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy() if several > 1 else tf.distribute.get_strategy()
    )
    rank = strategy.cluster_resolver.task_id if several > 1 else 0

    def barrier() -> None:
        if several > 1:
            numbers_of_workers(strategy)

    with strategy.scope():
        variable = tf_embed.Variable(dim=dim, name="items", init_size=1 << 18)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
        optimizer.build(variable.trainable_variables)
    drawn = zipf_ids(rank, batch)
    ids = tf.constant(drawn)

    @tf.function
    def lookup() -> tf.Tensor:
        return tf.reduce_sum(variable.lookup(ids))

    @tf.function
    def step() -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_embed.embedding_lookup(variable, ids))
            gradients = tape.gradient(loss, variable.trainable_variables)
            optimizer.apply(gradients, variable.trainable_variables)

        strategy.run(replica)

    def step_of_bags(combiner: str | None) -> Callable[[], object]:
        with strategy.scope():
            layer = tf_embed.layers.DynamicEmbedding(
                dim, combiner=combiner, name=f"bags_{combiner}", init_size=1 << 18
            )
            layer.build()
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
            optimizer.build(layer.trainable_variables)
        bags = tf.reshape(ids[: batch // BAG * BAG], [-1, BAG])

        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(bags, training=True))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(gradients, layer.trainable_variables)

        return tf.function(lambda: strategy.run(replica))

    def bytes_of(call: Callable[[], object]) -> float:
        """The bytes that all workers send in a call, after three uncounted calls."""
        for _ in range(3):
            call()
        barrier()
        begin = loopback_bytes()
        barrier()
        for _ in range(steps):
            call()
        barrier()
        return (loopback_bytes() - begin) / steps

    figures: dict[str, float] = {"workers": several, "batch": batch, "dim": dim}
    parts = Parts(strategy, drawn, dim).times(steps)
    exchanges = ("exchange_rows", "exchange_gradients")
    figures["exchange_ms"] = sum(parts.get(name, 0.0) for name in exchanges)
    figures["find_ms"] = parts["lookup"]
    figures["dense_ms"], figures["apply_ms"] = parts["dense"], parts["apply"]
    figures["parts_ms"] = sum(parts.get(name, 0.0) for name in PARTS)
    figures["whole_ms"] = parts["whole"]
    figures["lookup_ms"] = milliseconds(lookup, steps)
    figures["step_ms"] = milliseconds(step, steps)
    sent = bytes_of(step)
    figures["bytes_per_step"] = round(sent)
    figures["bag_bytes_per_step"] = round(bytes_of(step_of_bags("sum")))
    figures["bag_rows_bytes_per_step"] = round(bytes_of(step_of_bags(None)))
    if several > 1:
        per_id = 2 * KEY_BYTES + 2 * dim * 4
        shard = tf_embed.sharded.routing.owners_of(
            ids, several, tf_embed.distributed.WorkerSharding(), "items"
        ).numpy()
        away = shard != rank
        distinct = len(np.unique(ids.numpy()[away]))
        needs = numbers_of_workers(strategy, [distinct * per_id, int(away.sum()) * per_id])
        need, repeated = (sum(column) for column in zip(*needs, strict=True))
        figures["bytes_over_need"] = sent / need
        figures["bytes_without_distinct"] = repeated / need

    def fit_ms(tables: int) -> float:
        with strategy.scope():
            inputs = [keras.Input([], dtype="int64", name=f"id{i}") for i in range(tables)]
            rows = [
                tf_embed.layers.DynamicEmbedding(dim, optimizer="adagrad", name=f"t{tables}_{i}")(x)
                for i, x in enumerate(inputs)
            ]
            joined = rows[0] if tables == 1 else keras.layers.concatenate(rows)
            model = tf_embed.distributed.Model(inputs, keras.layers.Dense(1)(joined))
            model.compile("sgd", "mse")
        size = 16 * several
        random = np.random.default_rng(0)
        data = {f"id{i}": random.integers(0, 10000, size * steps) for i in range(tables)}
        dataset = tf.data.Dataset.from_tensor_slices((data, np.ones([size * steps], np.float32)))
        options = tf.data.Options()
        policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_distribute.auto_shard_policy = policy
        dataset = dataset.batch(size).with_options(options)
        times: list[float] = []

        class Times(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
                times.append(-time.perf_counter())

            def on_train_batch_end(self, batch: int, logs: object = None) -> None:
                times[-1] += time.perf_counter()

        model.fit(dataset, epochs=2, verbose=0, callbacks=[Times()])
        return float(np.median(times[steps:])) * 1000

    figures["one_table_ms"] = fit_ms(1)
    figures["26_tables_ms"] = fit_ms(26)
    figures["tables_ratio"] = figures["26_tables_ms"] / figures["one_table_ms"]
    barrier()
    if rank == 0:
        (folder / "figures.json").write_text(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.batch % IDS_PER_EXAMPLE:
        parser.error(f"--batch must be a multiple of {IDS_PER_EXAMPLE}: {arguments.batch}")
    if arguments.folder is not None:
        work(arguments.batch, arguments.dim, arguments.steps, arguments.folder)
        return
    from tf_embed.distributed import run

    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            script = [__file__, "--folder", folder, "--batch", str(arguments.batch)]
            script += ["--dim", str(arguments.dim), "--steps", str(arguments.steps)]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
            outcome = run.launch(
                script, workers=workers, timeout_seconds=900, environment=environment
            )
            if outcome.code:
                sys.exit(outcome.code)
            figures = json.loads((pathlib.Path(folder) / "figures.json").read_text())
        print(json.dumps({name: round(one, 3) for name, one in figures.items()}), flush=True)


if __name__ == "__main__":
    main()

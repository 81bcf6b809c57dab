# SPDX-License-Identifier: Apache-2.0
"""The parts of a training step on several workers, each a tf.function of its own.

A step on the ids of this worker looks rows up, runs a small dense model forward and backward, and
trains both. Its parts, in their order:

    exchange_rows       keys go to their owners, rows that are there already come back
    lookup              the owner finds the rows
    dense               the dense model forward and backward, and its optimizer with the all-reduce
    exchange_gradients  gradients of equal keys are summed, and go to the owners
    apply               the owner runs the rule

All parts work on the same ids, so that together they do the work of the whole step.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.exchange import routing
from tf_embed.exchange.strategies import numbers_of_workers, worker_count
from tf_embed.exchange.workers import Workers
from tf_embed.ops.exchange_ops import Part, PartType
from tf_embed.table.table import Table
from tf_embed.table.worker_table import WorkerTable, gradients_to_owners

IDS_PER_EXAMPLE = 16
HIDDEN = 64  # of the dense model
EXCHANGES = ("exchange_rows", "exchange_gradients")
PARTS = ("exchange_rows", "lookup", "dense", "exchange_gradients", "apply")
WHOLE = "whole"
WORK = "whole_work"  # processor time of a worker in a whole step
_PAUSE = 0.005  # longer than any worker needs to leave a barrier


def dense_parameters(dim: int) -> int:
    """How many parameters the dense model has."""
    return IDS_PER_EXAMPLE * dim * HIDDEN + 2 * HIDDEN + 1


def zipf_ids(seed: int, count: int, exponent: float, num_keys: int) -> np.ndarray:
    """Ids by Zipf's law over the keys from 1 to `num_keys`, int64."""
    random = np.random.default_rng(seed)
    drawn = np.zeros([0], np.int64)
    while len(drawn) < count:
        some = random.zipf(exponent, 2 * count)
        drawn = np.concatenate([drawn, some[(some > 0) & (some <= num_keys)]])
    return drawn[:count]


class Parts:
    """The parts of a step, and the whole step, as functions without arguments.

    Args:
        strategy: The strategy.
        ids: The ids of this worker, int64; as many as a multiple of `IDS_PER_EXAMPLE`.
        dim: Numbers in a row.
        exchanges_alone: Whether a single worker exchanges with itself, by the code that several
            workers run. Then there is no whole step.

    Attributes:
        calls: The functions, by the names of `PARTS`; the exchanges only if there are any.
        num_distinct: Distinct ids of this worker.
        num_received: Keys that this worker gets from all workers in a step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        ids: np.ndarray,
        dim: int,
        *,
        exchanges_alone: bool = False,
    ) -> None:
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
        self._table: Table = self._variable.trainable_variables[0].table
        exchanging = self._table
        if exchanges_alone:
            sharding = tf_embed.distributed.WorkerSharding()
            options = dataclasses.replace(self._table.options, name="alone")
            exchanging = WorkerTable(options, Workers(strategy, sharding), sharding)
        self._make(exchanging)

    def _make(self, exchanging: Table) -> None:
        """Makes the functions, on the keys that come to this worker in a step."""
        table, ids = self._table, self._ids
        self.num_distinct = len(np.unique(ids.numpy()))
        gradients = tf.fill([len(ids), self._dim], 1e-3)
        self.calls: dict[str, Callable[[], Any]] = {}
        keys, sums = ids, gradients
        if isinstance(exchanging, WorkerTable):
            self._make_exchanges(exchanging, gradients)
            keys, sums = self.calls["exchange_gradients"]()
        self.num_received = len(keys)
        trainer = self._optimizer.table_trainers[0]

        @tf.function
        def apply() -> None:
            trainer.train(keys, sums)

        @tf.function
        def lookup() -> tf.Tensor:
            return Table.find(table, keys)[0]

        rows = tf.fill([len(ids), self._dim], 1e-2)

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

        self.calls.update(lookup=lookup, dense=dense, apply=apply)

    def _make_exchanges(self, table: WorkerTable, gradients: tf.Tensor) -> None:
        ids, types = self._ids, [PartType(0, tf.float32, self._dim)]

        @tf.function
        def received() -> tf.Tensor:
            routed = table.route(ids)
            sent = [Part(0, routed.keys)]
            return routing.to_owners(table.reads, [routed.counts], sent, types).parts[0]

        there = tf.fill([len(received()), self._dim], 1e-2)

        @tf.function
        def exchange_rows() -> tf.Tensor:
            routed = table.route(ids)
            sent = [Part(0, routed.keys)]
            got = routing.to_owners(table.reads, [routed.counts], sent, types)
            parts = [Part(0, there)]
            (rows,) = routing.reply(table.reads, got.plan, parts, [routed.counts])
            return routed.of_batch(rows)

        routed = table.route(ids)  # as the lookup has left it
        size = tf.size(routed.keys)

        @tf.function
        def exchange_gradients() -> tuple[tf.Tensor, tf.Tensor]:
            sums = tf.math.unsorted_segment_sum(gradients, routed.places, size)
            (keys,), (sums,) = gradients_to_owners([table], [routed.keys], [sums])
            return keys, sums

        self.calls.update(exchange_rows=exchange_rows, exchange_gradients=exchange_gradients)

    def _loss(self, rows: tf.Tensor) -> tf.Tensor:
        first, bias, last, offset = (one.value for one in self._dense)
        examples = tf.reshape(rows, [-1, IDS_PER_EXAMPLE * self._dim])
        hidden = tf.nn.relu(examples @ first + bias)
        return tf.reduce_mean(tf.square(hidden @ last + offset - 1.0))

    def whole(self) -> Callable[[], object]:
        """The whole step."""
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
        """Milliseconds of each part and of the whole step: medians, of the slowest worker.

        All workers begin each part at the same time, so they must be on one machine. Whole steps
        follow each other, as in training. With them comes `WORK`, the mean, which other processes
        of the machine hardly change.
        """
        calls = {name: self.calls[name] for name in PARTS if name in self.calls}
        whole = self.whole()
        for call in (*calls.values(), whole):
            for _ in range(3):
                call()
        seconds: dict[str, list[float]] = {name: [] for name in (*calls, WHOLE)}
        for _ in range(steps):
            for name, call in calls.items():
                begin = self._begin_together()
                call()
                seconds[name].append(time.perf_counter() - begin)
        self._begin_together()
        work = time.process_time()
        for _ in range(steps):
            begin = time.perf_counter()
            whole()
            seconds[WHOLE].append(time.perf_counter() - begin)
        work = time.process_time() - work
        medians = {name: float(np.median(some)) for name, some in seconds.items()}
        medians[WORK] = work / steps
        if worker_count(self._strategy) > 1:
            mine = [round(1e9 * one) for one in medians.values()]
            slowest = np.max(numbers_of_workers(self._strategy, mine), axis=0) / 1e9
            medians = dict(zip(medians, slowest.tolist(), strict=True))
        return {name: 1000 * one for name, one in medians.items()}

    def _begin_together(self) -> float:
        """Waits for all workers, and then for a time that they agree on, and gives it.

        Workers leave a barrier one after the other, which would count for the next part.
        """
        if worker_count(self._strategy) == 1:
            return time.perf_counter()
        clocks = numbers_of_workers(self._strategy, [time.perf_counter_ns()])
        begin = max(clock for (clock,) in clocks) / 1e9 + _PAUSE
        time.sleep(max(0.0, begin - time.perf_counter()))
        return time.perf_counter()

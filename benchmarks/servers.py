# SPDX-License-Identifier: Apache-2.0
"""Tables on parameter servers of this machine, compared with a local table: rates and bytes.

    python benchmarks/servers.py [--workers 1 2] [--servers 2] [--batch 1 1024 16384] [--dim 16]

For each number of workers it starts a cluster. The chief hands steps to the workers, as a
`ParameterServerTrainer` does, and it prints an object of JSON for each number of ids in a batch:

    nothing_ms               a step that does nothing: the time of the coordinator
    lookup_ms, step_ms       a lookup, and a lookup with a step of Adagrad; ids by Zipf's law
    without_token_ms         the same step, without the token by which tables apply a step once
    local_lookup_ms, local_step_ms
                             the same in the chief's process, with a local table
    lookup_ids_per_s, step_ids_per_s
                             ids that all workers look up, or train, in a second
    nothing_bytes, lookup_bytes, step_bytes
                             bytes that all processes send in a step, by the loopback device
    lookup_bytes_over_need, step_bytes_over_need
                             the same, minus the bytes of a step that does nothing, over the bytes
                             of the distinct ids: a key and a row; for a step also a key and a
                             gradient

A time is the time of all steps over their number, with many steps under way. Run it on a machine
without other work. All processes share its processors, so these are not the times of a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from workers import KEY_BYTES, loopback_bytes, milliseconds, zipf_ids


def measure(strategy: Any, batches: list[int], dim: int, steps: int, workers: int) -> None:
    """Runs in the chief: prints the figures."""
    import numpy as np
    import tensorflow as tf

    import tf_embed
    from tf_embed.table import step_tokens

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        there = _trained("there", dim)
    here = _trained("here", dim)

    def replica_step(ids: tf.Tensor, trained: Any) -> tf.Tensor:
        variable, optimizer = trained
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(variable, ids))
        gradients = tape.gradient(loss, variable.trainable_variables)
        optimizer.apply(gradients, variable.trainable_variables)
        return loss

    @tf.function
    def nothing(ids: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
        del ids, token
        return tf.constant(0.0)

    @tf.function
    def lookup(ids: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
        del token
        return tf.reduce_sum(there[0].lookup(ids))

    @tf.function
    def without_token(ids: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
        del token
        return strategy.run(lambda some: replica_step(some, there), args=(ids,))

    @tf.function
    def step(ids: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
        with step_tokens.with_token(token):
            return strategy.run(lambda some: replica_step(some, there), args=(ids,))

    local_lookup = tf.function(lambda ids: tf.reduce_sum(here[0].lookup(ids)))
    local_step = tf.function(lambda ids: replica_step(ids, here))
    made = 0  # steps of all workers

    def on_workers(function: Callable[..., Any], ids: tf.Tensor, count: int) -> None:
        nonlocal made
        for _ in range(count):
            made += 1
            token = tf.constant([made, made - 8 * workers], tf.int64)
            coordinator.schedule(function, args=(ids, token))
        coordinator.join()

    def costs(function: Callable[..., Any], ids: tf.Tensor) -> tuple[float, float]:
        """Milliseconds and bytes of a step."""
        on_workers(function, ids, 4 * workers)
        sent, begin = loopback_bytes(), time.perf_counter()
        on_workers(function, ids, steps)
        seconds = time.perf_counter() - begin
        return seconds / steps * 1000, (loopback_bytes() - sent) / steps

    for batch in batches:
        drawn = zipf_ids(0, batch)
        ids, distinct = tf.constant(drawn), len(np.unique(drawn))
        figures: dict[str, float] = {"workers": workers, "batch": batch, "distinct": distinct}
        sent = {}
        for name, function in {
            "step": step,  # first, so that lookups find rows
            "lookup": lookup,
            "without_token": without_token,
            "nothing": nothing,
        }.items():
            figures[f"{name}_ms"], sent[name] = costs(function, ids)
        figures["local_lookup_ms"] = milliseconds(lambda ids=ids: local_lookup(ids), steps)
        figures["local_step_ms"] = milliseconds(lambda ids=ids: local_step(ids), steps)
        for name, times in (("lookup", 1), ("step", 2)):
            figures[f"{name}_ids_per_s"] = batch / figures[f"{name}_ms"] * 1000
            figures[f"{name}_bytes"] = round(sent[name])
            need = times * distinct * (KEY_BYTES + 4 * dim)
            figures[f"{name}_bytes_over_need"] = (sent[name] - sent["nothing"]) / need
        figures["nothing_bytes"] = round(sent["nothing"])
        shown = {name: round(one, 3) for name, one in figures.items()}
        print(json.dumps(shown), flush=True)


def _trained(name: str, dim: int) -> tuple[Any, Any]:
    """A table and its optimizer."""
    import keras

    import tf_embed

    variable = tf_embed.Variable(dim=dim, name=name, init_size=1 << 18)
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
    optimizer.build(variable.trainable_variables)
    return variable, optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 1024, 16384])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        import tf_embed

        def chief(strategy: Any) -> None:
            measure(strategy, arguments.batch, arguments.dim, arguments.steps, arguments.part)

        tf_embed.distributed.run_with_servers(chief)
        return
    from tf_embed.distributed import run

    for workers in arguments.workers:
        script = [str(pathlib.Path(__file__)), *sys.argv[1:], "--part", str(workers)]
        outcome = run.launch_with_servers(
            script,
            workers=workers,
            servers=arguments.servers,
            max_restarts=0,
            timeout_seconds=900,
            environment={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        if outcome.code:
            sys.exit(outcome.code)


if __name__ == "__main__":
    main()

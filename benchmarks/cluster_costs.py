# SPDX-License-Identifier: Apache-2.0
"""Measures the costs of the cluster model on one machine. `scaling.py` runs it.

Each program runs in processes of its own and leaves a file of JSON:

    alone   one process that exchanges with itself, with one thread: the parts of a step by numbers
            of ids, and collectives that send nothing
    pair    two processes: collectives by the length of a message
    table   one process, one thread: bytes of a row; look-ups and steps of rows that are in no cache
    step    any number of processes: the parts of a step, and the whole step

Time is measured on the clock (wall) and as processor time of the process (work).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cluster_model import Linear, Model, quantities

DIMS = (16, 64)
CHAIN = 8  # collectives in a call
MESSAGE_BYTES = (256, 4096, 65536, 524288, 4194304)
SECONDS = 600
_ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}


def launch(program: str, workers: int, settings: Mapping[str, Any]) -> Any:
    """Runs a program in processes of its own, and returns its result.

    Args:
        program: Its name.
        workers: Number of processes.
        settings: Its settings.

    Raises:
        RuntimeError: It failed.
    """
    from tf_embed.distributed import run

    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if workers == 1 and program != "step":
        environment.update(_ONE_THREAD)
    with tempfile.TemporaryDirectory() as folder:
        script = [__file__, program, folder, json.dumps(dict(settings))]
        outcome = run.launch(
            script, workers=workers, timeout_seconds=SECONDS, environment=environment
        )
        if outcome.code:
            raise RuntimeError(f"{program!r} on {workers} workers failed: {outcome.reason}")
        return json.loads((pathlib.Path(folder) / "found.json").read_text())


Times = dict[str, tuple[float, float]]


def timed(calls: Mapping[str, Callable[[], object]], repeats: int) -> Times:
    """Wall and work of each call, in milliseconds: medians.

    The calls take turns, as in a step, so that each finds the caches as the others left them.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for repeat in range(repeats + 3):
        for name, call in calls.items():
            wall, work = time.perf_counter(), time.process_time()
            call()
            wall, work = time.perf_counter() - wall, time.process_time() - work
            if repeat >= 3:
                seconds[name].append((wall, work))
    return {name: tuple(1000 * np.median(some, axis=0)) for name, some in seconds.items()}  # type: ignore[misc]


def alone(settings: Mapping[str, Any]) -> Any:
    """The parts of a step by numbers of ids: the quantities of each case, its wall and work."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from worker_parts import EXCHANGES, IDS_PER_EXAMPLE, PARTS, Parts, dense_parameters

    batch, repeats = settings["batch"], settings["repeats"]
    least = IDS_PER_EXAMPLE
    found: dict[str, list[Any]] = {}
    for dim in DIMS:
        for ids, distinct in (
            (least, least),
            (batch // 4, batch // 4),
            (batch, batch // 8),
            (batch, batch),
        ):
            drawn = np.random.default_rng(1).permutation(np.arange(ids) % distinct)
            examples = ids // IDS_PER_EXAMPLE
            model = Model(examples, IDS_PER_EXAMPLE, dim, dense=dense_parameters(dim))
            parts = Parts(strategy, drawn, dim, exchanges_alone=True)
            costs = timed({name: parts.calls[name] for name in PARTS}, repeats)
            exchange = np.sum([costs.pop(name) for name in EXCHANGES], axis=0)
            _add(found, quantities(model, distinct, distinct), {**costs, "exchange": exchange})
            if distinct < ids:  # keys that come to an owner from several workers
                parts = Parts(strategy, drawn, dim)
                costs = timed({name: parts.calls[name] for name in PARTS[1:3] + PARTS[4:]}, repeats)
                _add(found, quantities(model, ids, distinct), costs)
    collectives = _collectives(strategy, repeats, MESSAGE_BYTES[:1])
    costs = {"parts": found, "call": _call(repeats)[0], "collectives": collectives}
    return {**costs, "pack": _pack(repeats)}


def _add(
    found: dict[str, list[Any]],
    amounts: Mapping[str, Mapping[str, float]],
    costs: Mapping[str, Sequence[float]],
) -> None:
    for name, some in costs.items():
        found.setdefault(name, []).append([amounts[name], *some])


def _call(repeats: int) -> tuple[float, float]:
    """Of a tf.function that does nothing."""
    import tensorflow as tf

    nothing = tf.zeros([4], tf.int32)
    return timed({"call": tf.function(lambda: nothing + 1)}, 5 * repeats)["call"]


def _pack(repeats: int) -> list[float]:
    """Wall and work to pack and unpack a byte of a message; data that a worker keeps is in none."""
    import tensorflow as tf

    from tf_embed.ops import exchange_ops
    from tf_embed.ops.exchange_ops import Part, PartType, Sent

    def both(size: int) -> Any:
        rows = tf.zeros([size // 256, 64])
        sent = Sent([Part(0, rows)], tf.constant([[size // 256]]))

        @tf.function
        def call() -> tf.Tensor:
            messages = exchange_ops.pack_messages(sent, tf.constant(size // 4, tf.int64))
            types = [PartType(0, tf.float32, 64)]
            return exchange_ops.unpack_messages(messages, sent.counts, types)[0]

        return call

    small, large = 1 << 12, 1 << 20
    found = timed({"small": both(small), "large": both(large)}, 5 * repeats)
    return [
        max(0.0, one - other) / (large - small)
        for one, other in zip(found["large"], found["small"], strict=True)
    ]


def pair(settings: Mapping[str, Any]) -> Any:
    """Collectives of all workers, by the length of a message: wall and work of each."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return _collectives(strategy, settings["repeats"], settings["sizes"])


def _collectives(
    strategy: Any, repeats: int, sizes: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    import tensorflow as tf

    import tf_embed
    from tf_embed.exchange.strategies import numbers_of_workers
    from tf_embed.exchange.workers import Workers

    sharding = tf_embed.distributed.WorkerSharding()
    workers = Workers(strategy, sharding)
    (channel,) = workers.new_channels(1, sharding)
    found: dict[str, list[tuple[float, float]]] = {}
    call = _call(repeats)

    def chained(first: tf.Tensor, one: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[], object]:
        @tf.function
        def chain() -> tf.Tensor:
            tensor = first
            for _ in range(CHAIN):
                tensor = one(tensor)
            return tensor

        return chain

    for key, size in enumerate(sizes):
        words = size // 4
        chains = {
            "all_to_all": chained(
                tf.zeros([workers.count, words], tf.int32),
                lambda tensor, key=key: channel.all_to_all(tensor, 100 + key),  # type: ignore[misc]
            ),
            "all_gather": chained(
                tf.zeros([words], tf.int32),
                lambda tensor, key=key, words=words: channel.all_gather(  # type: ignore[misc]
                    tensor, 200 + key
                )[:words],
            ),
        }
        if workers.count > 1:
            # Of a ring, a message is a worker's part of the tensor.
            reduce = chained(tf.zeros([workers.count * words]), _all_reduced)
            chains["all_reduce"] = tf.function(lambda reduce=reduce: strategy.run(reduce))
        for name, chain in chains.items():
            numbers_of_workers(strategy)
            few = max(3, repeats // (8 if size > 10**6 else 1))
            costs = np.array(timed({name: chain}, few)[name]) - call
            found.setdefault(name, []).append(tuple((costs / CHAIN).tolist()))
    return found


def _all_reduced(tensor: Any) -> Any:
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)


def table(settings: Mapping[str, Any]) -> Any:
    """Bytes of a row beyond weights and slots, and the cost of rows that are in no cache."""
    import keras
    import tensorflow as tf

    import tf_embed

    rows, batch, dim = settings["rows"], settings["batch"], DIMS[-1]
    variable = tf_embed.Variable(dim=dim, name="rows")
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.01))
    optimizer.build(variable.trainable_variables)
    (trainer,) = optimizer.table_trainers
    gradients = tf.fill([batch, dim], 1e-3)
    spec = tf.TensorSpec([batch], tf.int64)
    calls = {
        "lookup": tf.function(lambda keys: variable.lookup(keys), input_signature=[spec]),
        "apply": tf.function(lambda keys: trainer.train(keys, gradients), input_signature=[spec]),
    }
    overheads = []
    for begin in range(0, rows, batch):
        calls["apply"](tf.range(begin, begin + batch, dtype=tf.int64))
        if begin > rows // 2:  # its memory grows in steps: a mean over a doubling
            stats = variable.stats()
            overheads.append((stats["index_bytes"] + stats["slack_bytes"]) / stats["rows"])
    random = np.random.default_rng(1)
    batches = [tf.constant(random.choice(rows, batch, replace=False)) for _ in range(24)]
    cold = {}
    for name, call in calls.items():
        turns = iter(batches * 2)  # more than there are calls
        walls = [
            timed({name: one}, len(batches))[name][0]
            for one in (
                functools.partial(call, batches[0]),
                lambda call=call, turns=turns: call(next(turns)),  # type: ignore[misc]
            )
        ]
        cold[name] = max(0.0, walls[1] - walls[0]) / batch
    return {"overhead": float(np.mean(overheads)), "cold_key": cold}


def step(settings: Mapping[str, Any]) -> Any:
    """The parts of a step, and the whole step, in milliseconds."""
    import tensorflow as tf

    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy()
        if len(cluster) > 1
        else tf.distribute.get_strategy()
    )
    from worker_parts import Parts, zipf_ids

    ids = zipf_ids(_rank(), settings["batch"], settings["exponent"], settings["keys"])
    parts = Parts(strategy, ids, settings["dim"])
    times = parts.times(settings["repeats"])
    if len(cluster) > 1:
        from tf_embed.exchange.strategies import numbers_of_workers

        numbers_of_workers(strategy)
    return times


def _rank() -> int:
    return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])


def costs_of(
    alones: Sequence[Any], pairs: Sequence[Any], of_table: Mapping[str, Any]
) -> dict[str, Any]:
    """The costs of the model, as its `Costs.from_json` takes them.

    Args:
        alones, pairs: Results of some runs of the programs; the median counts.
        of_table: The result of one run.
    """
    figures: dict[str, Any] = {"wall": {}, "work": {}}
    for name in alones[0]["parts"]:
        runs = [one["parts"][name] for one in alones]
        cases = [case[0] for case in runs[0]]
        costs = np.median([[case[1:] for case in run] for run in runs], axis=0)
        for which, kind in enumerate(("wall", "work")):
            figures[kind][name] = Linear.fit(cases, costs[:, which]).terms
    pack = np.median([one["pack"] for one in alones], axis=0)
    figures["pack"] = dict(zip(("wall", "work"), pack.tolist(), strict=True))
    figures["call"] = float(np.median([one["call"] for one in alones]))
    medians = {name: np.median([one[name] for one in pairs], axis=0) for name in pairs[0]}
    fixed = {
        name: float(np.median([one["collectives"][name][0][1] for one in alones]))
        for name in ("all_to_all", "all_gather")
    }
    collectives = {}
    for name, hops in (("all_to_all", 1), ("all_gather", 1), ("all_reduce", 2)):
        wall, work = medians[name].T
        if name == "all_reduce":  # it has the hops of a ring, as an all-gather
            message = medians["all_gather"][0][1] - fixed["all_gather"]
            fixed[name] = max(0.0, float(work[0] - 2 * message))
        collectives[name] = {
            "fixed": fixed[name],
            "bytes": list(MESSAGE_BYTES[: len(wall)]),
            "work": _rising((work - fixed[name]) / hops),
            "hop": _rising((wall - fixed[name]) / hops),
        }
    return {**figures, "collectives": collectives, **of_table}


def _rising(costs: np.ndarray) -> list[float]:
    """Costs by length, none below 0. A message costs no more than a longer one."""
    return np.maximum(0, np.minimum.accumulate(costs[::-1])[::-1]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=["alone", "pair", "table", "step"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("settings", type=json.loads)
    options = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # functions are made again and again
    found = globals()[options.program](options.settings)
    if _rank() == 0:
        (options.folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

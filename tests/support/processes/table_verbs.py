# SPDX-License-Identifier: Apache-2.0
"""All verbs of a table, on the workers or servers that share it, or on a table in one process.

A program for `worker_programs`, and a part of server_tables.py. As the oracle, tests run the same
code in their own process, on a table that gets the batches of all workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker
from tf_embed.distributed import WorkerSharding
from tf_embed.ops.pooled_gradient import Pooling
from tf_embed.table.lookups import Lookup

DIM = 3
# The number of keys in each batch of two workers. Workers share many keys.
SIZES = ((40, 25), (0, 31), (33, 0), (0, 0), (1, 50), (64, 64))

STRINGS = [
    b"",
    b"\0",
    b"a\0b",
    b"a\0",
    "käse".encode(),
    b"x" * 5000,
    *(b"%d" % i for i in range(40)),
]
EXTREMES = {
    "int64": [-(2**63), 2**63 - 1, -1, 0, -7],
    "int32": [-(2**31), 2**31 - 1, -1, 0, -7],
    "uint64": [2**64 - 1, 2**63, 2**63 + 5, 2**63 - 1, 0],
    "uint32": [2**32 - 1, 2**31, 2**31 + 5, 2**31 - 1, 0],
}


def fifths(keys: tf.Tensor, workers: int) -> tf.Tensor:
    """An owner of keys that `hash` and `remainder` would not choose."""
    return tf.cast(keys // 5 % workers, tf.int32)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A table.

    Attributes:
        key_dtype: Dtype of keys.
        value_dtype: Dtype of rows.
        sharding: The argument `distribution`.
        policy: Its policy.
        storage_bytes: Bytes of host memory before rows go to disk; 0: no disk.
    """

    key_dtype: str = "int64"
    value_dtype: str = "float32"
    sharding: Any = None
    policy: Any = None
    storage_bytes: int = 0


KINDS = {
    "int64": Kind(),
    "int32": Kind("int32", sharding=WorkerSharding(owner="remainder")),
    "uint64": Kind("uint64"),
    "uint64 remainder": Kind("uint64", sharding=WorkerSharding(owner="remainder")),
    "uint32": Kind("uint32", sharding=WorkerSharding(owner="remainder")),
    "string": Kind("string"),
    "remainder": Kind(sharding=WorkerSharding(owner="remainder")),
    "function": Kind(sharding=WorkerSharding(owner=fifths)),
    "float16": Kind(value_dtype="float16"),
    "bfloat16": Kind(value_dtype="bfloat16"),
    "float64": Kind(value_dtype="float64"),
    "int32 rows": Kind(value_dtype="int32"),
    "bool rows": Kind("string", "bool"),
    "wire bfloat16": Kind(sharding=WorkerSharding(wire_dtype="bfloat16")),
    "wire float16": Kind(sharding=WorkerSharding(wire_dtype="float16")),
    "lru": Kind(policy=tf_embed.TablePolicy(eviction="lru")),
    "lfu": Kind("string", policy=tf_embed.TablePolicy(eviction="lfu")),
    "score": Kind("uint32", policy=tf_embed.TablePolicy(eviction="score")),
    "tiers": Kind(storage_bytes=1 << 12),
}


def keys_of(draw: np.random.Generator, dtype: str, size: int) -> np.ndarray:
    if dtype == "string":
        return np.array([STRINGS[i] for i in draw.integers(len(STRINGS), size=size)], object)
    pool = np.array([*EXTREMES[dtype], *range(1, 40)], dtype)
    return pool[draw.integers(len(pool), size=size)]


def rows_of(draw: np.random.Generator, dtype: str, size: int) -> np.ndarray:
    """Small multiples of a quarter, so that all float dtypes hold their sums exactly."""
    numbers = draw.integers(-8, 9, size=[size, DIM])
    kind = tf.as_dtype(dtype)
    return (
        numbers / 4 if kind.is_floating else numbers > 0 if kind == tf.bool else numbers
    ).astype(kind.as_numpy_dtype)


class Verbs:
    """Runs verbs, and keeps their results, each under a name with the rank.

    Args:
        kind: The kind of the table.
        variable: The table.
        ranks: The workers whose batches this process has: its own, or all for the oracle.
    """

    def __init__(self, kind: Kind, variable: tf_embed.Variable, ranks: Sequence[int]) -> None:
        self.kind, self.variable, self.ranks = kind, variable, ranks
        self.found: dict[str, Any] = {}
        self._step = 0

    def batches(self) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each rank: keys, rows, and numbers from 0 to 99."""
        sizes = SIZES[self._step % len(SIZES)]
        self._step += 1
        batches = {}
        for rank in self.ranks:
            draw, size = np.random.default_rng([self._step, rank]), sizes[rank]
            keys = keys_of(draw, self.kind.key_dtype, size)
            rows = rows_of(draw, self.kind.value_dtype, size)
            batches[rank] = keys, rows, draw.integers(100, size=size)
        return batches

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
        dtypes = (self.kind.key_dtype, self.kind.value_dtype, "int64")
        return [tf.constant(one, dtype) for one, dtype in zip(arrays, dtypes, strict=True)]

    def write(self, verb: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any]) -> None:
        """Runs a verb on all workers' batches as one batch, twice, as a batch may be empty."""
        for _ in range(2):
            parts = zip(*self.batches().values(), strict=True)
            verb(*self.tensors([np.concatenate(arrays) for arrays in parts]))

    def read(self, name: str, verb: Callable[[tf.Tensor, int], Any]) -> None:
        """Runs a verb on the keys of each worker, twice, as there may be no keys."""
        for _ in range(2):
            for rank, (keys, _, _) in self.batches().items():
                got = verb(self.tensors([keys, np.zeros([0]), np.zeros([0])])[0], rank)
                self.found[f"{name} {self._step} of {rank}"] = tf.nest.map_structure(
                    lambda one: one.numpy(), got
                )

    def contents(self, name: str) -> None:
        """Sizes, and all keys that this process has, with their rows."""
        self.found[f"size {name}"] = int(self.variable.size())
        keys, rows = (one.numpy() for one in self.variable.export())
        self.found[f"rows {name}"] = dict(zip(keys.tolist(), rows.tolist(), strict=True))


def run_verbs(kind: Kind, variable: tf_embed.Variable, ranks: Sequence[int]) -> dict[str, Any]:
    """Runs all verbs, and returns their results."""
    verbs, v = Verbs(kind, variable, ranks), variable
    # The initial rows of new keys in an empty table.
    verbs.read("lookup", lambda keys, _: v.lookup(keys, return_exists=True))
    for _ in range(2):
        verbs.write(lambda keys, rows, _: v.upsert(keys, rows))
        verbs.read("lookup", lambda keys, _: v.lookup(keys[:, tf.newaxis], return_exists=True))
    verbs.contents("after upsert")
    if kind.value_dtype != "bool":
        run_accum(verbs)
    verbs.write(lambda keys, _, numbers: v.remove(keys[numbers % 2 == 0]))
    verbs.contents("after remove")
    if kind.value_dtype != "bool":
        run_defaults(verbs)
    if kind.policy is not None:
        verbs.read("training", lambda keys, _: v.lookup(keys))
        verbs.write(lambda keys, rows, numbers: v.upsert(keys, rows))
        if kind.policy.eviction == "score":
            verbs.write(lambda keys, rows, numbers: v.set_scores(keys, numbers))
        verbs.read("statistics", lambda keys, _: v.row_statistics(keys))
        exported = v.table.export_scores(kind.policy.eviction, 7)
        keys, scores = (one.numpy().tolist() for one in exported)
        verbs.found["rows of scores"] = dict(zip(keys, scores, strict=True))
    verbs.read("embedding", lambda keys, _: tf_embed.embedding_lookup(v, keys))
    verbs.read("unique", lambda keys, _: tf_embed.unique_rows(v, keys))
    if tf.as_dtype(kind.value_dtype).is_floating:
        run_sparse(verbs)
    in_graph = tf.function(lambda keys: v.lookup(keys), reduce_retracing=True)
    verbs.read("graph", lambda keys, _: in_graph(keys))
    v.clear()
    verbs.contents("after clear")
    verbs.write(lambda keys, rows, _: v.upsert(keys, rows))
    if kind.storage_bytes:
        verbs.write(lambda keys, *_: v.prefetch(keys))
    verbs.contents("at the end")
    if kind.policy is not None:  # worker_evictions.py tests which rows leave
        for reserved in (10**6, 17, 2, 0):
            verbs.found[f"size removed for {reserved}"] = int(v.restrict(reserved))
            verbs.found[f"size of {reserved}"] = int(v.size())
    return verbs.found


def run_accum(verbs: Verbs) -> None:
    """Runs `accum`, with right flags and with flags of an outdated lookup."""
    v = verbs.variable

    def accum(keys: tf.Tensor, rows: tf.Tensor, numbers: tf.Tensor) -> None:
        # Random flags, so that all four cases occur.
        exists = numbers % 4 > 0
        v.accum(keys, tf.ones_like(rows), rows, exists)

    verbs.write(accum)
    verbs.contents("after accum")


def run_defaults(verbs: Verbs) -> None:
    """Runs verbs that take the rows for absent keys as an argument."""
    table = verbs.variable.table

    def given(keys: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.fill([tf.size(keys), DIM], 2), table.options.value_dtype)

    def halves(keys: tf.Tensor) -> tf.Tensor:
        return tf.constant([0, int(tf.size(keys)) // 2, int(tf.size(keys))], tf.int64)

    verbs.read("found or given", lambda keys, _: table.find(keys, given(keys)))

    def look_up(keys: tf.Tensor, pooling: Pooling | None = None) -> tf.Tensor:
        return table.look_up(Lookup(table, keys, False, pooling, defaults=given(keys)))

    verbs.read("given", lambda keys, _: look_up(keys))
    if table.options.value_dtype.is_floating:
        verbs.read(
            "pooled", lambda keys, _: look_up(keys, Pooling((halves(keys),), None, "sum", None))
        )
    verbs.write(lambda keys, *_: table.find_or_insert(keys, given(keys)))
    verbs.contents("after find_or_insert")


def run_sparse(verbs: Verbs) -> None:
    """Looks up bags of keys, with weights and without, some of them empty."""
    v = verbs.variable

    def sparse(values: tf.Tensor) -> tf.SparseTensor:
        size = int(tf.size(values))
        places = np.array([[i // 3 * 2, i % 3] for i in range(size)], np.int64).reshape([-1, 2])
        return tf.SparseTensor(places, values, [size + 2, 3])

    def weights(keys: tf.Tensor, rank: int) -> tf.SparseTensor:
        size = int(tf.size(keys))
        return sparse(tf.constant([0.5 * (i % 4 + 1) for i in range(size)], tf.float32))

    for combiner in ("sum", "mean", "sqrtn"):
        verbs.read(
            f"sparse {combiner}",
            lambda keys, rank, combiner=combiner: tf_embed.embedding_lookup_sparse(
                v, sparse(keys), weights(keys, rank), combiner=combiner
            ),
        )
    verbs.read(
        "sparse without weights",
        lambda keys, _: tf_embed.embedding_lookup_sparse(v, sparse(keys), None, combiner="mean"),
    )


def new_variable(name: str, kind: Kind, folder: str, distribution: Any = None) -> Any:
    storage = None
    if kind.storage_bytes:
        storage = tf_embed.Storage(host_bytes=kind.storage_bytes, path=folder)
    is_float = tf.as_dtype(kind.value_dtype).is_floating
    return tf_embed.Variable(
        kind.key_dtype,
        kind.value_dtype,
        DIM,
        devices="/CPU:0",
        name=name.replace(" ", "_"),
        initializer=keras.initializers.RandomUniform(-1, 1, seed=5) if is_float else 1,
        policy=kind.policy,
        storage=storage,
        distribution=distribution,
    )


def oracle(name: str, folder: str) -> dict[str, Any]:
    """The results of a single table that gets the batches of both workers."""
    kind = KINDS[name]
    return run_verbs(kind, new_variable(name, kind, folder), [0, 1])


def verbs(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    found = {}
    for name, kind in KINDS.items():
        with strategy.scope():
            own = f"{folder}/{name}-{rank}".replace(" ", "_")
            variable = new_variable(name, kind, own, kind.sharding)
        found[name] = run_verbs(kind, variable, [rank])
    return found


def local(strategy: Any, rank: int, folder: str) -> Any:
    """Each worker has a local table. Workers call different verbs."""
    with strategy.scope():
        variable = tf_embed.Variable(dim=1, devices="/CPU:0", distribution="local", name="local")
    for _ in range(rank + 1):
        variable.upsert([rank, 7], [[float(rank)]] * 2)
    keys, rows = variable.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True)), int(
        variable.size()
    )


if __name__ == "__main__":
    run_as_worker(globals())

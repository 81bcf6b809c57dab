# SPDX-License-Identifier: Apache-2.0
"""Layers of tf_embed.sok on one of several workers, or in a single process, the oracle.

    sok_workers.py FOLDER

writes its results to FOLDER/result-RANK.json, dumps a table into FOLDER/dump, and loads the table
in FOLDER/load.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed import distributed, sok

ROWS, BATCH, SLOTS, NNZ = 50, 16, 2, 3  # the last batch has 2 rows
BOUND = 4
KEYS = {
    "int64": [-(2**63), -5, -4, -1, 0, 1, 2, 7, 2**62 + 1, 2**63 - 1],
    "uint64": [0, 1, 2, 3, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1],
    "uint32": [0, 1, 2, 3, 2**31, 2**32 - 2, 2**32 - 1],
}


def layer(**options: Any) -> sok.All2AllDenseEmbedding:
    options = {"dynamic_input": True, "optimizer": keras.optimizers.SGD(1.0), **options}
    return sok.All2AllDenseEmbedding(
        *(options.pop("bound", 1000), options.pop("dim", 1), SLOTS, NNZ), **options
    )


def keys_of(made: Any) -> list[int]:
    return sorted(sok.export(made)[0].numpy().tolist())


def homes() -> dict[str, list[int]]:
    """The keys that this worker has, by key dtype."""
    found = {}
    for dtype, keys in KEYS.items():
        made = layer(key_dtype=dtype, name=f"homes_{dtype}")
        made.build()
        sok.assign(made, tf.constant(keys, dtype), np.ones([len(keys), 1], "float32"))
        found[dtype] = keys_of(made)
    return found


def bound(strategy: Any) -> dict[str, Any]:
    """Trains a table of 4 rows for each worker with more keys. All workers have the same keys."""
    made = layer(bound=BOUND, name="bound", embedding_initializer="zeros")
    made.build()
    optimizer = keras.optimizers.SGD(1.0)
    (anchor,) = made.trainable_variables
    optimizer.build([anchor])

    @tf.function(reduce_retracing=True)
    def step(keys: tf.Tensor) -> None:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(made(keys, training=True))
            optimizer.apply_gradients([(tape.gradient(loss, anchor), anchor)])

        strategy.run(replica)

    batches = ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 0], [8, 8, 9], [1, 3, 5, 7, 0, 2, 4, 6])
    found: dict[str, Any] = {"keys": [], "refused": [], "evicted": []}
    for keys in batches:
        step(tf.constant(keys, tf.int64))
        found["keys"].append(keys_of(made))
        found["refused"].append(made.embedding_variable.stats()["refused"])
        found["evicted"].append(made.embedding_variable.stats()["evicted"])
    return found


def row_numbers(workers: int) -> str:
    """Looks up the last row number of all workers. Returns the error for the next number."""
    made = layer(bound=BOUND, name="row_numbers", use_hashtable=False)
    made(tf.constant([0, BOUND * workers - 1], tf.int64))
    try:
        made(tf.constant([0, BOUND * workers], tf.int64))
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return "no error"


def since(rank: int) -> list[dict[int, list[float]]]:
    """The rows of a table that are not older than a time, for several times."""
    v = tf_embed.Variable(dim=2, name="since", policy=tf_embed.TablePolicy(eviction="ttl"))
    for step in range(3):
        v.set_clock(time_ms=1000 * step)
        keys = np.arange(10 * step, 10 * step + 10)[rank::2]  # each worker writes half of them
        v.upsert(keys, np.stack([keys, -keys], 1).astype("float32"))
    found = []
    for seconds in (0, 1, 1.5, 3):
        time = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
        ((keys,), (rows,)) = sok.incremental_model_dump([v], time)
        found.append(dict(zip(keys.tolist(), rows.tolist(), strict=True)))
    return found


def dataset(sparse: bool) -> tf.data.Dataset:
    rng = np.random.default_rng(3)
    keys = rng.integers(-20, 20, [ROWS, SLOTS, NNZ])
    labels = (keys.sum((1, 2)) > 0).astype("float32")[:, None]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    if sparse:
        keys[:, :, 2] = np.where(keys[:, :, 2] < 0, keys[:, :, 2], 0)  # 0: no key
    return tf.data.Dataset.from_tensor_slices((keys, labels)).batch(BATCH).with_options(options)


class SparseModel(distributed.Model):
    """Pools the keys of slots that are not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = sok.DistributedEmbedding(
            "mean", 1000, 4, SLOTS, NNZ, name="sparse", optimizer=keras.optimizers.Adagrad(0.1)
        )
        self.flatten = keras.layers.Flatten()
        self.last = keras.layers.Dense(1, "sigmoid")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        keys = tf.sparse.from_dense(tf.reshape(inputs, [-1, NNZ]))
        return self.last(self.flatten(self.embedding(keys, training=training)))


def dense_model() -> keras.Model:
    inputs = keras.Input([SLOTS, NNZ], dtype="int64")
    embedding = layer(dim=4, dynamic_input=False, optimizer=None, name="slots")
    hidden = keras.layers.Flatten()(embedding(inputs))
    return distributed.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))


def losses(strategy: Any) -> dict[str, Any]:
    """The losses with tables that the model's optimizer trains, and with tables' own optimizers."""
    found = {}
    for name, make in {"dense": dense_model, "sparse": SparseModel}.items():
        with strategy.scope():
            keras.utils.set_random_seed(5)
            model = make()
            model.compile(sok.OptimizerWrapper(keras.optimizers.Adam(0.05)), "binary_crossentropy")
        history = model.fit(dataset(name == "sparse"), epochs=3, verbose=0)
        found[name] = history.history["loss"]
    return found


def main(folder: str) -> None:
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    resolver = strategy.cluster_resolver
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    with strategy.scope():
        found = {"homes": homes(), "bound": bound(strategy), "row_numbers": row_numbers(workers)}
        dumped = layer(dim=2, name="dumped")
        dumped.build()
        # Each worker writes different rows, of any owner.
        keys = np.arange(10 * resolver.task_id, 10 * resolver.task_id + 10)
        sok.assign(dumped, keys, np.stack([keys, -keys], 1).astype("float32"))
        sok.dump(pathlib.Path(folder) / "dump", dumped)
        loaded = layer(name="loaded")
        loaded.build()
        sok.load(pathlib.Path(folder) / "load", loaded)
        found["loaded"] = keys_of(loaded)
    found["losses"] = losses(strategy)
    with strategy.scope():
        found["since"] = since(resolver.task_id)
    path = pathlib.Path(folder) / f"result-{resolver.task_id}.json"
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

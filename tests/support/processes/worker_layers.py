# SPDX-License-Identifier: Apache-2.0
"""Layers of `one_embedding` that workers train together, or one process on the global batches.

A program for `worker_programs`; a test runs the same code in its own process as the oracle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.one_embedding_cases import constant_tables, layer, uniform_tables
from support.processes.worker_programs import run_as_worker, said_by
from tf_embed import one_embedding
from tf_embed.sharded import worker_lookups
from tf_embed.sharded.workers import Channel

DIM, BATCH, STEPS = 4, 12, 12  # STEPS in each of two epochs
IDS = np.arange(24, dtype=np.int64)


def normal_tables() -> list[Any]:
    make = one_embedding.make_normal_initializer
    return [one_embedding.make_table(make(mean, 0.1)) for mean in (0.0, 0.5)]


def folders(folder: str, count: int) -> list[str]:
    return [os.path.join(folder, f"rows_{number}") for number in range(count)]


def in_memory(folder: str, count: int = 1) -> dict[str, Any]:
    return one_embedding.make_device_mem_store_options(folders(folder, count), 1000)


def on_disk(folder: str) -> dict[str, Any]:
    return one_embedding.make_cached_ssd_store_options(1, folders(folder, 2))


TRACKED = tf_embed.TablePolicy(eviction=None, track_changes=True)
# The arguments of layers: tables with separate rows, keys that contain the number of a table, rows
# that Python draws, equal ids of two tables, columns, folders.
KINDS: dict[str, Any] = {
    "apart": lambda folder: {
        "tables": uniform_tables(0.5, 0.5),
        "policy": TRACKED,
        "store_options": in_memory(folder, 2),
    },
    "packed": lambda folder: {
        "tables": uniform_tables(0.5, 0.1),
        "key_type": "int32",
        "padding_idx": 3,
        "store_options": in_memory(folder),
        "policy": tf_embed.TablePolicy(eviction="lru"),
    },
    "shared": lambda folder: {
        "tables": constant_tables(0.25, -0.5),
        "shared_ids": True,
        "store_options": in_memory(folder),
    },
    "columns": lambda folder: {
        "tables": normal_tables(),
        "key_type": "uint64",
        "dim": [1, 3],
        "store_options": in_memory(folder),
    },
    "disk": lambda folder: {"tables": uniform_tables(0.3, 0.6), "store_options": on_disk(folder)},
}


def new_layers(folder: str, own: bool) -> dict[str, Any]:
    optimizer = keras.optimizers.Adagrad(0.3) if own else None
    return {
        kind: layer(
            **{"dim": DIM, **arguments(os.path.join(folder, kind))},
            name=f"{kind}_{own}",
            devices=None if kind == "disk" or kind == "apart" else "/CPU:0",
            optimizer=optimizer,
        )
        for kind, arguments in KINDS.items()
    }


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(6)
    ids = draw.choice(IDS, [STEPS * BATCH, 2])
    return ids, draw.normal(size=[len(ids), 1]).astype(np.float32)


def dataset() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).with_options(options)


def model(folder: str, own: bool) -> keras.Model:
    """All kinds of layers in one model."""
    keras.utils.set_random_seed(3)
    ids = keras.Input([2], dtype="int64")
    rows = [keras.layers.Flatten()(one(ids)) for one in new_layers(folder, own).values()]
    hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()(rows))
    result = tf_embed.distributed.Model(ids, keras.layers.Dense(1)(hidden))
    sgd = keras.optimizers.SGD(0.1)
    adam = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.02))
    result.compile(sgd if own else adam, "mse")
    return result


def contents(layers: dict[str, Any]) -> dict[str, Any]:
    """The rows of all ids in all tables, and the number of rows."""
    found: dict[str, Any] = {}
    for kind, one in layers.items():
        ids = np.stack([IDS, IDS], axis=1)
        found[f"{kind} rows"] = one(ids).numpy()
        found[f"{kind} size"] = int(one.size())
        found[f"{kind} exists"] = [
            v.lookup(IDS, return_exists=True)[1].numpy().astype(int) for v in one.row_tables
        ]
    return found


def rooms(layers: dict[str, Any]) -> dict[str, list[int]]:
    """The number of rows that each table makes room for."""
    return {
        kind: [v.table.options.init_size for v in one.row_tables] for kind, one in layers.items()
    }


def layers_of(trained: keras.Model) -> dict[str, Any]:
    by_name = {one.name.rsplit("_", 1)[0]: one for one in trained.layers}
    return {kind: by_name[kind] for kind in KINDS}


@contextlib.contextmanager
def counted() -> Iterator[list[None]]:
    """Counts the exchanges in the graph of a step, each one way. Keras traces the model before."""
    all_to_all, look_up = Channel.all_to_all, worker_lookups.look_up
    sent: list[None] = []

    def count(*args: Any, **kwargs: Any) -> Any:
        sent.append(None)
        return all_to_all(*args, **kwargs)

    def begin(*args: Any) -> Any:
        sent.clear()
        return look_up(*args)

    counts = mock.patch.object(Channel, "all_to_all", count)
    with counts, mock.patch.object(worker_lookups, "look_up", begin):
        yield sent


def fitted(strategy: Any, folder: str, own: bool) -> tuple[keras.Model, dict[str, Any]]:
    with strategy.scope():
        trained = model(folder, own)
    with counted() as sent:
        history = trained.fit(dataset(), epochs=2, verbose=0, shuffle=False)
    found = contents(layers_of(trained))
    found["losses"] = history.history["loss"]
    found["predicted"] = trained.predict(dataset(), verbose=0)
    return trained, {**found, "exchanges": len(sent)}


def stepped(
    strategy: Any, rank: int, workers: int, folder: str, *, together: bool = False
) -> dict[str, Any]:
    """Trains in a custom loop. A worker gets adjacent examples of a batch."""
    with strategy.scope():
        layers = new_layers(folder, False)
        for one in layers.values():
            one.build()
        dense = keras.Variable(np.linspace(-1, 1, 2 * DIM, dtype=np.float32), name="dense")
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.2))
        variables = [dense, *[v for one in layers.values() for v in one.trainable_variables]]
        optimizer.build(variables)

    def replica_step(ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            if together:
                calls = [(one, ids) for one in layers.values()]
                rows = tf_embed.distributed.look_up_together(calls, training=True)
            else:
                rows = [one(ids, training=True) for one in layers.values()]
            rows = tf.reshape(tf.add_n(rows), [-1, 2 * DIM])
            errors = tf.linalg.matvec(rows, dense.value) - labels
            loss = tf.reduce_sum(errors**2) / BATCH
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    signature = [tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([None], tf.float32)]

    @tf.function(input_signature=signature)
    def step(ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(ids, labels)), axis=None)

    ids, labels = data()
    losses = []
    with counted() as sent:
        step.get_concrete_function()
    for number in range(2 * STEPS):
        first = number % STEPS * BATCH
        # The second worker has nothing in some steps.
        cut = BATCH if number % 5 == 1 else BATCH // 2
        begin, end = [(0, cut), (cut, BATCH)][rank] if workers > 1 else (0, BATCH)
        some = slice(first + begin, first + end)
        losses.append(float(step(ids[some], labels[some, 0])))
    found = {**contents(layers), "losses": losses, "dense": dense.numpy()}
    return {**found, "exchanges": len(sent)}


def with_table_ids(strategy: Any, workers: int, folder: str) -> dict[str, Any]:
    """Trains a model with table ids that are inputs, are computed, and are constant."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        ids, table_ids = (keras.Input([2], dtype="int64", name=name) for name in ("ids", "tables"))
        layers = {
            name: layer(
                uniform_tables(0.5, 0.1),
                dim=DIM,
                name=name,
                devices="/CPU:0",
                store_options=in_memory(os.path.join(folder, name)),
            )
            for name in ("given", "computed", "constant")
        }
        constant = tf.constant([[1, 0]] * (BATCH // workers), tf.int64)
        rows = [
            layers["given"](ids, table_ids),
            layers["computed"](ids, table_ids=1 - table_ids),
            layers["constant"](ids, table_ids=constant),
        ]
        rows = [keras.layers.Flatten()(one) for one in rows]
        output = keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
        result = tf_embed.distributed.Model([ids, table_ids], output)
        adam = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.02))
        result.compile(adam, "mse")
    of_model = dataset().map(lambda ids, label: ((ids, (ids + [[1, 0]]) % 2), label))
    with counted() as sent:
        history = result.fit(of_model, epochs=2, verbose=0, shuffle=False)
    found = contents(layers)
    return {**found, "losses": history.history["loss"], "exchanges": len(sent)}


def trained(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    workers = strategy.num_replicas_in_sync
    found: dict[str, Any] = {"loop": stepped(strategy, rank, workers, f"{folder}/loop")}
    found["together"] = stepped(strategy, rank, workers, f"{folder}/together", together=True)
    found["table ids"] = with_table_ids(strategy, workers, f"{folder}/table-ids")
    for own in (False, True):
        keras_model, found[f"fit {own}"] = fitted(strategy, f"{folder}/fit-{own}", own)
    keras_model.save(os.path.join(folder, "model.keras"))
    checkpoint = tf.train.Checkpoint(model=keras_model)
    chief = rank == 0
    checkpoint.write(os.path.join(folder, "checkpoint" if chief else f"unused-{rank}"))
    layers = layers_of(keras_model)
    for one in layers.values():
        one.save_snapshot("whole")
    found["rows"] = layers["apart"].save_snapshot("same", since="whole").wait().rows
    found["rooms"] = rooms(layers)
    found["prefetch"] = said_by(layers["disk"].prefetch, dataset(), lambda *batch: batch[0])
    found["report"] = len(layers["packed"].memory_report())
    return found


def loaded(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """The models that `trained` has saved."""
    del rank
    found: dict[str, Any] = {}
    with strategy.scope():
        by_file = keras.saving.load_model(os.path.join(folder, "model.keras"))
        by_checkpoint, by_snapshot = (model(f"{folder}/fit-True", True) for _ in range(2))
    found["file"] = contents(layers_of(by_file))
    checkpoint = tf.train.Checkpoint(model=by_checkpoint)
    checkpoint.read(os.path.join(folder, "checkpoint")).expect_partial()
    found["checkpoint"] = contents(layers_of(by_checkpoint))
    for kind, one in layers_of(by_snapshot).items():
        one.load_snapshot("same" if kind == "apart" else "whole")
    found["snapshot"] = contents(layers_of(by_snapshot))
    with strategy.scope():  # loads the rows of two folders into one
        arguments = {**KINDS["apart"](""), "store_options": in_memory(f"{folder}/fit-True/apart")}
        one = layer(**{"dim": DIM, **arguments}, name="apart_True", optimizer="adagrad")
    one.load_snapshot("same")
    found["other folders"] = contents({"apart": one})
    return found


if __name__ == "__main__":
    run_as_worker(globals())

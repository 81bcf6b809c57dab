# SPDX-License-Identifier: Apache-2.0
"""Tables and models that workers save and load, in any number of processes.

A program for `worker_programs`; a test runs the same code in its own process, without a strategy.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker, said_by

DIM, ROWS = 3, 48
IDS = np.arange(ROWS, dtype=np.int64) % 13 - 3
DATA = tf.data.experimental.AutoShardPolicy.DATA


def dataset() -> tf.data.Dataset:
    """The same global batches for any number of workers."""
    draw = np.random.default_rng(4)
    labels = draw.normal(size=[ROWS, 1]).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = DATA
    ids = IDS[:, np.newaxis]
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(12).with_options(options)


def variable() -> tf_embed.tfra.Variable:
    """A table with statistics and an optimizer's slots, and all that belongs to them."""
    return tf_embed.tfra.Variable(
        dim=DIM,
        devices="/CPU:0",
        name="saved",
        initializer="random_normal",
        policy=tf_embed.TablePolicy(eviction="lfu"),
    )


def step(v: tf_embed.Variable, optimizer: Any, keys: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_embed.embedding_lookup(v, tf.constant(keys)) ** 2) / 8
    variables = v.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def contents(v: tf_embed.Variable, optimizer: Any) -> dict[str, Any]:
    """The state of all keys. The key 99 has no row, and shows the seed."""
    keys = np.array([*range(-3, 20), 99], np.int64)
    rows, exists = v.lookup(keys, return_exists=True)
    found = {"rows": rows.numpy(), "exists": exists.numpy().astype(int), "size": int(v.size())}
    for name, one in v.row_statistics(keys).items():
        if name == "count":
            found[name] = one.numpy()
    for number, slot in enumerate(v.slot_variables(optimizer)):
        found[f"slot {number}"] = slot.lookup(keys).numpy() * exists.numpy()[:, np.newaxis]
    return found


def trained(strategy: Any, rank: int, folder: str) -> tuple[Any, Any]:
    """A table after three steps."""
    with strategy.scope():
        v = variable()
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build(v.trainable_variables)
    for number in range(3):
        keys = np.arange(number, 6 + number) + 5 * rank
        strategy.run(lambda keys=keys: step(v, optimizer, keys))
    return v, optimizer


def admitting(strategy: Any, rank: int, folder: str, reads: bool) -> Any:
    """Writes a checkpoint of a table with waiting keys, or reads it, and makes some steps.

    A key gets its row in its third step. Before the checkpoint, key 0 is in three steps, keys 1 to
    12 are in two, and 20, 21, 30 and 31 in one.
    """

    def made(name: str) -> tuple[tf_embed.Variable, Any]:
        with strategy.scope():
            policy = tf_embed.TablePolicy(admission=tf_embed.CounterAdmission(3))
            v = tf_embed.Variable(dim=1, devices="/CPU:0", name=name, policy=policy)
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
            optimizer.build(v.trainable_variables)
        return v, optimizer

    def train(v: tf_embed.Variable, optimizer: Any, keys: Any) -> None:
        strategy.run(lambda: step(v, optimizer, np.array(keys, np.int64)))

    path = os.path.join(folder, "admitting")
    v, optimizer = made("admitting")
    if reads:
        tf.train.Checkpoint(v=v).read(path).assert_existing_objects_matched()
    else:
        for keys in ([0, *range(1, 13)], [0, *range(1, 13), 20, 21], [0, 30, 31]):
            train(v, optimizer, keys)
        tf.train.Checkpoint(v=v).write(path if rank == 0 else f"{path}-{rank}")
    found = [int(v.size())]
    for keys in ([*range(1, 7), 20, 30], [20, 31], [30, 31]):
        train(v, optimizer, keys)
        _, exists = v.lookup(np.arange(40), return_exists=True)
        found.append(np.flatnonzero(exists).tolist())
    return found


def admitting_write(strategy: Any, rank: int, folder: str) -> Any:
    return admitting(strategy, rank, folder, reads=False)


def admitting_read(strategy: Any, rank: int, folder: str) -> Any:
    return admitting(strategy, rank, folder, reads=True)


class _Lookup(tf.Module):
    """A module that looks up in a variable."""

    def __init__(self, v: tf_embed.Variable) -> None:
        super().__init__()
        self.v = v

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        return self.v.lookup(ids)


def progress_of_saves(v: tf_embed.Variable, rank: int, folder: str) -> dict[str, Any]:
    """The last progress of saves and loads, the rows of this worker, and a worker's error."""
    last: list[int] = []

    def tell(done: int, total: int) -> None:
        last[:] = [done, total]

    def tell_or_raise(done: int, total: int) -> None:
        if rank == 1:
            raise KeyError("of the caller")

    found: dict[str, Any] = {"own": int(v.table.export().keys.shape[0]), "all": int(v.size())}
    found["rank"] = rank
    path = os.path.join(folder, "told")
    v.save_rows(path, progress=tell)
    found["save"] = list(last)
    v.load_rows(path, progress=tell)
    found["load"] = list(last)
    snapshots = tf_embed.Snapshots(os.path.join(folder, "snapshots told"), v)
    snapshots.save("one", progress=tell)
    found["snapshot"] = list(last)
    found["errors"] = [
        said_by(v.save_rows, path, progress=tell_or_raise),
        said_by(v.load_rows, path, progress=tell_or_raise),
        said_by(snapshots.save, "two", progress=tell_or_raise),
    ]
    return found


def write(strategy: Any, rank: int, folder: str) -> Any:
    """Saves in all ways, and returns the rows that the files should restore."""
    v, optimizer = trained(strategy, rank, folder)
    found = {"table": contents(v, optimizer)}
    v.save_rows(os.path.join(folder, "files"))
    found["progress"] = progress_of_saves(v, rank, folder)
    found["proc_size"] = said_by(v.save_to_file_system, os.path.join(folder, "files"), 3)
    own = os.path.join(folder, "checkpoint" if rank == 0 else f"unused-{rank}")
    tf.train.Checkpoint(v=v, optimizer=optimizer).write(own)
    found["export"] = said_by(tf.saved_model.save, v, os.path.join(folder, f"exported-{rank}"))
    with strategy.scope():
        keras_model = model()
    keras_model.fit(dataset(), epochs=1, verbose=0)
    found["model"] = contents_of_model(keras_model)
    keras_model.save(os.path.join(folder, "model.keras"))
    keras_model.save_weights(os.path.join(folder, "model.weights.h5"))
    keras_model.fit(dataset(), epochs=1, verbose=0)
    found["model, trained on"] = contents_of_model(keras_model)
    found["model export"] = said_by(keras_model.export, os.path.join(folder, f"model-{rank}"))
    path = os.path.join(folder, f"static-{rank}")
    found["static export"] = said_by(tf_embed.export_static, keras_model, path)
    found["static export of a module"] = said_by(
        tf_embed.export_static, _Lookup(v), path, input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    return found


def read(strategy: Any, rank: int, folder: str) -> Any:
    """Loads the saved files."""
    found = {}
    for way in ("files", "checkpoint"):
        with strategy.scope():
            v = variable()
            optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
            optimizer.build(v.trainable_variables)
        if way == "files":
            v.load_rows(os.path.join(folder, "files"))
        else:
            checkpoint = tf.train.Checkpoint(v=v, optimizer=optimizer)
            checkpoint.read(os.path.join(folder, "checkpoint")).assert_existing_objects_matched()
        found[way] = contents(v, optimizer)
        found[f"{way} apart"] = int(v.export()[0].shape[0])
    for way in ("model.keras", "model.weights.h5"):
        path = os.path.join(folder, way)
        with strategy.scope():
            if way == "model.keras":
                keras_model = keras.saving.load_model(path)
            else:
                keras_model = model()
                keras_model(tf.zeros([1, 1], tf.int64))
                keras_model.load_weights(path)
        found[way] = contents_of_model(keras_model)
        keras_model.fit(dataset(), epochs=1, verbose=0)
        found[f"{way}, trained on"] = contents_of_model(keras_model)
    return found


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    ids = keras.Input([1], dtype="int64")
    rows = tf_embed.layers.DynamicEmbedding(DIM, devices="/CPU:0", combiner="sum", name="rows")(ids)
    result = tf_embed.distributed.Model(ids, keras.layers.Dense(1)(rows))
    result.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1)), "mse")
    return result


def contents_of_model(keras_model: keras.Model) -> dict[str, Any]:
    v = keras_model.get_layer("rows").variable
    found = contents(v, keras_model.optimizer)
    found.pop("count", None)
    dense = keras_model.layers[-1].get_weights()
    return {**found, "kernel": dense[0], "bias": dense[1]}


def names_in(folder: str) -> list[str]:
    return sorted(path.name for path in pathlib.Path(folder).iterdir())


if __name__ == "__main__":
    run_as_worker(globals())

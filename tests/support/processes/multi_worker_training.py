# SPDX-License-Identifier: Apache-2.0
"""Trains Keras models as one of several workers, or as the single process that is the oracle.

    multi_worker_training.py CASE FOLDER

writes its results to FOLDER/result-RANK.json. Every case is a function of this module.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from tf_embed import distributed

ROWS, BATCH, FEATURES = 77, 16, 6  # the last batch has 13 rows
SHARDS = (10, 40)  # the numbers of rows of two workers
POLICIES = tf.data.experimental.AutoShardPolicy


def rows(seed: int, count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, FEATURES)).astype("float32")
    noise = rng.normal(size=(count, 1))
    return inputs, (inputs.sum(1, keepdims=True) + noise > 0).astype("float32")


def dataset(arrays: Any, policy: Any = POLICIES.DATA, shard: tuple[int, int] = (1, 0)) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return (
        tf.data.Dataset.from_tensor_slices(arrays).shard(*shard).batch(BATCH).with_options(options)
    )


def merged_batches() -> list[tuple[np.ndarray, ...]]:
    """The global batch of each step, from shards of unequal length."""
    each, batches = BATCH // len(SHARDS), []
    for start in range(0, max(SHARDS), each):
        parts = [
            [array[start : start + each] for array in rows(9 + rank, count)]
            for rank, count in enumerate(SHARDS)
        ]
        batches.append(tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return batches


class Batches(keras.callbacks.Callback):
    """Collects the logs of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({"batch": batch, **{key: float(value) for key, value in logs.items()}})


class OwnStep(distributed.Model):
    """A subclassed model with a custom step. Its logs are not metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(4, "tanh")
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.hidden(inputs))

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, labels, self(inputs))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"share": tf.reduce_mean(labels) * 0 + 0.25}


def functional(loss: Any = "binary_crossentropy", **options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(8, "tanh", kernel_regularizer="l2")(inputs)
    model = distributed.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    metrics = ["accuracy", keras.metrics.AUC(name="auc")]
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=metrics, **options)
    return model


def weights(model: keras.Model) -> list[Any]:
    return [array.tolist() for array in model.get_weights()]


def refusal(function: Any, *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def fits(strategy: Any, rank: int, world: int, folder: pathlib.Path) -> dict[str, Any]:
    """All results that must equal a single process's."""
    whole, found = rows(0), {}
    with strategy.scope():
        model = functional()
    batches = Batches()
    print("begin-of-fit", flush=True)
    history = model.fit(
        dataset(whole),
        epochs=2,
        validation_data=dataset(rows(1)),
        callbacks=[batches],
        verbose=2,
    )
    print("end-of-fit", flush=True)
    found["history"], found["batches"] = history.history, batches.logs
    found["evaluate"] = model.evaluate(dataset(rows(1)), verbose=0)
    found["predict"] = model.predict(dataset(rows(1)), verbose=0).tolist()
    found["weights"] = weights(model)

    # Only the chief writes the files.
    path = folder / "models" / "saved.keras"
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    model.save_weights(path.parent / "saved.weights.h5")

    # Several steps at once, sharded by hand, and a loss that is a sum.
    with strategy.scope():
        model = functional(keras.losses.BinaryCrossentropy(reduction="sum"), steps_per_execution=3)
    batches = Batches()
    weight = np.random.default_rng(7).uniform(0.5, 2, [ROWS]).astype("float32")
    hand = dataset((*whole, weight), POLICIES.OFF, (max(world, 1), rank))
    history = model.fit(hand, epochs=2, callbacks=[batches], verbose=0)
    found["sum_weights"] = weights(model)
    found["iterations"] = int(tf.convert_to_tensor(model.optimizer.iterations.value))
    with strategy.scope():
        model = functional()
    weighted = model.fit(dataset((*whole, weight)), epochs=2, verbose=0)
    found["weighted_history"], found["weighted_weights"] = weighted.history, weights(model)

    # The reported loss is Keras's, which is right for sums if workers have equally many rows.
    for logs in (history.history, *batches.logs):
        del logs["loss"]
    found["sum_history"], found["sum_batches"] = history.history, batches.logs

    with strategy.scope():
        keras.utils.set_random_seed(4)
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(dataset(whole), epochs=2, verbose=0)
    found["own_history"], found["own_weights"] = history.history, weights(model)
    return found


def uneven(strategy: Any, rank: int, world: int, folder: pathlib.Path) -> dict[str, Any]:
    """Workers with unequal numbers of batches, and calls that must not hang."""
    with strategy.scope():
        model = functional()
    data = dataset(rows(9 + rank, SHARDS[rank]), POLICIES.OFF) if world else None
    if not world:
        # Without the number of batches, Keras counts an iteration too many in each epoch.
        batches = merged_batches()
        data = tf.data.Dataset.from_generator(
            lambda: iter(batches),
            output_signature=(
                tf.TensorSpec([None, FEATURES], tf.float32),
                tf.TensorSpec([None, 1], tf.float32),
            ),
        ).apply(tf.data.experimental.assert_cardinality(len(batches)))
    found = {"history": model.fit(data, epochs=2, verbose=0).history}
    found["evaluate"] = model.evaluate(data, verbose=0)
    found["weights"] = weights(model)
    if not world:
        return found
    whole = rows(0)
    endless = dataset(whole).repeat()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    refused = {"keras.distribution": refusal(model.fit, dataset(whole))}
    keras.distribution.set_distribution(None)
    refused |= {
        "arrays": refusal(model.fit, *whole),
        "predict": refusal(model.predict, whole[0]),
        "validation": refusal(model.fit, dataset(whole), validation_data=whole),
        "steps": refusal(model.fit, endless, steps_per_epoch=2 + rank),
        "endless": refusal(
            model.fit, dataset(whole).repeat() if rank else dataset(whole), steps_per_epoch=2
        ),
        "no validation": refusal(
            model.fit, dataset(whole), validation_data=dataset(whole) if rank else None
        ),
        "callback list": refusal(
            model.fit, dataset(whole), callbacks=keras.callbacks.CallbackList([])
        ),
        "train_on_batch": refusal(model.train_on_batch, *whole),
        "backup": refusal(
            model.fit,
            dataset(whole),
            callbacks=[start_later(rank)],
            verbose=0,
        ),
    }
    with strategy.scope():
        eager = functional("mse", run_eagerly=True)
        reduction = "mean_with_sample_weight"
        mean = functional(keras.losses.BinaryCrossentropy(reduction=reduction))
    refused["run_eagerly"] = refusal(eager.fit, dataset(whole))
    refused["reduction"] = refusal(mean.fit, dataset((*whole, np.ones([ROWS], "float32"))))
    found["refused"] = refused
    return found


def start_later(step: int) -> keras.callbacks.Callback:
    """A callback that begins at another step, as if only some workers found a backup."""

    class Later(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.optimizer.iterations.assign(100 + step)

    return Later()


def resume(strategy: Any, rank: int, world: int, folder: pathlib.Path) -> dict[str, Any]:
    """Trains four epochs. In the third, the worker whose number is in the file "killer" dies."""
    killer = folder / "killer"

    class Killer(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations.numpy() == 13 and rank == int(killer.read_text()):
                os.kill(os.getpid(), signal.SIGKILL)

    with strategy.scope():
        model = functional()
    callbacks: list[Any] = []
    if world:
        callbacks = [
            keras.callbacks.BackupAndRestore(folder / "backup"),
            keras.callbacks.ModelCheckpoint(
                folder / "models" / "best.keras", save_best_only=True, monitor="loss"
            ),
            keras.callbacks.ModelCheckpoint(
                folder / "models" / "{epoch}.weights.h5", save_weights_only=True
            ),
        ]
    if killer.exists():
        callbacks.append(Killer())
        model.timeout_seconds = 30.0
    epochs = Epochs()
    try:
        model.fit(dataset(rows(0)), epochs=4, callbacks=[*callbacks, epochs], verbose=0)
    except distributed.WorkerLostError as error:
        return {"lost": str(error)}
    return {"weights": weights(model), "epochs": epochs.seen}


class Epochs(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(epoch)


def hang(strategy: Any, rank: int, world: int, folder: pathlib.Path) -> dict[str, Any]:
    """The last worker stays alive and does nothing."""

    class Hang(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            while rank == world - 1:
                time.sleep(1)

    with strategy.scope():
        model = functional()
    model.timeout_seconds = 8.0
    return {
        "refused": refusal(model.fit, dataset(rows(0)), callbacks=[Hang()], epochs=2, verbose=0)
    }


CASES = {case.__name__: case for case in (fits, uneven, resume, hang)}


def main(case: str, folder: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    world = len(resolver.cluster_spec().as_dict()["worker"])
    found = CASES[case](strategy, resolver.task_id, world, pathlib.Path(folder))
    path = pathlib.Path(folder) / f"result-{resolver.task_id}.json"
    path.write_text(json.dumps(found))
    if case == "hang":
        sys.exit(1)  # as the error would


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Programs that the processes of a cluster with parameter servers run in tests.

The arguments of the chief select the program. It prints the result as a line of JSON.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.metric_layers import LargeCount, Seen, SeenWithin
from tf_embed import one_embedding
from tf_embed.serving import Follower, Publisher
from tf_embed.sharded.servers import servers_of

DIM = 4
_SEED = keras.initializers.RandomUniform(seed=3)


def bounded(strategy: Any) -> Any:
    """The rows that a table with a bound keeps, and that it removes on demand."""
    policy = tf_embed.TablePolicy(max_rows=700, eviction="lfu", log_evicted=True)
    with strategy.scope():
        there = tf_embed.Variable(dim=DIM, name="v", initializer=_SEED, policy=policy)
    found: dict[str, Any] = {"device": there.table.parts[1].resource_handle.device}
    there.upsert(tf.range(400, dtype=tf.int64), tf.ones([400, DIM]))
    found["stats"] = there.stats()["rows"]
    # New keys, because a bound does not evict rows of the current step.
    there.upsert(tf.range(400, 2400, dtype=tf.int64), tf.ones([2000, DIM]))
    found["bound"] = [int(there.size()), int(there.drain_evicted()[0].shape[0]) > 0]
    size = there.size()
    found["trigger"] = [int(there.table.restrict(size - 9, "lru", size - i)) for i in range(2)]
    found["restrict"] = [int(there.restrict(100)), int(there.size())]
    there.clear()
    found["clear"] = int(there.size())
    return found


def saves(strategy: Any, folder: str) -> Any:
    """Saves on servers, and loads in this process and on servers."""
    policy = tf_embed.TablePolicy(track_changes=True)
    with strategy.scope():
        there = tf_embed.Variable(dim=DIM, name="v", initializer=_SEED, policy=policy)
        again = tf_embed.Variable(dim=DIM, name="v", initializer=_SEED, policy=policy)
    here = tf_embed.Variable(dim=DIM, name="v", initializer=_SEED, policy=policy)
    keys = tf.range(-500, 500, dtype=tf.int64)
    rows = tf.random.stateless_normal([1000, DIM], [3, 4])
    there.upsert(keys, rows)
    found: dict[str, Any] = {}

    def same(what: str, variable: tf_embed.Variable, expected: tf.Tensor) -> None:
        values, exists = variable.lookup(keys, return_exists=True)
        found[what] = bool(tf.reduce_all(values == expected) & tf.reduce_all(exists))
        variable.clear()

    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    there.save_rows(os.path.join(folder, "files"), progress=tell)
    found["progress of a save"] = told[0] == (0, 1000) and told[-1] == (1000, 1000)
    here.load_rows(os.path.join(folder, "files"))
    same("files, in one process", here, rows)
    again.load_rows(os.path.join(folder, "files"), progress=tell)
    everything = 1000 * len(again.table.parts)  # each server reads all files
    found["progress of a load"] = told[-1] == (everything, everything)
    same("files", again, rows)
    snapshots = tf_embed.Snapshots(os.path.join(folder, "snapshots"), there)
    snapshots.save("first")
    changed = tf.tensor_scatter_nd_update(rows, [[3], [700]], tf.zeros([2, DIM]))
    there.upsert(keys, changed)
    there.upsert(keys[10:], changed[10:])
    snapshots.save("second", since="first")
    tf_embed.Snapshots(os.path.join(folder, "snapshots"), here).load("second")
    same("chain, in one process", here, changed)
    tf_embed.Snapshots(os.path.join(folder, "snapshots"), again).load("second")
    same("chain", again, changed)
    checkpoint = tf.train.Checkpoint(table=there).save(os.path.join(folder, "checkpoint"))
    tf.train.Checkpoint(table=again).restore(checkpoint).assert_consumed()
    same("checkpoint", again, changed)
    there.upsert(keys, rows)
    publisher = Publisher(there, os.path.join(folder, "published"))
    follower = Follower(here, publisher.path)
    publisher.publish()
    follower.update()
    there.upsert(keys[:100], changed[:100])
    there.remove([10**6])
    publisher.publish(wait=False)
    publisher.wait()
    follower.update()
    found["changes"] = (follower.version, follower.publication.rows) == (2, 100)
    same("publication", here, tf.concat([changed[:100], rows[100:]], 0))
    return found


def sum_model() -> Any:
    """A model whose loss is the sum of the rows that it looks up, trained by SGD."""
    ids = keras.Input([3], dtype="int64")
    rows = tf_embed.layers.DynamicEmbedding(
        DIM, initializer=0.0, optimizer=keras.optimizers.SGD(1.0), name="items"
    )(ids)
    model = keras.Model(ids, keras.layers.Lambda(lambda x: keras.ops.sum(x, axis=[1, 2]))(rows))
    model.compile(keras.optimizers.SGD(0.0), lambda y, pred: keras.ops.sum(pred))
    return model


def _ids(steps: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 20, [steps * 8, 3]).astype(np.int64)


class _Tell(keras.callbacks.Callback):
    """Writes the file `begun` at step 20.

    Args:
        folder: The folder of the file.
        seconds: The time to wait in each step, which leaves time for a kill.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__()
        self._folder = pathlib.Path(folder)
        self._seconds = seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(self._seconds)
        if batch == 20:
            (self._folder / "begun").touch()


def sums(strategy: Any, folder: str, steps: str, killed: str = "") -> Any:
    """Workers race on few rows. Each gradient is 1, so a row is minus the number of its lookups.

    Args:
        strategy: The strategy.
        folder: The folder of a file that says that training has begun.
        steps: The number of steps.
        killed: "slow": waits a little at each step. "large": each result of a step is 16 MiB.
    """
    with strategy.scope():
        model = sum_model()
        if killed == "large":
            model.compile(keras.optimizers.SGD(0.0), model.loss, metrics=[LargeCount(1 << 22)])
    ids = _ids(int(steps))
    data = tf.data.Dataset.from_tensor_slices((ids, np.zeros(len(ids), np.float32))).batch(8)
    trainer = tf_embed.distributed.ParameterServerTrainer(model)
    tell = _Tell(folder, 0.02 if killed == "slow" else 0.0)
    history = trainer.fit(data, epochs=1, callbacks=[tell], verbose=0).history
    rows = model.get_layer("items").variable.lookup(np.arange(20)).numpy()
    expected = -np.bincount(ids.ravel(), minlength=20)
    exact = bool((rows == expected[:, None]).all())
    if killed == "large":
        counted = [[float(one) for one in ends] for ends in history["counted"]]
        exact &= counted == [[float(steps)] * 2]
    return {"exact": exact, "steps": trainer.steps}


def passes(strategy: Any, folder: str, *killed: str) -> Any:
    """Trains epochs of five steps on a dataset of seven batches. Each row counts a batch's steps.

    Args:
        strategy: The strategy.
        folder: The folder of checkpoints.
        killed: The number of steps after which this process kills itself, if any.
    """
    with strategy.scope():
        model = sum_model()
    ids = np.repeat(np.arange(7, dtype=np.int64), 8)[:, None].repeat(3, 1)
    data = tf.data.Dataset.from_tensor_slices((ids, np.zeros(len(ids), np.float32))).batch(8)
    trainer = tf_embed.distributed.ParameterServerTrainer(
        model, checkpoint_dir=os.path.join(folder, "checkpoints"), save_every=4
    )

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if killed and trainer.steps == int(killed[0]):  # all earlier steps are saved
                os.kill(os.getpid(), signal.SIGKILL)

    trainer.fit(data, epochs=4, steps_per_epoch=5, callbacks=[Kill()], verbose=0)
    table = model.get_layer("items").variable
    return {"trained": [-int(one) // 24 for one in table.lookup(np.arange(7)).numpy()[:, 0]]}


def own_batches(strategy: Any, folder: str, steps: str, killed: str = "") -> Any:
    """Each worker's batches have its number as ids, so a row counts the worker's trained batches.

    Args:
        strategy: The strategy.
        folder: The folder of a file that says that training has begun.
        steps: The steps of an epoch; there are two epochs.
        killed: "slow": waits a little in each step, which leaves time for a kill.
    """
    with strategy.scope():
        model = sum_model()
    trainer = tf_embed.distributed.ParameterServerTrainer(model)

    def dataset_of(worker: tf.Tensor, workers: int) -> tf.data.Dataset:
        batch = (tf.fill([8, 3], worker), tf.zeros([8]))
        return tf.data.Dataset.from_tensors(batch).repeat(3)  # the trainer repeats it

    def message_of(*arguments: Any, **options: Any) -> str:
        try:
            trainer.fit(*arguments, **options, verbose=0)
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    refused = [
        message_of(dataset_of),
        message_of(lambda worker, workers: worker, steps_per_epoch=1),
        message_of(lambda worker, workers: dataset_of(worker, workers).take(0), steps_per_epoch=1),
    ]
    tell = _Tell(folder, 0.02 if killed == "slow" else 0.0)
    history = trainer.fit(
        dataset_of, epochs=2, steps_per_epoch=int(steps), callbacks=[tell], verbose=0
    )
    table = model.get_layer("items").variable
    trained = [-int(one) // 24 for one in table.lookup(np.arange(3)).numpy()[:, 0]]
    return {
        "refused": refused,
        "trained": trained,
        "size": int(table.size()),
        "steps": trainer.steps,
        "epochs": len(history.history["loss"]),
    }


def _batches(count: int) -> tf.data.Dataset:
    """Batches of eight rows with the ids 0, 1 and 2, for the model of `_sum_model`."""
    ids = np.tile(np.arange(3, dtype=np.int64), [8 * count, 1])
    return tf.data.Dataset.from_tensor_slices((ids, np.zeros(len(ids), np.float32))).batch(8)


def turns(strategy: Any) -> Any:
    """Two trainers of the same table take turns."""
    with strategy.scope():
        model = sum_model()
        other = keras.Model(model.inputs, model.outputs)
        other.compile(keras.optimizers.SGD(0.0), lambda y, pred: keras.ops.sum(pred))
    trainers = [tf_embed.distributed.ParameterServerTrainer(one) for one in (model, other)]
    table, trained = model.get_layer("items").variable, []
    for turn in range(4):
        trainers[turn % 2].fit(_batches(2), epochs=1 + turn // 2, verbose=0)
        trained.append(-int(table.lookup([1])[0, 0]) // 8)
    return {"trained": trained}


def results(strategy: Any) -> Any:
    """The results of models with several outputs, metrics of layers, and vectors as metrics.

    Keras gives the expected results, with the same models in this process.
    """
    numbers = np.arange(1, 5, dtype=np.float32)[:, None]
    outputs = tf.data.Dataset.from_tensor_slices((numbers, {"a": numbers * 2, "b": numbers + 1}))
    labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    classes = tf.data.Dataset.from_tensor_slices((numbers, labels))

    def of_outputs() -> keras.Model:
        number = keras.Input([1])
        seen = Seen()(number)
        heads = {
            name: keras.layers.Dense(1, kernel_initializer="ones", name=name)(seen)
            for name in ("a", "b")
        }
        model = keras.Model(number, heads)
        model.compile(keras.optimizers.SGD(0.01), {"a": "mse", "b": "mae"}, metrics={"a": ["mae"]})
        return model

    def of_classes() -> keras.Model:
        number = keras.Input([1])
        shares = keras.layers.Dense(3, "softmax", kernel_initializer="ones")(number)
        model = keras.Model(number, shares)
        model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(name="f1")])
        return model

    def of_inner_graphs() -> keras.Model:
        number = keras.Input([1])
        seen = SeenWithin(is_condition=False)(SeenWithin(is_condition=True)(number))
        model = keras.Model(number, keras.layers.Dense(1, kernel_initializer="ones")(seen))
        model.compile("sgd", "mse")
        return model

    def listed(values: dict[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(value).tolist() for name, value in values.items()}

    found: dict[str, Any] = {}
    for what, make, data in (("outputs", of_outputs, outputs), ("classes", of_classes, classes)):
        here = make()
        others = here.fit(data.batch(2), shuffle=False, verbose=0).history
        with strategy.scope():
            there = make()
        trainer = tf_embed.distributed.ParameterServerTrainer(there)
        history = trainer.fit(data.batch(2), verbose=0).history
        found[what] = [listed(history), listed(others)]
        evaluated = here.evaluate(data.batch(2), verbose=0, return_dict=True)
        found[f"{what}, evaluated"] = [listed(trainer.evaluate(data.batch(2))), listed(evaluated)]
        found[f"{what}, verbose"] = sorted(trainer.fit(data.batch(2), epochs=2, verbose=2).history)
        if what == "outputs":
            layer = next(one for one in there.layers if isinstance(one, Seen))
            found["calls"] = float(layer.calls.numpy())
    data = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(2)
    here = of_inner_graphs().fit(data, shuffle=False, verbose=0)
    with strategy.scope():
        there = of_inner_graphs()
    trainer = tf_embed.distributed.ParameterServerTrainer(there)
    found["inner graphs"] = trainer.fit(data, verbose=0).history
    found["loss of Keras"] = here.history["loss"]
    found["inner calls"] = [float(one.calls.numpy()) for one in there.layers[1:3]]
    return found


def stops(strategy: Any, folder: str) -> Any:
    """Callbacks stop training within an epoch, and at its end."""

    class Stop(keras.callbacks.Callback):
        def __init__(self, batch: int | None) -> None:
            super().__init__()
            self.batch, self.batches = batch, 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            self.model.stop_training |= batch == self.batch

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    found: dict[str, Any] = {}
    for what, batch in (("within", 2), ("end", None)):
        with strategy.scope():
            model = sum_model()
        path, stop = os.path.join(folder, what), Stop(batch)
        trainer = tf_embed.distributed.ParameterServerTrainer(
            model, checkpoint_dir=path, save_every=10
        )
        trainer.fit(_batches(45), epochs=3, steps_per_epoch=40, callbacks=[stop], verbose=0)
        newest = sorted(os.listdir(os.path.join(path, "dense")))[-1]
        with np.load(os.path.join(path, "dense", newest)) as saved:
            state = json.loads(str(saved["state"]))
        found[what] = {"batches": stop.batches, "steps": trainer.steps, "saved": state}
    return found


def compiles(strategy: Any) -> Any:
    """The model is compiled again between two calls of `fit`."""
    with strategy.scope():
        model = sum_model()
    trainer, table = (
        tf_embed.distributed.ParameterServerTrainer(model),
        model.get_layer("items").variable,
    )
    trained, names = [], []
    for epochs in (1, 2, 3):
        if epochs == 2:
            with strategy.scope():
                model.compile(
                    keras.optimizers.SGD(0.0),
                    lambda y, pred: 3.0 * keras.ops.sum(pred),
                    metrics=[keras.metrics.MeanSquaredError(name="error")],
                )
        history = trainer.fit(_batches(2), epochs=epochs, verbose=0).history
        names.append(sorted(history))
        trained.append(-int(table.lookup([1])[0, 0]) // 8)
    return {"trained": trained, "names": names, "steps": int(model.optimizer.iterations.numpy())}


def compiles_again(strategy: Any, folder: str, *killed: str) -> Any:
    """The model is compiled again with an optimizer of other variables; see `passes`."""
    with strategy.scope():
        ids = keras.Input([3], dtype="int64")
        rows = tf_embed.layers.DynamicEmbedding(DIM, combiner="sum", optimizer="sgd")(ids)
        model = keras.Model(ids, keras.layers.Dense(1)(rows))
        model.compile("sgd", "mse")
    trainer = tf_embed.distributed.ParameterServerTrainer(model, checkpoint_dir=folder)

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if killed and trainer.steps == int(killed[0]):
                os.kill(os.getpid(), signal.SIGKILL)

    trained = []
    for epochs in (1, 2, 3):
        if epochs == 2:
            with strategy.scope():
                model.compile("adam", "mse")
        trained.append(trainer.fit(_batches(4), epochs=epochs, callbacks=[Kill()], verbose=0).epoch)
    return {"trained": trained, "steps": trainer.steps}


def train(strategy: Any, folder: str, epochs: str, *stop: str) -> Any:
    """Trains a model with dense variables, from the step of the last chief.

    Args:
        strategy: The strategy.
        folder: The folder of checkpoints.
        epochs: The number of epochs.
        stop: The step at which this process kills itself, if any; "wait" to wait in each step.
    """
    keras.utils.set_random_seed(1)
    with strategy.scope():
        ids = keras.Input([2], dtype="int64")
        rows = tf_embed.layers.DynamicEmbedding(
            DIM, combiner="sum", initializer=_SEED, name="items"
        )(ids)
        model = keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(rows))
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.5))
        model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    generator = np.random.default_rng(0)
    of_ids = generator.integers(0, 60, [1024, 2])
    target = (of_ids.sum(1) % 2 == 0) & (of_ids[:, 0] % 3 > 0)
    data = tf.data.Dataset.from_tensor_slices((of_ids, target.astype(np.float32))).batch(64)
    variable = model.get_layer("items").variable

    def compared() -> dict[str, Any]:
        """Compares the rows and slots of each server with the newest checkpoint."""
        saved = tf_embed.Variable(dim=DIM)
        snapshots = tf_embed.Snapshots(os.path.join(folder, "checkpoints"), saved)
        snapshots.load(snapshots.latest() or "")
        parts = [part.export() for part in variable.table.parts]
        return {
            "sizes": [int(one.keys.shape[0]) for one in parts],
            "as_saved": [
                bool(tf.reduce_all(saved.lookup(one.keys) == one.values)) for one in parts
            ],
            # Sums of squared gradients, which only grow.
            "slots": sum(float(tf.reduce_sum(one.slots)) for one in parts),
            "saved_slots": float(tf.reduce_sum(saved.table.export().slots)),
        }

    class Stop(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            print(json.dumps({**compared(), "steps": trainer.steps}), flush=True)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if stop and stop[0] != "wait" and trainer.steps >= int(stop[0]):
                os.kill(os.getpid(), signal.SIGKILL)
            if stop and stop[0] == "wait":
                time.sleep(0.05)
                pathlib.Path(folder, "begun").touch()

    trainer = tf_embed.distributed.ParameterServerTrainer(
        model, checkpoint_dir=os.path.join(folder, "checkpoints"), save_every=20
    )
    history = trainer.fit(
        data, epochs=int(epochs), validation_data=data, callbacks=[Stop()], verbose=0
    )
    evaluated = trainer.evaluate(data)
    model.save_weights(os.path.join(folder, "model.weights.h5"))
    return {"history": history.history, "evaluated": evaluated, "steps": trainer.steps}


class NotedUpdates(tf_embed.tfra.FrequencyRestrictPolicy):
    """A policy that wants to know which keys each step trains."""

    def apply_update(self, ids: tf.Tensor) -> None:
        """Does nothing."""


def refusals(strategy: Any) -> Any:
    """The error messages of all calls that servers refuse."""
    here = tf_embed.Variable(name="here")

    def message_of(make: Callable[[], Any]) -> str:
        try:
            with strategy.scope():
                make()
        except (TypeError, ValueError) as error:
            return str(error)
        return ""

    def layer(optimizer: Any) -> Callable[[], Any]:
        return lambda: tf_embed.layers.DynamicEmbedding(DIM, optimizer=optimizer).build([None])

    def table() -> Any:
        return tf_embed.Variable().table

    bags, trainer = (
        tf_embed.tbe.TableBatchedEmbeddingBags,
        tf_embed.distributed.ParameterServerTrainer,
    )
    store = one_embedding.make_device_mem_store_options("/tmp/never_written", 9)
    many_tables = one_embedding.MultiTableEmbedding("emb", DIM, "float32", "int64", None, store)
    keys = tf.constant([1], tf.int64)
    no_batch = tf.data.Dataset.from_tensors((tf.zeros([8, 3], tf.int64), tf.zeros([8]))).take(0)

    def one_batch(worker: tf.Tensor, workers: int) -> tf.data.Dataset:
        batch = tf.data.Dataset.from_tensors((tf.zeros([8, 3], tf.int64), tf.zeros([8])))
        return batch.shard(workers, worker)

    with strategy.scope():
        trained = trainer(sum_model())
    trained.fit(_batches(1), verbose=0)  # afterwards no worker is asked for a first batch
    return {
        "local": message_of(lambda: tf_embed.Variable(distribution="local")),
        "updates": message_of(lambda: tf_embed.tfra.Variable(restrict_policy=NotedUpdates)),
        "strings": message_of(lambda: tf_embed.Variable(value_dtype="string")),
        "outside": message_of(layer(keras.optimizers.Nadam())),
        "average": message_of(layer(keras.optimizers.SGD(gradient_accumulation_steps=2))),
        "bags": message_of(lambda: bags([(10, DIM)], optimizer="EXACT_SGD").build(None)),
        "many tables": message_of(many_tables.build),
        "rule": message_of(lambda: table().find_slots(keys, None)),  # type: ignore[arg-type]
        "slots": message_of(lambda: table().assign_slots(keys, keys, keys, "sgd")),
        "copy": message_of(lambda: copy.deepcopy(tf_embed.Variable())),
        "proc_size": message_of(
            lambda: tf_embed.tfra.Variable().save_to_file_system("/tmp/never_written", proc_size=3)
        ),
        "run_id": message_of(lambda: servers_of(strategy, "another")),
        "not compiled": message_of(lambda: trainer(keras.Sequential([keras.layers.Dense(1)]))),
        "save_every": message_of(lambda: trainer(sum_model(), save_every=1)),
        "no batch": message_of(lambda: trainer(sum_model()).fit(no_batch, verbose=0)),
        "no batch of a worker": message_of(
            lambda: trained.fit(one_batch, epochs=2, steps_per_epoch=1000, verbose=0)
        ),
        "batches of the chief": message_of(
            lambda: trainer(sum_model()).fit(lambda *_: no_batch, steps_per_epoch=9, verbose=0)
        ),
        "bound": message_of(lambda: tf_embed.Variable(policy=tf_embed.TablePolicy(max_rows=1))),
        "follower": message_of(lambda: Follower(tf_embed.Variable(name="there"), "nowhere")),
        "snapshots": message_of(
            lambda: tf_embed.Snapshots("nowhere", [tf_embed.Variable(name="there"), here])
        ),
        "saved_model": message_of(
            lambda: tf.saved_model.save(tf_embed.Variable(), "/tmp/never_written")
        ),
        "static export": message_of(
            lambda: tf_embed.export_static(
                tf_embed.Variable(),
                "/tmp/never_written",
                input_signature=[tf.TensorSpec([None], tf.int64)],
            )
        ),
    }


def main(programs: dict[str, Any]) -> None:
    """Runs the task of this process; the chief runs the program that its arguments name."""
    name, *arguments = sys.argv[1:] or [""]
    run_id = None
    if arguments and arguments[-1].startswith("run_id="):
        run_id = arguments.pop().removeprefix("run_id=")

    def of_chief(strategy: Any) -> None:
        print(json.dumps(programs[name](strategy, *arguments)), flush=True)

    tf_embed.distributed.run_with_servers(of_chief, run_id=run_id)


if __name__ == "__main__":
    main(globals())

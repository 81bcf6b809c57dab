# SPDX-License-Identifier: Apache-2.0
"""Models of real data with tables, trained by `fit` or by a custom loop, on any number of workers.

The campaigns of workers train them here: `worker_parity.py`, `worker_chain.py`, `worker_kills.py`.
They use the code of docs/guides/workers.md. Without a strategy it runs in one process.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support import ROOT

sys.path.insert(0, str(ROOT / "examples"))

DIM = 8
# For float32 sums in another order.
RTOL, ATOL = 2e-5, 2e-6
FLIGHTS = ("carrier", "tailnum", "flight", "dest")
WAYS = ("fit", "loop")
OPTIMIZERS = ("adam", "rowwise")
# No bound; a bound that no table reaches; a bound at which rows are evicted.
BOUNDS: dict[str, int | None] = {"none": None, "wide": 1 << 16, "tight": 320}

State = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Setup:
    """A training: its data, its model and its schedule.

    Attributes:
        data: A file of `save_flights` or `save_movielens`.
        way: "fit" or "loop".
        optimizer: The optimizer of tables: "adam" or "rowwise".
        bound: A name of `BOUNDS`.
        batch: Rows of a global batch.
        epochs: Number of epochs. All have the same batches.
        epoch_steps: Batches of an epoch.
        shards: Shards of a table in this process.
    """

    data: str
    way: str
    optimizer: str = "adam"
    bound: str = "none"
    batch: int = 256
    epochs: int = 2
    epoch_steps: int = 50
    shards: int = 1

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps


# --- Data -----------------------------------------------------------------------------------------


def save_flights(path: pathlib.Path, rows: int) -> None:
    """Writes flights of 2013: fingerprints of four columns, and whether each arrived late."""
    import flights_data

    flights, _ = flights_data.load(stride=8)
    if len(flights) < rows:
        raise SystemExit(f"There are {len(flights)} flights, and {rows} are needed.")
    ids = {
        column: tf.bitcast(tf.fingerprint(flights.ids[column][:rows]), tf.int64).numpy()
        for column in FLIGHTS
    }
    np.savez(path, label=flights.late[:rows], **ids)


def save_made(path: pathlib.Path, rows: int) -> None:
    """Writes generated flights of the same columns: frequent ids, and labels that depend on ids."""
    draw = np.random.default_rng(5)
    counts = dict(zip(FLIGHTS, (16, 4000, 3000, 100), strict=True))
    places = {
        name: (count * draw.random(rows) ** 3).astype(np.int64) for name, count in counts.items()
    }
    late = (sum(places.values()) % 5 < 2).astype(np.float32)
    ids = {name: place * (2**40 + 7) - counts[name] for name, place in places.items()}
    np.savez(path, label=late, **ids)


FLIGHTS_DATA = {"flights": save_flights, "made": save_made}


def save_movielens(path: pathlib.Path, folder: pathlib.Path, rows: int) -> None:
    """Writes ratings of MovieLens 100K: users, items, and stars from 0 to 1."""
    import movielens_data

    ratings = movielens_data.load(folder)
    if len(ratings) < rows:
        raise SystemExit(f"There are {len(ratings)} ratings, and {rows} are needed.")
    stars = (ratings.stars[:rows] - 1) / 4
    np.savez(path, label=stars, user=ratings.user[:rows], item=ratings.item[:rows])


def read(setup: Setup) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The ids by column, and the labels, of an epoch."""
    with np.load(setup.data) as file:
        arrays = {name: file[name][: setup.batch * setup.epoch_steps] for name in file.files}
    labels = arrays.pop("label").astype(np.float32)[:, np.newaxis]
    return arrays, labels


def dataset(setup: Setup) -> tf.data.Dataset:
    """The global batches of an epoch, the same for any number of workers."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(read(setup)).batch(setup.batch).with_options(options)


# --- The model ------------------------------------------------------------------------------------


class Training:
    """A model, its optimizer, and the ids of its data.

    Args:
        setup: The training.
        strategy: The strategy of workers, or the default strategy.
        model: A loaded model; None makes a new model.
    """

    def __init__(self, setup: Setup, strategy: Any, model: keras.Model | None = None) -> None:
        self.setup, self.strategy = setup, strategy
        ids, _ = read(setup)
        self.ids = {name: np.unique(column) for name, column in ids.items()}
        with strategy.scope():
            self.model = self._made() if model is None else model
            if setup.way == "fit":
                self.optimizer = self.model.optimizer
            else:
                wrapper = tf_embed.DynamicEmbeddingOptimizer
                self.optimizer = wrapper(self._optimizer())
            self.optimizer.build(self.model.trainable_variables)

    def _optimizer(self) -> keras.optimizers.Optimizer:
        if self.setup.optimizer == "adam":
            return keras.optimizers.Adam(0.005)
        return tf_embed.optimizers.RowwiseAdagrad(0.05)

    def _made(self) -> keras.Model:
        """A new model. With `fit`, each table has its own optimizer."""
        keras.utils.set_random_seed(1)
        setup = self.setup
        max_rows = BOUNDS[setup.bound]
        policy = max_rows and tf_embed.TablePolicy(max_rows=max_rows, eviction="lru")
        # One process with a shard for each worker spreads keys over them by their remainder. So
        # each shard has the rows of a worker, and evicts the same.
        owner = "remainder" if setup.bound == "tight" else "hash"
        inputs = {name: keras.Input((), dtype="int64", name=name) for name in self.ids}
        rows = [
            tf_embed.layers.DynamicEmbedding(
                DIM,
                initializer=keras.initializers.RandomUniform(-0.5, 0.5, seed=3),
                optimizer=self._optimizer() if setup.way == "fit" else None,
                devices=["/CPU:0"] * setup.shards,
                policy=policy or None,
                distribution=tf_embed.distributed.WorkerSharding(owner=owner),
                name=f"{name}_table",
            )(one)
            for name, one in inputs.items()
        ]
        joined = keras.layers.Concatenate()(rows)
        hidden = keras.layers.Dense(16, "tanh", name="hidden")(joined)
        outputs = keras.layers.Dense(1, "sigmoid", name="last")(hidden)
        model = tf_embed.distributed.Model(inputs, outputs)
        if setup.way == "fit":
            model.compile(keras.optimizers.Adam(0.005), "mse")
        return model

    def tables(self) -> dict[str, tf_embed.Variable]:
        """The tables, by column."""
        return {name: self.model.get_layer(f"{name}_table").variable for name in self.ids}

    def step_number(self) -> int:
        """The number of steps so far."""
        return int(tf.convert_to_tensor(self.optimizer.iterations.value).numpy())

    def state(self) -> State:
        """All values that training changes. All workers must call it, and get the same."""
        found: State = {"step": np.array(self.step_number())}
        for name, table in self.tables().items():
            keys = tf.constant(self.ids[name])
            rows, exists = (one.numpy() for one in table.lookup(keys, return_exists=True))
            there = exists[:, np.newaxis]
            found[f"{name} size"] = np.array(int(table.size()))
            found[f"{name} exists"] = exists.astype(np.int32)
            found[f"{name} rows"] = np.where(there, rows, 0)
            own = self.model.get_layer(f"{name}_table").optimizer
            for number, slot in enumerate(table.slot_variables(own or self.optimizer)):
                found[f"{name} slot {number}"] = np.where(there, slot.lookup(keys), 0)
        for layer in ("hidden", "last"):
            for number, array in enumerate(self.model.get_layer(layer).get_weights()):
                found[f"{layer} {number}"] = array
        return found

    # --- Training ---------------------------------------------------------------------------------

    def fit(self, epochs: int, *callbacks: keras.callbacks.Callback, initial_epoch: int = 0) -> Any:
        """Trains by `fit` to the end of an epoch. Returns each epoch's loss by its number."""
        losses = Losses()
        self.model.fit(
            dataset(self.setup),
            epochs=epochs,
            initial_epoch=initial_epoch,
            callbacks=[*callbacks, losses],
            shuffle=False,
            verbose=0,
        )
        return losses.found

    def loop(self, end: int, after_step: Callable[[int], None] = lambda step: None) -> Any:
        """Trains by a custom loop to the end of a step. Returns each step's loss by its number."""
        losses = {}
        for step, batch in self._batches(end):
            with tf_embed.distributed.timeout(60):
                losses[step] = float(self._step(batch))
            after_step(step)
        return losses

    def _batches(self, end: int) -> Iterator[tuple[int, Any]]:
        begin = self.step_number()
        batches = dataset(self.setup).repeat().skip(begin).take(end - begin)
        batches = self.strategy.experimental_distribute_dataset(batches)
        return enumerate(batches, start=begin + 1)

    def _replica_step(self, ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(self.model(ids, training=True) - labels)
            # Divided by the batch of all workers, because the optimizer sums gradients.
            loss = tf.reduce_sum(errors) / self.setup.batch
        variables = self.model.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def _step(self, batch: Any) -> Any:
        losses = self.strategy.run(self._replica_step, args=batch)
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def train(self) -> Any:
        """Trains from the first step to the last, and returns the losses."""
        if self.setup.way == "fit":
            return self.fit(self.setup.epochs)
        return self.loop(self.setup.steps)


class Losses(keras.callbacks.Callback):
    """Collects the loss of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, float] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found[epoch] = float(logs["loss"])


# --- Comparison -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two trainings.

    Attributes:
        loss: The greatest difference of a loss.
        rows: The greatest difference of a number in a row or a slot.
        dense: The greatest difference of a dense weight.
        wrong: Names of all values that differ by more than RTOL and ATOL.
    """

    loss: float
    rows: float
    dense: float
    wrong: tuple[str, ...]


def gap(one: Any, other: Any) -> float:
    """The greatest difference of two arrays."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.shape != other.shape:
        return float("inf")
    return float(np.max(np.abs(one - other), initial=0.0))


def compare(state: State, losses: Any, expected: State, expected_losses: Any) -> Difference:
    """Compares the final states, and the losses that both trainings have."""
    wrong = sorted(state.keys() ^ expected.keys())
    gaps = {"rows": 0.0, "dense": 0.0}
    for name in state.keys() & expected.keys():
        if not same(state[name], expected[name]):
            wrong.append(name)
        kind = "rows" if name.endswith("rows") or " slot " in name else "dense"
        gaps[kind] = max(gaps[kind], gap(state[name], expected[name]))
    numbers = sorted(losses.keys() & expected_losses.keys())
    found = np.array([losses[number] for number in numbers])
    theirs = np.array([expected_losses[number] for number in numbers])
    if not numbers or not same(found, theirs):
        wrong.append("losses")
    return Difference(gap(found, theirs), gaps["rows"], gaps["dense"], tuple(wrong))


def same(one: Any, other: Any) -> bool:
    """Whether two arrays are equal within RTOL and ATOL."""
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=RTOL, atol=ATOL)


def rows_of(state: State) -> int:
    """The number of rows of all tables."""
    return sum(int(value) for name, value in state.items() if name.endswith(" size"))

# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups in tables that workers share, or in one process with the bags of all workers.

A program for `worker_programs`; a test runs the same code in its own process as the oracle.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker, step_of_replicas
from tf_embed import sok
from tf_embed.ops import bag_exchange_ops
from tf_embed.sharded.workers import Channel

DIM, STEPS, BATCH = 6, 4, 24
SHARDING = tf_embed.distributed.WorkerSharding


@dataclasses.dataclass(frozen=True)
class Kind:
    """A layer's arguments, and the kind of ids that train it.

    Attributes:
        options: Arguments of the layer.
        range: The number of different ids that can be drawn.
        longest: The most ids of a bag.
        container: "ragged", "sparse" in no order, or "lines" with padding.
        is_weighted: Whether ids have weights, whose gradients count.
        rtol: The relative tolerance.
        uneven: Whether worker 0 has few distinct ids, so that workers ask in different ways.
        in_loop: Whether the lookup is in a tf.while_loop.
    """

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    range: int = 500
    longest: int = 20
    container: str = "ragged"
    is_weighted: bool = False
    rtol: float = 2e-5
    uneven: bool = False
    in_loop: bool = False


def _by_parity(keys: tf.Tensor, workers: int) -> tf.Tensor:
    tf.debugging.assert_greater_equal(keys, tf.zeros([], keys.dtype))  # it must see no padding
    return tf.cast(keys % 2, tf.int32) % workers


KINDS = {
    "long bags": Kind(),
    "repeated": Kind({"combiner": "mean"}, range=9),
    "uneven": Kind({"combiner": "mean", "optimizer": "adam"}, uneven=True),
    "weights": Kind({"combiner": "mean"}, is_weighted=True),
    "few weights": Kind({"combiner": "sqrtn"}, is_weighted=True, range=9, container="sparse"),
    "sqrtn": Kind({"combiner": "sqrtn", "padding_id": 3}, is_weighted=True, container="lines"),
    "int32": Kind({"key_dtype": "int32", "padding_id": 3}, container="lines"),
    "strings": Kind({"key_dtype": "string", "combiner": "mean"}, container="sparse"),
    "padded strings": Kind({"key_dtype": "string", "padding_id": "3"}, container="lines"),
    "float64": Kind({"dtype": "float64", "value_dtype": "float64"}, rtol=1e-10),
    "bfloat16": Kind({"value_dtype": "bfloat16"}, rtol=2e-2),
    "owner": Kind(
        {"distribution": SHARDING(owner=_by_parity), "padding_id": -1}, container="lines"
    ),
    "remainder": Kind({"distribution": SHARDING(owner="remainder")}),
    "wire bfloat16": Kind({"distribution": SHARDING(wire_dtype="bfloat16")}, rtol=2e-2),
    "wire float16": Kind({"distribution": SHARDING(wire_dtype="float16")}, rtol=5e-3),
    "loop": Kind({"combiner": "mean"}, in_loop=True),
}
BY_BAGS = {name for name in KINDS if name not in ("repeated", "few weights", "wire float16")}
QUICK = ("uneven", "few weights", "padded strings", "owner")


def batch_of(kind: Kind, step: int, rank: int, workers: int) -> tuple[list[Any], list[Any], Any]:
    """Bags of ids, bags of weights, and labels [n], of a worker."""
    draw = np.random.default_rng([step, 23])
    lengths = draw.integers(kind.longest // 2, kind.longest + 1, [BATCH])
    lengths[5] = 0
    most = np.where(np.arange(BATCH) * workers < BATCH, 9, kind.range) if kind.uneven else None
    ids = [
        draw.integers(0, kind.range if most is None else most[i], n).tolist()
        for i, n in enumerate(lengths)
    ]
    weights = [draw.uniform(0.5, 1.5, n).tolist() for n in lengths]
    labels = draw.normal(size=[BATCH]).astype(np.float32)
    begin, end = rank * BATCH // workers, (rank + 1) * BATCH // workers
    if step == 2:  # one worker has all
        begin, end = (0, BATCH) if rank == workers - 1 else (0, 0)
    return ids[begin:end], weights[begin:end], labels[begin:end]


def batches_of(kind: Kind, step: int, ranks: Sequence[int], workers: int) -> list[tf.Tensor]:
    """For several workers: the lengths of bags, all ids and weights, and labels."""
    parts = [batch_of(kind, step, rank, workers) for rank in ranks]
    bags = [bag for part in parts for bag in part[0]]
    weights = [one for part in parts for bag in part[1] for one in bag]
    ids = tf.constant([one for bag in bags for one in bag], tf.int64)
    lengths = tf.constant([len(bag) for bag in bags], tf.int64)
    labels = tf.constant(np.concatenate([part[2] for part in parts]))
    return [lengths, ids, tf.constant(weights, tf.float32), labels]


def contained(kind: Kind, lengths: tf.Tensor, flat: tf.Tensor, padding: Any) -> Any:
    """Puts a value for each id into the container of the kind."""
    ragged = tf.RaggedTensor.from_row_lengths(flat, lengths)
    if kind.container == "ragged":
        return ragged
    if kind.container == "lines":
        return ragged.to_tensor(padding, shape=[None, kind.longest])
    sparse = ragged.to_sparse()
    return tf.SparseTensor(sparse.indices[::-1], sparse.values[::-1], sparse.dense_shape)


class Trained:
    """A layer and a dense variable, and their optimizer.

    Args:
        name: A name of `KINDS`.
    """

    def __init__(self, name: str) -> None:
        self.kind = kind = KINDS[name]
        adagrad = keras.optimizers.Adagrad(0.05)
        options = {"combiner": "sum", "optimizer": adagrad, **kind.options}
        self.layer = tf_embed.layers.DynamicEmbedding(
            DIM,
            initializer=keras.initializers.RandomUniform(-0.5, 0.5, seed=3),
            name=name.replace(" ", "_"),
            devices="/CPU:0",
            **options,
        )
        self.layer.build()
        self.key_dtype = tf.as_dtype(self.layer.key_dtype)
        self.dtype = kind.options.get("dtype", "float32")
        self.dense = keras.Variable(np.linspace(-1, 1, DIM), name="dense", dtype=self.dtype)
        self.optimizer = keras.optimizers.SGD(0.1)
        self.variables = [self.dense, *self.layer.trainable_variables]
        self.optimizer.build(self.variables)

    def looked_up(
        self, lengths: tf.Tensor, ids: tf.Tensor, weights: tf.Tensor, training: bool
    ) -> tf.Tensor:
        kind = self.kind
        is_text = self.key_dtype == tf.string
        keys = tf.strings.as_string(ids) if is_text else tf.cast(ids, self.key_dtype)
        padding = kind.options.get("padding_id", -1)
        held = contained(kind, lengths, keys, padding)
        given = contained(kind, lengths, weights, 0.0) if kind.is_weighted else None

        def look_up() -> tf.Tensor:
            return tf.cast(self.layer(held, given, training=training), self.dtype)

        if not kind.in_loop:
            return look_up()
        _, total = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, total: (i + 1, total + 0.5 * look_up()),
            [0, tf.zeros([tf.size(lengths), DIM], self.dtype)],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, DIM])],
        )
        return total

    def step(
        self, lengths: tf.Tensor, ids: tf.Tensor, weights: tf.Tensor, labels: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            pooled = self.looked_up(lengths, ids, weights, True)
            errors = tf.linalg.matvec(pooled, self.dense.value) - tf.cast(labels, self.dtype)
            loss = tf.reduce_sum(errors**2) / BATCH
        *gradients, of_weights = tape.gradient(loss, [*self.variables, weights])
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        if of_weights is None:
            return [loss, tf.zeros([])]
        squares = tf.reduce_sum(tf.convert_to_tensor(of_weights) ** 2)
        return [loss, squares]

    def found(self) -> dict[str, Any]:
        """Rows and slots of all ids."""
        ids = tf.range(500, dtype=tf.int64)
        is_text = self.key_dtype == tf.string
        keys = tf.strings.as_string(ids) if is_text else tf.cast(ids, self.key_dtype)
        variable = self.layer.variable
        rows, exists = variable.lookup(keys, return_exists=True)
        found = {"rows": tf.cast(rows, tf.float64).numpy(), "exists": exists.numpy()}
        (anchor,) = self.layer.trainable_variables
        for number, slot in enumerate(anchor.own_trainer.slots):
            found[f"slot {number}"] = slot.lookup(keys).numpy()
        return {**found, "size": int(variable.size()), "dense": self.dense.numpy()}


@contextlib.contextmanager
def asked() -> Iterator[list[str]]:
    """Records, in eager execution, how lookups ask: by "bags", by "keys" or for "nothing"."""
    split, ways = bag_exchange_ops.split_pooled, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = split(*args, **kwargs)
        by_bags, by_keys = (int(tf.size(one)) > 0 for one in (found.bag_keys, found.asked))
        ways.append("bags" if by_bags else "keys" if by_keys else "nothing")
        return found

    with mock.patch.object(bag_exchange_ops, "split_pooled", noted):
        yield ways


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Records, in eager execution, the bytes that this worker sends to others."""
    all_to_all, sent = Channel.all_to_all, []

    def count(channel: Channel, messages: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        others = int(messages.shape[0]) - 1
        sent.append(4 * others * int(messages.shape[1]))
        return all_to_all(channel, messages, key)

    with mock.patch.object(Channel, "all_to_all", count):
        yield sent


def run(
    trained: Trained, step: Callable[..., Any], ranks: Sequence[int], workers: int
) -> dict[str, Any]:
    """Trains for all steps, and then looks up."""
    untrained = trained.found()["rows"]
    losses = [
        [float(one) for one in step(*batches_of(trained.kind, number, ranks, workers))]
        for number in range(STEPS)
    ]
    with asked() as ways:
        served = trained.looked_up(*batches_of(trained.kind, 0, ranks, workers)[:3], False)
    found = {**trained.found(), "losses": np.array(losses), "asked": ways}
    found["moved"] = found["rows"] - untrained
    return {**found, "served": tf.cast(served, tf.float64).numpy()}


def oracle(name: str, workers: int) -> dict[str, Any]:
    """The results of one process with the bags of all workers."""
    trained = Trained(name)
    step = tf.function(trained.step, reduce_retracing=True)
    return run(trained, step, range(workers), workers)


def training_of(names: Sequence[str]) -> Callable[..., dict[str, Any]]:
    """A function of the program that trains some of `KINDS`."""

    def training(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
        del folder
        found = {}
        for name in names:
            with strategy.scope():
                trained = Trained(name)

            step = step_of_replicas(strategy, trained.step)
            found[name] = run(trained, step, [rank], strategy.num_replicas_in_sync)
        return found

    return training


# Gradients of gradients, and other layers.


def squared_gradients(ranks: Sequence[int], workers: int) -> list[float]:
    """The gradient of a gradient with respect to weights, through long bags."""
    trained = Trained("weights")
    lengths, ids, weights, labels = batches_of(trained.kind, 0, ranks, workers)
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(weights)
            pooled = trained.looked_up(lengths, ids, weights, True)
            loss = tf.reduce_sum((tf.reduce_sum(pooled, 1) - labels) ** 2)
        (of_weights,) = inner.gradient(loss, [weights])
        squares = tf.reduce_sum(of_weights**2)
    of_squares = outer.gradient(squares, weights)
    ends = np.cumsum(lengths)
    return [float(tf.reduce_sum(one**2)) for one in np.split(of_squares, ends[:-1])]


def second(strategy: Any, rank: int, folder: str) -> list[float]:
    del folder
    with strategy.scope():
        return squared_gradients([rank], strategy.num_replicas_in_sync)


def slots_of(ranks: Sequence[int], workers: int) -> dict[str, Any]:
    """Makes a step of SOK's pooled layer, in which owners send sums over their keys."""
    layer = sok.DistributedEmbedding(
        *("mean", 1000, DIM, 1, 20),
        embedding_initializer=keras.initializers.RandomUniform(-0.5, 0.5, seed=3),
        optimizer=keras.optimizers.SGD(1.0),
        name="sok",
    )
    kind = Kind(container="sparse")
    lengths, ids, _, labels = batches_of(kind, 0, ranks, workers)
    sparse = tf.sparse.reorder(contained(kind, lengths, ids, None))
    with asked() as ways, tf.GradientTape() as tape:
        pooled = layer(sparse)
        loss = tf.reduce_sum(tf.reduce_sum(pooled, [1, 2]) * labels)
        variables = layer.trainable_variables
        gradients = tape.gradient(loss, variables)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    rows = layer.embedding_variable.lookup(tf.range(500, dtype=tf.int64))
    return {"asked": ways, "pooled": pooled.numpy(), "rows": rows.numpy()}


def slots(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    del folder
    with strategy.scope():
        return strategy.run(slots_of, args=([rank], strategy.num_replicas_in_sync))


class InTraining(keras.layers.Layer):
    """Doubles its inputs in training."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return 2 * inputs if training else inputs


def model_of() -> keras.Model:
    """A functional model of three pooled layers and a layer without pooling."""
    long = keras.Input([20], dtype="int64", name="long")
    one = keras.Input([], dtype="int64", name="one")
    uniform = keras.initializers.RandomUniform(-0.5, 0.5, seed=3)

    def layer(name: str, combiner: str | None, **options: Any) -> Any:
        return tf_embed.layers.DynamicEmbedding(
            DIM, combiner=combiner, optimizer="adagrad", initializer=uniform, name=name, **options
        )

    def dense(units: int) -> Any:
        return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(3))

    weights = keras.layers.Rescaling(0.001, offset=0.5)(long)
    parts = [
        layer("sums", "sum", padding_id=3)(long),
        layer("weighted", "sum")(long, InTraining()(weights)),
        layer("learned", "mean")(long, keras.activations.sigmoid(dense(20)(weights))),
        layer("rows", None)(one),
    ]
    model = tf_embed.distributed.Model(
        {"long": long, "one": one}, dense(1)(keras.layers.concatenate(parts))
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def dataset() -> tf.data.Dataset:
    draw = np.random.default_rng(6)
    inputs = {"long": draw.integers(0, 500, [70, 20]), "one": draw.integers(0, 9, [70])}
    labels = draw.normal(size=[70, 1]).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(16).with_options(options)


def fitted(model: keras.Model) -> dict[str, Any]:
    """The results of `fit`, `evaluate` and `predict`, and all rows."""
    all_to_all, traced = Channel.all_to_all, []

    def count(*args: Any) -> Any:
        traced.append(None)
        return all_to_all(*args)

    with mock.patch.object(Channel, "all_to_all", count):
        losses = model.fit(dataset(), epochs=2, verbose=0).history["loss"]
    found = {"losses": losses, "loss": model.evaluate(dataset(), verbose=0)}
    found["predictions"] = model.predict(dataset(), verbose=0)
    for name in ("sums", "weighted", "learned", "rows"):
        variable = model.get_layer(name).variable
        found[name] = variable.lookup(tf.range(500, dtype=tf.int64)).numpy()
    return {**found, "exchanges": len(traced)}


def fit(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    del rank, folder
    with strategy.scope():
        model = model_of()
    return fitted(model)


def sent(strategy: Any, rank: int, folder: str) -> dict[str, int]:
    """The bytes that a worker sends for a batch of long bags: lookup, gradient and step."""
    del folder
    dim, batch, length = 32, 256, 40
    ids = np.random.default_rng(rank).zipf(1.2, [batch, length]) % 1_000_000
    found = {}
    for combiner in ("sum", None):
        with strategy.scope():
            layer = tf_embed.layers.DynamicEmbedding(
                dim, combiner=combiner, optimizer="adagrad", name=f"sent_{combiner}"
            )
            layer.build()
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build(layer.trainable_variables)

        def step(layer: Any = layer, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                out = layer(tf.constant(ids), training=True)
                loss = tf.reduce_sum(out if layer.combiner else tf.reduce_sum(out, 1))
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

        with counted() as bytes_sent:
            strategy.run(step)
        found["bags" if combiner else "rows"] = sum(bytes_sent)
    return found


if __name__ == "__main__":
    others = [name for name in KINDS if name not in QUICK]
    run_as_worker(
        {
            "quick": training_of(QUICK),
            "others": training_of(others),
            "second": second,
            "slots": slots,
            "fit": fit,
            "sent": sent,
        }
    )

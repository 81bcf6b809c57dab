# SPDX-License-Identifier: Apache-2.0
"""Table-batched layers on workers that share their tables, or in one process with all bags.

A program for `worker_programs`; a test runs the same code in its own process as the oracle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.processes.worker_programs import run_as_worker, step_of_replicas
from tf_embed.tbe import (
    BoundsCheckMode,
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    GlobalWeightDecayDefinition,
    LearningRateMode,
    OptimType,
    PoolingMode,
    SparseType,
    TableBatchedEmbeddingBags,
    WeightDecayMode,
)

# Two features share the first table, and are not adjacent.
SPECS = [(50, 4), (None, 2), (90, 6)]
FEATURES = [1, 0, 2, 0]
STEPS, BATCH = 8, 12
SHARDING = tf_embed.distributed.WorkerSharding


@dataclasses.dataclass(frozen=True)
class Kind:
    """A layer, and the kind of its inputs.

    Attributes:
        options: Arguments of the layer.
        range: The number of ids.
        longest: The most ids in a bag.
        is_weighted: Whether ids have weights, with gradients.
        wrapped: Makes the optimizer that trains the tables; None: tables have their own.
    """

    options: dict[str, Any]
    range: int = 50
    longest: int = 5
    is_weighted: bool = False
    wrapped: Callable[[], Any] | None = None


def _uniform() -> list[Any]:
    return [keras.initializers.RandomUniform(-1, 1, seed=seed) for seed in (3, 4, 5)]


_ADAM = {"optimizer": OptimType.ADAM, "learning_rate": 0.05}
_SGD = {"optimizer": OptimType.EXACT_SGD, "learning_rate": 0.1}
_ROWWISE = {"optimizer": OptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
_MEAN = {"pooling_mode": PoolingMode.MEAN}

KINDS = {
    "sum": Kind(_SGD),
    "mean of few ids": Kind({**_ADAM, **_MEAN}, range=4),
    "long bags": Kind(_ROWWISE, longest=40),
    "long bags, mean": Kind({**_ADAM, **_MEAN}, longest=40),
    "single ids": Kind(
        {
            **_ADAM,
            "embedding_specs": [(50, 3), (None, 3), (90, 3)],
            "pooling_mode": PoolingMode.NONE,
        }
    ),
    "weights": Kind(_ADAM, is_weighted=True),
    "weights, mean": Kind({**_SGD, **_MEAN}, is_weighted=True),
    "clipped": Kind({**_SGD, "gradient_clipping": True, "max_gradient": 0.1}, longest=20),
    "remainder": Kind({**_ADAM, "distribution": SHARDING(owner="remainder")}),
    "owner of the user": Kind(
        {**_ADAM, "distribution": SHARDING(owner=lambda keys, workers: keys // 7 % workers)}
    ),
    "counter": Kind(
        {
            **_ROWWISE,
            "weight_decay": 0.01,
            "weight_decay_mode": WeightDecayMode.COUNTER,
            "counter_based_regularization": CounterBasedRegularizationDefinition(
                counter_weight_decay_mode=CounterWeightDecayMode.L2,
                learning_rate_mode=LearningRateMode.TAIL_ID_LR_INCREASE,
                adjustment_ub=1.5,
                counter_halflife=4,
                adjustment_iter=2,
                max_counter_update_freq=3,
            ),
        }
    ),
    "global decay": Kind(
        {
            **_ROWWISE,
            "weight_decay": 0.1,
            "weight_decay_mode": WeightDecayMode.DECOUPLE_GLOBAL,
            "global_weight_decay": GlobalWeightDecayDefinition(start_iter=0, lower_bound=0.0),
        }
    ),
    "half": Kind({**_SGD, "weights_precision": SparseType.BF16}),
    "bounds": Kind({**_ADAM, "bounds_check_mode": BoundsCheckMode.IGNORE}, range=60),
    "wrapped": Kind({"optimizer": None}, wrapped=lambda: keras.optimizers.Adagrad(0.1)),
    "wire bfloat16": Kind(
        {**_SGD, "distribution": SHARDING(wire_dtype="bfloat16")}, range=30, longest=9
    ),
}


def batch_of(kind: Kind, step: int, rank: int, workers: int) -> tuple[list[Any], list[Any], Any]:
    """Ids and weights [n, l] of each feature, and labels [n], of a worker."""
    draw = np.random.default_rng([step, 17])
    ids, weights = [], []
    for _ in range(len(FEATURES)):
        lengths = draw.integers(0, kind.longest + 1, [BATCH])
        ids.append([draw.integers(0, kind.range, n).tolist() for n in lengths])
        weights.append([draw.uniform(-1, 1, n).tolist() for n in lengths])
    labels = draw.normal(size=[BATCH]).astype(np.float32)
    begin, end = rank * BATCH // workers, (rank + 1) * BATCH // workers
    if step == 3:  # one worker has nothing
        begin, end = (0, BATCH) if rank == workers - 1 else (0, 0)
    return ([one[begin:end] for one in ids], [one[begin:end] for one in weights], labels[begin:end])


def batches_of(kind: Kind, step: int, ranks: Sequence[int], workers: int) -> list[Any]:
    """The batch of several workers: ids and weights of each feature, and labels."""
    parts = [batch_of(kind, step, rank, workers) for rank in ranks]
    count = len(parts[0][0])

    def ragged(which: int, dtype: tf.DType) -> list[tf.RaggedTensor]:
        rows = [[bag for part in parts for bag in part[which][i]] for i in range(count)]
        return [tf.ragged.constant(one, dtype, ragged_rank=1) for one in rows]

    labels = tf.constant(np.concatenate([part[2] for part in parts]))
    return [ragged(0, tf.int64), ragged(1, tf.float32), labels]


class Trained:
    """A layer, a dense variable, and the optimizer of both.

    Args:
        name: A name of `KINDS`.
    """

    def __init__(self, name: str) -> None:
        kind = self.kind = KINDS[name]
        options = {
            "embedding_specs": SPECS,
            "feature_table_map": FEATURES,
            "initializer": _uniform(),
            "name": name.replace(" ", "_").replace(",", ""),
            **kind.options,
        }
        self.layer = TableBatchedEmbeddingBags(**options)
        tables = self.layer.feature_table_map
        dims = [self.layer.embedding_specs[table][1] for table in tables]
        self.is_pooled = kind.options.get("pooling_mode") != PoolingMode.NONE
        width = sum(dims) if self.is_pooled else dims[0]
        self.dense = keras.Variable(np.linspace(-1, 1, width, dtype=np.float32), name="dense")
        self.optimizer = keras.optimizers.SGD(0.1)
        if kind.wrapped is not None:
            self.optimizer = tf_embed.DynamicEmbeddingOptimizer(kind.wrapped())
        self.variables = [self.dense, *self.layer.trainable_variables]
        self.optimizer.build(self.variables)
        self.of_weights: list[np.ndarray] = []

    def step(self, ids: list[Any], weights: list[Any], labels: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            values = [one.flat_values for one in weights]
            tape.watch(values)
            given = (
                [one.with_flat_values(v) for one, v in zip(weights, values, strict=True)]
                if self.kind.is_weighted
                else None
            )
            out = self.layer(ids, per_sample_weights=given, training=True)
            products = tf.linalg.matvec(tf.cast(out, tf.float32), self.dense.value)
            if self.is_pooled:
                loss = tf.reduce_sum((products - labels) ** 2) / (BATCH * self.kind.longest**2)
            else:
                loss = tf.reduce_sum((products - 0.5) ** 2) / BATCH
        gradients = tape.gradient(loss, [*self.variables, *values])
        count = len(self.variables)
        self.optimizer.apply_gradients(zip(gradients[:count], self.variables, strict=True))
        of_weights = tf.concat([g for g in gradients[count:] if g is not None] or [[0.0]], 0)
        return loss, tf.reduce_sum(of_weights**2)

    def found(self) -> dict[str, Any]:
        """Rows of all ids, and their optimizer state."""
        found: dict[str, Any] = {"dense": self.dense.numpy()}
        ids = tf.range(50, dtype=tf.int64)
        for number, table in enumerate(self.layer.tables):
            rows, exists = table.lookup(ids, return_exists=True)
            found[f"rows {number}"] = tf.cast(rows, tf.float32).numpy()
            found[f"exists {number}"] = exists.numpy()
            found[f"size {number}"] = int(table.size())
        if self.layer.optimizer is not None:
            trainer = self.layer.trainable_variables[0].own_trainer
            for number, slot in enumerate(trainer.slots):
                found[f"slot {number}"] = slot.lookup(ids).numpy()
            found["state"] = [float(one.numpy()) for one in trainer.state]
        found["faults"] = int(self.layer.bounds_check_warning.numpy())
        return found


def oracle(name: str, workers: int) -> dict[str, Any]:
    """The results of one process with the bags of all workers."""
    trained = Trained(name)
    step = tf.function(trained.step, reduce_retracing=True)
    losses = [
        [float(one) for one in step(*batches_of(trained.kind, number, range(workers), workers))]
        for number in range(STEPS)
    ]
    return {**trained.found(), "losses": np.array(losses)}


def training(strategy: Any, rank: int, folder: str) -> Any:
    del folder
    found = {}
    for name in KINDS:
        with strategy.scope():
            trained = Trained(name)

        step = step_of_replicas(strategy, trained.step)
        workers = strategy.num_replicas_in_sync
        losses = [
            [float(one) for one in step(*batches_of(trained.kind, number, [rank], workers))]
            for number in range(STEPS)
        ]
        found[name] = {**trained.found(), "losses": np.array(losses)}
    return found


def model_of() -> Any:
    """A functional model of a table-batched layer and a layer with its own table."""
    ids = [keras.Input([4], dtype="int64", name=f"ids_{i}") for i in range(len(FEATURES))]
    bags = TableBatchedEmbeddingBags(
        SPECS, FEATURES, initializer=_uniform(), padding_id=-1, **_ADAM, name="bags"
    )
    rows = tf_embed.layers.DynamicEmbedding(
        3, combiner="mean", optimizer="adam", initializer="zeros", name="rows"
    )
    joined = keras.layers.concatenate([bags(ids), rows(ids[0])])
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(3))
    model = tf_embed.distributed.Model(ids, dense(joined))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def dataset() -> tf.data.Dataset:
    draw = np.random.default_rng(6)
    ids = {f"ids_{i}": draw.integers(-1, 50, [70, 4]) for i in range(len(FEATURES))}
    labels = draw.normal(size=[70, 1]).astype(np.float32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(16).with_options(options)


def fitted(model: Any) -> dict[str, Any]:
    """The results of `fit`, `evaluate` and `predict`, and all rows."""
    losses = model.fit(dataset(), epochs=2, verbose=0).history["loss"]
    found = {"losses": losses, "loss": model.evaluate(dataset(), verbose=0)}
    return {**found, **contents(model)}


def contents(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"predictions": model.predict(dataset(), verbose=0)}
    bags = model.get_layer("bags")
    keys = tf.range(50, dtype=tf.int64)
    for number, table in enumerate(bags.tables):
        found[f"rows {number}"] = table.lookup(keys).numpy()
    for number, slot in enumerate(bags.trainable_variables[0].own_trainer.slots):
        found[f"slot {number}"] = slot.lookup(keys).numpy()
    found["steps"] = int(bags.optimizer.iterations.numpy())
    return found


def contents_of(found: dict[str, Any]) -> dict[str, Any]:
    """The part of a result of `fitted` that `contents` returns."""
    return {name: value for name, value in found.items() if not name.startswith("loss")}


def fit(strategy: Any, rank: int, folder: str) -> dict[str, Any]:
    """Trains, and saves in Keras's ways."""
    del rank
    with strategy.scope():
        model = model_of()
    found = fitted(model)
    model.save(f"{folder}/model.keras")
    model.save_weights(f"{folder}/model.weights.h5")
    tf.train.Checkpoint(model=model).write(
        f"{folder}/checkpoint-{strategy.cluster_resolver.task_id}"
    )
    with strategy.scope():
        again = model_of()
    again.load_weights(f"{folder}/model.weights.h5")
    return {"fitted": found, "loaded": contents(again)}


def methods(strategy: Any, rank: int, folder: str) -> list[Any]:
    """The only row of a table, which one of the workers owns, after each method."""
    del rank, folder
    with strategy.scope():
        layer = one_row_layer()
    (table,) = layer.tables
    table.upsert([5], [[9.0, 9.0]])
    layer.split_embedding_weights()[0][...] = 0.5
    found = [table.lookup([5]).numpy().tolist()]
    layer.init_embedding_weights_uniform(-1.0, 1.0)
    return [*found, table.lookup([5]).numpy().tolist(), int(table.size())]


def one_row_layer() -> TableBatchedEmbeddingBags:
    uniform = keras.initializers.RandomUniform(-1.0, 1.0, seed=3)
    return TableBatchedEmbeddingBags([(None, 2)], **_SGD, initializer=uniform, name="one_row")


def local(strategy: Any, rank: int, folder: str) -> Any:
    """Each worker has a local table. Workers call different verbs."""
    del folder
    with strategy.scope():
        layer = TableBatchedEmbeddingBags([(None, 1)], **_SGD, distribution="local", name="local")
    for _ in range(rank + 1):
        layer.tables[0].upsert([rank, 7], [[float(rank)]] * 2)
    return layer(indices=[7, rank], offsets=[0, 2]).numpy().tolist(), int(layer.tables[0].size())


if __name__ == "__main__":
    run_as_worker(globals())

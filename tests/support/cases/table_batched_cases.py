# SPDX-License-Identifier: Apache-2.0
"""Tables, features and batches for the tests of the table-batched layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.cases.tbe_cases import Case
from support.oracles.reference import SEED
from support.oracles.table_batched_oracle import Oracle
from tf_embed import tbe
from tf_embed.tbe import TableBatchedEmbeddingBags

# Two features share the first table, and are not adjacent.
SPECS = [(7, 4), (5, 2), (9, 6)]
FEATURES = [1, 0, 2, 0]
DIMS = [SPECS[table][1] for table in FEATURES]


@dataclasses.dataclass
class Inputs:
    """A batch.

    Attributes:
        indices: [n].
        offsets: [bags + 1].
        weights: The weights of the indices, [n], or None.
        sizes: Number of bags by feature and rank, or None if it is the same for all features.
    """

    indices: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None
    sizes: Any = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a call of the layer or of the oracle."""
        return {
            "indices": self.indices,
            "offsets": self.offsets,
            "per_sample_weights": self.weights,
            "batch_size_per_feature_per_rank": self.sizes,
        }

    def bags(self) -> list[np.ndarray]:
        return np.split(self.indices, self.offsets[1:-1])

    def ragged(self, num_features: int) -> list[tf.RaggedTensor]:
        """The indices of each feature."""
        return self._by_feature(self.indices, num_features)

    def ragged_weights(self, num_features: int) -> list[tf.RaggedTensor]:
        """The weights of each feature's indices."""
        return self._by_feature(self.weights, num_features)

    def _by_feature(self, values: Any, num_features: int) -> list[tf.RaggedTensor]:
        batch = (len(self.offsets) - 1) // num_features
        found = []
        for feature in range(num_features):
            splits = self.offsets[feature * batch : (feature + 1) * batch + 1]
            part = values[splits[0] : splits[-1]]
            found.append(tf.RaggedTensor.from_row_splits(part, splits - splits[0]))
        return found


# Optimizers with slots of every kind, with state that no row has, and with passes over all rows.
SAVED = ("SGD", "Adam, by row", "counter, share", "RowwiseAdagrad, global", "Ensemble")


def random_inputs(
    rng: np.random.Generator,
    batch: int = 3,
    *,
    specs: Sequence[Any] = tuple(SPECS),
    features: Sequence[int] = tuple(FEATURES),
    longest: int = 4,
    weighted: bool = False,
    sizes: Any = None,
    rows: Sequence[int] | None = None,
) -> Inputs:
    """A batch of random bags, some of them empty.

    Args:
        rng: The random generator.
        batch: Number of bags of each feature, unless there are `sizes`.
        specs: The specs of the tables.
        features: The table of each feature.
        longest: The most indices in a bag.
        weighted: Whether the indices have weights.
        sizes: See Inputs.
        rows: For each table, the number of rows to draw indices from. Default: all.
    """
    counts = [batch] * len(features) if sizes is None else [sum(one) for one in sizes]
    lengths = rng.integers(0, longest + 1, sum(counts))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tables = np.repeat(np.repeat(features, counts), lengths).astype(np.int64)
    bounds = np.array(rows if rows is not None else [spec[0] for spec in specs])
    indices = rng.integers(0, bounds[tables])
    weights = rng.integers(-8, 9, len(indices)).astype("f") / 4 if weighted else None
    return Inputs(indices, offsets, weights, sizes)


def first_rows(specs: Sequence[Any] = tuple(SPECS), seed: int = SEED) -> list[np.ndarray]:
    """Random rows for each table."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0.0, 0.5, (spec[0], spec[1])).astype("f") for spec in specs]


def layer_of(
    rows: Sequence[np.ndarray],
    specs: Sequence[Any] = tuple(SPECS),
    features: Sequence[int] | None = tuple(FEATURES),
    keys: Sequence[Any] | None = None,
    **options: Any,
) -> TableBatchedEmbeddingBags:
    """A layer with these rows in its tables."""
    features = None if features is None else list(features)
    layer = TableBatchedEmbeddingBags(list(specs), features, **options)
    layer.build()
    for number, (table, of_table) in enumerate(zip(layer.tables, rows, strict=True)):
        ids = np.arange(len(of_table)) if keys is None else keys[number]
        table.upsert(ids, tf.cast(of_table, table.value_dtype))
    return layer


def pair(**options: Any) -> tuple[TableBatchedEmbeddingBags, Oracle]:
    """A layer and its oracle. Shared options have the layer's names."""
    specs = options.pop("specs", SPECS)
    features = options.pop("features", FEATURES)
    keys = options.pop("keys", None)
    rows = options.pop("rows", None) or first_rows(specs)
    ours = {
        name: options[name]
        for name in ("gradient_clipping", "max_gradient", "learning_rate")
        if name in options
    }
    if "pooling_mode" in options:
        ours["pooling_mode"] = options["pooling_mode"].name.lower()
    tables = options.pop("tables", None)
    oracle = Oracle(specs, features, rows=rows, keys=keys, tables=tables, **ours)
    return layer_of(rows, specs, features, keys, **options), oracle


def rows_of(layer: TableBatchedEmbeddingBags, keys: Sequence[Any] | None = None) -> list[Any]:
    """The rows of each table in float64. Default keys: 0, 1 and so on."""
    found = []
    for number, table in enumerate(layer.tables):
        ids = keys[number] if keys is not None else np.arange(layer.embedding_specs[number][0])
        found.append(tf.cast(table.lookup(ids), tf.float64).numpy())
    return found


def content(layer: TableBatchedEmbeddingBags) -> list[np.ndarray]:
    """The keys, rows and slots of each table, sorted by key."""
    found = []
    for table in layer.tables:
        exported = table.table.export()
        order = np.argsort(exported.keys)
        for part in (exported.keys, exported.values, exported.slots):
            found.append(tf.gather(part, order).numpy())
    return found


def train(layer: TableBatchedEmbeddingBags, optimizer: Any, *calls: Any) -> None:
    """Makes a single step on several calls.

    Args:
        layer: The layer.
        optimizer: A Keras optimizer.
        *calls: For each call, a batch and the gradient of its output.
    """
    with tf.GradientTape() as tape:
        loss = tf.constant(0.0)
        for inputs, factors in calls:
            output = layer(**inputs.arguments, training=True)
            loss += tf.reduce_sum(tf.cast(output, tf.float32) * factors)
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)


def plain() -> keras.optimizers.Optimizer:
    """A model's optimizer, which leaves the tables to the layer's own optimizer."""
    return keras.optimizers.SGD(0.0)


def factors_of(rng: np.random.Generator, shape: Any) -> np.ndarray:
    """A gradient of an output."""
    return rng.integers(-32, 33, shape).astype("f") / 16


TYPES = {
    tbe.SGD: tbe.OptimType.EXACT_SGD,
    tbe.Adagrad: tbe.OptimType.EXACT_ADAGRAD,
    tbe.RowwiseAdagrad: tbe.OptimType.EXACT_ROWWISE_ADAGRAD,
    tbe.Adam: tbe.OptimType.ADAM,
    tbe.LAMB: tbe.OptimType.LAMB,
    tbe.LARS: tbe.OptimType.LARS_SGD,
    tbe.PartialRowwiseAdam: tbe.OptimType.PARTIAL_ROWWISE_ADAM,
    tbe.PartialRowwiseLAMB: tbe.OptimType.PARTIAL_ROWWISE_LAMB,
    tbe.EnsembleRowwiseAdagrad: tbe.OptimType.ENSEMBLE_ROWWISE_ADAGRAD,
    tbe.EmaInplaceRowwiseAdagrad: tbe.OptimType.EMAINPLACE_ROWWISE_ADAGRAD,
}


def settings_of(case: Case, learning_rate: float = 0.05) -> dict[str, Any]:
    """The layer's arguments for the optimizer of a case."""
    settings = dict(case.options)
    if settings.pop("use_rowwise_bias_correction", False):
        settings["extra_optimizer_config"] = tbe.UserEnabledConfigDefinition(True)
    return {"optimizer": TYPES[case.cls], "learning_rate": learning_rate, **settings}


def steps_of(count: int, seed: int = SEED, **options: Any) -> list[tuple[Inputs, np.ndarray]]:
    """Batches and gradients of their outputs. Each table's last row occurs only in later steps."""
    rng = np.random.default_rng(seed)
    steps = []
    for step in range(count):
        rows = [spec[0] - (step < count // 2) for spec in SPECS]
        inputs = random_inputs(rng, rows=rows, weighted=True, **options)
        steps.append((inputs, factors_of(rng, (3, sum(DIMS)))))
    return steps

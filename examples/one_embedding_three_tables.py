# SPDX-License-Identifier: Apache-2.0
"""The examples of OneEmbedding's documentation, on Keras: models over the rows of three tables.

The first model is an MLP over rows of the same dim. The second (--columns) has rows of two columns,
the factors and the single weight of an id, for the three parts of a DeepFM (Guo et al., 2017): a
linear model of the weights, a factorization machine and an MLP of the factors.

It trains the same model over each of the three stores. Losses must be equal, bit for bit, because a
store decides only the place of rows.

    python examples/one_embedding_three_tables.py --ids 39884407 39043 17289 --dim=128 --steps=100
    python examples/one_embedding_three_tables.py --columns --ids 39884407 39043 17289 --dim=10 \
        --steps=100
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from tf_embed import one_embedding

SEED = 7
NUM_TABLES = 3
HIGHS = (0.1, 0.05, 0.15)  # the largest initial weight of each table
STORES = ("device_mem", "cached_host_mem", "cached_ssd")


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", action="store_true", help="rows of factors and a weight")
    parser.add_argument(
        "--dim", type=int, default=16, help="weights or factors in a row; upstream: 128, or 10"
    )
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 32], help="sizes of layers")
    parser.add_argument(
        "--ids", type=int, nargs=NUM_TABLES, default=[20_000] * NUM_TABLES, help="ids of each table"
    )
    parser.add_argument("--batch", type=int, default=512, help="lines of a batch")
    parser.add_argument("--steps", type=int, default=20, help="batches to train on")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--cache-budget-mb", type=int, default=1, help="MiB of rows in the cache")
    parser.add_argument("--capacity", type=int, default=100_000, help="rows of all tables")
    parser.add_argument("--path", type=pathlib.Path, help="folder for rows on disk")
    return parser.parse_args(arguments)


def store_of(kind: str, path: str, options: argparse.Namespace) -> dict[str, Any]:
    """The options of a store. The optimizer is SGD, so a row has only weights."""
    given = {"persistent_path": path, "capacity": options.capacity, "size_factor": 1}
    if kind == "device_mem":
        return one_embedding.make_device_mem_store_options(**given)
    given["cache_budget_mb"] = options.cache_budget_mb
    if kind == "cached_host_mem":
        return one_embedding.make_cached_host_mem_store_options(**given)
    return one_embedding.make_cached_ssd_store_options(**given)


def embedding_of(store: dict[str, Any], options: argparse.Namespace) -> Any:
    """The layer of the documentation: three tables of the same dim, each with its initial rows.

    With columns, each column of each table has separate initial weights.
    """
    uniform = [one_embedding.make_uniform_initializer(low=-high, high=high) for high in HIGHS]
    if options.columns:
        normal = one_embedding.make_normal_initializer(mean=0.0, std=0.01)
        tables = [
            one_embedding.make_table(
                [one_embedding.make_column_options(column) for column in (of_factors, normal)]
            )
            for of_factors in uniform
        ]
    else:
        tables = [one_embedding.make_table_options(initializer) for initializer in uniform]
    layer = one_embedding.MultiTableEmbedding
    if options.columns:
        layer = one_embedding.MultiTableMultiColumnEmbedding
    return layer(
        name="my_embedding",
        embedding_dim=[options.dim, 1] if options.columns else options.dim,
        dtype="float32",
        key_type="int64",
        tables=tables,
        store_options=store,
        seed=SEED,
        optimizer=keras.optimizers.SGD(options.learning_rate),
    )


def model_of(embedding: Any, options: argparse.Namespace) -> keras.Model:
    """An MLP over the concatenated rows of a line, or a DeepFM over their columns."""
    ids = keras.Input([NUM_TABLES], dtype="int64")
    rows = embedding(ids)
    factors, others = rows, []
    if options.columns:
        factors = rows[..., : options.dim]
        linear = keras.ops.sum(rows[..., options.dim :], axis=1)
        # Products of each pair of rows, summed: half of the square of the sum without the squares.
        squares = keras.ops.sum(factors, axis=1) ** 2 - keras.ops.sum(factors**2, axis=1)
        others = [linear, 0.5 * keras.ops.sum(squares, axis=1, keepdims=True)]
    hidden = keras.layers.Reshape([NUM_TABLES * options.dim])(factors)
    for size in options.hidden:
        hidden = keras.layers.Dense(size, activation="relu")(hidden)
    outputs = keras.layers.Dense(1)(hidden)
    return keras.Model(ids, keras.layers.add([outputs, *others]) if others else outputs)


def batches_of(options: argparse.Namespace) -> tf.data.Dataset:
    """Ids int64 [batch, 3], always the same, and labels float32 [batch, 1]."""
    rng = np.random.default_rng(SEED)
    ids = rng.integers(0, options.ids, [options.steps * options.batch, NUM_TABLES], np.int64)
    labels = (ids.sum(1, keepdims=True) % 2).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(options.batch)


def train(kind: str, path: str, options: argparse.Namespace) -> list[float]:
    """Trains a new model over a store. Returns the loss of each step."""
    keras.utils.set_random_seed(SEED)
    embedding = embedding_of(store_of(kind, path, options), options)
    model = model_of(embedding, options)
    model.compile(keras.optimizers.SGD(options.learning_rate), "mse")
    losses = []
    for ids, labels in embedding.prefetch(batches_of(options)):
        model.reset_metrics()  # otherwise Keras returns the mean of all steps
        losses.append(float(model.train_on_batch(ids, labels)))
    rows = int(embedding.size())
    print(f"{kind:15}  first loss {losses[0]:.6f}  last {losses[-1]:.6f}  rows {rows:,}")
    if kind == "cached_ssd":
        demoted = sum(table.stats()["demoted"] for table in embedding.row_tables)
        print(f"{'':15}  {demoted:,} rows went to the disk")
    return losses


def main(arguments: list[str] | None = None) -> bool:
    """Trains over each store. Returns whether all losses are equal."""
    options = options_of(arguments)
    with tempfile.TemporaryDirectory(dir=options.path) as folder:
        seen = [train(kind, os.path.join(folder, kind), options) for kind in STORES]
    equal = all(losses == seen[0] for losses in seen)
    print("losses are equal" if equal else "losses differ")
    return equal


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)

# SPDX-License-Identifier: Apache-2.0
"""Steps of Keras's `fit`: models with tables, beside models with keras.layers.Embedding.

    python benchmarks/keras_fit.py [--batch=2048] [--rounds=7] [--only="NAME;NAME"]

A model of clicks: 26 columns of ids, 13 numbers, layers of 512, 256 and 1. Each column has 100,000
ids, by a Zipf distribution, and rows of 16. Adam trains all. The models run in turns in one
process, each for some steps of the same data; a ratio is the median of the rounds' ratios.

A model of static embeddings has a gradient of all rows in XLA, which is why it is slow on a CPU.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import machine
import tf_embed
from ids import Zipf
from tf_embed.layers import DynamicEmbedding
from timing import time_rounds

COLUMNS, NUMBERS, IDS, DIM = 26, 13, 100_000, 16
STEPS = 12
BASE = "26 Embedding, XLA"


def clicks(rows_of: Callable[[Any], list[Any]], kind: Any, **compiled: Any) -> keras.Model:
    """A model.

    Args:
        rows_of: From ids [batch, 26] to tensors whose last axes are joined.
        kind: keras.Model or tf_embed.Model.
        **compiled: Arguments of `compile`.
    """
    ids, numbers = keras.Input([COLUMNS], dtype="int64"), keras.Input([NUMBERS])
    joined = keras.layers.Concatenate()([*rows_of(ids), numbers])
    for width in (512, 256):
        joined = keras.layers.Dense(width, "relu")(joined)
    model = kind([ids, numbers], keras.layers.Dense(1, "sigmoid")(joined))
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", **compiled)
    return model


def each_column(layer: Callable[[], Any]) -> Callable[[Any], list[Any]]:
    """A layer for each column."""
    return lambda ids: [layer()(ids[:, i]) for i in range(COLUMNS)]


def all_columns(layer: Callable[[], Any]) -> Callable[[Any], list[Any]]:
    """A layer for all columns, whose ids do not overlap."""

    def rows_of(ids: Any) -> list[Any]:
        offsets = keras.ops.arange(COLUMNS, dtype="int64") * IDS
        return [keras.layers.Flatten()(layer()(ids + offsets))]

    return rows_of


def models() -> dict[str, keras.Model]:
    def dynamic() -> Any:
        return DynamicEmbedding(DIM, optimizer="adam")

    def static(columns: int = 1) -> Any:
        return keras.layers.Embedding(columns * IDS, DIM)

    each, together = each_column(dynamic), all_columns(dynamic)
    static_each = each_column(static)
    static_together = all_columns(lambda: static(COLUMNS))
    return {
        BASE: clicks(static_each, keras.Model, jit_compile=True),
        "26 Embedding": clicks(static_each, keras.Model, jit_compile=False),
        "1 Embedding, XLA": clicks(static_together, keras.Model, jit_compile=True),
        "1 Embedding": clicks(static_together, keras.Model, jit_compile=False),
        "26 DynamicEmbedding, keras.Model": clicks(each, keras.Model),
        "26 DynamicEmbedding, tf_embed.Model": clicks(each, tf_embed.Model, jit_compile=False),
        "26 DynamicEmbedding, tf_embed.Model, XLA": clicks(each, tf_embed.Model, jit_compile=True),
        "1 DynamicEmbedding, keras.Model": clicks(together, keras.Model),
        "1 DynamicEmbedding, tf_embed.Model, XLA": clicks(
            together, tf_embed.Model, jit_compile=True
        ),
        "no embedding, XLA": clicks(lambda ids: [], keras.Model, jit_compile=True),
        "no embedding": clicks(lambda ids: [], keras.Model, jit_compile=False),
    }


def data(batch: int) -> tf.data.Dataset:
    """The batches of a call of `fit`."""
    size = batch * STEPS
    ids = Zipf(IDS, 1.05).numbers(size * COLUMNS).reshape(size, COLUMNS)
    numbers = tf.random.stateless_normal([size, NUMBERS], [1, 2])
    labels = tf.cast(tf.random.stateless_uniform([size, 1], [3, 4]) < 0.3, tf.float32)
    return tf.data.Dataset.from_tensor_slices(((ids, numbers), labels)).batch(batch).cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="names of models, separated by semicolons")
    arguments = parser.parse_args()
    batches = data(arguments.batch).prefetch(2)
    only = (arguments.only or "").split(";")
    calls = {
        name: functools.partial(model.fit, batches, verbose=0)
        for name, model in models().items()
        if arguments.only is None or name == BASE or name in only
    }
    watch = machine.LoadWatch()
    found = time_rounds(calls, tuple, rounds=arguments.rounds, warm_up=2)
    print(f"Milliseconds of a step of {arguments.batch:,} rows, and the ratio to {BASE!r}\n")
    print("| model | ms | times as fast |\n|---|---|---|")
    for name in calls:
        ratio = found.ratio(BASE, name)
        print(f"| {name} | {found.median(name) / STEPS * 1e3:.1f} | {ratio:.2f} |")
    described = ", ".join(machine.description().values())
    print(f"\n{described}; other processes kept {watch.load().others:.1f} cores busy")


if __name__ == "__main__":
    main()

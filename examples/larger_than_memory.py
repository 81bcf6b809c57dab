# SPDX-License-Identifier: Apache-2.0
"""Trains a table that is larger than its memory bound: the other rows are on disk.

The ids of a batch follow Zipf's law, like clicks on items: few ids are popular, and most are rare.
So a cache of some of the rows has nearly all rows that a step needs, and the dataset prefetches the
others while the previous step computes.

    python examples/larger_than_memory.py --path=/mnt/nvme --host-bytes=16777216 --plot=run.png

With `--compare` the same model is trained a second time with all rows in memory. Losses and rows
must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tf_embed

DIM, FIELDS, BATCH = 16, 8, 512
ZIPF = 1.05
SEED = 7


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="how many ids there are")
    parser.add_argument("--steps", type=int, default=1000, help="how many batches to train on")
    parser.add_argument("--host-bytes", type=int, default=16 * 2**20, help="bytes of the cache")
    parser.add_argument("--path", type=pathlib.Path, help="folder for rows on disk")
    parser.add_argument("--log-dir", type=pathlib.Path, help="folder for TensorBoard")
    parser.add_argument("--plot", type=pathlib.Path, help="PNG to draw; needs matplotlib")
    parser.add_argument("--compare", action="store_true", help="train in memory as well")
    parser.add_argument("--verbose", type=int, default=1, help="0 hides the progress bar")
    return parser.parse_args(arguments)


def ids_of(step: tf.Tensor, rows: int) -> tf.Tensor:
    """The ids of a batch, int64 [BATCH, FIELDS]: 64-bit hashes of ranks by Zipf's law."""
    uniform = tf.random.stateless_uniform([BATCH, FIELDS], [SEED, step], dtype=tf.float64)
    # The inverse of the distribution function of a continuous power law from 1 to rows + 1.
    power = 1.0 - ZIPF
    rank = (1.0 + uniform * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    return tf.cast(rank, tf.int64) * 0x61C8864680B583EB  # odd, so different ranks stay different


def batch_of(step: tf.Tensor, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids, and labels float32 [BATCH, 1]. Each id has a fixed effect, which the rows learn."""
    ids = ids_of(step, rows)
    effects = tf.cast(tf.bitwise.right_shift(ids, 40) % 2001, tf.float32) / 1000.0 - 1.0
    chance = tf.sigmoid(2.0 * tf.reduce_sum(effects, 1, keepdims=True))
    drawn = tf.random.stateless_uniform([BATCH, 1], [SEED + 1, step])
    return ids, tf.cast(drawn < chance, tf.float32)


def dataset_of(rows: int, steps: int) -> tf.data.Dataset:
    """`steps` batches, always the same."""
    return tf.data.Dataset.range(steps).map(lambda step: batch_of(step, rows))


class Trace(keras.callbacks.Callback):
    """Records the loss, the hit rate and the time of each step, and at times the bytes by tier."""

    def __init__(self, embedding: tf_embed.layers.DynamicEmbedding, every: int) -> None:
        super().__init__()
        self.embedding, self.every = embedding, every
        self.tiers: list[tuple[int, int, int]] = []  # step, bytes of rows in memory, bytes on disk
        self.losses: list[float] = []
        self.hit_rates: list[float] = []
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])
        self.hit_rates.append(logs.get("cache_hit_rate", float("nan")))
        self.times.append(time.perf_counter())
        if (batch + 1) % self.every == 0:
            host, disk = tier_bytes(self.embedding)
            self.tiers.append((batch + 1, host, disk))

    @property
    def steps_per_second(self) -> float:
        """The rate without the first step, which traces the graph."""
        if len(self.times) < 2:
            return 0.0
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


def train(
    options: argparse.Namespace, storage: tf_embed.Storage | None
) -> tuple[tf_embed.layers.DynamicEmbedding, Trace]:
    """Trains a model, with its rows on disk or all in memory."""
    keras.utils.set_random_seed(SEED)
    embedding = tf_embed.layers.DynamicEmbedding(
        DIM, optimizer="adagrad", storage=storage, name="items"
    )
    model = keras.Sequential(
        [
            keras.Input([FIELDS], dtype="int64"),
            embedding,
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", jit_compile=False)
    every = max(1, options.steps // 50)
    trace = Trace(embedding, every)
    log_dir = options.log_dir if storage is not None else None
    metrics = tf_embed.callbacks.TableMetrics(log_dir=log_dir, every=every)
    dataset = embedding.prefetch(dataset_of(options.rows, options.steps))
    model.fit(dataset, shuffle=False, callbacks=[metrics, trace], verbose=options.verbose)
    return embedding, trace


def tier_bytes(embedding: tf_embed.layers.DynamicEmbedding) -> tuple[int, int]:
    """Bytes of rows in memory, and on disk."""
    tiers = {tier.name: tier.bytes for tier in embedding.memory_report().tiers}
    return tiers.get("host", 0), tiers.get("disk", 0)


def sorted_rows(layer: tf_embed.layers.DynamicEmbedding) -> tuple[np.ndarray, np.ndarray]:
    """Keys in order, and their rows."""
    keys, rows = (part.numpy() for part in layer.variable.export())
    return np.sort(keys), rows[np.argsort(keys)]


def is_equal(one: tuple[Any, Trace], other: tuple[Any, Trace]) -> tuple[bool, bool]:
    """Whether losses and rows of two runs are equal."""
    pairs = zip(sorted_rows(one[0]), sorted_rows(other[0]), strict=True)
    rows = all(np.array_equal(mine, its) for mine, its in pairs)
    return one[1].losses == other[1].losses, rows


def plot(path: pathlib.Path, trace: Trace, heading: str) -> None:
    """Draws hit rate, speed and bytes by tier over the steps."""
    import matplotlib

    matplotlib.use("Agg")  # a file, not a window; before pyplot is imported
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(3, sharex=True, figsize=(8, 8), layout="constrained")
    above, middle, below = panels
    figure.suptitle(heading)
    steps = np.arange(1, len(trace.times) + 1)
    above.plot(steps, 100 * np.array(trace.hit_rates))
    above.set_ylabel("cache hit rate, %")
    above.set_ylim(0, 102)
    width = max(1, len(steps) // 50)
    speeds = width / (np.array(trace.times[width:]) - np.array(trace.times[:-width]))
    middle.plot(steps[width:], speeds)
    middle.set_ylabel("steps per second")
    middle.set_ylim(bottom=0)
    noted, host, disk = np.array(trace.tiers, np.float64).reshape([-1, 3]).T
    below.plot(noted, host / 2**20, label="cache in memory")
    below.plot(noted, disk / 2**20, label="disk")
    below.set_ylabel("MiB")
    below.set_ylim(bottom=0)
    below.set_xlabel("step")
    below.legend()
    for axes in panels:
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(options: argparse.Namespace, path: pathlib.Path) -> bool:
    """Trains and prints the results. Returns False if there was a comparison that differed."""
    storage = tf_embed.Storage(host_bytes=options.host_bytes, path=path)
    layer, trace = train(options, storage)
    stats = layer.variable.stats()
    rate = stats["cache_hit_rate"]
    print(f"steps/s         {trace.steps_per_second:.1f}")
    print(f"cache hit rate  {'none' if rate is None else f'{rate:.2%}'}")
    print(f"loss            {trace.losses[-1]:.4f}")
    print(layer.memory_report())
    if options.plot is not None:
        heading = f"{stats['rows']:,} rows, {stats['cache_rows']:,} of them in the cache"
        plot(options.plot, trace, heading)
        print(f"drawn in {options.plot}")
    if not options.compare:
        return True
    in_memory = train(options, None)
    losses, rows = is_equal((layer, trace), in_memory)
    print(f"in memory       {in_memory[1].steps_per_second:.1f} steps/s")
    print(f"losses equal    {'yes' if losses else 'NO'}")
    print(f"rows equal      {'yes' if rows else 'NO'}")
    return losses and rows


def main() -> None:
    """Trains, and fails if a comparison does."""
    options = options_of()
    if options.path is not None:
        equal = run(options, options.path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            equal = run(options, pathlib.Path(folder))
    if not equal:
        raise SystemExit("The run with rows on disk differs from the one in memory.")


if __name__ == "__main__":
    main()

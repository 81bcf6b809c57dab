# SPDX-License-Identifier: Apache-2.0
"""Kill a training process whenever you like: the next process gets the same result, bit for bit.

    python examples/kill_and_resume.py

A child process trains undisturbed. Others train the same model and are killed at random moments, by
SIGKILL, which no process can catch. Each resumes from the last checkpoint of the previous process,
and the last process finishes. Then the loss of every step, all rows and dense weights, and their
optimizer slots are compared. This is done in two ways:

  loop  a custom loop and a tf.train.CheckpointManager; the model's optimizer trains the tables;
  fit   model.fit and tf_embed.callbacks.BackupAndRestore; each table has its own optimizer.

Three things make it exact. A checkpoint holds everything that training changes, including the
number of the step. A batch is a function of that number. And a new row is a function of its id: it
is drawn from (seed, table, id), not from a generator whose state would have to be saved.

The program ends with "resumed == unbroken", or with a sentence that says which values differ and
exit status 1.
"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import tf_embed

_KILLS = flags.DEFINE_integer(
    "kills", 3, "Number of children to kill each way.", lower_bound=1, upper_bound=9
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "build/kill_and_resume", "Folder for checkpoints.")
_CHILD = flags.DEFINE_list("child", None, "For a child: method and tables, see `train`.")

STEPS, SAVE_STEPS = 200, 10
TABLES = ("user", "item")

# Called after each step with its number, from 1, and a loss.
Report = Callable[[int, float], None]


# --- The child: training that continues from the last checkpoint ----------------------------------


def batch_of(step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ids and clicks of a step, from its number. Each step has new ids."""
    rng = np.random.default_rng([2026, step])
    user, item = (10 * step + rng.integers(5000, size=512) for _ in TABLES)
    return {"user": user, "item": item}, (user % 7 + item % 5 > 5).astype(np.float32)


def make_model(tables: str) -> keras.Model:
    """A model. Its optimizer ("wrapper") or the tables' "own" optimizers train the tables."""
    keras.utils.set_random_seed(1)
    own = "adam" if tables == "own" else None
    ids = {name: keras.Input((), dtype="int64", name=name) for name in TABLES}
    rows = [
        tf_embed.layers.DynamicEmbedding(16, optimizer=own, name=f"{name}_table")(ids[name])
        for name in TABLES
    ]
    hidden = keras.layers.Dense(32, "relu")(keras.layers.Concatenate()(rows))
    model = keras.Model(ids, keras.layers.Dense(1, "sigmoid")(hidden))
    adam = keras.optimizers.Adam(0.01)
    wrapper = tf_embed.DynamicEmbeddingOptimizer
    model.compile(adam if tables == "own" else wrapper(adam), "binary_crossentropy")
    # Build now and not at the first step, so that a checkpoint finds its variables at once.
    model.optimizer.build(model.trainable_variables)
    return model


def train_in_loop(model: keras.Model, folder: pathlib.Path, report: Report) -> None:
    """Trains in a custom loop. TensorFlow renames a checkpoint into place when it is complete."""
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    for step in range(int(model.optimizer.iterations), STEPS):
        model.reset_metrics()  # otherwise the loss would be the mean of all steps
        report(step + 1, model.train_on_batch(*batch_of(step)))
        if (step + 1) % SAVE_STEPS == 0:
            manager.save(checkpoint_number=step + 1)


def train_by_fit(model: keras.Model, folder: pathlib.Path, report: Report) -> None:
    """Trains by `fit`, with a backup after each epoch."""
    backup = Backup(folder / "backup", delete_checkpoint=False)

    def batches() -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        # Not from `iterations`: a step may count itself before it has fetched its batch.
        for step in range(backup.first_step, STEPS):
            yield batch_of(step)

    def report_step(batch: int, logs: dict[str, float]) -> None:
        report(int(model.optimizer.iterations), logs["loss"])

    ids = tf.TensorSpec([None], tf.int64)
    spec = (dict.fromkeys(TABLES, ids), tf.TensorSpec([None], tf.float32))
    model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=spec),
        epochs=STEPS // SAVE_STEPS,
        steps_per_epoch=SAVE_STEPS,
        shuffle=False,
        verbose=0,
        callbacks=[backup, keras.callbacks.LambdaCallback(on_train_batch_end=report_step)],
    )


class Backup(tf_embed.callbacks.BackupAndRestore):
    """Backups that survive a kill while they are written, and the step to resume from.

    Attributes:
        first_step: the step at which training resumes, once it has begun.
    """

    first_step = 0

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.first_step = int(self.model.optimizer.iterations)


def state_of(model: keras.Model) -> dict[str, np.ndarray]:
    """The state that training changes: rows and slots in the order of keys, and the dense part."""
    state = {}
    for name in TABLES:
        keys, rows, slots = model.get_layer(f"{name}_table").variable.table.export()[:3]
        order = np.argsort(keys)
        for what, values in (("keys", keys), ("rows", rows), ("slots", slots)):
            state[f"{name} {what}"] = values.numpy()[order]
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    weights = [weight for layer in dense for weight in layer.weights]
    for number, variable in enumerate([*weights, *model.optimizer.variables]):
        state[f"dense {number}"] = np.asarray(variable)
    return state


def train(method: str, tables: str, folder: pathlib.Path, report: Report) -> None:
    """Trains to the end, from the last checkpoint in `folder`, if any.

    Args:
        method: "loop" or "fit".
        tables: "wrapper" or "own".
        folder: for checkpoints, and for end.npz with the state at the end.
        report: called after each step.
    """
    tf.config.experimental.enable_op_determinism()  # the same sums in the same order
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(tables)
    {"loop": train_in_loop, "fit": train_by_fit}[method](model, folder, report)
    np.savez(folder / "end.npz", **state_of(model))


# --- The parent: children, kills, and the comparison ----------------------------------------------


def run_child(
    method: str, tables: str, folder: pathlib.Path, kill_after: int | None = None
) -> dict[int, float]:
    """Runs a child to its end, or for `kill_after` steps. Returns the losses that it reported."""
    command = [sys.executable, __file__, f"--child={method},{tables}", f"--output_dir={folder}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    losses: dict[int, float] = {}
    for line in child.stdout:
        step, loss = line.split()
        losses[int(step)] = float.fromhex(loss)
        if len(losses) == kill_after:
            time.sleep(random.uniform(0.0, 0.03))  # somewhere in a later step, or in a save
            child.kill()
    status = child.wait()
    require(kill_after is not None or status == 0, f"a child ended with exit status {status}.")
    return losses


def require(holds: bool, sentence: str) -> None:
    """Ends the program with a sentence and exit status 1 unless a check holds."""
    if not holds:
        raise SystemExit("FAILED: " + sentence)


def require_same_state(unbroken: pathlib.Path, resumed: pathlib.Path) -> None:
    with np.load(unbroken / "end.npz") as one, np.load(resumed / "end.npz") as two:
        require(one.files == two.files, "the states have different parts.")
        for name in one.files:
            require(np.array_equal(one[name], two[name]), f"{name} differs.")
        rows = sum(len(one[f"{name} keys"]) for name in TABLES)
        print(f"  the same: {STEPS} losses, {rows:,} rows with their slots, the dense weights")


def compare(method: str, tables: str, output_dir: pathlib.Path) -> None:
    unbroken, resumed = output_dir / f"{method}_unbroken", output_dir / f"{method}_resumed"
    for folder in (unbroken, resumed):
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{method}\n  unbroken", flush=True)
    losses = run_child(method, tables, unbroken)
    require(list(losses) == list(range(1, STEPS + 1)), "the unbroken run left steps out.")
    for number in range(_KILLS.value + 1):
        last = number == _KILLS.value
        kill_after = None if last else random.randrange(SAVE_STEPS, STEPS // (_KILLS.value + 1))
        some = run_child(method, tables, resumed, kill_after)
        end = "and came to its end" if last else "and was killed"
        print(f"  a child made steps {min(some)} to {max(some)} {end}", flush=True)
        for step, loss in some.items():
            require(loss == losses[step], f"the loss of step {step} is {loss}, not {losses[step]}.")
    require(max(some) == STEPS, "the last child left steps out.")
    require_same_state(unbroken, resumed)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"there are only flags. Received: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)  # importing TensorFlow lowers it to INFO
    output_dir = pathlib.Path(_OUTPUT_DIR.value)
    if _CHILD.value:
        train(
            *_CHILD.value, output_dir, lambda step, loss: print(step, float(loss).hex(), flush=True)
        )
        return
    compare("loop", "wrapper", output_dir)
    compare("fit", "own", output_dir)
    print("resumed == unbroken")


if __name__ == "__main__":
    app.run(main)

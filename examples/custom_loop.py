# SPDX-License-Identifier: Apache-2.0
"""A custom training loop: two tables, ids that appear and leave, accumulation, checkpoints.

    python examples/custom_loop.py
    python examples/custom_loop.py --steps=1500    # continues where the first run ended

Predicts the clicks of users on items in a shop that changes: at every step some items and users
appear, and others leave. The loop calls a tf.function over two `tf_embed.Variable`s and a small
Keras model:

  - `embedding_lookup` puts the rows on a tf.GradientTape like any variable;
  - a step consists of several micro-batches, whose gradients are added up by hand;
  - the learning rate follows a Keras schedule, for the tables too;
  - a tf.train.CheckpointManager saves rows, optimizer slots, dense weights and the step; after a
    restart, even after a kill, the program resumes from the last checkpoint;
  - discontinued items are removed, so their table stops growing.

The clicks are drawn from chances that this file makes up, so the best possible loss is known: it is
printed as "best".
"""

import os
import pathlib

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags, logging

import tf_embed

_STEPS = flags.DEFINE_integer("steps", 1000, "Steps in all, earlier runs included.", lower_bound=1)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "build/custom_loop", "Folder for checkpoints.")

DIM = 16
MICRO_BATCHES, MICRO_BATCH_SIZE = 4, 512
REPORT_STEPS, SAVE_STEPS, REMOVE_STEPS = 100, 100, 20


# --- A changing shop ------------------------------------------------------------------------------

USERS, NEW_USERS = 2000, 1  # present at a time, and new at each step
ITEMS, NEW_ITEMS = 500, 2
PHASES = np.sqrt([2.0, 3.0, 5.0, 7.0])  # irrational: their multiples, modulo 1, look random


def ids_of(numbers: np.ndarray) -> np.ndarray:
    """Realistic ids: 64 bits, unordered. Multiplying by an odd number modulo 2**64 is bijective."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def tastes(numbers: np.ndarray) -> np.ndarray:
    """The tastes of users or the traits of items, `numbers.shape + [4]`, each from -1 to 1."""
    return 2.0 * (numbers[..., None] * PHASES % 1.0) - 1.0


def batch_of(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The clicks of a step, a function of its number, so a resumed run reads the same clicks.

    Returns:
        Users, items and clicks, each `[MICRO_BATCHES, MICRO_BATCH_SIZE]`, and the best expected
        mean loss on them, the entropy of the clicks.
    """
    rng = np.random.default_rng([2026, step])
    shape = (MICRO_BATCHES, MICRO_BATCH_SIZE)
    users = NEW_USERS * step + rng.integers(USERS, size=shape)
    items = NEW_ITEMS * step + rng.integers(ITEMS, size=shape)
    logits = 3.0 * np.sum(tastes(users) * tastes(items + 10**6), axis=-1)
    chances = 1.0 / (1.0 + np.exp(-logits))
    clicks = (rng.random(shape) < chances).astype(np.float32)
    best = -np.mean(chances * np.log(chances) + (1.0 - chances) * np.log(1.0 - chances))
    return ids_of(users), ids_of(items), clicks, float(best)


def items_gone(step: int) -> np.ndarray:
    """Ids of the items that left in the last REMOVE_STEPS steps."""
    first = max(0, step - REMOVE_STEPS)
    return ids_of(np.arange(NEW_ITEMS * first, NEW_ITEMS * step))


# --- The model and one step -----------------------------------------------------------------------


class Clicks(tf.Module):
    """Two tables, and a dense part that turns a row of each into the logit of a click."""

    def __init__(self):
        super().__init__()
        normal = keras.initializers.RandomNormal(stddev=0.1, seed=1)
        self.user = tf_embed.Variable(dim=DIM, initializer=normal, name="user")
        self.item = tf_embed.Variable(dim=DIM, initializer=normal, name="item")
        self.dense = keras.Sequential(
            [
                keras.Input((3 * DIM,)),
                keras.layers.Dense(32, "relu", kernel_initializer=keras.initializers.HeNormal(2)),
                keras.layers.Dense(1, kernel_initializer=keras.initializers.HeNormal(3)),
            ]
        )
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, decay_steps=1000, alpha=0.2, warmup_target=0.01, warmup_steps=50
        )
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(rate))
        self.variables_to_train = [
            *self.user.trainable_variables,
            *self.item.trainable_variables,
            *self.dense.trainable_variables,
        ]
        # Build now and not at the first step, so that a checkpoint finds its variables at once.
        self.optimizer.build(self.variables_to_train)

    def loss(self, users: tf.Tensor, items: tf.Tensor, clicks: tf.Tensor) -> tf.Tensor:
        user = tf_embed.embedding_lookup(self.user, users)
        item = tf_embed.embedding_lookup(self.item, items)
        logits = self.dense(tf.concat([user, item, user * item], axis=-1))[:, 0]
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(clicks, logits))

    @tf.function
    def train_step(self, users: tf.Tensor, items: tf.Tensor, clicks: tf.Tensor) -> tf.Tensor:
        """Makes a step of the optimizer; returns its mean loss."""
        losses, gradients = [], []
        for part in range(MICRO_BATCHES):  # unrolled when this is traced
            with tf.GradientTape() as tape:
                losses.append(self.loss(users[part], items[part], clicks[part]) / MICRO_BATCHES)
            gradients.append(tape.gradient(losses[-1], self.variables_to_train))
        sums = [added(parts) for parts in zip(*gradients, strict=True)]
        self.optimizer.apply(sums, self.variables_to_train)
        return tf.add_n(losses)


def added(parts: list[tf.Tensor | tf.IndexedSlices]) -> tf.Tensor | tf.IndexedSlices:
    """The sum of a variable's gradients.

    The gradient of a table is a list of ids and of gradients of their rows. Such lists are added by
    concatenation: the table sums the gradients of equal ids, in a single pass a step.
    tf.add_n would make a dense tensor of them, which has no ids.
    """
    if not isinstance(parts[0], tf.IndexedSlices):
        return tf.add_n(parts)
    values = tf.concat([part.values for part in parts], axis=0)
    ids = tf.concat([part.indices for part in parts], axis=0)
    return tf.IndexedSlices(values, ids, parts[0].dense_shape)


# --- The loop -------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"there are only flags. Received: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)  # importing TensorFlow lowers it to INFO
    folder = str(pathlib.Path(_OUTPUT_DIR.value))
    model = Clicks()
    # A tf.Module carries its tables, layers and optimizer into the checkpoint.
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        print(f"goes on from {manager.latest_checkpoint}")

    step = int(model.optimizer.iterations)
    if step >= _STEPS.value:
        print(f"{step} steps are made already: ask for more --steps, or remove {folder}")
        return
    print("   step    loss    best    rate   rows of users   of items")
    losses, bests = [], []
    while step < _STEPS.value:
        users, items, clicks, best = batch_of(step)
        losses.append(model.train_step(users, items, clicks))
        bests.append(best)
        step += 1
        if step % REMOVE_STEPS == 0:
            model.item.remove(items_gone(step))
        if step % REPORT_STEPS == 0 or step == _STEPS.value:
            print(
                f"{step:>7,}  {np.mean(losses):.4f}  {np.mean(bests):.4f}"
                f"  {float(model.optimizer.learning_rate):.4f}"
                f"{int(model.user.size()):>16,}{int(model.item.size()):>11,}",
                flush=True,
            )
            losses, bests = [], []
        if step % SAVE_STEPS == 0 or step == _STEPS.value:
            manager.save(checkpoint_number=step)
    print(f"checkpoint {manager.latest_checkpoint}")


if __name__ == "__main__":
    app.run(main)

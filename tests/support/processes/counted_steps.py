# SPDX-License-Identifier: Apache-2.0
"""A program for a cluster with parameter servers. Its chief counts the steps that tables applied.

Each step looks up 24 ids, and subtracts 1 from a row for each time that its id is in the batch. So
a row is minus the number of times that it was trained. The chief trains until the file `stop` is in
the folder, and appends to the file `epochs` after each epoch. It prints the steps and the rows.

    python counted_steps.py FOLDER CHECKPOINTS PLANT
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.cases.metric_layers import LargeCount
from tf_embed.distributed import worker_calls

IDS = 200
STEPS = 20  # steps in an epoch
SAVE_STEPS = 7  # steps between checkpoints
_STATE = 1 << 20  # a metric of 4 MiB: sending it to the chief takes longer than a step


def ids_of_an_epoch() -> np.ndarray:
    """The ids of an epoch, [steps * 8, 3]."""
    return np.random.default_rng(5).integers(0, IDS, [STEPS * 8, 3]).astype(np.int64)


class Progress(keras.callbacks.Callback):
    """Reports each epoch, and stops once the file `stop` exists."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self._folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # There is no result if an earlier chief has made all steps of the epoch.
        counted = [float(one) for one in (logs or {}).get("counted", [])]
        with open(self._folder / "epochs", "a") as file:
            print(json.dumps([epoch, *counted]), file=file)
        if (self._folder / "stop").exists():
            self.model.stop_training = True


def train(strategy: Any, folder: pathlib.Path, checkpoints: str) -> dict[str, Any]:
    """Trains until the file `stop` exists.

    Args:
        strategy: The strategy.
        folder: The folder of the files.
        checkpoints: The folder of checkpoints. "": none.
    """
    with strategy.scope():
        ids = keras.Input([3], dtype="int64")
        rows = tf_embed.layers.DynamicEmbedding(
            2, initializer=0.0, optimizer=keras.optimizers.SGD(1.0), name="items"
        )(ids)
        model = keras.Model(ids, keras.layers.Lambda(lambda x: keras.ops.sum(x, [1, 2]))(rows))
        model.compile(
            keras.optimizers.SGD(0.0),
            lambda y, found: keras.ops.sum(found),
            metrics=[LargeCount(_STATE)],
        )
    saves = {"checkpoint_dir": checkpoints, "save_every": SAVE_STEPS} if checkpoints else {}
    trainer = tf_embed.distributed.ParameterServerTrainer(model, **saves)
    batches = ids_of_an_epoch()
    data = tf.data.Dataset.from_tensor_slices((batches, np.zeros(len(batches), np.float32)))
    trainer.fit(data.batch(8), epochs=1 << 20, callbacks=[Progress(folder)], verbose=0)
    rows = model.get_layer("items").variable.lookup(np.arange(IDS)).numpy()
    return {
        "steps": trainer.steps,
        "rows": rows[:, 0].tolist(),
        "equal": bool((rows[:, 0] == rows[:, 1]).all()),
    }


def main() -> None:
    """Runs the task of this process."""
    folder, checkpoints, plant = (*sys.argv[1:], "", "", "")[:3]
    if plant == "copy":  # treats each failed copy of a result as an error of the step
        worker_calls.fetched = lambda result: result.get()

    def of_chief(strategy: Any) -> None:
        print(json.dumps(train(strategy, pathlib.Path(folder), checkpoints)), flush=True)

    tf_embed.distributed.run_with_servers(of_chief, run_id="counted" if checkpoints else None)


if __name__ == "__main__":
    main()

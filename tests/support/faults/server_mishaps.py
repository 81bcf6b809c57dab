# SPDX-License-Identifier: Apache-2.0
"""Programs for chiefs with a failure, or with rows that must outlive a process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_embed
from support.processes import server_programs
from support.processes.server_programs import DIM, sum_model


def _data(ids: Any) -> tf.data.Dataset:
    """A batch of eight equal rows for each id."""
    rows = np.repeat(np.asarray(ids, np.int64), 8)[:, np.newaxis].repeat(3, 1)
    return tf.data.Dataset.from_tensor_slices((rows, np.zeros(len(rows), np.float32))).batch(8)


def _trained(model: keras.Model, ids: int) -> list[int]:
    """The number of times that each id's batch was trained."""
    rows = model.get_layer("items").variable.lookup(np.arange(ids)).numpy()
    return [-int(one) // 24 for one in rows[:, 0]]


def _trainer(strategy: Any, folder: str = "", **options: Any) -> Any:
    with strategy.scope():
        model = sum_model()
    saves = {"checkpoint_dir": folder, **options} if folder else {}
    return tf_embed.distributed.ParameterServerTrainer(model, **saves)


def rebuilt(strategy: Any, folder: str) -> Any:
    """Trains a new model in each turn. All trainers share a folder of checkpoints."""
    found = []
    for epochs in (2, 2, 3):
        trainer = _trainer(strategy, folder)
        trainer.fit(_data([0, 1]), epochs=epochs, verbose=0)
        found.append((trainer.steps, _trained(trainer.model, 2)))
    return {"found": found}


def two_models(strategy: Any, folder: str, *waits: str) -> Any:
    """Trains two models in sequence. With `waits`, waits for the kill of a server after that."""
    found = []
    for number in range(2):
        trainer = _trainer(strategy, os.path.join(folder, f"model_{number}"))
        trainer.fit(_data([0, 1, 2, 3, number]), epochs=2, verbose=0)
        found.append(_trained(trainer.model, 4))
    if waits:
        pathlib.Path(folder, "begun").touch()
        while True:
            trainer.model.get_layer("items").variable.lookup([0])
            time.sleep(0.02)
    return {"found": found}


def outlived(strategy: Any, folder: str, *waits: str) -> Any:
    """Trains and saves an epoch, and then changes a row. With `waits`, waits to be killed."""
    trainer = _trainer(strategy, os.path.join(folder, "checkpoints"))
    trainer.fit(_data([0, 1]), epochs=1, verbose=0)
    table = trainer.model.get_layer("items").variable
    found = table.lookup([0, 5])[:, 0].numpy().tolist()
    table.upsert([5], [[7.0] * DIM])
    if waits:
        pathlib.Path(folder, "begun").touch()
        time.sleep(600)
    return {"found": found}


class _Error(Exception):
    """An error of a user's callback."""


def failed_calls(strategy: Any) -> Any:
    """Makes calls of `fit` that raise, each followed by a call that must not."""
    found: dict[str, Any] = {}
    trainer = _trainer(strategy)

    class Fail(keras.callbacks.Callback):
        def __init__(self, event: str) -> None:
            super().__init__()
            self._event = event

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self._event == "begin" and batch == 5:
                raise _Error()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self._event == "end" and batch == 5:
                raise _Error()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._event == "epoch":
                raise _Error()

    data = _data(range(20))
    for epoch, event in enumerate(("begin", "end", "epoch")):
        with contextlib.suppress(_Error):
            trainer.fit(data, epochs=epoch + 1, callbacks=[Fail(event)], verbose=0)
        found[event] = trainer.steps
        trainer.fit(data, epochs=epoch + 1, verbose=0)
    trainer.fit(data, epochs=4, verbose=0)
    found["steps"] = trainer.steps
    found["trained"] = _trained(trainer.model, 20)
    return found


def _checked_trainer(strategy: Any) -> Any:
    """A trainer of a model that fails for the id 13."""
    with strategy.scope():
        model = sum_model()
        checked = keras.layers.Lambda(_checked)(model.output)
        model = keras.Model(model.inputs, checked)
        model.compile(keras.optimizers.SGD(0.0), lambda y, out: keras.ops.sum(out))
    model.get_layer("items").variable.upsert([13], [[1e6] * DIM])
    return tf_embed.distributed.ParameterServerTrainer(model)


def bad_validation(strategy: Any) -> Any:
    """Fits twice: the first validation fails, the second does not."""
    trainer = _checked_trainer(strategy)
    data, errors = _data(range(6)), 0
    for value in (1e6, 0.0):
        trainer.model.get_layer("items").variable.upsert([13], [[value] * DIM])
        try:
            trainer.fit(data, validation_data=_data([13]), verbose=0)
        except tf.errors.InvalidArgumentError:
            errors += 1
    return {"errors": errors, "steps": trainer.steps, "trained": _trained(trainer.model, 6)}


def bad_batches(strategy: Any) -> Any:
    """Runs `evaluate` and `fit` with a batch that fails, and makes calls after that."""
    trainer = _checked_trainer(strategy)
    table = trainer.model.get_layer("items").variable
    data, errors = _data(range(20)), []
    for call in (trainer.evaluate, trainer.fit):
        try:
            call(data)
        except tf.errors.InvalidArgumentError as error:
            errors.append("too large" in str(error))
        trainer.evaluate(_data([6, 7]))  # an earlier error must not be raised here
    steps = trainer.steps
    table.upsert([13], [[0.0] * DIM])
    trainer.fit(data, verbose=0)
    return {
        "errors": errors,
        "steps before": steps,
        "steps": trainer.steps,
        "trained": _trained(trainer.model, 20),
    }


def _checked(values: Any) -> Any:
    checks = [tf.debugging.assert_less(values, 1e5, "too large")]
    with tf.control_dependencies(checks):
        return tf.identity(values)


def changed_by_callbacks(strategy: Any, folder: str) -> Any:
    """Changes rows after the last step of an epoch, which `save_every` may have saved."""
    trainer = _trainer(strategy, folder, save_every=2)
    table = trainer.model.get_layer("items").variable

    class Change(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            table.upsert([100 + epoch], [[3.0] * DIM])

    trainer.fit(_data([0, 1]), epochs=1, callbacks=[Change()], verbose=0)
    trainer.fit(_data([0, 1]), epochs=2, steps_per_epoch=2, callbacks=[Change()], verbose=0)
    return {"steps": trainer.steps}


if __name__ == "__main__":
    if "outlived" in sys.argv:
        # The seconds that a server keeps the resources of a dead chief. It has no public name.
        context._KEEP_ALIVE_SECS = 3
    server_programs.main(globals())

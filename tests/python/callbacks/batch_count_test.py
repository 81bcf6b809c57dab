# SPDX-License-Identifier: Apache-2.0
"""Tests of `BatchCount`: its counts at each call of Keras, by the kind of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.callbacks.batch_count import BatchCount

PER_EXECUTION = 4
Optimizer = keras.optimizers.Optimizer


class Counts(keras.callbacks.Callback):
    """The counts at each call of Keras, in a list for each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[list[int]] = []
        self._batches = BatchCount()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batches.begin_epoch(self.model)
        self.counted.append([])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batches.begin(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counted[-1].append(self._batches.end(batch, self.model, self.params))


class OwnStep(keras.Model):
    """A model whose step applies the gradients of every batch."""

    every = 1

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.batches.assign_add(1)

        def step() -> tf.Tensor:
            self.optimizer.apply(grads, self.trainable_variables)
            return loss

        tf.cond(self.batches % self.every == 0, step, lambda: loss)
        return {"loss": loss}


class EveryOther(OwnStep):
    """A model whose step applies the gradients of every other batch."""

    every = 2


def accumulates(steps: int) -> Optimizer:
    return keras.optimizers.SGD(gradient_accumulation_steps=steps)


def scales() -> Optimizer:
    """An optimizer that skips batches until its scale is small enough."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=3e38)


def for_tables(make: Callable[..., Optimizer], *arguments: int) -> Optimizer:
    return tf_embed.DynamicEmbeddingOptimizer(make(*arguments))


class BatchCountTest(parameterized.TestCase):
    def counted(
        self, batches: int, optimizer: Optimizer, kind: str, model: type = keras.Model
    ) -> list[list[int]]:
        """Returns the counts of each of two epochs.

        Args:
            batches: The number of batches of the dataset, or of the epoch if `kind` is "repeated".
            optimizer: The optimizer of the model.
            kind: "known" or "unknown", the length of the dataset; "repeated", a dataset without
                end; or "ends early", `steps_per_epoch` above the length of the dataset.
            model: The class of the model.
        """
        x, y = np.ones([batches, 2], np.float32), np.full([batches, 1], 1e3, np.float32)
        data, options = tf.data.Dataset.from_tensor_slices((x, y)).batch(1), {}
        if kind == "repeated":
            data, options = data.repeat(), {"steps_per_epoch": batches}
        elif kind != "known":
            data = data.filter(lambda *batch: True)
        if kind == "ends early":
            options = {"steps_per_epoch": 5 * PER_EXECUTION}
        inputs = keras.Input([2])
        made = model(inputs, keras.layers.Dense(1)(inputs))
        made.batches = tf.Variable(0)
        made.compile(optimizer, "mse", steps_per_execution=PER_EXECUTION, auto_scale_loss=False)
        counts = Counts()
        made.fit(data, epochs=2, callbacks=[counts], verbose=0, **options)
        return counts.counted

    @parameterized.parameters(
        (4, "known", [4]),
        (10, "known", [4, 4, 2]),
        (10, "unknown", [4, 4, 2]),
        (10, "repeated", [4, 4, 4]),  # Keras trains 12 batches in an epoch
        (10, "ends early", [4, 4, 2]),
    )
    def test_batches_whose_gradients_are_accumulated_count(self, batches, kind, expected):
        for optimizer in (
            keras.optimizers.SGD(),
            accumulates(2),
            accumulates(4),
            for_tables(accumulates, 4),
        ):
            self.assertEqual(self.counted(batches, optimizer, kind), [expected] * 2)

    @parameterized.parameters(
        (4, "known", [4]),
        (10, "known", [4, 4, 2]),
        (10, "unknown", [4, 4, 4]),  # counted from Keras's calls
    )
    def test_batches_that_a_loss_scale_optimizer_skips_count(self, batches, kind, expected):
        for optimizer in (scales(), for_tables(scales)):
            self.assertEqual(self.counted(batches, optimizer, kind), [expected] * 2)

    @parameterized.parameters(
        (OwnStep, 4, "known", [4]),
        (OwnStep, 10, "unknown", [4, 4, 2]),
        (OwnStep, 10, "repeated", [4, 4, 4]),
        (EveryOther, 4, "known", [4]),
        (EveryOther, 10, "known", [4, 4, 2]),
    )
    def test_batches_of_a_model_with_its_own_step(self, model, batches, kind, expected):
        counted = self.counted(batches, keras.optimizers.SGD(), kind, model)
        self.assertEqual(counted, [expected] * 2)


if __name__ == "__main__":
    absltest.main()

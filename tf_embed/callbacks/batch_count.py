# SPDX-License-Identifier: Apache-2.0
"""`BatchCount`: the number of batches that a callback sees in an epoch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_embed.optimizers.rules import step_variable


class BatchCount:
    """Counts the batches of an epoch from Keras's calls for executions of several batches."""

    def __init__(self) -> None:
        self._counted = 0
        self._first: int | None = None  # the epoch's first batch; a resumed epoch has no batch 0
        self._begun = 0  # the first batch of the execution
        self._steps: int | None = None  # the optimizer's steps when the epoch began
        self._is_keras_step = False

    def begin_epoch(self, model: keras.Model | None) -> None:
        """Resets the count."""
        self._counted = self._begun = 0
        self._first = None
        several = getattr(model, "steps_per_execution", 1) > 1
        self._steps = _steps_of(model) if several else None
        self._is_keras_step = getattr(type(model), "train_step", None) is keras.Model.train_step

    def begin(self, batch: int) -> None:
        """Records the first batch of an execution."""
        if self._first is None:
            self._first = batch
        self._begun = batch

    def end(self, batch: int, model: keras.Model | None, params: dict[str, Any] | None) -> int:
        """Returns the number of batches since the last call.

        Args:
            batch: The last batch of the execution, as Keras reports it. The last execution of an
                epoch may have fewer batches.
            params: Keras's parameters of the callback.
        """
        steps, first = (params or {}).get("steps"), self._first or 0
        counted = most = batch + 1 - first
        if steps is not None:
            counted = min(most, steps - first)
        # Keras trains more than `steps` batches if `steps_per_epoch` ends within an execution and
        # the dataset continues, and fewer if the dataset ends. The optimizer counts all of them. A
        # custom `train_step` may make several steps per batch, so its optimizer's count is not used
        # if Keras's number can be right.
        if self._steps is not None and (self._is_keras_step or steps is None or batch >= steps):
            now = _steps_of(model)
            trained = 0 if now is None else now - self._steps
            if self._begun + 1 - first <= trained <= most:
                counted = trained
        more, self._counted = counted - self._counted, counted
        return more


def _steps_of(model: keras.Model | None) -> int | None:
    """Returns the number of steps of the model's optimizer, or None if it may skip batches."""
    optimizer = getattr(model, "optimizer", None)
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if isinstance(one, keras.optimizers.LossScaleOptimizer):
            return None  # it skips steps with gradients that are not finite
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return None
    return int(tf.convert_to_tensor(step_variable(optimizer)).numpy())

# SPDX-License-Identifier: Apache-2.0
"""`BatchCount`: the number of batches that a callback sees in an epoch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class BatchCount:
    """The batches of an epoch, by the calls that Keras makes for executions of several batches."""

    def __init__(self) -> None:
        self._counted = 0
        self._first: int | None = None  # the epoch's first batch; a resumed epoch has no batch 0
        self._begun = 0  # the first batch of the execution
        self._iterations: int | None = None  # of the optimizer, as the epoch began

    def begin_epoch(self, model: keras.Model | None) -> None:
        """Begins to count from 0."""
        self._counted = self._begun = 0
        self._first = None
        several = getattr(model, "steps_per_execution", 1) > 1
        self._iterations = _iterations_of(model) if several else None

    def begin(self, batch: int) -> None:
        """Takes note of the first batch of an execution."""
        if self._first is None:
            self._first = batch
        self._begun = batch

    def end(self, batch: int, model: keras.Model | None, params: dict[str, Any] | None) -> int:
        """Returns how many batches there were since the last call.

        Args:
            batch: The last batch of the execution, as Keras says. The last execution of an epoch
                may have fewer.
            model: The model.
            params: Keras's parameters of the callback.
        """
        steps, first = (params or {}).get("steps"), self._first or 0
        counted = most = batch + 1 - first
        if steps is not None:
            counted = min(most, steps - first)
        # Keras trains more than `steps` batches if `steps_per_epoch` ends within an execution and
        # the dataset goes on. The optimizer's count is of them all, unless the model has steps of
        # its own kind.
        now = None if self._iterations is None else _iterations_of(model)
        if now is not None and self._iterations is not None:
            trained = now - self._iterations
            if self._begun + 1 - first <= trained <= most:
                counted = trained
        more, self._counted = counted - self._counted, counted
        return more


def _iterations_of(model: keras.Model | None) -> int | None:
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return None if iterations is None else int(tf.convert_to_tensor(iterations).numpy())

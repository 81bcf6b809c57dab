# SPDX-License-Identifier: Apache-2.0
"""`StepMetrics`: the contribution of one step to the states of a model's metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf


class StepMetrics(keras.StatelessScope):
    """A scope in which the states of metrics begin at zero, and are not written.

    A `StatelessScope` holds back the updates of all variables. This one applies those of other
    variables at once, since a layer may update its state within a loop or a condition.

    Args:
        states: The variables of the metrics.
    """

    def __init__(self, states: Sequence[keras.Variable]) -> None:
        zeros = [(one, tf.zeros(one.shape, one.dtype)) for one in states]
        # With the losses that layers add, which `compute_loss` only finds in the scope.
        super().__init__(state_mapping=zeros, collect_losses=True)
        self._states = states
        self._numbers = {id(one) for one in states}

    def contribution(self) -> list[Any]:
        """Returns the states of the metrics as of the updates in the scope."""
        return [self.get_current_value(one) for one in self._states]

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Keeps the new value of a metric's state. Assigns that of any other variable."""
        variable, value = update
        if id(variable) in self._numbers:
            super().add_update(update)
        else:
            with self._left():
                variable.assign(value)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable in the scope."""
        if id(variable) in self._numbers:
            return super().get_current_value(variable)
        with self._left():
            return variable.value  # Keras's regularizers take no None

    @contextlib.contextmanager
    def _left(self) -> Iterator[None]:
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

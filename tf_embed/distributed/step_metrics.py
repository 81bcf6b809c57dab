# SPDX-License-Identifier: Apache-2.0
"""`StepMetrics`: the contribution of a step to the states of a model's metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging


class StepMetrics(keras.StatelessScope):
    """A scope in which the states of metrics begin at zero, and are not written.

    A `StatelessScope` holds back the updates of all variables. This class applies updates of other
    variables at once, since a layer may update its state within a loop or a condition. Updates of a
    metric there, or in a tf.function, are not counted, because the graph of the step has no access
    to the tensors of an inner graph.
    """

    def __init__(self, states: Sequence[keras.Variable]) -> None:
        zeros = [(one, tf.zeros(one.shape, one.dtype)) for one in states]
        # Collect the losses that layers add: `compute_loss` only finds them in the scope.
        super().__init__(state_mapping=zeros, collect_losses=True)
        self._states = states
        self._numbers = {id(one) for one in states}
        self._graph = tf.compat.v1.get_default_graph()
        self._has_warned = False

    def contribution(self) -> list[Any]:
        """Returns the states of the metrics after the updates in the scope."""
        return [self.get_current_value(one) for one in self._states]

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Keeps the new value of a metric's state. Assigns any other variable at once."""
        variable, value = update
        if self._is_of_step(variable):
            super().add_update(update)
            return
        if id(variable) in self._numbers and not self._has_warned:
            self._has_warned = True
            # The results of the metric lack this update, but training is correct.
            logging.warning(
                "The metric of %r is updated in a condition, a loop or a tf.function of a layer. "
                "On parameter servers its result misses these updates.",
                variable.path,
            )
        with self._left():
            variable.assign(value)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable in the scope."""
        if self._is_of_step(variable):
            return super().get_current_value(variable)
        with self._left():
            return variable.value  # Keras's regularizers take no None

    def _is_of_step(self, variable: keras.Variable) -> bool:
        """Whether a variable is a metric's state, in the graph of the step itself."""
        is_state = id(variable) in self._numbers
        return is_state and tf.compat.v1.get_default_graph() is self._graph

    @contextlib.contextmanager
    def _left(self) -> Iterator[None]:
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

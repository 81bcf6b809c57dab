# SPDX-License-Identifier: Apache-2.0
"""Layers and a metric that count in their own state, in a step or in an inner graph."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class LargeCount(keras.metrics.Metric):
    """Counts steps in each element of a large state, which takes a worker long to send.

    The result is the least and the largest element, [2].

    Args:
        elements: Number of elements, 4 bytes each.
    """

    def __init__(self, elements: int) -> None:
        super().__init__(name="counted")
        self.state = self.add_weight(shape=[elements], initializer="zeros", name="state")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.state.assign_add(keras.ops.ones_like(self.state))

    def result(self) -> Any:
        return keras.ops.stack([keras.ops.min(self.state), keras.ops.max(self.state)])


class Seen(keras.layers.Layer):
    """A layer with a metric, a loss, a regularizer and a counter of calls."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(
            shape=(), initializer="ones", trainable=True, regularizer=keras.regularizers.L2(0.5)
        )
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        self.seen.update_state(x)
        self.calls.assign_add(1.0)
        self.add_loss(keras.ops.mean(x) * self.scale)
        return x


class SeenWithin(keras.layers.Layer):
    """A layer that updates its metric and its counter of calls in an inner graph."""

    def __init__(self, is_condition: bool) -> None:
        super().__init__()
        self.is_condition = is_condition

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seen = keras.metrics.Mean(name=f"seen_{int(self.is_condition)}")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        def updated() -> tf.Tensor:
            self.seen.update_state(x)
            self.calls.assign_add(1.0)
            return keras.ops.copy(x)

        if self.is_condition:
            return keras.ops.cond(keras.ops.any(x > 0), updated, lambda: x)
        return tf.function(updated)()

# SPDX-License-Identifier: Apache-2.0
"""Row-wise Adagrad, which Keras lacks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.configs import as_learning_rate, as_number
from tf_embed.optimizers.optimizer_text import optimizer_text


@keras.saving.register_keras_serializable(package="tf_embed")
class RowwiseAdagrad(keras.optimizers.Optimizer):
    """Adagrad with one accumulator for each row instead of one for each weight.

    For the gradient g of a row: s += mean(g^2); w -= learning_rate * g / (sqrt(s) + epsilon). It
    costs a table 4 bytes a row, while Adagrad costs 4 for each weight. On a dense variable a row is
    the last axis, and a scalar is a row of one weight.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        initial_accumulator_value: The initial value of s, at least 0.
        epsilon: A small number that keeps the division finite.
        weight_decay: None, or the factor of decoupled weight decay: w -= w * weight_decay *
            learning_rate before each step.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If `initial_accumulator_value` or `epsilon` is negative, or a number is not
            finite.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.optimizers.RowwiseAdagrad(0.05))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's EXACT_ROWWISE_ADAGRAD; Duchi, Hazan and Singer, Adaptive Subgradient Methods for
        Online Learning and Stochastic Optimization, JMLR 12 (2011), for Adagrad.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        weight_decay: float | None = None,
        name: str = "row_wise_adagrad",
        **kwargs: Any,
    ) -> None:
        if name is not None:
            validation.name_of(name)
        super().__init__(
            learning_rate=as_learning_rate(learning_rate, "learning_rate"),
            weight_decay=None if weight_decay is None else as_number(weight_decay, "weight_decay"),
            name=name,
            **kwargs,
        )
        initial_accumulator_value = as_number(
            initial_accumulator_value, "initial_accumulator_value"
        )
        epsilon = as_number(epsilon, "epsilon")
        if initial_accumulator_value < 0.0:
            raise ValueError(
                "`initial_accumulator_value` must not be negative. Received: "
                f"initial_accumulator_value={initial_accumulator_value}"
            )
        if epsilon < 0.0:
            raise ValueError(f"`epsilon` must not be negative. Received: epsilon={epsilon}")
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon

    def build(self, variables: list[Any]) -> None:
        """Makes the accumulators: of the variable's shape, but 1 in the last axis."""
        if self.built:
            return
        super().build(variables)
        initializer = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = [
            # The rows of a table have their accumulators in the table.
            None
            if getattr(variable, "overwrite_with_gradient", False)
            else self.add_variable(
                shape=(*variable.shape[:-1], 1) if len(variable.shape) else (),
                initializer=initializer,
                dtype="float64" if variable.dtype == "float64" else "float32",
                name=f"{getattr(variable, 'path', variable.name).replace('/', '_')}_accumulator",
            )
            for variable in variables
        ]

    @override
    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        # Rows that sparse slices leave out have the gradient 0, which changes nothing. In float16
        # the default epsilon, and so the divisor of these rows, would be 0.
        wide = tf.float64 if variable.dtype == "float64" else tf.float32
        gradient = tf.cast(tf.convert_to_tensor(gradient), wide)
        learning_rate = tf.cast(learning_rate, wide)
        accumulator = self._accumulators[self._get_variable_index(variable)]
        square = tf.square(gradient)
        if gradient.shape.rank:
            square = tf.reduce_mean(square, axis=-1, keepdims=True)
        self.assign_add(accumulator, square)
        divisor = tf.sqrt(tf.convert_to_tensor(accumulator)) + self.epsilon
        change = tf.math.divide_no_nan(learning_rate * gradient, divisor)
        self.assign_sub(variable, tf.cast(change, variable.dtype))

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }

    def __repr__(self) -> str:
        return optimizer_text(self)

"""Keras optimizers as fused rules.

The rules run in the table, on the weights and slots of a row at once. This file reads which rule
a Keras optimizer is, and its hyper-parameters at a step, so that a table's rows get exactly what
Keras would give a dense variable. What the table can't do is refused by name.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_embed.optimizers.row_wise_adagrad import RowWiseAdagrad

# Options of every Keras optimizer that act on gradients or weights outside of the rule, and what
# turns each off.
_OUTSIDE_OPTIONS = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)
_FUSED = (
    keras.optimizers.SGD,
    keras.optimizers.Adagrad,
    RowWiseAdagrad,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
)


def optimizer_of(identifier: Any) -> Any:
    """The optimizer that `keras.optimizers.get` gives, or the RowWiseAdagrad of that name."""
    if isinstance(identifier, str) and identifier.lower().replace("_", "") == "rowwiseadagrad":
        return RowWiseAdagrad()
    return keras.optimizers.get(identifier)


def step_variable(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts an optimizer's steps."""
    return next(one for one in optimizer.variables if one.name == "iteration")


def check_fused(optimizer: Any) -> None:
    """Refuses an optimizer that tables have no rule for.

    A subclass is refused too: what it changes would be left out.

    Raises:
        TypeError: It is no Keras optimizer.
        ValueError: It has no rule, or an option that is not done for tables. Named.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer={optimizer!r}"
        )
    if type(optimizer) not in _FUSED:
        known = ", ".join(one.__name__ for one in _FUSED)
        raise ValueError(
            f"Dynamic tables are trained by {known} so far. Received: "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )
    for option in _OUTSIDE_OPTIONS:
        if value := getattr(optimizer, option):
            raise ValueError(
                f"Dynamic tables do not support the option `{option}` of an optimizer yet. "
                f"Received: {type(optimizer).__name__}({option}={value!r})"
            )


class FusedTrainer:
    """A Keras optimizer as the trainer of tables; an `anchor.Trainer`.

    Args:
        optimizer: The optimizer. Its learning rate, other hyper-parameters and `iterations` are
            read at each step, so changes and schedules are followed.

    Raises:
        ValueError: The optimizer has no rule, or an unsupported option.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        check_fused(optimizer)
        self.optimizer = optimizer

    @property
    def rule(self) -> str:
        """Name of the rule."""
        optimizer = self.optimizer
        if isinstance(optimizer, keras.optimizers.SGD):
            return "momentum" if optimizer.momentum else "sgd"
        if isinstance(optimizer, RowWiseAdagrad):
            return "rowwise_adagrad"
        if isinstance(optimizer, keras.optimizers.Adagrad):
            return "adagrad"
        return "adam_amsgrad" if optimizer.amsgrad else "adam"

    def hyper(self, variable: Any) -> tf.Tensor:
        """Hyper-parameters of this step, as the rule takes them; float64 vector.

        Args:
            variable: The anchor, which may be excluded from weight decay.
        """
        optimizer = self.optimizer
        learning_rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float64)
        numbers: list[Any] = [learning_rate, self._weight_decay(variable)]
        if isinstance(optimizer, keras.optimizers.SGD):
            if optimizer.momentum:
                numbers += [optimizer.momentum, float(optimizer.nesterov)]
        elif isinstance(optimizer, (keras.optimizers.Adagrad, RowWiseAdagrad)):
            numbers += [optimizer.initial_accumulator_value, optimizer.epsilon]
        else:
            numbers += [optimizer.beta_1, optimizer.beta_2, optimizer.epsilon]
        # tf.cast would make float32 of a Python number on the way.
        return tf.stack([tf.convert_to_tensor(number, tf.float64) for number in numbers])

    def step(self) -> tf.Tensor:
        """Number of this step, from 1; int64 scalar."""
        return tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int64) + 1

    def advance(self) -> None:
        """Goes to the next step."""
        self.optimizer.iterations.assign_add(1)

    def _weight_decay(self, variable: Any) -> float:
        optimizer = self.optimizer
        # exclude_from_weight_decay is public in Keras, what it chose is not.
        if optimizer.weight_decay is None or not optimizer._use_weight_decay(variable):
            return 0.0
        return float(optimizer.weight_decay)

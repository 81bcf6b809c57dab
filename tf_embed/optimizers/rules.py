"""Keras optimizers as fused rules.

The rules run in the table, on the weights and slots of a row at once. This file reads which rule
a Keras optimizer is, and its hyper-parameters at a step, so that a table's rows get exactly what
Keras would give a dense variable. `row_optimizer.py` is for the optimizers that have none.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tf_embed import arguments
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, is_fused
from tf_embed.optimizers.rowwise_adagrad import RowwiseAdagrad

_FUSED = (
    keras.optimizers.SGD,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    RowwiseAdagrad,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Ftrl,
)

# Names of the slots of each rule, in the order in which they lie in a row, as Keras has them.
_SLOT_NAMES = {
    "sgd": (),
    "momentum": ("momentum",),
    "adagrad": ("accumulator",),
    "rowwise_adagrad": ("accumulator",),
    "adam": ("momentum", "velocity"),
    "adam_amsgrad": ("momentum", "velocity", "velocity_hat"),
    "rmsprop": ("velocity",),
    "rmsprop_momentum": ("velocity", "momentum"),
    "rmsprop_centered": ("velocity", "average_gradient"),
    "rmsprop_centered_momentum": ("velocity", "momentum", "average_gradient"),
    "ftrl": ("accumulator", "linear"),
}
_ONE_PER_ROW = {"rowwise_adagrad"}


def optimizer_of(identifier: Any) -> Any:
    """The optimizer that `keras.optimizers.get` gives, or the RowwiseAdagrad of that name.

    Raises:
        ValueError: There is none.
    """
    if isinstance(identifier, str) and identifier.lower().replace("_", "") == "rowwiseadagrad":
        return RowwiseAdagrad()
    try:
        return keras.optimizers.get(identifier)
    except Exception as error:
        raise ValueError(
            "`optimizer` must be a Keras optimizer, or its name or config. Received: optimizer="
            f"{arguments.shown(identifier)}: {error}"
        ) from error


def step_variable(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts an optimizer's steps, those that only accumulate too."""
    return next(one for one in optimizer.variables if one.name == "iteration")


def fused_rule(optimizer: keras.optimizers.Optimizer) -> str | None:
    """Name of the rule that an optimizer is, or None.

    A subclass of one that is a rule has none: what it changes would be left out.
    """
    if is_fused(optimizer):
        return optimizer.rule
    if type(optimizer) not in _FUSED:
        return None
    if isinstance(optimizer, keras.optimizers.SGD):
        return "momentum" if optimizer.momentum else "sgd"
    if isinstance(optimizer, keras.optimizers.RMSprop):
        centered = "_centered" if optimizer.centered else ""
        return f"rmsprop{centered}{'_momentum' if optimizer.momentum else ''}"
    if isinstance(optimizer, RowwiseAdagrad):
        return "rowwise_adagrad"
    if isinstance(optimizer, keras.optimizers.Adagrad):
        return "adagrad"
    if isinstance(optimizer, keras.optimizers.Ftrl):
        return "ftrl"
    return "adam_amsgrad" if optimizer.amsgrad else "adam"


def fused_slots(optimizer: keras.optimizers.Optimizer, dim: int) -> list[tuple[str, int, float]]:
    """Name, number in a row and initial value of each slot of an optimizer's fused rule."""
    if isinstance(optimizer, RowRuleOptimizer):
        return [
            (slot.name, dim if slot.is_wide else 1, math.nan if slot.starts_at_weights else 0.0)
            for slot in optimizer.slots
        ]
    rule = fused_rule(optimizer)
    assert rule is not None
    width = 1 if rule in _ONE_PER_ROW else dim
    first = float(getattr(optimizer, "initial_accumulator_value", 0.0))
    names = _SLOT_NAMES[rule]
    return [(name, width, 0.0 if i else first) for i, name in enumerate(names)]


def hyper_parameters(
    optimizer: keras.optimizers.Optimizer, *, weight_decay: bool, max_counter: Any = None
) -> tf.Tensor:
    """Hyper-parameters of a fused rule at this step, as `ops.apply` takes them; float64 vector.

    Args:
        optimizer: One that `fused_rule` knows.
        weight_decay: Whether its weight decay applies.
        max_counter: One more than the largest count of all rows, a float64 scalar, where the rule
            asks for it.
    """
    learning_rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float64)
    decay = optimizer.weight_decay if weight_decay else None
    numbers: list[Any] = [learning_rate, decay or 0.0]
    if isinstance(optimizer, RowRuleOptimizer):
        numbers += optimizer.hyper(
            optimizer.number("weight_decay") if weight_decay else 0.0, max_counter
        )
    elif isinstance(optimizer, keras.optimizers.SGD):
        if optimizer.momentum:
            numbers += [optimizer.momentum, float(optimizer.nesterov)]
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        numbers += [optimizer.rho, optimizer.momentum, optimizer.epsilon]
    elif isinstance(optimizer, keras.optimizers.Adagrad):
        numbers += [optimizer.initial_accumulator_value, optimizer.epsilon]
    elif isinstance(optimizer, RowwiseAdagrad):
        none = [0.0, 0.0, 0.0]  # neither decay of the rule's own nor a bound of norms
        numbers += [optimizer.initial_accumulator_value, optimizer.epsilon, *none]
    elif isinstance(optimizer, keras.optimizers.Ftrl):
        numbers += [
            optimizer.initial_accumulator_value,
            optimizer.learning_rate_power,
            optimizer.l1_regularization_strength,
            optimizer.l2_regularization_strength,
            optimizer.l2_shrinkage_regularization_strength,
            optimizer.beta,
        ]
    else:
        numbers += [optimizer.beta_1, optimizer.beta_2, optimizer.epsilon]
    # tf.cast would make float32 of a Python number on the way.
    return tf.stack([tf.convert_to_tensor(number, tf.float64) for number in numbers])

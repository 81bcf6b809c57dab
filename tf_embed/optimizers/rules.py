# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers as fused rules.

The rules run in the table, on the weights and slots of a row at once. This file maps each Keras
optimizer to its rule and to its hyper-parameters at a step, so that a table's rows are updated
exactly as Keras would update a dense variable. Classes of RowRuleOptimizer register themselves.
`row_optimizer.py` is for the optimizers that have no rule.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_embed import _library, validation
from tf_embed.optimizers.rowwise_adagrad import RowwiseAdagrad
from tf_embed.table import joined


class RuleSlot(NamedTuple):
    """A variable that a rule keeps for each row.

    Attributes:
        name: Its name in Keras or in the formulas.
        is_wide: Whether each weight has a number; otherwise each row has a number.
        initial_value: Its value in a new row. NaN: the weights.
    """

    name: str
    is_wide: bool
    initial_value: float


class FusedRule(NamedTuple):
    """The rule of an optimizer in a table.

    Attributes:
        name: One of cc/core/rules/rule_list.h.
        slots: The slots in their order in a row: wide slots first.
        numbers: Returns the rule's own hyper-parameters by name. Its arguments are whether weight
            decay applies, and the largest count of all rows plus 1, or None.
    """

    name: str
    slots: tuple[RuleSlot, ...] = ()
    numbers: Callable[[bool, Any], Mapping[str, Any]] = lambda *_: {}


_RULES: dict[type, Callable[[Any], FusedRule]] = {}


def register(optimizer_class: type, rule_of: Callable[[Any], FusedRule]) -> None:
    """Makes tables run the optimizers of a class as a fused rule.

    Subclasses are not included, because they may change behavior that the rule does not know.
    """
    _RULES[optimizer_class] = rule_of


def optimizers_with_rules() -> dict[str, list[str]]:
    """Names of the registered classes by package, such as "keras.optimizers"."""
    names: dict[str, list[str]] = {}
    for kind in _RULES:
        package = kind.__module__.replace(".src.", ".").split(".")[:2]
        names.setdefault(".".join(package), []).append(kind.__name__)
    return names


def _wide(*names: str, first: float = 0.0) -> tuple[RuleSlot, ...]:
    return tuple(RuleSlot(name, True, 0.0 if i else first) for i, name in enumerate(names))


def _sgd(optimizer: Any) -> FusedRule:
    if not optimizer.momentum:
        return FusedRule("sgd")
    numbers = {"momentum": optimizer.momentum, "nesterov": float(optimizer.nesterov)}
    return FusedRule("momentum", _wide("momentum"), lambda *_: numbers)


def _rmsprop(optimizer: Any) -> FusedRule:
    name, slots = "rmsprop", ["velocity"]
    if optimizer.centered:
        name += "_centered"
    if optimizer.momentum:
        name += "_momentum"
        slots.append("momentum")
    if optimizer.centered:
        slots.append("average_gradient")
    numbers = {
        "rho": optimizer.rho,
        "momentum": optimizer.momentum,
        "epsilon": optimizer.epsilon,
    }
    return FusedRule(name, _wide(*slots), lambda *_: numbers)


def _adagrad(optimizer: Any) -> FusedRule:
    first = float(optimizer.initial_accumulator_value)
    numbers = {"initial_accumulator_value": first, "epsilon": optimizer.epsilon}
    return FusedRule("adagrad", _wide("accumulator", first=first), lambda *_: numbers)


def _rowwise_adagrad(optimizer: Any) -> FusedRule:
    first = float(optimizer.initial_accumulator_value)
    numbers = {
        "initial_accumulator_value": first,
        "epsilon": optimizer.epsilon,
        "decay": 0.0,  # the rule's own decay
        "decay_mode": 0.0,
        "max_norm": 0.0,
    }
    slots = (RuleSlot("accumulator", False, first),)
    return FusedRule("rowwise_adagrad", slots, lambda *_: numbers)


def _adam(optimizer: Any) -> FusedRule:
    numbers = {
        "beta_1": optimizer.beta_1,
        "beta_2": optimizer.beta_2,
        "epsilon": optimizer.epsilon,
    }
    if optimizer.amsgrad:
        slots = _wide("momentum", "velocity", "velocity_hat")
        return FusedRule("adam_amsgrad", slots, lambda *_: numbers)
    return FusedRule("adam", _wide("momentum", "velocity"), lambda *_: numbers)


def _ftrl(optimizer: Any) -> FusedRule:
    first = float(optimizer.initial_accumulator_value)
    numbers = {
        "initial_accumulator_value": first,
        "learning_rate_power": optimizer.learning_rate_power,
        "l1": optimizer.l1_regularization_strength,
        "l2": optimizer.l2_regularization_strength,
        "l2_shrinkage": optimizer.l2_shrinkage_regularization_strength,
        "beta": optimizer.beta,
        "decay": 0.0,  # decay of the gradient, which Keras lacks
    }
    return FusedRule("ftrl", _wide("accumulator", "linear", first=first), lambda *_: numbers)


register(keras.optimizers.SGD, _sgd)
register(keras.optimizers.RMSprop, _rmsprop)
register(keras.optimizers.Adagrad, _adagrad)
register(RowwiseAdagrad, _rowwise_adagrad)
register(keras.optimizers.Adam, _adam)
# Keras's AdamW is Adam with weight decay, which every rule supports.
register(keras.optimizers.AdamW, _adam)
register(keras.optimizers.Ftrl, _ftrl)


def optimizer_of(identifier: Any) -> Any:
    """The optimizer that `keras.optimizers.get` returns, or a RowwiseAdagrad for its name.

    Raises:
        ValueError: If there is none.
    """
    if isinstance(identifier, str) and identifier.lower().replace("_", "") == "rowwiseadagrad":
        return RowwiseAdagrad()
    try:
        if isinstance(identifier, dict):
            identifier = optimizer_of_config(identifier)
        return keras.optimizers.get(identifier)
    except Exception as error:
        raise ValueError(
            "`optimizer` must be a Keras optimizer, or its name or config. Received: optimizer="
            f"{validation.shown(identifier)}: {error}"
        ) from error


def optimizer_of_config(
    config: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> Any:
    """The optimizer of a config that `keras.optimizers.serialize` returned.

    Args:
        config: The config, which is not changed.
        custom_objects: As in `keras.saving.deserialize_keras_object`.
    """
    config = copy.deepcopy(config)  # Keras puts objects into it
    name = config.get("class_name")
    # `keras.optimizers.deserialize` has a separate list, in which Lamb is missing. But only this
    # function knows names in lower case.
    if isinstance(name, str) and isinstance(getattr(keras.optimizers, name, None), type):
        config.setdefault("module", "keras.optimizers")
        config.setdefault("registered_name", None)
        return keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)
    return keras.optimizers.deserialize(config, custom_objects=custom_objects)


def step_variable(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """The variable that counts an optimizer's steps, including steps that only accumulate."""
    # Found by name: `iterations` is another number while gradients are accumulated.
    return next(one for one in optimizer.variables if one.name == "iteration")


def _rule_of(optimizer: keras.optimizers.Optimizer) -> FusedRule:
    """The rule of an optimizer whose class is registered.

    Raises:
        ValueError: If the op library has no such rule, or its rule has other slots.
    """
    rule = _RULES[type(optimizer)](optimizer)
    known = _library.vocabulary()["rules"]
    if rule.name not in known:
        raise ValueError(
            f"The rule of {type(optimizer).__name__} must be one of {', '.join(known)}. Received: "
            f"{rule.name!r}"
        )
    are_wide = [slot.is_wide for slot in rule.slots]
    wanted = [True] * known[rule.name]["wide_slots"] + [False] * known[rule.name]["row_slots"]
    if are_wide != wanted:
        raise ValueError(
            f"The slots of the rule {rule.name!r} must be {known[rule.name]['wide_slots']} wide "
            f"ones, then {known[rule.name]['row_slots']} of a row. Received: {rule.slots}"
        )
    return rule


def fused_rule(optimizer: keras.optimizers.Optimizer) -> str | None:
    """The name of an optimizer's fused rule, or None."""
    return _rule_of(optimizer).name if type(optimizer) in _RULES else None


def fused_slots(optimizer: keras.optimizers.Optimizer, dim: int) -> list[tuple[str, int, float]]:
    """Name, number in a row and initial value of each slot of an optimizer's fused rule."""
    slots = _rule_of(optimizer).slots
    return [(slot.name, dim if slot.is_wide else 1, slot.initial_value) for slot in slots]


def beside_step(optimizer: keras.optimizers.Optimizer) -> AbstractContextManager[Any]:
    """The CPU for ops in the block, if it has the optimizer's count of steps."""
    # Elsewhere TensorFlow would compute on a GPU, and copy the count there and the result back.
    return contextlib.nullcontext() if _is_on_gpu(optimizer) else tf.device("/CPU:0")


def _is_on_gpu(optimizer: keras.optimizers.Optimizer) -> bool:
    return ":GPU:" in step_variable(optimizer).value.device


class _StepNumbers(NamedTuple):
    """Numbers of a step, on the host.

    Attributes:
        learning_rate: float64.
        step: The number of the step from 1, int64. Steps that only accumulate do not count.
        is_due: With `gradient_accumulation_steps`, whether it applies the gradients so far, a bool.
    """

    learning_rate: tf.Tensor
    step: tf.Tensor
    is_due: tf.Tensor | None = None


def _read_numbers(optimizer: keras.optimizers.Optimizer) -> _StepNumbers:
    with beside_step(optimizer):
        rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float64)
        count = tf.cast(tf.convert_to_tensor(step_variable(optimizer)), tf.int64)
        if _is_on_gpu(optimizer):
            # One tensor, because the host waits for the GPU at each copy.
            both = tf.where([True, False], tf.bitcast(rate, tf.int64), count)
            with tf.device("/CPU:0"):
                both = tf.identity(both)  # eager ops would copy it each
                rate, count = tf.bitcast(both[0], tf.float64), both[1]
    steps = optimizer.gradient_accumulation_steps
    with tf.device("/CPU:0"):
        if not steps:
            return _StepNumbers(rate, count + 1)
        return _StepNumbers(rate, count // steps + 1, tf.equal((count + 1) % steps, 0))


def _numbers_of(optimizer: keras.optimizers.Optimizer, is_own: bool) -> _StepNumbers:
    if is_own:  # it may make several steps in a block
        return _read_numbers(optimizer)
    return joined.shared(optimizer, lambda: _read_numbers(optimizer))


def is_due(optimizer: keras.optimizers.Optimizer, is_own: bool) -> tf.Tensor:
    """Whether this step applies the accumulated gradients, a bool scalar on the host.

    Args:
        optimizer: An optimizer with `gradient_accumulation_steps`.
        is_own: Whether the optimizer is a table's own.
    """
    due = _numbers_of(optimizer, is_own).is_due
    assert due is not None  # because gradients are accumulated
    return due


@joined.outside_conditions()
def rule_inputs(
    optimizer: keras.optimizers.Optimizer,
    *,
    weight_decay: bool,
    is_own: bool,
    max_counter: Any = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The numbers of this step, as the op TfEmbedApply takes them: on the host.

    Args:
        optimizer: An optimizer with a `fused_rule`.
        weight_decay: Whether its weight decay applies.
        is_own: Whether the optimizer is a table's own.
        max_counter: The largest count of all rows plus 1, if the rule needs it.

    Returns:
        hyper: The hyper-parameters of the fused rule, a float64 vector.
        step: The number of the step, from 1, an int64 scalar.

    Raises:
        ValueError: If the hyper-parameters of the optimizer and of the rule differ.
    """
    learning_rate, step, _ = _numbers_of(optimizer, is_own)
    decay = optimizer.weight_decay if weight_decay else None
    rule = _rule_of(optimizer)
    names = _library.vocabulary()["rules"][rule.name]["hyper"]
    with tf.device("/CPU:0"):
        counter = None if max_counter is None else tf.cast(max_counter, tf.float64)
        by_name = rule.numbers(weight_decay, counter)
    if set(by_name) != set(names):
        raise ValueError(
            f"The hyper-parameters of the rule {rule.name!r} must be {', '.join(names) or 'none'}. "
            f"Received: {', '.join(by_name) or 'none'}"
        )
    numbers = [learning_rate, decay or 0.0, *(by_name[name] for name in names)]
    with tf.device("/CPU:0"):
        # tf.cast would convert a Python number to float32 first.
        hyper = tf.stack([tf.convert_to_tensor(number, tf.float64) for number in numbers])
    return hyper, step

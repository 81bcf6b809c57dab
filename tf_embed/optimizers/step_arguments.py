# SPDX-License-Identifier: Apache-2.0
"""The wrapper's arguments: gradients, variables, losses, tapes, options, weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed.validation import shown
from tf_embed.variable.anchor import Anchor


def items_in(value: Any, argument: str) -> list[Any]:
    """Returns the items of a list, or of any iterable, such as a zip.

    Raises:
        TypeError: If it is not such an iterable. A str, mapping, set or tensor is refused too.
    """
    # A tensor is iterable too, but is a single gradient.
    is_one = isinstance(value, (str, bytes, Mapping, Set)) or hasattr(value, "dtype")
    if is_one or isinstance(value, type) or not isinstance(value, Iterable):
        raise TypeError(
            f"`{argument}` must be a list. Received: {argument}={shown(value)} of type "
            f"{type(value).__name__}"
        )
    return list(value)


def variables_in(value: Any, argument: str) -> list[Any]:
    """Checks and returns a list of variables and anchors.

    Raises:
        TypeError: If it is not a list, or an item has a wrong type.
    """
    variables = items_in(value, argument)
    for one in variables:
        if not isinstance(one, (keras.Variable, tf.Variable, Anchor)):
            raise TypeError(
                f"`{argument}` must have variables, and the `trainable_variables` of layers and "
                f"tables. Received: {shown(one)} of type {type(one).__name__}"
            )
    return variables


def pairs_in(value: Any, argument: str) -> list[tuple[Any, Any]]:
    """Checks and returns a list of pairs of gradients and variables.

    Raises:
        TypeError: If it is not a list, or an item has a wrong type.
    """
    pairs = items_in(value, argument)
    for one in pairs:
        if not isinstance(one, (tuple, list)) or len(one) != 2:
            raise TypeError(
                f"`{argument}` must have pairs of a gradient and a variable. Received: "
                f"{shown(one)} of type {type(one).__name__}"
            )
    variables = variables_in([variable for _, variable in pairs], argument)
    return list(zip([gradient for gradient, _ in pairs], variables, strict=True))


@dataclasses.dataclass(frozen=True)
class SplitVariables:
    """The variables of a model; an object, so that Keras does not track them.

    Attributes:
        variables: All of them.
        anchors: The anchors, one for each table.
        dense: The dense variables.
        guard: The variable that tells a loss scale optimizer about the gradients of tables; None
            without such an optimizer.
    """

    variables: list[Any]
    anchors: list[Anchor]
    dense: list[Any]
    guard: keras.Variable | None = None


def split_variables(variables: Iterable[Any]) -> SplitVariables:
    """Splits the variables of a model. Only the first anchor of each table counts."""
    variables = list(variables)
    # Reversed twice: the first anchor of each table stays, and the order too.
    anchors = {id(one.table): one for one in reversed(variables) if isinstance(one, Anchor)}
    return SplitVariables(
        variables=variables,
        anchors=list(reversed(anchors.values())),
        dense=[variable for variable in variables if not isinstance(variable, Anchor)],
    )


def check_tape(tape: Any) -> None:
    """Checks that a value is a tape or None.

    Raises:
        TypeError: If it is neither.
    """
    if tape is not None and not isinstance(tape, tf.GradientTape):
        raise TypeError(f"`tape` must be a tf.GradientTape. Received: tape={shown(tape)}")


def check_loss(loss: Any, given: Any) -> None:
    """Checks that a loss is a tensor.

    Args:
        given: The argument that is the loss or returned it.

    Raises:
        TypeError: If it is not.
    """
    if not tf.is_tensor(loss):
        raise TypeError(
            "`loss` must be a tensor, or a callable without arguments that gives one. Received: "
            f"loss={shown(given)}, which is or gave {shown(loss)} of type {type(loss).__name__}"
        )


_OPTIONS = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "loss_scale_factor",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "gradient_accumulation_steps",
)


def check_no_option(name: str, value: Any) -> None:
    """Refuses an option of Keras optimizers that is set on the wrapper, which would ignore it.

    A None or False that turns it off is accepted, because a LossScaleOptimizer sets such values.

    Raises:
        ValueError: If the option is set.
    """
    if name in _OPTIONS and value is not None and value is not False:
        raise ValueError(
            f"`{name}` must be set on the optimizer inside: `optimizer.inner_optimizer.{name} = "
            f"...`. Received: {name}={shown(value)}"
        )


def assign_all(variables: list[Any], weights: Any) -> None:
    """Sets variables to the arrays of a list, all or none of them.

    Raises:
        TypeError: If `weights` is not a list.
        ValueError: If the number of arrays differs, or an array has another shape or no numbers.
    """
    weights = items_in(weights, "weights")
    shapes = [tuple(np.shape(one)) for one in weights]
    wanted = [tuple(one.shape) for one in variables]
    if shapes != wanted:
        raise ValueError(
            "`weights` must have an array of the shape of each of the optimizer's `variables`, "
            f"which it has once it is built: {wanted}. Received: arrays of the shapes {shapes}"
        )
    values = []
    for variable, weight in zip(variables, weights, strict=True):
        try:
            # Keras casts tensors of another dtype, which TensorFlow would refuse. But Keras would
            # leave a sparse tensor unchanged.
            cast = keras.ops.convert_to_tensor(weight, variable.dtype)
            values.append(tf.convert_to_tensor(cast))
        except (TypeError, ValueError, tf.errors.UnimplementedError) as error:
            raise ValueError(
                f"`weights` must have numbers of {variable.dtype} for {variable.path!r}. "
                f"Received: {shown(weight)}"
            ) from error
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)

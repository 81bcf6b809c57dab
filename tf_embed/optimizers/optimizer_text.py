# SPDX-License-Identifier: Apache-2.0
"""The text of an optimizer's `repr`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

_PLAIN = (bool, int, float, str)
_BY_THEMSELVES = ("self", "name", "learning_rate", "keras_optimizer", "kwargs")


def optimizer_text(
    optimizer: keras.optimizers.Optimizer,
    texts: Sequence[str] = (),
    numbers: dict[str, Any] | None = None,
) -> str:
    """Returns the class, name, learning rate, non-default settings and step of an optimizer.

    In a graph, the text omits the learning rate and the step, which are values of variables.

    Args:
        optimizer: The optimizer. Its `__init__` may have failed halfway.
        texts: Additional parts, after the name.
        numbers: Settings whose attributes are not named like their arguments.
    """
    kind = type(optimizer)
    parts = [f"name={getattr(optimizer, 'name', None)!r}", *texts]
    if tf.executing_eagerly():
        parts += _learning_rate(optimizer)
    parts += _settings(optimizer, numbers or {})
    if not getattr(optimizer, "built", False):
        parts.append("not built")
    elif tf.executing_eagerly():
        parts.append(f"iterations={int(tf.convert_to_tensor(optimizer.iterations)):,}")
    return f"<{kind.__name__} {', '.join(parts)}>"


def _learning_rate(optimizer: keras.optimizers.Optimizer) -> list[str]:
    """Returns the current learning rate, or nothing if it can't be evaluated."""
    try:
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
    except Exception:  # a callable may raise anything, and a `repr` must not fail
        return []
    return [f"learning_rate={rate:.6g}"]


def _settings(optimizer: keras.optimizers.Optimizer, numbers: dict[str, Any]) -> list[str]:
    texts = []
    for name, parameter in inspect.signature(type(optimizer)).parameters.items():
        if name in _BY_THEMSELVES:
            continue
        value = numbers.get(name, getattr(optimizer, name, None))
        default = parameter.default
        if not isinstance(value, _PLAIN) or value == default:
            continue
        if not value and default is None:  # 0 stands for a setting that was left out
            continue
        texts.append(f"{name}={value!r}")
    return texts

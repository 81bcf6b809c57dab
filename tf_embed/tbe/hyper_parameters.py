# SPDX-License-Identifier: Apache-2.0
"""`HyperParameters`: the hyper-parameters of a layer's own optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import keras

from tf_embed import validation
from tf_embed.configs import as_number
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer

# FBGEMM's names of hyper-parameters that may change.
_ADJUSTABLE = ("lr", "eps", "beta1", "beta2", "weight_decay", "lower_bound")

_Own = TypeVar("_Own")


def required(own: _Own | None, owner: str, method: str) -> _Own:
    """Returns a layer's own optimizer, or an attribute that belongs to it.

    Raises:
        ValueError: If the layer has no optimizer of its own.
    """
    if own is None:
        raise ValueError(
            f"`{method}` needs the layer's own optimizer. Received: {owner!r}, made with "
            "`optimizer` None or OptimType.NONE, which leave training to the model's optimizer"
        )
    return own


@dataclasses.dataclass(frozen=True)
class HyperParameters:
    """Sets hyper-parameters from the next step on, also of steps that are traced already."""

    owner: str  # the layer, for messages
    optimizer: RowRuleOptimizer | None  # the layer's own

    def set_learning_rate(self, lr: Any) -> None:
        """Sets the learning rate. A schedule can't be set."""
        optimizer = required(self.optimizer, self.owner, "set_learning_rate")
        if not isinstance(optimizer.learning_rate, keras.Variable):
            raise TypeError(
                f"The learning rate of {self.owner!r} is a schedule or a callable, and can't be "
                f"set. Received: lr={validation.shown(lr)}"
            )
        optimizer.learning_rate = as_number(lr, "lr")

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        rate = required(self.optimizer, self.owner, "get_learning_rate").learning_rate
        return float(keras.ops.convert_to_numpy(rate))

    def set_step(self, step: int) -> None:
        """Sets the number of steps made so far."""
        step = validation.int_in(step, "step", least=0)
        required(self.optimizer, self.owner, "set_optimizer_step").iterations.assign(step)

    def update(self, params_dict: Mapping[str, Any]) -> None:
        """Sets hyper-parameters by FBGEMM's names: all of them, or none if a value is refused."""
        optimizer = required(self.optimizer, self.owner, "update_hyper_parameters")
        if not isinstance(params_dict, Mapping):
            raise TypeError(
                "`params_dict` must be a dict from names of hyper-parameters. Received: "
                f"params_dict={validation.shown(params_dict)}"
            )
        values = {}
        for name, value in params_dict.items():
            if name not in _ADJUSTABLE:
                raise ValueError(
                    f"`params_dict` must have names of {', '.join(_ADJUSTABLE)}. Received: "
                    f"params_dict={validation.shown(dict(params_dict))}"
                )
            if name != "lr" and name not in optimizer.adjustable:
                optimizer.refuse(name, value, None)
            value = as_number(value, name)
            values[name] = value if name == "lr" else optimizer.check(name, value)
        # First, because it may still be refused.
        if "lr" in values:
            self.set_learning_rate(values.pop("lr"))
        for name, value in values.items():
            optimizer.adjust(name, value)

# SPDX-License-Identifier: Apache-2.0
"""`Ftrl`: FTRL-proximal with the arguments of OneFlow's."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.configs import as_learning_rate, as_number
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Rows, Slot, fused

_LEAST = float(np.finfo(np.float32).tiny)  # less counts as 0 in float32


@fused
@keras.saving.register_keras_serializable(package="tf_embed.one_embedding")
class Ftrl(RowRuleOptimizer):
    """FTRL-proximal, with the arguments of `oneflow.one_embedding.Ftrl` except `params`.

    For the gradient g of a row, with q = g + weight_decay w and p = -lr_power:

        a' = a + q^2
        z += q - (a'^p - a^p) / lr w
        w = 0 if |z| <= lambda1, otherwise
            -(z - sign(z) lambda1) / ((beta + a'^p) / lr + lambda2)

    a starts from `initial_accumulator_value` and z from 0. Only rows of the step are changed. If
    `weight_decay` is 0, this is `keras.optimizers.Ftrl` with `l1_regularization_strength=lambda1`
    and `l2_regularization_strength=lambda2 / 2`.

    These are the formulas of the paper. OneFlow's page prints others:

    - It raises a to `lr_power` and not to -`lr_power`, in the update of z and in w.
    - It multiplies z - sign(z) lambda1 by (beta + a'^lr_power) / lr + lambda2, and does not divide.

    OneFlow also starts z from `initial_accumulator_value` in eager mode, which moves each row by
    its first step even without a gradient. The paper starts it from 0.

    As a Keras optimizer it has `apply` and no `step(closure)`, `zero_grad` or `support_sparse`: a
    tf.GradientTape computes the gradients, also of single rows.

    Args:
        lr: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable. It is a
            divisor, so a float must be above 0. Default: 1e-3.
        weight_decay: Factor of w in the gradient, a float from 0. Default: 0.
        lr_power: How fast the rate of a weight falls, a float from -10 to 0. Below -10 float32
            overflows. Default: -0.5.
        initial_accumulator_value: The initial value of a, a float from 0. It must be above 0 unless
            `beta` or `lambda2` is, or a weight with a gradient of 0 becomes 0 / 0. The same holds
            for its power of -`lr_power` in float32, which must be finite. Default: 0.1.
        lambda1: Strength of the L1 regularization, a float from 0. Default: 0.
        lambda2: Strength of the L2 regularization, a float from 0. Default: 0.
        beta: A number added to a'^p, a float from 0. Default: 0.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.one_embedding.Ftrl(0.1, lambda1=0.01))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        OneFlow's `oneflow.one_embedding.Ftrl`; McMahan et al., Ad Click Prediction: a View from the
        Trenches, KDD 2013.
    """

    rule = "ftrl"

    def __init__(
        self,
        lr: Any = 1e-3,
        weight_decay: float = 0.0,
        lr_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        lambda1: float = 0.0,
        lambda2: float = 0.0,
        beta: float = 0.0,
        name: str = "ftrl",
        **kwargs: Any,
    ) -> None:
        rate = as_learning_rate(lr, "lr")
        if isinstance(rate, float) and rate <= 0:
            raise ValueError(f"`lr` must be above 0. Received: lr={validation.shown(lr)}")
        super().__init__(rate, name, weight_decay, **kwargs)
        self.lr_power = as_number(lr_power, "lr_power")
        if not -10 <= self.lr_power <= 0:
            raise ValueError(
                f"`lr_power` must be from -10 to 0. Received: lr_power={validation.shown(lr_power)}"
            )
        self.initial_accumulator_value = self.check(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.lambda1 = self.check("lambda1", lambda1)
        self.lambda2 = self.check("lambda2", lambda2)
        self.beta = self.check("beta", beta)
        power = _float32_power(self.initial_accumulator_value, -self.lr_power)
        received = (
            f"initial_accumulator_value={validation.shown(initial_accumulator_value)}, "
            f"lr_power={validation.shown(lr_power)}"
        )
        if max(power, self.lambda2, self.beta) < _LEAST:
            raise ValueError(
                "`initial_accumulator_value` must be above 0 unless `beta` or `lambda2` is, and so "
                f"must its power of -`lr_power` in float32. Received: {received}"
            )
        if power == np.inf:
            raise ValueError(
                "`initial_accumulator_value` must have a power of -`lr_power` that is finite in "
                f"float32. Received: {received}"
            )

    @property
    @override
    def slots(self) -> tuple[Slot, ...]:
        first = self.initial_accumulator_value
        return (Slot("accumulator", True, initial_value=first), Slot("linear", True))

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        del max_counter
        return {
            "initial_accumulator_value": self.initial_accumulator_value,
            "learning_rate_power": self.lr_power,
            "l1": self.lambda1,
            # The rule doubles it, as Keras does.
            "l2": self.lambda2 / 2.0,
            "l2_shrinkage": 0.0,
            "beta": self.beta,
            "decay": decay,
        }

    @override
    def step_rows(self, rows: Rows) -> Rows:
        w, a, z = rows.weights, rows.slots["accumulator"], rows.slots["linear"]
        q = rows.gradients
        if rows.decays and self.decay:
            q += self.decay * w
        after = a + tf.square(q)
        power = after**-self.lr_power
        z += q - (power - a**-self.lr_power) / rows.rate * w
        # z less its clipped value is 0 within lambda1, which makes the weight 0.
        clipped = tf.clip_by_value(z, -self.lambda1, self.lambda1)
        w = (clipped - z) / ((self.beta + power) / rows.rate + self.lambda2)
        return rows.after(w, accumulator=after, linear=z)

    def get_config(self) -> dict[str, Any]:
        """The arguments; `lr` has Keras's name, `learning_rate`."""
        return {
            **super().get_config(),
            "lr_power": self.lr_power,
            "initial_accumulator_value": self.initial_accumulator_value,
            "lambda1": self.lambda1,
            "lambda2": self.lambda2,
            "beta": self.beta,
        }

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Ftrl:
        config = dict(config)
        if "learning_rate" in config:
            config["lr"] = config.pop("learning_rate")
        if isinstance(config.get("lr"), dict):
            config["lr"] = keras.saving.deserialize_keras_object(
                config["lr"], custom_objects=custom_objects
            )
        return cls(**config)


def _float32_power(number: float, exponent: float) -> float:
    """A power in float32, as in rows: 0 if it underflows, infinite if it overflows."""
    with np.errstate(all="ignore"):
        power = np.float32(number if number >= _LEAST else 0.0) ** np.float32(exponent)
    return float(power)

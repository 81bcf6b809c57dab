# SPDX-License-Identifier: Apache-2.0
"""`SmartDecayAdam`: Adam on the rows of a batch that equals Adam on all rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Rows, Slot, fused

_BASE = 2**24  # of the digits of a row's last step; whole numbers up to here are exact in float32
_MOST_REPLAYED = 2**20  # as in cc/core/rules/smart_decay_adam_rule.h


@fused
@keras.saving.register_keras_serializable(package="tf_embed")
class SmartDecayAdam(RowRuleOptimizer):
    """Adam that makes up for the steps in which a row had no gradient.

    On a dense variable, `keras.optimizers.Adam` changes all rows in each step: the moments m and v
    of a row without a gradient decay, and its weights go on moving by m. Here only steps with the
    row change it. A step t that has the row again after step t0 first replays the missed steps
    s = t0 + 1, ..., t - 1:

        m *= beta_1; v *= beta_2; w -= alpha_s m / (sqrt(v) + epsilon)
        alpha_s = learning_rate sqrt(1 - beta_2^s) / (1 - beta_1^s)

    and then makes Adam's step with the gradient. So after a step its rows equal the rows of a dense
    variable that got the same gradients, except for rounding.

    It differs from Adam on a dense variable in these points:

    - A lookup returns a row as its last step left it, without the moves of later steps. So training
      is the same as with a dense variable only if no batch looks up a row that missed the step
      before, or if gradients do not depend on the rows. Otherwise a gradient is taken at a row that
      lacks these moves.
    - Missed steps use the learning rate of the present step. A schedule is followed only in the
      steps that have the row.
    - Missed steps move a row 2^20 times at most, which bounds the time of a step. With the default
      `beta_2` and `epsilon`, and a `beta_1` of at most 0.999, no later move would change a weight.

    `keras.optimizers.Adam` on the rows of a table does not change a row in the steps that do not
    have it: its moments do not decay and its weights do not move.

    The replay of a weight ends as soon as no later move can change it. If beta_1^2 <= beta_2, moves
    never grow, and it ends with the first move that does not change the weight. With the default
    arguments and in float32 these are 100 to 200 moves. Otherwise it ends when the weight is not
    changed by learning_rate m / ((1 - beta_1) epsilon), a bound of all later moves. The moments
    decay for all missed steps in any case. A row keeps m, v, and the number of its last step in two
    numbers, which are exact up to step 2^48.

    On a dense variable a row is an entry of the first axis. Rows that a sparse gradient leaves out
    are missed; a dense gradient has all rows, and the step equals the step of
    `keras.optimizers.Adam`.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
            Default: 0.001.
        beta_1: Decay rate of m, a float from 0 to less than 1. Default: 0.9.
        beta_2: Decay rate of v, a float from 0 to less than 1. Default: 0.999.
        epsilon: A small float that keeps the division finite, at least 0. Default: 1e-7.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer, without weight decay.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If a number is out of range, or there is weight decay.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.optimizers.SmartDecayAdam(0.01))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        OneFlow's `oneflow.one_embedding.SmartDecayAdam`; Kingma and Ba, Adam: A Method for
        Stochastic Optimization, 2015.
    """

    rule = "smart_decay_adam"
    goes_by_steps = True
    has_decay = False
    slots = (
        Slot("momentum", is_wide=True),
        Slot("velocity", is_wide=True),
        Slot("last_step_high", is_wide=False),
        Slot("last_step_low", is_wide=False),
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "smart_decay_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        self.beta_1 = self.check("beta_1", beta_1)
        self.beta_2 = self.check("beta_2", beta_2)
        self.epsilon = self.check("epsilon", epsilon)

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        del decay, max_counter
        return {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}

    @override
    def step_rows(self, rows: Rows) -> Rows:
        slots, dtype = rows.slots, rows.weights.dtype
        step = tf.cast(self.iterations, tf.int64) + 1
        last = tf.cast(slots["last_step_high"], tf.int64) * _BASE
        last += tf.cast(slots["last_step_low"], tf.int64)
        # A row without a step has missed no steps.
        missed = tf.where(last > 0, tf.maximum(step - last - 1, 0), 0)
        w, m, v = rows.weights, slots["momentum"], slots["velocity"]
        w = self._replay(w, m, v, last, missed, rows.rate)
        keeps = (self._keep(self.beta_1, dtype), self._keep(self.beta_2, dtype))
        # In float64, because a power of a number near 1 loses digits.
        m *= tf.cast(keeps[0] ** tf.cast(missed, tf.float64), dtype)
        v *= tf.cast(keeps[1] ** tf.cast(missed, tf.float64), dtype)
        m += (rows.gradients - m) * (1.0 - self.beta_1)
        v += (tf.square(rows.gradients) - v) * (1.0 - self.beta_2)
        alpha = tf.sqrt(_bias(self.beta_2, step)) / _bias(self.beta_1, step)
        alpha = tf.cast(tf.cast(rows.rate, tf.float64) * alpha, dtype)
        return rows.after(
            w - alpha * m / (tf.sqrt(v) + self.epsilon),
            momentum=m,
            velocity=v,
            last_step_high=tf.zeros_like(last, dtype) + tf.cast(step // _BASE, dtype),
            last_step_low=tf.zeros_like(last, dtype) + tf.cast(step % _BASE, dtype),
        )

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }

    def _replay(self, w: Any, m: Any, v: Any, last: Any, missed: Any, rate: Any) -> Any:
        """The weights after the missed steps, by the same formulas as the rule in a table."""
        dtype = w.dtype
        m_decay = tf.cast(self._keep(self.beta_1, dtype), dtype)
        # sqrt(v) decays by the root of v's factor, so a move needs no square root.
        root_decay = tf.cast(np.sqrt(self._keep(self.beta_2, dtype)), dtype)
        moves_shrink = self.beta_1 * self.beta_1 <= self.beta_2
        most = tf.minimum(tf.reduce_max(missed), _MOST_REPLAYED)

        def go_on(number: Any, w: Any, m: Any, *_: Any) -> Any:
            return tf.logical_and(number <= most, tf.reduce_any(m != 0))

        def move(number: Any, w: Any, m: Any, root: Any, bias_1: Any, bias_2: Any) -> Any:
            m, root = m * m_decay, root * root_decay
            bias_1, bias_2 = _next_bias(self.beta_1, bias_1), _next_bias(self.beta_2, bias_2)
            moved = w - rate * tf.sqrt(bias_2) * m / ((root + self.epsilon) * bias_1)
            farthest = moved
            if not moves_shrink:
                farthest = w - tf.math.divide(rate * m, (1.0 - self.beta_1) * self.epsilon)
            # Comparisons with NaN are false, so the replay of a NaN ends.
            changes = tf.logical_or(farthest < w, farthest > w)
            changes = tf.logical_and(changes, number <= missed)
            return (
                number + 1,
                tf.where(changes, moved, w),
                tf.where(changes, m, tf.zeros_like(m)),
                root,
                bias_1,
                bias_2,
            )

        first = tf.constant(1, tf.int64)
        biases = [tf.cast(_bias(beta, last), dtype) for beta in (self.beta_1, self.beta_2)]
        # Rows that missed nothing end at once.
        moving = tf.where(missed > 0, m, tf.zeros_like(m))
        return tf.while_loop(go_on, move, (first, w, moving, tf.sqrt(v), *biases))[1]

    @staticmethod
    def _keep(beta: float, dtype: tf.DType) -> Any:
        """Returns the factor by which a step without a gradient scales a moment, in float64."""
        # Keras multiplies by 1 - beta, rounded to the dtype, so the remaining factor is its
        # complement.
        return np.float64(1.0) - np.float64(dtype.as_numpy_dtype(1.0 - beta))


def _bias(beta: float, step: Any) -> Any:
    """1 - beta^step in float64, for a beta that Keras rounds to float32."""
    return 1.0 - tf.pow(tf.constant(np.float32(beta), tf.float64), tf.cast(step, tf.float64))


def _next_bias(beta: float, bias: Any) -> Any:
    """1 - beta^(s + 1), computed from 1 - beta^s."""
    rounded = float(np.float32(beta))
    return bias * tf.cast(rounded, bias.dtype) + tf.constant(1.0 - rounded, bias.dtype)

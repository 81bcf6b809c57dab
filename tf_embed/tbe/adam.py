# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's Adam, LAMB and LARS, with one moment for each weight or for each row."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed.configs import as_bool
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Rows, Slot, fused


class _RowAdam(RowRuleOptimizer):
    """Adam by rows.

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2, and a step along
    r = m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + eps) + weight_decay w.
    """

    _is_partial = False  # v is one number for each row, of mean(g^2)
    _counts = False  # k counts the row's steps instead of the optimizer's
    _trusts = False  # the step is as long as the weights, times the learning rate

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        name = self.rule if name is None else name
        super().__init__(learning_rate, name, weight_decay, **kwargs)
        self.eps = self.check("eps", eps)
        self.beta1 = self.check("beta1", beta1)
        self.beta2 = self.check("beta2", beta2)

    @property
    @override
    def adjustable(self) -> tuple[str, ...]:
        return ("eps", "beta1", "beta2", "weight_decay")

    @property
    @override
    def goes_by_steps(self) -> bool:
        return not self._counts

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Returns the moments, and the row's step count if there is one."""
        moments = (Slot("exp_avg", is_wide=True), Slot("exp_avg_sq", is_wide=not self._is_partial))
        return (*moments, Slot("row_counter", is_wide=False)) if self._counts else moments

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        del max_counter
        return {
            "epsilon": self.number("eps"),
            "decay": decay,
            "beta_1": self.number("beta1"),
            "beta_2": self.number("beta2"),
        }

    @override
    def step_rows(self, rows: Rows) -> Rows:
        g, m, v = rows.gradients, rows.slots["exp_avg"], rows.slots["exp_avg_sq"]
        square = g * g
        if self._is_partial:
            square = tf.reduce_mean(square, axis=1, keepdims=True)
        m = self.beta1 * m + (1.0 - self.beta1) * g
        v = self.beta2 * v + (1.0 - self.beta2) * square
        slots = {"exp_avg": m, "exp_avg_sq": v}
        k = rows.step
        if self._counts:
            # A row that is inserted late gets the bias correction of first steps too.
            k = slots["row_counter"] = rows.slots["row_counter"] + 1
        direction = (m / _bias(self.beta1, k)) / (tf.sqrt(v / _bias(self.beta2, k)) + self.eps)
        if rows.decays and self.decay:
            direction += self.decay * rows.weights
        trust = _trust(rows.weights, direction) if self._trusts else 1.0
        return rows.after(rows.weights - rows.rate * trust * direction, **slots)

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "eps": self.eps,
            "beta1": self.beta1,
            "beta2": self.beta2,
        }


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class Adam(_RowAdam):
    """FBGEMM's ADAM: Adam with epsilon and weight decay outside of the bias correction.

    For the gradient g of a row: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -=
    learning_rate (m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + eps) + weight_decay w). Here k is
    the step number. Rows that a step does not touch do not change.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        beta1: Decay rate of m, from 0 to less than 1.
        beta2: Decay rate of v, from 0 to less than 1.
        weight_decay: Factor of decoupled weight decay.
        use_rowwise_bias_correction: Whether k counts only the steps that touched the row. A row
            inserted late then gets the same bias correction as an early one.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.Adam(0.01, use_rowwise_bias_correction=True))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's ADAM; Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015; Loshchilov
        and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        use_rowwise_bias_correction: bool = False,
        name: str = "adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, eps, beta1, beta2, weight_decay, name, **kwargs)
        self.use_rowwise_bias_correction = self._counts = as_bool(
            use_rowwise_bias_correction, "use_rowwise_bias_correction"
        )

    @property
    @override
    def rule(self) -> str:
        return "row_adam_counter" if self._counts else "row_adam"

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "use_rowwise_bias_correction": self.use_rowwise_bias_correction,
        }


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class PartialRowwiseAdam(_RowAdam):
    """FBGEMM's PARTIAL_ROWWISE_ADAM: Adam with a single v per row, of the mean of g^2.

    It takes 4 bytes per row plus 4 per weight; Adam takes 8 per weight.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        beta1: Decay rate of the mean of gradients, from 0 to less than 1.
        beta2: Decay rate of the mean of squares, from 0 to less than 1.
        weight_decay: Factor of decoupled weight decay.
        name: Name of the optimizer. Default: the name of its rule.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.PartialRowwiseAdam(0.01))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's PARTIAL_ROWWISE_ADAM.
    """

    _is_partial = True
    rule = "partial_rowwise_adam"


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class LAMB(_RowAdam):
    """FBGEMM's LAMB: Adam whose steps are as long as the row, times the learning rate.

    For r, the direction of Adam with its weight decay: w -= learning_rate (||w|| / ||r||) r, with
    the norms of the row. If one of them is 0, their ratio is taken as 1, so rows of zeros are
    trained too (FBGEMM's are not).

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        beta1: Decay rate of the mean of gradients, from 0 to less than 1.
        beta2: Decay rate of the mean of squares, from 0 to less than 1.
        weight_decay: Factor of the weights in r.
        name: Name of the optimizer. Default: the name of its rule.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.LAMB(0.01))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's LAMB; You et al., Large Batch Optimization for Deep Learning: Training BERT in 76
        minutes, 2020.
    """

    _trusts = True
    rule = "lamb"


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class PartialRowwiseLAMB(_RowAdam):
    """FBGEMM's PARTIAL_ROWWISE_LAMB: LAMB with one v for each row, of the mean of g^2.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        beta1: Decay rate of the mean of gradients, from 0 to less than 1.
        beta2: Decay rate of the mean of squares, from 0 to less than 1.
        weight_decay: Factor of the weights in the direction.
        name: Name of the optimizer. Default: the name of its rule.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.PartialRowwiseLAMB(0.01))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's PARTIAL_ROWWISE_LAMB.
    """

    _is_partial = True
    _trusts = True
    rule = "partial_rowwise_lamb"


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class LARS(RowRuleOptimizer):
    """FBGEMM's LARS_SGD: momentum, with a rate that depends on the norms of a row and its gradient.

    a = learning_rate eta ||w|| / (||g|| + weight_decay ||w||); m = momentum m + a (g + weight_decay
    w); w -= m. If ||w|| or the divisor is 0, a is the learning rate, so rows of zeros are trained
    too (FBGEMM's are not).

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        momentum: Decay rate of m, at least 0.
        eta: The trust coefficient.
        weight_decay: Factor of the weights beside the gradient.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.LARS(0.5))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's LARS_SGD; You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks,
        2017.
    """

    rule = "lars"

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        eta: float = 0.001,
        weight_decay: float = 0.0,
        name: str = "lars_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, **kwargs)
        self.momentum = self.check("momentum", momentum)
        self.eta = self.check("eta", eta)

    @property
    @override
    def adjustable(self) -> tuple[str, ...]:
        return ("weight_decay",)

    @property
    @override
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum", is_wide=True),)

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        del max_counter
        return {"momentum": self.momentum, "decay": decay, "eta": self.eta}

    @override
    def step_rows(self, rows: Rows) -> Rows:
        w, g = rows.weights, rows.gradients
        decay = self.decay if rows.decays else 0.0
        of_weights = _norm(w)
        divisor = _norm(g) + decay * of_weights
        counts = tf.logical_and(of_weights > 0, divisor > 0)
        trust = tf.where(counts, self.eta * tf.math.divide_no_nan(of_weights, divisor), 1.0)
        m = self.momentum * rows.slots["momentum"] + rows.rate * trust * (g + decay * w)
        return rows.after(w - m, momentum=m)

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum, "eta": self.eta}


def _bias(beta: float, k: Any) -> Any:
    """1 - beta^k. If it is close to 0, float32 would lose its digits."""
    return tf.cast(1.0 - tf.pow(tf.constant(beta, tf.float64), tf.cast(k, tf.float64)), k.dtype)


def _norm(rows: Any) -> Any:
    """[n, 1]."""
    return tf.sqrt(tf.reduce_sum(rows * rows, axis=1, keepdims=True))


def _trust(weights: Any, direction: Any) -> Any:
    """Returns ||w|| / ||r||, [n, 1], or 1 if one of them is 0."""
    of_weights, of_direction = _norm(weights), _norm(direction)
    counts = tf.logical_and(of_weights > 0, of_direction > 0)
    return tf.where(counts, tf.math.divide_no_nan(of_weights, of_direction), 1.0)

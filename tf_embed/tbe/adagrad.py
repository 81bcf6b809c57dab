# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's SGD, and its Adagrad by weight and by row."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed.configs import as_config, as_enum
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer, Rows, Slot, fused
from tf_embed.tbe.fbgemm_optimizer_args import (
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    GlobalWeightDecayDefinition,
    LearningRateMode,
    WeightDecayMode,
)


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class SGD(RowRuleOptimizer):
    """FBGEMM's EXACT_SGD: w -= learning_rate g, for the gradient g of a row.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer, without weight decay.

    Raises:
        ValueError: If there is weight decay.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.SGD(0.1))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's EXACT_SGD.
    """

    slots = ()
    rule = "sgd"
    has_decay = False

    def __init__(self, learning_rate: Any = 0.01, name: str = "exact_sgd", **kwargs: Any) -> None:
        super().__init__(learning_rate, name, **kwargs)

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        return {}

    @override
    def step_rows(self, rows: Rows) -> Rows:
        return rows.after(rows.weights - rows.rate * rows.gradients)


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class Adagrad(RowRuleOptimizer):
    """FBGEMM's EXACT_ADAGRAD: Adagrad with epsilon outside of the root, and sums that start at 0.

    For the gradient g of a row, summed over equal ids: s += g^2;
    w -= learning_rate g / (sqrt(s) + eps).

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer, without weight decay.

    Raises:
        ValueError: If `eps` is negative, or there is weight decay.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.Adagrad(0.05))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's EXACT_ADAGRAD; Duchi, Hazan and Singer, Adaptive Subgradient Methods for Online
        Learning and Stochastic Optimization, JMLR 12 (2011).
    """

    slots = (Slot("sum", is_wide=True),)
    rule = "exact_adagrad"
    has_decay = False

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        name: str = "exact_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, **kwargs)
        self.eps = self.check("eps", eps)

    @property
    @override
    def adjustable(self) -> tuple[str, ...]:
        return ("eps",)

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        return {"epsilon": self.number("eps")}

    @override
    def step_rows(self, rows: Rows) -> Rows:
        g = rows.gradients
        total = rows.slots["sum"] + g * g
        return rows.after(rows.weights - rows.rate * g / (tf.sqrt(total) + self.eps), sum=total)

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "eps": self.eps}


class RowwiseAdagradFamily(RowRuleOptimizer):
    """Adagrad with one sum s for each row.

    The rule is s += mean(q^2); w = keep w - rate g. By default, q = g, keep = 1 and
    rate = learning_rate / (sqrt(s) + eps). The mode of weight decay may change them.

    Args:
        learning_rate: As in RowRuleOptimizer.
        eps: A small number that keeps the division finite.
        weight_decay: The rule's own weight decay.
        weight_decay_mode: One of `modes`.
        max_norm: The largest norm that a step leaves the weights of a row; 0: any.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.
    """

    # The supported modes.
    modes: tuple[WeightDecayMode, ...] = (
        WeightDecayMode.NONE,
        WeightDecayMode.L2,
        WeightDecayMode.DECOUPLE,
    )

    def __init__(
        self,
        learning_rate: Any,
        eps: float,
        weight_decay: float,
        weight_decay_mode: WeightDecayMode,
        max_norm: float,
        name: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, name, weight_decay, **kwargs)
        self.eps = self.check("eps", eps)
        self.max_norm = self.check("max_norm", max_norm)
        self.weight_decay_mode = as_enum(weight_decay_mode, "weight_decay_mode", WeightDecayMode)
        if self.weight_decay_mode not in self.modes:
            self.refuse("weight_decay_mode", self.weight_decay_mode, None)
        if self.weight_decay_mode == WeightDecayMode.NONE:
            self.refuse("weight_decay", self.decay, 0.0, " with WeightDecayMode.NONE")

    slots: Any = (Slot("sum", is_wide=False),)

    @property
    def decays(self) -> bool:
        """Whether the rule uses weight decay."""
        return bool(self.weight_decay_mode != WeightDecayMode.NONE)

    @property
    @override
    def adjustable(self) -> tuple[str, ...]:
        return ("eps", "weight_decay") if self.decays else ("eps",)

    def common_hyper(self, decay: Any) -> dict[str, Any]:
        """The hyper-parameters of all of its rules."""
        return {
            "epsilon": self.number("eps"),
            "decay": decay,
            "decay_mode": float(self.weight_decay_mode),
            "max_norm": self.max_norm,
        }

    @override
    def step_rows(self, rows: Rows) -> Rows:
        w, g = rows.weights, rows.gradients
        decay = self.decay if rows.decays else 0.0
        q = g + decay * w if self.decays_gradient else g
        total = rows.slots["sum"] + tf.reduce_mean(q * q, axis=1, keepdims=True)
        rate = rows.rate / (tf.sqrt(total) + self.eps)
        keep, rate, slots = self.factors(rows, decay, rate, total, q)
        w = keep * w - rate * g
        if self.max_norm > 0.0:
            norm = tf.sqrt(tf.reduce_sum(w * w, axis=1, keepdims=True))
            w *= tf.where(norm > self.max_norm, self.max_norm / norm, 1.0)
        return rows.after(w, sum=total, **slots)

    @property
    def decays_gradient(self) -> bool:
        """Whether weight decay counts in s."""
        return bool(self.weight_decay_mode == WeightDecayMode.L2)

    def factors(self, rows: Rows, decay: float, rate: Any, total: Any, q: Any) -> Any:
        """`keep`, `rate` and the slots behind s, of each row."""
        del total, q
        if self.weight_decay_mode == WeightDecayMode.L2:
            return 1.0 - rate * decay, rate, {}
        if self.weight_decay_mode == WeightDecayMode.DECOUPLE:
            return 1.0 - rows.rate * decay, rate, {}
        return 1.0, rate, {}

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "eps": self.eps,
            "weight_decay_mode": int(self.weight_decay_mode),
            "max_norm": self.max_norm,
        }


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class RowwiseAdagrad(RowwiseAdagradFamily):
    """FBGEMM's EXACT_ROWWISE_ADAGRAD: Adagrad with one sum for each row, and weight decay.

    For the gradient g of a row: s += mean(g^2); m = learning_rate / (sqrt(s) + eps); w -= m g. It
    takes 4 bytes per row. `optimizers.RowwiseAdagrad` is the same rule with the arguments of
    Keras's Adagrad. Both use the same slots of a table, except in the modes that need more.

    With `weight_decay`, l, only the rows of a step decay. `weight_decay_mode` is one of:
        NONE: no decay.
        L2: s += mean((g + l w)^2); w = (1 - m l) w - m g.
        DECOUPLE: w = (1 - learning_rate l) w - m g.
        DECOUPLE_GLOBAL: as DECOUPLE. At its next step, a row also gets the decay of the steps that
            it missed, at the current learning rate. Until then lookups return the old row. It takes
            8 bytes per row. A row's last step is a float32, which is exact up to step 2**24.
        COUNTER, COWCLIP: by the number of a row's steps, see the two definitions. They take 12
            bytes per row.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        weight_decay: The factor l, at least 0.
        weight_decay_mode: A WeightDecayMode.
        max_norm: The largest norm that a step leaves the weights of a row; 0: any.
        counter_based_regularization: A CounterBasedRegularizationDefinition, for COUNTER.
        cowclip_regularization: A CowClipDefinition, for COWCLIP.
        global_weight_decay: A GlobalWeightDecayDefinition, for DECOUPLE_GLOBAL.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer.

    Raises:
        TypeError: If a definition is of another type.
        ValueError: If a number is out of range, a definition is missing, or an argument is given
            that the mode does not use, such as `weight_decay` with NONE.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> optimizer = tf_embed.tbe.RowwiseAdagrad(
        ...     0.05, weight_decay=1e-4, weight_decay_mode=tf_embed.tbe.WeightDecayMode.DECOUPLE)
        >>> table = tf_embed.layers.DynamicEmbedding(8, optimizer=optimizer)
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's EXACT_ROWWISE_ADAGRAD; Duchi, Hazan and Singer, Adaptive Subgradient Methods for
        Online Learning and Stochastic Optimization, JMLR 12 (2011).
    """

    modes = tuple(WeightDecayMode)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE,
        max_norm: float = 0.0,
        counter_based_regularization: CounterBasedRegularizationDefinition | None = None,
        cowclip_regularization: CowClipDefinition | None = None,
        global_weight_decay: GlobalWeightDecayDefinition | None = None,
        name: str = "rowwise_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, eps, weight_decay, weight_decay_mode, max_norm, name, **kwargs
        )
        modes = WeightDecayMode
        self.counter_based_regularization = self._definition(
            "counter_based_regularization",
            counter_based_regularization,
            CounterBasedRegularizationDefinition,
            modes.COUNTER,
        )
        self.cowclip_regularization = self._definition(
            "cowclip_regularization", cowclip_regularization, CowClipDefinition, modes.COWCLIP
        )
        self.global_weight_decay = self._definition(
            "global_weight_decay",
            global_weight_decay,
            GlobalWeightDecayDefinition,
            modes.DECOUPLE_GLOBAL,
        )
        if self.counting is not None and not self.decays:
            self.refuse("weight_decay", self.decay, 0.0, " with CounterWeightDecayMode.NONE")
        by_counter = self.counter_based_regularization
        if by_counter is not None and by_counter.needs_max_counter:
            self.max_counter_every = int(by_counter.max_counter_update_freq)

    @property
    def counting(self) -> Any:
        """The definition of a mode that counts, or None."""
        return self.counter_based_regularization or self.cowclip_regularization

    @property
    @override
    def decays(self) -> bool:
        if self.counting is not None:
            return bool(self.counting.counter_weight_decay_mode != CounterWeightDecayMode.NONE)
        return super().decays

    @property
    @override
    def adjustable(self) -> tuple[str, ...]:
        bound = () if self.global_weight_decay is None else ("lower_bound",)
        return (*super().adjustable, *bound)

    @property
    def lower_bound(self) -> float:
        """The least decay factor of a weight for the steps without its row."""
        return 0.0 if self.global_weight_decay is None else self.global_weight_decay.lower_bound

    def _take(self, name: str, value: float) -> None:
        if name != "lower_bound":
            super()._take(name, value)
        elif self.global_weight_decay is not None:
            self.global_weight_decay = dataclasses.replace(
                self.global_weight_decay, lower_bound=value
            )

    @property
    @override
    def goes_by_steps(self) -> bool:
        return self.counting is not None or self.global_weight_decay is not None

    @property
    @override
    def slots(self) -> tuple[Slot, ...]:
        names = ["sum"]
        if self.counting is not None or self.global_weight_decay is not None:
            names.append("prev_iter")
        if self.counting is not None:
            names.append("row_counter")
        return tuple(Slot(name, is_wide=False) for name in names)

    @property
    @override
    def rule(self) -> str:
        if self.counting is not None:
            return "rowwise_adagrad_counter"
        return "rowwise_adagrad" + "_global" * (self.global_weight_decay is not None)

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        common = self.common_hyper(decay)
        if self.counting is None and self.global_weight_decay is None:
            # `optimizers.RowwiseAdagrad` has the same rule, but its sum may start elsewhere.
            return {"initial_accumulator_value": 0.0, **common}
        if self.global_weight_decay is not None:
            return {
                **common,
                "start_step": float(self.global_weight_decay.start_iter),
                "lower_bound": self.number("lower_bound"),
            }
        # One rule has both modes, so it also takes the numbers of the unused mode.
        counter = self.counter_based_regularization or CounterBasedRegularizationDefinition()
        clip = self.cowclip_regularization or CowClipDefinition()
        return {
            **common,
            "counter_decay_mode": float(self.counting.counter_weight_decay_mode),
            "counter_half_life": float(self.counting.counter_halflife),
            "adjustment_step": float(counter.adjustment_iter),
            "adjustment_bound": counter.adjustment_ub,
            "counter_rate_mode": float(counter.learning_rate_mode),
            "tail_threshold": self._tail_threshold(max_counter),
            "max_counter": 1.0 if max_counter is None else max_counter,
            "norm_coefficient": clip.weight_norm_coefficient,
            "lower_bound": clip.lower_bound,
        }

    @property
    @override
    def decays_gradient(self) -> bool:
        if self.counting is not None:
            return bool(self.counting.counter_weight_decay_mode == CounterWeightDecayMode.L2)
        return super().decays_gradient

    @override
    def factors(self, rows: Rows, decay: float, rate: Any, total: Any, q: Any) -> Any:
        if self.global_weight_decay is not None:
            return self._make_up(rows, decay, rate)
        if self.counting is None:
            return super().factors(rows, decay, rate, total, q)
        before = rows.slots["prev_iter"]
        # A new row has no previous step; its gap is 1.
        gap = tf.where(tf.equal(before, 0.0), 1.0, rows.step - before)
        half_life = float(self.counting.counter_halflife)
        n = rows.slots["row_counter"]
        if half_life > 0:
            n = 1.0 + tf.pow(tf.constant(2.0, n.dtype), -gap / half_life) * n
        else:
            n = tf.ones_like(n) if half_life == 0 else n + 1.0
        slots = {"prev_iter": tf.zeros_like(before) + rows.step, "row_counter": n}
        if self.cowclip_regularization is not None:
            keep, rate = self._clip(rows, decay, rate, n, q)
        else:
            keep, rate = self._adjust(rows, decay, rate, total, n, gap)
        return keep, rate, slots

    @override
    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in (
            "counter_based_regularization",
            "cowclip_regularization",
            "global_weight_decay",
        ):
            definition = getattr(self, name)
            config[name] = None if definition is None else definition.get_config()
        return config

    def _definition(self, name: str, value: Any, kind: type, mode: WeightDecayMode) -> Any:
        value = as_config(value, name, kind)
        if self.weight_decay_mode == mode and value is None:
            raise ValueError(
                f"`{name}` must be given with WeightDecayMode.{mode.name}. Received: {name}=None"
            )
        if self.weight_decay_mode != mode:
            self.refuse(name, value, None, f" with WeightDecayMode.{self.weight_decay_mode.name}")
        return value

    def _tail_threshold(self, max_counter: Any) -> Any:
        if self.counter_based_regularization is None:
            return 0.0
        threshold = self.counter_based_regularization.tail_id_threshold
        if not threshold.is_ratio:
            return float(threshold.val)
        return tf.floor(threshold.val * max_counter)

    def _make_up(self, rows: Rows, decay: float, rate: Any) -> Any:
        keep = 1.0 - rows.rate * decay
        before = rows.slots["prev_iter"]
        counts = tf.greater_equal(rows.step, float(self.global_weight_decay.start_iter))
        missed = tf.where(
            tf.logical_and(counts, before > 0.0), tf.maximum(rows.step - before - 1.0, 0.0), 0.0
        )
        bound = self.global_weight_decay.lower_bound
        fade = tf.where(missed > 0.0, tf.maximum(_kept(rows.rate, decay, missed), bound), 1.0)
        return fade * keep, rate, {"prev_iter": tf.where(counts, rows.step, before)}

    def _adjust(
        self, rows: Rows, decay: float, rate: Any, total: Any, n: Any, gap: Any
    ) -> tuple[Any, Any]:
        definition = self.counter_based_regularization
        half_life, bound = float(definition.counter_halflife), definition.adjustment_ub
        frequency = half_life / n if half_life > 0 else 1.0
        adjusted = rate
        most = rows.max_counter
        if definition.learning_rate_mode == LearningRateMode.TAIL_ID_LR_INCREASE:
            adjusted = rate * tf.clip_by_value(tf.pow(most / (n + 1.0), bound), 1.0, 10.0)
        elif definition.learning_rate_mode == LearningRateMode.TAIL_ID_LR_DECREASE:
            adjusted = rate * tf.clip_by_value(tf.pow((n + 1.0) / most, bound), 0.1, 1.0)
        elif definition.learning_rate_mode == LearningRateMode.COUNTER_SGD:
            adjusted = rows.rate / (tf.sqrt(bound * n) + self.eps)
        adjusted = tf.where(n > self._tail_threshold(most), adjusted, rate)
        keep: Any = 1.0
        if definition.counter_weight_decay_mode == CounterWeightDecayMode.L2:
            keep = 1.0 - frequency * decay * rate
        elif definition.counter_weight_decay_mode == CounterWeightDecayMode.DECOUPLE:
            keep = 1.0 - frequency * decay * rows.rate
        elif definition.counter_weight_decay_mode == CounterWeightDecayMode.ADAGRADW:
            # FBGEMM's half-lives of -1 and -2 select other formulas.
            if half_life == -1:
                adjusted = rate * tf.sqrt(n)
            elif half_life == -2:
                adjusted = tf.minimum(rows.rate * n, bound) / (tf.sqrt(total) + self.eps)
            keep = 1.0 - decay * rows.rate
            # Steps before `adjustment_iter` decay nothing.
            missed = tf.minimum(gap, rows.step - float(definition.adjustment_iter)) - 1.0
            lazy = _kept(rows.rate, decay, tf.maximum(missed, 0.0))
            adjusted, keep = adjusted * lazy, keep * lazy
        first = float(definition.adjustment_iter)
        if first <= 0.0:
            return keep, adjusted
        on = rows.step > first
        return tf.where(on, keep, 1.0), tf.where(on, adjusted, rate)

    def _clip(self, rows: Rows, decay: float, rate: Any, n: Any, q: Any) -> tuple[Any, Any]:
        definition = self.cowclip_regularization

        def norm(x: Any) -> Any:
            return tf.sqrt(tf.reduce_sum(x * x, axis=1, keepdims=True))

        of_weights = definition.weight_norm_coefficient * norm(rows.weights)
        most = n * tf.maximum(of_weights, definition.lower_bound)
        of_gradient = norm(q)
        rate *= tf.where(of_gradient > most, tf.math.divide_no_nan(most, of_gradient), 1.0)
        if definition.counter_weight_decay_mode == CounterWeightDecayMode.L2:
            return 1.0 - decay * rate, rate
        if definition.counter_weight_decay_mode == CounterWeightDecayMode.DECOUPLE:
            return 1.0 - decay * rows.rate, rate
        return 1.0, rate


def _kept(rate: Any, decay: float, steps: Any) -> Any:
    """The share of a weight that remains after `steps` decays, [n, 1].

    The power is in float64: float32 would round a single decay to a multiple of 2^-24.
    """
    one = 1.0 - tf.cast(tf.convert_to_tensor(rate), tf.float64) * decay
    return tf.cast(tf.pow(one, tf.cast(steps, tf.float64)), steps.dtype)

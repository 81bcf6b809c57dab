# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's row-wise Adagrads that average weights: at some steps they change all rows."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed.configs import as_config
from tf_embed.optimizers.row_rule_optimizer import Rows, Slot, fused
from tf_embed.tbe.adagrad import RowwiseAdagradFamily
from tf_embed.tbe.fbgemm_optimizer_args import (
    EmainplaceModeDefinition,
    EnsembleModeDefinition,
    StepMode,
    WeightDecayMode,
)


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class EnsembleRowwiseAdagrad(RowwiseAdagradFamily):
    """FBGEMM's ENSEMBLE_ROWWISE_ADAGRAD: RowwiseAdagrad that averages all rows at some steps.

    Each row has an average z of its weights. Before step t, that is, at the end of step t - 1: if
    `step_ema` divides t, z = k z + (1 - k) w for all rows, with k = 0 up to `step_start` and then
    `step_ema_coef`; if `step_swap` divides t, w = z for all rows. As in FBGEMM, z starts at 0. But
    if the first average is the weights (`step_start` is at least `step_ema`, and averages
    continue), z starts at the row's first weights, as if a new row had always been there.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        weight_decay: As in RowwiseAdagrad.
        weight_decay_mode: WeightDecayMode.NONE, L2 or DECOUPLE.
        max_norm: The largest norm that a step leaves the weights of a row; 0: any.
        ensemble_mode: An EnsembleModeDefinition; None: its defaults.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer. In a table, not `use_ema`.

    Raises:
        TypeError: If the definition is of another type.
        ValueError: If a number is out of range, or there is weight decay in a mode without it.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> mode = tf_embed.tbe.EnsembleModeDefinition(step_ema=10, step_swap=100, step_start=100)
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.EnsembleRowwiseAdagrad(0.05, ensemble_mode=mode))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's ENSEMBLE_ROWWISE_ADAGRAD.
    """

    rule = "ensemble_rowwise_adagrad"
    changes_all_rows = True

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE,
        max_norm: float = 0.0,
        ensemble_mode: EnsembleModeDefinition | None = None,
        name: str = "ensemble_rowwise_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, eps, weight_decay, weight_decay_mode, max_norm, name, **kwargs
        )
        ensemble_mode = as_config(ensemble_mode, "ensemble_mode", EnsembleModeDefinition)
        self.ensemble_mode = ensemble_mode or EnsembleModeDefinition()

    @property
    def keeps_average(self) -> bool:
        """Whether an average continues after it was used."""
        return bool(self.ensemble_mode.step_mode != StepMode.NONE)

    @property
    def starts_at_weights(self) -> bool:
        """Whether the first average is the weights."""
        mode = self.ensemble_mode
        return self.keeps_average and int(mode.step_start) >= int(mode.step_ema)

    @property
    @override
    def slots(self) -> tuple[Slot, ...]:
        average = Slot("sparse_ema", is_wide=True, starts_at_weights=self.starts_at_weights)
        return (average, Slot("sum", is_wide=False))

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        mode = self.ensemble_mode
        return {
            **self.common_hyper(decay),
            # NaN starts the average at the weights of the row.
            "initial_average": float("nan") if self.starts_at_weights else 0.0,
            "average_every": float(int(mode.step_ema)),
            "swap_every": float(int(mode.step_swap)),
            "average_start": float(int(mode.step_start)),
            "average_coefficient": mode.step_ema_coef,
            "keeps_average": float(self.keeps_average),
        }

    @override
    def pass_over(self, rows: Rows) -> Rows:
        mode = self.ensemble_mode
        # FBGEMM averages before the lookup of a step. Here it is at the end of the previous step.
        following = rows.step + 1
        w, z = rows.weights, rows.slots["sparse_ema"]
        averages, swaps = _divides(mode.step_ema, following), _divides(mode.step_swap, following)
        old = tf.where(following <= float(int(mode.step_start)), 0.0, mode.step_ema_coef)
        z = tf.where(averages, z + (1.0 - old) * (w - z), z)
        w = tf.where(swaps, z, w)
        if not self.keeps_average:
            z = tf.where(averages, tf.zeros_like(z), z)
        return rows.after(w, sparse_ema=z)

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ensemble_mode": self.ensemble_mode.get_config()}


@fused
@keras.saving.register_keras_serializable(package="tf_embed.tbe")
class EmaInplaceRowwiseAdagrad(RowwiseAdagradFamily):
    """FBGEMM's EMAINPLACE_ROWWISE_ADAGRAD: RowwiseAdagrad of rows whose second half is an average.

    Before step t, that is, at the end of step t - 1, if `step_ema` divides t and t is at least
    `step_start`, the second half of all rows follows the first: w_2 += step_ema_coef (w_1 - w_2).
    Dense variables with one axis, such as biases, have no halves and are left to RowwiseAdagrad.

    A table stores no row that was never written, even if it is an array of rows. Such a row keeps
    its initial weights in both halves until its first step. In FBGEMM its second half follows.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps the division finite.
        weight_decay: As in RowwiseAdagrad.
        weight_decay_mode: WeightDecayMode.NONE, L2 or DECOUPLE.
        max_norm: The largest norm that a step leaves the weights of a row; 0: any.
        emainplace_mode: An EmainplaceModeDefinition; None: its defaults.
        name: Name of the optimizer.
        **kwargs: Options of keras.optimizers.Optimizer. In a table, not `use_ema`.

    Raises:
        TypeError: If the definition is of another type.
        ValueError: If a number is out of range, or there is weight decay in a mode without it. When
            it is built: if rows have an odd number of weights.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> table = tf_embed.layers.DynamicEmbedding(
        ...     8, optimizer=tf_embed.tbe.EmaInplaceRowwiseAdagrad(0.05))
        >>> table(tf.constant([1, 2])).shape
        TensorShape([2, 8])

    Reference:
        FBGEMM's EMAINPLACE_ROWWISE_ADAGRAD.
    """

    rule = "ema_rowwise_adagrad"
    changes_all_rows = True

    def __init__(
        self,
        learning_rate: Any = 0.01,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE,
        max_norm: float = 0.0,
        emainplace_mode: EmainplaceModeDefinition | None = None,
        name: str = "ema_inplace_rowwise_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate, eps, weight_decay, weight_decay_mode, max_norm, name, **kwargs
        )
        mode = as_config(emainplace_mode, "emainplace_mode", EmainplaceModeDefinition)
        self.emainplace_mode = mode or EmainplaceModeDefinition()

    def check_dim(self, dim: int, name: str) -> None:
        """Refuses rows with an odd number of weights."""
        if dim % 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of an even number of weights: give it to the "
                f"tables that have such, by the `optimizer` of their layers. Received: {name!r} "
                f"with {dim}"
            )

    @override
    def hyper(self, decay: Any, max_counter: Any) -> dict[str, Any]:
        mode = self.emainplace_mode
        return {
            **self.common_hyper(decay),
            "average_every": float(int(mode.step_ema)),
            "average_start": float(int(mode.step_start)),
            "average_coefficient": mode.step_ema_coef,
        }

    @override
    def pass_over(self, rows: Rows) -> Rows:
        mode = self.emainplace_mode
        following = rows.step + 1
        if rows.weights.shape[1] == 1:
            return rows
        first, second = tf.split(rows.weights, 2, axis=1)
        due = tf.logical_and(
            _divides(mode.step_ema, following), following >= float(int(mode.step_start))
        )
        second = tf.where(due, second + mode.step_ema_coef * (first - second), second)
        return rows.after(tf.concat([first, second], axis=1))

    @override
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "emainplace_mode": self.emainplace_mode.get_config()}


def _divides(every: float, step: Any) -> Any:
    """Whether a step number is a multiple of `every`. FBGEMM's step numbers are floats."""
    return tf.equal(tf.cast(step, tf.int64) % int(every), 0)

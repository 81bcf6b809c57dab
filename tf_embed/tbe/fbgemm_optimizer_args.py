# SPDX-License-Identifier: Apache-2.0
"""The settings of the optimizers of FBGEMM's table-batched embeddings, by FBGEMM's names."""

from __future__ import annotations

import dataclasses
import enum

import keras

from tf_embed.configs import Config, as_bool, as_int


class EmbOptimType(enum.Enum):
    """FBGEMM's optimizers, and `NONE`, which leaves training to the caller.

    `tf_embed.optimizers` has each as a Keras optimizer.
    """

    EXACT_SGD = "exact_sgd"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    ADAM = "adam"
    LAMB = "lamb"
    LARS_SGD = "lars_sgd"
    PARTIAL_ROWWISE_ADAM = "partial_row_wise_adam"
    PARTIAL_ROWWISE_LAMB = "partial_row_wise_lamb"
    ENSEMBLE_ROWWISE_ADAGRAD = "ensemble_row_wise_adagrad"
    EMAINPLACE_ROWWISE_ADAGRAD = "ema_in_place_row_wise_adagrad"
    NONE = "none"

    def __str__(self) -> str:
        return str(self.value)


OptimType = EmbOptimType


class WeightDecayMode(enum.IntEnum):
    """Decay of weights by row-wise Adagrad; see `tf_embed.tbe.RowwiseAdagrad`."""

    NONE = 0
    L2 = 1
    DECOUPLE = 2
    COUNTER = 3
    COWCLIP = 4
    DECOUPLE_GLOBAL = 5


class CounterWeightDecayMode(enum.IntEnum):
    """The kind of weight decay with COUNTER, which counts the steps of a row."""

    NONE = 0
    L2 = 1
    DECOUPLE = 2
    ADAGRADW = 3


class LearningRateMode(enum.IntEnum):
    """The effect of a count of a row's steps on its learning rate."""

    EQUAL = -1
    TAIL_ID_LR_INCREASE = 0
    TAIL_ID_LR_DECREASE = 1
    COUNTER_SGD = 2


class GradSumDecay(enum.IntEnum):
    """Whether sums of gradients decay. Only `NO_DECAY` has an effect, as in FBGEMM."""

    NO_DECAY = -1
    CTR_DECAY = 0


class StepMode(enum.IntEnum):
    """Whether an average starts again after it was used. It does with `NONE`."""

    NONE = 0
    USE_COUNTER = 1
    USE_ITER = 2


@dataclasses.dataclass(frozen=True)
class TailIdThreshold(Config):
    """The minimum count of a row that is not in the tail.

    Args:
        val: The count or, if `is_ratio`, its share of the largest count of all rows.
        is_ratio: Whether `val` is a share.

    Raises:
        TypeError: If an argument is of another type.

    Example:
        >>> from tf_embed import tbe
        >>> threshold = tbe.TailIdThreshold(val=0.5, is_ratio=True)
        >>> tbe.CounterBasedRegularizationDefinition(tail_id_threshold=threshold).needs_max_counter
        True
    """

    val: float = 0
    is_ratio: bool = False

    def __post_init__(self) -> None:
        self._check_numbers("val")
        self._take(as_bool, "is_ratio")


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class CounterBasedRegularizationDefinition(Config):
    """Weight decay and learning rates by the number of a row's steps, n.

    Args:
        counter_weight_decay_mode: `L2` and `DECOUPLE` multiply the decay by `counter_halflife` / n.
            `ADAGRADW` makes up for the steps that left a row out.
        counter_halflife: The number of steps without the row that halve n. -1 and -2: n never
            halves, and the decay is multiplied by 1; they differ only in `ADAGRADW`. 0: n is always
            1.
        adjustment_iter: The step after which decay and learning rates are adjusted; below 1: from
            the first step.
        adjustment_ub: The exponent of `TAIL_ID_LR_INCREASE` and `TAIL_ID_LR_DECREASE`, the factor
            of n of `COUNTER_SGD`, and the bound of `ADAGRADW` with a `counter_halflife` of -2.
        learning_rate_mode: For rows whose n is above `tail_id_threshold`.
        grad_sum_decay: `NO_DECAY`.
        tail_id_threshold: A TailIdThreshold.
        max_counter_update_freq: Number of steps between two computations of the largest n of all
            rows. These are the rows of a table, or of all tables of a
            `tf_embed.tbe.TableBatchedEmbeddingBags` that trains itself.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 2)],
        ...     optimizer="EXACT_ROWWISE_ADAGRAD",
        ...     weight_decay=0.01,
        ...     weight_decay_mode="COUNTER",
        ...     counter_based_regularization=tbe.CounterBasedRegularizationDefinition(
        ...         counter_weight_decay_mode="L2", counter_halflife=1000))
    """

    counter_weight_decay_mode: CounterWeightDecayMode = CounterWeightDecayMode.NONE
    counter_halflife: int = -1
    adjustment_iter: int = -1
    adjustment_ub: float = 1.0
    learning_rate_mode: LearningRateMode = LearningRateMode.EQUAL
    grad_sum_decay: GradSumDecay = GradSumDecay.NO_DECAY
    tail_id_threshold: TailIdThreshold = TailIdThreshold()
    max_counter_update_freq: int = 1000

    def __post_init__(self) -> None:
        self._take_enum("counter_weight_decay_mode", CounterWeightDecayMode)
        self._take_enum("learning_rate_mode", LearningRateMode)
        self._take_enum("grad_sum_decay", GradSumDecay)
        self._take_config("tail_id_threshold", TailIdThreshold)
        self._check("tail_id_threshold", "a TailIdThreshold", self.tail_id_threshold is not None)
        self._take(as_int, "counter_halflife", "adjustment_iter", "max_counter_update_freq")
        self._check_numbers("adjustment_ub")
        self._check(
            "grad_sum_decay",
            "GradSumDecay.NO_DECAY, as no optimizer uses another",
            self.grad_sum_decay == GradSumDecay.NO_DECAY,
        )
        self._check("max_counter_update_freq", "at least 1", self.max_counter_update_freq >= 1)
        self._check("adjustment_ub", "at least 0", self.adjustment_ub >= 0)

    @property
    def needs_max_counter(self) -> bool:
        """Whether the largest n of all rows is used."""
        return self.tail_id_threshold.is_ratio or self.learning_rate_mode in (
            LearningRateMode.TAIL_ID_LR_INCREASE,
            LearningRateMode.TAIL_ID_LR_DECREASE,
        )


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class CowClipDefinition(Config):
    """Clipping of a row's gradient by the norm of its weights and the number of its steps, n.

    The gradient's norm is at most n max(`weight_norm_coefficient` ||w||, `lower_bound`).

    Args:
        counter_weight_decay_mode: `NONE`, `L2` or `DECOUPLE`.
        counter_halflife: As in CounterBasedRegularizationDefinition.
        weight_norm_coefficient: See above.
        lower_bound: See above.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 2)],
        ...     optimizer="EXACT_ROWWISE_ADAGRAD",
        ...     weight_decay_mode="COWCLIP",
        ...     cowclip_regularization=tbe.CowClipDefinition(lower_bound=1e-4))

    Reference:
        Zheng et al., CowClip: Reducing CTR Prediction Model Training Time from 12 Hours to 10
        Minutes on 1 GPU, 2022.
    """

    counter_weight_decay_mode: CounterWeightDecayMode = CounterWeightDecayMode.NONE
    counter_halflife: int = -1
    weight_norm_coefficient: float = 0.0
    lower_bound: float = 0.0

    def __post_init__(self) -> None:
        self._take_enum("counter_weight_decay_mode", CounterWeightDecayMode)
        self._take(as_int, "counter_halflife")
        self._check_numbers("weight_norm_coefficient", "lower_bound")
        self._check(
            "counter_weight_decay_mode",
            "NONE, L2 or DECOUPLE",
            self.counter_weight_decay_mode != CounterWeightDecayMode.ADAGRADW,
        )
        for name in ("weight_norm_coefficient", "lower_bound"):
            self._check(name, "at least 0", getattr(self, name) >= 0)


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class GlobalWeightDecayDefinition(Config):
    """Decoupled weight decay that makes up, at a row's next step, for the steps without it.

    Args:
        start_iter: The step from which decay counts.
        lower_bound: The least decay factor of a weight for the steps without its row, from 0 to 1.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 2)],
        ...     optimizer="EXACT_ROWWISE_ADAGRAD",
        ...     weight_decay=0.01,
        ...     weight_decay_mode="DECOUPLE_GLOBAL",
        ...     global_weight_decay=tbe.GlobalWeightDecayDefinition(start_iter=100))
    """

    start_iter: int = 0
    lower_bound: float = 0.0

    def __post_init__(self) -> None:
        self._take(as_int, "start_iter")
        self._check_numbers("lower_bound")
        self._check("lower_bound", "from 0 to 1", 0 <= self.lower_bound <= 1)


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class EnsembleModeDefinition(Config):
    """When EnsembleRowwiseAdagrad averages weights, and puts the averages in their place.

    Args:
        step_ema: Number of steps between two updates of the averages of all rows. At least 1.
        step_swap: Number of steps between two replacements of rows by averages. At least 1.
        step_start: Up to this step, an average is the weights.
        step_ema_coef: The share of the old average in the new average.
        step_mode: With StepMode.NONE, an average starts at 0 again after it was used.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 2)],
        ...     optimizer="ENSEMBLE_ROWWISE_ADAGRAD",
        ...     ensemble_mode=tbe.EnsembleModeDefinition(step_ema=10, step_swap=100))
    """

    step_ema: float = 10000
    step_swap: float = 10000
    step_start: float = 0
    step_ema_coef: float = 0.6
    step_mode: StepMode = StepMode.USE_ITER

    def __post_init__(self) -> None:
        self._take_enum("step_mode", StepMode)
        self._check_numbers("step_ema", "step_swap", "step_start", "step_ema_coef")
        for name in ("step_ema", "step_swap"):
            self._check(name, "at least 1", getattr(self, name) >= 1)
        self._check("step_ema_coef", "from 0 to 1", 0 <= self.step_ema_coef <= 1)


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class EmainplaceModeDefinition(Config):
    """When the second half of a row follows the first, by EmaInplaceRowwiseAdagrad.

    Args:
        step_ema: Number of steps between two updates. At least 1.
        step_start: The first step with an update.
        step_ema_coef: The share of the difference that an update removes.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 4)],
        ...     optimizer="EMAINPLACE_ROWWISE_ADAGRAD",
        ...     emainplace_mode=tbe.EmainplaceModeDefinition(step_ema=5))
    """

    step_ema: float = 10
    step_start: float = 0
    step_ema_coef: float = 0.6

    def __post_init__(self) -> None:
        self._check_numbers("step_ema", "step_start", "step_ema_coef")
        self._check("step_ema", "at least 1", self.step_ema >= 1)
        self._check("step_ema_coef", "from 0 to 1", 0 <= self.step_ema_coef <= 1)

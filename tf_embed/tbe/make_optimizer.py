# SPDX-License-Identifier: Apache-2.0
"""Makes a table-batched layer's optimizer from its OptimType and FBGEMM's settings."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed.configs import Config, as_enum, as_learning_rate
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.tbe.adagrad import SGD, Adagrad, RowwiseAdagrad
from tf_embed.tbe.adam import LAMB, LARS, Adam, PartialRowwiseAdam, PartialRowwiseLAMB
from tf_embed.tbe.averages import EmaInplaceRowwiseAdagrad, EnsembleRowwiseAdagrad
from tf_embed.tbe.fbgemm_optimizer_args import (
    CounterBasedRegularizationDefinition,
    CowClipDefinition,
    EmainplaceModeDefinition,
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    WeightDecayMode,
)
from tf_embed.tbe.fbgemm_types import UserEnabledConfigDefinition
from tf_embed.validation import shown


@dataclasses.dataclass(frozen=True)
class OptimizerSettings(Config):
    """The settings of all of FBGEMM's optimizers, of which each uses some.

    Args:
        learning_rate: A float, a keras.optimizers.schedules.LearningRateSchedule, or a callable.
        eps: A small number that keeps divisions finite. For all but EXACT_SGD and LARS_SGD.
        momentum: For LARS_SGD.
        weight_decay: For all but EXACT_SGD and EXACT_ADAGRAD. The row-wise Adagrads need a
            `weight_decay_mode` that decays.
        weight_decay_mode: For the row-wise Adagrads; ENSEMBLE_ and EMAINPLACE_ROWWISE_ADAGRAD have
            NONE, L2 and DECOUPLE.
        eta: For LARS_SGD.
        beta1: For ADAM, LAMB and their PARTIAL_ROWWISE_ kinds.
        beta2: For the same optimizers.
        max_norm: For the row-wise Adagrads.
        ensemble_mode: For ENSEMBLE_ROWWISE_ADAGRAD; None: its defaults.
        emainplace_mode: For EMAINPLACE_ROWWISE_ADAGRAD; None: its defaults.
        counter_based_regularization: For EXACT_ROWWISE_ADAGRAD, only with WeightDecayMode.COUNTER.
        cowclip_regularization: For EXACT_ROWWISE_ADAGRAD, only with WeightDecayMode.COWCLIP.
        global_weight_decay: For EXACT_ROWWISE_ADAGRAD, only with WeightDecayMode.DECOUPLE_GLOBAL.
        extra_optimizer_config: `use_rowwise_bias_correction`, for ADAM.

    Raises:
        TypeError: If a setting is of another type.
        ValueError: If `weight_decay_mode` is not a mode, or a number is not finite.
    """

    learning_rate: Any = 0.01
    eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE
    eta: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    max_norm: float = 0.0
    ensemble_mode: EnsembleModeDefinition | None = None
    emainplace_mode: EmainplaceModeDefinition | None = None
    counter_based_regularization: CounterBasedRegularizationDefinition | None = None
    cowclip_regularization: CowClipDefinition | None = None
    global_weight_decay: GlobalWeightDecayDefinition | None = None
    extra_optimizer_config: UserEnabledConfigDefinition | None = None

    def __post_init__(self) -> None:
        self._take_enum("weight_decay_mode", WeightDecayMode)
        for name, kind in (
            ("ensemble_mode", EnsembleModeDefinition),
            ("emainplace_mode", EmainplaceModeDefinition),
            ("counter_based_regularization", CounterBasedRegularizationDefinition),
            ("cowclip_regularization", CowClipDefinition),
            ("global_weight_decay", GlobalWeightDecayDefinition),
            ("extra_optimizer_config", UserEnabledConfigDefinition),
        ):
            self._take_config(name, kind)
        self._take(as_learning_rate, "learning_rate")
        self._check_numbers("eps", "momentum", "weight_decay", "eta", "beta1", "beta2", "max_norm")

    def differing(self) -> list[str]:
        """Names of the settings that are not at their defaults."""
        default = OptimizerSettings()
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if not _is(getattr(self, name), getattr(default, name))]


def _adam(extra_optimizer_config: UserEnabledConfigDefinition | None, **settings: Any) -> Adam:
    extra = extra_optimizer_config or UserEnabledConfigDefinition()
    return Adam(
        use_rowwise_bias_correction=extra.use_rowwise_bias_correction,
        **settings,
    )


_ADAM = ("learning_rate", "eps", "beta1", "beta2", "weight_decay")
_ROWWISE = ("learning_rate", "eps", "weight_decay", "weight_decay_mode", "max_norm")

# The class or function that makes each type's optimizer, and the settings that it uses.
_MAKERS: dict[EmbOptimType, tuple[Callable[..., RowRuleOptimizer], tuple[str, ...]]] = {
    EmbOptimType.EXACT_SGD: (SGD, ("learning_rate",)),
    EmbOptimType.EXACT_ADAGRAD: (Adagrad, ("learning_rate", "eps")),
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: (
        RowwiseAdagrad,
        (
            *_ROWWISE,
            "counter_based_regularization",
            "cowclip_regularization",
            "global_weight_decay",
        ),
    ),
    EmbOptimType.ADAM: (_adam, (*_ADAM, "extra_optimizer_config")),
    EmbOptimType.LAMB: (LAMB, _ADAM),
    EmbOptimType.LARS_SGD: (LARS, ("learning_rate", "momentum", "eta", "weight_decay")),
    EmbOptimType.PARTIAL_ROWWISE_ADAM: (PartialRowwiseAdam, _ADAM),
    EmbOptimType.PARTIAL_ROWWISE_LAMB: (PartialRowwiseLAMB, _ADAM),
    EmbOptimType.ENSEMBLE_ROWWISE_ADAGRAD: (EnsembleRowwiseAdagrad, (*_ROWWISE, "ensemble_mode")),
    EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD: (
        EmaInplaceRowwiseAdagrad,
        (*_ROWWISE, "emainplace_mode"),
    ),
}

# The modes of weight decay that need a definition.
_DEFINITION_OF_MODE = {
    WeightDecayMode.COUNTER: "counter_based_regularization",
    WeightDecayMode.COWCLIP: "cowclip_regularization",
    WeightDecayMode.DECOUPLE_GLOBAL: "global_weight_decay",
}


def as_optim_type(optimizer: Any) -> EmbOptimType | None:
    """The OptimType of a name or value; an OptimType or None is returned as is.

    Raises:
        TypeError: If it is of another type.
        ValueError: If no OptimType has that name or value.
    """
    if optimizer is None or isinstance(optimizer, EmbOptimType):
        return optimizer
    if isinstance(optimizer, (str, enum.Enum)):
        return as_enum(optimizer, "optimizer", EmbOptimType)
    raise TypeError(
        "`optimizer` must be a tf_embed.tbe.OptimType, the name or value of one, or None, which "
        "leaves training to the model's optimizer: wrap that in "
        "tf_embed.DynamicEmbeddingOptimizer. "
        f"Received: optimizer={shown(optimizer)}"
    )


def optimizer_of_type(optim_type: Any, settings: OptimizerSettings) -> RowRuleOptimizer | None:
    """Makes the optimizer of a type.

    Args:
        optim_type: An OptimType, its name or value, or None.
        settings: Its settings; all others at their defaults.

    Returns:
        A new optimizer, whose numbers `adjust` can change; None for OptimType.NONE and None.

    Raises:
        TypeError: If `optim_type` is not an OptimType.
        ValueError: If `optim_type` is unknown, a setting is out of range, or a setting that this
            optimizer does not use is not at its default.

    Example:
        >>> import tf_embed
        >>> from tf_embed.tbe.make_optimizer import OptimizerSettings, optimizer_of_type
        >>> optimizer_of_type(tf_embed.tbe.OptimType.LARS_SGD, OptimizerSettings(eta=0.01)).eta
        0.01
    """
    optim_type = as_optim_type(optim_type)
    maker, used = _MAKERS.get(optim_type, (None, ())) if optim_type else (None, ())
    owner = f"OptimType.{optim_type.name}" if optim_type else "optimizer=None"
    for name in settings.differing():
        if name not in used:
            _refuse(owner, name, settings)
    if maker is None:
        return None
    if "weight_decay_mode" in used:
        _check_decay(owner, used, settings)
    with tf.device("/CPU:0"):  # the op of a step takes its numbers on the host
        optimizer = maker(**{name: getattr(settings, name) for name in used})
        optimizer.make_adjustable()
    return optimizer


def present_settings(
    settings: OptimizerSettings, optimizer: RowRuleOptimizer | None
) -> OptimizerSettings:
    """Returns the settings of an optimizer, with the changes since it was made.

    Args:
        settings: The settings that it was made from.
        optimizer: The result of `optimizer_of_type`.
    """
    if optimizer is None:
        return settings
    names = optimizer.adjustable
    # `float` does not accept the variables of a strategy.
    present: dict[str, Any] = {
        name: float(keras.ops.convert_to_numpy(optimizer.number(name))) for name in names
    }
    rate = optimizer.learning_rate
    # A learning rate is kept in float32, so it may differ from the given number.
    if isinstance(rate, keras.Variable):
        now = float(keras.ops.convert_to_numpy(rate))
        if np.float32(settings.learning_rate) != now:
            present["learning_rate"] = now
    if "lower_bound" in present and settings.global_weight_decay is not None:
        present["global_weight_decay"] = dataclasses.replace(
            settings.global_weight_decay, lower_bound=present.pop("lower_bound")
        )
    return dataclasses.replace(settings, **present)


def _check_decay(owner: str, used: tuple[str, ...], settings: OptimizerSettings) -> None:
    """Refuses a mode of weight decay without its definition, and a definition without its mode."""
    mode = settings.weight_decay_mode
    for wanted, name in _DEFINITION_OF_MODE.items():
        if mode == wanted and name not in used:
            _refuse(owner, "weight_decay_mode", settings)
        definition = getattr(settings, name)
        if (mode == wanted) != (definition is not None):
            raise ValueError(
                f"`{name}` and weight_decay_mode=WeightDecayMode.{wanted.name} must be set "
                f"together. Received: {name}={shown(definition)}, "
                f"weight_decay_mode=WeightDecayMode.{mode.name}"
            )
    if mode == WeightDecayMode.NONE and settings.weight_decay:
        _refuse(owner, "weight_decay", settings, " with WeightDecayMode.NONE")


def _refuse(owner: str, name: str, settings: OptimizerSettings, where: str = "") -> None:
    raise ValueError(
        f"{owner} does not use `{name}`{where}. Received: {name}={shown(getattr(settings, name))}"
    )


def _is(value: Any, default: Any) -> bool:
    """Whether a setting is at its default. A definition of defaults counts as None."""
    if isinstance(value, UserEnabledConfigDefinition):
        value = None if value == UserEnabledConfigDefinition() else value
    return value is default or (isinstance(value, (int, float)) and value == default)

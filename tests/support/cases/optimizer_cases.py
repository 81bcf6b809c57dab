# SPDX-License-Identifier: Apache-2.0
"""Every optimizer, every option, both ways to train a table, and the answer of each case.

`check` returns a case's answer: the largest difference from the oracle, or the sentence that
refuses the case. tests/tables/optimizers.py prints all answers, and every_optimizer_test.py asserts
most of them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support.oracles import optimizer_oracle as oracle
from support.oracles.optimizer_oracle import History, Step
from tf_embed import tbe
from tf_embed._library import version_numbers

STEPS = 20
ACCUMULATION = 3
LOSS_SCALE = 1024.0
# The largest difference after 20 steps between Keras's float32 and another implementation's.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
KEYS = {
    "users": np.array([0, -1, 2**63 - 1, -(2**63), 7, 10**15, -(2**31) - 1, 3], np.int64),
    "items": np.array([7, 0, 2**40, -5, -(2**63)], np.int64),
}


@keras.saving.register_keras_serializable(package="tf_embed_tests")
class HalfAdam(keras.optimizers.Adam):
    """A user's subclass: Adam on half of the gradient."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(0.5 * gradient, variable, learning_rate)


@keras.saving.register_keras_serializable(package="tf_embed_tests")
class SignMomentum(keras.optimizers.Optimizer):
    """A user's optimizer from scratch. Its slot does not start from 0."""

    def __init__(self, learning_rate=0.01, decay=0.5, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.decay = decay

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.traces = self.add_optimizer_variables(
            variables, "trace", initializer=keras.initializers.Constant(0.25)
        )

    def update_step(self, gradient, variable, learning_rate):
        rate = keras.ops.cast(learning_rate, variable.dtype)
        gradient = keras.ops.cast(gradient, variable.dtype)
        trace = self.traces[self._get_variable_index(variable)]
        self.assign(trace, self.decay * trace + (1.0 - self.decay) * gradient)
        self.assign_sub(variable, rate * keras.ops.tanh(trace))

    def get_config(self):
        return {**super().get_config(), "decay": self.decay}


def _multi(learning_rate: Any = 0.05, **options: Any) -> Any:
    """Adam for tables, SGD for the rest."""
    scale = options.pop("loss_scale_factor", None)
    kinds = keras.optimizers
    choice = kinds.OptimizerMap(
        kinds.SGD(learning_rate, **options),
        {".*embeddings.*": kinds.Adam(learning_rate, **options)},
    )
    return kinds.MultiOptimizer(choice, loss_scale_factor=scale)


def _ftrl_of_oneflow(learning_rate: Any = 0.1, **options: Any) -> Any:
    """Ftrl of `tf_embed.one_embedding`."""
    return tf_embed.one_embedding.Ftrl(
        learning_rate, lr_power=-0.6, lambda1=0.01, lambda2=0.02, beta=0.1, **options
    )


def _kind(cls: Any, rate: float, **arguments: Any) -> Callable[..., Any] | None:
    if cls is None:
        return None

    def make(learning_rate: Any = rate, **options: Any) -> Any:
        return cls(learning_rate=learning_rate, **{**arguments, **options})

    return make


def _kinds() -> dict[str, Callable[..., Any]]:
    k = keras.optimizers
    schedule_free = getattr(k, "ScheduleFreeAdamW", None)  # from Keras 3.15 on
    # Before 3.13 Keras's Muon fails on TensorFlow, for dense variables too.
    muon = k.Muon if version_numbers(keras.__version__) >= (3, 13, 0) else None
    every = {
        "SGD": _kind(k.SGD, 0.05),
        "SGD, momentum": _kind(k.SGD, 0.05, momentum=0.9),
        "SGD, nesterov": _kind(k.SGD, 0.05, momentum=0.8, nesterov=True),
        "RMSprop": _kind(k.RMSprop, 0.02),
        "RMSprop, momentum": _kind(k.RMSprop, 0.02, momentum=0.7),
        "RMSprop, centered": _kind(k.RMSprop, 0.02, centered=True),
        "RMSprop, centered, momentum": _kind(k.RMSprop, 0.02, centered=True, momentum=0.7),
        "Adam": _kind(k.Adam, 0.05),
        "Adam, amsgrad": _kind(k.Adam, 0.05, amsgrad=True, beta_1=0.7, beta_2=0.9),
        "AdamW": _kind(k.AdamW, 0.05),
        "Adadelta": _kind(k.Adadelta, 1.0),
        "Adagrad": _kind(k.Adagrad, 0.1),
        "Adamax": _kind(k.Adamax, 0.05),
        "Adafactor": _kind(k.Adafactor, 0.05),
        "Nadam": _kind(k.Nadam, 0.05),
        "Ftrl": _kind(k.Ftrl, 0.1),
        "Ftrl, l1, l2, shrinkage, beta": _kind(
            k.Ftrl,
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
            beta=0.1,
            learning_rate_power=-0.6,
        ),
        "Lion": _kind(k.Lion, 0.02),
        "Lamb": _kind(k.Lamb, 0.05),
        "Muon": _kind(muon, 0.02),
        "Muon, embeddings too": _kind(muon, 0.02, exclude_embeddings=False),
        "ScheduleFreeAdamW": _kind(schedule_free, 0.05),
        "ScheduleFreeAdamW, warmup": _kind(schedule_free, 0.05, warmup_steps=5),
        "RowwiseAdagrad": _kind(tf_embed.optimizers.RowwiseAdagrad, 0.1),
        "SmartDecayAdam": _kind(tf_embed.optimizers.SmartDecayAdam, 0.05),
        "one_embedding.Ftrl": _ftrl_of_oneflow,
        **_kinds_of_fbgemm(),
        "MultiOptimizer": _multi if hasattr(k, "MultiOptimizer") else None,
        "a subclass of Adam": _kind(HalfAdam, 0.05),
        "a subclass of Optimizer": _kind(SignMomentum, 0.05),
    }
    return {name: make for name, make in every.items() if make is not None}


def _kinds_of_fbgemm() -> dict[str, Callable[..., Any]]:
    o, modes = tbe, tbe.WeightDecayMode
    counter = tbe.CounterBasedRegularizationDefinition(
        tbe.CounterWeightDecayMode.DECOUPLE,
        3,
        learning_rate_mode=tbe.LearningRateMode.TAIL_ID_LR_INCREASE,
        max_counter_update_freq=4,
    )
    clip = tbe.CowClipDefinition(tbe.CounterWeightDecayMode.L2, -1, 0.05, 0.1)
    average = tbe.EnsembleModeDefinition(2, 4, 2)
    decays = {"weight_decay": 0.1}
    return {
        "tbe.SGD": _kind(o.SGD, 0.05),
        "tbe.Adagrad": _kind(o.Adagrad, 0.1),
        "tbe.RowwiseAdagrad": _kind(o.RowwiseAdagrad, 0.1),
        "tbe.RowwiseAdagrad, l2, max_norm": _kind(
            o.RowwiseAdagrad, 0.1, weight_decay_mode=modes.L2, max_norm=1.5, **decays
        ),
        "tbe.RowwiseAdagrad, counter": _kind(
            o.RowwiseAdagrad,
            0.1,
            weight_decay_mode=modes.COUNTER,
            counter_based_regularization=counter,
            **decays,
        ),
        "tbe.RowwiseAdagrad, cowclip": _kind(
            o.RowwiseAdagrad,
            0.1,
            weight_decay_mode=modes.COWCLIP,
            cowclip_regularization=clip,
            **decays,
        ),
        "tbe.EnsembleRowwiseAdagrad": _kind(o.EnsembleRowwiseAdagrad, 0.1, ensemble_mode=average),
        "tbe.EmaInplaceRowwiseAdagrad": _kind(o.EmaInplaceRowwiseAdagrad, 0.1),
        "tbe.Adam": _kind(o.Adam, 0.05),
        "tbe.Adam, by row": _kind(o.Adam, 0.05, use_rowwise_bias_correction=True),
        "tbe.PartialRowwiseAdam": _kind(o.PartialRowwiseAdam, 0.05),
        "tbe.LAMB": _kind(o.LAMB, 0.05),
        "tbe.PartialRowwiseLAMB": _kind(o.PartialRowwiseLAMB, 0.05),
        "tbe.LARS": _kind(o.LARS, 0.5, eta=0.1),
    }


KINDS = _kinds()
# Optimizers in which the rows of a step depend on each other, or on state that belongs to no row.
SPANNING = ("Adafactor", "Lamb", "Muon, embeddings too")


@dataclasses.dataclass(frozen=True)
class Option:
    """A column of the table.

    Attributes:
        arguments: The arguments of the optimizer.
        rate: Makes the learning rate, from a factor; None for the kind's constant.
        wraps: "inside" or "outside": the position of a LossScaleOptimizer.
        halves: Whether the learning rate is halved before step 10.
        words: A refusal names one of these, or the optimizer.
    """

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    rate: str | None = None
    wraps: str | None = None
    halves: bool = False
    words: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """The number of steps for 20 updates; with accumulation, plus an incomplete update."""
        every = self.arguments.get("gradient_accumulation_steps")
        return STEPS * every + 1 if every else STEPS


def _option(**arguments: Any) -> Option:
    return Option(arguments, words=tuple(arguments))


_SCALER = ("LossScaleOptimizer",)
OPTIONS = {
    "plain": Option(),
    "schedule": Option(rate="schedule", words=("learning_rate",)),
    "callable": Option(rate="callable", words=("learning_rate",)),
    "rate set": Option(halves=True, words=("learning_rate",)),
    "clipnorm": _option(clipnorm=2.0),
    "clipvalue": _option(clipvalue=0.5),
    "global_clipnorm": _option(global_clipnorm=3.0),
    "weight_decay": _option(weight_decay=0.3),
    "EMA": _option(use_ema=True, ema_momentum=0.8),
    "EMA, overwriting": _option(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "accumulation": _option(gradient_accumulation_steps=ACCUMULATION),
    "loss_scale_factor": _option(loss_scale_factor=LOSS_SCALE),
    "LossScaleOptimizer": Option(wraps="inside", words=_SCALER),
    "LossScaleOptimizer outside": Option(wraps="outside", words=_SCALER),
    "EMA, accumulation": _option(
        use_ema=True, ema_momentum=0.8, gradient_accumulation_steps=ACCUMULATION
    ),
    "global_clipnorm, accumulation": _option(
        global_clipnorm=3.0, gradient_accumulation_steps=ACCUMULATION
    ),
    "clipnorm, decay, scale, accumulation": _option(
        clipnorm=2.0,
        weight_decay=0.3,
        loss_scale_factor=LOSS_SCALE,
        gradient_accumulation_steps=ACCUMULATION,
    ),
    "global_clipnorm, decay, scale, EMA": _option(
        global_clipnorm=3.0,
        weight_decay=0.3,
        loss_scale_factor=LOSS_SCALE,
        use_ema=True,
        ema_momentum=0.8,
    ),
}
WAYS = ("wrapper", "own")
# The modes of a step. model.fit traces without AutoGraph, a user's tf.function with it.
MODES = ("graph", "eager", "autograph")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a case: equal, refused, or wrong.

    Attributes:
        difference: The largest absolute difference from the oracle, if equal.
        refusal: The sentence, if refused.
        wrong: The error, if wrong.
    """

    difference: float | None = None
    refusal: str | None = None
    wrong: str | None = None


def check(way: str, kind: str, option: str, mode: str = "graph") -> Answer:
    """Trains two tables and two dense variables, and compares with the oracle step by step.

    Args:
        way: "wrapper", or "own": each table has the optimizer, the dense variables SGD.
        kind: A name of KINDS.
        option: A name of OPTIONS.
        mode: One of MODES.
    """
    chosen = OPTIONS[option]
    make = maker(kind, chosen)
    if way == "own":
        return answer(make, lambda: keras.optimizers.SGD(0.1), chosen, words(kind, option), mode)
    return answer(None, make, chosen, words(kind, option), mode)


def check_outer(outer: str, option: str, mode: str = "graph") -> Answer:
    """As `check`, but tables have Adam, and the outer optimizer, SGD, has the option.

    An answer is right if the option acts on the dense variables and does not change the tables.
    """
    chosen = OPTIONS[option]
    outside = maker("SGD", chosen)
    return answer(
        maker("Adam", Option()),
        outside,
        chosen,
        words("SGD", option),
        mode,
        wrap_outer=outer == "wrapper",
    )


def words(kind: str, option: str) -> tuple[str, ...]:
    """The words that a refusal of a case may name."""
    cls = type(KINDS[kind]()).__name__
    return (cls, *OPTIONS[option].words)


def answer(
    make_own: Callable[[], Any] | None,
    make_outer: Callable[[], Any],
    option: Option,
    names: Sequence[str],
    mode: str,
    wrap_outer: bool | None = None,
) -> Answer:
    """Runs a case; see `check`.

    Args:
        make_own: Makes the optimizer of a table, or None.
        make_outer: Makes the Keras optimizer of the rest.
        option: Further options of the case.
        names: A refusal must name one of these words.
        mode: One of MODES.
        wrap_outer: Whether the outer optimizer is wrapped. Default: if tables have no optimizer.
    """
    of_outer = wrap_outer is not None
    wrap_outer = make_own is None if wrap_outer is None else wrap_outer
    try:
        (make_own or make_outer)()
    except ValueError as error:  # Keras itself must not refuse a case
        if not _raised_by_us(error):
            raise
        return Answer(refusal=str(error))
    make_outer()
    keras.utils.clear_session(free_memory=False)
    # A table with its own optimizer makes an update in every step.
    steps = oracle.make_steps(STEPS if of_outer else option.steps, everything=True)
    if option.wraps is not None and make_own is None:
        _add_faults(steps)
    try:
        trained = TrainedTables(make_own, make_outer, wrap_outer, option.wraps == "outside")
    except Exception as error:
        sentence = re.sub(r"\s+", " ", str(error)).strip()
        refused = isinstance(error, (ValueError, TypeError)) and _raised_by_us(error)
        refused = refused and 'File "' not in sentence  # a traceback is not a sentence
        if refused and any(name in sentence for name in names):
            return Answer(refusal=sentence)
        return Answer(wrong=f"fails when built: {type(error).__name__}: {sentence[:300]}")
    initial = trained.tables()
    outer = make_outer()
    outer = keras.optimizers.LossScaleOptimizer(outer) if option.wraps == "outside" else outer
    owns = [make_own() if make_own else outer for _ in oracle.TABLES]
    changed = [*owns, outer] if make_own else [outer]
    wanted = oracle.train_dense(
        owns,
        outer,
        initial,
        trained.dense(),
        steps,
        between=lambda step: _between(step, option, changed),
    )
    if not all(np.isfinite(value).all() for value in wanted.values()):
        return Answer(wrong="the oracle is not finite")
    try:
        found = trained.train(
            steps, mode, lambda step: _between(step, option, trained.changeable())
        )
    except Exception as error:
        return Answer(wrong=f"fails in a step: {type(error).__name__}: {_last_line(error)}")
    return compare(found, wanted)


def compare(found: History, wanted: History) -> Answer:
    """Returns equal, or the first difference."""
    pairs = list(zip(found.values(), wanted.values(), strict=True))
    if not all(np.allclose(one, other, **CLOSE) for one, other in pairs):
        return Answer(wrong=_where(found, wanted))
    if found.iterations != wanted.iterations:
        return Answer(wrong=f"counts {found.iterations} steps, not {wanted.iterations}")
    return Answer(difference=max(float(np.max(np.abs(one - other))) for one, other in pairs))


class TrainedTables:
    """Layers with tables, dense variables, and the optimizer that trains them.

    Args:
        make_own: Makes the optimizer of each table; None for none.
        make_outer: Makes the Keras optimizer of the rest, or of all.
        wrap: Whether a DynamicEmbeddingOptimizer wraps the outer optimizer.
        scale_outside: Whether a LossScaleOptimizer wraps the result.
        value_dtype: Dtype of the tables.
        shards: Number of shards of each table.
    """

    def __init__(
        self,
        make_own: Callable[[], Any] | None,
        make_outer: Callable[[], Any],
        wrap: bool = True,
        scale_outside: bool = False,
        value_dtype: str = "float32",
        shards: int = 1,
    ) -> None:
        self.layers = []
        for name, (_, dim) in oracle.TABLES.items():
            layer = tf_embed.layers.DynamicEmbedding(
                dim,
                value_dtype=value_dtype,
                initializer=keras.initializers.RandomNormal(stddev=0.5, seed=5),
                optimizer=make_own() if make_own else None,
                devices=["/CPU:0"] * shards,
                name=name,
            )
            layer.build()
            self.layers.append(layer)
        self.variables = [
            keras.Variable(value, name=name)
            for value, name in zip(oracle.make_initial()[1], oracle.DENSE, strict=True)
        ]
        self.optimizer = make_outer()
        if wrap:
            self.optimizer = tf_embed.DynamicEmbeddingOptimizer(self.optimizer)
        if scale_outside:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        self.anchors = [layer.variable.trainable_variables[0] for layer in self.layers]
        # As in a model, dense variables are between tables.
        self.trained = [self.anchors[0], *self.variables, *self.anchors[1:]]
        self.optimizer.build(self.trained)
        dtype = self.layers[0].variable.value_dtype
        signature = [
            [tf.TensorSpec([None], tf.int64) for _ in self.layers],
            [tf.TensorSpec([None, layer.dim], dtype) for layer in self.layers],
            [tf.TensorSpec(variable.shape, tf.float32) for variable in self.variables],
        ]
        self._steps: dict[str, Callable[..., Any]] = {
            "eager": self._apply,
            "graph": tf.function(self._apply, input_signature=signature, autograph=False),
            "autograph": tf.function(self._apply, input_signature=signature),
        }

    def tables(self) -> list[np.ndarray]:
        """The rows of each table."""
        return [
            layer.variable.lookup(keys).numpy()
            for layer, keys in zip(self.layers, KEYS.values(), strict=True)
        ]

    def dense(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]

    def changeable(self) -> list[Any]:
        """The optimizers whose learning rate a user sets."""
        owns = [layer.optimizer for layer in self.layers if layer.optimizer is not None]
        return [*owns, self.optimizer]

    def train(
        self,
        steps: Sequence[Step],
        mode: str = "graph",
        between: Callable[[int], None] = lambda step: None,
        finalize: bool = True,
    ) -> History:
        """Trains, and returns the result of each step."""
        apply = self._steps[mode]
        history = History()
        for number, step in enumerate(steps):
            between(number)
            apply(*self._tensors(step))
            history.tables.append(self.tables())
            history.dense.append(self.dense())
        if finalize:
            self.optimizer.finalize_variable_values(self.trained)
        history.finalized = [*self.tables(), *self.dense()]
        history.iterations = int(tf.convert_to_tensor(self.optimizer.iterations))
        return history

    def _tensors(self, step: Step) -> tuple[list[Any], list[Any], list[Any]]:
        keys = [
            tf.constant(of_table[rows])
            for rows, of_table in zip(step.rows, KEYS.values(), strict=True)
        ]
        dtype = self.layers[0].variable.value_dtype
        gradients = [tf.cast(gradient, dtype) for gradient in step.gradients]
        return keys, gradients, [tf.constant(gradient) for gradient in step.dense]

    def _apply(self, keys: list[Any], gradients: list[Any], dense: list[Any]) -> None:
        scale = tf.convert_to_tensor(self.optimizer.scale_loss(tf.constant(1.0)))
        slices = [
            tf.IndexedSlices(tf.cast(scale, gradient.dtype) * gradient, tf.identity(of_rows))
            if gradient.shape[0] != 0
            else None  # eagerly; a tf.function gives empty slices
            for of_rows, gradient in zip(keys, gradients, strict=True)
        ]
        dense = [scale * gradient for gradient in dense]
        self.optimizer.apply([slices[0], *dense, *slices[1:]], self.trained)


# The rate that the callable gives; `_between` sets it.
_CALLED_RATE = tf.Variable(0.0)


@keras.saving.register_keras_serializable(package="tf_embed_tests")
def called_rate() -> Any:
    return _CALLED_RATE + 0.0


def maker(kind: str, option: Option) -> Callable[[], Any]:
    """Returns a function that makes the Keras optimizer of a case."""

    def make() -> Any:
        arguments = dict(option.arguments)
        if option.rate == "schedule":
            arguments["learning_rate"] = keras.optimizers.schedules.ExponentialDecay(0.08, 5, 0.7)
        elif option.rate == "callable":
            arguments["learning_rate"] = called_rate
        optimizer = KINDS[kind](**arguments)
        if option.wraps == "inside":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 2.0**9, 4)
        return optimizer

    return make


def _between(step: int, option: Option, optimizers: Sequence[Any]) -> None:
    if option.rate == "callable":
        _CALLED_RATE.assign(0.08 * 0.9**step)
    if option.halves and step == STEPS // 2:
        for optimizer in optimizers:
            _halve(optimizer)


def _halve(optimizer: Any) -> None:
    """Halves the learning rate; a MultiOptimizer has none, but its optimizers do."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if type(inner).__name__ == "MultiOptimizer":  # a class of newer Keras
        for one in inner.optimizers:
            _halve(one)
    else:
        optimizer.learning_rate = float(tf.convert_to_tensor(optimizer.learning_rate)) * 0.5


def _add_faults(steps: list[Step]) -> None:
    """Makes the gradients of two steps not finite. A LossScaleOptimizer skips these steps."""
    gradients = [gradient.copy() for gradient in steps[6].gradients]
    gradients[1][0, 0] = np.inf
    steps[6] = dataclasses.replace(steps[6], gradients=gradients)
    dense = [gradient.copy() for gradient in steps[13].dense]
    dense[0][0, 0] = np.nan
    steps[13] = dataclasses.replace(steps[13], dense=dense)


def _where(found: History, wanted: History) -> str:
    """Describes the first difference of two histories."""
    for number, (one, other) in enumerate(zip(found.tables, wanted.tables, strict=True)):
        for name, mine, right in zip(oracle.TABLES, one, other, strict=True):
            if not np.allclose(mine, right, **CLOSE):
                return f"rows of {name} differ from step {number + 1} on, {_by(mine, right)}"
        dense = zip(oracle.DENSE, found.dense[number], wanted.dense[number], strict=True)
        for name, mine, right in dense:
            if not np.allclose(mine, right, **CLOSE):
                return f"the dense {name} differs from step {number + 1} on, {_by(mine, right)}"
    names = [*oracle.TABLES, *oracle.DENSE]
    for name, mine, right in zip(names, found.finalized, wanted.finalized, strict=True):
        if not np.allclose(mine, right, **CLOSE):
            return f"{name} differs after finalize_variable_values, {_by(mine, right)}"
    return "equal"


def _by(one: np.ndarray, other: np.ndarray) -> str:
    return f"by {np.max(np.abs(one - other)):.2g}"


def _raised_by_us(error: BaseException) -> bool:
    """Whether a line of tf_embed raised the error, not Keras or TensorFlow below it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    package = pathlib.Path(tf_embed.__file__).parent
    return place is not None and package in pathlib.Path(place.tb_frame.f_code.co_filename).parents


def _last_line(error: BaseException) -> str:
    """The message of an error; its last line if a tf.function raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

# SPDX-License-Identifier: Apache-2.0
"""FBGEMM's optimizers in every mode, each with its oracle."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from support.oracles import tbe_oracle as oracle
from tf_embed import tbe

DECAY = tbe.WeightDecayMode
COUNTER_DECAY = tbe.CounterWeightDecayMode
RATES = {
    "equal": tbe.LearningRateMode.EQUAL,
    "increase": tbe.LearningRateMode.TAIL_ID_LR_INCREASE,
    "decrease": tbe.LearningRateMode.TAIL_ID_LR_DECREASE,
    "sgd": tbe.LearningRateMode.COUNTER_SGD,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """An optimizer.

    Attributes:
        cls: Its class.
        options: Its arguments, except the learning rate.
        rule: Its oracle.
        arguments: The oracle's arguments.
        all_there: Whether rows must exist from the start to equal the rows of an array.
    """

    cls: Callable[..., Any]
    options: dict[str, Any]
    rule: Any
    arguments: dict[str, Any]
    all_there: bool = False

    def make(self, learning_rate: Any = 0.05, **more: Any) -> Any:
        """The optimizer, with more options."""
        return self.cls(learning_rate=learning_rate, **self.options, **more)

    def oracle(self, rows: Any) -> oracle.Oracle:
        """The oracle on an array of these rows."""
        return oracle.Oracle(rows, self.rule, **self.arguments)


def _case(cls: Any, rule: Any, arguments: dict[str, Any] | None = None, **options: Any) -> Case:
    all_there = options.pop("all_there", False)
    return Case(cls, options, rule, options if arguments is None else arguments, all_there)


def _counter(
    inner: str, halflife: int, rates: str, threshold: float = 0.0, is_ratio: bool = False, **more
) -> Case:
    definition = tbe.CounterBasedRegularizationDefinition(
        counter_weight_decay_mode=COUNTER_DECAY[inner.upper()],
        counter_halflife=halflife,
        adjustment_iter=more.get("adjustment_iter", -1),
        adjustment_ub=more.get("adjustment_ub", 0.7),
        learning_rate_mode=RATES[rates],
        tail_id_threshold=tbe.TailIdThreshold(threshold, is_ratio),
        max_counter_update_freq=3,
    )
    decay = 0.0 if inner == "none" else 0.2
    arguments = {
        "mode": "counter",
        "weight_decay": decay,
        "inner": inner,
        "halflife": halflife,
        "rates": rates,
        "threshold": threshold,
        "is_ratio": is_ratio,
        "adjustment_ub": 0.7,
        "counter_every": 3,
        **more,
    }
    return _case(
        tbe.RowwiseAdagrad,
        oracle.rowwise_adagrad,
        arguments,
        weight_decay=decay,
        weight_decay_mode=DECAY.COUNTER,
        counter_based_regularization=definition,
    )


def _cowclip(inner: str, coefficient: float, lower_bound: float, halflife: int) -> Case:
    definition = tbe.CowClipDefinition(
        COUNTER_DECAY[inner.upper()], halflife, coefficient, lower_bound
    )
    decay = 0.0 if inner == "none" else 0.2
    arguments = {
        "mode": "cowclip",
        "weight_decay": decay,
        "inner": inner,
        "halflife": halflife,
        "coefficient": coefficient,
        "lower_bound": lower_bound,
    }
    return _case(
        tbe.RowwiseAdagrad,
        oracle.rowwise_adagrad,
        arguments,
        weight_decay=decay,
        weight_decay_mode=DECAY.COWCLIP,
        cowclip_regularization=definition,
    )


def _global(start_iter: int, lower_bound: float) -> Case:
    bounds = {"start_iter": start_iter, "lower_bound": lower_bound}
    return _case(
        tbe.RowwiseAdagrad,
        oracle.rowwise_adagrad,
        {"mode": "global", "weight_decay": 0.4, **bounds},
        weight_decay=0.4,
        weight_decay_mode=DECAY.DECOUPLE_GLOBAL,
        global_weight_decay=tbe.GlobalWeightDecayDefinition(**bounds),
    )


def _ensemble(*numbers: float, forgets: bool = False, **options: Any) -> Case:
    mode = tbe.StepMode.NONE if forgets else tbe.StepMode.USE_ITER
    definition = tbe.EnsembleModeDefinition(*numbers, step_mode=mode)
    arguments = {"average": numbers, "forgets": forgets}
    if options:
        arguments |= {"mode": "l2", "weight_decay": options["weight_decay"]}
    return _case(
        tbe.EnsembleRowwiseAdagrad,
        oracle.rowwise_adagrad,
        arguments,
        ensemble_mode=definition,
        all_there=forgets or numbers[2] < numbers[0],
        **options,
    )


def _in_place(*numbers: float) -> Case:
    return _case(
        tbe.EmaInplaceRowwiseAdagrad,
        oracle.rowwise_adagrad,
        {"average": numbers},
        emainplace_mode=tbe.EmainplaceModeDefinition(*numbers),
        all_there=True,
    )


def _cases() -> dict[str, Case]:
    o = tbe
    adagrad, adam = oracle.rowwise_adagrad, oracle.adam
    decays = {"weight_decay": 0.3, "weight_decay_mode": DECAY.L2}
    cases = {
        "SGD": _case(o.SGD, oracle.sgd),
        "Adagrad": _case(o.Adagrad, oracle.adagrad, eps=1e-3),
        "RowwiseAdagrad": _case(o.RowwiseAdagrad, adagrad),
        "RowwiseAdagrad, l2": _case(
            o.RowwiseAdagrad, adagrad, {"mode": "l2", "weight_decay": 0.3}, **decays
        ),
        "RowwiseAdagrad, decouple": _case(
            o.RowwiseAdagrad,
            adagrad,
            {"mode": "decouple", "weight_decay": 0.3, "eps": 0.01},
            eps=0.01,
            weight_decay=0.3,
            weight_decay_mode=DECAY.DECOUPLE,
        ),
        "RowwiseAdagrad, max_norm": _case(o.RowwiseAdagrad, adagrad, max_norm=1.0),
        "RowwiseAdagrad, global": _global(0, 0.0),
        "RowwiseAdagrad, global, bounded": _global(5, 0.97),
        "Adam": _case(o.Adam, adam),
        "Adam, decay": _case(o.Adam, adam, eps=1e-3, beta1=0.7, beta2=0.9, weight_decay=0.3),
        "Adam, by row": _case(o.Adam, adam, {"by_row": True}, use_rowwise_bias_correction=True),
        "PartialRowwiseAdam": _case(
            o.PartialRowwiseAdam, adam, {"partial": True, "weight_decay": 0.1}, weight_decay=0.1
        ),
        "LAMB": _case(o.LAMB, adam, {"lamb": True}),
        "LAMB, decay": _case(o.LAMB, adam, {"lamb": True, "weight_decay": 0.3}, weight_decay=0.3),
        "PartialRowwiseLAMB": _case(
            o.PartialRowwiseLAMB,
            adam,
            {"lamb": True, "partial": True, "weight_decay": 0.1},
            weight_decay=0.1,
        ),
        "LARS": _case(o.LARS, oracle.lars, eta=0.3),
        "LARS, decay": _case(o.LARS, oracle.lars, momentum=0.5, eta=0.5, weight_decay=0.2),
        "Ensemble": _ensemble(2, 4, 2, 0.6),
        "Ensemble, from 0": _ensemble(3, 3, 0, 0.6),
        "Ensemble, forgets": _ensemble(2, 6, 4, 0.3, forgets=True),
        "Ensemble, l2": _ensemble(1, 5, 7, 0.9, **decays),
        "EmaInplace": _in_place(3, 7, 0.6),
        "EmaInplace, each step": _in_place(1, 0, 0.2),
        "cowclip": _cowclip("none", 0.1, 0.0, -1),
        "cowclip, l2": _cowclip("l2", 0.05, 0.2, 3),
        "cowclip, decouple": _cowclip("decouple", 0.0, 0.1, 0),
        "counter, late": _counter("decouple", 4, "decrease", adjustment_iter=6),
        "counter, adagradw, late": _counter("adagradw", -1, "equal", adjustment_iter=6),
        "counter, share": _counter("l2", -1, "decrease", 0.5, True),
        "counter, above": _counter("none", -1, "increase", 3.0),
    }
    for inner, halflife, rates in itertools.product(
        ("none", "l2", "decouple", "adagradw"), (3, 0, -1, -2), RATES
    ):
        cases[f"counter, {inner}, {halflife}, {rates}"] = _counter(inner, halflife, rates)
    return cases


CASES = _cases()
# A case for each optimizer and each kind of slots.
KINDS = (
    *("SGD", "Adagrad", "RowwiseAdagrad", "RowwiseAdagrad, l2"),
    *("RowwiseAdagrad, global", "RowwiseAdagrad, max_norm", "cowclip, l2", "counter, share"),
    *("Adam", "Adam, by row", "PartialRowwiseAdam", "LAMB", "PartialRowwiseLAMB"),
    *("LARS, decay", "Ensemble", "Ensemble, l2", "EmaInplace"),
)

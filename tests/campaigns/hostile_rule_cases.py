# SPDX-License-Identifier: Apache-2.0
"""The rules of `tf_embed.optimizers` and `tf_embed.tbe`; see `hostile_cases`."""

from __future__ import annotations

import json
import operator
from typing import Any

import hostile_kinds as k
import keras
import numpy as np
from hostile_batch_cases import (
    ABOVE_ZERO,
    BELOW_ONE,
    BOOL,
    FROM_ZERO,
    LEARNING_RATE,
    NUMBER,
    members,
)
from hostile_call import Call
from hostile_values import Kind

import tf_embed as te


def _use(optimizer: Any) -> None:
    """Makes a step and serializes the optimizer."""
    rows = keras.Variable(np.ones([3, 2], np.float32))
    optimizer.apply([np.ones([3, 2], np.float32)], [rows])
    if not np.isfinite(rows.numpy()).all():
        raise AssertionError(f"Rows are not finite: {rows}")
    json.dumps(keras.saving.serialize_keras_object(optimizer))


def _rule(
    name: str, good: dict[str, Any] | None = None, rate: str = "learning_rate", **kinds: Kind
) -> Call:
    return Call(
        lambda: operator.attrgetter(name)(te),
        lambda: dict(good or {}),
        {rate: LEARNING_RATE, "name": k.LAYER_NAME, **kinds},
        _use,
        says=("counter_based_regularization",),  # the mode and this argument depend on each other
    )


DECAY = FROM_ZERO.optional()
OF_ADAM = {"eps": FROM_ZERO, "beta1": BELOW_ONE, "beta2": BELOW_ONE, "weight_decay": DECAY}
OF_ROWS = {
    "eps": FROM_ZERO,
    "weight_decay": DECAY,
    "weight_decay_mode": members("0, 3"),
    "max_norm": FROM_ZERO,
}

RULE_CALLS: dict[str, Call] = {
    "tbe.SGD": _rule("tbe.SGD"),
    "tbe.Adagrad": _rule("tbe.Adagrad", eps=FROM_ZERO),
    "optimizers.RowwiseAdagrad": _rule(
        "optimizers.RowwiseAdagrad",
        initial_accumulator_value=FROM_ZERO,
        epsilon=FROM_ZERO,
        weight_decay=NUMBER.optional(),
    ),
    "tbe.RowwiseAdagrad": _rule(
        "tbe.RowwiseAdagrad",
        **OF_ROWS,
        counter_based_regularization=k.NONE,
        cowclip_regularization=k.NONE,
        global_weight_decay=k.NONE,
    ),
    "tbe.RowwiseAdagrad [counter]": _rule(
        "tbe.RowwiseAdagrad",
        {
            "weight_decay_mode": "COUNTER",
            "counter_based_regularization": te.tbe.CounterBasedRegularizationDefinition(
                counter_weight_decay_mode="L2"
            ),
        },
        counter_based_regularization=k.kind({"all at their defaults": "{}"}),
        weight_decay=DECAY,
        weight_decay_mode=members("3"),
    ),
    "tbe.EmaInplaceRowwiseAdagrad": _rule(
        "tbe.EmaInplaceRowwiseAdagrad",
        **OF_ROWS,
        emainplace_mode=k.kind({"all at their defaults": "None, {}"}),
    ),
    "tbe.EnsembleRowwiseAdagrad": _rule(
        "tbe.EnsembleRowwiseAdagrad",
        **OF_ROWS,
        ensemble_mode=k.kind({"all at their defaults": "None, {}"}),
    ),
    "tbe.LARS": _rule("tbe.LARS", momentum=FROM_ZERO, eta=FROM_ZERO, weight_decay=DECAY),
    "tbe.PartialRowwiseAdam": _rule("tbe.PartialRowwiseAdam", **OF_ADAM),
    "tbe.PartialRowwiseLAMB": _rule("tbe.PartialRowwiseLAMB", **OF_ADAM),
    "tbe.Adam": _rule("tbe.Adam", **OF_ADAM, use_rowwise_bias_correction=BOOL),
    "tbe.LAMB": _rule("tbe.LAMB", **OF_ADAM),
    "one_embedding.SmartDecayAdam": _rule(
        "one_embedding.SmartDecayAdam", beta_1=BELOW_ONE, beta_2=BELOW_ONE, epsilon=FROM_ZERO
    ),
    "one_embedding.Ftrl": _rule(
        "one_embedding.Ftrl",
        rate="lr",
        lr=ABOVE_ZERO.taking(k.CALLED, "function"),
        weight_decay=DECAY,
        lr_power=k.kind({k.RANGE: "0, -1"}),
        # 0 is accepted only with `beta` or `lambda2`.
        initial_accumulator_value=ABOVE_ZERO,
        lambda1=FROM_ZERO,
        lambda2=FROM_ZERO,
        beta=FROM_ZERO,
    ),
}

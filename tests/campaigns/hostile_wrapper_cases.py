# SPDX-License-Identifier: Apache-2.0
"""The steps of `DynamicEmbeddingOptimizer`, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

from typing import Any

import hostile_kinds as k
import keras
import numpy as np
import tensorflow as tf
from hostile_call import Call, variable
from hostile_values import kind

import tf_embed as te


def _wrapper(method: str) -> Any:
    return lambda: getattr(te.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5)), method)


def _model() -> dict[str, Any]:
    """A dense variable and a table, a loss, and the gradients of the loss."""
    table = variable()
    dense = keras.Variable(np.ones([2], np.float32))
    variables = [dense, *table.trainable_variables]

    def loss() -> tf.Tensor:
        return tf.reduce_sum(te.embedding_lookup(table, [1]) * dense.value)

    with tf.GradientTape() as tape:
        value = loss()
    return {"variables": variables, "gradients": tape.gradient(value, variables), "loss": loss}


def _apply_good() -> dict[str, Any]:
    model = _model()
    return {"grads": model["gradients"], "trainable_variables": model["variables"]}


def _pairs_good() -> dict[str, Any]:
    model = _model()
    return {"grads_and_vars": zip(model["gradients"], model["variables"], strict=True)}


def _minimize_good() -> dict[str, Any]:
    model = _model()
    return {"loss": model["loss"], "var_list": model["variables"]}


def _anchor() -> Any:
    return variable().trainable_variables[0]


def _slices(rows: Any, keys: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(rows), tf.constant(keys))


NOTHING = "nothing, so there is no step, as in Keras"
GRADIENTS = kind(
    {NOTHING: "[]"},
    {
        "only None": lambda: [None, None],
        "a dense one of a table": lambda: [tf.ones([2]), tf.ones([1, 2])],
        "slices of another dim": lambda: [None, _slices([[1.0]], [1])],
        "slices of floating keys": lambda: [None, _slices([[1.0, 2.0]], [1.5])],
        "slices of strings": lambda: [None, _slices([["a", "b"]], [1])],
        "slices of two keys": lambda: [None, _slices([[1.0, 2.0]], [1, 2])],
        "objects": lambda: [object(), object()],
        "words": lambda: ["x", "y"],
        "another shape": lambda: [tf.ones([7]), None],
    },
).refused_by("the rule of a dense variable, which is Keras's", "another shape")
VARIABLES = kind(
    {},
    {
        "twice the same": lambda: [_anchor()] * 2,
        "objects": lambda: [object(), object()],
        "tables": lambda: [variable(), variable()],
        "one of two": lambda: [_anchor()],
    },
)
PAIRS = kind(
    {NOTHING: "[]"},
    {
        "triples": lambda: [(tf.ones([2]), keras.Variable([1.0, 2.0]), 3)],
        "the other way": lambda: [(keras.Variable([1.0, 2.0]), tf.ones([2]))],
        "a pair": lambda: (tf.ones([2]), keras.Variable([1.0, 2.0])),
        "['ab']": lambda: ["ab"],
    },
)
WEIGHTS = kind(
    {},
    {
        "one too few": lambda: [np.int64(0)],
        "another shape": lambda: [np.int64(0), np.ones([3], np.float32)],
    },
)
LOSS = kind({}, {"a tensor": lambda: tf.constant(1.0), "gives None": lambda: lambda: None})

WRAPPER_CALLS: dict[str, Call] = {
    "DynamicEmbeddingOptimizer.apply": Call(
        _wrapper("apply"), _apply_good, {"grads": GRADIENTS, "trainable_variables": VARIABLES}
    ),
    "DynamicEmbeddingOptimizer.apply_gradients": Call(
        _wrapper("apply_gradients"), _pairs_good, {"grads_and_vars": PAIRS}
    ),
    "DynamicEmbeddingOptimizer.minimize": Call(
        _wrapper("minimize"),
        _minimize_good,
        {"loss": LOSS, "var_list": VARIABLES.taking(NOTHING, "[]"), "tape": k.NONE},
        says=("grads",),  # such variables have no gradients
    ),
    "DynamicEmbeddingOptimizer.set_weights": Call(
        _wrapper("set_weights"),
        lambda: {"weights": [np.int64(3), np.float32(0.1)]},
        {"weights": WEIGHTS},
    ),
}

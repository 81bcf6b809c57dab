# SPDX-License-Identifier: Apache-2.0
"""What variables and lookups take, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
import tensorflow as tf
from hostile_call import variable
from hostile_values import Kind

import tf_embed as te

OF_VARIABLE = {
    "key_dtype": k.KEY_DTYPE,
    "value_dtype": k.VALUE_DTYPE,
    "dim": k.POSITIVE_INT,
    "name": k.TABLE_NAME,
    "initializer": k.INITIALIZER,
    "trainable": k.FLAG,
    "checkpoint": k.FLAG,
    "init_size": k.NOT_NEGATIVE,
    "policy": k.POLICY,
    "storage": k.STORAGE,
    "devices": k.DEVICES,
    "partitioner": k.CALLABLE,
    "distribution": k.DISTRIBUTION,
}
OF_LOOKUP = {
    "params": k.PARAMS,
    "ids": k.KEYS,
    "name": k.OP_NAME,
    "max_norm": k.MAX_NORM,
    "training": k.TRAINING,
}
OF_SPARSE = {
    "params": k.PARAMS,
    "sp_ids": k.SPARSE_IDS,
    "sp_weights": k.SPARSE_WEIGHTS,
    "name": k.OP_NAME,
    "combiner": k.COMBINER.taking('it is "mean"', "None"),
}
OF_SAFE = {
    "embedding_weights": k.PARAMS,
    "sparse_ids": k.SPARSE_IDS,
    "sparse_weights": k.SPARSE_WEIGHTS,
    "combiner": k.COMBINER.taking('it is "mean"', "None"),
    "default_id": k.SCALAR_KEY,
    "name": k.OP_NAME,
}
MORE_OF_SPARSE = {"max_norm": k.MAX_NORM, "training": k.TRAINING}


def use_variable(v: te.Variable) -> None:
    has_strings = v.value_dtype == tf.string
    row = "x" if has_strings else True if v.value_dtype == tf.bool else 1
    v.lookup([b"a"] if v.key_dtype == tf.string else [5])
    v.upsert([b"a"] if v.key_dtype == tf.string else [5], [[row] * v.dim])
    v.export()
    v.stats()


def ids() -> tf.RaggedTensor:
    return tf.ragged.constant([[1], [2]], dtype=tf.int64)


def weights() -> tf.RaggedTensor:
    return tf.ragged.constant([[1.0], [2.0]])


def lookup(function: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: function


def sparse_good() -> dict[str, Any]:
    return {"params": variable(), "sp_ids": ids(), "sp_weights": weights()}


def safe_good() -> dict[str, Any]:
    return {"embedding_weights": variable(), "sparse_ids": ids(), "sparse_weights": weights()}


@functools.cache
def folder() -> str:
    folder = tempfile.mkdtemp()
    variable().save_rows(folder)
    return folder


# The verbs that `Variable` and `tfra.Variable` have: good arguments, and the kind of each argument.
VERBS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Kind]]] = {
    "upsert": (
        lambda: {"keys": [1], "values": [[1.0, 2.0]]},
        {"keys": k.ONE_KEY, "values": k.ROWS, "distinct": k.FLAG},
    ),
    "accum": (
        lambda: {
            "keys": [1],
            "old_values": [[0.0, 0.0]],
            "new_values": [[0.0, 0.0]],
            "exists": [True],
        },
        {"keys": k.ONE_KEY, "old_values": k.ROWS, "new_values": k.ROWS, "exists": k.OBJECT},
    ),
    "lookup": (
        lambda: {"keys": [1]},
        {"keys": k.KEYS, "return_exists": k.FLAG, "training": k.TRAINING},
    ),
    "prefetch": (lambda: {"keys": [1]}, {"keys": k.KEYS}),
    "remove": (lambda: {"keys": [1]}, {"keys": k.KEYS}),
}

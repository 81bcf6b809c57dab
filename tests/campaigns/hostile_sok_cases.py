# SPDX-License-Identifier: Apache-2.0
"""The names of `tf_embed.sok`, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import datetime
import tempfile
from typing import Any

import hostile_kinds as k
import keras
import tensorflow as tf
from hostile_call import Call, variable
from hostile_layer_cases import OF_LAYER
from hostile_values import kind

import tf_embed
from tf_embed import sok

COUNT = kind({k.RANGE: "3, 2**63-1"})
INPUTS = k.SPARSE_IDS_ALONE.refused_by(k.KERAS, k.UNPRINTABLE)
OPTIMIZER = kind(
    {k.DEFAULT: "None"},
    {"class SGD": lambda: keras.optimizers.SGD, "name": lambda: "sgd"},
)
INITIALIZER = ("`initializer`", "seed of an initializer")
OF_SOK = {
    "max_vocabulary_size_per_gpu": k.POSITIVE_INT,
    "embedding_vec_size": k.POSITIVE_INT,
    "slot_num": COUNT,
    "use_hashtable": k.FLAG,
    "key_dtype": kind({k.DEFAULT: "None"}, dict(k.KEY_DTYPE.also)),
    "embedding_initializer": k.INITIALIZER,
    "optimizer": OF_LAYER["optimizer"],
    "name": k.LAYER_NAME,
}


def _dense(**options: Any) -> dict[str, Any]:
    return {
        "max_vocabulary_size_per_gpu": 8,
        "embedding_vec_size": 2,
        "slot_num": 1,
        "nnz_per_slot": 1,
        "name": "hostile_layer",
        **options,
    }


def _pooled() -> dict[str, Any]:
    good = {key: value for key, value in _dense().items() if key != "nnz_per_slot"}
    return {**good, "combiner": "sum", "max_nnz": 2}


def _sparse() -> tf.SparseTensor:
    return tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])


def _use_dense(layer: Any) -> None:
    layer.build()
    layer.get_config()


def _layer(kind_of: Any, good: dict[str, Any]) -> Any:
    layer = kind_of(**good)
    layer.build()
    return layer


def _prefetch(kind_of: Any, good: dict[str, Any]) -> Call:
    return Call(
        lambda: _layer(kind_of, good).prefetch,
        lambda: {"dataset": tf.data.Dataset.from_tensors(tf.constant([1, 2]))},
        {
            "dataset": k.OBJECT,
            "ids": k.CALLABLE.optional(),
            "buffer_size": k.LARGE_OR_ZERO.taking("tf.data.AUTOTUNE", "-1"),
        },
    )


def _saved() -> tuple[Any, str]:
    v, folder = variable(), tempfile.mkdtemp()
    sok.dump(folder, v)
    return v, folder


def _load() -> dict[str, Any]:
    v, folder = _saved()
    return {"path": folder, "load_vars": v}


def _restore() -> dict[str, Any]:
    v, folder = _saved()
    return {"embedding_variable": v, "filepath": folder}


ONE_TABLE = kind({"no tables": "[]"}, {"class Variable": lambda: tf_embed.Variable})
TABLES = k.PARAMS.taking("no tables", "[]").taking("two tables", "two variables")

SOK_CALLS: dict[str, Call] = {
    "sok.All2AllDenseEmbedding.prefetch": _prefetch(sok.All2AllDenseEmbedding, _dense()),
    "sok.DistributedEmbedding.prefetch": _prefetch(sok.DistributedEmbedding, _pooled()),
    "sok.All2AllDenseEmbedding": Call(
        lambda: sok.All2AllDenseEmbedding,
        _dense,
        {**OF_SOK, "nnz_per_slot": COUNT, "dynamic_input": k.FLAG},
        _use_dense,
        says=INITIALIZER,
    ),
    "sok.All2AllDenseEmbedding()": Call(
        lambda: _layer(sok.All2AllDenseEmbedding, _dense()),
        lambda: {"inputs": tf.constant([[[1]]])},
        {"inputs": k.IDS, "training": k.LAYER_TRAINING},
    ),
    "sok.DistributedEmbedding": Call(
        lambda: sok.DistributedEmbedding,
        _pooled,
        {
            **OF_SOK,
            "combiner": k.COMBINER,
            "max_nnz": COUNT,
            "max_feature_num": COUNT.optional(),
        },
        _use_dense,
        says=INITIALIZER,
    ),
    "sok.DistributedEmbedding()": Call(
        lambda: _layer(sok.DistributedEmbedding, _pooled()),
        lambda: {"inputs": _sparse()},
        {"inputs": INPUTS, "training": k.LAYER_TRAINING},
    ),
    "sok.Init": Call(
        lambda: sok.Init, lambda: {"global_batch_size": 4}, {"global_batch_size": COUNT}
    ),
    "sok.lookup_sparse": Call(
        lambda: sok.lookup_sparse,
        lambda: {"params": variable(), "sp_ids": _sparse()},
        {
            "params": TABLES,
            "sp_ids": k.SPARSE_IDS_ALONE,
            "sp_weights": k.SPARSE_WEIGHTS.taking("numbers, as the ids", "SparseTensor"),
            "combiners": k.COMBINER.optional(),
        },
        says=("combiner",),
    ),
    "sok.filter_variables": Call(
        lambda: sok.filter_variables,
        lambda: {"variables": [variable()]},
        {"variables": kind({"no variables": "[], array of no rows"})},
    ),
    "sok.export": Call(lambda: sok.export, lambda: {"var": variable()}, {"var": k.PARAMS}),
    "sok.assign": Call(
        lambda: sok.assign,
        lambda: {"var": variable(), "indices": [1], "values": [[1.0, 2.0]]},
        {"var": k.PARAMS, "indices": k.ONE_KEY, "values": k.ROWS},
        says=("keys",),
    ),
    "sok.incremental_model_dump": Call(
        lambda: sok.incremental_model_dump,
        lambda: {
            "vars": variable(policy=tf_embed.TablePolicy(eviction="ttl")),
            "time_threshold": datetime.datetime(2026, 1, 1),
        },
        {"vars": TABLES, "time_threshold": k.OBJECT, "sess": k.IGNORED},
        says=("times of rows",),
    ),
    "sok.dump": Call(
        lambda: sok.dump,
        lambda: {"path": tempfile.mkdtemp(), "dump_vars": variable()},
        {"path": k.FOLDER, "dump_vars": TABLES, "optimizer": OPTIMIZER},
        says=("dirpath",),
    ),
    "sok.load": Call(
        lambda: sok.load,
        _load,
        {"path": k.FOLDER, "load_vars": ONE_TABLE, "optimizer": OPTIMIZER},
        says=("dirpath", "no whole save"),
    ),
    "sok.Saver.dump_to_file": Call(
        lambda: sok.Saver().dump_to_file,
        lambda: {"embedding_variable": variable(), "filepath": tempfile.mkdtemp()},
        {"embedding_variable": TABLES, "filepath": k.FOLDER},
        says=("dirpath", "dump_vars"),
    ),
    "sok.Saver.restore_from_file": Call(
        lambda: sok.Saver().restore_from_file,
        _restore,
        {"embedding_variable": ONE_TABLE, "filepath": k.FOLDER},
        says=("dirpath", "load_vars", "no whole save"),
    ),
}

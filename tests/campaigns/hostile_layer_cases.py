# SPDX-License-Identifier: Apache-2.0
"""The layers, models and optimizers, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import tempfile
from typing import Any

import hostile_kinds as k
import keras
import numpy as np
import tensorflow as tf
from hostile_call import Call

import tf_embed as te

OF_LAYER = {
    "key_dtype": k.KEY_DTYPE,
    "value_dtype": k.VALUE_DTYPE,
    "initializer": k.INITIALIZER,
    "devices": k.DEVICES,
    "partitioner": k.CALLABLE.optional(),
    "optimizer": k.OPTIMIZER.optional(),
    "padding_id": k.PADDING,
    "unknown_value": k.UNKNOWN,
    "unknown_in_training": k.FLAG,
    "policy": k.POLICY,
    "storage": k.STORAGE,
    "distribution": k.DISTRIBUTION,
    "name": k.LAYER_NAME,
}
OF_EMBEDDING = {
    **OF_LAYER,
    "kv_creator": k.CREATOR,
    "restrict_policy": k.RESTRICT,
    "bp_v2": k.FLAG,
    "embedding_size": k.POSITIVE_INT,
    "combiner": k.COMBINER_OR_FUNCTION,
    "with_unique": k.FLAG,
    "short_file_name": k.FLAG,
    "init_capacity": k.NOT_NEGATIVE,
    "max_norm": k.LAYER_NORM,
    "checkpoint": k.FLAG,
    "distribute_strategy": k.IGNORED,
    "keep_distribution": k.FLAG,
}


def _use_layer(layer: Any) -> None:
    ids = tf.constant([["a"]]) if layer.key_dtype == "string" else tf.constant([[1]])
    layer(ids, training=True)
    layer.get_config()


def _layer(kind: Any, **options: Any) -> Any:
    layer = kind(2, name="hostile_layer", **options)
    layer.build()
    return layer


def _all_to_all(dim: int, **options: Any) -> Any:
    return te.tfra.keras.layers.AllToAllEmbedding(embedding_size=dim, **options)


def _model() -> keras.Model:
    ids = keras.Input((2,), dtype="int64")
    return keras.Model(ids, te.layers.DynamicEmbedding(2, name="hostile_layer")(ids))


def _prefetch(kind: Any, **options: Any) -> Call:
    return Call(
        lambda: _layer(kind, **options).prefetch,
        lambda: {"dataset": tf.data.Dataset.from_tensors(tf.constant([1, 2]))},
        {
            "dataset": k.OBJECT,
            "ids": k.CALLABLE.optional(),
            "buffer_size": k.LARGE_OR_ZERO.taking("tf.data.AUTOTUNE", "-1"),
        },
    )


LAYER_CALLS: dict[str, Call] = {
    "callbacks.BackupAndRestore": Call(
        lambda: te.callbacks.BackupAndRestore,
        lambda: {"backup_dir": "x"},
        {
            "backup_dir": k.FOLDER,
            "save_freq": k.kind({k.RANGE: "3, 2**63-1"}),
            "delete_checkpoint": k.FLAG,
        },
    ),
    "callbacks.TableMetrics": Call(
        lambda: te.callbacks.TableMetrics,
        dict,
        {
            "tables": k.NONE.taking("nothing to watch", "[], array of no rows"),
            "log_dir": k.FOLDER.optional(),
            "every": k.LARGE_INT,
        },
    ),
    "callbacks.TableProjector": Call(
        lambda: te.callbacks.TableProjector,
        lambda: {"log_dir": "x"},
        {
            "log_dir": k.FOLDER,
            "tables": k.NONE.taking("nothing to watch", "[], array of no rows"),
            "rows": k.POSITIVE_INT,
            "every_n_epochs": k.LARGE_INT,
        },
    ),
    "layers.DynamicEmbedding.prefetch": _prefetch(te.layers.DynamicEmbedding),
    "tfra.keras.layers.Embedding.prefetch": _prefetch(te.tfra.keras.layers.Embedding),
    "tfra.keras.layers.AllToAllEmbedding.prefetch": _prefetch(_all_to_all),
    "tfra.keras.layers.SquashedEmbedding.prefetch": _prefetch(
        te.tfra.keras.layers.SquashedEmbedding
    ),
    "tfra.keras.layers.FieldWiseEmbedding.prefetch": _prefetch(
        te.tfra.keras.layers.FieldWiseEmbedding, nslots=3, slot_map_fn=lambda keys: keys % 3
    ),
    "layers.DynamicEmbedding": Call(
        lambda: te.layers.DynamicEmbedding,
        lambda: {"dim": 2, "name": "hostile_layer"},
        {
            **OF_LAYER,
            "dim": k.POSITIVE_INT,
            "output_dim": k.POSITIVE_INT.optional(),  # refused together with `dim`
            "combiner": k.COMBINER.optional(),
            "init_size": k.NOT_NEGATIVE,
            # As in keras.layers.Embedding: a vocabulary of 2, and the dim.
            "key_dtype": k.KEY_DTYPE.taking("the second of two sizes", "3, enum of a dtype"),
            "input_dim": k.POSITIVE_INT.optional(),
            "embeddings_initializer": k.INITIALIZER.optional(),
            "embeddings_regularizer": k.REGULARIZER,
            "mask_zero": k.FLAG,
            "weights": k.MATRIX,
        },
        _use_layer,
        says=("initializer", "output_dim"),
    ),
    "layers.DynamicEmbedding [output_dim]": Call(
        lambda: te.layers.DynamicEmbedding,
        lambda: {"output_dim": 2, "name": "hostile_layer"},
        {"output_dim": k.POSITIVE_INT},
        _use_layer,
    ),
    "layers.DynamicEmbedding.set_weights": Call(
        lambda: _layer(te.layers.DynamicEmbedding).set_weights,
        lambda: {"weights": _layer(te.layers.DynamicEmbedding).get_weights()},
        {
            "weights": k.kind(
                {},
                {
                    "[matrix]": lambda: [tf.ones([3, 2])],
                    "[array of no rows]": lambda: [np.zeros([0, 2], np.float32)],
                },
            )
        },
        says=("value", "set_weights(weights)"),
    ),
    "layers.DynamicEmbedding()": Call(
        lambda: _layer(te.layers.DynamicEmbedding, combiner="sum"),
        lambda: {"ids": tf.constant([[1, 2]])},
        {"ids": k.IDS, "weights": k.ID_WEIGHTS, "training": k.LAYER_TRAINING},
    ),
    "distributed.look_up_together": Call(
        lambda: te.distributed.look_up_together,
        lambda: {"calls": [(_layer(te.layers.DynamicEmbedding), tf.constant([1, 2]))]},
        {"calls": k.kind({"no calls": "[], array of no rows"}), "training": k.TRAINING},
    ),
    "tfra.keras.layers.Embedding": Call(
        lambda: te.tfra.keras.layers.Embedding,
        lambda: {"embedding_size": 2, "name": "hostile_layer"},
        OF_EMBEDDING,
        _use_layer,
    ),
    "tfra.keras.layers.Embedding()": Call(
        lambda: _layer(te.tfra.keras.layers.Embedding),
        lambda: {"ids": tf.constant([[1, 2]])},
        {"ids": k.ONE_ID, "training": k.LAYER_TRAINING},
    ),
    "tfra.keras.layers.AllToAllEmbedding": Call(
        lambda: te.tfra.keras.layers.AllToAllEmbedding,
        lambda: {"embedding_size": 2, "name": "hostile_layer"},
        {"with_unique": OF_EMBEDDING["with_unique"]},
        _use_layer,
        apart=("with_secondary_unique", "mpi_size", "batch_size"),
    ),
    "tfra.keras.layers.AllToAllEmbedding()": Call(
        lambda: _layer(_all_to_all),
        lambda: {"ids": tf.constant([[1, 2]])},
        {"ids": k.ONE_ID, "training": k.LAYER_TRAINING},
    ),
    "tfra.keras.layers.SquashedEmbedding": Call(
        lambda: te.tfra.keras.layers.SquashedEmbedding,
        lambda: {"embedding_size": 2, "name": "hostile_layer"},
        OF_EMBEDDING,
        _use_layer,
    ),
    "tfra.keras.layers.SquashedEmbedding()": Call(
        lambda: _layer(te.tfra.keras.layers.SquashedEmbedding),
        lambda: {"ids": tf.constant([[1, 2]])},
        {"ids": k.IDS, "training": k.LAYER_TRAINING},
    ),
    "tfra.keras.layers.FieldWiseEmbedding": Call(
        lambda: te.tfra.keras.layers.FieldWiseEmbedding,
        lambda: {
            "embedding_size": 2,
            "nslots": 3,
            "slot_map_fn": lambda keys: keys % 3,
            "name": "hostile_layer",
        },
        {
            **{
                name: OF_EMBEDDING[name]
                for name in (
                    "embedding_size",
                    "key_dtype",
                    "value_dtype",
                    "combiner",
                    "initializer",
                    "devices",
                    "name",
                    "with_unique",
                )
            },
            "nslots": k.POSITIVE_INT,
            "slot_map_fn": k.CALLABLE,
        },
        lambda layer: layer.get_config(),
    ),
    "tfra.keras.layers.LayerNormalization": Call(
        lambda: te.tfra.keras.layers.LayerNormalization,
        dict,
        {},
        apart=(
            "axis",
            "epsilon",
            "center",
            "scale",
            "beta_initializer",
            "gamma_initializer",
            "beta_regularizer",
            "gamma_regularizer",
            "beta_constraint",
            "gamma_constraint",
        ),
    ),
    "tfra.keras.callbacks.ModelCheckpoint": Call(
        lambda: te.tfra.keras.callbacks.ModelCheckpoint,
        lambda: {"filepath": "a.keras"},
        {"filepath": k.OBJECT, "options": k.NONE, "signatures": k.NONE},
    ),
    "tfra.keras.models.load_model": Call(
        lambda: te.tfra.keras.models.load_model,
        lambda: {"filepath": "/nowhere/a.keras"},
        {"filepath": k.OBJECT},
        apart=("custom_objects", "compile", "safe_mode"),
    ),
    "tfra.keras.models.save_model": Call(
        lambda: te.tfra.keras.models.save_model,
        lambda: {"model": _model(), "filepath": tempfile.mkdtemp() + "/a.keras"},
        {
            "model": k.OBJECT,
            "filepath": k.MODEL_PATH,
            "overwrite": k.FLAG,
            "include_optimizer": k.TRUE,
            "signatures": k.NONE,
            "options": k.NONE,
            "save_traces": k.TRUE,
        },
    ),
    "tbe.quantized_rows.quantize": Call(
        lambda: te.tbe.quantized_rows.quantize, dict, {"rows": k.FLOAT_ROWS}
    ),
    "tbe.quantized_rows.dequantize": Call(
        lambda: te.tbe.quantized_rows.dequantize, dict, {"rows": k.OBJECT}
    ),
    "DynamicEmbeddingOptimizer": Call(
        lambda: te.DynamicEmbeddingOptimizer,
        lambda: {"keras_optimizer": "adam"},
        {
            "keras_optimizer": k.OPTIMIZER,
            "share_slots": k.FLAG,
            "name": k.LAYER_NAME,
        },
        says=("optimizer",),
    ),
    "tfra.DynamicEmbeddingOptimizer": Call(
        lambda: te.tfra.DynamicEmbeddingOptimizer,
        lambda: {"keras_optimizer": "adam"},
        {
            "keras_optimizer": k.OPTIMIZER,
            "bp_v2": k.FLAG,
            "synchronous": k.FLAG,
            "name": k.LAYER_NAME,
        },
        says=("optimizer",),
    ),
}

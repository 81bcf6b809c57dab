# SPDX-License-Identifier: Apache-2.0
"""The names of `tf_embed.one_embedding`, with the kind of each argument; see `hostile_cases`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
import keras
import tensorflow as tf
from hostile_call import Call
from hostile_values import kind

import tf_embed
from tf_embed import one_embedding

SCALAR = "a tensor of one number"
NUMBER = kind({k.RANGE: "-1, 0, 3, 1.5, 2**63-1, 2**63, -2**63-1", SCALAR: "tensor int8"})
FROM_ZERO = kind({k.RANGE: "0, 3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"})
TABLE_IDS = k.NONE.refused_by(k.KERAS, k.UNPRINTABLE).taking(k.SYMBOLIC, "KerasTensor")
UNIFORM = one_embedding.make_uniform_initializer()
TABLE = one_embedding.make_table(UNIFORM)
PATH = kind({"a path": "'x', long", "a list of paths": "['x']"})
COUNT = kind({k.RANGE: "3, 2**63-1"})


def _maker(name: str) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(one_embedding, f"make_{name}")


def _store(**options: Any) -> dict[str, Any]:
    folder = tempfile.mkdtemp()
    return one_embedding.make_device_mem_store_options(folder, 100, **options)


def _good(**options: Any) -> dict[str, Any]:
    return {
        "name": "hostile_layer",
        "embedding_dim": 2,
        "dtype": "float32",
        "key_type": "int64",
        "tables": [TABLE, TABLE],
        "store_options": _store(),
        **options,
    }


def _ids() -> dict[str, Any]:
    return {"ids": tf.constant([[0]])}


def _use(layer: Any) -> None:
    """Looks up, makes a step if there is an optimizer, and reads the config."""
    ids = tf.zeros([2, layer.num_tables], layer.key_type)
    layer(ids)
    if layer.optimizers:
        variables = layer.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(ids), tf.float32))
        keras.optimizers.SGD().apply(tape.gradient(loss, variables), variables)
    layer.get_config()


OF_LAYER = {
    "name": kind({"a name for a folder": "'x', long"}),
    "embedding_dim": k.POSITIVE_INT,
    "dtype": kind({"Keras's policy": "None"}),
    "key_type": kind(),
    "tables": kind({k.DEFAULT: "None"}),
    "store_options": kind(),
    "default_initializer": k.NONE,
    "padding_idx": k.PADDING,
    "seed": kind({k.RANGE: "-1, 0, 3, 2**63-1"}),
    "optimizer": k.OPTIMIZER.optional(),
    "shared_ids": k.FLAG,
    "policy": k.POLICY,
    "devices": k.DEVICES,
}
OF_STORE = {
    "persistent_path": PATH,
    "capacity": COUNT,
    "size_factor": COUNT.optional(),
    "storage_dim": COUNT.taking(k.DEFAULT, "-1"),
    "physical_block_size": kind(),
}
BUDGET = kind({k.RANGE: "3"})


def _stored(**options: Any) -> dict[str, Any]:
    return {"persistent_path": "/tmp/rows", "capacity": 100, **options}


def _methods_of(name: str) -> dict[str, Call]:
    """The call and the methods of a layer with a single table."""

    def made(**options: Any) -> Any:
        layer = getattr(one_embedding, name)(**_good(tables=[TABLE], **options))
        layer.build()
        return layer

    def tracked() -> Any:
        layer = made(policy=tf_embed.TablePolicy(eviction=None, track_changes=True))
        layer.save_snapshot("earlier")
        return layer

    ids = {"ids": k.ONE_ID.refused_by("it is not dense", "RaggedTensor, SparseTensor")}
    of_call = {**ids, "table_ids": TABLE_IDS, "training": k.LAYER_TRAINING}
    return {
        f"one_embedding.{name}()": Call(made, _ids, of_call),
        f"one_embedding.{name}.forward": Call(lambda: made().forward, _ids, of_call),
        f"one_embedding.{name}.prefetch": Call(
            lambda: made().prefetch,
            lambda: {"dataset": tf.data.Dataset.from_tensors(tf.constant([1, 2]))},
            {
                "dataset": k.OBJECT,
                "ids": k.CALLABLE.optional(),
                "buffer_size": k.LARGE_OR_ZERO.taking("tf.data.AUTOTUNE", "-1"),
            },
        ),
        f"one_embedding.{name}.save_snapshot": Call(
            lambda: tracked().save_snapshot,
            lambda: {"snapshot_name": "later"},
            {
                "snapshot_name": kind({"a name": "'x'"}),
                "since": k.NONE,
                "wait": k.FLAG,
                "progress": k.PROGRESS,
            },
            lambda pending: pending.wait(),
        ),
        f"one_embedding.{name}.load_snapshot": Call(
            lambda: tracked().load_snapshot,
            lambda: {"snapshot_name": "earlier"},
            {"snapshot_name": kind(), "progress": k.PROGRESS},
        ),
    }


def _snapshot(**options: Any) -> dict[str, Any]:
    """Arguments of a reader, and the snapshot that it reads."""
    arguments = {
        "paths": [tempfile.mkdtemp()],
        "snapshot_name": "x",
        "key_type": "int64",
        "value_type": "float32",
        "storage_dim": 3,
        **options,
    }
    with one_embedding.make_persistent_table_writer(**arguments) as writer:
        writer.write([1], [[1.0, 2.0, 3.0]])
    return arguments


OF_SNAPSHOT = {
    "paths": kind(),
    "snapshot_name": kind({"a name": "'x'"}),
    "key_type": kind(),
    "value_type": kind(),
    "storage_dim": kind({k.RANGE: "3"}),
    "physical_block_size": kind(),
    "layer_name": k.NONE,
}


ONE_EMBEDDING_CALLS = {
    "one_embedding.make_uniform_initializer": Call(
        _maker("uniform_initializer"),
        lambda: {"low": -1e38, "high": 1e38},
        {"low": NUMBER, "high": NUMBER},
    ),
    "one_embedding.make_normal_initializer": Call(
        _maker("normal_initializer"),
        dict,
        {
            "mean": NUMBER,
            "std": kind({k.RANGE: "0, 3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"}),
        },
    ),
    "one_embedding.make_constant_initializer": Call(
        _maker("constant_initializer"), dict, {"value": NUMBER}
    ),
    "one_embedding.make_trunc_normal_initializer": Call(
        _maker("trunc_normal_initializer"),
        lambda: {"std": 1e30, "a": -1e30, "b": 1e30},
        {
            "mean": NUMBER,
            "std": kind({k.RANGE: "3, 1.5, 2**63-1, 2**63", SCALAR: "tensor int8"}),
            "a": NUMBER,
            "b": NUMBER,
        },
        says=("`a`", "`b`"),
    ),
    "one_embedding.make_column_options": Call(
        _maker("column_options"), dict, {"initializer": kind()}
    ),
    "one_embedding.make_table_options": Call(_maker("table_options"), dict, {"param": kind()}),
    "one_embedding.make_device_mem_store_options": Call(
        _maker("device_mem_store_options"), _stored, OF_STORE
    ),
    "one_embedding.make_cached_host_mem_store_options": Call(
        _maker("cached_host_mem_store_options"),
        lambda: _stored(cache_budget_mb=1),
        {**OF_STORE, "cache_budget_mb": BUDGET},
    ),
    "one_embedding.make_cached_ssd_store_options": Call(
        _maker("cached_ssd_store_options"),
        lambda: _stored(cache_budget_mb=1, host_cache_budget_mb=1),
        {
            **OF_STORE,
            "capacity": COUNT.optional(),
            "cache_budget_mb": BUDGET.taking("the other budget is there", "0"),
            "host_cache_budget_mb": BUDGET.taking("the other budget is there", "0"),
        },
    ),
    "one_embedding.make_persistent_table_reader": Call(
        _maker("persistent_table_reader"), _snapshot, OF_SNAPSHOT, list, says=("snapshot_name",)
    ),
    "one_embedding.make_persistent_table_writer": Call(
        _maker("persistent_table_writer"),
        _snapshot,
        {
            **OF_SNAPSHOT,
            "paths": PATH,
            "storage_dim": k.POSITIVE_INT,
            "layer_name": kind({"a name": "'x'", k.DEFAULT: "None"}),
            "like": k.NONE,
            "num_tables": kind({k.RANGE: "3", k.DEFAULT: "None"}),
        },
        lambda writer: writer.close(),
    ),
    "one_embedding.MultiTableEmbedding": Call(
        lambda: one_embedding.MultiTableEmbedding, _good, OF_LAYER, _use
    ),
    "one_embedding.MultiTableMultiColumnEmbedding": Call(
        lambda: one_embedding.MultiTableMultiColumnEmbedding,
        lambda: _good(key_type="int32"),
        {**OF_LAYER, "embedding_dim": k.POSITIVE_INT.taking("columns", "[1]")},
        _use,
    ),
    **_methods_of("MultiTableEmbedding"),
    **_methods_of("MultiTableMultiColumnEmbedding"),
}

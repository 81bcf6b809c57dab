# SPDX-License-Identifier: Apache-2.0
"""The public names of tf_embed, with the kind of each argument and good values for the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
import tensorflow as tf
from hostile_batch_cases import BATCH_CALLS
from hostile_call import Call, variable
from hostile_export_cases import EXPORT_CALLS
from hostile_layer_cases import LAYER_CALLS
from hostile_one_embedding_cases import ONE_EMBEDDING_CALLS
from hostile_rule_cases import RULE_CALLS
from hostile_serving_cases import SERVING_CALLS
from hostile_snapshot_cases import SNAPSHOT_CALLS
from hostile_sok_cases import SOK_CALLS
from hostile_tfra_cases import TFRA_CALLS
from hostile_variable_kinds import (
    MORE_OF_SPARSE,
    OF_LOOKUP,
    OF_SAFE,
    OF_SPARSE,
    OF_VARIABLE,
    VERBS,
    folder,
    lookup,
    safe_good,
    sparse_good,
    use_variable,
)
from hostile_wrapper_cases import WRAPPER_CALLS

import tf_embed as te

# Public names that have no cases, and why.
EXEMPT = {
    r"tfra\.(data_flow|math)\.\w+": "TensorFlow's own function, under TFRA's name",
    r".*Optimizer\.scale_loss": "Keras's trainer calls it, and it gives the loss to Keras",
    r".*Optimizer\.(exclude_from_weight_decay|finalize_variable_values|slot_variables)": (
        "Keras and Variable call them"
    ),
    r"((optimizers|tbe)\.(?!TableBatched)[A-Z]\w+|one_embedding\.(Ftrl|SmartDecayAdam))\.\w+": (
        "what a trainer asks a rule for, with numbers that were checked"
    ),
    r"(tfra\.shadow_ops\.ShadowVariable)\.(assign|set_initially_frozen|slices_of)": (
        "Keras and optimizers call them"
    ),
    r"tfra\.\w*RestrictPolicy(\.apply_update)?": "a variable makes it, and calls it with tensors",
    r"serving\.Publication": "Follower makes it",
    r"TablePolicy\.scores": "a table calls it, with tensors",
    r"RedisServer\.settings": "a table calls it, with its name",
    r"(tbe|tfra)\.\w+(Mode|Algorithm|Device|Type|Location|Decay|Strategy)": (
        "an enum, which Python makes; what takes one has cases"
    ),
    r"(distributed\.(Model|MultiWorker)|Model|ModelWithTables)(\.\w+)?": (
        "a Keras model, with methods as Keras has them"
    ),
    r"distributed\.(run_with_servers|ParameterServerTrainer(\.\w+)?)": (
        "needs the processes of a cluster; tests/processes/servers_test.py has its cases"
    ),
    r"tfra\.Variable\.(\w+_rows|row_statistics|set_\w+|slot_variables)": "Variable's own methods",
    r"tfra\.ModelMode": "holds two names; there is nothing to give to it",
}


def _enter(context: Any) -> None:
    with context:
        pass


def _method(name: str, **options: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(variable(**options), name)


def _policy(policy: Any) -> None:
    use_variable(te.Variable(dim=2, policy=te.TablePolicy(admission=policy)))


CALLS: dict[str, Call] = {
    "Variable": Call(
        lambda: te.Variable, lambda: {"dim": 2, "name": "hostile_table"}, OF_VARIABLE, use_variable
    ),
    **{
        f"Variable.{name}": Call(_method(name), good, kinds)
        for name, (good, kinds) in VERBS.items()
    },
    "Variable.slot_variables": Call(_method("slot_variables"), dict, {"optimizer": k.OBJECT}),
    "Variable.restrict": Call(
        _method("restrict", policy=te.TablePolicy()), dict, {"num_reserved": k.NUMBER_OF_ROWS}
    ),
    "Variable.row_statistics": Call(
        _method("row_statistics", policy=te.TablePolicy()), dict, {"keys": k.KEYS}
    ),
    "Variable.set_scores": Call(
        _method("set_scores", policy=te.TablePolicy(eviction="score")),
        lambda: {"keys": [1], "scores": [3]},
        {"keys": k.ONE_KEY, "scores": k.ONE_KEY},
    ),
    "Variable.set_clock": Call(
        _method("set_clock", policy=te.TablePolicy(eviction="epoch_lru")),
        dict,
        {"step": k.CLOCK, "time_ms": k.CLOCK_FROM_ZERO, "epoch": k.CLOCK_FROM_ZERO},
    ),
    "Variable.save_rows": Call(
        _method("save_rows"),
        lambda: {"path": tempfile.mkdtemp()},
        {
            "path": k.FOLDER,
            "file_name": k.TABLE_NAME.optional(),
            "buffer_bytes": k.POSITIVE_INT,
            "progress": k.PROGRESS,
        },
    ),
    "Variable.load_rows": Call(
        _method("load_rows"),
        lambda: {"path": folder()},
        {"path": k.FOLDER, "file_name": k.TABLE_NAME.optional(), "progress": k.PROGRESS},
    ),
    "embedding_lookup": Call(
        lookup(te.embedding_lookup), lambda: {"params": variable(), "ids": [1]}, OF_LOOKUP
    ),
    "embedding_lookup_unique": Call(
        lookup(te.embedding_lookup_unique), lambda: {"params": variable(), "ids": [1]}, OF_LOOKUP
    ),
    "unique_rows": Call(
        lookup(te.unique_rows),
        lambda: {"params": variable(), "ids": [1]},
        {name: OF_LOOKUP[name] for name in ("params", "ids", "name", "training")},
    ),
    "embedding_lookup_sparse": Call(
        lookup(te.embedding_lookup_sparse), sparse_good, {**OF_SPARSE, **MORE_OF_SPARSE}
    ),
    "safe_embedding_lookup_sparse": Call(
        lookup(te.safe_embedding_lookup_sparse), safe_good, {**OF_SAFE, **MORE_OF_SPARSE}
    ),
    "default_partition_fn": Call(
        lambda: te.default_partition_fn,
        lambda: {"keys": [1, 2], "shard_num": 3},
        {"keys": k.KEYS, "shard_num": k.POSITIVE_INT},
    ),
    "CounterAdmission": Call(
        lambda: te.CounterAdmission,
        lambda: {"n": 2},
        {"n": k.POSITIVE_INT, "max_keys": k.POSITIVE_INT.optional()},
        _policy,
    ),
    "BloomAdmission": Call(
        lambda: te.BloomAdmission,
        lambda: {"n": 2, "error_rate": 0.1},
        {
            "n": k.POSITIVE_INT,
            "error_rate": k.OBJECT,
            "max_keys": k.POSITIVE_INT.optional(),
        },
        _policy,
    ),
    "Variable.upsert [strings]": Call(
        _method("upsert", key_dtype="string"),
        lambda: {"keys": ["x"], "values": [[1.0, 2.0]]},
        {"keys": k.kind({"a string in a list": "['x']"})},
    ),
    "Variable.upsert [float16]": Call(
        _method("upsert", value_dtype="float16"),
        lambda: {"keys": [1], "values": [[1.0, 2.0]]},
        {"values": k.HALF_ROWS},
    ),
    "Variable.upsert [bfloat16]": Call(
        _method("upsert", value_dtype="bfloat16"),
        lambda: {"keys": [1], "values": [[1.0, 2.0]]},
        {"values": k.kind({}, {"1e39": lambda: [[1e39, 0.0]]})},
    ),
    "Variable.lookup [strings]": Call(
        _method("lookup", key_dtype="string"), dict, {"keys": k.STRING_KEYS}
    ),
    "Variable [two keys]": Call(
        lambda: te.Variable,
        lambda: {"dim": 2, "name": "hostile_table"},
        {"initializer": k.INITIALIZER},
        lambda v: v.lookup([5, 6]),
    ),
    "embedding_lookup_sparse [no weights]": Call(
        lookup(te.embedding_lookup_sparse),
        lambda: {"params": variable()},
        {"sp_ids": k.SPARSE_IDS_ALONE},
        says=("ids",),
    ),
    "safe_embedding_lookup_sparse [no weights]": Call(
        lookup(te.safe_embedding_lookup_sparse),
        lambda: {"embedding_weights": variable()},
        {"sparse_ids": k.SPARSE_IDS_ALONE},
        says=("ids",),
    ),
    "TablePolicy": Call(
        lambda: te.TablePolicy,
        lambda: {"eviction": "lru"},
        {
            "max_rows": k.POSITIVE_INT.optional(),
            "eviction": k.OBJECT.optional(),
            "admission": k.OBJECT.optional(),
            "ttl_seconds": k.TTL,
            "log_evicted": k.FLAG,
            "track_changes": k.FLAG,
            "steps_per_epoch": k.OBJECT.optional(),
            "score_fn": k.OBJECT.optional(),
        },
        lambda policy: use_variable(te.Variable(dim=2, policy=policy)),
        says=("eviction",),
    ),
    "TablePolicy(max_rows, eviction=None)": Call(
        lambda: te.TablePolicy,
        lambda: {"max_rows": 3, "eviction": None},
        {"max_rows": k.POSITIVE_INT.optional(), "eviction": k.OBJECT.optional()},
        lambda policy: use_variable(te.Variable(dim=2, policy=policy)),
        says=("eviction",),
    ),
    "distributed.WorkerSharding": Call(
        lambda: te.distributed.WorkerSharding,
        dict,
        {
            "owner": k.CALLABLE,
            "wire_dtype": k.NONE,
            "timeout_seconds": k.kind({"seconds": "3, 1.5"}),
            "communication_hint": k.OBJECT,
        },
        lambda sharding: use_variable(te.Variable(dim=2, distribution=sharding)),
    ),
    "distributed.timeout": Call(
        lambda: te.distributed.timeout,
        dict,
        {"seconds": k.kind({"seconds": "3, 1.5"}), "what": k.TABLE_NAME},
        _enter,
    ),
    "distributed.is_chief": Call(
        lambda: te.distributed.is_chief,
        lambda: {"strategy": tf.distribute.get_strategy()},
        {"strategy": k.OBJECT},
    ),
    "RedisServer": Call(
        lambda: te.RedisServer,
        dict,
        {
            "host": k.REDIS_NAME,
            "port": k.POSITIVE_INT,
            "username": k.REDIS_NAME.optional(),
            "password": k.kind({"printable": "'x', long", "none": "None"}),
            "password_env": k.REDIS_NAME.optional(),
            "database": k.NOT_NEGATIVE,
            "cluster": k.FLAG,
            "connect_timeout_seconds": k.REDIS_SECONDS,
            "timeout_seconds": k.REDIS_SECONDS,
            "max_connections": k.POSITIVE_INT,
            "model": k.REDIS_NAME,
            "table": k.REDIS_NAME.optional(),
            "slices": k.POSITIVE_INT,
            "keys_per_command": k.POSITIVE_INT,
            "restore": k.OBJECT,
        },
    ),
    "Storage": Call(
        lambda: te.Storage,
        lambda: {"gpu_total_bytes": 2**20},
        {
            "gpu_total_bytes": k.LARGE_INT.optional(),
            "gpu_bytes": k.LARGE_OR_ZERO.optional(),
            "host_bytes": k.LARGE_OR_ZERO.optional(),
            "gpu_cache": k.FALSE,
            "path": k.PATH_OF_STORAGE,
            "disk_bytes": k.NONE,
            "keep_leftovers": k.FALSE,
            "redis": k.NONE,
        },
        lambda storage: use_variable(te.Variable(dim=2, storage=storage)),
        says=("host_bytes",),
    ),
    **LAYER_CALLS,
    **BATCH_CALLS,
    **ONE_EMBEDDING_CALLS,
    **RULE_CALLS,
    **EXPORT_CALLS,
    **SERVING_CALLS,
    **SNAPSHOT_CALLS,
    **SOK_CALLS,
    **TFRA_CALLS,
    **WRAPPER_CALLS,
}

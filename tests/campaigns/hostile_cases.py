# SPDX-License-Identifier: Apache-2.0
"""The public names of tf_embed, with the kind of each argument and good values for the others."""

from __future__ import annotations

import functools
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
    r"\w*RestrictPolicy(\.apply_update)?": "a variable makes it, and calls it with tensors",
    r"serving\.Publication": "Follower makes it",
    r"TablePolicy\.scores": "a table calls it, with tensors",
    r"RedisServer\.settings": "a table calls it, with its name",
    r"(tbe|tfra)\.\w+(Mode|Algorithm|Device|Type|Location|Decay|Strategy)": (
        "an enum, which Python makes; what takes one has cases"
    ),
    r"distributed\.(Model|MultiWorker)(\.\w+)?": "a Keras model, with methods as Keras has them",
    r"[\w.]+\.call_as_in_model": "a joint step calls it, with what the model's graph has",
    r"distributed\.(run_with_servers|ParameterServerTrainer(\.\w+)?)": (
        "needs the processes of a cluster; tests/processes/servers_test.py has its cases"
    ),
    r"tfra\.ModelMode": "holds two names; there is nothing to give to it",
}


def _use_variable(v: te.Variable) -> None:
    has_strings = v.value_dtype == tf.string
    row = "x" if has_strings else True if v.value_dtype == tf.bool else 1
    v.lookup([b"a"] if v.key_dtype == tf.string else [5])
    v.upsert([b"a"] if v.key_dtype == tf.string else [5], [[row] * v.dim])
    v.export()
    v.stats()


def _enter(context: Any) -> None:
    with context:
        pass


def _method(name: str, **options: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(variable(**options), name)


def _ids() -> tf.RaggedTensor:
    return tf.ragged.constant([[1], [2]], dtype=tf.int64)


def _weights() -> tf.RaggedTensor:
    return tf.ragged.constant([[1.0], [2.0]])


OF_VARIABLE = {
    "key_dtype": k.KEY_DTYPE,
    "value_dtype": k.VALUE_DTYPE,
    "dim": k.POSITIVE_INT,
    "devices": k.DEVICES,
    "partitioner": k.CALLABLE,
    "shared_name": k.IGNORED,
    "name": k.TABLE_NAME,
    "initializer": k.INITIALIZER,
    "trainable": k.FLAG,
    "checkpoint": k.FLAG,
    "init_size": k.NOT_NEGATIVE,
    "kv_creator": k.CREATOR,
    "restrict_policy": k.RESTRICT,
    "bp_v2": k.FLAG,
    "short_file_name": k.IGNORED,
    "policy": k.POLICY,
    "storage": k.STORAGE,
    "distribution": k.DISTRIBUTION,
}


def _forget(made: te.Variable) -> None:
    te.tfra.forget_variable(made.name)


OF_LOOKUP = {
    "params": k.PARAMS,
    "ids": k.KEYS,
    "partition_strategy": k.IGNORED,
    "name": k.OP_NAME,
    "validate_indices": k.IGNORED,
    "max_norm": k.MAX_NORM,
    "return_trainable": k.FLAG,
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
MORE_OF_SPARSE = {
    "partition_strategy": k.IGNORED,
    "max_norm": k.MAX_NORM,
    "return_trainable": k.FLAG,
    "training": k.TRAINING,
}


def _lookup(function: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: function


def _sparse_good() -> dict[str, Any]:
    return {"params": variable(), "sp_ids": _ids(), "sp_weights": _weights()}


def _safe_good() -> dict[str, Any]:
    return {"embedding_weights": variable(), "sparse_ids": _ids(), "sparse_weights": _weights()}


FILES = {
    "dirpath": k.FOLDER,
    "proc_size": k.POSITIVE_INT.optional(),
    "proc_rank": k.NOT_NEGATIVE.optional(),
    "file_name_list": k.FILE_NAMES,
    "dirpath_env": k.ENV,
    "buffer_size": k.POSITIVE_INT,
    "name": k.OP_NAME,
    "progress": k.PROGRESS,
}


@functools.cache
def _folder() -> str:
    folder = tempfile.mkdtemp()
    variable().save_to_file_system(folder)
    return folder


def _saved() -> dict[str, Any]:
    return {"dirpath": _folder()}


def _policy(policy: Any) -> None:
    _use_variable(te.Variable(dim=2, policy=te.TablePolicy(admission=policy)))


CALLS: dict[str, Call] = {
    "Variable": Call(
        lambda: te.Variable, lambda: {"dim": 2, "name": "hostile_table"}, OF_VARIABLE, _use_variable
    ),
    "tfra.get_variable": Call(
        lambda: te.tfra.get_variable,
        lambda: {"dim": 2, "name": "hostile_table"},
        OF_VARIABLE,
        _forget,
    ),
    "tfra.forget_variable": Call(lambda: te.tfra.forget_variable, dict, {"name": k.OLD_NAME}),
    "Variable.upsert": Call(
        _method("upsert"),
        lambda: {"keys": [1], "values": [[1.0, 2.0]]},
        {"keys": k.ONE_KEY, "values": k.ROWS, "name": k.OP_NAME, "distinct": k.FLAG},
    ),
    "Variable.accum": Call(
        _method("accum"),
        lambda: {
            "keys": [1],
            "old_values": [[0.0, 0.0]],
            "new_values": [[0.0, 0.0]],
            "exists": [True],
        },
        {
            "keys": k.ONE_KEY,
            "old_values": k.ROWS,
            "new_values": k.ROWS,
            "exists": k.OBJECT,
            "name": k.OP_NAME,
        },
    ),
    "Variable.lookup": Call(
        _method("lookup"),
        lambda: {"keys": [1]},
        {
            "keys": k.KEYS,
            "return_exists": k.FLAG,
            "name": k.OP_NAME,
            "training": k.TRAINING,
        },
    ),
    "Variable.prefetch": Call(
        _method("prefetch"), lambda: {"keys": [1]}, {"keys": k.KEYS, "name": k.OP_NAME}
    ),
    "Variable.remove": Call(
        _method("remove"), lambda: {"keys": [1]}, {"keys": k.KEYS, "name": k.OP_NAME}
    ),
    "Variable.clear": Call(_method("clear"), dict, {"name": k.OP_NAME}),
    "Variable.export": Call(_method("export"), dict, {"name": k.OP_NAME}),
    "Variable.size": Call(_method("size"), dict, {"index": k.SHARD, "name": k.OP_NAME}),
    "Variable.export_keys_and_scores": Call(
        _method("export_keys_and_scores", policy=te.TablePolicy()),
        lambda: {"split_size": 3},
        {"split_size": k.LARGE_INT, "name": k.OP_NAME},
    ),
    "Variable.get_trainable_by_name": Call(
        _method("get_trainable_by_name"), dict, {"name": k.ANY_STRING}
    ),
    "Variable.get_eager_trainable_by_name": Call(
        _method("get_eager_trainable_by_name"), dict, {"name": k.ANY_STRING}
    ),
    "Variable.get_slot_variables": Call(
        _method("get_slot_variables"), dict, {"optimizer": k.OBJECT}
    ),
    "Variable.restrict": Call(
        _method("restrict", policy=te.TablePolicy()),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.OBJECT},
    ),
    "TimestampRestrictPolicy.apply_restriction": Call(
        _method("restrict", restrict_policy=te.TimestampRestrictPolicy),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.NUMBER_OF_ROWS.optional()},
    ),
    "FrequencyRestrictPolicy.apply_restriction": Call(
        _method("restrict", restrict_policy=te.FrequencyRestrictPolicy),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.NUMBER_OF_ROWS.optional()},
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
    "Variable.save_to_file_system": Call(
        _method("save_to_file_system"),
        lambda: {"dirpath": tempfile.mkdtemp(), "proc_size": 9},
        {**FILES, "append_to_file": k.FALSE},
    ),
    "Variable.load_from_file_system": Call(
        _method("load_from_file_system"), _saved, {**FILES, "load_entire_dir": k.FLAG}
    ),
    "Variable.load_from_file_system_with_restore_function": Call(
        _method("load_from_file_system_with_restore_function"),
        _saved,
        {
            name: FILES[name]
            for name in ("dirpath", "proc_size", "proc_rank", "buffer_size", "progress")
        },
    ),
    "Variable.load_tfra_files": Call(
        _method("load_tfra_files"),
        _saved,
        {"dirpath": k.FOLDER, "file_name": k.ANY_STRING, "buffer_size": k.POSITIVE_INT},
        says=("dirpath",),
    ),
    "embedding_lookup": Call(
        _lookup(te.embedding_lookup), lambda: {"params": variable(), "ids": [1]}, OF_LOOKUP
    ),
    "embedding_lookup_unique": Call(
        _lookup(te.embedding_lookup_unique), lambda: {"params": variable(), "ids": [1]}, OF_LOOKUP
    ),
    "unique_rows": Call(
        _lookup(te.unique_rows),
        lambda: {"params": variable(), "ids": [1]},
        {name: OF_LOOKUP[name] for name in ("params", "ids", "name", "training")},
    ),
    "embedding_lookup_sparse": Call(
        _lookup(te.embedding_lookup_sparse), _sparse_good, {**OF_SPARSE, **MORE_OF_SPARSE}
    ),
    "safe_embedding_lookup_sparse": Call(
        _lookup(te.safe_embedding_lookup_sparse), _safe_good, {**OF_SAFE, **MORE_OF_SPARSE}
    ),
    "tfra.ragged_embedding_ops.embedding_lookup_sparse": Call(
        _lookup(te.tfra.ragged_embedding_ops.embedding_lookup_sparse), _sparse_good, OF_SPARSE
    ),
    "tfra.ragged_embedding_ops.safe_embedding_lookup_sparse": Call(
        _lookup(te.tfra.ragged_embedding_ops.safe_embedding_lookup_sparse), _safe_good, OF_SAFE
    ),
    "tfra.shadow_ops.ShadowVariable": Call(
        lambda: te.tfra.shadow_ops.ShadowVariable,
        lambda: {"params": variable()},
        {
            "params": k.PARAMS,
            "name": k.TABLE_NAME,
            "max_norm": k.MAX_NORM,
            "trainable": k.FLAG,
            "distribute_strategy": k.IGNORED,
        },
        lambda shadow: te.tfra.shadow_ops.embedding_lookup(shadow, [1]),
    ),
    "tfra.shadow_ops.embedding_lookup": Call(
        lambda: te.tfra.shadow_ops.embedding_lookup,
        lambda: {"shadow": te.tfra.shadow_ops.ShadowVariable(variable()), "ids": [1]},
        {
            "shadow": k.OBJECT,
            "ids": k.KEYS,
            "partition_strategy": k.IGNORED,
            "name": k.OP_NAME,
            "validate_indices": k.IGNORED,
        },
    ),
    "tfra.shadow_ops.embedding_lookup_unique": Call(
        lambda: te.tfra.shadow_ops.embedding_lookup_unique,
        lambda: {
            "shadow": te.tfra.shadow_ops.ShadowVariable(variable()),
            "ids": [1],
            "embedding_size": 2,
        },
        {
            "shadow": k.OBJECT,
            "ids": k.KEYS.taking("ids in a container", "RaggedTensor"),
            "embedding_size": k.OBJECT,
            "with_unique": k.FLAG,
            "name": k.OP_NAME,
        },
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
        _lookup(te.embedding_lookup_sparse),
        lambda: {"params": variable()},
        {"sp_ids": k.SPARSE_IDS_ALONE},
        says=("ids",),
    ),
    "safe_embedding_lookup_sparse [no weights]": Call(
        _lookup(te.safe_embedding_lookup_sparse),
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
        lambda policy: _use_variable(te.Variable(dim=2, policy=policy)),
        says=("eviction",),
    ),
    "TablePolicy(max_rows, eviction=None)": Call(
        lambda: te.TablePolicy,
        lambda: {"max_rows": 3, "eviction": None},
        {"max_rows": k.POSITIVE_INT.optional(), "eviction": k.OBJECT.optional()},
        lambda policy: _use_variable(te.Variable(dim=2, policy=policy)),
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
        lambda sharding: _use_variable(te.Variable(dim=2, distribution=sharding)),
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
        lambda storage: _use_variable(te.Variable(dim=2, storage=storage)),
        says=("host_bytes",),
    ),
    "tfra.HkvHashTableConfig": Call(
        lambda: te.tfra.HkvHashTableConfig,
        dict,
        {
            "init_capacity": k.POSITIVE_INT.optional(),
            "max_capacity": k.POSITIVE_INT.optional(),
            "max_hbm_for_values": k.LARGE_OR_ZERO,
            "evict_strategy": k.NOT_NEGATIVE,
            "step_per_epoch": k.NOT_NEGATIVE,
            "gen_scores_fn": k.CALLABLE.optional(),
            "reserved_key_start_bit": k.NOT_NEGATIVE,
        },
        lambda config: _use_variable(
            te.Variable(dim=2, kv_creator=te.tfra.HkvHashTableCreator(config))
        ),
    ),
    "tfra.HkvHashTableCreator": Call(
        lambda: te.tfra.HkvHashTableCreator,
        dict,
        {"config": k.OBJECT.optional(), "saver": k.OBJECT.optional()},
    ),
    "tfra.CuckooHashTableCreator": Call(
        lambda: te.tfra.CuckooHashTableCreator,
        dict,
        {"config": k.OBJECT.optional(), "saver": k.OBJECT.optional()},
    ),
    "tfra.RedisTableCreator": Call(
        lambda: te.tfra.RedisTableCreator,
        dict,
        {"config": k.OBJECT.optional(), "saver": k.OBJECT.optional()},
    ),
    "tfra.RedisTableConfig": Call(
        lambda: te.tfra.RedisTableConfig,
        dict,
        {
            "redis_config_abs_dir": k.ANY_STRING.optional(),
            "redis_config_abs_dir_env": k.ANY_STRING.optional(),
        },
    ),
    "tfra.RedisTableConfig.server": Call(lambda: te.tfra.RedisTableConfig().server, dict, {}),
    "tfra.KVCreator": Call(
        lambda: te.tfra.KVCreator, dict, {"config": k.STORED, "saver": k.OBJECT.optional()}
    ),
    "tfra.FileSystemSaver": Call(
        lambda: te.tfra.FileSystemSaver,
        lambda: {"proc_size": 2, "proc_rank": 0},
        {
            "proc_size": k.LARGE_INT,
            "proc_rank": k.RANK,
            "save_path": k.ANY_STRING.optional(),
            "buffer_size": k.LARGE_INT,
        },
    ),
    "RestrictPolicy.apply_restriction": Call(
        lambda: te.RestrictPolicy(variable()).apply_restriction,
        dict,
        {},
        apart=("num_reserved",),
    ),
    **LAYER_CALLS,
    **BATCH_CALLS,
    **ONE_EMBEDDING_CALLS,
    **RULE_CALLS,
    **EXPORT_CALLS,
    **SERVING_CALLS,
    **SNAPSHOT_CALLS,
    **SOK_CALLS,
    **WRAPPER_CALLS,
}

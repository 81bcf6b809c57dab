# SPDX-License-Identifier: Apache-2.0
"""The public names of `tf_embed.tfra`, except its layers; see `hostile_cases`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import hostile_kinds as k
from hostile_call import Call, variable
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

import tf_embed as te

OF_TFRA_VARIABLE = {
    **OF_VARIABLE,
    "shared_name": k.IGNORED,
    "kv_creator": k.CREATOR,
    "restrict_policy": k.RESTRICT,
    "bp_v2": k.FLAG,
    "short_file_name": k.IGNORED,
}
TFRA_OF_LOOKUP = {"partition_strategy": k.IGNORED, "return_trainable": k.FLAG}
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


def _method(name: str, **options: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: getattr(variable(te.tfra.Variable, **options), name)


def _forget(made: te.Variable) -> None:
    te.tfra.forget_variable(made.name)


def _saved() -> dict[str, Any]:
    return {"dirpath": folder()}


TFRA_CALLS: dict[str, Call] = {
    "tfra.get_variable": Call(
        lambda: te.tfra.get_variable,
        lambda: {"dim": 2, "name": "hostile_table"},
        OF_TFRA_VARIABLE,
        _forget,
    ),
    "tfra.Variable": Call(
        lambda: te.tfra.Variable,
        lambda: {"dim": 2, "name": "hostile_table"},
        OF_TFRA_VARIABLE,
        use_variable,
    ),
    "tfra.forget_variable": Call(lambda: te.tfra.forget_variable, dict, {"name": k.OLD_NAME}),
    **{
        f"tfra.Variable.{name}": Call(_method(name), good, {**kinds, "name": k.OP_NAME})
        for name, (good, kinds) in VERBS.items()
    },
    "tfra.Variable.clear": Call(_method("clear"), dict, {"name": k.OP_NAME}),
    "tfra.Variable.export": Call(_method("export"), dict, {"name": k.OP_NAME}),
    "tfra.Variable.size": Call(_method("size"), dict, {"index": k.SHARD, "name": k.OP_NAME}),
    "tfra.Variable.export_keys_and_scores": Call(
        _method("export_keys_and_scores", policy=te.TablePolicy()),
        lambda: {"split_size": 3},
        {"split_size": k.LARGE_INT, "name": k.OP_NAME},
    ),
    "tfra.Variable.get_trainable_by_name": Call(
        _method("get_trainable_by_name"), dict, {"name": k.ANY_STRING}
    ),
    "tfra.Variable.get_eager_trainable_by_name": Call(
        _method("get_eager_trainable_by_name"), dict, {"name": k.ANY_STRING}
    ),
    "tfra.Variable.get_slot_variables": Call(
        _method("get_slot_variables"), dict, {"optimizer": k.OBJECT}
    ),
    "tfra.Variable.restrict": Call(
        _method("restrict", policy=te.TablePolicy()),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.OBJECT},
    ),
    "tfra.TimestampRestrictPolicy.apply_restriction": Call(
        _method("restrict", restrict_policy=te.tfra.TimestampRestrictPolicy),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.NUMBER_OF_ROWS.optional()},
    ),
    "tfra.FrequencyRestrictPolicy.apply_restriction": Call(
        _method("restrict", restrict_policy=te.tfra.FrequencyRestrictPolicy),
        lambda: {"num_reserved": 3},
        {"num_reserved": k.NUMBER_OF_ROWS, "trigger": k.NUMBER_OF_ROWS.optional()},
    ),
    "tfra.Variable.save_to_file_system": Call(
        _method("save_to_file_system"),
        lambda: {"dirpath": tempfile.mkdtemp(), "proc_size": 9},
        {**FILES, "append_to_file": k.FALSE},
    ),
    "tfra.Variable.load_from_file_system": Call(
        _method("load_from_file_system"), _saved, {**FILES, "load_entire_dir": k.FLAG}
    ),
    "tfra.Variable.load_from_file_system_with_restore_function": Call(
        _method("load_from_file_system_with_restore_function"),
        _saved,
        {
            name: FILES[name]
            for name in ("dirpath", "proc_size", "proc_rank", "buffer_size", "progress")
        },
    ),
    "tfra.Variable.load_tfra_files": Call(
        _method("load_tfra_files"),
        _saved,
        {"dirpath": k.FOLDER, "file_name": k.ANY_STRING, "buffer_size": k.POSITIVE_INT},
        says=("dirpath",),
    ),
    **{
        f"tfra.{name}": Call(
            lookup(getattr(te.tfra, name)),
            lambda: {"params": variable(), "ids": [1]},
            {**OF_LOOKUP, **TFRA_OF_LOOKUP, "validate_indices": k.IGNORED},
        )
        for name in ("embedding_lookup", "embedding_lookup_unique")
    },
    "tfra.embedding_lookup_sparse": Call(
        lookup(te.tfra.embedding_lookup_sparse),
        sparse_good,
        {**OF_SPARSE, **MORE_OF_SPARSE, **TFRA_OF_LOOKUP},
    ),
    "tfra.safe_embedding_lookup_sparse": Call(
        lookup(te.tfra.safe_embedding_lookup_sparse),
        safe_good,
        {**OF_SAFE, **MORE_OF_SPARSE, **TFRA_OF_LOOKUP},
    ),
    "tfra.ragged_embedding_ops.embedding_lookup_sparse": Call(
        lookup(te.tfra.ragged_embedding_ops.embedding_lookup_sparse), sparse_good, OF_SPARSE
    ),
    "tfra.ragged_embedding_ops.safe_embedding_lookup_sparse": Call(
        lookup(te.tfra.ragged_embedding_ops.safe_embedding_lookup_sparse), safe_good, OF_SAFE
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
        lambda config: use_variable(
            te.tfra.Variable(dim=2, kv_creator=te.tfra.HkvHashTableCreator(config))
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
    "tfra.RestrictPolicy.apply_restriction": Call(
        lambda: te.tfra.RestrictPolicy(variable()).apply_restriction,
        dict,
        {},
        apart=("num_reserved",),
    ),
}

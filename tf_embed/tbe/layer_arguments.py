# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a table-batched layer, and lists those without effect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.configs import as_bool, as_config, as_enum, as_number
from tf_embed.layers.table_layer import deserialized, serialized
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.table.initializers import for_rows
from tf_embed.table.placement import CPU
from tf_embed.table.policies import TablePolicy
from tf_embed.table.storage import Storage
from tf_embed.table.table_options import TableOptions
from tf_embed.tbe.cache_sizes import lacks_size, rows_of_gpu_cache
from tf_embed.tbe.fbgemm_optimizer_args import EmbOptimType
from tf_embed.tbe.fbgemm_types import (
    CacheAlgorithm,
    EmbeddingLocation,
    MultiPassPrefetchConfig,
    RecordCacheMetrics,
    SparseType,
    TBEStatsReporterConfig,
)
from tf_embed.tbe.table_specs import TableSpec

# FBGEMM's names of optimizer states, by ours.
_STATES = {
    "sum": "momentum1",
    "momentum": "momentum1",
    "exp_avg": "momentum1",
    "exp_avg_sq": "momentum2",
    "sparse_ema": "momentum2",
    "prev_iter": "prev_iter",
    "row_counter": "row_counter",
}
_COUNTS = ("prev_iter", "row_counter")
_CONFIGS = {
    "record_cache_metrics": RecordCacheMetrics,
    "stats_reporter_config": TBEStatsReporterConfig,
    "multipass_prefetch_config": MultiPassPrefetchConfig,
}
_SWITCHES = (
    "enforce_hbm",
    "uvm_non_rowwise_momentum",
    "use_experimental_tbe",
    "prefetch_pipeline",
    "uvm_host_mapped",
)
# Arguments that are checked and have no effect, and why.
_WITHOUT_EFFECT = {
    "cache_reserved_memory": "a cache takes no more than its own bound.",
    "cache_precision": "rows in a cache have `weights_precision`.",
    "enforce_hbm": "`embedding_specs` and `storage` say where rows are.",
    "device": "`embedding_specs` and `storage` say where rows are.",
    "uvm_non_rowwise_momentum": "optimizer states are parts of the rows.",
    "use_experimental_tbe": "there is one implementation.",
    "stats_reporter_config": "tf_embed.callbacks.TableMetrics reports statistics.",
    "multipass_prefetch_config": "`prefetch` makes one pass.",
    "uvm_host_mapped": "rows of EmbeddingLocation.MANAGED are in pinned memory anyway.",
}


def check_ignored(given: dict[str, Any]) -> dict[str, Any]:
    """The checked arguments of caches and arguments without effect.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If an argument is out of range.
    """
    checked: dict[str, Any] = {
        name: as_config(deserialized(given[name], name), name, kind)
        for name, kind in _CONFIGS.items()
    }
    for name in _SWITCHES:
        checked[name] = as_bool(given[name], name)
    if given["gather_uvm_cache_stats"] is not None:
        checked["gather_uvm_cache_stats"] = as_bool(
            given["gather_uvm_cache_stats"], "gather_uvm_cache_stats"
        )
    checked["cache_algorithm"] = as_enum(
        given["cache_algorithm"], "cache_algorithm", CacheAlgorithm
    )
    checked["cache_sets"] = validation.int_in(given["cache_sets"], "cache_sets", least=0)
    for name in ("cache_load_factor", "cache_reserved_memory"):
        checked[name] = as_number(given[name], name)
    if checked["cache_load_factor"] <= 0:
        raise ValueError(
            "`cache_load_factor` must be positive. Received: cache_load_factor="
            f"{validation.shown(given['cache_load_factor'])}"
        )
    if checked["cache_reserved_memory"] < 0:
        raise ValueError(
            "`cache_reserved_memory` must be at least 0. Received: cache_reserved_memory="
            f"{validation.shown(given['cache_reserved_memory'])}"
        )
    if checked["prefetch_pipeline"] and checked["cache_algorithm"] != CacheAlgorithm.LRU:
        raise ValueError(
            "`prefetch_pipeline` needs CacheAlgorithm.LRU, as in FBGEMM. Received: "
            f"cache_algorithm=CacheAlgorithm.{checked['cache_algorithm'].name}"
        )
    _check_device(given["device"])
    return checked


def _check_device(device: Any) -> None:
    """Refuses values other than None, a str, an int, or a TensorFlow or PyTorch device."""
    if isinstance(device, str):
        validation.name_of(device, "device")
        return
    if isinstance(device, (int, np.integer)) and not isinstance(device, bool):
        validation.int_in(device, "device", least=0, most=2**31 - 1)
        return
    kinds = (tf.DeviceSpec, tf.config.LogicalDevice)
    if not (device is None or isinstance(device, kinds) or type(device).__name__ == "device"):
        raise TypeError(
            f'`device` must be None or a device, such as "/CPU:0". Received: device='
            f"{validation.shown(device)}"
        )


def with_initializers_of_before(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a layer, with its arrays' initial rows as of the save.

    A layer does not save an array's initializer if it scales by a shape. Earlier versions did, and
    scaled by the shape of a row.
    """
    specs, given = config.get("embedding_specs") or [], config.get("initializer")
    if not isinstance(given, list) or len(given) != len(specs):
        return config  # the layer refuses it, or it is for all tables and not from a layer
    initializers = [
        for_rows(deserialized(one, "initializer"), 1, dim)
        if isinstance(one, dict) and rows is not None
        else one
        for one, (rows, dim, *_) in zip(given, specs, strict=True)
    ]
    return {**config, "initializer": initializers}


def plain(value: Any) -> Any:
    """Converts a value to JSON types."""
    if hasattr(value, "value") and hasattr(type(value), "__members__"):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return serialized(value)


# Cached, so that each text is logged once.
@functools.cache
def _say_once(text: str) -> None:
    # A warning is enough, because rows have the same values.
    logging.warning("%s", text)


def warn_ignored(
    given: dict[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    specs: Sequence[TableSpec],
    storages: Sequence[Storage | None],
    policies: Sequence[TablePolicy | None],
    device: str,
) -> None:
    """Logs, once in a process, each argument that is set and has no effect.

    Args:
        parameters: The parameters that have their defaults.
        storages: The storage of each table, as given.
    """
    of_gpu = [
        rows_of_gpu_cache(spec, policy, storage, device) > 0
        for spec, policy, storage in zip(specs, policies, storages, strict=True)
    ]
    has_cache = [
        is_of_gpu or TableOptions("", storage=storage, device=device).has_tiers
        for is_of_gpu, storage in zip(of_gpu, storages, strict=True)
    ]
    sizes_caches = any(of_gpu) or any(lacks_size(storage) for storage in storages)
    has_effect = {
        "cache_algorithm": any(has_cache),
        "cache_load_factor": sizes_caches and not given["cache_sets"],
        "cache_sets": sizes_caches,
        "prefetch_pipeline": any(has_cache),
    }
    is_set = {
        name: given[name] != parameters[name].default for name in (*has_effect, *_WITHOUT_EFFECT)
    }
    for name, counts in has_effect.items():
        if is_set[name] and not counts:
            _say_once(
                f"TableBatchedEmbeddingBags: {name!r} has no effect here. The one cache is that of "
                "a `storage` with a `path`, or on a GPU of EmbeddingLocation.MANAGED_CACHING."
            )
    for name, reason in _WITHOUT_EFFECT.items():
        if is_set[name]:
            _say_once(f"TableBatchedEmbeddingBags: {name!r} has no effect, because {reason}")
    if is_set["cache_algorithm"] and any(has_cache):
        _say_once(
            "TableBatchedEmbeddingBags: CacheAlgorithm.LFU means LRU: the cache of a table evicts "
            "by last use. Rows have the same values."
        )
    for spec, is_cached in zip(specs, has_cache, strict=True):
        if is_cached or spec.location is None:
            continue
        location = f"EmbeddingLocation.{spec.location.name}"
        if spec.location != EmbeddingLocation.HOST and device == CPU:
            _say_once(
                f"TableBatchedEmbeddingBags: {location} means host memory here, where rows lie."
            )
        elif spec.location == EmbeddingLocation.MANAGED_CACHING:
            _say_once(
                f"TableBatchedEmbeddingBags: {location} has no effect on a table with a `storage`, "
                "which says where its rows are. Of a dynamic table without `max_rows` it means "
                "EmbeddingLocation.MANAGED, because nothing says how large its cache would be."
            )


def check_precisions(
    weights: SparseType,
    output: SparseType,
    cache: Any,
    optimizer: EmbOptimType | None,
) -> None:
    """Refuses unsupported precisions.

    Raises:
        ValueError: If a precision is not supported.
    """
    if weights == SparseType.INT8:
        if optimizer not in (None, EmbOptimType.NONE):
            raise ValueError(
                "Rows of `weights_precision` SparseType.INT8 are not trained: set "
                f"optimizer=OptimType.NONE. Received: optimizer={optimizer}"
            )
    else:
        _check_precision(weights, "weights_precision")
    _check_precision(output, "output_dtype")
    if cache is not None:
        _check_precision(as_enum(cache, "cache_precision", SparseType), "cache_precision")


def state_dtypes(
    given: Mapping[str, Any] | None, optimizer: RowRuleOptimizer | None, kind: EmbOptimType | None
) -> dict[str, tf.DType]:
    """Returns the dtypes of an optimizer's states in rows.

    Args:
        given: A mapping from FBGEMM's names of states to a SparseType.
        kind: Its type, for messages.

    Returns:
        The dtypes by the names of the optimizer's slots.

    Raises:
        TypeError: If `given` is not a mapping.
        ValueError: If the optimizer has no such state, or does not support its type.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            "`optimizer_state_dtypes` must be a dict from names of states. Received: "
            f"optimizer_state_dtypes={validation.shown(given)}"
        )
    slots = {} if optimizer is None else {_STATES[slot.name]: slot for slot in optimizer.slots}
    dtypes = {}
    for state, value in (given or {}).items():
        precision = as_enum(value, "optimizer_state_dtypes", SparseType)
        received = f"optimizer_state_dtypes={{{state!r}: {precision}}}, optimizer={kind}"
        if state not in slots:
            raise ValueError(
                f"`optimizer_state_dtypes` must name states that the optimizer has, of "
                f"{sorted(slots)}. Received: {received}"
            )
        counts = slots[state].name in _COUNTS
        if precision.dtype is None or (counts and precision != SparseType.FP32):
            wanted = "FP32, for it counts steps" if counts else "FP32, FP16 or BF16"
            raise ValueError(
                f"`optimizer_state_dtypes` of {state!r} must be SparseType.{wanted}. Received: "
                f"{received}"
            )
        dtypes[slots[state].name] = precision.dtype
    return dtypes


def _check_precision(precision: SparseType, argument: str) -> None:
    if precision.dtype is None:
        raise ValueError(
            f"`{argument}` must be SparseType.FP32, FP16 or BF16. Received: {argument}={precision}"
        )


def clip_value(gradient_clipping: bool, max_gradient: float) -> float:
    """Returns the bound for clipping gradients; 0: no clipping.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If `max_gradient` is not positive, or it is set and nothing is clipped.
    """
    gradient_clipping = as_bool(gradient_clipping, "gradient_clipping")
    max_gradient = as_number(max_gradient, "max_gradient")
    if not gradient_clipping and max_gradient != 1.0:
        raise ValueError(
            "`max_gradient` must be set with `gradient_clipping`. Received: max_gradient="
            f"{validation.shown(max_gradient)}, gradient_clipping={gradient_clipping!r}"
        )
    if gradient_clipping and not max_gradient > 0:
        raise ValueError(
            f"`max_gradient` must be positive. Received: max_gradient={max_gradient!r}"
        )
    return float(max_gradient) if gradient_clipping else 0.0


def feature_table_map(tables: Sequence[int] | None, num_tables: int) -> tuple[int, ...]:
    """The number of each feature's table.

    Raises:
        TypeError: If a number is not an int.
        ValueError: If a number is out of range, or a table has no feature.
    """
    if tables is None:
        return tuple(range(num_tables))
    tables = tuple(
        validation.int_in(table, "feature_table_map", least=0, most=num_tables - 1)
        for table in validation.items_of(tables, "feature_table_map")
    )
    missing = sorted(set(range(num_tables)) - set(tables))
    if missing:
        raise ValueError(
            f"`feature_table_map` must name each of {num_tables} tables. Received: "
            f"feature_table_map={list(tables)}, without {missing}"
        )
    return tables


def names(given: Sequence[str] | None, argument: str, count: int, default: str) -> list[str]:
    """Names, all different.

    Raises:
        TypeError: If `given` is not a list of str.
        ValueError: If names repeat, or their number is not `count`.
    """
    if given is None:
        return [f"{default}_{i}" for i in range(count)]
    found = [validation.name_of(name, argument) for name in validation.items_of(given, argument)]
    if len(found) != count or len(set(found)) != count:
        raise ValueError(
            f"`{argument}` must be {count} different names. Received: {argument}={found}"
        )
    return found


def each(value: Any, count: int, argument: str) -> list[Any]:
    """A value for each table: the items of a list, or the same value for all.

    Raises:
        ValueError: If it is a list of another length.
    """
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"`{argument}` must be one, or a list of one for each of {count} tables. Received: "
            f"{argument}={validation.shown(value)}"
        )
    return list(value)

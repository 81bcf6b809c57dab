"""What the arguments of a table-batched layer may be, and which have no effect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import arguments
from tf_embed.definitions import as_definition, as_enum
from tf_embed.devices import CPU
from tf_embed.layers.table_batched_tables import TableSpec
from tf_embed.layers.table_layer import deserialized, serialized
from tf_embed.optimizers.tbe_optimizer import TbeOptimizer
from tf_embed.optimizers.tbe_settings import EmbOptimType
from tf_embed.tbe_types import (
    EmbeddingLocation,
    MultiPassPrefetchConfig,
    RecordCacheMetrics,
    SparseType,
    TBEStatsReporterConfig,
)

# FBGEMM's names of what optimizers keep, by ours.
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
_DEFINITIONS = {
    "record_cache_metrics": RecordCacheMetrics,
    "stats_reporter_config": TBEStatsReporterConfig,
    "multipass_prefetch_config": MultiPassPrefetchConfig,
}
# What has no effect while rows have one place to be in, and its default.
_WITHOUT_EFFECT = (
    "cache_algorithm",
    "cache_load_factor",
    "cache_sets",
    "cache_reserved_memory",
    "cache_precision",
    "enforce_hbm",
    "record_cache_metrics",
    "gather_uvm_cache_stats",
    "device",
    "uvm_non_rowwise_momentum",
    "use_experimental_tbe",
    "prefetch_pipeline",
    "stats_reporter_config",
    "multipass_prefetch_config",
    "uvm_host_mapped",
)


def checked_definitions(given: dict[str, Any]) -> dict[str, Any]:
    """The definitions among the arguments that are of caches.

    Raises:
        TypeError: One is of another type.
    """
    return {
        name: as_definition(deserialized(given[name]), name, kind)
        for name, kind in _DEFINITIONS.items()
    }


def plain(value: Any) -> Any:
    """Something that JSON can hold."""
    if hasattr(value, "value") and hasattr(type(value), "__members__"):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return serialized(value)


@functools.cache
def _say_once(text: str) -> None:
    logging.warning("%s", text)


def say_what_has_no_effect(
    given: dict[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    specs: list[TableSpec],
    device: str,
) -> None:
    """Logs, once in a process, each argument that is set and has no effect.

    Args:
        given: The arguments.
        parameters: What their defaults are of.
        specs: What describes the tables.
        device: Where they are.
    """
    for name in _WITHOUT_EFFECT:
        if given[name] != parameters[name].default:
            _say_once(
                f"TableBatchedEmbeddingBags: {name!r} has no effect while all rows of a layer lie "
                "in one memory."
            )
    for spec in specs:
        if spec.location != EmbeddingLocation.HOST and device == CPU:
            _say_once(
                f"TableBatchedEmbeddingBags: {spec.location!s} means host memory here, where rows "
                "lie."
            )
        elif spec.location == EmbeddingLocation.MANAGED_CACHING:
            _say_once(
                f"TableBatchedEmbeddingBags: {spec.location!s} means EmbeddingLocation.MANAGED: "
                "there is no cache."
            )


def check_precisions(
    weights: SparseType,
    output: SparseType,
    cache: Any,
    optimizer: EmbOptimType | None,
) -> None:
    """Refuses precisions that there are none of.

    Raises:
        ValueError: There is one among the arguments.
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
    given: Mapping[str, Any] | None, optimizer: TbeOptimizer | None, kind: EmbOptimType | None
) -> dict[str, tf.DType]:
    """What the states of an optimizer are kept in.

    Args:
        given: A SparseType for some of FBGEMM's names of states.
        optimizer: What has the states.
        kind: Its type, for messages.

    Returns:
        The dtypes by the names of the optimizer's slots.

    Raises:
        ValueError: The optimizer has no such state, or none in such a type.
    """
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
    """What gradients are clipped to; 0: they are not.

    Raises:
        ValueError: `max_gradient` is not positive, or it is set and nothing is clipped.
    """
    if not gradient_clipping and max_gradient != 1.0:
        raise ValueError(
            "`max_gradient` must be set with `gradient_clipping`. Received: max_gradient="
            f"{max_gradient!r}, gradient_clipping={gradient_clipping!r}"
        )
    if gradient_clipping and not max_gradient > 0:
        raise ValueError(
            f"`max_gradient` must be positive. Received: max_gradient={max_gradient!r}"
        )
    return float(max_gradient) if gradient_clipping else 0.0


def feature_table_map(tables: Sequence[int] | None, num_tables: int) -> tuple[int, ...]:
    """The number of each feature's table.

    Raises:
        TypeError: One is no int.
        ValueError: One is no number of a table, or a table has no feature.
    """
    if tables is None:
        return tuple(range(num_tables))
    tables = tuple(
        arguments.positive_int(table, "feature_table_map", least=0, most=num_tables - 1)
        for table in tables
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
        ValueError: They are not, or not `count`.
    """
    if given is None:
        return [f"{default}_{i}" for i in range(count)]
    found = [str(name) for name in given]
    if len(found) != count or len(set(found)) != count:
        raise ValueError(
            f"`{argument}` must be {count} different names. Received: {argument}={found}"
        )
    return found


def each(value: Any, count: int) -> list[Any]:
    """One for each table: those of a list, or the same for all.

    Raises:
        ValueError: It is a list of another length.
    """
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"`initializer` and `policy` must be one, or one for each of {count} tables. Received: "
            f"{len(value)}"
        )
    return list(value)

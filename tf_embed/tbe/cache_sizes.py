# SPDX-License-Identifier: Apache-2.0
"""`CacheSizes`: how large the caches of a layer's tables are, by FBGEMM's arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_embed import validation
from tf_embed.optimizers.row_rule_optimizer import RowRuleOptimizer
from tf_embed.optimizers.rules import fused_slots
from tf_embed.table.placement import CPU
from tf_embed.table.policies import TablePolicy
from tf_embed.table.storage import Storage
from tf_embed.table.table_options import TableOptions
from tf_embed.tbe import quantized_rows
from tf_embed.tbe.fbgemm_types import EmbeddingLocation, SparseType
from tf_embed.tbe.table_specs import TableSpec
from tf_embed.variable.memory_report import bytes_of_row

_WORD = 8  # bytes
_ROWS_OF_SET = 32  # as in FBGEMM's cache


@dataclasses.dataclass(frozen=True)
class CacheSizes:
    """Sets the cache size in each table's storage if `cache_load_factor` gives it.

    It does so for tables of EmbeddingLocation.MANAGED_CACHING: on the CPU, if their storage has a
    `path` and no size of a cache; on a GPU, if they have no storage. Their cache is then in GPU
    memory, over host memory. FBGEMM has one cache for all tables; here each has its own.

    Attributes:
        load_factor: The share of a table's rows that its cache has room for.
        sets: If not 0, the total number of 32-row sets of all these caches, in place of
            `load_factor`. They are divided in proportion to the number of rows.
        precision: The type of stored rows.
        optimizer: The optimizer whose slots rows have; None: rows have no slots yet.
        state_dtypes: The dtypes of some of its slots, by name, that are not float32.
        device: The device of the tables.
    """

    load_factor: float
    sets: int
    precision: SparseType
    optimizer: RowRuleOptimizer | None
    state_dtypes: Mapping[str, tf.DType]
    device: str

    def storages(
        self,
        storages: Sequence[Storage | None],
        specs: Sequence[TableSpec],
        policies: Sequence[TablePolicy | None],
        names: Sequence[str],
    ) -> list[Storage | None]:
        """The storage of each table, with the missing cache size set.

        Raises:
            ValueError: If a storage has no size for its cache and no argument gives one.
        """
        rows = [self._rows_of(*each) for each in zip(storages, specs, policies, names, strict=True)]
        total = sum(rows)
        sized = list(storages)
        for i, (storage, count) in enumerate(zip(storages, rows, strict=True)):
            if not count:
                continue
            sets = math.ceil(self.load_factor * count / _ROWS_OF_SET)
            if self.sets:
                sets = -(-self.sets * count // total)
            row = self._row_bytes(specs[i], policies[i], storage)
            size = sets * _ROWS_OF_SET * row
            if storage is None:
                sized[i] = Storage(gpu_bytes=size, gpu_cache=True)
            else:
                sized[i] = dataclasses.replace(storage, host_bytes=size)
        return sized

    def _rows_of(
        self, storage: Storage | None, spec: TableSpec, policy: TablePolicy | None, name: str
    ) -> int:
        """Returns the number of rows of a table if its cache needs a size, otherwise 0."""
        if storage is None:
            return rows_of_gpu_cache(spec, policy, storage, self.device)
        if not lacks_size(storage):
            return 0
        rows = _rows_of_spec(spec, policy)
        if rows is None or spec.location != EmbeddingLocation.MANAGED_CACHING:
            location = spec.location and f"EmbeddingLocation.{spec.location.name}"
            raise ValueError(
                f"`host_bytes` or `gpu_bytes` of the `storage` of {name!r} must be given with a "
                "`path`. Only a table of EmbeddingLocation.MANAGED_CACHING with a number of rows "
                f"takes the size from `cache_load_factor` or `cache_sets`. Received: "
                f"storage={storage}, location={location}, rows={validation.shown(spec.rows)}"
            )
        return rows

    def _row_bytes(
        self, spec: TableSpec, policy: TablePolicy | None, storage: Storage | None
    ) -> int:
        quantized = self.precision == SparseType.INT8
        weights = spec.dim + quantized_rows.TAIL if quantized else spec.dim
        weights *= 1 if self.precision.dtype is None else self.precision.dtype.size
        options = TableOptions("", policy=policy, storage=storage)
        statistics = options.words_of_row * _WORD
        return bytes_of_row(weights, self._slot_bytes(spec.dim), statistics, is_cached=True)

    def _slot_bytes(self, dim: int) -> int:
        if self.optimizer is None:
            return 0
        end = 0
        for name, width, _ in fused_slots(self.optimizer, dim):
            size = self.state_dtypes.get(name, tf.float32).size
            # A slot begins at a multiple of its own size.
            end = -(-end // size) * size + width * size
        is_narrow = any(dtype != tf.float32 for dtype in self.state_dtypes.values())
        return -(-end // _WORD) * _WORD if is_narrow else end


def lacks_size(storage: Storage | None) -> bool:
    """Whether a cache over a disk has no size."""
    if storage is None or storage.path is None:
        return False
    return storage.host_bytes is None and storage.gpu_bytes is None


def rows_of_gpu_cache(
    spec: TableSpec, policy: TablePolicy | None, storage: Storage | None, device: str
) -> int:
    """Returns the number of rows of a table whose location implies a cache on a GPU, otherwise 0.

    A dynamic table without a bound on its rows has no such cache, because its size is unknown.
    """
    if storage is not None or device == CPU:
        return 0
    is_cached = spec.location == EmbeddingLocation.MANAGED_CACHING
    return _rows_of_spec(spec, policy) or 0 if is_cached else 0


def _rows_of_spec(spec: TableSpec, policy: TablePolicy | None) -> int | None:
    if spec.rows is None and policy is not None:
        return policy.max_rows
    return spec.rows

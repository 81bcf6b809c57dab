# SPDX-License-Identifier: Apache-2.0
"""The types that describe FBGEMM's table-batched embeddings, under FBGEMM's names.

Cache settings only affect tables with a cache. Other tables accept them, so that descriptions
written for FBGEMM work here. The types of its optimizers are in `fbgemm_optimizer_args.py`.
"""

from __future__ import annotations

import dataclasses
import enum

import keras
import tensorflow as tf

from tf_embed.configs import Config, as_bool, as_int


class EmbeddingLocation(enum.IntEnum):
    """The requested placement of the rows of a table.

    If no table of a layer is `HOST`, and a GPU can hold tables, they are on that GPU. `DEVICE` is
    GPU memory, `MANAGED` is pinned host memory that the GPU reads and writes, and `MANAGED_CACHING`
    is host memory with a cache in GPU memory. Otherwise all tables are on the CPU.

    A table on the CPU whose `storage` has a `path` has its rows on disk, under a cache in host
    memory. With `MANAGED_CACHING`, the arguments of FBGEMM's cache give the cache size.

    `MTIA`, an accelerator that TensorFlow does not know, is refused.
    """

    DEVICE = 0
    MANAGED = 1
    MANAGED_CACHING = 2
    HOST = 3
    MTIA = 4


class ComputeDevice(enum.IntEnum):
    """The device that computes on a table. TensorFlow places ops; `MTIA` is refused."""

    CPU = 0
    CUDA = 1
    MTIA = 2


class PoolingMode(enum.IntEnum):
    """Pooling of the rows of a bag.

    Members:
        SUM: Their sum.
        MEAN: The sum, divided by the number of ids in the bag.
        NONE: They stay rows, one for each id.
    """

    SUM = 0
    MEAN = 1
    NONE = 2


class BoundsCheckMode(enum.IntEnum):
    """The handling of out-of-bounds ids of arrays, and of malformed offsets.

    An out-of-bounds id is dropped and never replaced by another row. The `V2_` members are FBGEMM's
    names for its second implementation. Here they mean the members without `V2_`.

    Members:
        FATAL: An error, which names the table, the position and the id.
        WARNING: The ids are dropped and counted. Faults of offsets, and faults of ids of each
            feature, are logged in the first call that has any, the second, the fourth and so on.
        IGNORE: The ids are dropped and counted.
        NONE: The ids are dropped, and that is all.
    """

    FATAL = 0
    WARNING = 1
    IGNORE = 2
    NONE = 3
    V2_IGNORE = 4
    V2_WARNING = 5
    V2_FATAL = 6

    @property
    def plain(self) -> BoundsCheckMode:
        """The member without `V2_` that means the same."""
        return BoundsCheckMode[self.name.removeprefix("V2_")]


class CacheAlgorithm(enum.IntEnum):
    """FBGEMM's eviction order of a cache: least recently used, or least frequently used.

    Here a cache evicts approximately by last use with either. Rows have the same values.
    """

    LRU = 0
    LFU = 1


class SparseType(enum.Enum):
    """The type of stored weights, outputs or optimizer states.

    `FP8`, `INT4` and `INT2` are FBGEMM's; functions that take a SparseType refuse them by name.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def dtype(self) -> tf.DType | None:
        """The tf.DType, or None if TensorFlow has no such type.

        Also None for FBGEMM's INT8 rows, which are bytes with a scale and a bias.
        """
        return _DTYPES.get(self)


_DTYPES = {
    SparseType.FP32: tf.float32,
    SparseType.FP16: tf.float16,
    SparseType.BF16: tf.bfloat16,
}


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class RecordCacheMetrics(Config):
    """The cache statistics to report.

    Args:
        record_cache_miss_counter: Whether the misses of all tables together are reported, by
            `TableBatchedEmbeddingBags.get_cache_miss_counter`.
        record_tablewise_cache_miss: Whether the misses of each table are reported, by
            `TableBatchedEmbeddingBags.get_table_wise_cache_miss`.

    Raises:
        TypeError: If an argument is not a bool.

    Example:
        >>> from tf_embed import tbe
        >>> metrics = tbe.RecordCacheMetrics(record_cache_miss_counter=True)
        >>> layer = tbe.TableBatchedEmbeddingBags([(8, 2)], record_cache_metrics=metrics)
    """

    record_cache_miss_counter: bool = False
    record_tablewise_cache_miss: bool = False

    def __post_init__(self) -> None:
        self._take(as_bool, "record_cache_miss_counter", "record_tablewise_cache_miss")


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class TBEStatsReporterConfig(Config):
    """Interval of reports of a cache's statistics. It has no effect: read `Variable.stats`.

    Args:
        interval: Number of batches between two reports; below 1: never.

    Raises:
        TypeError: If `interval` is not an int.

    Example:
        >>> from tf_embed import tbe
        >>> tbe.TBEStatsReporterConfig(interval=100).interval
        100
    """

    interval: int = -1

    def __post_init__(self) -> None:
        self._take(as_int, "interval")


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class MultiPassPrefetchConfig(Config):
    """Split of a prefetch into a cache, to save memory. It has no effect.

    Args:
        num_passes: Maximum number of parts. At least 1.
        min_splitable_pass_size: Minimum number of ids for a split. At least 1.

    Raises:
        TypeError: If an argument is not an int.
        ValueError: If an argument is out of range.

    Example:
        >>> from tf_embed import tbe
        >>> tbe.MultiPassPrefetchConfig(num_passes=4).num_passes
        4
    """

    num_passes: int = 12
    min_splitable_pass_size: int = 6 * 1024 * 1024

    def __post_init__(self) -> None:
        self._take(as_int, "num_passes", "min_splitable_pass_size")
        self._check("num_passes", "at least 1", self.num_passes >= 1)
        self._check("min_splitable_pass_size", "at least 1", self.min_splitable_pass_size >= 1)


@keras.saving.register_keras_serializable(package="tf_embed.tbe")
@dataclasses.dataclass(frozen=True)
class UserEnabledConfigDefinition(Config):
    """Optimizer options that FBGEMM keeps in a separate config.

    Args:
        use_rowwise_bias_correction: Whether ADAM counts the steps of each row for its bias
            correction; see `tf_embed.tbe.Adam`.

    Raises:
        TypeError: If the argument is not a bool.

    Example:
        >>> from tf_embed import tbe
        >>> by_row = tbe.UserEnabledConfigDefinition(use_rowwise_bias_correction=True)
        >>> layer = tbe.TableBatchedEmbeddingBags(
        ...     [(8, 2)], optimizer="ADAM", extra_optimizer_config=by_row)
    """

    use_rowwise_bias_correction: bool = False

    def __post_init__(self) -> None:
        self._take(as_bool, "use_rowwise_bias_correction")

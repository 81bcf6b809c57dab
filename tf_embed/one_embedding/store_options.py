# SPDX-License-Identifier: Apache-2.0
"""The options of stores: the memory tiers and the capacity of a layer's rows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tf_embed import validation
from tf_embed.table.policies import MAX_ROWS
from tf_embed.table.storage import Storage

_MIB = 2**20
_MAX_MIB = 2**40
_BLOCK_SIZES = (512, 4096)
# Maximum number of rows to reserve at once. A table grows beyond that without a pause.
_MOST_ROWS_AT_ONCE = 2**20


def make_device_mem_store_options(
    persistent_path: str | os.PathLike[str] | Sequence[str],
    capacity: int,
    size_factor: int | None = None,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Makes options that keep all rows in the memory of the device.

    The device is the first GPU that can hold tables. If there is none, rows are in host memory.

    Args:
        persistent_path: The folder of snapshots, a path; or a list with a folder for each shard.
            The first folder then has the snapshots.
        capacity: The number of rows of all tables and shards together, an int from 1. Further rows
            are stored too. It is a bound only if the layer's `policy` has an order of eviction and
            no `max_rows`.
        size_factor: The numbers in a row per weight, an int from 1: 1 with SGD, 2 with momentum and
            Adagrad, 3 with Adam and Ftrl. A wrong factor raises an error once the layer's optimizer
            is known. Default: None, the factor of the optimizer. Upstream's default is 1.
        storage_dim: The numbers in a row, an int; it overrides `size_factor`. With SmartDecayAdam
            it is 3 for each weight plus 2 for the row. Upstream rounds it up to an even number,
            which is accepted too. Default: -1, `size_factor` applies.
        physical_block_size: Bytes of a disk block, 512 or 4096. It is checked and otherwise
            ignored: blocks on disk have whole pages of 4096 bytes.

    Returns:
        A dict for the argument `store_options` of the layers.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tf_embed
        >>> options = tf_embed.one_embedding.make_device_mem_store_options(
        ...     persistent_path="/tmp/rows", capacity=10_000)
        >>> options["type"], options["capacity"]
        ('device_mem', 10000)
    """
    return _checked(
        {
            "type": "device_mem",
            "persistent_path": persistent_path,
            "capacity": capacity,
            "size_factor": size_factor,
            "storage_dim": storage_dim,
            "physical_block_size": physical_block_size,
        }
    )


def make_cached_ssd_store_options(
    cache_budget_mb: int,
    persistent_path: str | os.PathLike[str] | Sequence[str],
    capacity: int | None = None,
    size_factor: int | None = None,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
    host_cache_budget_mb: int = 0,
) -> dict[str, Any]:
    """Makes options that keep rows on disk, with a cache in memory.

    On a GPU, the first budget is a cache in the GPU's memory. Rows that leave it go to host memory
    up to the second budget, and from there to disk, or to disk at once if that budget is 0. On the
    CPU there is one cache, in host memory, with the second budget, or with the first if the second
    is 0. With `cache_budget_mb=0` the layer is on the CPU.

    Args:
        cache_budget_mb: MiB of rows in the device cache, over all shards, an int from 0. At least
            one of the budgets must be above 0; on a GPU, this budget must be.
        persistent_path: A local folder for the rows, a path; or a list with a folder for each
            shard. The first folder then has the snapshots. The row files are working storage and
            are removed with the layer: save a snapshot or the model.
        capacity: As in `make_device_mem_store_options`, or None. No memory is reserved for it.
        size_factor: As in `make_device_mem_store_options`, as are `storage_dim` and
            `physical_block_size`.
        host_cache_budget_mb: MiB of rows in the cache in host memory, over all shards, an int from
            0. Default: 0.

    Returns:
        A dict for the argument `store_options` of the layers.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or both budgets are 0.

    Example:
        >>> import tf_embed
        >>> options = tf_embed.one_embedding.make_cached_ssd_store_options(
        ...     cache_budget_mb=64, persistent_path="/tmp/rows")
        >>> options["type"], options["capacity"]
        ('cached_ssd', None)
    """
    return _checked(
        {
            "type": "cached_ssd",
            "cache_budget_mb": cache_budget_mb,
            "persistent_path": persistent_path,
            "capacity": capacity,
            "size_factor": size_factor,
            "storage_dim": storage_dim,
            "physical_block_size": physical_block_size,
            "host_cache_budget_mb": host_cache_budget_mb,
        }
    )


def make_cached_host_mem_store_options(
    cache_budget_mb: int,
    persistent_path: str | os.PathLike[str] | Sequence[str],
    capacity: int,
    size_factor: int | None = None,
    storage_dim: int = -1,
    physical_block_size: int = 4096,
) -> dict[str, Any]:
    """Makes options that keep rows in host memory, with a cache in GPU memory.

    On a GPU, the rows in use are in GPU memory, up to the budget, and the others in host memory.
    Rows move between the two automatically. Without a GPU, all rows are in host memory.

    Args:
        cache_budget_mb: MiB of rows in the cache, over all shards, an int from 1.
        persistent_path: As in `make_device_mem_store_options`, and so are all others.

    Returns:
        A dict for the argument `store_options` of the layers.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> import tf_embed
        >>> options = tf_embed.one_embedding.make_cached_host_mem_store_options(
        ...     cache_budget_mb=64, persistent_path="/tmp/rows", capacity=10_000)
        >>> options["type"], options["cache_budget_mb"]
        ('cached_host_mem', 64)
    """
    return _checked(
        {
            "type": "cached_host_mem",
            "cache_budget_mb": cache_budget_mb,
            "persistent_path": persistent_path,
            "capacity": capacity,
            "size_factor": size_factor,
            "storage_dim": storage_dim,
            "physical_block_size": physical_block_size,
        }
    )


@dataclasses.dataclass(frozen=True)
class StoreOptions:
    """The checked options of a store.

    Attributes:
        kind: "device_mem", "cached_host_mem" or "cached_ssd".
        paths: A folder for each shard.
        capacity: The number of rows of all tables and shards, or None.
        size_factor: The numbers in a row per weight, or None.
        storage_dim: The numbers in a row, or -1.
        device_bytes: Bytes of rows in device memory.
        host_bytes: Bytes of rows in the host cache.
    """

    kind: str
    paths: tuple[str, ...]
    capacity: int | None
    size_factor: int | None
    storage_dim: int
    device_bytes: int = 0
    host_bytes: int = 0

    @classmethod
    def of(cls, options: Any) -> StoreOptions:
        """Parses and checks the dict of a store.

        Raises:
            TypeError: If a value is of a wrong type.
            ValueError: If `options` is not the dict of a `make_` function, or out of range.
        """
        kind = options.get("type") if isinstance(options, dict) else None
        maker = _MAKERS.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise ValueError(
                "`store_options` must be what make_device_mem_store_options, "
                "make_cached_host_mem_store_options or make_cached_ssd_store_options gives. "
                f"Received: store_options={validation.shown(options)}"
            )
        arguments = {name: value for name, value in options.items() if name != "type"}
        try:
            checked = maker(**arguments)
        except TypeError as error:
            raise TypeError(
                f"`store_options` must have the arguments of its maker: {error}; "
                f"store_options={validation.shown(options)}"
            ) from error
        path = checked["persistent_path"]
        return cls(
            kind=checked["type"],
            paths=(path,) if isinstance(path, str) else tuple(path),
            capacity=checked["capacity"],
            size_factor=checked["size_factor"],
            storage_dim=checked["storage_dim"],
            device_bytes=checked.get("cache_budget_mb", 0) * _MIB,
            host_bytes=checked.get("host_cache_budget_mb", 0) * _MIB,
        )

    def check_device(self, device: str) -> None:
        """Refuses a device that the user named.

        Raises:
            ValueError: If it is a GPU, and rows on disk have no budget for a cache there.
        """
        if "GPU" in device.upper() and self.kind == "cached_ssd" and not self.device_bytes:
            raise ValueError(
                "`cache_budget_mb` must be at least 1 for rows on disk of a layer on a GPU. "
                f"Received: cache_budget_mb=0, devices={device!r}"
            )

    def storage(self, path: str, num_tables: int) -> Storage | None:
        """The storage of a table of rows.

        Args:
            path: The folder of its shard.
            num_tables: Number of tables that share the budgets.
        """
        if self.kind == "device_mem":
            return None
        # `Storage` takes no cache of 0 bytes.
        gpu_bytes, host_bytes = (
            max(1, budget // num_tables) if budget else None
            for budget in (self.device_bytes, self.host_bytes)
        )
        if self.kind == "cached_host_mem":
            return Storage(gpu_bytes=gpu_bytes, gpu_cache=True)
        return Storage(gpu_bytes=gpu_bytes, host_bytes=host_bytes, path=path)

    def init_size(self, num_tables: int) -> int:
        """Returns the number of rows that each table reserves, or 0 for the table's default."""
        if self.capacity is None or self.kind == "cached_ssd":
            return 0
        return min(-(-self.capacity // num_tables), _MOST_ROWS_AT_ONCE)


def paths_of(value: Any, argument: str) -> list[str]:
    """The folders of shards, from a path or a list of paths.

    Raises:
        TypeError: If an item is not a path.
        ValueError: If the list is empty, or a folder repeats.
    """
    if not isinstance(value, (list, tuple)):
        return [validation.path_of(value, argument)]
    paths = [validation.path_of(one, f"{argument}[{number}]") for number, one in enumerate(value)]
    if not paths or len({os.path.normpath(one) for one in paths}) < len(paths):
        raise ValueError(
            f"`{argument}` must be a path, or a list of different paths, one for each shard. "
            f"Received: {argument}={validation.shown(value)}"
        )
    return paths


def block_size_of(value: Any) -> int:
    """The argument `physical_block_size`.

    Raises:
        TypeError: If it is not an int.
        ValueError: If it is not a block size of disks.
    """
    size = validation.int_in(value, "physical_block_size")
    if size not in _BLOCK_SIZES:
        raise ValueError(
            f"`physical_block_size` must be 512 or 4096. Received: physical_block_size={size}"
        )
    return size


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The checked options as plain values.

    Raises:
        TypeError: If a value is of a wrong type.
        ValueError: If a value is out of range.
    """
    path = options["persistent_path"]
    paths = paths_of(path, "persistent_path")
    options["persistent_path"] = paths if isinstance(path, (list, tuple)) else paths[0]
    if options["type"] == "cached_ssd" and "://" in str(options["persistent_path"]):
        raise ValueError(
            "`persistent_path` of rows on disk must be of this machine, not a URL. Received: "
            f"persistent_path={validation.shown(path)}"
        )
    may_lack_capacity = options["type"] == "cached_ssd"
    if options["capacity"] is not None or not may_lack_capacity:
        options["capacity"] = validation.int_in(options["capacity"], "capacity", most=MAX_ROWS)
    if options["size_factor"] is not None:
        options["size_factor"] = validation.int_in(options["size_factor"], "size_factor")
    storage_dim = validation.int_in(options["storage_dim"], "storage_dim", least=-1)
    if storage_dim == 0:
        raise ValueError("`storage_dim` must be -1 or at least 1. Received: storage_dim=0")
    options["storage_dim"] = storage_dim
    options["physical_block_size"] = block_size_of(options["physical_block_size"])
    if "cache_budget_mb" in options:
        # A store on disk may have its whole budget in host memory.
        least = 0 if "host_cache_budget_mb" in options else 1
        options["cache_budget_mb"] = validation.int_in(
            options["cache_budget_mb"], "cache_budget_mb", least=least, most=_MAX_MIB
        )
    if "host_cache_budget_mb" in options:
        host = validation.int_in(
            options["host_cache_budget_mb"], "host_cache_budget_mb", least=0, most=_MAX_MIB
        )
        options["host_cache_budget_mb"] = host
        if not host and not options["cache_budget_mb"]:
            raise ValueError(
                "`cache_budget_mb` or `host_cache_budget_mb` must be above 0. Received: "
                "cache_budget_mb=0, host_cache_budget_mb=0"
            )
    return options


_MAKERS: dict[str, Any] = {
    "device_mem": make_device_mem_store_options,
    "cached_host_mem": make_cached_host_mem_store_options,
    "cached_ssd": make_cached_ssd_store_options,
}

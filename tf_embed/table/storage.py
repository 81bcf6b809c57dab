# SPDX-License-Identifier: Apache-2.0
"""`Storage`: the memories, the disk or the server that hold the rows of a table."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import Config, as_bool
from tf_embed.table.redis_server import RedisServer


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Storage(Config):
    """The tiers of a table: GPU memory, host memory and disk, with a bound in bytes for each.

    Without a storage all rows of a table are in one memory: the GPU's if the table is on a GPU,
    otherwise the host's.

    A table on a CPU with a `path` keeps its most recently used rows in host memory, which is a
    cache, and all others in files in that folder. Rows move between them automatically. Results are
    the same as in memory, to the last bit. `Variable.prefetch` and the `prefetch` of layers read
    the rows of later batches ahead of time. The files are working storage: they are gone when the
    table is freed, or Python ends. Checkpoints and saved models have all rows, as for any table.

    A table on a GPU with a `path` does the same with `gpu_bytes` of the GPU's memory for a cache.
    With `host_bytes` it has three tiers. Rows that leave the cache go to host memory. If that is
    full, the rows that entered it first move on to the files. Without `host_bytes` rows go from the
    cache to the files. With `gpu_cache` and without a `path` the GPU's memory is a cache over host
    memory alone. Keys of a batch go to the host, which knows where each row is; rows and gradients
    stay on the GPU. Pooled lookups copy their sums.

    A table on a GPU without a `path` and without `gpu_cache` puts new rows in the GPU's memory
    while the bounds leave room, and then in pinned host memory, which the GPU reads and writes over
    the bus. A row stays where it was put. The index from keys to rows is always in the GPU's memory
    and takes 30 to 60 bytes for each row of both. If no bound leaves room for a new row, another
    row is evicted by the `eviction` of the table's `TablePolicy`, with or without `max_rows`;
    without a policy the new row is refused and counted in `Variable.stats()`. Tables take memory
    from the GPU's driver. TensorFlow leaves almost none there unless
    `tf.config.experimental.set_memory_growth` is called before the GPU is used.

    The bounds of the GPU have no effect on a table on a CPU, except that its cache over a `path`
    has `gpu_bytes` if there are no `host_bytes`. So a storage is for machines with and without a
    GPU. Bounds apply to all shards of a variable together, divided evenly. A row consists of its
    weights, its optimizer slots, and 8 bytes for each kept statistic.

    A table with `redis` has all rows on a Redis server, which several processes share.

    A `TablePolicy` counts the rows of all tiers. The statistics of rows on disk are in memory, 8
    bytes for each, and are not part of `host_bytes`.

    Limits of a table with a `path` or `gpu_cache`: it takes no `gpu_total_bytes`. With `gpu_cache`
    and without a `path` there is no `host_bytes`, because rows that leave the cache have no other
    place: bound them by the `max_rows` of a `TablePolicy`.

    Args:
        gpu_bytes: Bytes of rows in the GPU's memory, an int from 0. 0: all rows are in host memory.
            With a `path` or `gpu_cache`: the rows in the cache of a table on a GPU. A table with a
            `path` and no `gpu_bytes` is on the CPU. Default: None, no bound.
        gpu_total_bytes: Bytes of index and rows in the GPU's memory, an int from 1. Default: None,
            all of the GPU's memory.
        host_bytes: Bytes of rows in host memory, an int from 0. With a `path`, from 1: on a CPU the
            rows in the cache, on a GPU the rows between the cache and the files. A `path` needs it
            or `gpu_bytes`, because rows go to disk only when the cache is full; a
            `tf_embed.tbe.TableBatchedEmbeddingBags` can do without both. On a GPU without a `path`:
            the rows that find no room there, 0 for none; None with `gpu_cache`. Default: None, no
            bound; with a `path` on a GPU no rows; and a table on a GPU without `gpu_bytes` and
            `gpu_total_bytes` puts no rows there, because its rows would leave no GPU memory for
            the index.
        gpu_cache: Whether the GPU's memory is a cache over host memory, so that rows in use move to
            the GPU's memory and others leave it. It needs `gpu_bytes`. With a `path` the GPU's
            memory is a cache anyway. Default: False, a row stays where it was put.
        path: A folder of this machine for rows on disk, a str or an os.PathLike. It is made if it
            is missing. Each table makes its own folder in it. Default: None, no disk.
        disk_bytes: Bytes of files in that folder, an int from 1. Default: None, no bound except the
            file system's.
        keep_leftovers: Whether files that a dead process left in the table's folder are kept, under
            another name. Default: False, they are deleted.
        redis: A `RedisServer` that has all rows. The other arguments must be left out then.
            Default: None, no server.

    Raises:
        TypeError: If a number of bytes is not an int, `path` is not a path, `gpu_cache` or
            `keep_leftovers` is not a bool, or `redis` is not a RedisServer.
        ValueError: If an argument is out of range, there is no room for any row, or an argument
            needs another argument.

    Example:
        >>> import tempfile
        >>> import tf_embed
        >>> tf_embed.Storage(host_bytes=2**30, path="/tmp/rows").path
        '/tmp/rows'
        >>> on_host = tf_embed.Storage(gpu_bytes=0)
        >>> v = tf_embed.Variable(dim=2, initializer=1.0, storage=on_host)
        >>> v.lookup([5]).numpy().tolist()
        [[1.0, 1.0]]
    """

    gpu_bytes: int | None = None
    gpu_total_bytes: int | None = None
    host_bytes: int | None = None
    gpu_cache: bool = False
    path: str | os.PathLike[str] | None = None
    disk_bytes: int | None = None
    keep_leftovers: bool = False
    redis: RedisServer | None = None

    def __post_init__(self) -> None:
        leasts = {"gpu_bytes": 0, "gpu_total_bytes": 1, "host_bytes": 0, "disk_bytes": 1}
        for name, least in leasts.items():
            if getattr(self, name) is not None:
                number = validation.int_in(getattr(self, name), name, least=least)
                object.__setattr__(self, name, int(number))
        if self.path is not None:
            object.__setattr__(self, "path", validation.path_of(self.path, "path"))
            # A URL would be a folder of this machine too, named "s3:".
            self._check("path", "a folder of this machine, not a URL", "://" not in str(self.path))
        self._take(as_bool, "gpu_cache", "keep_leftovers")
        self._take_config("redis", RedisServer)
        if self.redis is not None:
            for field in dataclasses.fields(self):
                is_left_out = field.name == "redis" or getattr(self, field.name) == field.default
                wanted = f"{field.default} with `redis`: all rows are on the server"
                self._check(field.name, wanted, is_left_out)
        if self.has_tiers_on_gpu:
            wanted = "None with a `path` or `gpu_cache`: `gpu_bytes` bounds the cache"
            self._check("gpu_total_bytes", wanted, self.gpu_total_bytes is None)
        has_size = not self.gpu_cache or self.gpu_bytes is not None
        self._check("gpu_cache", "False without `gpu_bytes`, the bytes of the cache", has_size)
        if self.path is None:
            self._check("disk_bytes", "None without a `path`", self.disk_bytes is None)
            self._check("keep_leftovers", "False without a `path`", not self.keep_leftovers)
            no_room = self.gpu_bytes == 0 and self.host_bytes == 0
            self._check("host_bytes", "above 0, or None, if `gpu_bytes` is 0", not no_room)
            has_use = self.host_bytes in (None, 0) or self.bounds_gpu
            needed = "used with a `path`, or with `gpu_bytes` or `gpu_total_bytes`"
            self._check("host_bytes", needed, has_use)
            needed = "None with `gpu_cache` and without a `path`: all rows must find room"
            self._check("host_bytes", needed, not self.gpu_cache or self.host_bytes is None)
        else:
            needed = "at least 1 with a `path`: the bytes of rows in host memory"
            self._check("host_bytes", needed, self.host_bytes != 0)

    @property
    def bounds_gpu(self) -> bool:
        """Whether there is a bound on rows in the GPU's memory."""
        return self.gpu_bytes is not None or self.gpu_total_bytes is not None

    @property
    def is_bounded(self) -> bool:
        """Whether a table on a GPU may have no room for a row though there is memory."""
        if self.path is not None or self.gpu_cache:
            return False
        on_both = self.gpu_bytes is not None and self.host_bytes is not None
        return on_both or self.gpu_total_bytes is not None

    @property
    def has_tiers_on_gpu(self) -> bool:
        """Whether a table on a GPU has a cache and other tiers below it."""
        return self.path is not None or self.gpu_cache

    @property
    def has_tiers_on_cpu(self) -> bool:
        """Whether a table on a CPU has a cache and another tier below it."""
        return self.path is not None

    @property
    def max_host_bytes(self) -> int | None:
        """The bound on rows in host memory: 0 if none go there, None if there is no bound."""
        # Without a bound on the GPU's memory, rows never go on to host memory.
        return self.host_bytes if self.path is not None or self.bounds_gpu else 0

    def settings(self) -> dict[str, Any]:
        """The settings of the op that creates a table, without the settings of `redis`."""
        return {
            "gpu_total_bytes": self.gpu_total_bytes,
            "gpu_bytes": self.gpu_bytes,
            "host_bytes": -1 if self.max_host_bytes is None else self.max_host_bytes,
            "gpu_cache": self.gpu_cache or None,
            "path": self.path,
            "disk_bytes": self.disk_bytes,
            "keep_leftovers": self.keep_leftovers or None,
        }


def share_of_storage(storage: Storage, shards: int, count: int, folder: str) -> Storage:
    """The storage of some shards of a table: their share of the bounds.

    Args:
        storage: The storage of all shards.
        shards: Number of these shards.
        count: Number of all shards.
        folder: The name of their folder in the `path`.
    """

    def share(number: int | None) -> int | None:
        # 0 has another meaning than a small bound.
        return number and max(number // count * shards, 1)

    return dataclasses.replace(
        storage,
        gpu_bytes=share(storage.gpu_bytes),
        gpu_total_bytes=share(storage.gpu_total_bytes),
        host_bytes=share(storage.host_bytes),
        disk_bytes=share(storage.disk_bytes),
        path=None if storage.path is None else os.path.join(storage.path, folder),
    )


def check_storage(storage: Any) -> None:
    """Checks that an argument is a `Storage`.

    Raises:
        TypeError: If it is not.
    """
    if not isinstance(storage, Storage):
        raise TypeError(
            f"`storage` must be a tf_embed.Storage. Received: storage={validation.shown(storage)}"
        )


def check_storage_of_table(storage: Any) -> None:
    """Checks the storage of a table whose cache has no size from elsewhere.

    Raises:
        TypeError: If it is neither a Storage nor None.
        ValueError: If it has a `path` and no bound for the cache.
    """
    if storage is None:
        return
    check_storage(storage)
    # Not in `Storage`: a table-batched layer takes this size from FBGEMM's arguments.
    if storage.path is not None and storage.host_bytes is None and storage.gpu_bytes is None:
        raise ValueError(
            "`host_bytes` or `gpu_bytes` of `storage` must be given with a `path`: the bytes of "
            f"rows in the cache. Received: storage={storage}"
        )

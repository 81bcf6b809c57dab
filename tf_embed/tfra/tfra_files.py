# SPDX-License-Identifier: Apache-2.0
"""Reads the files that TFRA's `save_to_file_system` writes, so that users can bring their tables.

TensorFlow Recommenders Addons 0.8.1 writes two files for each shard, `-keys` and `-values`. They
have the bytes of the two tensors, but no dtypes, dim or length, so the reading variable must know
these. The only possible checks are that the lengths fit each other, and that every file of a save
is there. (Strings can't be read, because TFRA writes memory addresses instead.)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class TfraFile:
    """The two files of a shard.

    Attributes:
        stem: Their path without suffixes.
        rows: Number of rows in them.
    """

    stem: str
    rows: int


def find(folder: str, name: str, key_bytes: int, row_bytes: int) -> list[TfraFile]:
    """The files of a saved table, all shards of all processes.

    Raises:
        ValueError: If there are no files, files are missing or of another save, or their lengths do
            not fit such keys and rows. The message names the file.
    """
    stem = name.replace("/", "_")
    pattern = re.compile(re.escape(stem) + r"_mht_(\d+)of(\d+)_rank(\d+)_size(\d+)-(keys|values)")
    present: dict[tuple[int, int], dict[tuple[int, int], set[str]]] = {}
    for file in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ():
        if match := pattern.fullmatch(file.rstrip("/")):
            shard, shards, rank, processes = map(int, match.groups()[:4])
            save = present.setdefault((shards, processes), {})
            save.setdefault((shard, rank), set()).add(match.group(5))
    # Saves with different numbers of shards may share a folder, and it is unknown which is newer.
    if len(present) != 1:
        saves = " and ".join(
            f"{shards} shards of {ranks} processes" for shards, ranks in sorted(present)
        )
        raise ValueError(
            f"`dirpath` must hold one table of TFRA's named {name!r}. Received: dirpath="
            f"{folder!r}, which holds {saves or 'none'}"
        )
    ((shards, processes), save) = present.popitem()
    found = []
    for rank in range(processes):
        for shard in range(1, shards + 1):
            path = tf.io.gfile.join(
                folder, f"{stem}_mht_{shard}of{shards}_rank{rank}_size{processes}"
            )
            for end in {"keys", "values"} - save.get((shard, rank), set()):
                raise ValueError(f"A file of the table {name!r} is missing: {path}-{end}")
            found.append(TfraFile(path, _rows_of(path, key_bytes, row_bytes)))
    return found


def _rows_of(stem: str, key_bytes: int, row_bytes: int) -> int:
    """Returns the number of rows in a pair of files."""
    of_keys, of_values = (tf.io.gfile.stat(f"{stem}-{end}").length for end in ("keys", "values"))
    rows, rest = divmod(of_keys, key_bytes)
    if rest or of_values != rows * row_bytes:
        raise ValueError(
            f"The files of {stem!r} must hold keys of {key_bytes} bytes and as many rows of "
            f"{row_bytes} bytes. Received: {of_keys} bytes of keys, {of_values} of values"
        )
    return rows


def batches(
    file: TfraFile, key_dtype: tf.DType, value_dtype: tf.DType, dim: int, batch: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The keys [n] and rows [n, dim] of a shard, in batches."""
    with (
        tf.io.gfile.GFile(f"{file.stem}-keys", "rb") as keys,
        tf.io.gfile.GFile(f"{file.stem}-values", "rb") as values,
    ):
        for begin in range(0, file.rows, batch):
            count = min(batch, file.rows - begin)
            yield (
                _numbers(keys, count, key_dtype),
                _numbers(values, count * dim, value_dtype).reshape(count, dim),
            )


def _numbers(file: tf.io.gfile.GFile, count: int, dtype: tf.DType) -> np.ndarray:
    return np.frombuffer(file.read(count * dtype.size), dtype.as_numpy_dtype)

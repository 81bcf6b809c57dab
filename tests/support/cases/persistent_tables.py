# SPDX-License-Identifier: Apache-2.0
"""Reads and writes persistent tables for the tests of `tf_embed.one_embedding`."""

from __future__ import annotations

import pathlib

import numpy as np

from tf_embed import one_embedding


def reader(paths, name="s", key_type="int64", value_type="float32", storage_dim=3, **options):
    make = one_embedding.make_persistent_table_reader
    return make(paths, name, key_type, value_type, storage_dim, **options)


def writer(paths, name="s", key_type="int64", value_type="float32", storage_dim=3, **options):
    make = one_embedding.make_persistent_table_writer
    return make(paths, name, key_type, value_type, storage_dim, **options)


def write(paths, keys, values, name="s", **options) -> None:
    options.setdefault("storage_dim", values.shape[1])
    with writer(paths, name, **options) as one:
        one.write(keys, values)


def read(paths, name="s", **options) -> dict[int, list[float]]:
    """The rows by key; the last row of a repeated key."""
    with reader(paths, name, **options) as one:
        blocks = list(one)
    return {
        key: row.astype(np.float64).tolist()
        for keys, values in blocks
        for key, row in zip(keys.tolist(), values, strict=True)
    }


def rows_of(keys, values) -> dict[int, list[float]]:
    pairs = zip(np.asarray(keys).tolist(), np.asarray(values), strict=True)
    return {key: row.astype(np.float64).tolist() for key, row in pairs}


def files_in(folder: str) -> list[pathlib.Path]:
    return sorted(one for one in pathlib.Path(folder).rglob("*") if one.is_file())

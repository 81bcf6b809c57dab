# SPDX-License-Identifier: Apache-2.0
"""The rows of a table as a .csv, .npz or .parquet file, written block by block."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tf_embed.inspect.saves import InspectError, SavedTable, empty_block, of_known_dtype
from tf_embed.saving.row_streams import Block


def export(table: SavedTable, path: str) -> int:
    """Writes all rows of a table to a file, whose name says its format. Returns their number.

    Raises:
        InspectError: If the format is not known, or a package is missing for it.
    """
    writers: dict[str, Callable[[SavedTable, str], int]] = {
        ".csv": _write_csv,
        ".npz": _write_npz,
        ".parquet": _write_parquet,
    }
    write = writers.get(os.path.splitext(path)[1])
    if write is None:
        raise InspectError(f"`--to` must end in .csv, .npz or .parquet. Received: {path}")
    # The file appears when it is complete.
    aside = f"{path}.{secrets.token_hex(4)}.aside"
    try:
        count = write(table, aside)
        os.replace(aside, path)
    except OSError as error:
        raise InspectError(f"'{path}' can't be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):  # renamed, or never made
            os.unlink(aside)
    return count


def _blocks(table: SavedTable) -> Iterator[Block]:
    """All blocks, of which the first has no rows but the dtypes of a table."""
    for block in itertools.chain([empty_block(table)], table.read()):
        yield block._replace(weights=of_known_dtype(block.weights))


def _write_csv(table: SavedTable, path: str) -> int:
    count = 0
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        weights = [f"weight_{i}" for i in range(table.dim)]
        slots = [f"slot_{i}" for i in range(table.slots)]
        writer.writerow(["key", *weights, *slots, *table.statistics])
        for block in _blocks(table):
            columns = [
                block.keys[:, np.newaxis],
                block.weights,
                block.slots,
                *(_statistic(block, name)[:, np.newaxis] for name in table.statistics),
            ]
            # As text, which is the shortest for each dtype.
            writer.writerows(np.concatenate(list(map(_as_text, columns)), axis=1).tolist())
            count += len(block.keys)
    return count


def _statistic(block: Block, name: str) -> np.ndarray:
    """A statistic of the rows of a block; -1 if an older save of a chain does not have it."""
    numbers = block.statistics.get(name)
    return np.full([len(block.keys)], -1) if numbers is None else numbers


def _as_text(cells: np.ndarray) -> np.ndarray:
    if cells.dtype == object:
        text = np.empty(cells.size, object)
        text[:] = [one.decode("utf-8", "backslashreplace") for one in cells.flat]
        return text.reshape(cells.shape)
    return cells.astype(str).astype(object)


def _write_npz(table: SavedTable, path: str) -> int:
    if "string" in (table.key_dtype, table.value_dtype):
        raise InspectError(
            f"`--to` must be .csv or .parquet for {table.name!r}, which has strings. Received: .npz"
        )
    count = table.count_rows()
    parts: dict[str, Callable[[Block], np.ndarray]] = {
        "keys": lambda block: block.keys,
        "weights": lambda block: block.weights,
        "slots": lambda block: block.slots,
    }
    for name in table.statistics:
        parts[name] = functools.partial(_statistic, name=name)
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        # An array is a member, and members are written one after the other.
        for name, part in parts.items():
            _write_member(archive, name, count, map(part, _blocks(table)))
    return count


def _write_member(
    archive: zipfile.ZipFile, name: str, count: int, blocks: Iterator[np.ndarray]
) -> None:
    first = next(blocks)
    head = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (count, *first.shape[1:]),
    }
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, head)
        written = 0
        for block in blocks:
            file.write(block.tobytes())
            written += len(block)
    if written != count:
        raise InspectError(f"the save changed while it was read: {written} rows, and not {count}")


def _write_parquet(table: SavedTable, path: str) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InspectError(
            "`--to` FILE.parquet needs pyarrow: install it by `pip install pyarrow`."
        ) from error

    def batch_of(block: Block) -> Any:
        of_strings = pa.binary() if block.keys.dtype == object else None
        columns = {"key": pa.array(block.keys, of_strings)}
        for name, values in (("weights", block.weights), ("slots", block.slots)):
            if values.shape[1]:
                of_strings = pa.binary() if values.dtype == object else None
                flat = pa.array(values.reshape(-1), of_strings)
                columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        columns.update((name, pa.array(_statistic(block, name))) for name in table.statistics)
        return pa.table(columns)

    count, blocks = 0, map(batch_of, _blocks(table))
    first = next(blocks)
    with pq.ParquetWriter(path, first.schema) as writer:
        for batch in blocks:
            writer.write_table(batch)
            count += batch.num_rows
    return count

# SPDX-License-Identifier: Apache-2.0
"""TFRA's arguments of saves and loads, and its own files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops.row_file_ops import Place
from tf_embed.table.table import Table
from tf_embed.tfra import tfra_files
from tf_embed.variable.row_files import MAX_BUFFER_BYTES, folder_of

DIRPATH_VARIABLE = "TFRA_SAVED_KV"


def place_of(
    table: Table,
    dirpath: Any,
    processes: tuple[Any, Any],
    file_name_list: Sequence[str] | None,
    dirpath_env: Any,
) -> Place:
    """The place of the files of a table, from TFRA's arguments.

    Args:
        dirpath: As in `Variable.save_to_file_system`, and so are all others that are not below.
        processes: `proc_size` and `proc_rank`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or it is the number of a process and the table,
            which is sharded over processes or devices, has another number.
    """
    proc_size, proc_rank = processes
    size, rank = table.spread.count, table.spread.rank
    if table.spread.group is not None or size > 1:
        known = {"proc_size": (proc_size, size), "proc_rank": (proc_rank, rank)}
        for argument, (value, own) in known.items():
            if value is not None and validation.int_in(value, argument, least=0) != own:
                raise ValueError(
                    f"`{argument}` must be {own} or left out, because {table.options.name!r} is "
                    f"{table.spread.where}. Received: {argument}={validation.shown(value)}"
                )
    else:  # tables of several processes may be saved as parts of one table
        if proc_size is not None:
            size = validation.int_in(proc_size, "proc_size", most=2**31 - 1)
        if proc_rank is not None:
            rank = validation.int_in(proc_rank, "proc_rank", least=0, most=size - 1)
    if not isinstance(dirpath_env, str):
        raise TypeError(
            f"`dirpath_env` must be a str. Received: dirpath_env={validation.shown(dirpath_env)}"
        )
    if dirpath_env:
        validation.name_of(dirpath_env, "dirpath_env")
    return Place(
        folder=folder_of(dirpath, "dirpath", may_be_empty=True),
        folder_variable=dirpath_env,
        file_name=_file_name(file_name_list, table.options.name),
        rank=rank,
        processes=size,
    )


def buffer_bytes_of(buffer_size: Any) -> int:
    """The argument `buffer_size`, which is in bytes here.

    Raises:
        TypeError: If it is not an int.
        ValueError: If it is out of range.
    """
    return validation.int_in(buffer_size, "buffer_size", most=MAX_BUFFER_BYTES)


def load_tfra_files(
    table: Table, dirpath: str | os.PathLike[str], file_name: str | None, buffer_size: int
) -> None:
    """Loads the rows of TFRA's files, which have no slots.

    Raises:
        RuntimeError: If called in a graph.
        TypeError: If the table has strings.
        ValueError: If the files are not files of such a table.
    """
    options = table.options
    if not tf.executing_eagerly():
        raise RuntimeError("`load_tfra_files` runs in eager execution only, not in a graph.")
    if tf.string in (options.key_dtype, options.value_dtype):
        raise TypeError(
            "TFRA's files hold no strings, only where they were in memory. Received: "
            f"{options.name!r} with {options.kind}"
        )
    buffer_bytes = buffer_bytes_of(buffer_size)
    row_bytes = options.dim * options.value_dtype.size
    files = tfra_files.find(
        validation.path_of(dirpath, "dirpath"),
        options.name if file_name is None else validation.name_of(file_name, "file_name"),
        options.key_dtype.size,
        row_bytes,
    )
    batch = max(1, buffer_bytes // (options.key_dtype.size + row_bytes))
    for file in files:
        for keys, values in tfra_files.batches(
            file, options.key_dtype, options.value_dtype, options.dim, batch
        ):
            table.insert_or_assign(tf.constant(keys), tf.constant(values))


def _file_name(file_name_list: Sequence[str] | None, name: str) -> str:
    """The name that files begin with."""
    if file_name_list is None:
        return name
    names = list(file_name_list) if isinstance(file_name_list, (list, tuple)) else []
    if len(names) != 1 or not isinstance(names[0], str) or not names[0]:
        raise ValueError(
            "`file_name_list` must be a list of one name, for all shards' files. Received: "
            f"file_name_list={validation.shown(file_name_list)}"
        )
    return validation.name_of(names[0], "file_name_list")

# SPDX-License-Identifier: Apache-2.0
"""`RowFiles`: the rows of a table as files."""

from __future__ import annotations

import dataclasses
import os
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import row_file_ops
from tf_embed.ops.row_file_ops import LEFT_OUT, TABLES_CHOICE, Place
from tf_embed.saving import tfra_files
from tf_embed.saving.progress import Progress, RowCalls, calls_of, watched
from tf_embed.table import expiry, sharding
from tf_embed.table.loaded_slots import loads_slots
from tf_embed.table.table import Table

DIRPATH_VARIABLE = "TFRA_SAVED_KV"
DEFAULT_BUFFER_BYTES = 4194304
MAX_BUFFER_BYTES = 2**30

# The files that cc/core/files/row_manifest.h names, and a character that it escapes.
_MANIFEST = re.compile(r"(.+)\.rank\d+of\d+\.manifest")
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
_MOST_NAMES = 10  # in a message


class RowFiles:
    """Saves the rows of a table to files, and loads them.

    Args:
        table: The table.
        is_named: Whether the user gave the table a name, which its files have.
    """

    def __init__(self, table: Table, is_named: bool) -> None:
        self._table = table
        self._is_named = is_named

    def save(
        self,
        dirpath: Any,
        proc_size: int | None,
        proc_rank: int | None,
        file_name_list: Sequence[str] | None,
        dirpath_env: str,
        *,
        append_to_file: bool,
        buffer_size: int,
        name: str | None,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Saves all rows. Each part of the table has separate files."""
        if validation.flag(append_to_file, "append_to_file"):
            raise ValueError(
                "`append_to_file` must be False: a save has the rows of one moment, each key once, "
                f"and takes the place of an earlier one. Received: append_to_file={append_to_file}"
            )
        processes, rank = self._table.spread.place_of_save(
            proc_size, proc_rank, self._table.options.name
        )
        place = self._place(dirpath, processes, rank, file_name_list, dirpath_env)
        buffer_bytes = validation.int_in(buffer_size, "buffer_size", most=MAX_BUFFER_BYTES)
        calls = calls_of(progress, prints=place.rank == 0)
        folder = None
        if file_name_list is None and not self._is_named:
            folder = _real_folder(dirpath, dirpath_env)
            _check_nameless(self._table, folder, rank)
        saved = []
        with validation.name_scope(name, "save_to_file_system"):
            with watched(calls, self._table.parts):
                for number, part in enumerate(self._table.parts):
                    # Only a table on servers has several parts. Each part writes like a separate
                    # process.
                    part_place = dataclasses.replace(place, rank=place.rank + number)
                    with part.save_turn:
                        saved.append(
                            row_file_ops.save_rows(
                                part.resource_handle, part_place, buffer_bytes=buffer_bytes
                            )
                        )
            if folder is not None:
                _nameless[folder, rank] = self._table
            self._table.spread.barrier()  # then the files of all workers exist
            if calls is not None:
                calls.end()
            return None if tf.executing_eagerly() else tf.group(*saved)

    def load(
        self,
        dirpath: Any,
        proc_size: int | None,
        proc_rank: int | None,
        file_name_list: Sequence[str] | None,
        dirpath_env: str,
        *,
        load_entire_dir: bool,
        buffer_size: int,
        name: str | None,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Loads the rows of a save that this process owns. Other rows stay."""
        processes, rank = self._table.spread.place_of_save(
            proc_size, proc_rank, self._table.options.name
        )
        place = self._place(dirpath, processes, rank, file_name_list, dirpath_env)
        # Only checked: blocks are read as the save wrote them.
        validation.int_in(buffer_size, "buffer_size", most=MAX_BUFFER_BYTES)
        whole = validation.flag(load_entire_dir, "load_entire_dir")
        calls = calls_of(progress, prints=place.rank == 0, tables=len(self._table.parts))
        loaded = []
        with validation.name_scope(name, "load_from_file_system"):
            for part in self._table.parts:
                has = part.spread.owns
                with tf.device(part.options.device):
                    # Any number of processes may have saved. A process that owns some of the keys
                    # reads all files and keeps its rows.
                    loaded.append(
                        RowFiles(part, self._is_named)._load(
                            place, whole=whole or has is not None, has=has, calls=calls
                        )
                    )
        if calls is not None:
            calls.end()
        return None if tf.executing_eagerly() else tf.group(*loaded)

    def load_all(
        self,
        dirpath: str,
        file_name: str,
        has: Callable[[tf.Tensor], tf.Tensor] | None = None,
        calls: RowCalls | None = None,
    ) -> None:
        """Loads the rows of a save by one process, in eager execution.

        Args:
            dirpath: The folder of its files.
            file_name: The name that its files begin with.
            has: A function of keys [n] that returns bool [n]: the keys to load. None: all.
            calls: The calls to make as rows are loaded, except the last call.
        """
        place = Place(tf.constant(dirpath), "", file_name, rank=0, processes=1)
        self._load(place, whole=False, has=has, calls=calls)

    def load_tfra(
        self, dirpath: str | os.PathLike[str], file_name: str | None, buffer_size: int
    ) -> None:
        """Loads the rows of TFRA's files, which have no slots."""
        options = self._table.options
        if not tf.executing_eagerly():
            raise RuntimeError("`load_tfra_files` runs in eager execution only, not in a graph.")
        if tf.string in (options.key_dtype, options.value_dtype):
            raise TypeError(
                "TFRA's files hold no strings, only where they were in memory. Received: "
                f"{options.name!r} with {options.kind}"
            )
        buffer_bytes = validation.int_in(buffer_size, "buffer_size", most=MAX_BUFFER_BYTES)
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
                self._table.insert_or_assign(tf.constant(keys), tf.constant(values))

    def _place(
        self,
        dirpath: Any,
        proc_size: int,
        proc_rank: int,
        file_name_list: Sequence[str] | None,
        dirpath_env: str,
    ) -> Place:
        """The place of a save, from the user's arguments."""
        processes = validation.int_in(proc_size, "proc_size", most=2**31 - 1)
        rank = validation.int_in(proc_rank, "proc_rank", least=0, most=processes - 1)
        if not isinstance(dirpath_env, str):
            raise TypeError(
                "`dirpath_env` must be a str. Received: "
                f"dirpath_env={validation.shown(dirpath_env)}"
            )
        if dirpath_env:
            validation.name_of(dirpath_env, "dirpath_env")
        return Place(
            folder=_folder(dirpath),
            folder_variable=dirpath_env,
            file_name=_file_name(file_name_list, self._table.options.name),
            rank=rank,
            processes=processes,
        )

    def _load(
        self,
        place: Place,
        *,
        whole: bool,
        has: Callable[[tf.Tensor], tf.Tensor] | None = None,
        calls: RowCalls | None = None,
    ) -> tf.Operation | None:
        table = self._table
        key_dtype = table.options.key_dtype
        try:
            saved = row_file_ops.open_saved_rows(
                table.resource_handle,
                place,
                whole=whole,
                with_slots=loads_slots(),
                key_dtype=key_dtype,
            )
        except tf.errors.NotFoundError as error:
            raise _with_names_there(error, place) from error
        some_stay_out = has is not None or (place.processes > 1 and not whole)
        chooses = _is_chosen_here(table) or some_stay_out

        def owners_of(keys: tf.Tensor) -> tf.Tensor:
            # With `whole` no row is skipped because of its process.
            by_key = tf.constant(False) if whole else saved.by_key
            owners = _owners(table, keys, by_key, place)
            return owners if has is None else tf.where(has(keys), owners, LEFT_OUT)

        def load_block(block: Any) -> tf.Operation | None:
            keys = owners = None
            # Keys are read in Python only if they are needed; otherwise one op loads the block.
            if chooses or table.on_update is not None:
                keys = row_file_ops.saved_keys(
                    table.resource_handle, saved.rows, block, key_dtype=key_dtype
                )
            if chooses:
                owners = owners_of(keys)
            done = row_file_ops.load_saved_rows(
                table.resource_handle,
                saved.rows,
                block,
                # Without owners the table chooses the shards itself.
                tf.zeros([0], tf.int32) if owners is None else owners,
            )
            if table.on_update is not None:
                # The policy may read the rows, so they must be loaded first.
                with tf.control_dependencies([] if done is None else [done]):
                    if owners is not None:
                        keys = tf.boolean_mask(keys, tf.not_equal(owners, LEFT_OUT))
                    table.on_update(keys)
            return done

        forgotten = None
        policy = table.options.policy
        # The save has the admission counts of the keys of all processes. The table forgets the keys
        # that other processes own.
        if some_stay_out and policy is not None and policy.admission is not None:
            others = tf.equal(owners_of(saved.waiting), LEFT_OUT)
            others_keys = tf.boolean_mask(saved.waiting, others)
            forgotten = row_file_ops.forget_waiting(table.resource_handle, others_keys)
        if tf.executing_eagerly():
            counts = []
            if calls is not None:
                counts = row_file_ops.saved_row_counts(table.resource_handle, saved.rows).numpy()
                calls.expect(int(sum(counts)))
            for block in range(int(saved.num_blocks)):
                load_block(tf.constant(block, tf.int64))
                if calls is not None:
                    calls.add(int(counts[block]))
            if table._rule is not None:
                table.bind_rule(table._rule)  # the saved rows may have another rule
            expiry.warn_of_expired(table)
            return None

        def body(block: tf.Tensor) -> tf.Tensor:
            done = load_block(block)
            # The next block waits for this block, so that memory holds one block at a time.
            with tf.control_dependencies([] if done is None else [done]):
                return block + 1

        first = tf.constant(0, tf.int64)
        last = tf.while_loop(
            lambda block: block < saved.num_blocks, body, [first], parallel_iterations=1
        )
        return tf.group(last) if forgotten is None else tf.group(last, forgotten)


def _is_chosen_here(table: Table) -> bool:
    """Whether a Python function chooses the shard of a key."""
    options = table.options
    by_default = options.partition_fn is sharding.default_partition_fn
    return options.num_shards > 1 and not by_default


def _owners(table: Table, keys: tf.Tensor, by_key: tf.Tensor, place: Place) -> tf.Tensor:
    """The shard of each key, or LEFT_OUT if another process has to load its row."""
    options = table.options
    shards = sharding.owners(keys, options.num_shards, options.partition_fn, options.name)
    if shards is None:
        shards = tf.fill(tf.shape(keys), TABLES_CHOICE)
    if place.processes == 1:
        return shards
    ranks = sharding.owners(keys, place.processes, options.partition_fn, options.name)
    # `owners` is None for the default partitioner, which takes no strings.
    if ranks is None and options.key_dtype == tf.string:
        ranks = tf.strings.to_hash_bucket_fast(keys, place.processes)
    elif ranks is None:
        ranks = sharding.default_partition_fn(keys, place.processes)
    is_mine = tf.equal(tf.cast(ranks, tf.int32), place.rank)
    # If the same number of processes saved, the file of this rank has its rows, whatever their
    # keys.
    return tf.where(tf.logical_or(is_mine, tf.logical_not(by_key)), shards, LEFT_OUT)


def _with_names_there(error: tf.errors.NotFoundError, place: Place) -> tf.errors.NotFoundError:
    """The error, with the names of the saves in the folder if the wanted save is missing."""
    folder = _real_folder(place.folder, place.folder_variable)
    try:
        files = [] if folder is None else tf.io.gfile.listdir(folder)
    except tf.errors.OpError:
        files = []  # the folder is missing, which the error says
    stems = {found.group(1) for found in map(_MANIFEST.fullmatch, files) if found}
    names = sorted(
        _ESCAPED.sub(
            lambda one: bytes([int(one.group(1), 16)]), stem.encode(errors="replace")
        ).decode(errors="replace")
        for stem in stems
    )
    if not names or place.file_name in names:
        return error
    there = ", ".join(map(validation.shown, names[:_MOST_NAMES]))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    message = (
        f"{error.message} The folder has saves of {there}{more}: give the variable, or its layer, "
        "the name that was saved."
    )
    return tf.errors.NotFoundError(error.node_def, error.op, message)


# For each folder, the table of the last variable with the default name that saved into it.
_nameless: weakref.WeakValueDictionary[tuple[str, int], Table] = weakref.WeakValueDictionary()


def _check_nameless(table: Table, folder: str | None, rank: int) -> None:
    """Refuses a save that would replace the files of another variable with the default name.

    Raises:
        ValueError: If another such variable has saved into the folder.
    """
    before = None if folder is None else _nameless.get((folder, rank))
    if before is not None and before is not table:
        raise ValueError(
            f"`name` of each variable that saves into {folder!r} must be its own, for files are "
            "named after it; or give `file_name_list`. Received: two variables named "
            f"{table.options.name!r}"
        )


def _real_folder(dirpath: Any, dirpath_env: str) -> str | None:
    """The canonical name of the folder that a save writes to; None if a graph knows it only later.

    Two names of the same local folder give the same result.
    """
    by_variable = os.environ.get(dirpath_env) if dirpath_env else None
    if by_variable:
        dirpath = by_variable
    elif tf.is_tensor(dirpath):
        if not tf.executing_eagerly():
            return None
        dirpath = dirpath.numpy()
    folder = os.fsdecode(dirpath).removeprefix("file://")
    # In other file systems ".." and a double slash may be names.
    return folder.rstrip("/") if "://" in folder else os.path.realpath(folder)


def _folder(dirpath: Any) -> tf.Tensor:
    """`dirpath` as a string scalar."""
    if isinstance(dirpath, (tf.Tensor, tf.Variable)):
        if dirpath.dtype != tf.string:
            raise TypeError(
                "`dirpath` must be a str, a path or a string tensor. Received: dirpath of dtype "
                f"{dirpath.dtype.name}"
            )
        if not dirpath.shape.is_compatible_with([]):
            raise ValueError(
                f"`dirpath` must be a scalar. Received: dirpath of shape {dirpath.shape}"
            )
        return tf.convert_to_tensor(dirpath)
    if not isinstance(dirpath, (str, bytes, os.PathLike)):
        raise TypeError(
            "`dirpath` must be a str, a path or a string tensor. Received: dirpath="
            f"{validation.shown(dirpath)} of type {type(dirpath).__name__}"
        )
    # The operation refuses a missing folder, unless an environment variable names a folder.
    return tf.constant(validation.path_of(dirpath, "dirpath") if dirpath else "")


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

# SPDX-License-Identifier: Apache-2.0
"""`RowFiles`: the rows of a table as files."""

from __future__ import annotations

import dataclasses
import os
import re
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import row_file_ops, whole_table_ops
from tf_embed.ops.row_file_ops import LEFT_OUT, TABLES_CHOICE, Place
from tf_embed.saving.progress import Progress, RowCalls, calls_of, watched
from tf_embed.table import expiry, sharding
from tf_embed.table.loaded_slots import loads_slots
from tf_embed.table.table import Table

DEFAULT_NAME = "DynamicEmbedding_Variable"  # of a variable to which the user gave no name
DEFAULT_BUFFER_BYTES = 4194304
MAX_BUFFER_BYTES = 2**30

# The files that cc/core/files/row_manifest.h names, and a character that it escapes.
_MANIFEST = re.compile(r"(.+)\.rank\d+of\d+\.manifest")
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
_MOST_NAMES = 10  # in a message


class RowFiles:
    """Saves the rows of a table to files, and loads them.

    Args:
        whole: The table that `table` is a part of, if it is one.
    """

    def __init__(self, table: Table, whole: Table | None = None) -> None:
        self._table = table
        self._whole = whole or table

    def place(self, path: Any, file_name: str | None = None) -> Place:
        """The place of the table's files in a folder.

        A table on servers or on several GPUs saves all parts from here, so its rank is the rank of
        the first part.

        Args:
            path: The folder, a str, a path or a scalar string tensor.
            file_name: The name that the files begin with. Default: the table's name.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If the folder has no name, the tensor is not a scalar, or `file_name` is out
                of range.
        """
        spread = self._table.spread
        if file_name is None:
            file_name = self._table.options.name
        else:
            file_name = validation.name_of(file_name, "file_name")
        folder = folder_of(path, "path")
        return Place(folder, "", file_name, rank=spread.rank, processes=spread.count)

    def save(
        self,
        place: Place,
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        progress: Progress = None,
    ) -> tf.Operation | None:
        """Saves all rows. Each part of the table has separate files.

        Args:
            buffer_bytes: Approximate bytes of a block of rows.
            progress: As in `Variable.save_rows`.
        """
        calls = calls_of(progress, prints=place.rank == 0)
        folder = None
        if place.file_name == DEFAULT_NAME:
            folder = _real_folder(place)
            _check_nameless(self._table, folder, place.rank)
        saved = []
        with watched(calls, self._table.parts):
            for number, part in enumerate(self._table.parts):
                # A table on servers or on several GPUs has parts. Each writes like a separate
                # process.
                part_place = dataclasses.replace(place, rank=place.rank + number)
                with part.save_turn:
                    saved.append(
                        row_file_ops.save_rows(
                            part.resource_handle, part_place, buffer_bytes=buffer_bytes
                        )
                    )
        if folder is not None:
            _nameless[folder, place.rank] = self._table
        self._table.spread.barrier()  # then the files of all workers exist
        if calls is not None:
            calls.end()
        return None if tf.executing_eagerly() else tf.group(*saved)

    def load(
        self, place: Place, *, whole: bool = False, progress: Progress = None
    ) -> tf.Operation | None:
        """Loads the rows of a save that this process owns. Other rows stay.

        Args:
            whole: Whether to load the rows of all processes that saved.
            progress: As in `Variable.load_rows`.
        """
        calls = calls_of(progress, prints=place.rank == 0, tables=len(self._table.parts))
        loaded, ready = [], []
        if len(self._table.parts) > 1 and not tf.executing_eagerly():
            # A part reads the files of all, so it waits for what all parts did, such as a save.
            ready = [whole_table_ops.size(part.resource_handle, -1) for part in self._table.parts]
        for part in self._table.parts:
            has = part.spread.owns
            with tf.device(part.options.device), tf.control_dependencies(ready):
                # Any number of processes may have saved. A process that owns some of the keys reads
                # all files and keeps its rows.
                loaded.append(
                    RowFiles(part, self._table)._load(
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
            on_update = self._whole.on_update
            if chooses or on_update is not None:
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
            if on_update is not None:
                # The policy may read the rows, so they must be loaded first.
                with tf.control_dependencies([] if done is None else [done]):
                    if owners is not None:
                        keys = tf.boolean_mask(keys, tf.not_equal(owners, LEFT_OUT))
                    on_update(keys)
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


def names_of_saves(files: Iterable[str]) -> list[str]:
    """Returns the names of the variables whose manifests are among the files of a folder."""
    stems = {found.group(1) for found in map(_MANIFEST.fullmatch, files) if found}
    return sorted(
        _ESCAPED.sub(
            lambda one: bytes([int(one.group(1), 16)]), stem.encode(errors="replace")
        ).decode(errors="replace")
        for stem in stems
    )


def _with_names_there(error: tf.errors.NotFoundError, place: Place) -> tf.errors.NotFoundError:
    """The error, with the names of the saves in the folder if the wanted save is missing."""
    folder = _real_folder(place)
    try:
        files = [] if folder is None else tf.io.gfile.listdir(folder)
    except tf.errors.OpError:
        files = []  # the folder is missing, which the error says
    names = names_of_saves(files)
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
            "named after it; or give the files another name. Received: two variables named "
            f"{table.options.name!r}"
        )


def _real_folder(place: Place) -> str | None:
    """The canonical name of the folder of a place; None if a graph knows it only later.

    Two names of the same local folder give the same result.
    """
    folder = os.environ.get(place.folder_variable) if place.folder_variable else None
    if not folder:
        known = tf.get_static_value(place.folder)
        if known is None:
            return None
        folder = os.fsdecode(known.item() if hasattr(known, "item") else known)
    folder = folder.removeprefix("file://")
    # In other file systems ".." and a double slash may be names.
    return folder.rstrip("/") if "://" in folder else os.path.realpath(folder)


def folder_of(path: Any, argument: str, *, may_be_empty: bool = False) -> tf.Tensor:
    """A folder as a string scalar.

    Args:
        path: A str, a path or a scalar string tensor.
        argument: The argument's name, for messages.
        may_be_empty: Whether an environment variable may name the folder instead.

    Raises:
        TypeError: If it is none of these.
        ValueError: If the tensor is not a scalar, or the path is empty.
    """
    if isinstance(path, (tf.Tensor, tf.Variable)):
        if path.dtype != tf.string:
            raise TypeError(
                f"`{argument}` must be a str, a path or a string tensor. Received: {argument} of "
                f"dtype {path.dtype.name}"
            )
        if not path.shape.is_compatible_with([]):
            raise ValueError(
                f"`{argument}` must be a scalar. Received: {argument} of shape {path.shape}"
            )
        return tf.convert_to_tensor(path)
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(
            f"`{argument}` must be a str, a path or a string tensor. Received: {argument}="
            f"{validation.shown(path)} of type {type(path).__name__}"
        )
    if may_be_empty and not path:
        return tf.constant("")  # the operation refuses it, unless the variable is set
    return tf.constant(validation.path_of(path, argument))

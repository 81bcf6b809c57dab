"""The methods of `Variable` that save its rows as files and load them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import arguments
from tf_embed.ops import row_file_ops
from tf_embed.ops.row_file_ops import LEFT_OUT, TABLES_CHOICE, Place
from tf_embed.saving import tfra_files
from tf_embed.table import sharding
from tf_embed.table.table import Table

DEFAULT_NAME = "DynamicEmbedding_Variable"
DIRPATH_VARIABLE = "TFRA_SAVED_KV"
DEFAULT_BUFFER_BYTES = 4194304
MOST_BUFFER_BYTES = 2**30


class FileMethods(tf.Module):
    """A variable, as far as its files go. `Variable` has the rest."""

    _table: Table

    def save_to_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = DIRPATH_VARIABLE,
        append_to_file: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Writes all rows to files: weights, optimizer slots, and what policies keep of them.

        The rows are those of one moment: writers of the variable wait until all are written,
        lookups do not. It takes no copy of the table, only a buffer of `buffer_size` or of a 256th
        of a shard, whichever is more.

        A save takes the place of an earlier one of the same variable, `proc_size` and `proc_rank`
        in the folder, and does so at once, when it is whole: whatever fails and whenever a process
        dies, the folder holds the old save or the new one, and a load finds no mixture. Where
        several processes save, that holds for the part of each; so give each save a folder of its
        own if a process may die between two parts. When all parts are there, saves by another
        number of processes are removed. Only one save at a time may run into a folder for a
        variable and a rank.

        Args:
            dirpath: The folder, a str, a path or a scalar string tensor. It is made. Any path that
                tf.io.gfile knows, so with tensorflow-io also s3://.
            proc_size: Number of processes that save a part each, at least 1.
            proc_rank: Which of them this is, from 0.
            file_name_list: None, or [a name]: what the files are named after instead of the
                variable.
            dirpath_env: Name of an environment variable. Where it is set when the operation runs,
                it is the folder instead of `dirpath`.
            append_to_file: Must be False, as a save is of one moment.
            buffer_size: Bytes of a block of rows, about, from 1 to 2^30. (TFRA counts keys.)
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: An argument out of range; or another variable that nobody named either has
                saved into the folder.
            tf.errors.OpError: The files can't be written; what is in the folder is as it was.

        Example:
            >>> import tempfile, tf_embed
            >>> folder = tempfile.mkdtemp()
            >>> v = tf_embed.Variable(dim=2)
            >>> v.upsert([1, 2], [[0.0, 1.0], [2.0, 3.0]])
            >>> v.save_to_file_system(folder)
            >>> other = tf_embed.Variable(dim=2, devices=["/CPU:0"] * 3)
            >>> other.load_from_file_system(folder)
            >>> other.lookup([2]).numpy().tolist()
            [[2.0, 3.0]]
        """
        if arguments.flag(append_to_file, "append_to_file"):
            raise ValueError(
                "`append_to_file` must be False: a save has the rows of one moment, each key once, "
                f"and takes the place of an earlier one. Received: append_to_file={append_to_file}"
            )
        place = self._place(dirpath, proc_size, proc_rank, file_name_list, dirpath_env)
        buffer_bytes = arguments.positive_int(buffer_size, "buffer_size", most=MOST_BUFFER_BYTES)
        if file_name_list is None and self._table.options.name == DEFAULT_NAME:
            _check_nameless(self._table, dirpath, proc_rank)
        with arguments.scope(name, "save_to_file_system"):
            return row_file_ops.save_rows(
                self._table.resource_handle, place, buffer_bytes=buffer_bytes
            )

    def load_from_file_system(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        file_name_list: Sequence[str] | None = None,
        dirpath_env: str = DIRPATH_VARIABLE,
        load_entire_dir: bool = False,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
        name: str | None = None,
    ) -> tf.Operation | None:
        """Loads rows that `save_to_file_system` wrote, from any number of shards and processes.

        Rows of keys that are there are replaced, other rows stay. Weights, optimizer slots and the
        statistics of policies come as they were saved; where more rows come than a policy's bound
        lets stay, those leave that are first in its order. A variable without rows also takes over
        the seed of initial rows and, from a save by one process, what admission has counted. So
        training goes on from there as it would have from the table that was saved. Build a
        `DynamicEmbeddingOptimizer` before: one that begins with a table drops the slots that it
        finds.

        Which rows a process loads:

        - with `load_entire_dir`, those of all processes;
        - where `proc_size` processes saved, those that process `proc_rank` saved. If the parts of
          the others are not in the folder, that is no error, since each process may have a folder
          of its own;
        - where another number saved, those whose key the partitioner gives to `proc_rank` of
          `proc_size`: of `default_partition_fn`, key mod proc_size, and strings by
          tf.strings.to_hash_bucket_fast.

        Before the first row is loaded, all files are read and checked, each byte of them. What is
        damaged or not whole, or does not fit the variable, is refused, and the table is as it was.

        Args:
            dirpath: The folder, as in `save_to_file_system`.
            proc_size: Number of processes that load, at least 1.
            proc_rank: Which of them this is, from 0.
            file_name_list: None, or [a name]: what the files are named after, where that is not
                the variable's name.
            dirpath_env: As in `save_to_file_system`.
            load_entire_dir: Whether to load the rows of all processes.
            buffer_size: Accepted for the sake of old code; blocks are as long as they were
                written.
            name: Name of the operation.

        Returns:
            The operation in a graph, None in eager execution.

        Raises:
            TypeError: An argument of a wrong type.
            ValueError: An argument out of range.
            tf.errors.NotFoundError: The folder holds no whole save of the variable.
            tf.errors.DataLossError: A file is damaged. Named.
            tf.errors.InvalidArgumentError: The rows have another dtype or dim.
            tf.errors.FailedPreconditionError: The variable has rows with slots of another
                optimizer than the saved ones.
        """
        place = self._place(dirpath, proc_size, proc_rank, file_name_list, dirpath_env)
        arguments.positive_int(buffer_size, "buffer_size", most=MOST_BUFFER_BYTES)
        with arguments.scope(name, "load_from_file_system"):
            return self._load(place, whole=arguments.flag(load_entire_dir, "load_entire_dir"))

    def load_from_file_system_with_restore_function(
        self,
        dirpath: Any,
        proc_size: int = 1,
        proc_rank: int = 0,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
    ) -> tf.Operation | None:
        """The same as `load_from_file_system`, which spreads rows over any number of shards.

        Args:
            dirpath: The folder.
            proc_size: Number of processes that load.
            proc_rank: Which of them this is.
            buffer_size: Accepted for the sake of old code.

        Returns:
            The operation in a graph, None in eager execution.
        """
        return self.load_from_file_system(dirpath, proc_size, proc_rank, buffer_size=buffer_size)

    def load_tfra_files(
        self,
        dirpath: str | os.PathLike[str],
        file_name: str | None = None,
        buffer_size: int = DEFAULT_BUFFER_BYTES,
    ) -> None:
        """Loads rows that `save_to_file_system` of TensorFlow Recommenders Addons wrote.

        Those are files `<name>_mht_1of1_rank0_size1-keys` and `-values`, of all shards and
        processes. Rows of keys that are there are replaced, other rows stay. The files say nothing
        of dtypes and dim, so these must be the variable's. Slots are tables of their own there, and
        are not loaded: optimizers begin anew. In eager execution only.

        Args:
            dirpath: The folder, any path that tf.io.gfile knows.
            file_name: The name of the table that was saved. Default: the variable's.
            buffer_size: Bytes of rows that are loaded at a time, about, from 1 to 2^30.

        Raises:
            TypeError: The variable has string keys or values.
            ValueError: There is no such table, a file is missing, or the lengths are not those of
                the variable's dtypes and dim. Nothing is loaded then.
            RuntimeError: In a graph.

        Example:
            >>> import numpy as np, os, tempfile, tf_embed
            >>> stem = os.path.join(tempfile.mkdtemp(), "user_mht_1of1_rank0_size1")
            >>> np.array([7], np.int64).tofile(stem + "-keys")
            >>> np.array([[1.0, 2.0]], np.float32).tofile(stem + "-values")
            >>> v = tf_embed.Variable(dim=2, name="user")
            >>> v.load_tfra_files(os.path.dirname(stem))
            >>> v.lookup([7]).numpy().tolist()
            [[1.0, 2.0]]
        """
        options = self._table.options
        if not tf.executing_eagerly():
            raise RuntimeError("`load_tfra_files` runs in eager execution only, not in a graph.")
        if tf.string in (options.key_dtype, options.value_dtype):
            raise TypeError(
                "TFRA's files hold no strings, only where they were in memory. Received: "
                f"{options.name!r} with {options.kind}"
            )
        buffer_bytes = arguments.positive_int(buffer_size, "buffer_size", most=MOST_BUFFER_BYTES)
        row_bytes = options.dim * options.value_dtype.size
        files = tfra_files.find(
            arguments.path_of(dirpath, "dirpath"),
            options.name if file_name is None else arguments.name_of(file_name, "file_name"),
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
        """Where a save is, from what the user says."""
        processes = arguments.positive_int(proc_size, "proc_size", most=2**31 - 1)
        rank = arguments.positive_int(proc_rank, "proc_rank", least=0, most=processes - 1)
        if not isinstance(dirpath_env, str):
            raise TypeError(
                f"`dirpath_env` must be a str. Received: dirpath_env={arguments.shown(dirpath_env)}"
            )
        if dirpath_env:
            arguments.name_of(dirpath_env, "dirpath_env")
        return Place(
            folder=_folder(dirpath),
            folder_variable=dirpath_env,
            file_name=_file_name(file_name_list, self._table.options.name),
            rank=rank,
            processes=processes,
        )

    def _load(self, place: Place, *, whole: bool) -> tf.Operation | None:
        table = self._table
        saved = row_file_ops.open_saved_rows(table.resource_handle, place, whole=whole)

        def load_block(block: Any) -> tf.Operation | None:
            keys = owners = None
            chooses = _is_chosen_here(table) or (place.processes > 1 and not whole)
            if chooses or table.on_update is not None:
                keys = row_file_ops.saved_keys(
                    table.resource_handle, saved.rows, block, key_dtype=table.options.key_dtype
                )
            if chooses:
                by_key = tf.constant(False) if whole else saved.by_key
                owners = _owners(table, keys, by_key, place)
            done = row_file_ops.load_saved_rows(
                table.resource_handle,
                saved.rows,
                block,
                tf.zeros([0], tf.int32) if owners is None else owners,
            )
            if table.on_update is not None:
                with tf.control_dependencies([] if done is None else [done]):
                    if owners is not None:
                        keys = tf.boolean_mask(keys, tf.not_equal(owners, LEFT_OUT))
                    table.on_update(keys)
            return done

        if tf.executing_eagerly():
            for block in range(int(saved.num_blocks)):
                load_block(tf.constant(block, tf.int64))
            if table._rule is not None:
                table.bind_rule(table._rule)  # the saved rows may have had another
            return None

        def body(block: tf.Tensor) -> tf.Tensor:
            done = load_block(block)
            with tf.control_dependencies([] if done is None else [done]):
                return block + 1

        first = tf.constant(0, tf.int64)
        last = tf.while_loop(
            lambda block: block < saved.num_blocks, body, [first], parallel_iterations=1
        )
        return tf.group(last)


def _is_chosen_here(table: Table) -> bool:
    """Whether a Python function chooses the shard of a key."""
    options = table.options
    by_default = options.partition_fn is sharding.default_partition_fn
    return options.num_shards > 1 and not by_default


def _owners(table: Table, keys: tf.Tensor, by_key: tf.Tensor, place: Place) -> tf.Tensor:
    """The shard of each key, and LEFT_OUT where another process has to load its row."""
    options = table.options
    shards = sharding.owners(keys, options.num_shards, options.partition_fn, options.name)
    if shards is None:
        shards = tf.fill(tf.shape(keys), TABLES_CHOICE)
    if place.processes == 1:
        return shards
    ranks = sharding.owners(keys, place.processes, options.partition_fn, options.name)
    if ranks is None and options.key_dtype == tf.string:
        ranks = tf.strings.to_hash_bucket_fast(keys, place.processes)
    elif ranks is None:
        ranks = sharding.default_partition_fn(keys, place.processes)
    is_mine = tf.equal(tf.cast(ranks, tf.int32), place.rank)
    return tf.where(tf.logical_or(is_mine, tf.logical_not(by_key)), shards, LEFT_OUT)


# The table of the last variable of the default name that saved into a folder.
_nameless: weakref.WeakValueDictionary[tuple[str, int], Table] = weakref.WeakValueDictionary()


def _check_nameless(table: Table, dirpath: Any, rank: int) -> None:
    """Refuses that two variables which nobody named replace each other's files.

    Of a tensor in a graph the folder is not known yet, and nothing is checked.

    Raises:
        ValueError: They would.
    """
    if tf.is_tensor(dirpath):
        if not tf.executing_eagerly():
            return
        dirpath = dirpath.numpy()
    place = (os.path.normpath(os.fsdecode(dirpath)), rank)
    before = _nameless.get(place)
    if before is not None and before is not table:
        raise ValueError(
            f"`name` of each variable that saves into {place[0]!r} must be its own, for files are "
            "named after it; or give `file_name_list`. Received: two variables named "
            f"{DEFAULT_NAME!r}"
        )
    _nameless[place] = table


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
            f"{arguments.shown(dirpath)} of type {type(dirpath).__name__}"
        )
    # No folder at all is for the operation to refuse, if no environment variable names one.
    return tf.constant(arguments.path_of(dirpath, "dirpath") if dirpath else "")


def _file_name(file_name_list: Sequence[str] | None, name: str) -> str:
    """What files are named after."""
    if file_name_list is None:
        return name
    names = list(file_name_list) if isinstance(file_name_list, (list, tuple)) else []
    if len(names) != 1 or not isinstance(names[0], str) or not names[0]:
        raise ValueError(
            "`file_name_list` must be a list of one name, for all shards' files. Received: "
            f"file_name_list={arguments.shown(file_name_list)}"
        )
    return arguments.name_of(names[0], "file_name_list")

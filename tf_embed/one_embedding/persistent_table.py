# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of snapshots, block by block, without a layer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.one_embedding.snapshots import folder_of_layer, layers_with, snapshot_name_of
from tf_embed.one_embedding.store_options import block_size_of, paths_of
from tf_embed.saving.row_streams import KEY_DTYPES, VALUE_DTYPES, RowReader, RowWriter
from tf_embed.snapshots import SnapshotInfo, manifest
from tf_embed.snapshots.files import (
    check_no_base,
    commit,
    folder_name,
    give_up,
    name_of,
    new_number,
    next_time,
)
from tf_embed.snapshots.loading import check_chain
from tf_embed.snapshots.manifest import TableFiles

MAX_ROWS_OF_BLOCK = 65536
MAX_TABLES = 65536  # each has an open file

Block = tuple[np.ndarray, np.ndarray]


def make_persistent_table_reader(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    snapshot_name: str,
    key_type: Any,
    value_type: Any,
    storage_dim: int,
    physical_block_size: int = 4096,
    *,
    layer_name: str | None = None,
) -> PersistentTableReader:
    """Makes an iterator over the rows of a snapshot.

    It needs no layer and takes the memory of a block of rows, not of the table. All files are read
    and checked when the reader is made. On a local file system, a snapshot that is replaced while
    it is read stays readable and unchanged. An incremental snapshot is read together with the
    snapshots that it builds on, and each row is as of its last change.

    Each block is (keys, values): keys [n] and values [n, storage_dim], with n up to 65,536. A row
    of values is the weights and then the optimizer slots, in the order of the optimizer: for Adam,
    `dim` weights, `dim` of the momentum and `dim` of the velocity. Values have `value_type`. If it
    is narrower than float32 and there are slots, which are float32, values are float32.

    Keys are the keys of the layer's rows. In a layer with one table, or with shared ids, a key is
    an id. A layer with several tables and 32-bit ids has 64-bit keys, id + 2^32 * table: read them
    as int64. Then `table = (keys + 2**31) >> 32` if ids are int32, `table = keys >> 32` if they are
    uint32, and `id = keys - (table << 32)`. Other layers with several tables use ids as keys. Their
    snapshots have a table of rows for each table, which are read in order; the attribute `table` is
    the number of the current table. The folders of a table are read as one table.

    Args:
        paths: The folders of the store, `persistent_path`: a path, or a list. Its snapshots are in
            the first folder.
        snapshot_name: The name of the snapshot.
        key_type: Dtype of the keys: int64, uint64, int32 or uint32. Keys of 64 bits are stored; as
            uint64 they keep their bits, and narrow types must hold each of them.
        value_type: Dtype of the weights: float32, float16, bfloat16 or float64.
        storage_dim: Number of weights and slots of a row, an int from 1.
        physical_block_size: Bytes of a block of the disk, 512 or 4096. It is checked and otherwise
            ignored: snapshot files have their own block size.
        layer_name: Name of the layer that saved the snapshot. Default: None, the layer that has a
            snapshot of this name.

    Returns:
        An iterator of blocks, and a context manager that closes the files. It has the attributes
        `dim`, the number of weights in a row; `storage_dim`; `dtype`, the NumPy dtype of values;
        `num_rows`; `num_tables`, the number of tables of rows in the snapshot; and `table`, the
        table number of the last block, an int from 0. If a writer wrote a key twice, the iterator
        returns both rows in this order.

    Raises:
        TypeError: If an argument is of a wrong type, or the snapshot has keys or weights that are
            strings.
        ValueError: If there is no such snapshot, or `value_type` or `storage_dim` does not match
            its rows, or a key does not fit `key_type`.
        RuntimeError: If this is called in a graph.
        tf.errors.OpError: If a file is damaged or can't be read.

    Example:
        >>> import numpy as np, tempfile
        >>> from tf_embed import one_embedding
        >>> folder = tempfile.mkdtemp()
        >>> kind = ([folder], "first", "int64", "float32", 2)
        >>> with one_embedding.make_persistent_table_writer(*kind) as writer:
        ...     writer.write(np.array([7, 8]), np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> with one_embedding.make_persistent_table_reader(*kind) as reader:
        ...     for keys, values in reader:
        ...         print(keys.tolist(), values.tolist())
        [7, 8] [[1.0, 2.0], [3.0, 4.0]]
    """
    kind = _Kind.of(
        paths, snapshot_name, key_type, value_type, storage_dim, physical_block_size, layer_name
    )
    return PersistentTableReader(kind)


def make_persistent_table_writer(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    snapshot_name: str,
    key_type: Any,
    value_type: Any,
    storage_dim: int,
    physical_block_size: int = 4096,
    *,
    layer_name: str | None = None,
    like: PersistentTableReader | None = None,
    num_tables: int | None = None,
) -> PersistentTableWriter:
    """Makes a writer of a snapshot, which a layer can load with `load_snapshot`.

    `write(keys, values)` takes keys [n] and values [n, storage_dim] any number of times, and
    `close()` puts the snapshot in place, with fsync and checksums. The writer is a context manager
    that closes at the end. If it is not closed, or an exception is raised, it leaves no snapshot,
    and an earlier snapshot of that name stays. Only one writer may write a snapshot at a time: the
    first to close succeeds, and others fail.

    A layer with 32-bit ids, with shared ids, or with one table has one table of rows. It loads the
    default output of a writer. A layer with several tables and 64-bit ids has a table of rows for
    each. Set `num_tables` to their number; `write(keys, values, table=1)` then writes rows of the
    second table. The number of folders does not matter.

    Without `like`, all numbers of a row are weights. A layer with rows of that dim loads them with
    new optimizer slots, and keeps its own seed. With `like`, a reader of another snapshot, rows
    have the weights and slots of that snapshot. Its optimizer kind and its seed of initial rows are
    copied. The statistics of a policy are not copied: loaded rows count as used at the load.

    If a key is written twice, the later row is loaded.

    Args:
        paths: As in `make_persistent_table_reader`. The snapshot is written into the first folder.
        snapshot_name: A name for a folder.
        key_type: Dtype of the keys: int64, uint64, int32 or uint32; see
            `make_persistent_table_reader`.
        value_type: Dtype of the weights: float32, float16, bfloat16 or float64. Layers support the
            first three.
        storage_dim: Number of weights and slots of a row, an int from 1.
        physical_block_size: As in `make_persistent_table_reader`.
        layer_name: Name of the layer that will load the snapshot. It can then save changes `since`
            it. Default: None, any layer with this `persistent_path` that has no snapshot of this
            name.
        like: The result of `make_persistent_table_reader`, which may be closed. Default: None.
        num_tables: Number of tables of rows, an int from 1. Default: None, as many as `like` has,
            or 1.

    Returns:
        The writer.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, `value_type`, `storage_dim` or `num_tables` does
            not match `like`, or other snapshots build on the snapshot that would be replaced.
        RuntimeError: If this is called in a graph.
        tf.errors.OpError: If files can't be written.

    Example:
        Halves all weights of a snapshot and keeps the slots.

        >>> import numpy as np, tempfile
        >>> from tf_embed import one_embedding
        >>> folder = tempfile.mkdtemp()
        >>> kind = ([folder], "first", "int64", "float32", 2)
        >>> with one_embedding.make_persistent_table_writer(*kind) as writer:
        ...     writer.write(np.array([7]), np.array([[1.0, 2.0]]))
        >>> half = ([folder], "half", *kind[2:])
        >>> with one_embedding.make_persistent_table_reader(*kind) as reader:
        ...     with one_embedding.make_persistent_table_writer(*half, like=reader) as writer:
        ...         for keys, values in reader:
        ...             values[:, : reader.dim] /= 2
        ...             writer.write(keys, values)
        >>> with one_embedding.make_persistent_table_reader(*half) as reader:
        ...     print([values.tolist() for _, values in reader])
        [[[0.5, 1.0]]]

        Writes two tables of 64-bit ids for a layer.

        >>> store = one_embedding.make_device_mem_store_options(folder, 100)
        >>> tables = [one_embedding.make_table(one_embedding.make_constant_initializer(0.0))] * 2
        >>> layer = one_embedding.MultiTableEmbedding("e", 2, "float32", "int64", tables, store)
        >>> kind = ([folder], "two", "int64", "float32", 2)
        >>> with one_embedding.make_persistent_table_writer(*kind, num_tables=2) as writer:
        ...     for table in range(2):
        ...         writer.write(np.array([7]), np.full([1, 2], 1.0 + table), table=table)
        >>> layer.load_snapshot("two")
        >>> layer(np.array([[7, 7]])).numpy().tolist()
        [[[1.0, 1.0], [2.0, 2.0]]]
    """
    if like is not None and not isinstance(like, PersistentTableReader):
        raise TypeError(
            "`like` must be what make_persistent_table_reader gives. Received: "
            f"like={validation.shown(like)}"
        )
    kind = _Kind.of(
        paths, snapshot_name, key_type, value_type, storage_dim, physical_block_size, layer_name
    )
    if num_tables is not None:
        validation.int_in(num_tables, "num_tables", most=MAX_TABLES)
    wanted = num_tables if like is None else like.num_tables
    if num_tables not in (None, wanted):
        raise ValueError(
            f"`num_tables` must be {wanted}, as `like` has so many tables of rows. Received: "
            f"num_tables={num_tables}"
        )
    return PersistentTableWriter(kind, like, wanted or 1)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The checked arguments of a reader or a writer."""

    path: str
    snapshot_name: str
    key_type: tf.DType
    value_type: tf.DType
    storage_dim: int
    layer_name: str | None

    @classmethod
    def of(
        cls,
        paths: Any,
        snapshot_name: Any,
        key_type: Any,
        value_type: Any,
        storage_dim: Any,
        physical_block_size: Any,
        layer_name: Any,
    ) -> _Kind:
        if not tf.executing_eagerly():
            raise RuntimeError(
                "Persistent tables are read and written in eager execution. Received: a call in a "
                "graph"
            )
        kind = cls(
            path=paths_of(paths, "paths")[0],
            snapshot_name=snapshot_name_of(snapshot_name, "snapshot_name"),
            key_type=validation.dtype_of(key_type, KEY_DTYPES, "key_type"),
            value_type=validation.dtype_of(value_type, VALUE_DTYPES, "value_type"),
            storage_dim=validation.int_in(storage_dim, "storage_dim", most=validation.MAX_DIM),
            layer_name=None if layer_name is None else folder_name(layer_name, "layer_name"),
        )
        block_size_of(physical_block_size)
        return kind

    def folder(self, layer_name: str | None) -> str:
        """The folder of the snapshot."""
        return os.path.join(folder_of_layer(self.path, layer_name), self.snapshot_name)

    def found(self) -> str:
        """The folder that has the snapshot.

        Raises:
            ValueError: If there is no such snapshot, or several layers have a snapshot of this
                name.
        """
        layer = self.layer_name
        if layer is None:
            layers = layers_with(self.path, self.snapshot_name)
            if len(layers) > 1:
                raise ValueError(
                    "`layer_name` must be the layer of the snapshot, as several have one named "
                    f"{self.snapshot_name!r} in {self.path!r}. Received: layer_name=None, "
                    f"with the layers {layers}"
                )
            layer = layers[0] if layers else None
        folder = self.folder(layer)
        if not manifest.exists(folder):
            owner = "" if layer is None else f" of {layer!r}"
            raise ValueError(
                f"`snapshot_name` must be the name of a snapshot{owner} in {self.path!r}. "
                f"Received: snapshot_name={self.snapshot_name!r}"
            )
        return folder

    def check_rows(self, value_type: tf.DType, dim: int, slots: int, where: str) -> None:
        """Refuses rows of another dtype or size.

        Raises:
            ValueError: If they differ. The message names the right argument.
        """
        if value_type != self.value_type:
            raise ValueError(
                f"`value_type` must be {value_type.name}, as rows in {where} have it. Received: "
                f"value_type={self.value_type.name}"
            )
        if dim + slots != self.storage_dim:
            raise ValueError(
                f"`storage_dim` must be {dim + slots}: rows in {where} have {dim} weights and "
                f"{slots} numbers of an optimizer. Received: storage_dim={self.storage_dim}"
            )


class PersistentTableReader:
    """Reads the rows of a snapshot, a block at a time.

    Attributes:
        dim: Number of weights in a row.
        storage_dim: Number of weights and slots in a row.
        num_rows: Number of rows.
        dtype: NumPy dtype of values.
        value_type: Dtype of weights.
        num_tables: Number of tables of rows. The folders of a table count as one table.
        metas: The metadata of each table of rows, for a writer.
        table: The table number of the last block.
    """

    def __init__(self, kind: _Kind) -> None:
        folder = kind.found()
        self._key_type = kind.key_type
        self._name = kind.snapshot_name
        names, self._rows = _opened(folder)
        for rows in self._rows:
            if rows.key_dtype not in (tf.int64, kind.key_type):
                raise ValueError(
                    f"`key_type` must be {rows.key_dtype.name}, as keys in {folder!r} are. "
                    f"Received: key_type={kind.key_type.name}"
                )
            kind.check_rows(rows.value_dtype, rows.dim, rows.slots, repr(folder))
        first = self._rows[0]
        dims = {rows.dim for rows in self._rows}
        if len(dims) > 1:
            raise ValueError(
                "`snapshot_name` must be the name of a snapshot of one kind of rows. Received: "
                f"snapshot_name={kind.snapshot_name!r}, with rows of {sorted(dims)} weights"
            )
        self.dim = first.dim
        self.storage_dim = kind.storage_dim
        self.num_rows = sum(rows.num_rows for rows in self._rows)
        self.value_type = kind.value_type
        self.dtype = _dtype_of_values(kind.value_type, first.slot_dtype, first.slots)
        # Tables with the same name are the folders of one table.
        tables = {name: table for table, name in enumerate(dict.fromkeys(names))}
        self._numbers = [tables[name] for name in names]
        self.num_tables = len(tables)
        self.metas = [self._rows[names.index(name)].meta for name in tables]
        self.table = 0
        self._is_closed = False
        self._blocks = self._all_blocks()

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        if self._is_closed:
            raise ValueError(f"The reader of {self._name!r} is closed.")
        return next(self._blocks)

    def __enter__(self) -> PersistentTableReader:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. The attributes stay valid."""
        self._is_closed = True
        for rows in self._rows:
            rows.close()

    def _all_blocks(self) -> Iterator[Block]:
        for table, rows in zip(self._numbers, self._rows, strict=True):
            for keys, weights, slots in rows.blocks():
                values = weights
                if slots.shape[1]:
                    values = np.concatenate([weights.astype(self.dtype), slots], axis=1)
                for begin in range(0, len(keys), MAX_ROWS_OF_BLOCK):
                    part = slice(begin, begin + MAX_ROWS_OF_BLOCK)
                    self.table = table
                    yield self._keys_of(keys[part]), values[part]

    def _keys_of(self, keys: np.ndarray) -> np.ndarray:
        """Converts stored keys to `key_type`.

        Raises:
            ValueError: If a key does not fit.
        """
        target = self._key_type
        if keys.dtype == target.as_numpy_dtype:
            return keys
        if target == tf.uint64:
            return keys.view(np.uint64)
        outside = (keys < target.min) | (keys > target.max)
        if outside.any():
            raise ValueError(
                f"`key_type` must be int64, to hold the keys of {self._name!r}; those of several "
                f"tables have 64 bits. Received: key_type={target.name}, and a key "
                f"{keys[outside][0]}"
            )
        return keys.astype(target.as_numpy_dtype)


class PersistentTableWriter:
    """Writes rows as a snapshot that a layer can load.

    Args:
        like: A reader of rows of the same dtype and size, with as many tables, or None.
    """

    def __init__(self, kind: _Kind, like: PersistentTableReader | None, num_tables: int) -> None:
        self._kind = kind
        self._dim = kind.storage_dim
        metas: list[tf.Tensor | None] = [None] * num_tables
        if like is not None:
            slots = like.storage_dim - like.dim
            kind.check_rows(like.value_type, like.dim, slots, "`like`")
            self._dim, metas = like.dim, like.metas
        self._slot_dtype = tf.float64 if kind.value_type == tf.float64 else tf.float32
        slots = kind.storage_dim - self._dim
        self._dtype = tf.as_dtype(_dtype_of_values(kind.value_type, self._slot_dtype, slots))
        self._end = ""  # how the writer ended
        self._folder = kind.folder(kind.layer_name)
        self._check_no_base()
        self._number = new_number()
        self._time = next_time(os.path.dirname(self._folder))
        self._rows: list[RowWriter] = []
        try:
            for table, meta in enumerate(metas):
                file_name = name_of(table, self._number)
                self._rows.append(
                    RowWriter(self._folder, file_name, kind.value_type, self._dim, meta)
                )
        # Including an interrupt, after which nothing would remove the files.
        except BaseException:
            self._give_up()
            raise

    def write(self, keys: Any, values: Any, table: int = 0) -> None:
        """Writes rows.

        Args:
            keys: Integers [n] that `key_type` holds; a NumPy array, a tensor of `key_type`, or a
                list.
            values: Floats [n, storage_dim]: weights, then slots.
            table: The number of their table, an int from 0. Default: 0.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If shapes do not fit, a number is too large, there is no such table, or the
                writer has ended.
            tf.errors.OpError: If a file can't be written. The snapshot is then given up.
        """
        kind, owner = self._kind, self._kind.snapshot_name
        self._check_open()
        validation.int_in(table, "table", least=0, most=len(self._rows) - 1)
        ids = validation.tensor_of(keys, kind.key_type, "keys", owner)
        rows = validation.tensor_of(values, self._dtype, "values", owner)
        if ids.shape.rank != 1 or rows.shape.as_list() != [ids.shape[0], kind.storage_dim]:
            raise ValueError(
                f"`keys` and `values` of {owner!r} must be of shapes [n] and [n, "
                f"{kind.storage_dim}]. Received: keys of shape {ids.shape}, values of shape "
                f"{rows.shape}"
            )
        stored = ids.numpy()
        stored = stored.view(np.int64) if kind.key_type == tf.uint64 else stored.astype(np.int64)
        stored, places = _last_of_each(stored)
        array = rows.numpy()[places]
        weights = validation.rounded(array[:, : self._dim], kind.value_type, "values", owner)
        slots = array[:, self._dim :].astype(self._slot_dtype.as_numpy_dtype)
        try:
            self._rows[table].append(stored, weights, slots)
        except BaseException:  # including an interrupt: some rows would be missing
            self._give_up()
            raise

    def close(self) -> None:
        """Puts the snapshot in place. A second call does nothing.

        Raises:
            ValueError: If the snapshot was given up before, or other snapshots build on the
                snapshot that it would replace.
            tf.errors.OpError: If it can't be put in place. Then it is given up.
        """
        if self._end == "closed":
            return
        self._check_open()
        kind = self._kind
        try:
            self._check_no_base()
            written = tuple(self._finished(table) for table in range(len(self._rows)))
            commit(self._folder, SnapshotInfo(kind.snapshot_name, None, self._time, written))
        except BaseException:  # including an interrupt: rows without a manifest are no snapshot
            self._give_up()
            raise
        self._end = "closed"

    def _check_no_base(self) -> None:
        """Refuses to replace a snapshot that other snapshots build on."""
        check_no_base(os.path.dirname(self._folder), self._kind.snapshot_name, "snapshot_name")

    def _finished(self, table: int) -> TableFiles:
        """The finished files of a table."""
        self._rows[table].finish()
        owner = "rows" if self._kind.layer_name is None else self._kind.layer_name
        name = owner if len(self._rows) == 1 else f"{owner}/table_{table}"
        return manifest.files_of(self._folder, name_of(table, self._number), name)

    def __enter__(self) -> PersistentTableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is None:
            self.close()
        elif not self._end:
            self._give_up()

    def _check_open(self) -> None:
        """Raises an error after the end of the writer, because later rows would be lost."""
        if self._end:
            raise ValueError(f"The writer of {self._kind.snapshot_name!r} is {self._end}.")

    def _give_up(self) -> None:
        """Removes the unfinished files."""
        self._end = "given up, as it failed before"
        for rows in self._rows:
            rows.drop()
        give_up(self._folder, self._number)


def _opened(folder: str) -> tuple[list[str], list[RowReader]]:
    """The names and the rows of the tables of a snapshot.

    Raises:
        TypeError: If the dtype of keys or weights is not supported.
        tf.errors.OpError: If a file is damaged or can't be read.
    """
    while True:
        info = manifest.read(folder)
        try:
            rows = [RowReader(folder, files.file_name) for files in info.tables]
            check_chain(folder, info)
            return [files.table for files in info.tables], rows
        except tf.errors.NotFoundError:
            if manifest.read(folder) == info:  # otherwise the snapshot was just replaced: retry
                raise


def _dtype_of_values(value_type: tf.DType, slot_dtype: tf.DType, slots: int) -> np.dtype:
    """The dtype that holds weights and slots in one array."""
    return np.dtype((slot_dtype if slots else value_type).as_numpy_dtype)


def _last_of_each(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
    """Returns the distinct keys, and the index of the last occurrence of each."""
    # Reversed, because np.unique gives the first position of each.
    found, places = np.unique(keys[::-1], return_index=True)
    if len(found) == len(keys):
        return keys, slice(None)
    # In the order in which they were written.
    places = np.sort(len(keys) - 1 - places)
    return keys[places], places

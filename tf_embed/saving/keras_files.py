# SPDX-License-Identifier: Apache-2.0
"""Tables in the files of Keras, .keras and .weights.h5.

Keras gives an object a mapping from names to arrays, its store, to write its state. A table writes
the results of `Table.export` as arrays under the names of `whole_table_ops.Exported`, and its kind
as text. bfloat16 is written as the integers of its bits, which HDF5 supports. String keys are
written as an array of all their bytes and an array of their lengths, so that no byte is lost. A
store also has a checksum of all its arrays, since HDF5 has none. If data is damaged, a load raises
an error and loads nothing.

Keras copies each array that it is given, and its files offer no public way to write a part of one.
So a large array is written as several arrays, blocks of its rows: "slots", "slots.1", "slots.2". A
save then takes an export of the table and a copy of a block. A .keras file is also made in memory,
by Keras.
"""

from __future__ import annotations

import contextlib
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import callers
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.table import redis_restore
from tf_embed.table.table import Table

_ROWS = Exported._fields
_STRING_KEYS = ("key_bytes", "key_lengths")  # in place of "keys"
_KIND = "kind"
_CHECKSUM = "checksum"
# Size of a block. The C library returns a freed copy of this size to the system at once.
BLOCK_BYTES = 2**26
_LATER_BLOCK = re.compile(r"(.+)\.[1-9]\d*")
# The largest ratio of an array's size to its stored data. HDF5's filters compress less.
_MAX_EXPANSION = 2_000
_READ_BYTES = 2**22  # that a check reads at once


def arrays_of(table: Table, prefix: str = "") -> dict[str, Any]:
    """Returns the content of a table, for `write`."""
    arrays = table.export_all()._asdict()
    if table.options.key_dtype == tf.string:
        keys = arrays.pop("keys")
        whole = tf.io.decode_raw(tf.strings.reduce_join(keys), tf.uint8)
        arrays.update(zip(_STRING_KEYS, (whole, tf.strings.length(keys)), strict=True))
    arrays[_KIND] = array_of_text(table.options.kind)
    return {prefix + name: array for name, array in arrays.items()}


def array_of_text(text: str) -> np.ndarray:
    """Returns text as an array for `write`."""
    return np.frombuffer(text.encode(), np.uint8)


def text_of(array: np.ndarray) -> str:
    """Returns the text of an array from `read`."""
    return array.tobytes().decode(errors="replace")


def write(store: Any, arrays: dict[str, Any]) -> None:
    """Writes arrays and their checksum.

    Args:
        arrays: Arrays or tensors by name. The dict is emptied.
    """
    checksum = 0
    for name in sorted(arrays):
        # Removed from the dict, so that each array is freed once it is written.
        array = _array_of(arrays.pop(name))
        checksum = _checksum(checksum, name, array)
        for block_name, block in _blocks_of(name, array):
            store[block_name] = block
    store[_CHECKSUM] = np.array([checksum], np.uint32)


def read(store: Any, owner: str) -> dict[str, np.ndarray]:
    """Reads the arrays that `write` wrote.

    Raises:
        ValueError: If there are no arrays, or they are damaged.
    """
    try:
        arrays = {name: np.asarray(one) for name, one in _datasets_in(store).items()}
    except Exception as error:  # whatever h5py raises
        raise _damaged(owner, f"{type(error).__name__}: {error}") from error
    wanted = arrays.pop(_CHECKSUM, None)
    if not arrays or wanted is None:
        raise ValueError(
            f"The file has no rows for {owner!r}: it has {sorted(arrays)} and no checksum."
            if arrays
            else f"The file has no rows for {owner!r}."
        )
    checksum = 0
    for name, array in arrays.items():
        checksum = _checksum(checksum, name, array)
    if wanted.tolist() != [checksum]:
        raise _damaged(owner, f"the checksum of its arrays is {checksum}, and not {wanted}")
    return arrays


def check(store: Any, owner: str) -> dict[str, Any]:
    """Checks the arrays that `write` wrote, a block at a time.

    Args:
        store: A group of an HDF5 file.

    Returns:
        The arrays by name, which are not in memory: datasets of h5py, or their `Blocks`.

    Raises:
        ValueError: If there are no arrays, or they are damaged.
    """
    arrays = datasets_in(store, owner)
    wanted = arrays.pop(_CHECKSUM, None)
    if wanted is None:
        raise ValueError(f"The file has no checksum for {owner!r}.")
    checksum = 0
    for name, array in arrays.items():
        checksum = zlib.crc32(_head(name, array), checksum)
        for block in _blocks(array):
            checksum = zlib.crc32(np.ascontiguousarray(block).data.cast("B"), checksum)
    if np.asarray(wanted).tolist() != [checksum]:
        raise _damaged(owner, f"the checksum of its arrays is {checksum}, and not {wanted[...]}")
    return arrays


def datasets_in(store: Any, owner: str) -> dict[str, Any]:
    """The arrays in a group of an HDF5 file, by name, which are neither read nor checked.

    Raises:
        ValueError: If an array is far longer than its stored data, or lies in another file.
    """
    try:
        return _datasets_in(store)
    except Exception as error:  # whatever h5py raises
        raise _damaged(owner, f"{type(error).__name__}: {error}") from error


def _datasets_in(store: Any) -> dict[str, Any]:
    """The arrays of a store in the order of their names, which are not read."""
    arrays = {name: _dataset_in(store, name) for name in sorted(store.keys())}
    later = Counter(one.group(1) for one in map(_LATER_BLOCK.fullmatch, arrays) if one)
    for name, count in later.items():
        names = [name, *(f"{name}.{number}" for number in range(1, count + 1))]
        missing = [one for one in names if one not in arrays]
        if missing:
            raise ValueError(f"{missing[0]!r} is missing")
        arrays[name] = Blocks(name, [arrays.pop(one) for one in names])
    return dict(sorted(arrays.items()))


class Blocks:
    """An array that a store has as several arrays, blocks of its rows.

    Args:
        name: Its name.
        blocks: The blocks, which are not read.

    Raises:
        ValueError: If a block does not match the first.
    """

    def __init__(self, name: str, blocks: list[Any]) -> None:
        shapes = [one.shape for one in blocks]
        if not shapes[0] or len({(one.dtype, one.shape[1:]) for one in blocks}) > 1:
            raise ValueError(f"the blocks of {name!r} have the shapes {shapes}")
        self._blocks = blocks
        self.dtype = blocks[0].dtype
        self.shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        self.size = math.prod(self.shape)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Reads consecutive rows."""
        begin, end, _ = rows.indices(self.shape[0])
        found = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        first = 0  # of a block
        for block in self._blocks:
            low, high = max(begin, first), min(end, first + len(block))
            if low < high:
                found[low - begin : high - begin] = block[low - first : high - first]
            first += len(block)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Reads the whole."""
        return self[:].astype(dtype or self.dtype, copy=False)


def _blocks(array: Any) -> Iterator[np.ndarray]:
    """Reads an array, a block at a time."""
    if not array.size:
        return
    if not array.shape:
        yield array[()]
        return
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    length = max(1, _READ_BYTES // row_bytes)
    for begin in range(0, array.shape[0], length):
        yield array[begin : begin + length]


def import_into(table: Table, arrays: dict[str, np.ndarray], prefix: str = "") -> None:
    """Replaces the content of a table by the saved content.

    Args:
        table: The table. It may have another number of shards.
        arrays: The result of `read`. The table's arrays are removed from it.

    Raises:
        ValueError: If there is no table, or it has another dim or dtype. Then nothing is changed.
    """
    import_all([table], arrays, [prefix])


def import_all(
    tables: Sequence[Table], arrays: dict[str, np.ndarray], prefixes: Sequence[str]
) -> None:
    """The same as `import_into`, for several tables. Changes all tables or none.

    Args:
        arrays: The result of `read`. The tables' arrays are removed from it.

    Raises:
        ValueError: As `import_into`.
    """
    for table, prefix in zip(tables, prefixes, strict=True):
        _check_kind(table, arrays, prefix)
    for table, prefix in zip(tables, prefixes, strict=True):
        if table.options.key_dtype == tf.string:
            whole, lengths = (arrays.pop(prefix + one) for one in _STRING_KEYS)
            strings = _strings_of(whole, lengths, table.options.name)
            arrays[prefix + "keys"] = strings
        rows = {one: _tensor_of(arrays.pop(prefix + one), table.options, one) for one in _ROWS}
        redis_restore.restore(table, Exported(**rows))


def _check_kind(table: Table, arrays: dict[str, np.ndarray], prefix: str) -> None:
    name, options = table.options.name, table.options
    of_strings = options.key_dtype == tf.string
    wanted = (*(_STRING_KEYS if of_strings else _ROWS[:1]), *_ROWS[1:], _KIND)
    missing = [one for one in wanted if prefix + one not in arrays]
    if _KIND not in missing:
        kind = text_of(arrays.pop(prefix + _KIND))
        if kind != options.kind:
            raise ValueError(
                f"{name!r} can't be loaded: it has {options.kind}, and the file has {kind}."
            )
    if missing:
        raise ValueError(f"The file has no rows for {name!r}: {', '.join(missing)} missing.")


def save(table: Table, store: Any, beside: Mapping[str, Any] | None = None) -> None:
    """Writes a table, and arrays beside it, into a separate store."""
    write(store, {**arrays_of(table), **(beside or {})})


def load(table: Table, store: Any) -> dict[str, np.ndarray]:
    """Replaces the content of a table by the result of `save`; returns the arrays beside it.

    Raises:
        ValueError: If the file has no table, a table of another dim or dtype, or damaged data. Then
            the table is unchanged.
    """
    arrays = read(store, table.options.name)
    import_into(table, arrays)
    return arrays


def _array_of(value: Any) -> np.ndarray:
    """An array or eager tensor as an array that HDF5 accepts; not a copy."""
    if tf.is_tensor(value):
        value = tf.bitcast(value, tf.uint16) if value.dtype == tf.bfloat16 else value
        return np.asarray(memoryview(value))
    return np.asarray(value)


def _dataset_in(store: Any, name: str) -> Any:
    """An array of a store that is not read, whose data must be present before memory is allocated.

    HDF5 returns zeros for elements that the shape of an array has and the file does not hold.

    Raises:
        ValueError: If the array is far longer than its stored data, or lies in another file.
    """
    value = store[name]
    if hasattr(value, "id") and hasattr(value.id, "get_storage_size"):  # an h5py.Dataset
        # HDF5 would open any file of this machine that a file names.
        group = getattr(store, "group", store)
        if value.external or value.is_virtual or value.file.filename != group.file.filename:
            raise ValueError(f"{name!r} is an array of another file")
        size, stored = math.prod(value.shape) * value.dtype.itemsize, value.id.get_storage_size()
        if size > _MAX_EXPANSION * stored:
            raise ValueError(f"{name!r} is of {size} bytes, and {stored} are in the file")
    return value


def _blocks_of(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the names and the arrays by which a store gets an array."""
    if array.nbytes <= BLOCK_BYTES:
        yield name, array
        return
    length = max(1, BLOCK_BYTES * len(array) // array.nbytes)
    for number, begin in enumerate(range(0, len(array), length)):
        yield (f"{name}.{number}" if number else name), array[begin : begin + length]


def _strings_of(whole: np.ndarray, lengths: np.ndarray, owner: str) -> np.ndarray:
    """Strings from their concatenated bytes and their lengths.

    Raises:
        ValueError: If the lengths do not add up to the bytes.
    """
    if np.any(lengths < 0) or lengths.sum(dtype=np.uint64) != whole.size:
        raise _damaged(owner, f"its strings are of {whole.size} bytes, and not as long together")
    joined, strings, begin = whole.tobytes(), np.empty(lengths.shape, object), 0
    for i, length in enumerate(lengths.tolist()):
        strings[i] = joined[begin : begin + length]
        begin += length
    return strings


def _tensor_of(array: np.ndarray, options: Any, name: str) -> tf.Tensor:
    if name == "values" and options.value_dtype == tf.bfloat16:
        array = array.view(tf.bfloat16.as_numpy_dtype)
    if array.dtype == object:
        return tf.constant(array, tf.string)
    with tf.device("/CPU:0"):
        return tf.raw_ops.Identity(input=array)  # tf.constant copies an array twice


class LoadAttempts:
    """The errors of Keras's attempts to load a layer.

    Keras tries again at each other place of the layer, although the file has no data of it there,
    and reports only the last error.
    """

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextlib.contextmanager
    def attempt(self, store: Any) -> Iterator[None]:
        """Runs a load from a store.

        Raises:
            ValueError: If the store is empty and an earlier load failed. It is the error of that
                load.
        """
        try:
            yield
        except Exception as error:
            if self._first is not None and not store.keys():
                raise ValueError(f"{error} Before that: {self._first}") from self._first
            self._first = error
            raise
        self._first = None


def _checksum(checksum: int, name: str, array: np.ndarray) -> int:
    """Returns a CRC-32 continued over an array, its name, dtype and shape."""
    checksum = zlib.crc32(_head(name, array), checksum)
    if not array.size:
        return checksum
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B"), checksum)


def _head(name: str, array: Any) -> bytes:
    """The bytes before the elements of an array, for its checksum."""
    return f"{name} {array.dtype.str} {array.shape}".encode()


def _damaged(owner: str, how: str) -> ValueError:
    return ValueError(f"What the file has of {owner!r} is damaged, and was not loaded: {how}.")


def refuse_old_format(layer_name: str) -> None:
    """Raises an error if Keras is writing a model to an .h5 file, its old format.

    That format only has variables, so the rows would be lost silently. Keras's call for a layer's
    config does not show the format, so this function inspects the callers.

    Raises:
        ValueError: If Keras is writing an .h5 file.
    """
    if callers.calls_function("save_model_to_hdf5"):
        raise ValueError(
            f"The rows of {layer_name!r} can't be saved in Keras's old .h5 format: save the model "
            "as a .keras file, or its weights as a .weights.h5 file."
        )

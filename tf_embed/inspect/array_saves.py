# SPDX-License-Identifier: Apache-2.0
"""Saves that consist of arrays or tensors: Keras files, checkpoints and SavedModels."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tf_embed.inspect.saves import (
    BLOCK_BYTES,
    InspectError,
    Save,
    SavedTable,
    file_size,
    folder_size,
    reading,
    time_of,
)
from tf_embed.saving import guarded_files, keras_files
from tf_embed.saving.row_streams import Block, statistics_of
from tf_embed.table.policies import STATISTICS
from tf_embed.table.table_meta import TableMeta

MEMBER = "model.weights.h5"  # in a .keras file
_KIND = re.compile(r"key (\w+), value (\w+), dim (\d+)")
_OURS = ("checksum", "kind", "meta", "policy", "statistics", "class")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_MOST_NUMBERS = 2**20  # of a small array, such as the numbers of a table


def keras_file(path: str) -> Save:
    """A .keras file, a .weights.h5 file, or the folder of a model that was saved unzipped."""
    file = os.path.join(path, MEMBER) if os.path.isdir(path) else path
    with reading(path), _opened(file) as weights:
        tables = tuple(
            _keras_table(path, file, place, prefix, weights[place])
            for place in _stores_in(weights)
            for prefix in _prefixes(weights[place])
        )
    return Save(
        kind="Keras model" if file != path or zipfile.is_zipfile(path) else "Keras weights",
        path=path,
        time=time_of(file),
        bytes=folder_size(path) if os.path.isdir(path) else file_size(path),
        tables=tables,
        notes=("Dense weights have no checksum in a .weights.h5 file.",)
        if not zipfile.is_zipfile(file)
        else (),
        checks=(lambda: _check_archive(file), lambda: _check_stores(file)),
    )


def _check_archive(path: str) -> None:
    """Checks the checksums of a .keras file's members."""
    if zipfile.is_zipfile(path):
        with reading(path), zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise InspectError(f"'{path}' is damaged: the checksum of {damaged!r} is wrong.")


def _check_stores(path: str) -> None:
    """Checks the checksums of all stores of tf_embed, also of optimizers."""
    with reading(path), _opened(path) as weights:
        for place in _stores_in(weights):
            keras_files.check(weights[place], place)


class _Part(io.RawIOBase):
    """A part of a file, to read a member of an archive in place.

    Args:
        file: The file.
        begin: The offset of the part.
        size: Its size.
    """

    def __init__(self, file: Any, begin: int, size: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it can seek."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the place of the next read."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads at most as many bytes as the buffer has."""
        self._file.seek(self._begin + self._at)
        count = max(0, min(len(buffer), self._size - self._at))
        done: int = self._file.readinto(memoryview(buffer)[:count])
        self._at += done
        return done


@contextlib.contextmanager
def _opened(path: str) -> Iterator[h5py.File]:
    """Opens the weights of a Keras file."""
    guarded_files.check_regular(path)
    with contextlib.ExitStack() as stack:
        if not zipfile.is_zipfile(path):
            yield stack.enter_context(h5py.File(path, "r"))
            return
        archive = stack.enter_context(zipfile.ZipFile(path))
        member = archive.getinfo(MEMBER)
        file = stack.enter_context(archive.open(member))
        if member.compress_type == zipfile.ZIP_STORED:
            # A seek backwards in a member reads it again from its beginning.
            whole = stack.enter_context(open(path, "rb"))
            whole.seek(member.header_offset + 26)  # the lengths of its name and extra field
            lengths = np.frombuffer(whole.read(4), "<u2").astype(int)
            begin = member.header_offset + 30 + int(lengths.sum())
            file = _Part(whole, begin, member.file_size)  # type: ignore[assignment]
        yield stack.enter_context(h5py.File(file, "r"))


def _stores_in(weights: h5py.File) -> list[str]:
    """The groups that tf_embed wrote; one without a checksum is damaged."""
    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        # Several names, for a damaged name must not hide a table.
        if isinstance(item, h5py.Group) and sum(one.endswith(_OURS) for one in item) > 1:
            found.append(name)

    weights.visititems(visit)
    return sorted(found)


def _prefixes(store: Any) -> list[str]:
    """The beginnings of the names of the arrays of each table in a store."""
    return sorted(
        (name.removesuffix("kind") for name in store if name.endswith("kind")),
        key=lambda prefix: [int(one) for one in re.findall(r"\d+", prefix)],
    )


def _keras_table(path: str, file: str, place: str, prefix: str, store: Any) -> SavedTable:
    name = place.removesuffix("/vars") + (f"/{prefix.rstrip('_')}" if prefix else "")
    arrays = keras_files.datasets_in(store, name)
    text = keras_files.text_of(_small(arrays[f"{prefix}kind"]))
    step = int(arrays["step"][()]) if "step" in arrays and arrays["step"].shape == () else None

    @contextlib.contextmanager
    def opened() -> Iterator[Mapping[str, Any]]:
        with _opened(file) as weights:
            checked = keras_files.check(weights[place], name)
            yield {
                one.removeprefix(prefix): array
                for one, array in checked.items()
                if one.startswith(prefix)
            }

    mine = {
        one.removeprefix(prefix): array for one, array in arrays.items() if one.startswith(prefix)
    }
    return _table_of(path, name, text, mine, _small, opened, step)


def _small(array: Any) -> np.ndarray:
    """Reads an array that can't be large."""
    if array.size > _MOST_NUMBERS:
        raise ValueError(f"an array of a few numbers has {array.size}")
    return np.asarray(array)


def _table_of(
    path: str,
    name: str,
    kind: str,
    arrays: Mapping[str, Any],
    read_small: Callable[[Any], np.ndarray],
    opened: Callable[[], contextlib.AbstractContextManager[Mapping[str, Any]]],
    step: int | None = None,
) -> SavedTable:
    """A table of the arrays of an export.

    Args:
        kind: The kind of its rows, as it is saved.
        arrays: Its arrays, which have at least a shape and a dtype.
        read_small: Reads a small array.
        opened: Opens the arrays for a reader of all rows.
    """
    found = _KIND.fullmatch(kind)
    if found is None:
        raise ValueError(f"{name!r} has a kind that is not known: {kind[:200]!r}")
    key_dtype, value_dtype, dim = found.group(1), found.group(2), int(found.group(3))
    meta = TableMeta.of(read_small(arrays["meta"]))
    policy = read_small(arrays["policy"])
    rows, slots = (int(one) for one in arrays["slots"].shape)
    if arrays["values"].shape != (rows, dim) or meta.dim != dim or len(policy) < 3:
        raise ValueError(f"the arrays of {name!r} have shapes that do not fit its kind, {kind}")
    bits = int(policy[2])

    def read() -> Iterator[Block]:
        with reading(path), opened() as whole:
            yield from _blocks(whole, value_dtype, bits)

    return SavedTable(
        name=name,
        rows=rows,
        dim=dim,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        slots=slots,
        rule=meta.rule,
        step=int(policy[1]) or step,
        statistics=tuple(one for one, bit in STATISTICS.items() if bits & bit),
        bytes=sum(int(np.prod(one.shape)) * one.dtype.itemsize for one in arrays.values()),
        read=read,
    )


def _blocks(arrays: Mapping[str, Any], value_dtype: str, bits: int) -> Iterator[Block]:
    """The rows of an export, a block at a time."""
    values, slots, words = (arrays[one] for one in ("values", "slots", "statistics"))
    row_bytes = 8 + values.dtype.itemsize * values.shape[1] + 8 * words.shape[1]
    row_bytes += slots.dtype.itemsize * slots.shape[1]
    length, string_end = max(1, BLOCK_BYTES // row_bytes), 0
    for begin in range(0, values.shape[0], length):
        some = slice(begin, begin + length)
        if "keys" in arrays:
            keys = np.asarray(arrays["keys"][some])
        else:
            lengths = np.asarray(arrays["key_lengths"][some])
            ends = string_end + np.cumsum(lengths)
            joined = np.asarray(arrays["key_bytes"][string_end : int(ends[-1])]).tobytes()
            begins = ends - lengths - string_end
            keys = np.empty(len(lengths), object)
            keys[:] = [
                joined[one : one + size]
                for one, size in zip(begins.tolist(), lengths.tolist(), strict=True)
            ]
            string_end = int(ends[-1])
        weights = np.asarray(values[some])
        if value_dtype == "bfloat16" and weights.dtype == np.uint16:
            weights = weights.view(tf.bfloat16.as_numpy_dtype)
        found = statistics_of(np.asarray(words[some]), bits)
        yield Block(keys, weights, np.asarray(slots[some]), found)


class _Tensors:
    """The tensors of a checkpoint.

    Args:
        prefix: The checkpoint.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        for file in _files_of(prefix):
            guarded_files.check_regular(file)
        self._reader = tf.train.load_checkpoint(prefix)
        self.shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
        self.dtypes: dict[str, tf.DType] = self._reader.get_variable_to_dtype_map()

    def read(self, name: str) -> np.ndarray:
        """Reads a tensor as a whole, and checks its checksum."""
        return np.asarray(self._reader.get_tensor(name))

    def described(self, name: str) -> _Described:
        """The shape and dtype of a tensor."""
        return _Described(name, tuple(self.shapes[name]), _numpy_dtype(self.dtypes[name]))

    def check(self) -> None:
        """Reads all tensors, one at a time."""
        for name in sorted(self.shapes):
            with reading(self.prefix):
                self.read(name)


class _Described:
    """A tensor that is not read."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.size = int(np.prod(shape))


def _numpy_dtype(dtype: tf.DType) -> np.dtype:
    return np.dtype(object if dtype == tf.string else dtype.as_numpy_dtype)


def checkpoint(prefix: str) -> Save:
    """A tf.train.Checkpoint."""
    with reading(prefix):
        tensors = _Tensors(prefix)
        tables = tuple(_tensor_tables(tensors))
    return Save(
        kind="checkpoint",
        path=prefix,
        time=time_of(f"{prefix}.index"),
        bytes=sum(map(file_size, _files_of(prefix))),
        tables=tables,
        checks=(tensors.check,),
    )


def saved_model(path: str) -> Save:
    """A SavedModel, of `model.export` or of `export_static`."""
    prefix = os.path.join(path, "variables", "variables")
    with reading(prefix):
        tensors = _Tensors(prefix)
        tables = (*_tensor_tables(tensors), *_static_tables(tensors))
    return Save(
        kind="SavedModel",
        path=path,
        time=time_of(os.path.join(path, "saved_model.pb")),
        bytes=folder_size(path),
        tables=tables,
        notes=(
            "'saved_model.pb' has no checksum.",
            *(
                f"{table.name}: int8 rows are shown as they are stored. Quantized rows end with "
                "the bytes of their scale and bias."
                for table in tables
                if table.value_dtype == "int8"
            ),
        ),
        checks=(tensors.check,),
    )


def _files_of(prefix: str) -> list[str]:
    return [f"{prefix}.index", *sorted(tf.io.gfile.glob(f"{prefix}.data-*"))]


def _tensor_tables(tensors: _Tensors) -> Iterator[SavedTable]:
    """The tables that a checkpoint has as the results of an export."""
    end = "/.ATTRIBUTES/values"
    for name in sorted(tensors.shapes):
        place = name.removesuffix(end)
        parts = {
            one: f"{place}/.ATTRIBUTES/{one}"
            for one in ("keys", "values", "slots", "meta", "statistics", "policy")
        }
        if not name.endswith(end) or not tensors.shapes.keys() >= set(parts.values()):
            continue
        arrays = {one: tensors.described(part) for one, part in parts.items()}
        dtypes = [tensors.dtypes[parts[one]].name for one in ("keys", "values")]
        dim = arrays["values"].shape[1] if len(arrays["values"].shape) == 2 else 0

        @contextlib.contextmanager
        def opened(parts: dict[str, str] = parts) -> Iterator[Mapping[str, Any]]:
            yield {one: tensors.read(part) for one, part in parts.items()}

        yield _table_of(
            tensors.prefix,
            place,
            f"key {dtypes[0]}, value {dtypes[1]}, dim {dim}",
            arrays,
            lambda one: _small(tensors.read(one.name)),
            opened,
        )


def _static_tables(tensors: _Tensors) -> Iterator[SavedTable]:
    """The tables in the variables of `export_static`."""
    for name in sorted(tensors.shapes):
        found = re.fullmatch(rf"(tables/\d+)/rows{_VALUE}", name)
        keys_name = f"{found.group(1)}/keys{_VALUE}" if found else ""
        if found is None or keys_name not in tensors.shapes:
            continue
        keys, rows = tensors.described(keys_name), tensors.described(name)
        if len(rows.shape) != 2 or rows.shape[0] != keys.size + 1:
            raise ValueError(f"{name!r} has another number of rows than of keys")

        def read(keys: _Described = keys, rows: _Described = rows) -> Iterator[Block]:
            with reading(tensors.prefix):
                yield from _static_blocks(tensors, keys, rows)

        yield SavedTable(
            name=found.group(1),
            rows=keys.size,
            dim=rows.shape[1],
            key_dtype=tensors.dtypes[keys_name].name,
            value_dtype="float16" if rows.dtype == np.int16 else rows.dtype.name,
            slots=0,
            rule="",
            step=None,
            statistics=(),
            bytes=sum(one.size * one.dtype.itemsize for one in (keys, rows)),
            read=read,
        )


def _static_blocks(tensors: _Tensors, keys: _Described, rows: _Described) -> Iterator[Block]:
    """The rows of a static export, whose variables are stored in slices."""
    whole = {one: tensors.read(one.name) for one in (keys, rows) if one.dtype == object}
    row_bytes = 8 + rows.dtype.itemsize * rows.shape[1]
    length = max(1, BLOCK_BYTES // row_bytes)

    def part(of: _Described, begin: int, count: int) -> np.ndarray:
        if of in whole:
            return whole[of][begin : begin + count]
        place = ":".join([f"{begin},{count}", *("-" for _ in of.shape[1:])])
        with tf.device("/CPU:0"):
            read = tf.raw_ops.RestoreV2(
                prefix=tensors.prefix,
                tensor_names=[of.name],
                shape_and_slices=[" ".join([*map(str, of.shape), place])],
                dtypes=[tensors.dtypes[of.name]],
            )
        return np.asarray(read[0])

    for begin in range(0, keys.size, length):
        count = min(length, keys.size - begin)
        # The first row is of absent keys.
        weights = part(rows, begin + 1, count)
        if weights.dtype == np.int16:  # the bits of float16, which TensorFlow reads slower
            weights = weights.view(np.float16)
        yield Block(part(keys, begin, count), weights, np.zeros([count, 0], np.float32), {})

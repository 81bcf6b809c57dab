# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of training with parameter servers, for the rows that servers have not kept.

A checkpoint is a snapshot of all tables and a separate file with the dense variables and the
progress of training. That file is written first, so a checkpoint is complete once its snapshot is.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tf_embed.ops import snapshot_ops
from tf_embed.saving import guarded_files
from tf_embed.sharded.server_table import ServerTable
from tf_embed.sharded.servers import Servers
from tf_embed.snapshots import Snapshots, manifest
from tf_embed.snapshots.loading import Part, load_parts
from tf_embed.snapshots.sources import tables_in
from tf_embed.table.collective_calls import OneProcess
from tf_embed.variable.anchor import Anchor

_DENSE = "dense"  # the folder of the files of dense variables
_PREFIX = "step_"
_FILE = re.compile(rf"{_PREFIX}\d{{12,}}\.npz")
_ASIDE = snapshot_ops.aside_of(_FILE.pattern)
_LAST_WORD = re.compile(r"([A-Za-z]+)[\W\d_]*$")
_MOST_FRAME_BYTES = 2**16  # per array in the file, without the array's own data
_MOST_TIMES = 8  # maximum size of the file, in sizes of the present dense variables


@dataclasses.dataclass
class TrainingState:
    """The progress of training.

    Attributes:
        steps: Number of completed steps.
        epoch: Number of completed epochs.
        steps_of_epoch: Number of completed steps in the current epoch.
        batch: Number of batches taken in the current pass over the dataset. An epoch of
            `steps_per_epoch` steps may end in the middle of a pass, or have several.
    """

    steps: int = 0
    epoch: int = 0
    steps_of_epoch: int = 0
    batch: int = 0


@dataclasses.dataclass(frozen=True)
class ServerCheckpoints:
    """Checkpoints of a model on parameter servers."""

    folder: str  # shared by all processes
    model: keras.Model
    servers: Servers
    keep: int  # number of checkpoints

    def save(self, state: TrainingState) -> None:
        """Saves the tables, the dense variables and `state`.

        REQUIRES: no step is running.

        Raises:
            tf.errors.OpError: If the checkpoint can't be written. Earlier checkpoints are kept.
        """
        name = f"{_PREFIX}{state.steps:012d}"
        folder = os.path.join(self.folder, _DENSE)
        tf.io.gfile.makedirs(folder)
        contents = io.BytesIO()
        # Serialized as tensors, because NumPy's files have no bfloat16.
        dense = self._dense()
        values = [np.asarray(tf.io.serialize_tensor(one.value)) for one in dense]
        arrays: dict[str, Any] = {
            f"value_{i}": np.frombuffer(one.item(), np.uint8) for i, one in enumerate(values)
        }
        arrays["optimizer"] = np.asarray(self._places_of_optimizer(dense), np.int64)
        arrays["kind"] = np.asarray(_kind_of(self.model.optimizer))
        np.savez(contents, state=json.dumps(dataclasses.asdict(state)), **arrays)
        snapshot_ops.put_file(folder, f"{name}.npz", contents.getvalue())
        snapshots = self._snapshots()
        # Without tables, the file of dense variables is the whole checkpoint.
        if snapshots is None:
            self._remove_dense(keep=self._names()[-self.keep :])
            return
        snapshots.save(name)
        snapshots.keep(self.keep)
        # By the names of folders, because a damaged checkpoint must not end the training.
        self._remove_dense(keep=manifest.names_in(self.folder))

    def restore(self) -> TrainingState | None:
        """Loads the newest checkpoint, with the rows that servers have not kept.

        A checkpoint is left out, with a warning, if the manifest of its tables is damaged.

        If the checkpoint is of another optimizer, the state of the model's optimizer is
        re-initialized, as if the model had been compiled again.

        Returns:
            The progress of training, or None if there is no checkpoint.

        Raises:
            RuntimeError: If a server has lost its rows, and there is no checkpoint.
            tf.errors.OpError: If the checkpoint is damaged, or all are left out.
        """
        snapshots = self._snapshots()
        if snapshots is None:
            name = max(self._names(), default=None)
        else:
            name = snapshots.latest()
        if name is None:
            self.check_rows(self.model, self.servers)
            return None
        state, read = self._read(name)
        tables = _tables_of(self.model)
        # Rows that servers have kept are newer than the checkpoint.
        lost = [_lost_parts(table) for table in tables]
        if any(lost):
            self._load_rows(name, tables, lost)
        for variable, value in read:
            variable.assign(value)
        return state

    def _load_rows(self, name: str, tables: list[ServerTable], lost: list[list[int]]) -> None:
        """Loads the parts of each table that are lost."""
        folder = os.path.join(self.folder, name)
        info = manifest.read(folder)
        if len(info.tables) != len(tables):
            raise ValueError(
                f"The checkpoint in {folder!r} must have as many tables as the model, "
                f"{len(tables)}. Received: {len(info.tables)}"
            )
        parts = [
            Part(table.parts[number], saved)
            for table, saved, numbers in zip(tables, info.tables, lost, strict=True)
            for number in numbers
        ]
        for part in parts:
            part.table.clear()  # an earlier chief may have died in the middle of the load
        load_parts(folder, info, parts, OneProcess())

    @staticmethod
    def check_rows(model: keras.Model, servers: Servers) -> None:
        """Refuses to continue without a checkpoint if some servers have rows and others lost them.

        Raises:
            RuntimeError: If only some servers have lost their rows.
        """
        for table in _tables_of(model):
            lost = _lost_parts(table)
            if 0 < len(lost) < servers.count:
                raise RuntimeError(
                    f"The servers ps {', '.join(map(str, lost))} have lost their rows of the run "
                    f"{servers.run_id!r}, and there is no checkpoint with them: begin a new run, "
                    "with another `run_id`."
                )

    # Helpers.

    def _snapshots(self) -> Snapshots | None:
        tables = _tables_of(self.model)
        return Snapshots(self.folder, self.model) if tables else None

    def _dense(self) -> list[Any]:
        """Returns the dense variables in the model's order, followed by optimizer variables."""
        anchors = [one for one in self.model.variables if isinstance(one, Anchor)]
        found = list(self.model.variables)
        optimizers = [self.model.optimizer]
        optimizers += [one.own_trainer.optimizer for one in anchors if one.own_trainer is not None]
        for optimizer in optimizers:
            found += optimizer.variables
        kept = {id(one): one for one in found if not isinstance(one, Anchor)}
        return list(kept.values())

    def _places_of_optimizer(self, dense: Sequence[Any]) -> list[int]:
        """Returns the indices of the model's optimizer variables in the result of `_dense`."""
        numbers = {id(one) for one in self.model.optimizer.variables}
        return [i for i, one in enumerate(dense) if id(one) in numbers]

    def _names(self) -> list[str]:
        folder = os.path.join(self.folder, _DENSE)
        if not tf.io.gfile.isdir(folder):
            return []
        files = sorted(tf.io.gfile.listdir(folder))
        # Skip other names: a chief that was killed may have left an unfinished file.
        return [one.removesuffix(".npz") for one in files if _FILE.fullmatch(one)]

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, _DENSE, f"{name}.npz")

    def _read(self, name: str) -> tuple[TrainingState, list[tuple[Any, tf.Tensor]]]:
        """Returns the progress of training, and pairs of a dense variable and its value."""
        path, dense = self._path(name), self._dense()
        try:
            contents = _arrays_in(guarded_files.read(path, _most_bytes(dense)))
            saved = json.loads(str(contents.pop("state")))
            # Earlier versions did not save `batch`: they began each pass with an epoch.
            saved.setdefault("batch", saved["steps_of_epoch"])
            state = TrainingState(**saved)
            mine = self._places_of_optimizer(dense)
            # Nor `optimizer`: they refused a checkpoint of another optimizer.
            theirs = contents.pop("optimizer", np.asarray(mine)).ravel().tolist()
            # Nor `kind`: they only compared shapes.
            my_kind = _kind_of(self.model.optimizer)
            kind = str(contents.pop("kind", my_kind))
            places = list(range(len(contents)))
            # A new chief is at the first `compile` of its program, and the checkpoint may be of a
            # later `compile`. Slots of another meaning may have equal shapes.
            is_other = len(places) - len(theirs) == len(dense) - len(mine)
            if is_other:
                saved_shapes = [_shape_of(contents[f"value_{i}"].tobytes()) for i in theirs]
                is_other = saved_shapes != [dense[i].shape for i in mine] or kind != my_kind
            if is_other:
                places = [i for i in places if i not in set(theirs)]
                dense = [one for i, one in enumerate(dense) if i not in set(mine)]
            if len(places) != len(dense):
                raise ValueError(
                    f"The checkpoint {path!r} must have as many dense variables as the model, "
                    f"{len(dense)}. Received: {len(places)}"
                )
            values = []
            for i, variable in zip(places, dense, strict=True):
                serialized = contents[f"value_{i}"].tobytes()
                shape = _shape_of(serialized)
                if shape != variable.shape:
                    raise ValueError(
                        f"The checkpoint {path!r} must have a value of shape {variable.shape} for "
                        f"{variable.path!r}. Received: shape {shape}"
                    )
                value = tf.io.parse_tensor(serialized, tf.as_dtype(variable.dtype))
                values.append((variable, value))
        except (zipfile.BadZipFile, KeyError, EOFError, _DamagedError) as error:
            raise tf.errors.DataLossError(None, None, f"'{path}' is damaged: {error}") from error
        if is_other:
            # The weights, which matter, are restored. In Keras, a new optimizer also starts afresh.
            logging.warning(
                "The checkpoint %r was written with another optimizer than %r, whose variables "
                "begin anew: those of the model alone are restored.",
                path,
                self.model.optimizer.name,
            )
        return state, values

    def _remove_dense(self, keep: Sequence[str]) -> None:
        for name in self._names():
            if name not in keep:
                tf.io.gfile.remove(self._path(name))
        folder = os.path.join(self.folder, _DENSE)
        for name in filter(_ASIDE.fullmatch, tf.io.gfile.listdir(folder)):
            tf.io.gfile.remove(os.path.join(folder, name))


class _DamagedError(Exception):
    """The contents of a file are not in the format that `save` writes."""


def _kind_of(optimizer: Any) -> str:
    """Returns the optimizer's class and the kinds of its variables, such as "momentum"."""
    names = [one.name for one in optimizer.variables]
    # The names begin with the model variables' names, which a later program may renumber.
    kinds = [found.group(1) for found in map(_LAST_WORD.search, names) if found]
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return " ".join([type(optimizer).__name__, *dict.fromkeys(kinds)])


def _most_bytes(dense: Sequence[Any]) -> int:
    """Returns the maximum size of a file of dense variables."""
    sizes = [math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in dense]
    # Another optimizer may have more variables for each model variable.
    return _MOST_TIMES * (sum(sizes) + _MOST_FRAME_BYTES * (len(dense) + 2))


def _arrays_in(contents: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of a file that `np.savez` has written. No array is longer than the file.

    Raises:
        _DamagedError: If an array is compressed, or its header claims more data than the file has.
    """
    arrays: dict[str, np.ndarray] = {}
    # np.load would allocate memory for any shape that a damaged file declares.
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(contents):
                raise _DamagedError(f"{entry.filename!r} is compressed, or has a wrong length")
            stream = io.BytesIO(archive.read(entry))
            try:
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise ValueError("another version")
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            except ValueError as error:
                raise _DamagedError(f"{entry.filename!r} is no array: {error}") from error
            body = stream.read()
            if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(body):
                raise _DamagedError(f"{entry.filename!r} has a wrong length")
            name = entry.filename.removesuffix(".npy")
            arrays[name] = np.frombuffer(body, dtype).reshape(shape)
    return arrays


def _shape_of(serialized: bytes) -> tf.TensorShape:
    """Returns the declared shape of a serialized tensor, without allocating its memory.

    Raises:
        _DamagedError: If `serialized` is not a tensor.
    """
    try:
        message = type(tf.make_tensor_proto(0)).FromString(serialized)
        return tf.TensorShape(message.tensor_shape)
    except Exception as error:  # of protocol buffers, whose class differs between versions
        raise _DamagedError(f"a value is no tensor: {error}") from error


def keep_rows(model: keras.Model) -> None:
    """Makes the servers keep the rows of a model's tables until the servers end."""
    for table in _tables_of(model):
        for part in table.parts:
            part.keep()


def _lost_parts(table: ServerTable) -> list[int]:
    """Returns the numbers of servers that have not kept the rows of a table."""
    return [number for number, part in enumerate(table.parts) if not part.is_kept]


def _tables_of(model: keras.Model) -> list[ServerTable]:
    """Returns the tables on servers. Tables of this process are not shared by workers."""
    tables: list[Any] = tables_in([model])
    return [table for table in tables if table.spread.group is not None]

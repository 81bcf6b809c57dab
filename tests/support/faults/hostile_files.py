# SPDX-License-Identifier: Apache-2.0
"""Reads files that are far too long, are pipes, or claim more than they hold, with little memory.

This is a separate program, because it bounds the memory of its process, and a read of a pipe could
last forever. It prints a JSON list of [case, file, class of the error, message].
"""

from __future__ import annotations

import functools
import io
import json
import os
import pathlib
import resource
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator

import h5py
import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed.distributed.server_checkpoints import ServerCheckpoints, TrainingState
from tf_embed.saving import keras_files
from tf_embed.serving import Follower, Publisher

MOST_BYTES = 2**29  # more than the process has before the first case
LENGTH = 2**40
Case = tuple[str, pathlib.Path, Callable[[], object]]


def filled() -> tf_embed.Variable:
    v = tf_embed.Variable(dim=2, name="v")
    v.upsert([1, 2], np.ones([2, 2]))
    return v


def dense() -> keras.Model:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)  # XLA does not know the emulated GPU
    return model


def saved_files(path: pathlib.Path) -> Iterator[tuple[pathlib.Path, Callable[[], object]]]:
    """Each file of each of tf_embed's formats, and a call that reads it."""
    files = path / "files"
    filled().save_rows(files)
    for file in files.iterdir():
        yield file, lambda: filled().load_rows(files)
    tf_embed.Snapshots(path / "snapshots", filled()).save("s")
    for file in (path / "snapshots" / "s").iterdir():
        v = tf_embed.Variable(dim=2, name="v")
        yield file, functools.partial(tf_embed.Snapshots(path / "snapshots", v).load, "s")
    model = dense()
    Publisher([filled(), model], path / "published").publish()
    for file in (path / "published" / "publication-0000000001").iterdir():
        v = tf_embed.Variable(dim=2, name="v")
        yield file, Follower([v, model], path / "published").update
    backup = tf_embed.callbacks.BackupAndRestore(path / "backups", delete_checkpoint=False)
    fit = {"x": np.ones([2, 2]), "y": np.ones([2]), "verbose": 0, "callbacks": [backup]}
    model.fit(**fit)
    yield path / "backups" / "current", lambda: model.fit(**fit)
    checkpoints = server_checkpoints(path, model)
    (file,) = (path / "servers" / "dense").iterdir()
    yield file, checkpoints.restore


def server_checkpoints(path: pathlib.Path, model: keras.Model) -> ServerCheckpoints:
    """The checkpoints of a model without tables, which need no servers."""
    checkpoints = ServerCheckpoints(str(path / "servers"), model, None, 1)  # type: ignore[arg-type]
    checkpoints.save(TrainingState(**dict.fromkeys(TrainingState.__dataclass_fields__, 1)))
    return checkpoints


def cases(path: pathlib.Path) -> Iterator[Case]:
    for file, read in saved_files(path):
        contents = file.read_bytes()
        with file.open("r+b") as opened:
            opened.truncate(LENGTH)  # a file of holes
        yield "long", file, read
        file.unlink()
        os.mkfifo(file)
        yield "pipe", file, read
        file.unlink()
        file.write_bytes(contents)
    yield from claims_of_archives(path / "claims")
    yield from arrays_elsewhere(path / "arrays")


def claims_of_archives(path: pathlib.Path) -> Iterator[Case]:
    model = dense()
    checkpoints = server_checkpoints(path, model)
    (file,) = (path / "servers" / "dense").iterdir()
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}

    def put(compression: int = zipfile.ZIP_STORED, **changes: bytes) -> None:
        changed = {f"{name}.npy": contents for name, contents in changes.items()}
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, contents in {**entries, **changed}.items():
                archive.writestr(name, contents)

    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (LENGTH,)}
    )
    put(value_0=header.getvalue())
    yield "claim of an array", file, checkpoints.restore
    put(zipfile.ZIP_DEFLATED, value_0=header.getvalue() + bytes(2**20))
    yield "compressed array", file, checkpoints.restore
    message = tf.make_tensor_proto(1.0)
    message.tensor_shape.dim.add(size=LENGTH)
    array = io.BytesIO()
    np.save(array, np.frombuffer(message.SerializeToString(), np.uint8))
    put(value_0=array.getvalue())
    yield "claim of a tensor", file, checkpoints.restore
    array = io.BytesIO()
    np.save(array, np.frombuffer(b"\xff" * 9, np.uint8))
    put(value_0=array.getvalue())
    yield "no tensor", file, checkpoints.restore
    array = io.BytesIO()
    np.save(array, np.array([print], object), allow_pickle=True)
    put(value_0=array.getvalue())
    yield "pickled objects", file, checkpoints.restore
    put(value_0=b"no array")
    yield "no array", file, checkpoints.restore
    array = io.BytesIO()
    np.lib.format.write_array(array, np.zeros(2, np.uint8), version=(2, 0))
    put(value_0=array.getvalue())
    yield "another version", file, checkpoints.restore
    del entries["value_0.npy"]
    put()
    yield "fewer arrays", file, checkpoints.restore


def arrays_elsewhere(path: pathlib.Path) -> Iterator[Case]:
    """HDF5 files whose arrays are stored in another file."""
    path.mkdir()
    file, other = path / "rows.h5", path / "other"
    v = filled()
    with h5py.File(other, "w") as store:
        keras_files.write(store, keras_files.arrays_of(v.table))

    def load() -> None:
        with h5py.File(file) as store:
            keras_files.load(v.table, store)

    def link(store: h5py.File) -> None:
        store["values"] = h5py.ExternalLink(str(other), "values")

    def external(store: h5py.File) -> None:
        store.create_dataset("values", (2, 2), "f4", external=[(str(other), 0, 16)])

    def virtual(store: h5py.File) -> None:
        layout = h5py.VirtualLayout((2, 2), "f4")
        layout[:] = h5py.VirtualSource(str(other), "values", (2, 2))
        store.create_virtual_dataset("values", layout)

    for put in (link, external, virtual):
        with h5py.File(file, "w") as store:
            keras_files.write(store, keras_files.arrays_of(v.table))
            del store["values"]
            put(store)
        yield f"array by {put.__name__}", file, load


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        for case, file, read in cases(path):
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            most = pages * os.sysconf("SC_PAGE_SIZE") + MOST_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            try:
                read()
                error = None
            except Exception as caught:
                error = caught
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            found.append([case, str(file), type(error).__name__, str(error)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

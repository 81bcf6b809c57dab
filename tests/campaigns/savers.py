# SPDX-License-Identifier: Apache-2.0
"""Savers, which save a table to the same place repeatedly, for campaigns that disturb them.

Each state is a number. In state n the table has the rows `rows_of(n)`. The dense weight, if any, is
n. A loaded state thus identifies its save, or proves that no save has it.
"""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed import one_embedding
from tf_embed.serving import Follower, Publisher

DIM = 4
_KEYS = 900
_MOST_SAVES = 3000  # in a campaign


def keys_of(number: int) -> np.ndarray:
    """The keys of a state. Each state adds some keys and drops others."""
    return np.arange(7 * number, 7 * number + _KEYS - number % 5) * 1_000_003


def rows_of(number: int) -> np.ndarray:
    """The rows of a state."""
    keys = keys_of(number)
    first = (keys // 1_000_003).astype(np.float32)
    return np.stack([first + 0.25 * one + number for one in range(DIM)], axis=1)


def put(variable: tf_embed.Variable, number: int) -> None:
    """Gives a table the rows of a state."""
    variable.clear()
    variable.upsert(keys_of(number), rows_of(number))


def number_of(keys: np.ndarray, rows: np.ndarray, least: int = 0) -> int | None:
    """The state with exactly these keys and rows; None for an empty table.

    Raises:
        RuntimeError: If no state has them.
    """
    if not len(keys):
        return None
    order = np.argsort(keys)
    keys, rows = keys[order], rows[order]
    number = round(float(rows[0, 0] - keys[0] // 1_000_003))
    if number < least or not (
        np.array_equal(keys, keys_of(number)) and np.array_equal(rows, rows_of(number))
    ):
        raise RuntimeError(f"{len(keys)} rows are of no number; the first has {rows[0]}")
    return number


def _number_in(variable: tf_embed.Variable) -> int | None:
    keys, rows = (part.numpy() for part in variable.export())
    return number_of(keys, rows)


class Saver:
    """Saves and loads.

    Args:
        folder: A folder for this saver alone.
    """

    name: ClassVar[str]

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def save(self, number: int) -> None:
        """Saves a state. It is durable once this returns."""
        raise NotImplementedError

    def load(self) -> int | None:
        """Loads the saved state into a new table; None if there is no save."""
        raise NotImplementedError


class Files(Saver):
    """`Variable.save_rows`."""

    name = "files"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._variable = tf_embed.Variable(dim=DIM, name="v", devices=["/CPU:0"] * 2)

    def save(self, number: int) -> None:
        put(self._variable, number)
        self._variable.save_rows(self.folder / "a" / "rows", buffer_bytes=4000)

    def load(self) -> int | None:
        loaded = tf_embed.Variable(dim=DIM, name="v")
        try:
            loaded.load_rows(self.folder / "a" / "rows")
        except tf.errors.NotFoundError as error:
            if "no whole save of 'v'" not in str(error):
                raise
            return None
        return _number_in(loaded)


class SnapshotsOfOne(Saver):
    """`Snapshots` of a table on disk; only the newest is kept."""

    name = "snapshots"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._variable = tf_embed.Variable(
            dim=DIM,
            name="v",
            policy=tf_embed.TablePolicy(track_changes=True),
            storage=tf_embed.Storage(host_bytes=4000, path=folder / "tier"),
        )
        self._snapshots = tf_embed.Snapshots(folder / "snapshots", self._variable)

    def save(self, number: int) -> None:
        put(self._variable, number)
        self._snapshots.save(f"number-{number}")
        self._snapshots.keep(1)

    def load(self) -> int | None:
        loaded = tf_embed.Variable(dim=DIM, name="v")
        snapshots = tf_embed.Snapshots(self.folder / "snapshots", loaded)
        name = snapshots.latest()
        if name is None:
            return None
        snapshots.load(name)
        return _number_in(loaded)


class Publications(Saver):
    """`Publisher`, and a new `Follower`."""

    name = "publications"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._variable, self._layer, parts = self._parts(tracked=True)
        self._publisher = Publisher(parts, folder / "published", keep=1, whole_every=3)

    @staticmethod
    def _parts(tracked: bool) -> tuple[tf_embed.Variable, keras.layers.Layer, list[Any]]:
        policy = tf_embed.TablePolicy(track_changes=True) if tracked else None
        variable = tf_embed.Variable(dim=DIM, name="v", policy=policy)
        layer = keras.layers.Dense(1, use_bias=False, name="number")
        layer.build((None, 1))
        return variable, layer, [variable, layer]

    def save(self, number: int) -> None:
        gone = np.setdiff1d(self._variable.export()[0].numpy(), keys_of(number))
        self._variable.remove(gone)
        self._variable.upsert(keys_of(number), rows_of(number))
        self._layer.kernel.assign([[float(number)]])
        self._publisher.publish()

    def load(self) -> int | None:
        variable, layer, parts = self._parts(tracked=False)
        follower = Follower(parts, self.folder / "published")
        while follower.update():
            pass
        if not follower.version:
            return None
        number, weight = _number_in(variable), float(layer.kernel.numpy()[0, 0])
        if number != weight:
            raise RuntimeError(f"the rows are of {number}, and the weight is {weight}")
        return number


class Backups(Saver):
    """`callbacks.BackupAndRestore`; the epoch is the state."""

    name = "backups"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self._model, self._callback = self._made()

    def _made(self) -> tuple[keras.Model, keras.callbacks.Callback]:
        layer = tf_embed.layers.DynamicEmbedding(DIM, optimizer="sgd", name="items")
        model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        callback = tf_embed.callbacks.BackupAndRestore(
            self.folder / "backups", delete_checkpoint=False
        )
        callback.set_model(model)
        return model, callback

    def save(self, number: int) -> None:
        put(self._model.layers[0].variable, number)
        self._callback.on_epoch_end(number - 1)

    def load(self) -> int | None:
        model, callback = self._made()
        callback.on_train_begin()
        return _number_in(model.layers[0].variable)


class Exports(Saver):
    """`export_static` over the previous export.

    Between two renames the previous export has another name. The error message gives that name.
    """

    name = "exports"

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        layer = tf_embed.layers.DynamicEmbedding(DIM, initializer="zeros", name="items")
        self._model = keras.Sequential([keras.Input([1], dtype="int64"), layer])

    @property
    def _path(self) -> pathlib.Path:
        return self.folder / "exported"

    def save(self, number: int) -> None:
        put(self._model.layers[0].variable, number)
        tf_embed.export_static(self._model, self._path, overwrite=True)

    def load(self) -> int | None:
        path = self._path
        if not path.exists():
            replaced = [*self.folder.glob(".exported.*.replaced")]
            if not replaced:
                return None
            path = max(replaced, key=lambda one: one.stat().st_mtime)
        served = tf.saved_model.load(str(path))
        keys = np.arange(-10, keys_of(_MOST_SAVES)[-1] // 1_000_003) * 1_000_003
        rows = served.serve(tf.constant(keys[:, None])).numpy()[:, 0]
        present = rows.any(axis=1)
        return number_of(keys[present], rows[present])


class Persistent(Saver):
    """`one_embedding.make_persistent_table_writer`."""

    name = "persistent"

    def _kind(self) -> tuple[Any, ...]:
        return [self.folder / "persistent"], "s", "int64", "float32", DIM

    def save(self, number: int) -> None:
        with one_embedding.make_persistent_table_writer(*self._kind()) as writer:
            writer.write(keys_of(number), rows_of(number))

    def load(self) -> int | None:
        try:
            reader = one_embedding.make_persistent_table_reader(*self._kind())
        except ValueError as error:
            if "must be the name of a snapshot" not in str(error):
                raise
            return None
        with reader:
            blocks = list(reader)
        keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return number_of(keys, rows)


SAVERS: dict[str, type[Saver]] = {
    one.name: one for one in (Backups, Exports, Files, Persistent, Publications, SnapshotsOfOne)
}

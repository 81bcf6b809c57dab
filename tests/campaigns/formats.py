# SPDX-License-Identifier: Apache-2.0
"""The formats that tables are saved in and read from, for the campaign that damages files."""

from __future__ import annotations

import gc
import hashlib
import os
import pathlib
import resource
import shutil
import warnings
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from tf_embed import one_embedding
from tf_embed.serving import Follower, Publisher

DIM, KEYS, BATCH = 3, 300, 60
STORED_KEYS = 8000  # keys of a table on disk: enough for sealed files
CHAIN = ("first", "second", "third")


def digest(arrays: Any) -> str:
    """A digest of arrays, their dtypes and shapes."""
    whole = hashlib.sha256()
    for one in arrays:
        array = np.ascontiguousarray(one)
        whole.update(f"{array.dtype} {array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()[:16]


def content_of(variable: tf_embed.Variable) -> list[np.ndarray]:
    """All keys in order, with their rows, slots and statistics."""
    keys, *others = (part.numpy() for part in variable.table.export()[:4])
    order = np.argsort(keys)
    return [keys[order], *(one[order] for one in others if len(one) == len(keys))]


def variable_of(shards: int = 1, **options: Any) -> tf_embed.Variable:
    """A variable."""
    return tf_embed.Variable(dim=DIM, name="items", devices=["/CPU:0"] * shards, **options)


def fill(variable: tf_embed.Variable, seed: int, count: int = KEYS) -> None:
    """Replaces a table's rows by rows drawn from `seed`."""
    draw = np.random.default_rng(seed)
    variable.clear()
    keys = np.arange(count) * 7919 + seed
    for some in np.array_split(keys, max(1, count // 400)):
        variable.upsert(some, draw.normal(size=[len(some), DIM]).astype(np.float32))


class Format:
    """A file format.

    Attributes:
        name: Its name.
        is_ours: Whether tf_embed defines it: errors must name a file or the folder, and leave no
            rows.
        reads_all: Whether every byte is read and has a checksum: nothing damaged may be loaded.
        has_checksums: Whether it promises that no damage gives wrong rows.
        kinds_without: Kinds of damage that do not apply to the format.
        loaded: The tables that the last load filled; a load that fails must leave none of its rows.
    """

    name: ClassVar[str]
    is_ours: ClassVar[bool] = True
    reads_all: ClassVar[bool] = True
    has_checksums: ClassVar[bool] = True
    kinds_without: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.loaded: list[tf_embed.Variable] = []

    def save(self, folder: pathlib.Path, seed: int) -> None:
        """Saves tables. Each seed gives other rows."""
        raise NotImplementedError

    def load(self, folder: pathlib.Path) -> str:
        """Loads the saved tables, and returns a digest of all loaded content."""
        raise NotImplementedError


class RowFiles(Format):
    """`save_rows`, of two shards, loaded into three."""

    name = "row files"

    def save(self, folder: pathlib.Path, seed: int) -> None:
        variable = variable_of(2)
        fill(variable, seed)
        variable.save_rows(folder, buffer_bytes=2000)

    def load(self, folder: pathlib.Path) -> str:
        self.loaded = [variable_of(3)]
        self.loaded[0].load_rows(folder)
        return digest(content_of(self.loaded[0]))


class Snapshots(Format):
    """A chain of three snapshots of three tables: one of all rows, and two of changes.

    The tables have Adam's slots and the statistics of a policy. A table has its rows on disk, so
    its snapshots have links.
    """

    name = "snapshots"

    def __init__(self) -> None:
        super().__init__()
        self.loaded = self._tables()

    def _tables(self, rows: pathlib.Path | None = None) -> list[tf_embed.Variable]:
        storage = None if rows is None else tf_embed.Storage(host_bytes=4000, path=rows)
        return [
            tf_embed.Variable(
                dim=DIM,
                name=name,
                policy=tf_embed.TablePolicy(max_rows=most, eviction="lfu", track_changes=True),
                devices=["/CPU:0"] * shards,
                storage=storage if name == "stored" else None,
            )
            for name, shards, most in (
                ("items", 1, KEYS),
                ("users", 3, KEYS),
                ("stored", 1, 2 * STORED_KEYS),
            )
        ]

    def save(self, folder: pathlib.Path, seed: int) -> None:
        rows = folder.with_name(f"{folder.name}-rows")
        self._save_chain(folder, rows, seed)
        gc.collect()  # from here on linked files have no other name
        shutil.rmtree(rows)
        if not any(".link" in file.name for file in folder.rglob("*")):
            raise RuntimeError("There are no links to damage.")

    def _save_chain(self, folder: pathlib.Path, rows: pathlib.Path, seed: int) -> None:
        tables = self._tables(rows)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        trained = [one for table in tables for one in table.trainable_variables]
        optimizer.build(trained)

        def train(step: int) -> None:
            draw = np.random.default_rng([seed, step])
            with tf.GradientTape() as tape:
                loss = tf.constant(0.0)
                for table in tables:
                    found = tf_embed.embedding_lookup(table, draw.integers(0, KEYS, BATCH))
                    loss += tf.reduce_sum((found - draw.normal(size=(BATCH, DIM))) ** 2)
            optimizer.apply(tape.gradient(loss, trained), trained)
            for table in tables:
                table.remove(draw.integers(0, KEYS, 5))

        train(0)  # gives rows their slots, which the files then have
        fill(tables[-1], seed, STORED_KEYS)
        snapshots = tf_embed.Snapshots(folder, tables)
        since = None
        for number, name in enumerate(CHAIN):
            train(2 * number + 1)
            train(2 * number + 2)
            snapshots.save(name, since=since)
            since = name

    def load(self, folder: pathlib.Path) -> str:
        for table in self.loaded:
            table.clear()
        tf_embed.Snapshots(folder, self.loaded).load(CHAIN[-1])
        return digest(part for table in self.loaded for part in content_of(table))


class Persistent(Format):
    """A snapshot of `one_embedding`, read by `make_persistent_table_reader`."""

    name = "persistent tables"

    def save(self, folder: pathlib.Path, seed: int) -> None:
        kind = ([folder], "s", "int64", "float32", DIM)
        with one_embedding.make_persistent_table_writer(*kind) as writer:
            for number in range(3):
                draw = np.random.default_rng([seed, number])
                keys = np.arange(100) + 1000 * number
                writer.write(keys, draw.normal(size=[100, DIM]).astype(np.float32))

    def load(self, folder: pathlib.Path) -> str:
        kind = ([folder], "s", "int64", "float32", DIM)
        with one_embedding.make_persistent_table_reader(*kind) as reader:
            return digest(part for block in reader for part in block)


class Publications(Format):
    """A publication of all rows, and a new follower. The follower does not read snapshot.json."""

    name = "publications"
    reads_all = False

    def _parts(self) -> tuple[tf_embed.Variable, keras.layers.Layer]:
        layer = keras.layers.Dense(4, name="dense")
        layer.build((None, 5))
        return variable_of(), layer

    def save(self, folder: pathlib.Path, seed: int) -> None:
        variable, layer = self._parts()
        fill(variable, seed)
        layer.kernel.assign(np.random.default_rng(seed).normal(size=[5, 4]))
        Publisher([variable, layer], folder).publish()

    def load(self, folder: pathlib.Path) -> str:
        variable, layer = self._parts()
        self.loaded = [variable]
        follower = Follower([variable, layer], folder)
        follower.update()
        if follower.version == 0:
            raise tf.errors.NotFoundError(None, None, f"{folder}: nothing is published")
        keys, rows = (part.numpy() for part in variable.export())
        order = np.argsort(keys)
        return digest([keys[order], rows[order], layer.kernel.numpy(), layer.bias.numpy()])


class _Models(Format):
    """Files of TensorFlow or Keras that contain our tables."""

    is_ours = reads_all = False

    def __init__(self) -> None:
        super().__init__()
        warnings.simplefilter("ignore")

    def _model(self, seed: int = 0) -> keras.Model:
        layer = tf_embed.layers.DynamicEmbedding(DIM, optimizer="adam", name="items")
        model = keras.Sequential(
            [
                keras.Input([2], dtype="int64"),
                layer,
                keras.layers.Flatten(),
                keras.layers.Dense(3, use_bias=False),
            ]
        )
        model.compile("adam", "mse")
        if seed:
            fill(layer.variable, seed)
            kernel = np.random.default_rng(seed).normal(size=[2 * DIM, 3])
            model.layers[-1].kernel.assign(kernel)
        self.loaded = [layer.variable]
        return model

    def _content(self, model: keras.Model) -> str:
        table = digest(content_of(model.layers[0].variable))
        return f"{table} {digest([model.layers[-1].kernel.numpy()])}"


class KerasFile(_Models):
    """`model.save`."""

    name = ".keras"
    kinds_without = ("swapped", "renewed")  # a single file, and an earlier save loads too

    def save(self, folder: pathlib.Path, seed: int) -> None:
        self._model(seed).save(folder / "m.keras")

    def load(self, folder: pathlib.Path) -> str:
        return self._content(keras.models.load_model(folder / "m.keras"))


class WeightsFile(_Models):
    """`model.save_weights`."""

    name = ".weights.h5"
    kinds_without = ("swapped", "renewed")

    def save(self, folder: pathlib.Path, seed: int) -> None:
        self._model(seed).save_weights(folder / "m.weights.h5")

    def load(self, folder: pathlib.Path) -> str:
        model = self._model()
        model.load_weights(folder / "m.weights.h5")
        return self._content(model)


class Checkpoint(_Models):
    """`tf.train.Checkpoint`."""

    name = "checkpoints"

    def save(self, folder: pathlib.Path, seed: int) -> None:
        tf.train.Checkpoint(model=self._model(seed)).write(str(folder / "ckpt"))

    def load(self, folder: pathlib.Path) -> str:
        model = self._model()
        status = tf.train.Checkpoint(model=model).read(str(folder / "ckpt"))
        status.assert_existing_objects_matched()
        return self._content(model)


class StaticExport(_Models):
    """`export_static`: a SavedModel of TensorFlow's, whose graph has no checksum."""

    name = "static exports"
    has_checksums = False

    def save(self, folder: pathlib.Path, seed: int) -> None:
        tf_embed.export_static(self._model(seed), folder, overwrite=True)
        self.loaded = []

    def load(self, folder: pathlib.Path) -> str:
        served = tf.saved_model.load(str(folder))
        # The first keys are the keys of `fill`.
        ids = [[7919 * one + 100, 7919 * one + 7] for one in range(KEYS)]
        answers = served.serve(tf.constant(ids, tf.int64)).numpy()
        return f"{digest([answers])} -"


class Tfra(Format):
    """Files of TFRA: bytes of keys and of rows."""

    name = "TFRA's files"
    is_ours = reads_all = False
    has_checksums = False

    def save(self, folder: pathlib.Path, seed: int) -> None:
        draw = np.random.default_rng(seed)
        for shard in (1, 2):
            stem = folder / f"items_mht_{shard}of2_rank0_size1"
            keys = np.arange(shard, KEYS, 2)
            stem.with_name(f"{stem.name}-keys").write_bytes(keys.tobytes())
            rows = draw.normal(size=[len(keys), DIM]).astype(np.float32)
            stem.with_name(f"{stem.name}-values").write_bytes(rows.tobytes())

    def load(self, folder: pathlib.Path) -> str:
        variable = tf_embed.tfra.Variable(dim=DIM, name="items", devices="/CPU:0")
        variable.load_tfra_files(folder)
        return f"{digest(content_of(variable))} -"


class LiveSegments(Format):
    """The files of a table on disk while the table is in use. All of its rows are read."""

    name = "live segments"
    reads_all = False  # a file may have rows that have left the table
    # The table has its files open: replaced files and bytes after the end do not matter.
    kinds_without = ("missing", "longer", "renewed")

    def save(self, folder: pathlib.Path, seed: int) -> None:
        if seed < 100:  # there is no earlier save
            return
        self._table = variable_of(storage=tf_embed.Storage(host_bytes=4000, path=folder))
        fill(self._table, seed, STORED_KEYS)

    def load(self, folder: pathlib.Path) -> str:
        keys, rows = (part.numpy() for part in self._table.export())
        order = np.argsort(keys)
        keys, rows = keys[order], rows[order]
        looked_up = [self._table.lookup(some).numpy() for some in np.array_split(keys, 10)]
        if not np.array_equal(np.concatenate(looked_up), rows):
            raise RuntimeError("an export and lookups have different rows")
        return digest([keys, rows])


FORMATS: dict[str, type[Format]] = {
    one.name: one
    for one in (
        Checkpoint,
        KerasFile,
        LiveSegments,
        Persistent,
        Publications,
        RowFiles,
        Snapshots,
        StaticExport,
        Tfra,
        WeightsFile,
    )
}


def limit_memory(more: int) -> None:
    """Limits this process's address space to `more` bytes above its present size."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

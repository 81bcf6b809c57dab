# SPDX-License-Identifier: Apache-2.0
"""`Snapshot`: saves tables while a model is trained."""

from __future__ import annotations

import os
import re
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tf_embed import validation
from tf_embed.callbacks.batch_count import BatchCount
from tf_embed.snapshots import Snapshots, files, manifest
from tf_embed.snapshots.sources import chosen_sources, tables_in

_NAME = re.compile(r"snapshot-(\d+)")


class Snapshot(keras.callbacks.Callback):
    """Saves tables every `every_n_batches` batches, and when training ends.

    Snapshots are named "snapshot-000001" and so on, from the highest number in `path` upwards. Each
    is logged when it is written. Tables with `TablePolicy(track_changes=True)` are saved while
    training continues. The next snapshot then waits for the previous snapshot, and raises its
    error. `tf_embed.Snapshots(path, model).load(name)` loads the rows. With several workers, each
    worker has the callback. All workers share a `path` if tables are sharded over them. Each worker
    has a separate `path` if tables are local to a worker (`distribution="local"`).

    The last snapshot has the final tables, with the averages of `use_ema`. If a callback changes
    weights when training ends, list it before this callback. An example is
    `keras.callbacks.EarlyStopping(restore_best_weights=True)`.

    Damage to an earlier snapshot does not end the training. If the previous snapshot, or a snapshot
    that it builds on, can't be read any more, the next snapshot has all rows, with a warning.

    Args:
        path: A folder, or a path of any file system that TensorFlow knows.
        every_n_batches: Number of batches between two snapshots, an int from 1.
        keep: Number of newest snapshots to keep, together with their base snapshots; an int from 1,
            or None for all. Damaged snapshots are kept and not counted, and a warning names them;
            see `tf_embed.Snapshots.keep`.
        whole_every: Number of snapshots per full snapshot, an int from 1. The other snapshots have
            only the rows changed since the previous snapshot. Above 1, tables must have
            `track_changes=True`.
        tables: The saved `tf_embed.Variable` or layer, or a list of these. Default: the tables of
            the model.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a number is out of range, or `path` or `tables` is empty.

    Example:
        >>> import keras, numpy as np, tempfile, tf_embed
        >>> policy = tf_embed.TablePolicy(track_changes=True)
        >>> layer = tf_embed.layers.DynamicEmbedding(2, optimizer="adam", policy=policy)
        >>> model = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> path = tempfile.mkdtemp()
        >>> saved = tf_embed.callbacks.Snapshot(path, every_n_batches=10, keep=2, whole_every=5)
        >>> x, y = np.array([[1], [2]]), np.array([0.0, 1.0])
        >>> history = model.fit(x, y, callbacks=[saved], verbose=0)
        >>> tf_embed.Snapshots(path, model).latest()
        'snapshot-000001'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_n_batches: int = 1000,
        keep: int | None = 3,
        whole_every: int = 1,
        tables: Any = None,
    ) -> None:
        super().__init__()
        self._path = validation.path_of(path, "path")
        self._every = validation.int_in(every_n_batches, "every_n_batches")
        self._keep = None if keep is None else validation.int_in(keep, "keep")
        self._whole_every = validation.int_in(whole_every, "whole_every")
        self._given = chosen_sources(tables, "tables")
        self._snapshots: Snapshots | None = None
        self._seen = 0  # batches since the last snapshot
        self._batches = BatchCount()
        self._saved = 0  # snapshots of this training
        self._last: str | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Resets the counts."""
        self._snapshots = Snapshots(self._path, self._sources())
        self._seen = self._saved = 0
        self._last = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to count an epoch's batches."""
        self._batches.begin_epoch(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begins to count batches."""
        self._batches.begin(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves a snapshot if `every_n_batches` batches have passed."""
        self._seen += self._batches.end(batch, self.model, self.params)
        if self._seen >= self._every:
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves a snapshot if training has had a batch, and waits for it."""
        assert self._snapshots is not None
        # Even if the last batch was saved: rows may have changed after that.
        if self._seen or self._saved:
            self._save()
        self._snapshots.wait()
        self._tidy()

    def _sources(self) -> Any:
        return self._given if self._given is not None else [self.model]

    def _save(self) -> None:
        snapshots = self._snapshots
        assert snapshots is not None
        snapshots.wait()  # raises if the last snapshot failed
        self._tidy()
        since = self._last if self._saved % self._whole_every else None
        name = f"snapshot-{self._next_number():06d}"
        if since is not None and not files.is_loadable(self._path, since):
            # Changes alone could not be loaded.
            logging.warning(
                "Snapshot %r has all rows: %r can't be read, or one that it builds on.", name, since
            )
            since = None
        in_background = all(table.options.tracks_changes for table in tables_in(self._sources()))
        try:
            snapshots.save(name, since=since, wait=not in_background)
        except tf.errors.FailedPreconditionError as error:
            if since is None:
                raise
            # The table does not know the changes since then, so all rows are written.
            logging.info("Snapshot %r has all rows: %s", name, error.message)
            snapshots.save(name, wait=not in_background)
        self._last = name
        self._seen = 0
        self._saved += 1

    def _next_number(self) -> int:
        # By the names of folders, because a damaged snapshot must not end the training.
        found = map(_NAME.fullmatch, manifest.names_in(self._path))
        return 1 + max([0, *(int(one.group(1)) for one in found if one)])

    def _tidy(self) -> None:
        if self._keep is not None and self._saved:
            assert self._snapshots is not None
            self._snapshots.keep(self._keep)

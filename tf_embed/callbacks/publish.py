# SPDX-License-Identifier: Apache-2.0
"""`Publish`: publishes a model while it is trained."""

from __future__ import annotations

import os
import time
from typing import Any

import keras

from tf_embed import validation
from tf_embed.serving import Publisher
from tf_embed.snapshots.sources import chosen_sources, tables_in

_MOST_SECONDS = 1e6


class Publish(keras.callbacks.Callback):
    """Publishes a model at intervals during training, and when training ends.

    The last publication has the final model, with the averages of `use_ema`. If a callback changes
    weights when training ends, list it before this callback. An example is
    `keras.callbacks.EarlyStopping(restore_best_weights=True)`.

    A `tf_embed.serving.Follower` of the same model reads the publications in another process. If
    tables have `TablePolicy(track_changes=True)`, a thread writes their changed rows while training
    continues. If a publication fails, the next publication raises the error and ends the training.

    Args:
        path: A folder, or a path of any file system that TensorFlow knows.
        every_seconds: Minimum time between two publications, a number above 0. If a publication
            takes longer to write, the next batch waits for it. Default: 10.
        keep: See `tf_embed.serving.Publisher`.
        whole_every: See `tf_embed.serving.Publisher`.
        model: The published `tf_embed.Variable`, layer or model, or a list of these. Default: the
            trained model.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a number is out of range, or `path` or `model` is empty.

    Example:
        >>> import keras, numpy as np, tempfile, tf_embed
        >>> policy = tf_embed.TablePolicy(track_changes=True)
        >>> def new_model():
        ...     layer = tf_embed.layers.DynamicEmbedding(2, optimizer="adam", policy=policy)
        ...     return keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        >>> model, served = new_model(), new_model()
        >>> model.compile("sgd", "mse")
        >>> publish = tf_embed.callbacks.Publish(tempfile.mkdtemp(), every_seconds=2.0)
        >>> x, y = np.array([[1], [2]]), np.array([0.0, 1.0])
        >>> history = model.fit(x, y, callbacks=[publish], verbose=0)
        >>> served.build((None, 1))
        >>> tf_embed.serving.Follower(served, publish.path).update()
        True
        >>> bool((served.predict(x, verbose=0) == model.predict(x, verbose=0)).all())
        True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every_seconds: float = 10.0,
        *,
        keep: int = 16,
        whole_every: int = 256,
        model: Any = None,
    ) -> None:
        super().__init__()
        self.path = validation.path_of(path, "path")
        self._seconds = validation.positive_number(
            every_seconds, "every_seconds", most=_MOST_SECONDS
        )
        self._keep = validation.int_in(keep, "keep")
        self._whole_every = validation.int_in(whole_every, "whole_every")
        self._given = chosen_sources(model, "model")
        self._publisher: Publisher | None = None
        self._next = 0.0
        self._trained = False  # whether this training has had a batch

    def on_train_begin(self, logs: Any = None) -> None:
        """Creates a publisher. Its first publication has all rows."""
        self._publisher = Publisher(
            self._sources(), self.path, keep=self._keep, whole_every=self._whole_every
        )
        # Due after the first batch.
        self._next = time.monotonic()
        self._trained = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Publishes if the interval is over."""
        self._trained = True
        if time.monotonic() >= self._next:
            self._publish()

    def on_train_end(self, logs: Any = None) -> None:
        """Publishes if training has had a batch, and waits until done."""
        assert self._publisher is not None
        # Even if the last batch was published: weights may have changed after that.
        if self._trained:
            self._publish()
        self._publisher.wait()

    def _sources(self) -> Any:
        return self._given if self._given is not None else [self.model]

    def _publish(self) -> None:
        assert self._publisher is not None
        tables = tables_in(self._sources())
        # Without tracking, rows are published as of their write, so training must wait.
        self._publisher.publish(wait=not all(table.options.tracks_changes for table in tables))
        self._next = time.monotonic() + self._seconds

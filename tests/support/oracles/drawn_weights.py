# SPDX-License-Identifier: Apache-2.0
"""The drawing of weights by keras.callbacks.TensorBoard, without the package tensorboard."""

from __future__ import annotations

import tempfile
import types
from typing import Any

import keras
import tensorflow as tf


class Drawn(keras.callbacks.TensorBoard):
    """Records the shape of each histogram and image that TensorFlow would write."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp(), histogram_freq=1, write_graph=False, write_images=True)
        self.histograms: dict[str, tuple[int, ...]] = {}
        self.images: dict[str, tuple[int, ...]] = {}

    @property
    def summary(self) -> Any:
        """Replaces the module tf.summary."""
        return types.SimpleNamespace(
            create_file_writer=tf.summary.create_file_writer,
            scalar=lambda name, value, step: None,
            histogram=self._note(self.histograms),
            image=self._note(self.images),
        )

    def _note(self, shapes: dict[str, tuple[int, ...]]) -> Any:
        def note(name: str, value: Any, step: int) -> None:
            shapes[name] = tuple(tf.convert_to_tensor(value).shape)

        return note

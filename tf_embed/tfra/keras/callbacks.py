# SPDX-License-Identifier: Apache-2.0
"""Callbacks by the names of TensorFlow Recommenders Addons.

Its `DEHvdBroadcastGlobalVariablesCallback` is about Horovod and has no counterpart.
"""

from __future__ import annotations

from typing import Any

import keras

from tf_embed import validation


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """keras.callbacks.ModelCheckpoint with the rows of tables in its files.

    A `.keras` file, or a `.weights.h5` file with `save_weights_only=True`, has rows, optimizer
    slots and step.

    Args:
        filepath: Path of the file, which ends in `.keras` or `.weights.h5`.
        *args: As in keras.callbacks.ModelCheckpoint.
        options: Must be None; only SavedModels have options.
        signatures: Must be None; only SavedModels have signatures.
        **kwargs: As in keras.callbacks.ModelCheckpoint.

    Raises:
        TypeError: If `filepath` is not a path.
        ValueError: If `filepath` has another suffix, or `options` or `signatures` are given.

    Example:
        >>> import tf_embed
        >>> callback = tf_embed.tfra.keras.callbacks.ModelCheckpoint("model-{epoch}.keras")
    """

    def __init__(
        self, filepath: Any, *args: Any, options: Any = None, signatures: Any = None, **kwargs: Any
    ) -> None:
        for argument, value in (("options", options), ("signatures", signatures)):
            if value is not None:
                raise ValueError(
                    f"`{argument}` must be None: Keras's files have none. For a SavedModel call "
                    f"tf_embed.tfra.keras.models.save_model(model, folder, {argument}=...). "
                    f"Received: {argument}={validation.shown(value)}"
                )
        path = validation.path_of(filepath, "filepath")
        if not path.endswith((".keras", ".weights.h5")):
            raise ValueError(
                "`filepath` must end in .keras, or in .weights.h5 with save_weights_only=True. For "
                "a SavedModel call tf_embed.tfra.keras.models.save_model(model, folder). Received: "
                f"filepath={validation.shown(path)}"
            )
        super().__init__(filepath, *args, **kwargs)

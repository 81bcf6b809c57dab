# SPDX-License-Identifier: Apache-2.0
"""`save_model` and `load_model`, which call Keras and tf.saved_model."""

from __future__ import annotations

import os
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation

# A path within a SavedModel. Its loaders ignore the folder `assets.extra`, which is for such files.
_KERAS_MODEL = os.path.join("assets.extra", "model.keras")


def save_model(
    model: keras.Model,
    filepath: str | os.PathLike[str],
    overwrite: bool = True,
    include_optimizer: bool = True,
    signatures: Any = None,
    options: tf.saved_model.SaveOptions | None = None,
    save_traces: bool = True,
) -> None:
    """Saves a model with the rows of its tables.

    Args:
        model: The model.
        filepath: A path that ends in `.keras`, for a Keras file; or a folder, for a SavedModel,
            which serves without Keras.
        overwrite: Whether an existing `filepath` may be replaced.
        include_optimizer: Whether training can resume from the saved model. A SavedModel has no
            optimizer and no slots. So a second copy of the model with its rows is saved in the
            folder, as the Keras file `assets.extra/model.keras`. A Keras file always has the
            optimizer.
        signatures: For a folder: as in tf.saved_model.save. Default: the inputs that the model was
            built for.
        options: For a folder: as in tf.saved_model.save.
        save_traces: Must be True: a SavedModel always has the functions of the model.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If `filepath` exists and may not be replaced, if it has the suffix of Keras's
            old format, or if an argument does not apply to the format.

    Example:
        >>> import keras, tempfile, numpy as np, tf_embed
        >>> model = keras.Sequential(
        ...     [keras.Input([2], dtype="int64"), tf_embed.tfra.keras.layers.SquashedEmbedding(4)]
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tf_embed.tfra.keras.models.save_model(model, folder + "/saved")
        ...     loaded = tf_embed.tfra.keras.models.load_model(folder + "/saved")
        >>> ids = np.array([[1, 2]])
        >>> bool(np.all(loaded(ids) == model(ids)))
        True
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: model={validation.shown(model)}")
    path = validation.path_of(filepath, "filepath")
    include_optimizer = validation.flag(include_optimizer, "include_optimizer")
    if not validation.flag(overwrite, "overwrite") and tf.io.gfile.exists(path):
        raise ValueError(
            f"`filepath` must be new where `overwrite` is False. "
            f"Received: filepath={validation.shown(path)}"
        )
    if path.endswith((".h5", ".hdf5")):
        raise ValueError(
            "`filepath` must end in .keras, or be a folder: Keras's old format loses rows, and "
            f"weights alone are model.save_weights's. Received: filepath={validation.shown(path)}"
        )
    if not validation.flag(save_traces, "save_traces"):
        raise ValueError("`save_traces` must be True. Received: save_traces=False")
    if not path.endswith(".keras"):
        _save_folder(model, path, include_optimizer, signatures, options)
        return
    for argument, value in (("signatures", signatures), ("options", options)):
        if value is not None:
            raise ValueError(
                f"`{argument}` must be None for a Keras file; for a SavedModel `filepath` is a "
                f"folder. Received: {argument}={validation.shown(value)}, "
                f"filepath={validation.shown(path)}"
            )
    if not include_optimizer:
        raise ValueError(
            "`include_optimizer` must be True for a Keras file; load it with compile=False to "
            f"leave the optimizer out. Received: include_optimizer=False, "
            f"filepath={validation.shown(path)}"
        )
    keras.saving.save_model(model, path)


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
) -> keras.Model:
    """Loads a model that was saved by `save_model` or by Keras.

    Args:
        filepath: A Keras file, or a folder of `save_model`.
        custom_objects: As in keras.saving.load_model.
        compile: As in keras.saving.load_model.
        safe_mode: As in keras.saving.load_model.

    Returns:
        The model with its rows, and with its optimizer if it is compiled.

    Raises:
        TypeError: If `filepath` is not a path.
        ValueError: If the folder has no Keras model.

    Example:
        >>> import keras, os, tempfile, tf_embed
        >>> model = keras.Sequential([keras.Input((2,), dtype="int64"),
        ...     tf_embed.tfra.keras.layers.SquashedEmbedding(2, initializer="ones")])
        >>> path = os.path.join(tempfile.mkdtemp(), "model.keras")
        >>> tf_embed.tfra.keras.models.save_model(model, path)
        >>> loaded = tf_embed.tfra.keras.models.load_model(path)
        >>> loaded(tf.constant([[7, 8]])).numpy().tolist()
        [[2.0, 2.0]]
    """
    path = validation.path_of(filepath, "filepath")
    if tf.io.gfile.isdir(path) and not tf.io.gfile.exists(os.path.join(path, "config.json")):
        path = os.path.join(path, _KERAS_MODEL)
        if not tf.io.gfile.exists(path):
            raise ValueError(
                "`filepath` must be a Keras file, or a folder saved with include_optimizer=True: a "
                "SavedModel alone is loaded by tf.saved_model.load. Received: "
                f"filepath={validation.shown(filepath)}"
            )
    return keras.saving.load_model(
        path, custom_objects=custom_objects, compile=compile, safe_mode=safe_mode
    )


def _save_folder(
    model: keras.Model,
    path: str,
    include_optimizer: bool,
    signatures: Any,
    options: tf.saved_model.SaveOptions | None,
) -> None:
    """Saves a SavedModel, with or without a Keras file in it."""
    keras_path = os.path.join(path, _KERAS_MODEL)
    # A file from an earlier save would hold another model.
    if tf.io.gfile.exists(keras_path):
        tf.io.gfile.remove(keras_path)
    tf.saved_model.save(model, path, signatures=signatures, options=options)
    if include_optimizer:
        tf.io.gfile.makedirs(os.path.dirname(keras_path))
        keras.saving.save_model(model, keras_path)

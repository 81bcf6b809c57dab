# SPDX-License-Identifier: Apache-2.0
"""Publishing and loading of a model's dense weights, which are in no table."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed.ops import snapshot_ops
from tf_embed.saving import guarded_files
from tf_embed.serving.publication import WEIGHTS, Weight, WeightsFile
from tf_embed.snapshots.sources import Source
from tf_embed.variable.anchor import Anchor


def weights_of(sources: Iterable[Source]) -> list[Any]:
    """Returns the dense weights of layers and models, without duplicates."""
    found: dict[int, Any] = {}
    for source in sources:
        if isinstance(source, keras.layers.Layer):
            dense = [one for one in source.weights if not isinstance(one, Anchor)]
            found.update((id(one), one) for one in dense)
    return list(found.values())


def descriptions(variables: Sequence[Any]) -> tuple[Weight, ...]:
    """Describes the weights."""
    return tuple(
        Weight(one.name, tuple(one.shape), keras.backend.standardize_dtype(one.dtype))
        for one in variables
    )


def values_of(variables: Sequence[Any]) -> list[np.ndarray]:
    """Returns copies of the current values."""
    # Training changes the variables while a thread writes the values.
    return [np.array(keras.ops.convert_to_numpy(one.value)) for one in variables]


def write(folder: str, weights: tuple[Weight, ...], values: Sequence[np.ndarray]) -> WeightsFile:
    """Writes values to a file, if there are any."""
    contents = b"".join(one.tobytes() for one in values)
    if weights:
        snapshot_ops.put_file(folder, WEIGHTS, contents)
    return WeightsFile(len(contents), zlib.crc32(contents), weights)


def read(folder: str, saved: WeightsFile) -> list[np.ndarray]:
    """Reads values, and verifies their size and checksum.

    Args:
        folder: The folder of the publication.
        saved: The description of the file in the publication. REQUIRES: its weights match the
            model's, because they bound the memory of the read.

    Raises:
        tf.errors.DataLossError: If the file is damaged.
        tf.errors.NotFoundError: If the file does not exist.
    """
    if not saved.weights:
        return []
    path = os.path.join(folder, WEIGHTS)
    contents = guarded_files.read(path, saved.bytes)
    if len(contents) != saved.bytes or zlib.crc32(contents) != saved.checksum:
        raise tf.errors.DataLossError(
            None, None, f"'{path}' is damaged: it is not what was published."
        )
    values, begin = [], 0
    for weight in saved.weights:
        dtype = np.dtype(tf.as_dtype(weight.dtype).as_numpy_dtype)
        count = int(np.prod(weight.shape, dtype=np.int64))
        value = np.frombuffer(contents, dtype, count, begin).reshape(weight.shape)
        values.append(value)
        begin += value.nbytes
    return values

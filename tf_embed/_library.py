# SPDX-License-Identifier: Apache-2.0
"""Finds the op library, checks that it fits the installed TensorFlow, and loads it.

The check precedes the load: a library that was built for another TensorFlow fails with an
"undefined symbol", or worse, does not fail. Nothing here changes TensorFlow or Keras; loading only
registers the ops whose names begin with TfEmbed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import pathlib
import re
import types
from typing import Any

LIBRARY_NAME = "_tf_embed.so"
BUILD_INFO_NAME = "_tf_embed.json"
OLDEST_TENSORFLOW = (2, 16, 2)
OLDEST_KERAS = (3, 11, 0)
FIRST_UNTRIED_TENSORFLOW = (2, 22, 0)

_SUPPORTED = "2.16.2 or later, below 2.22"
_NEEDS_KERAS = "tf_embed needs Keras 3.11 or later: `pip install 'keras>=3.11,<4'`."


def version_numbers(version: str) -> tuple[int, int, int]:
    """Returns the first three numbers of a version: (2, 21, 0) for "2.21.0-rc1"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))  # type: ignore[return-value]


def check_tensorflow_version(version: str) -> None:
    """Refuses a TensorFlow that tf_embed was never tested with.

    Raises:
        ImportError: If it is too old or too new.
    """
    if not OLDEST_TENSORFLOW <= version_numbers(version) < FIRST_UNTRIED_TENSORFLOW:
        raise ImportError(
            f"tf_embed needs TensorFlow {_SUPPORTED}, and {version} is installed: install one of "
            "those versions, then build tf_embed again."
        )


def check_keras(version: str, backend: str) -> None:
    """Refuses a Keras that is too old or too new, or not on TensorFlow.

    Raises:
        ImportError: If it is of another version, or runs on another backend.
    """
    if not OLDEST_KERAS <= version_numbers(version) < (4, 0, 0):
        raise ImportError(
            f"tf_embed needs Keras 3.11 or later, below 4, and Keras {version} is installed: "
            "`pip install 'keras>=3.11,<4'`."
        )
    if backend != "tensorflow":
        raise ImportError(
            f"tf_embed needs Keras on TensorFlow, and its backend is {backend!r}: set the "
            "environment variable KERAS_BACKEND=tensorflow before Python starts."
        )


def check_environment() -> None:
    """Checks TensorFlow and Keras.

    Raises:
        ImportError: If either is missing or of an unsupported version.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        if error.name == "keras":  # which TensorFlow imports
            raise ImportError(_NEEDS_KERAS) from error
        raise ImportError(
            f"tf_embed needs TensorFlow {_SUPPORTED}: `pip install tensorflow`, or "
            "`pip install tensorflow-cpu` on a machine without a GPU."
        ) from error
    check_tensorflow_version(tf.__version__)
    try:
        import keras
    except ImportError as error:
        raise ImportError(_NEEDS_KERAS) from error
    check_keras(keras.__version__, keras.config.backend())


def check_library(folder: pathlib.Path, version: str) -> pathlib.Path:
    """Checks that a folder holds an op library for this TensorFlow.

    Returns:
        The path of the library.

    Raises:
        ImportError: If the library is missing, or was built for another TensorFlow.
    """
    library = folder / LIBRARY_NAME
    if not library.is_file():
        raise ImportError(
            f"tf_embed's op library is missing at {library}: run `pip install .` in tf_embed's "
            "source folder, in the environment that has TensorFlow, or `make library` there."
        )
    try:
        built_for = json.loads((folder / BUILD_INFO_NAME).read_text())["tensorflow_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"{folder / BUILD_INFO_NAME} does not say which TensorFlow {LIBRARY_NAME} was built "
            "for: build tf_embed again, with `pip install .` in its source folder."
        ) from error
    if built_for != version:
        raise ImportError(
            f"tf_embed's op library was built for TensorFlow {built_for}, and {version} is "
            "installed: build tf_embed again in this environment, with `pip install "
            f"--no-build-isolation .` in its source folder, or install TensorFlow {built_for}."
        )
    return library


@functools.cache
def load() -> types.ModuleType:
    """Checks the environment and loads the op library.

    Returns:
        The module of the raw ops, as `tf.load_op_library` makes it.

    Raises:
        ImportError: If a part is missing or does not fit.
    """
    check_environment()
    import tensorflow as tf

    library = check_library(pathlib.Path(__file__).parent, tf.__version__)
    try:
        return tf.load_op_library(os.fspath(library))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} can't load tf_embed's op library: build tf_embed again "
            f"in this environment. Received: {error.message}"
        ) from error


@functools.cache
def build() -> str:
    """Returns a hash that identifies this build of the op library, 16 hexadecimal digits."""
    library = pathlib.Path(__file__).parent / LIBRARY_NAME
    return hashlib.blake2b(library.read_bytes(), digest_size=8).hexdigest()


@functools.cache
def vocabulary() -> dict[str, Any]:
    """Returns the names that the op library and Python have in common.

    Returns:
        "change_bit": The bit by which ops name a row's change word, next to the statistics' bits.
        "combiners": The names of the combiners that lookups accept.
        "eviction_orders": A dict from the name of each order to the statistics that it uses.
        "key_types": The names of dtypes.
        "rules": A dict from the name of each fused rule to a dict of "number", its number in files;
        "hyper", the names of its hyper-parameters after the learning rate and Keras's weight decay,
        in order; "wide_slots", the number of slots of each weight; and "row_slots", the number of
        slots of each row.
        "statistics": A dict from the name of each statistic to the bit by which ops name it, in
        order.
        "stats": The names of the numbers of `TfEmbedStats`, in order.

    Raises:
        ImportError: If the library was built from older sources.
    """
    # Load first: TensorFlow attributes to the library the ops that its loading registers.
    load()
    library = ctypes.CDLL(os.fspath(pathlib.Path(__file__).parent / LIBRARY_NAME))
    try:
        vocabulary_of_library = library.TfEmbedVocabulary
    except AttributeError as error:
        raise ImportError(
            f"tf_embed's op library is older than its Python code: build {LIBRARY_NAME} again, "
            "with `pip install .` in tf_embed's source folder, or `make library` there."
        ) from error
    vocabulary_of_library.restype = ctypes.c_char_p
    names: dict[str, Any] = json.loads(vocabulary_of_library())
    return names

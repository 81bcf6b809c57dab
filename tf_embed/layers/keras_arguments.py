# SPDX-License-Identifier: Apache-2.0
"""The arguments of keras.layers.Embedding, as arguments of `DynamicEmbedding`.

keras.layers.Embedding has a matrix, and `DynamicEmbedding` a table. An argument that has a meaning
for a table gets it here. The others are refused with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.table.initializers import for_rows
from tf_embed.table.policies import MAX_ROWS

_NO_ADAPTERS = (
    "is not supported: the layer has no dense matrix that a low-rank matrix is added to, or that "
    "is quantized. For smaller rows give value_dtype='bfloat16', or serve quantized rows by "
    "tf_embed.export_static(..., quantize=)"
)
_UNSUPPORTED = {
    "embeddings_constraint": (
        "is not supported: Keras applies it to a dense matrix after each step, and a step here "
        "changes only the rows that it looks up. To bound the norm of rows, clip the layer's "
        "output, or give `max_norm` to tf_embed.embedding_lookup(layer.variable, ids)"
    ),
    "lora_rank": _NO_ADAPTERS,
    "lora_alpha": _NO_ADAPTERS,
    "quantization_config": _NO_ADAPTERS,
}


def supported(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of keras.layers.Layer among those of keras.layers.Embedding.

    Args:
        kwargs: Arguments that `DynamicEmbedding` has no name for.

    Raises:
        ValueError: If an argument has no meaning for a table, and is not None.
    """
    for name, reason in _UNSUPPORTED.items():
        if kwargs.get(name) is not None:
            given = validation.shown(kwargs[name])
            raise ValueError(f"`{name}` {reason}. Received: {name}={given}")
    if kwargs.get("input_length") is not None:
        # As Keras 3, which also takes it and ignores it. Code for Keras 2 gives it.
        warnings.warn("`input_length` has no effect, as in Keras 3: remove it.", stacklevel=3)
    return {
        name: value
        for name, value in kwargs.items()
        if name not in _UNSUPPORTED and name != "input_length"
    }


def sizes(
    dim: Any, key_dtype: Any, value_dtype: Any, output_dim: Any, input_dim: Any
) -> tuple[int, Any, int | None]:
    """Reads the sizes of a layer, which may be given as `DynamicEmbedding(input_dim, output_dim)`.

    Returns:
        The number of weights in a row, the key dtype, and the size of the vocabulary or None.

    Raises:
        TypeError: If a size is not an int, or an argument after the sizes is given by position.
        ValueError: If not exactly one of `dim` and `output_dim` is given, `input_dim` is given
            twice, or a size is out of range.
    """
    # The second argument of keras.layers.Embedding is a number, and a key dtype never is.
    if dim is not None and _is_int(key_dtype):
        if input_dim is not None or output_dim is not None:
            raise ValueError(
                "`input_dim` and `output_dim` must be given once, by position or by name. "
                f"Received: {validation.shown(dim)}, {key_dtype}, input_dim="
                f"{validation.shown(input_dim)}, output_dim={validation.shown(output_dim)}"
            )
        if _is_no_dtype(value_dtype):
            raise TypeError(
                "Arguments after `input_dim` and `output_dim` must be given by name, such as "
                f"embeddings_initializer=. Received: {validation.shown(value_dtype)} as the third"
            )
        input_dim, output_dim, dim, key_dtype = dim, key_dtype, None, "int64"
    if input_dim is not None:
        input_dim = validation.int_in(input_dim, "input_dim", most=MAX_ROWS)
    return _one_dim(dim, output_dim), key_dtype, input_dim


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def _is_no_dtype(value: Any) -> bool:
    """Whether a value can't be a dtype, but can be an initializer."""
    try:
        tf.as_dtype(value)
    except TypeError:  # the answer, and not a failure
        return True
    return False


def _one_dim(dim: Any, output_dim: Any) -> int:
    """Returns the number of weights in a row, from whichever of the two names is given."""
    if (dim is None) == (output_dim is None):
        raise ValueError(
            "`dim` must be given, or `output_dim` in its place, and not both. The size of a "
            "vocabulary is `input_dim`, which may be left out. Received: "
            f"dim={validation.shown(dim)}, output_dim={validation.shown(output_dim)}"
        )
    if output_dim is not None:
        return validation.int_in(output_dim, "output_dim", most=validation.MAX_DIM)
    return validation.int_in(dim, "dim", most=validation.MAX_DIM)


def initializer_of(
    initializer: Any, embeddings_initializer: Any, input_dim: int | None, dim: int
) -> Any:
    """Returns the initializer, from whichever of the two names is given.

    Args:
        input_dim: With `dim`, the shape for which Keras scales Glorot, He and LeCun initializers.
            None: they are scaled for a single row.

    Raises:
        ValueError: If both are given, Keras has no such initializer, or it is a matrix of rows.
    """
    if embeddings_initializer is not None:
        if not (isinstance(initializer, str) and initializer == "uniform"):
            raise ValueError(
                "`initializer` or `embeddings_initializer`, its other name, must be given, and not "
                f"both. Received: initializer={validation.shown(initializer)}, "
                f"embeddings_initializer={validation.shown(embeddings_initializer)}"
            )
        initializer = embeddings_initializer
    if isinstance(initializer, keras.initializers.Constant) and np.ndim(initializer.value) > 1:
        raise ValueError(
            "`initializer` must make the row of any id, and not a matrix: give the rows of the ids "
            "0, 1, 2, ... by `weights=`. Received: a Constant of shape "
            f"{np.shape(initializer.value)}"
        )
    return initializer if input_dim is None else for_rows(initializer, input_dim, dim)


def init_size_of(init_size: Any, input_dim: int | None) -> Any:
    """Returns the number of rows to reserve.

    Raises:
        ValueError: If both are given.
    """
    if input_dim is None:
        return init_size
    if init_size:
        raise ValueError(
            "`init_size` or `input_dim` must be given, and not both: both are the number of rows "
            f"to reserve. Received: init_size={validation.shown(init_size)}, input_dim={input_dim}"
        )
    return input_dim


def padding_id_of(padding_id: Any, mask_zero: Any, key_dtype: Any) -> Any:
    """Returns the id of padding, 0 if `mask_zero`.

    Raises:
        TypeError: If `mask_zero` is not a bool.
        ValueError: If `mask_zero` is given with another padding id, or with string keys.
    """
    if not validation.flag(mask_zero, "mask_zero"):
        return padding_id
    is_string = validation.dtype_of(key_dtype, validation.KEY_DTYPES, "key_dtype") == tf.string
    if is_string or padding_id not in (None, 0):
        raise ValueError(
            "`mask_zero` must be False if the padding is not the integer 0: `padding_id` alone "
            "says which id is masked. Received: mask_zero=True, "
            f"padding_id={validation.shown(padding_id)}, key_dtype={validation.shown(key_dtype)}"
        )
    return 0


def regularizer_of(embeddings_regularizer: Any) -> Any:
    """Returns the function of a regularizer, a name, a class or a config; or None.

    Raises:
        TypeError: If it is not a function.
        ValueError: If Keras has no such regularizer.
    """
    if embeddings_regularizer is None:
        return None
    try:
        regularizer = keras.regularizers.get(embeddings_regularizer)
    except Exception as error:  # Keras raises errors of many kinds
        raise ValueError(
            "`embeddings_regularizer` must be a Keras regularizer, its name or its config, or a "
            "function of rows. Received: embeddings_regularizer="
            f"{validation.shown(embeddings_regularizer)}: {error}"
        ) from error
    return validation.function_of(regularizer, "embeddings_regularizer")


def matrix_of(weights: Any, key_dtype: str, input_dim: int | None, dim: int) -> np.ndarray | None:
    """Returns the rows of the ids 0, 1, 2, ...

    Args:
        weights: None, a matrix [n, dim], or a list with the matrix, as from `get_weights` of a
            keras.layers.Embedding.
        key_dtype: The name of the key dtype.
        input_dim: None, or the n that it must have, as in Keras.

    Raises:
        TypeError: If the matrix does not hold numbers, or keys are strings.
        ValueError: If the matrix has another shape.
    """
    if weights is None:
        return None
    if key_dtype == "string":
        raise TypeError(
            "`weights` must be None if keys are strings, because it has the rows of the ids 0, 1, "
            "2, ...: give rows by `layer.variable.upsert(keys, rows)`. Received: "
            f"weights={validation.shown(weights)}"
        )
    try:
        if isinstance(weights, (list, tuple)) and len(weights) == 1 and np.ndim(weights[0]) == 2:
            (weights,) = weights
        matrix = np.asarray(weights)
    except (TypeError, ValueError, NotImplementedError):
        matrix = np.array(None)  # refused below
    if matrix.dtype.kind not in "iuf" and matrix.dtype.name != "bfloat16":
        raise TypeError(
            "`weights` must be a matrix of numbers, or a list with one. Received: "
            f"weights={validation.shown(weights)}"
        )
    is_of_dim = matrix.ndim == 2 and matrix.shape[1] == dim and len(matrix)
    if not is_of_dim or input_dim not in (None, len(matrix)):
        size = "n" if input_dim is None else input_dim
        raise ValueError(
            f"`weights` must be a matrix of shape ({size}, {dim}), with a row for each of the ids "
            f"0, 1, 2, ..., or a list with one. Received: shape={matrix.shape}"
        )
    return matrix


def check_set_weights(weights: Any, variables: Sequence[Any], name: str) -> None:
    """Refuses the matrix of a keras.layers.Embedding in `set_weights`.

    Args:
        weights: The argument of `set_weights`.
        variables: The layer's weights, none if it is not built.
        name: The layer, for the message.

    Raises:
        TypeError: If it is not a list of arrays.
        ValueError: If there is a matrix in place of the rows of a table.
    """
    if not isinstance(weights, (list, tuple)) or not all(hasattr(one, "shape") for one in weights):
        raise TypeError(
            f"`weights` of {name!r} must be a list of arrays, as from `get_weights`. Received: "
            f"weights={validation.shown(weights)}"
        )
    # A table's variable has no elements. A subclass may have other variables.
    wanted = [tuple(one.shape) for one in variables] or [(0,)] * len(weights)
    for one, shape in zip(weights, wanted, strict=False):  # Keras compares the lengths
        if shape[:1] == (0,) and tuple(one.shape)[:1] not in ((), (0,)):
            raise ValueError(
                f"`weights` of {name!r} must be what `get_weights` gave: a matrix does not say "
                "which ids its rows are of. For pretrained rows give `weights=` when you make the "
                "layer, or call `layer.build()` and `layer.variable.upsert(ids, rows)`. Received: "
                f"an array of shape {tuple(one.shape)}"
            )

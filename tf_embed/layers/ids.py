# SPDX-License-Identifier: Apache-2.0
"""Conversion of a user's ids to a table's keys.

Strings are keys without a conversion. A TensorFlow cast wraps numbers that do not fit, and two ids
would silently share a row. So an id keeps its number, or is refused.
"""

from __future__ import annotations

import tensorflow as tf

from tf_embed import callers
from tf_embed.ops.casts import unchanged
from tf_embed.validation import in_range, with_dependencies


def cast_ids(
    ids: tf.Tensor,
    key_dtype: tf.DType,
    layer_name: str,
    argument: str = "ids",
    setting: str | None = "key_dtype",
) -> tf.Tensor:
    """Casts ids to keys, exactly.

    Args:
        ids: Tensor of any shape: strings for string keys, otherwise integers. In a graph also
            whole floating numbers that are too small to have been rounded, because Keras assumes
            float32 if it does not know the input dtype of a subclassed model, as in an export.
            Integers that a cast in the graph has changed are refused; see `casts.unchanged`.
        argument: The name of the ids in messages.
        setting: The layer's argument for the key dtype, for messages; None if it has none.

    Returns:
        The same strings, or the same numbers in `key_dtype`.

    Raises:
        TypeError: If `ids` and the keys are not both strings or both integers.
        tf.errors.InvalidArgumentError: If an id does not fit `key_dtype`, or a cast has changed it.
            Raised by the op.

    Example:
        >>> import tensorflow as tf
        >>> cast_ids(tf.constant([3, -1], tf.int8), tf.int64, "layer").numpy().tolist()
        [3, -1]
    """
    label = f"`{argument}` of {layer_name!r}"
    if key_dtype.is_integer and ids.dtype.is_floating and not tf.executing_eagerly():
        # A keras.Input without a dtype is float32, so a traced model may pass its ids as floats.
        ids = _whole_numbers(ids, label)
    elif key_dtype == tf.string and ids.dtype.is_floating and callers.lists_functions_to_save():
        # Keras does not know that a subclassed model takes strings. The traced function can be
        # saved, but a call of it fails.
        check = tf.debugging.Assert(False, [_must_be_strings(ids.dtype, label)])
        ids = with_dependencies(tf.as_string(ids), check)
    check_kind(ids.dtype, key_dtype, layer_name, argument)
    ids = unchanged(ids, argument, layer_name)
    if ids.dtype == key_dtype:
        return ids
    message = f"{label} must fit its key dtype {key_dtype.name}"
    if setting is not None:
        message += f'; choose a wider `{setting}`, such as "int64" or "uint64"'
    ids = in_range(ids, key_dtype.min, key_dtype.max, f"{message}.")
    return tf.cast(ids, key_dtype)


def check_kind(
    dtype: tf.DType, key_dtype: tf.DType, layer_name: str, argument: str = "ids"
) -> None:
    """Checks that ids and keys are both strings or both integers.

    Raises:
        TypeError: If they are not.
    """
    label = f"`{argument}` of {layer_name!r}"
    if key_dtype == tf.string:
        if dtype != tf.string:
            raise TypeError(_must_be_strings(dtype, label))
    elif not dtype.is_integer:
        raise TypeError(_must_be_integers(dtype, label))


def _must_be_strings(dtype: tf.DType, label: str) -> str:
    return f"{label} must be strings, as its keys are. Received: dtype={dtype.name}"


def _must_be_integers(dtype: tf.DType, label: str) -> str:
    return (
        f"{label} must be integers: give the dtype in keras.Input(shape, "
        'dtype="int64"), or, for a subclassed model, in model.export(path, input_signature='
        f'[keras.InputSpec(dtype="int64", shape=...)]). Received: dtype={dtype.name}'
    )


def _whole_numbers(ids: tf.Tensor, label: str) -> tf.Tensor:
    """Converts floating ids to int64; `unchanged` refuses ids that are too large."""
    message = [_must_be_integers(ids.dtype, label), ids]
    check = tf.debugging.Assert(tf.reduce_all(tf.equal(ids, tf.floor(ids))), message)
    return tf.cast(with_dependencies(ids, check), tf.int64)

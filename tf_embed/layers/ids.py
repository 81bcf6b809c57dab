# SPDX-License-Identifier: Apache-2.0
"""Ids, as a user has them, made into keys, as a table has them.

Strings are keys as they are. A cast of TensorFlow wraps numbers that do not fit, and two ids would
share a row without a word. So an id keeps its number, or is refused.
"""

from __future__ import annotations

import tensorflow as tf

from tf_embed import callers
from tf_embed.validation import in_range, with_dependencies

# Below, every whole number is one that the type holds, and none is another one rounded.
_EXACT_BELOW = {tf.float16: 2**11, tf.bfloat16: 2**8, tf.float32: 2**24, tf.float64: 2**53}


def cast_ids(
    ids: tf.Tensor, key_dtype: tf.DType, layer_name: str, setting: str | None = "key_dtype"
) -> tf.Tensor:
    """Casts ids to keys, exactly.

    Args:
        ids: Tensor of any shape: strings for string keys, otherwise integers. In a graph also
            whole floating numbers that are too small to have been rounded: if Keras does not know
            the input dtype of a subclassed model, as in an export, it assumes float32.
        key_dtype: Dtype of the keys.
        layer_name: For messages.
        setting: The layer's argument for the dtype of its keys, for messages; None if it has none.

    Returns:
        The same strings, or the same numbers in `key_dtype`.

    Raises:
        TypeError: If `ids` and the keys are not both strings or both integers.
        tf.errors.InvalidArgumentError: If an id does not fit `key_dtype`. Raised by the op.

    Example:
        >>> import tensorflow as tf
        >>> cast_ids(tf.constant([3, -1], tf.int8), tf.int64, "layer").numpy().tolist()
        [3, -1]
    """
    if key_dtype.is_integer and not tf.executing_eagerly():
        # A keras.Input without a dtype is float32, so a traced model may bring its ids as floats.
        if ids.dtype.is_floating:
            ids = _whole_numbers(ids, layer_name)
        else:
            ids = _not_rounded(ids, layer_name)
    elif key_dtype == tf.string and ids.dtype.is_floating and callers.lists_functions_to_save():
        # Keras does not know that a subclassed model takes strings. A call of this function fails.
        check = tf.debugging.Assert(False, [_must_be_strings(ids.dtype, layer_name)])
        ids = with_dependencies(tf.as_string(ids), check)
    check_kind(ids.dtype, key_dtype, layer_name)
    if ids.dtype == key_dtype:
        return ids
    message = f"`ids` of {layer_name!r} must fit its key dtype {key_dtype.name}"
    if setting is not None:
        message += f'; choose a wider `{setting}`, such as "int64" or "uint64"'
    ids = in_range(ids, key_dtype.min, key_dtype.max, f"{message}.")
    return tf.cast(ids, key_dtype)


def check_kind(dtype: tf.DType, key_dtype: tf.DType, layer_name: str) -> None:
    """Checks that ids and keys are both strings or both integers.

    Raises:
        TypeError: If they are not.
    """
    if key_dtype == tf.string:
        if dtype != tf.string:
            raise TypeError(_must_be_strings(dtype, layer_name))
    elif not dtype.is_integer:
        raise TypeError(_must_be_integers(dtype, layer_name))


def _must_be_strings(dtype: tf.DType, layer_name: str) -> str:
    return f"`ids` of {layer_name!r} must be strings, as its keys are. Received: dtype={dtype.name}"


def _must_be_integers(dtype: tf.DType, layer_name: str) -> str:
    return (
        f"`ids` of {layer_name!r} must be integers: give the dtype in keras.Input(shape, "
        'dtype="int64"), or, for a subclassed model, in model.export(path, input_signature='
        f'[keras.InputSpec(dtype="int64", shape=...)]). Received: dtype={dtype.name}'
    )


# Ops whose output has the values of their first input.
_PASS_ON = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"}


def _not_rounded(ids: tf.Tensor, layer_name: str) -> tf.Tensor:
    """The ids, unless a cast to floats and back has changed one.

    A model in another one casts the floats that it is given back to the dtype of its own input.
    """
    given, floats = ids, []
    while tf.is_symbolic_tensor(given) and given.op.type in _PASS_ON:
        given = given.op.inputs[0]
        if given.dtype.is_floating:
            floats.append(given.dtype)
        elif floats or not given.dtype.is_integer:
            break
    if not (floats and given.dtype.is_integer):
        return ids
    back = given
    for dtype in reversed(floats):
        back = tf.cast(back, dtype)
    check = tf.debugging.Assert(
        tf.reduce_all(tf.equal(tf.cast(back, given.dtype), given)),
        [
            f"`ids` of {layer_name!r} must not be rounded. A model around the layer casts them to "
            f'floats: give it a keras.Input(shape, dtype="{given.dtype.name}"). Received:',
            given,
        ],
    )
    return with_dependencies(ids, check)


def _whole_numbers(ids: tf.Tensor, layer_name: str) -> tf.Tensor:
    """Floating ids as int64, if that changes none of them."""
    limit = tf.constant(_EXACT_BELOW[ids.dtype], ids.dtype)
    exact = tf.logical_and(tf.equal(ids, tf.floor(ids)), tf.abs(ids) < limit)
    check = tf.debugging.Assert(
        tf.reduce_all(exact), [_must_be_integers(ids.dtype, layer_name), ids]
    )
    return tf.cast(with_dependencies(ids, check), tf.int64)

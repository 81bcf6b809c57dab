"""What a user passes, made into tensors of the table's types, or refused with one sentence.

Tensors must have the right dtype already: a cast that nobody asked for loses keys. NumPy arrays
and Python numbers have no such intention behind their dtype, so they are converted, but only
where every number stays what it is: integers to any integer type that holds them, and numbers to
a floating type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

KEY_DTYPES = (tf.int64, tf.int32, tf.uint64, tf.uint32, tf.string)
VALUE_DTYPES = (
    tf.float32,
    tf.float16,
    tf.bfloat16,
    tf.float64,
    tf.int8,
    tf.int32,
    tf.int64,
    tf.bool,
    tf.string,
)


def dtype_of(dtype: Any, allowed: Iterable[tf.DType], argument: str) -> tf.DType:
    """The tf.DType of an argument.

    Raises:
        TypeError: It is no dtype, or not one of `allowed`.
    """
    allowed = tuple(allowed)
    try:
        result = tf.as_dtype(dtype)
    except TypeError:
        result = None
    if result not in allowed:
        names = ", ".join(one.name for one in allowed)
        raise TypeError(f"`{argument}` must be one of {names}. Received: {argument}={dtype!r}")
    return result


def positive_int(value: Any, argument: str, *, least: int = 1, most: int = 2**63 - 1) -> int:
    """A Python int from `least` to `most`.

    Raises:
        TypeError: It is no integer.
        ValueError: It is too small or too large.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{argument}` must be an int. Received: {argument}={value!r}")
    if value < least:
        raise ValueError(f"`{argument}` must be at least {least}. Received: {argument}={value}")
    if value > most:
        raise ValueError(f"`{argument}` must be at most {most}. Received: {argument}={value}")
    return int(value)


def is_training(training: Any) -> bool:
    """A Python bool from what a caller says, or Keras; None is False.

    Raises:
        TypeError: It is a tensor, whose value a graph that is being traced can't know.
    """
    if tf.is_tensor(training):
        raise TypeError(
            "`training` must be a Python bool: where a tensor decides, take two lookups in a "
            f"tf.cond. Received: training={training!r}"
        )
    return bool(training)


def tensor_of(value: Any, dtype: tf.DType, argument: str, owner: str) -> tf.Tensor:
    """A tensor of `dtype` with exactly the numbers or strings of `value`.

    Args:
        value: A tensor, a NumPy array, or Python numbers or strings in lists.
        dtype: The dtype that the table wants.
        argument: Name of the argument, for messages.
        owner: Name of the variable, for messages.

    Raises:
        TypeError: Its dtype is another, or its numbers are not of the kind of `dtype`.
        ValueError: An integer that `dtype` does not hold.
    """
    if isinstance(value, tf.Tensor) and value.dtype == dtype:
        return value
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"`{argument}` of {owner!r} must be dense. Received: {type(value).__name__}; "
            "tf_embed.layers.DynamicEmbedding takes ragged and sparse ids"
        )
    if not _is_plain(value):
        value = tf.convert_to_tensor(value)
        if value.dtype != dtype:
            raise TypeError(
                f"`{argument}` of {owner!r} must be of dtype {dtype.name}. Received: "
                f"dtype={value.dtype.name}"
            )
        return value
    if dtype == tf.string:
        return _strings_of(value, argument, owner)
    array = np.asarray(value)
    if array.dtype.kind == "f" and dtype.is_integer and not isinstance(value, np.ndarray):
        # NumPy makes floats of integers above the int64 range beside others.
        exact = np.asarray(value, object)
        array = exact if all(isinstance(one, (int, np.integer)) for one in exact.flat) else array
    return tf.convert_to_tensor(_exact_array(array, dtype, argument, owner), dtype)


def _is_plain(value: Any) -> bool:
    """Whether there is no tensor in `value`, only NumPy and Python."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one) for one in value)
    plain = (np.ndarray, np.generic, range, int, float, complex, str, bytes, type(None))
    return isinstance(value, plain)


def _strings_of(value: Any, argument: str, owner: str) -> tf.Tensor:
    """Strings, each byte of them: NumPy's own strings would lose zeros at the end."""
    array = np.asarray(value, None if isinstance(value, np.ndarray) else object)
    wrong = next((one for one in array.flat if not isinstance(one, (str, bytes))), None)
    if wrong is not None:
        raise TypeError(
            f"`{argument}` of {owner!r} must be of dtype string. Received: {wrong!r} of type "
            f"{type(wrong).__name__}"
        )
    return tf.convert_to_tensor(array if array.size else array.astype("S"), tf.string)


def _exact_array(array: np.ndarray, dtype: tf.DType, argument: str, owner: str) -> np.ndarray:
    """`array` as an array of `dtype`, every number unchanged but for rounding to a float."""
    target = dtype.as_numpy_dtype
    same = array.dtype == np.dtype(target)
    if same or (array.size == 0 and array.dtype.kind != "S"):
        return array.astype(target)
    if dtype.is_floating and (array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"):
        return array.astype(target)
    is_python_ints = array.dtype.kind == "O" and all(
        isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in array.flat
    )
    if not dtype.is_integer or not (array.dtype.kind in "iu" or is_python_ints):
        raise TypeError(
            f"`{argument}` of {owner!r} must be of dtype {dtype.name}. Received: "
            f"dtype={array.dtype.name}"
        )
    least, largest = int(array.min()), int(array.max())
    if least < dtype.min or largest > dtype.max:
        wrong = least if least < dtype.min else largest
        raise ValueError(
            f"`{argument}` of {owner!r} must fit dtype {dtype.name}. Received: {wrong}"
        )
    return array.astype(target)


def scope(name: str | None, verb: str) -> contextlib.AbstractContextManager[Any]:
    """The name scope of a verb.

    None where nobody would see it: to enter one takes a seventh of an eager lookup of 256 keys.

    Args:
        name: What the user calls the operation, or None.
        verb: What it is called then.
    """
    if name is None and tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.name_scope(name or verb)


def after(tensor: tf.Tensor, *checks: tf.Operation | None) -> tf.Tensor:
    """A tensor that is there once the checks have passed.

    Args:
        tensor: The tensor.
        checks: What the functions of tf.debugging give: operations in a graph, None where they
            have passed already.
    """
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(tensor)


def check_rows(keys: tf.Tensor, rows: tf.Tensor, dim: int, argument: str, owner: str) -> None:
    """Checks that there is a row of `dim` for each key, as far as shapes are known.

    Raises:
        ValueError: The shapes do not go together. Both are named.
    """
    wanted = keys.shape.concatenate([dim])
    if not wanted.is_compatible_with(rows.shape):
        raise ValueError(
            f"`{argument}` of {owner!r} must have the shape of the keys and then dim: {wanted}. "
            f"Received: keys.shape={keys.shape}, {argument}.shape={rows.shape}"
        )


def flat_weights(
    ids: tf.SparseTensor | tf.RaggedTensor,
    weights: tf.SparseTensor | tf.RaggedTensor | None,
    ids_name: str,
    weights_name: str,
) -> tf.Tensor | None:
    """The values of `weights`, which must lie where those of `ids` do, in the same container.

    Where they lie is known, and checked, only when they are read.
    """
    if weights is None:
        return None
    if isinstance(ids, tf.SparseTensor):
        message = f"{weights_name} must have the indices of {ids_name}."
        same = tf.debugging.assert_equal(ids.indices, weights.indices, message)
        return after(weights.values, same)
    message = f"{weights_name} must have the row lengths of {ids_name}."
    same = [
        tf.debugging.assert_equal(tf.cast(ours, tf.int64), tf.cast(theirs, tf.int64), message)
        for ours, theirs in zip(ids.nested_row_splits, weights.nested_row_splits, strict=True)
        if ours is not theirs
    ]
    return after(weights.flat_values, *same)

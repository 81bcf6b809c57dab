# SPDX-License-Identifier: Apache-2.0
"""Argument checks: converts users' values to tensors of the table's dtypes, or raises.

A tensor is only cast to a dtype that holds all numbers of the tensor's dtype, such as int32 to
int64, because another cast can lose keys. The dtype of NumPy arrays and Python numbers is rarely
deliberate, so they are converted if the conversion is exact. Integers convert to any integer dtype
that holds them, and numbers to a floating dtype.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import casts

KEY_DTYPES = tuple(tf.as_dtype(name) for name in _library.vocabulary()["key_types"])
COMBINERS: tuple[str, ...] = tuple(_library.vocabulary()["combiners"])
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


MAX_DIM = 2**31 - 1  # files store it in 32 bits

# Names are written to messages, files and checkpoints.
MAX_NAME_BYTES = 1024

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 200


def shown(value: Any) -> str:
    """Returns the truncated repr of a value, for messages."""
    try:
        return _short.repr(value)
    except Exception:  # Python raises for integers of many digits
        return f"<{type(value).__name__}>"


def dtype_of(dtype: Any, allowed: Iterable[tf.DType], argument: str) -> tf.DType:
    """Returns the tf.DType of an argument.

    Raises:
        TypeError: If it is not a dtype, or is not in `allowed`.
    """
    allowed = tuple(allowed)
    result = None
    # TensorFlow also accepts the numbers of an enum, and anything with a `dtype`.
    if isinstance(dtype, (tf.DType, np.dtype, str, type)):
        with contextlib.suppress(TypeError):  # not a dtype: raises below
            result = tf.as_dtype(dtype)
    if result not in allowed:
        names = ", ".join(one.name for one in allowed)
        raise TypeError(f"`{argument}` must be one of {names}. Received: {argument}={shown(dtype)}")
    return result


def int_in(value: Any, argument: str, *, least: int = 1, most: int = 2**63 - 1) -> int:
    """Returns a Python int from `least` to `most`, by default a positive int.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is too small or too large.
    """
    # A bool is an int in Python, but not a number here.
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{argument}` must be an int. Received: {argument}={shown(value)}")
    if value < least:
        raise ValueError(
            f"`{argument}` must be at least {least}. Received: {argument}={shown(int(value))}"
        )
    if value > most:
        raise ValueError(
            f"`{argument}` must be at most {most}. Received: {argument}={shown(int(value))}"
        )
    return int(value)


def flag(value: Any, argument: str) -> bool:
    """Returns a Python bool, from a bool, 0 or 1.

    Raises:
        TypeError: If it is anything else, such as "False", which is true in Python.
    """
    if value is True or value is False:
        return value
    if isinstance(value, (int, np.bool_, np.integer)) and value in (0, 1):
        return bool(value)
    raise TypeError(f"`{argument}` must be a bool. Received: {argument}={shown(value)}")


def name_of(value: Any, argument: str = "name") -> str:
    """Returns a name: text without control characters, of at most `MAX_NAME_BYTES` in UTF-8.

    Raises:
        TypeError: If it is not a str, or is empty.
        ValueError: If it has control characters, is too long, or can't be encoded in UTF-8.
    """
    if not isinstance(value, str) or not value:
        raise TypeError(
            f"`{argument}` must be a non-empty string. Received: {argument}={shown(value)}"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0  # refused below
    if not 0 < size <= MAX_NAME_BYTES:
        raise ValueError(
            f"`{argument}` must be at most {MAX_NAME_BYTES} bytes of UTF-8. Received: "
            f"{argument}={shown(value)} of {len(value)} characters"
        )
    if any(unicodedata.category(one) == "Cc" for one in value):
        raise ValueError(
            f"`{argument}` must have no control characters. Received: {argument}={shown(value)}"
        )
    return value


def path_of(path: Any, argument: str) -> str:
    """Returns a path as text, not empty.

    Raises:
        TypeError: If it is not a path.
        ValueError: If it is empty, contains a zero byte, or is not UTF-8.
    """
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, (str, bytes)):
        raise TypeError(
            f"`{argument}` must be a str or a path. Received: {argument}={shown(path)} "
            f"of type {type(path).__name__}"
        )
    try:
        # Surrogates, which `os.fsdecode` makes of other bytes, fail here.
        text = path.decode() if isinstance(path, bytes) else path.encode().decode()
    except UnicodeError:
        text = "\0"  # refused below
    if not text or "\0" in text:
        raise ValueError(
            f"`{argument}` must be a path in UTF-8, neither empty nor with zeros. Received: "
            f"{argument}={shown(path)}"
        )
    return text


def function_of(value: Any, argument: str) -> Any:
    """Returns a function, or another callable object.

    Raises:
        TypeError: If it is not callable, or is a class. A class instead of its instance is a
            likely mistake.
    """
    if not callable(value) or isinstance(value, type):
        raise TypeError(f"`{argument}` must be callable. Received: {argument}={shown(value)}")
    return value


def call_of(function: Any, argument: str, owner: str, *inputs: Any, **options: Any) -> Any:
    """Calls a user's function and returns its result.

    Raises:
        ValueError: If the function raises.
    """
    try:
        return function(*inputs, **options)
    except Exception as error:
        raise ValueError(
            f"`{argument}` of {owner!r} raised {type(error).__name__}: {error}. Received: "
            f"{argument}={shown(function)}"
        ) from error


def items_of(value: Any, argument: str) -> list[Any]:
    """Returns the items of a list, a tuple, a range, or an array of rank above 0.

    Raises:
        TypeError: If it is anything else, such as a str, which would yield its characters.
    """
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    if not is_array and not isinstance(value, (list, tuple, range)):
        raise TypeError(
            f"`{argument}` must be a list or a tuple. Received: {argument}={shown(value)} of type "
            f"{type(value).__name__}"
        )
    return list(value)


def one_of(value: Any, allowed: Iterable[str], argument: str, *, or_none: bool = False) -> Any:
    """Returns a value that is an allowed word; with `or_none` also None.

    Raises:
        ValueError: If it is not an allowed word, or not a str.
    """
    allowed = tuple(allowed)
    if value is None and or_none:
        return None
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"`{argument}` must be {'None or ' if or_none else ''}one of {', '.join(allowed)}. "
            f"Received: {argument}={shown(value)}"
        )
    return value


def positive_number(value: Any, argument: str, *, most: float) -> float:
    """Returns a Python number above 0, up to `most`.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is out of range, or NaN.
    """
    kinds = (int, float, np.integer, np.floating)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kinds):
        raise TypeError(f"`{argument}` must be a number. Received: {argument}={shown(value)}")
    if not 0 < value <= most:
        raise ValueError(
            f"`{argument}` must be above 0 and at most {most:g}. Received: {argument}="
            f"{shown(value)}"
        )
    return float(value)


def scalar_of(value: tf.Tensor, argument: str) -> tf.Tensor:
    """Returns a scalar integer tensor, as int64.

    Raises:
        TypeError: If it is not a dense tensor of integers.
        ValueError: If its rank is above 0.
    """
    dense = isinstance(value, (tf.Tensor, tf.Variable))
    if not dense or not value.dtype.is_integer:
        kind = f"dtype {value.dtype.name}" if dense else type(value).__name__
        raise TypeError(f"`{argument}` must be an integer. Received: {argument} of {kind}")
    if not value.shape.is_compatible_with([]):
        raise ValueError(
            f"`{argument}` must be one integer. Received: {argument} of shape {value.shape}"
        )
    return tf.cast(value, tf.int64)


def is_training(training: Any) -> bool:
    """Returns the `training` argument of a caller or of Keras as a Python bool; None is False.

    Raises:
        TypeError: If it is not a bool. A tensor is not accepted, because its value is unknown while
            a graph is traced.
    """
    if training is None or training is False:
        return False
    if training is True:
        return True
    if tf.is_tensor(training):
        raise TypeError(
            "`training` must be a Python bool: where a tensor decides, take two lookups in a "
            f"tf.cond. Received: training={shown(training)}"
        )
    return flag(training, "training")


def tensor_of(value: Any, dtype: tf.DType, argument: str, owner: str) -> tf.Tensor:
    """Returns a tensor of `dtype` with exactly the numbers or strings of `value`.

    Args:
        value: A tensor, a NumPy array, or Python numbers or strings in lists.

    Raises:
        TypeError: If it is neither a tensor nor an array, is a tensor of a dtype with numbers that
            `dtype` does not hold, or has numbers of another kind.
        ValueError: If `dtype` can't hold a number, or lists have different lengths.
    """
    # Dtypes are compared by identity first, because their == takes a microsecond.
    if isinstance(value, tf.Tensor) and (value.dtype is dtype or value.dtype == dtype):
        return value
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"`{argument}` of {owner!r} must be dense. Received: {type(value).__name__}; "
            "tf_embed.layers.DynamicEmbedding takes ragged and sparse ids"
        )
    if not _is_plain(value):
        value = as_tensor(value, argument, owner)
        if not casts.holds(dtype, value.dtype):
            raise TypeError(
                f"`{argument}` of {owner!r} must be of dtype {dtype.name}. Received: "
                f"dtype={value.dtype.name}"
            )
        return tf.cast(value, dtype)
    if dtype == tf.string:
        return _strings_of(value, argument, owner)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"`{argument}` of {owner!r} must have lists of one length on each axis. Received: "
            f"{argument}={shown(value)}"
        ) from error
    if array.dtype.kind == "f" and dtype.is_integer and not isinstance(value, np.ndarray):
        # NumPy converts a list to floats if only some of its integers exceed the int64 range.
        exact = np.asarray(value, object)
        array = exact if all(isinstance(one, (int, np.integer)) for one in exact.flat) else array
    return tf.convert_to_tensor(_exact_array(array, dtype, argument, owner), dtype)


def keys_of(value: Any, key_dtype: tf.DType, argument: str, owner: str) -> tf.Tensor:
    """Returns keys: `tensor_of`, and in a graph `unchanged`."""
    keys = tensor_of(value, key_dtype, argument, owner)
    # An eager tensor has `numpy`. The call alone would take a microsecond, for its decorator.
    return keys if hasattr(keys, "numpy") else casts.unchanged(keys, argument, owner)


def as_tensor(value: Any, argument: str, owner: str) -> tf.Tensor:
    """Returns a value as a tensor, converted by TensorFlow.

    Raises:
        TypeError: If TensorFlow can't convert it.
    """
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise TypeError(
            f"`{argument}` of {owner!r} must be a tensor, an array, or numbers or strings in "
            f"lists. Received: {argument}={shown(value)} of type {type(value).__name__}"
        ) from error


def _is_plain(value: Any) -> bool:
    """Whether `value` has only NumPy and Python values, and no tensor."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one) for one in value)
    plain = (np.ndarray, np.generic, range, int, float, complex, str, bytes, type(None))
    return isinstance(value, plain)


def _strings_of(value: Any, argument: str, owner: str) -> tf.Tensor:
    """Returns a tensor of strings. Uses objects: NumPy's strings lose trailing zero bytes."""
    array = np.asarray(value, None if isinstance(value, np.ndarray) else object)
    wrong = next((one for one in array.flat if not isinstance(one, (str, bytes))), None)
    if wrong is not None:
        raise TypeError(
            f"`{argument}` of {owner!r} must be of dtype string. Received: {shown(wrong)} of type "
            f"{type(wrong).__name__}"
        )
    try:
        return tf.convert_to_tensor(array if array.size else array.astype("S"), tf.string)
    except ValueError as error:
        raise ValueError(
            f"`{argument}` of {owner!r} must be text that UTF-8 holds, or bytes. Received: "
            f"{argument}={shown(value)}"
        ) from error


def _exact_array(array: np.ndarray, dtype: tf.DType, argument: str, owner: str) -> np.ndarray:
    """Converts `array` to `dtype`. Numbers are unchanged except for rounding to a float."""
    target = dtype.as_numpy_dtype
    same = array.dtype == np.dtype(target)
    # NumPy converts an empty list to floats, which loses no number.
    if same or (array.size == 0 and array.dtype.kind != "S"):
        return array.astype(target)
    if dtype.is_floating and (array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"):
        return rounded(array, dtype, argument, owner)
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
            f"`{argument}` of {owner!r} must fit dtype {dtype.name}. Received: {shown(wrong)}"
        )
    return array.astype(target)


def rounded(array: np.ndarray, dtype: tf.DType, argument: str, owner: str) -> np.ndarray:
    """Converts `array` to a floating dtype, without overflow.

    Raises:
        ValueError: If a finite number would become infinite.
    """
    with np.errstate(over="ignore"):
        result = array.astype(dtype.as_numpy_dtype)
    overflown = np.isinf(result)
    if overflown.any():
        overflown &= ~np.isinf(array)
        if overflown.any():
            raise ValueError(
                f"`{argument}` of {owner!r} must fit dtype {dtype.name}, whose largest number is "
                f"{float(dtype.max):.6g}. Received: {array[overflown].flat[0]}"
            )
    return result


def name_scope(name: str | None, verb: str) -> contextlib.AbstractContextManager[Any]:
    """Returns the name scope of an operation.

    An eager call without a `name` enters no scope. The scope would have no effect, and entering it
    takes a noticeable part of a small eager lookup.

    Raises:
        TypeError: If `name` is not a str.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` must be a str or None. Received: name={shown(name)}")
    if name is None and tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.name_scope(name or verb)


def with_dependencies(tensor: tf.Tensor, *checks: tf.Operation | None) -> tf.Tensor:
    """Returns a tensor that is available only after the checks have passed.

    Args:
        checks: The results of tf.debugging functions: operations in a graph, None if they have
            passed already.
    """
    with tf.control_dependencies([check for check in checks if check is not None]):
        # A new tensor, so that its readers depend on the checks.
        return tf.identity(tensor)


def in_range(
    values: tf.Tensor, least: int, most: int, message: str, places: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns integers that are available only after a check that all are in a range.

    Args:
        values: Integers of any shape.
        least: The minimum. It may be below the dtype's range.
        most: The maximum. It may be above the dtype's range.
        message: The sentence of the error, which also has the first value out of range.
        places: The position of each value, as an error should name it, [n, axes]. Default: None,
            its indices in `values`.

    Raises:
        tf.errors.InvalidArgumentError: If a value is out of range; in a graph when it runs.
    """
    outside = []
    if values.dtype.min < least:
        outside.append(values < tf.constant(least, values.dtype))
    if values.dtype.max > most:
        outside.append(values > tf.constant(most, values.dtype))
    if not outside:
        return values
    is_outside = outside[0] if len(outside) == 1 else tf.logical_or(*outside)
    is_good = tf.logical_not(tf.reduce_any(is_outside))

    def first() -> tuple[tf.Tensor, tf.Tensor]:
        # tf.where finds no position in a scalar.
        shape = [1] if values.shape.rank == 0 else tf.shape(values)
        place = tf.where(tf.reshape(is_outside, shape))[0]
        value = tf.gather_nd(tf.reshape(values, shape), place)
        return value, place if places is None else tf.gather_nd(places, place)

    if tf.executing_eagerly():
        if not is_good:
            value, place = first()
            raise tf.errors.InvalidArgumentError(
                None, None, f"{message} Received: {value} at {place.numpy().tolist()}"
            )
        return values

    def fail() -> tf.Tensor:
        value, place = first()
        check = tf.debugging.Assert(False, [f"{message} Received:", value, "at", place])
        return with_dependencies(tf.constant(False), check)

    # Search for the first value out of range only if there is any.
    passed = tf.cond(is_good, lambda: tf.constant(True), fail)
    return with_dependencies(values, passed)


def check_rows(keys: tf.Tensor, rows: tf.Tensor, dim: int, argument: str, owner: str) -> None:
    """Checks that there is a row of `dim` for each key, as far as shapes are known.

    Raises:
        ValueError: If the shapes do not match. The message has both.
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
    """Returns the values of `weights`, which must have the positions and the container of `ids`.

    The positions are checked when the values are read, because they may be unknown before.

    Raises:
        ValueError: If the static shapes or the ragged ranks of the positions differ.
    """
    if weights is None:
        return None
    if len(_places(ids)) != len(_places(weights)):
        raise ValueError(
            f"{weights_name} must be as ragged as {ids_name}. Received: ragged ranks "
            f"{len(_places(weights))} and {len(_places(ids))}"
        )
    for ours, theirs in zip(_places(ids), _places(weights), strict=True):
        if not ours.shape.is_compatible_with(theirs.shape):
            raise ValueError(
                f"{weights_name} must lie where {ids_name} do. Received: shapes of the indices or "
                f"row splits {ours.shape} and {theirs.shape}"
            )
    if isinstance(ids, tf.SparseTensor):
        message = f"{weights_name} must have the indices of {ids_name}."
        return with_dependencies(
            weights.values, *assert_same(ids.indices, weights.indices, message)
        )
    message = f"{weights_name} must have the row lengths of {ids_name}."
    same = [
        check
        for ours, theirs in zip(ids.nested_row_splits, weights.nested_row_splits, strict=True)
        # Ids and weights often share their splits.
        if ours is not theirs
        for check in assert_same(tf.cast(ours, tf.int64), tf.cast(theirs, tf.int64), message)
    ]
    return with_dependencies(weights.flat_values, *same)


def assert_same(ours: tf.Tensor, theirs: tf.Tensor, message: str) -> list[Any]:
    """Asserts that tensors of equal rank have the same shape, and then the same values.

    `tf.debugging.assert_equal` alone broadcasts, so a tensor without values equals any tensor.
    """
    shape = tf.debugging.assert_equal(tf.shape(ours), tf.shape(theirs), message)
    values = tf.debugging.assert_equal(with_dependencies(ours, shape), theirs, message)
    return [shape, values]


def _places(values: tf.SparseTensor | tf.RaggedTensor) -> tuple[tf.Tensor, ...]:
    """Returns the tensors with the positions of the values of a container."""
    if isinstance(values, tf.SparseTensor):
        return (values.indices,)
    return tuple(values.nested_row_splits)

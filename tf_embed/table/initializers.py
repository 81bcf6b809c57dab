# SPDX-License-Identifier: Apache-2.0
"""The initial row of a key.

A Keras initializer draws a tensor for a whole batch, so the row of a key would depend on the batch
in which it first occurs. Instead, the table reads the parameters of a Keras initializer and draws
each row from (seed, table, key). The row is then the same in any order, batch, number of shards and
process. A user's callable draws the rows of the new keys of each batch, which are not reproducible.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, SupportsIndex

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import whole_table_ops

# Standard deviation of a standard normal distribution cut off at two standard deviations.
_TRUNCATED_STDDEV = 0.87962566103423978

_VARIANCE_SCALING = (
    keras.initializers.VarianceScaling,
    keras.initializers.GlorotNormal,
    keras.initializers.GlorotUniform,
    keras.initializers.HeNormal,
    keras.initializers.HeUniform,
    keras.initializers.LecunNormal,
    keras.initializers.LecunUniform,
)
_SEEDED = (
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
    *_VARIANCE_SCALING,
)
_OF_KIND = {
    "normal": keras.initializers.RandomNormal,
    "truncated_normal": keras.initializers.TruncatedNormal,
    "uniform": keras.initializers.RandomUniform,
}
# TensorFlow's own initializers, and the Keras initializers with the same arguments.
_OF_TENSORFLOW = {
    tf.zeros_initializer: keras.initializers.Zeros,
    tf.ones_initializer: keras.initializers.Ones,
    tf.constant_initializer: keras.initializers.Constant,
    tf.random_uniform_initializer: keras.initializers.RandomUniform,
    tf.random_normal_initializer: keras.initializers.RandomNormal,
    tf.compat.v1.zeros_initializer: keras.initializers.Zeros,
    tf.compat.v1.ones_initializer: keras.initializers.Ones,
    tf.compat.v1.constant_initializer: keras.initializers.Constant,
    tf.compat.v1.random_uniform_initializer: keras.initializers.RandomUniform,
    tf.compat.v1.random_normal_initializer: keras.initializers.RandomNormal,
    tf.compat.v1.truncated_normal_initializer: keras.initializers.TruncatedNormal,
}


@dataclasses.dataclass(frozen=True)
class RowInitializer:
    """The distribution, or the function, of the rows of absent keys.

    Attributes:
        kind: "constant" (values: [number]), "row" (values: the row), "uniform" ([minimum,
            maximum]), "normal" or "truncated_normal" ([mean, standard deviation]).
        values: See `kind`.
        seed: Seed of the random kinds, int64.
        table_id: The second half of the seed, so that tables with the same seed differ, int64.
        draw: None, or a function of a shape (n, dim) and a dtype that returns initial rows of n
            keys. It replaces all attributes above.
        by_key: None, or a function of keys [n] that returns their initial rows [n, dim]. It
            replaces all attributes above.
        strings: The row of a table of strings; () for empty ones.
    """

    kind: str = "constant"
    values: tuple[float, ...] = (0.0,)
    seed: int = 0
    table_id: int = 0
    draw: Callable[..., Any] | None = None
    strings: tuple[bytes, ...] = ()
    by_key: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def is_of_python(self) -> bool:
        """Whether Python draws the rows, so that a step must insert new rows before it."""
        return self.draw is not None or self.by_key is not None


class KeyedInitializer(abc.ABC):
    """An initializer that draws rows in Python, as a function of their keys."""

    @abc.abstractmethod
    def rows(self, keys: tf.Tensor) -> tf.Tensor:
        """The rows [n, dim] of keys [n], of the table's dtypes. May be called in a graph."""


def table_id_of(name: str) -> int:
    """A 64-bit hash of a variable's name, the same in every process, as a signed integer."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def current_initializer(initializer: RowInitializer, handle: tf.Tensor) -> RowInitializer:
    """An initializer with the seed that its table has now.

    A load gives a table the seed of the saved table, and so its initial rows. The options keep the
    seed that the table was made with.

    Args:
        initializer: The initializer in the table's options.
        handle: The table's resource, in this process or on a server.
    """
    with tf.init_scope():
        seed, table_id = whole_table_ops.origin(handle).numpy()
    return dataclasses.replace(initializer, seed=int(seed), table_id=int(table_id))


def row_initializer(
    initializer: Any, *, dim: int, value_dtype: tf.DType, name: str
) -> RowInitializer:
    """Reads an initializer.

    Args:
        initializer: None for 0 or empty strings. If the value dtype is string: a string, or `dim`
            of them. Otherwise a number; an array of shape [dim]; a Keras initializer, or its name
            or config; a TensorFlow initializer; or a callable that takes a shape (n, dim) and a
            dtype. In a graph n is an int32 scalar tensor.
        name: The variable's name, for `table_id` and for messages.

    Returns:
        The initializer that the table draws rows from.

    Raises:
        TypeError: If `initializer` is of none of these types.
        ValueError: If it can't give rows of this dtype and dim.

    Example:
        >>> row_initializer(0.5, dim=4, value_dtype=tf.float32, name="v").values
        (0.5,)
        >>> row_initializer("he_normal", dim=4, value_dtype=tf.float32, name="v").kind
        'truncated_normal'
    """
    table_id = table_id_of(name)
    if initializer is None:
        return RowInitializer(table_id=table_id)
    if value_dtype == tf.string:
        return RowInitializer(table_id=table_id, strings=_strings(initializer, dim, name))
    if isinstance(initializer, KeyedInitializer):
        return RowInitializer(table_id=table_id, by_key=initializer.rows)
    initializer = _seeded_by_tensorflow(_object_of(initializer, name), value_dtype)
    # By the exact class, because a subclass may draw other numbers.
    kind = type(initializer)
    if kind is keras.initializers.Zeros:
        initializer = 0
    elif kind is keras.initializers.Ones:
        initializer = 1
    elif kind is keras.initializers.Constant:
        initializer = initializer.value
    elif kind in _SEEDED:
        if not value_dtype.is_floating:
            raise ValueError(
                f"`initializer` of {name!r} must be a number or an array, for its value dtype is "
                f"{value_dtype.name}. Received: initializer={validation.shown(initializer)}"
            )
        distribution, values = _distribution(initializer, dim, value_dtype, name)
        return RowInitializer(
            kind=distribution, values=values, seed=_seed_of(initializer), table_id=table_id
        )
    elif callable(initializer) and not tf.is_tensor(initializer):
        _check_call(initializer, dim, name)
        return RowInitializer(table_id=table_id, draw=initializer)
    values = _numbers(initializer, dim, value_dtype, name)
    return RowInitializer(
        kind="constant" if len(values) == 1 else "row", values=values, table_id=table_id
    )


def keras_initializer(initializer: Any, value_dtype: tf.DType) -> Any:
    """The Keras equivalent of a TensorFlow initializer; other values unchanged.

    TensorFlow's uniform initializer can draw integers, and is unchanged for integer dtypes.
    """
    kind = _OF_TENSORFLOW.get(type(initializer))
    if kind is None or (kind in _SEEDED and not value_dtype.is_floating):
        return initializer
    arguments = {
        name: value
        for name, value in initializer.get_config().items()
        if name in ("value", "minval", "maxval", "mean", "stddev", "seed")
    }
    if arguments.get("maxval", 0) is None:
        arguments["maxval"] = 1.0
    # Keras does not accept NumPy integers.
    if isinstance(arguments.get("seed"), SupportsIndex):
        arguments["seed"] = operator.index(arguments["seed"])
    return kind(**arguments)


def _seeded_by_tensorflow(initializer: Any, value_dtype: tf.DType) -> Any:
    """`keras_initializer`, but TensorFlow initializers without a seed follow tf.random.set_seed."""
    of_keras = keras_initializer(initializer, value_dtype)
    config = {} if of_keras is initializer else of_keras.get_config()
    if config.get("seed", 0) is not None:
        return of_keras
    # The seed is drawn once, now and outside of a graph, which counts its own seeds.
    with tf.init_scope():
        seed, seed_of_op = tf.compat.v1.random.get_seed(None)
    if seed is None:  # nothing was set, and Keras draws a seed
        return of_keras
    # Both are below 2^31. TensorFlow draws another second seed for each op. TensorFlow keeps a
    # NumPy seed unchanged, which Keras does not accept.
    return type(of_keras)(**{**config, "seed": (int(seed) << 32) | int(seed_of_op)})


def with_own_seed(initializer: Any) -> Any:
    """The same initializer, with its seed fixed.

    A Keras initializer without a seed, or with a keras.random.SeedGenerator, writes no seed into
    its config, so a copy from the config would draw other rows. Keras can't copy a TensorFlow
    initializer from its config at all.

    Args:
        initializer: As in `row_initializer`, for floating rows.

    Returns:
        A Keras initializer with an int as seed, if `initializer` is a random initializer of Keras
        or TensorFlow, or a name, config or class of Keras. For another TensorFlow initializer, its
        Keras equivalent. Otherwise `initializer` itself.

    Raises:
        TypeError: If `initializer` is a class, but not of an initializer.
        ValueError: If Keras has no initializer of that name or config.
    """
    initializer = _seeded_by_tensorflow(_object_of(initializer, None), tf.float32)
    if type(initializer) not in _SEEDED:
        return initializer
    return type(initializer).from_config(
        {**initializer.get_config(), "seed": _seed_of(initializer)}
    )


def for_rows(initializer: Any, rows: int, dim: int) -> Any:
    """The initializer of a table that has a known number of rows.

    Each row is drawn separately, so Glorot, He, LeCun and other initializers that scale by the
    shape of a matrix would use the shape of a single row. They are replaced by an initializer with
    the same distribution and seed that does not scale.

    Args:
        initializer: As in `row_initializer`, for floating rows.

    Returns:
        A Keras initializer instead of an initializer that scales; otherwise the result of
        `with_own_seed`.

    Raises:
        TypeError, ValueError: As `with_own_seed`.

    Example:
        >>> initializer = keras.initializers.HeUniform(seed=1)
        >>> round(for_rows(initializer, 600, 4).maxval, 6)
        0.1
    """
    initializer = with_own_seed(initializer)
    if type(initializer) not in _VARIANCE_SCALING:
        return initializer
    kind, values = _scaled(initializer, rows, dim)
    return _OF_KIND[kind](*values, seed=initializer.seed)


def _object_of(initializer: Any, name: str | None) -> Any:
    """The Keras initializer of a name, a config or a class. Other values are returned unchanged.

    Raises:
        TypeError: If `initializer` is a class, but not of an initializer.
        ValueError: If Keras has no initializer of that name or config.
    """
    owner = "`initializer`" if name is None else f"`initializer` of {name!r}"
    if isinstance(initializer, type):
        base = keras.initializers.Initializer
        # An abstract class can be instantiated too, but draws nothing.
        if not issubclass(initializer, base) or initializer.__call__ is base.__call__:
            raise TypeError(
                f"{owner} must be an object and not a class. Received: initializer="
                f"{validation.shown(initializer)}"
            )
    elif not isinstance(initializer, (str, dict)):
        return initializer
    try:
        return keras.initializers.get(initializer)
    # Keras raises errors of many kinds for a bad config.
    except Exception as error:
        raise ValueError(
            f"{owner} must be one that Keras can make, by name, config or class. Received: "
            f"initializer={validation.shown(initializer)}: {error}"
        ) from error


def _seed_of(initializer: Any) -> int:
    """The seed of a Keras initializer, given or drawn from Keras's global seed."""
    seed = initializer.seed
    if isinstance(seed, keras.random.SeedGenerator):
        # `next` changes a variable, so the seed is drawn once and now, not in each run of a graph.
        with tf.init_scope():
            high, low = (int(half) for half in np.asarray(seed.next()))
        # The op takes the seed as int64, so the sign bit stays clear.
        seed = ((high & 0x7FFFFFFF) << 32) | (low & 0xFFFFFFFF)
    seed = int(seed)
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"The seed of an initializer must fit int64. Received: seed={seed}")
    return seed


def _distribution(
    initializer: Any, dim: int, value_dtype: tf.DType, name: str
) -> tuple[str, tuple[float, ...]]:
    """Kind and values of a random Keras initializer.

    Raises:
        ValueError: If a parameter is out of range, or the dtype can't represent it.
    """

    def number(argument: str, least: float | None = None) -> float:
        value = getattr(initializer, argument)
        try:
            result = float(value)
        except (TypeError, ValueError, OverflowError):
            result = math.nan  # refused below
        # Written so that NaN is also refused.
        if not abs(result) <= value_dtype.max or (least is not None and result < least):
            bound = "" if least is None else f" and at least {least:g}"
            raise ValueError(
                f"`{argument}` of the `initializer` of {name!r} must be a number that "
                f"{value_dtype.name} holds{bound}. Received: {argument}={validation.shown(value)}"
            )
        return result

    if isinstance(initializer, keras.initializers.RandomUniform):
        least, most = number("minval"), number("maxval", least=number("minval"))
        if not math.isfinite(most - least):
            raise ValueError(
                f"`maxval` - `minval` of the `initializer` of {name!r} must be a finite number. "
                f"Received: minval={least}, maxval={most}"
            )
        return "uniform", (least, most)
    if isinstance(initializer, keras.initializers.RandomNormal):
        return "normal", (number("mean"), number("stddev", least=0))
    if isinstance(initializer, keras.initializers.TruncatedNormal):
        return "truncated_normal", (number("mean"), number("stddev", least=0))
    number("scale", least=0)
    return _scaled(initializer, 1, dim)


def _scaled(initializer: Any, rows: int, dim: int) -> tuple[str, tuple[float, ...]]:
    """Kind and values of He, Glorot and LeCun initializers, as Keras computes them for a shape."""
    fan_in, fan_out = _fans(initializer, rows, dim)
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    scale = initializer.scale / max(1.0, fan[initializer.mode])
    if initializer.distribution == "truncated_normal":
        return "truncated_normal", (0.0, math.sqrt(scale) / _TRUNCATED_STDDEV)
    if initializer.distribution == "untruncated_normal":
        return "normal", (0.0, math.sqrt(scale))
    limit = math.sqrt(3.0 * scale)
    return "uniform", (-limit, limit)


def _fans(initializer: Any, rows: int, dim: int) -> tuple[float, float]:
    """Fan-in and fan-out of the shape (rows, dim), or of the axes that the initializer names."""
    shape: tuple[int, ...] = (rows, dim)
    # Only newer versions of Keras have these attributes.
    input_axes = getattr(initializer, "input_axes", None)
    output_axes = getattr(initializer, "output_axes", None)
    if input_axes is None or output_axes is None:
        return float(rows), float(dim)
    return (
        float(math.prod(shape[axis] for axis in input_axes)),
        float(math.prod(shape[axis] for axis in output_axes)),
    )


def _check_call(initializer: Callable[..., Any], dim: int, name: str) -> None:
    """Checks the signature of a user's callable.

    Raises:
        TypeError: If it does not take a shape and `dtype`.
    """
    try:
        inspect.signature(initializer).bind((1, dim), dtype="float32")
    except ValueError:
        return  # it has no signature to inspect
    except TypeError as error:
        raise TypeError(
            f"`initializer` of {name!r} must be callable with a shape and `dtype`, "
            f"initializer((n, {dim}), dtype=...). Received: initializer={initializer!r}: {error}"
        ) from error


def _strings(initializer: Any, dim: int, name: str) -> tuple[bytes, ...]:
    """A row of strings, from a single string or a string for each place."""
    strings = [initializer] * dim if isinstance(initializer, (str, bytes)) else initializer
    try:
        row = tuple(strings)
    except TypeError:
        row = ()  # refused below
    if len(row) != dim or not all(isinstance(one, (str, bytes)) for one in row):
        raise TypeError(
            f"`initializer` of {name!r} must be a string or {dim} of them, for its value dtype is "
            f"string. Received: initializer={validation.shown(initializer)}"
        )
    return tuple(tf.compat.as_bytes(one) for one in row)


def _numbers(initializer: Any, dim: int, value_dtype: tf.DType, name: str) -> tuple[float, ...]:
    """A number, or `dim` numbers, that the value dtype and float64 both hold."""
    try:
        if isinstance(initializer, (tf.Tensor, tf.Variable)):
            # The numbers are settings of the table, so they are read now, even while a graph is
            # traced.
            with tf.init_scope():
                initializer = initializer.numpy()
        array = np.asarray(initializer)
        numbers = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, AttributeError, NotImplementedError):
        array = None  # refused below
    # Kind "O" has Python integers beyond 64 bits, which floating dtypes may hold.
    kinds = "biufO" if value_dtype == tf.bool else "iufO"
    if array is None or (array.dtype.kind not in kinds and array.dtype.name != "bfloat16"):
        raise TypeError(
            f"`initializer` of {name!r} must be a number, an array, a Keras initializer or a "
            f"callable. Received: initializer={validation.shown(initializer)}"
        )
    if array.size != 1 and array.shape not in ((dim,), (1, dim)):
        raise ValueError(
            f"`initializer` of {name!r} must be a number or an array of shape ({dim},). Received: "
            f"shape={array.shape}"
        )
    if not value_dtype.is_floating:
        least, most = (0, 1) if value_dtype == tf.bool else (value_dtype.min, value_dtype.max)
        # The op takes numbers as float64, which rounds integers above 2^53.
        for exact, number in zip(array.flat, numbers.flat, strict=True):
            whole = number.is_integer() and int(exact) == int(number)
            if not whole or not least <= int(exact) <= most:
                raise ValueError(
                    f"`initializer` of {name!r} must be a whole number that {value_dtype.name} "
                    f"and float64 both hold exactly. Received: {exact}"
                )
    elif np.isnan(numbers).any() or (np.isfinite(numbers) & ~_holds(value_dtype, numbers)).any():
        raise ValueError(
            f"`initializer` of {name!r} must have numbers that {value_dtype.name} holds, and not "
            f"NaN. Received: initializer={validation.shown(initializer)}"
        )
    return tuple(float(number) for number in numbers.flat)


def _holds(value_dtype: tf.DType, numbers: np.ndarray) -> np.ndarray:
    """The mask of numbers that do not become infinite in a floating dtype."""
    with np.errstate(over="ignore"):
        return np.isfinite(numbers.astype(value_dtype.as_numpy_dtype))


def drawn_rows(
    initializer: RowInitializer,
    keys: tf.Tensor,
    skipped: tf.Tensor | None,
    *,
    dim: int,
    value_dtype: tf.DType,
    name: str,
) -> tf.Tensor | None:
    """The rows that Python draws, a row for each distinct key.

    Args:
        initializer: An initializer that draws in Python.
        keys: Any shape. A key may occur several times.
        skipped: The mask of keys that need no row, keys.shape. None: each key needs a row.

    Returns:
        keys.shape + [dim], of the value dtype; zeros for skipped keys. None if it is known here
        that no key needs a row.

    Raises:
        TypeError, ValueError: If a user's function returns a wrong dtype or shape.
    """
    flat = tf.reshape(keys, [-1])
    needed = None
    if skipped is not None:
        needed = tf.where(tf.logical_not(tf.reshape(skipped, [-1])))  # [positions, 1]
        flat = tf.gather_nd(flat, needed)
    # Equal keys share a drawn row.
    distinct, which = tf.unique(flat)
    count = tf.size(distinct)
    if tf.executing_eagerly():
        count = int(count)
        if not count:
            return None
    if initializer.by_key is not None:
        drawn = initializer.by_key(distinct)
    else:
        draw = initializer.draw
        assert draw is not None
        kind = {"dim": dim, "value_dtype": value_dtype, "name": name}
        if isinstance(count, int):
            drawn = _called(draw, count, **kind)
        else:
            # A user's function need not accept 0 rows. AutoGraph converts it only within a lambda.
            drawn = tf.cond(
                count > 0,
                lambda: _called(draw, count, **kind),
                lambda: tf.zeros([0, dim], value_dtype),
            )
    rows = tf.gather(drawn, which)
    if needed is not None:
        rows = tf.scatter_nd(needed, rows, [tf.size(keys, tf.int64), dim])
    return tf.reshape(rows, tf.concat([tf.shape(keys), [dim]], 0))


def _called(
    draw: Callable[..., Any], count: Any, *, dim: int, value_dtype: tf.DType, name: str
) -> tf.Tensor:
    """The rows that a user's function returns for keys.

    Args:
        count: How many rows, an int, or in a graph an int32 scalar.

    Returns:
        [count, dim], of the value dtype.

    Raises:
        TypeError: If the function returns no numbers.
        ValueError: If the function fails, or returns another number of rows or another dim.
    """
    what = f"`initializer` of {name!r}"
    shape = (count, dim)
    drawn = validation.call_of(draw, "initializer", name, shape, dtype=value_dtype.name)
    drawn = validation.as_tensor(drawn, "initializer(shape, dtype)", name)
    if not (drawn.dtype.is_floating or drawn.dtype.is_integer or drawn.dtype.is_bool):
        raise TypeError(f"{what} must give numbers. Received: dtype={drawn.dtype.name}")
    rows = count if isinstance(count, int) else None
    if not drawn.shape.is_compatible_with([rows, dim]):
        raise ValueError(
            f"{what} must give a row of {dim} for each of {count} keys. Received: "
            f"shape={drawn.shape}"
        )
    message = f"{what} must give a row for each key."
    same = (
        None
        if drawn.shape[0] == rows is not None
        else tf.debugging.assert_equal(tf.shape(drawn), [count, dim], message)
    )
    return tf.cast(validation.with_dependencies(drawn, same), value_dtype)

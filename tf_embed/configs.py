# SPDX-License-Identifier: Apache-2.0
"""Base classes of configs, the frozen dataclasses of settings that Keras saves, and checks."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import override

from tf_embed.validation import int_in, shown

EnumT = TypeVar("EnumT", bound=enum.Enum)

# The largest finite float32: rows and steps are computed in float32.
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Config:
    """A config of plain values. Each field declares the class of its config or enum.

    So a saved config names no classes: an enum is saved as its value, a config as a dict.
    """

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        fields = dataclasses.fields(self)
        return {field.name: self._saved(getattr(self, field.name)) for field in fields}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Returns a config with the given arguments."""
        return cls(**config)

    @staticmethod
    def _saved(value: Any) -> Any:
        if isinstance(value, Config):
            return value.get_config()
        return value.value if isinstance(value, enum.Enum) else value

    def __repr__(self) -> str:
        """Returns a call that makes an equal config, without arguments that have their default."""
        given = [
            f"{field.name}={_literal(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if field.repr and not _is_default(getattr(self, field.name), field.default)
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    def _take_enum(self, name: str, kind: type[enum.Enum]) -> None:
        object.__setattr__(self, name, as_enum(getattr(self, name), name, kind))

    def _take_config(self, name: str, kind: type) -> None:
        object.__setattr__(self, name, as_config(getattr(self, name), name, kind))

    def _take(self, convert: Callable[[Any, str], Any], *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, convert(getattr(self, name), name))

    def _check_numbers(self, *names: str) -> None:
        """Refuses values other than finite numbers. An int stays an int."""
        for name in names:
            value = getattr(self, name)
            number = as_number(value, name)
            whole = isinstance(value, (int, np.integer))
            object.__setattr__(self, name, int(value) if whole else number)

    def _check(self, name: str, wanted: str, good: bool) -> None:
        if not good:
            raise ValueError(
                f"`{name}` must be {wanted}. Received: {name}={shown(getattr(self, name))}"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class KerasConfig(Config):
    """A config in which some fields take objects of several classes, or functions.

    So Keras saves each value together with the name of its class or function.
    """

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> Any:
        deserialize = keras.saving.deserialize_keras_object
        return cls(**{name: deserialize(value) for name, value in config.items()})

    @staticmethod
    def _saved(value: Any) -> Any:
        return keras.saving.serialize_keras_object(value)


def _is_default(value: Any, default: Any) -> bool:
    # The type counts, because False equals 0.
    return value is default or (type(value) is type(default) and bool(value == default))


def _literal(value: Any) -> str:
    """Returns a value as a Python literal. A long int has an underscore at each thousand."""
    is_long = isinstance(value, int) and not isinstance(value, enum.Enum) and abs(value) >= 10_000
    return f"{value:_}" if is_long else repr(value)


def as_enum(value: Any, name: str, kind: type[EnumT]) -> EnumT:
    """Returns the member of an enum for a member, a name or a value.

    Rejects members of other enums, even of an enum.IntEnum, whose members equal ints. The exception
    is an enum with the same class and member names, such as FBGEMM's.

    Raises:
        ValueError: If there is no such member.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, enum.Enum):
        if type(value).__name__ == kind.__name__ and value.name in kind.__members__:
            return kind[value.name]
    elif isinstance(value, str) and value in kind.__members__:
        return kind[value]
    # A bool is also an int, and would be accepted as a value of the enum.
    elif isinstance(value, (str, int, np.integer)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # no member has this value: raises below
            return kind(value)
    members = ", ".join(f"{member.name} ({member.value!r})" for member in kind)
    raise ValueError(
        f"`{name}` must be of {kind.__name__}, or the name or value of one: {members}. Received: "
        f"{name}={shown(value)}"
    )


def as_bool(value: Any, name: str) -> bool:
    """Returns a Python bool.

    Raises:
        TypeError: If the value is not a bool.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be a bool. Received: {name}={shown(value)}")
    return bool(value)


def as_int(value: Any, name: str) -> int:
    """Returns a Python int that fits int64.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If it does not fit int64.
    """
    return int_in(value, name, least=-(2**63))


def as_number(value: Any, name: str) -> float:
    """Returns a finite number as a float, from a Python number, or a scalar array or eager tensor.

    Raises:
        TypeError: If the value is not a number.
        ValueError: If it is not finite in float32.
    """
    kinds = (int, float, np.integer, np.floating)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    try:
        if not is_number and not _is_scalar(value):
            raise TypeError("no number")
        number = float(value)
    except OverflowError:
        number = float("inf")  # refused below
    except Exception as error:
        raise TypeError(f"`{name}` must be a number. Received: {name}={shown(value)}") from error
    if not abs(number) <= _LARGEST:
        raise ValueError(f"`{name}` must be finite in float32. Received: {name}={shown(value)}")
    return number


def as_learning_rate(value: Any, name: str) -> Any:
    """Returns a finite number as a float, and a schedule or another callable unchanged.

    Raises:
        TypeError: If the value is neither, or is a class.
        ValueError: If the number is not finite.
    """
    if callable(value) and not isinstance(value, type):
        return value
    return as_number(value, name)


def _is_scalar(value: Any) -> bool:
    """Whether `value` is an array or a tensor of a real number, without axes."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return False
    dtype = tf.as_dtype(value.dtype)
    return len(value.shape) == 0 and (dtype.is_floating or dtype.is_integer)


def as_config(value: Any, name: str, kind: type) -> Any:
    """Returns a config of class `kind`, from a config or its `get_config`; None stays None.

    Raises:
        TypeError: If the value is none of these.
        ValueError: If it is a dict with other names.
    """
    if isinstance(value, dict):
        # Keras wraps the config in a dict with the class name, which is redundant here.
        config = value.get("config", value)
        fields = [field.name for field in dataclasses.fields(kind)]
        if not isinstance(config, dict) or not set(config) <= set(fields):
            raise ValueError(
                f"`{name}` must be a {kind.__name__}, or a dict of some of {', '.join(fields)}. "
                f"Received: {name}={shown(value)}"
            )
        value = kind.from_config(config)  # type: ignore[attr-defined]
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}. Received: {name}={shown(value)}")
    return value

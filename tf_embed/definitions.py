"""Frozen dataclasses of settings that Keras saves, and members of enums by their values."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, TypeVar

EnumT = TypeVar("EnumT", bound=enum.Enum)


@dataclasses.dataclass(frozen=True)
class Definition:
    """A dataclass as Keras saves it: its arguments, with the values of those that are enums."""

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        config = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Definition):
                value = value.get_config()
            config[field.name] = value.value if isinstance(value, enum.Enum) else value
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """One of these arguments."""
        return cls(**config)

    def _take_enum(self, name: str, kind: type[enum.Enum]) -> None:
        object.__setattr__(self, name, as_enum(getattr(self, name), name, kind))

    def _take_definition(self, name: str, kind: type) -> None:
        object.__setattr__(self, name, as_definition(getattr(self, name), name, kind))

    def _check(self, name: str, wanted: str, good: bool) -> None:
        if not good:
            raise ValueError(f"`{name}` must be {wanted}. Received: {name}={getattr(self, name)!r}")


def as_enum(value: Any, name: str, kind: type[EnumT]) -> EnumT:
    """A member of an enum, or the one of that value.

    Raises:
        ValueError: There is none.
    """
    try:
        return kind(value)
    except ValueError as error:
        members = ", ".join(member.name for member in kind)
        raise ValueError(
            f"`{name}` must be of {kind.__name__}: {members}. Received: {name}={value!r}"
        ) from error


def as_definition(value: Any, name: str, kind: type) -> Any:
    """A definition, or the one of that config; None stays None.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(value, dict):
        # As Keras gives it back, whose wrapping says what the name says.
        value = kind.from_config(value.get("config", value))  # type: ignore[attr-defined]
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}. Received: {name}={value!r}")
    return value

# SPDX-License-Identifier: Apache-2.0
"""The public interface equals tests/golden/api.txt: arguments, their kinds and their defaults.

    python tests/release/api_golden_test.py --write

writes the file again. Users see each change of the file, so it belongs in CHANGELOG.md.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "campaigns"))
import public_names  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "api.txt"
WRITE = "write it by `python tests/release/api_golden_test.py --write`"


class Shown:
    """A default, written in the same way by every version of Python."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        if isinstance(self._value, enum.Enum):
            return f"{type(self._value).__name__}.{self._value.name}"
        return getattr(self._value, "__name__", repr(self._value))


def signature(value: Any) -> str:
    """The arguments of a function or a class, without their types."""
    bare = []
    for one in inspect.signature(value).parameters.values():
        default = one.default if one.default is one.empty else Shown(one.default)
        bare.append(one.replace(annotation=one.empty, default=default))
    return str(inspect.Signature(bare))


def described(name: str, value: Any) -> Iterator[str]:
    """The lines of a public name."""
    if isinstance(value, type) and issubclass(value, enum.Enum):
        yield from (f"{name}.{one.name} = {one.value!r}" for one in value)
        return
    if isinstance(value, type) and issubclass(value, BaseException):
        yield f"{name}: exception"
        return
    frozen = dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen
    yield f"{name}{signature(value)}{' frozen' if frozen else ''}"


def interface() -> list[str]:
    """All lines, in the order of names."""
    names = public_names.public_names()
    return [line for name in sorted(names) for line in described(name, names[name])]


class ApiGoldenTest(absltest.TestCase):
    def test_the_interface_is_the_golden_one(self):
        found, golden = interface(), GOLDEN.read_text().splitlines()
        self.assertGreater(len(found), 250)
        self.assertEqual(sorted(set(found) - set(golden)), [], WRITE)
        self.assertEqual(sorted(set(golden) - set(found)), [], WRITE)

    def test_kinds_and_defaults(self):
        def function(a, b: int = 2, *, c: str = "x", d: Any = int):
            pass

        self.assertEqual(signature(function), "(a, b=2, *, c='x', d=int)")
        colors = enum.Enum("Colors", {"RED": 3})
        text = signature(lambda *a, b=colors.RED, **c: None)
        self.assertEqual(text, "(*a, b=Colors.RED, **c)")
        self.assertEqual(list(described("Colors", colors)), ["Colors.RED = 3"])

        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Config:
            size: int = 1

        self.assertEqual(list(described("Config", Config)), ["Config(*, size=1) frozen"])


if __name__ == "__main__":
    if "--write" in sys.argv:
        GOLDEN.write_text("\n".join(interface()) + "\n")
    else:
        absltest.main()

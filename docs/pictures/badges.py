# SPDX-License-Identifier: Apache-2.0
"""The badges of the README: facts of pyproject.toml, each a word and its value."""

from __future__ import annotations

import functools
import pathlib
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from pictures.svg import BLUE, GRAY, GREEN, MUTED, ORANGE, PAPER, PURPLE, Color, Drawing, width_of

_SETTINGS = pathlib.Path(__file__).resolve().parents[2] / "pyproject.toml"
_HEIGHT, _SIZE, _MARGIN = 20.0, 11.0, 6.0


def facts(settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Each fact and its value.

    Args:
        settings: The content of pyproject.toml. Default: that of the repository.
    """
    if settings is None:
        settings = tomllib.loads(_SETTINGS.read_text())
    project = settings["project"]
    classifiers = "\n".join(project["classifiers"])
    pythons = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    (tensorflow,) = project["optional-dependencies"]["cpu"]
    lowest, above = re.fullmatch(r"tensorflow-cpu>=(\d+\.\d+)\.\d+,<2\.(\d+)", tensorflow).groups()
    return {
        "Python": " | ".join(pythons),
        "TensorFlow": f"{lowest} to 2.{int(above) - 1}",
        "Keras": "3",
        "platform": "Linux x86-64",
        "license": project["license"]["text"].replace("-", " "),
    }


def badge(name: str, color: Color) -> Drawing:
    """A word on gray beside its value on a color."""
    value = facts()[name]
    left, right = (width_of(text, _SIZE) + 2 * _MARGIN for text in (name, value))
    drawn = Drawing(left + right, _HEIGHT, f"{name}: {value}", f"A badge: {name}, {value}.")
    for x, width, text, fill in ((0.0, left, name, MUTED), (left, right, value, color.line)):
        drawn.fill(x, 0, width, _HEIGHT, fill)
        drawn.text(x + width / 2, 14, text, size=_SIZE, anchor="middle", color=PAPER, room=width)
    return drawn


_COLORS = {
    "Python": BLUE,
    "TensorFlow": ORANGE,
    "Keras": PURPLE,
    "platform": GRAY,
    "license": GREEN,
}

# By the file in docs/images/.
BADGES: dict[str, Callable[[], Drawing]] = {
    f"badge_{name.lower()}.svg": functools.partial(badge, name, color)
    for name, color in _COLORS.items()
}

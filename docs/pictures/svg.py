# SPDX-License-Identifier: Apache-2.0
"""One style for all pictures: boxes, arrows and text on a white card, as SVG.

The card has a background of its own, so a picture looks the same on a light page and on a dark one.
Readers have different fonts. So each text is measured with the widths of a wide font, DejaVu Sans,
and a text that has too little room is an error. Equal calls give equal bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax import saxutils

Point = tuple[float, float]

SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, MUTED, RULE, PAPER = "#24292f", "#57606a", "#d0d7de", "#ffffff"


@dataclasses.dataclass(frozen=True)
class Color:
    """A color of boxes.

    Attributes:
        line: The outline, and text on white.
        fill: The inside, behind text.
        solid: The inside of a box without text, or of a bar.
    """

    line: str
    fill: str
    solid: str


BLUE = Color("#1f5aa6", "#e7effa", "#5b8bc9")
GREEN = Color("#1f7a5c", "#e3f3ec", "#4fa98a")
ORANGE = Color("#b2601a", "#fcefdf", "#e59a4d")
PURPLE = Color("#6a4a9c", "#f0eaf8", "#9b7fc7")
GRAY = Color("#6e7781", "#f3f4f6", "#b4bac1")

# Widths in 2048ths of the size; a letter that is in no line is as wide as a capital W.
_WIDTHS = {
    569: "ijl",
    604: "IJ",
    651: " .,'’",
    690: ":;/|",
    721: "f",
    803: "t()[]!³²⁶⁷",
    842: "r-",
    1024: "_*…",
    1075: "sz?",
    1141: "cL",
    1212: "kvxyF",
    1260: "aeoTY+",
    1303: "bdghnpqu0123456789PSE",
    1430: "ABCKRVXZ",
    1540: "UHN",
    1612: "DGOQ",
    1767: "M~=<>→×≤≥µ–",
    1995: "m%w",
}
_WIDTH = {letter: width / 2048 for width, letters in _WIDTHS.items() for letter in letters}
_MONO_WIDTH = 0.602
_CODE = re.compile(r"`([^`]+)`")


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text, and whether each is code, which stands between backquotes."""
    for i, piece in enumerate(_CODE.split(text)):
        if piece:
            yield piece, i % 2 == 1


def width_of(text: str, size: float, bold: bool = False) -> float:
    """The room that a text needs, in units of the picture."""
    sans = sum(_WIDTH.get(one, 1.0) for piece, code in _pieces(text) if not code for one in piece)
    mono = sum(len(piece) for piece, code in _pieces(text) if code)
    return size * (sans * (1.12 if bold else 1) + 0.94 * _MONO_WIDTH * mono)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """A picture that is being drawn, without a background.

    Args:
        width, height: The size.
        title: The name that a screen reader says.
        description: The content of the picture in a sentence, for a screen reader.
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []
        self._title, self._description = title, description

    def _add(self, name: str, **attributes: float | str | None) -> None:
        texts = {
            key.replace("_", "-"): value if isinstance(value, str) else _number(value)
            for key, value in attributes.items()
            if value is not None
        }
        inside = " ".join(f"{key}={saxutils.quoteattr(value)}" for key, value in texts.items())
        self._parts.append(f"<{name} {inside}/>")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        anchor: str = "start",
        bold: bool = False,
        color: str = INK,
        room: float | None = None,
        upright: bool = True,
    ) -> None:
        """Writes a line, of which the parts between backquotes are code.

        Args:
            x, y: The start, middle or end of the line, as `anchor` says, on its baseline.
            text: The line.
            size: The size of letters.
            anchor: "start", "middle" or "end".
            bold: Whether letters are bold.
            color: Their color.
            room: The width that the line may take. Default: as much as the card has.
            upright: False turns the line by a quarter, so that it reads upward.

        Raises:
            ValueError: If the text is wider than its room.
        """
        if room is None:
            before, after = x - 8, self.width - 8 - x
            room = {"start": after, "end": before, "middle": 2 * min(before, after)}[anchor]
            if not upright:
                room = self.height
        if (needed := width_of(text, size, bold)) > room:
            raise ValueError(f"{text!r} needs {needed:.0f} and has {room:.0f}: {self._title}")
        attributes = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" fill="{color}"'
        if anchor != "start":
            attributes += f' text-anchor="{anchor}"'
        if bold:
            attributes += ' font-weight="bold"'
        if not upright:
            attributes += f' transform="rotate(-90 {_number(x)} {_number(y)})"'
        content = "".join(
            f'<tspan font-family="{MONO}" font-size="{_number(0.94 * size)}">'
            f"{saxutils.escape(piece)}</tspan>"
            if code
            else saxutils.escape(piece)
            for piece, code in _pieces(text)
        )
        self._parts.append(f"<text {attributes}>{content}</text>")

    def lines(
        self, x: float, y: float, lines: Sequence[str], *, step: float = 16, **how: Any
    ) -> None:
        """Writes lines below each other; see `text`."""
        for i, line in enumerate(lines):
            self.text(x, y + i * step, line, **how)

    def note(self, x: float, y: float, text: str, **how: Any) -> None:
        """Writes a line that explains, smaller and lighter; see `text`."""
        self.notes(x, y, [text], **how)

    def notes(self, x: float, y: float, lines: Sequence[str], **how: Any) -> None:
        """Writes lines that explain, below each other; see `lines`."""
        self.lines(x, y, lines, size=12, color=MUTED, **how)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: Color = GRAY,
        *,
        solid: bool = False,
        dashed: bool = False,
        radius: float = 4,
        empty: bool = False,
    ) -> None:
        """Draws a box without text.

        Args:
            x, y, width, height: Where.
            color: Its color.
            solid: Whether the inside has the strong color.
            dashed: Whether the outline is dashed.
            radius: The radius of the corners.
            empty: Whether the inside is white.
        """
        self._add(
            "rect",
            x=x,
            y=y,
            width=width,
            height=height,
            rx=radius,
            fill=PAPER if empty else color.solid if solid else color.fill,
            stroke=color.line,
            stroke_dasharray="4 3" if dashed else None,
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str] | str,
        color: Color = BLUE,
        *,
        size: float = 13,
        small: float = 12,
        bold: bool = True,
        dashed: bool = False,
        radius: float = 4,
    ) -> None:
        """Draws a box with centered lines, of which the first is a heading.

        Args:
            x, y, width, height: Where.
            lines: The lines.
            color: Its color.
            size: The size of the first line.
            small: The size of the others.
            bold: Whether the first one is bold.
            dashed: Whether the outline is dashed.
            radius: The radius of the corners.

        Raises:
            ValueError: If the lines are too wide or too many.
        """
        self.rect(x, y, width, height, color, dashed=dashed, radius=radius)
        lines = [lines] if isinstance(lines, str) else lines
        step = small + 4
        needed = size + step * (len(lines) - 1)
        if needed > height:
            raise ValueError(f"{lines} need a height of {needed:g} and have {height:g}")
        y += (height - needed) / 2 + 0.8 * size
        for i, line in enumerate(lines):
            self.text(
                x + width / 2,
                y + i * step,
                line,
                size=size if i == 0 else small,
                anchor="middle",
                bold=bold and i == 0,
                color=INK if i == 0 else MUTED,
                room=width - 6,
            )

    def fill(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Fills a rectangle that has no outline."""
        self._add("rect", x=x, y=y, width=width, height=height, fill=color)

    def line(
        self, points: Sequence[Point], color: str = INK, *, width: float = 1.5, dashed: bool = False
    ) -> None:
        """Draws a line through points."""
        self._add(
            "polyline",
            points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points),
            fill="none",
            stroke=color,
            stroke_width=width,
            stroke_dasharray="4 3" if dashed else None,
        )

    def arrow(
        self, points: Sequence[Point], color: str = INK, *, width: float = 1.5, dashed: bool = False
    ) -> None:
        """Draws a line through points, with a head at its end."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        back = (x1 - 7 * dx, y1 - 7 * dy)
        self.line([*points[:-1], back], color, width=width, dashed=dashed)
        corners = [
            (x1, y1),
            (x1 - 9 * dx - 4 * dy, y1 - 9 * dy + 4 * dx),
            (x1 - 9 * dx + 4 * dy, y1 - 9 * dy - 4 * dx),
        ]
        self._add(
            "polygon",
            points=" ".join(f"{_number(x)},{_number(y)}" for x, y in corners),
            fill=color,
        )

    def dot(self, x: float, y: float, color: str, radius: float = 3) -> None:
        """Draws a point of a plot."""
        self._add("circle", cx=x, cy=y, r=radius, fill=color)

    def svg(self) -> str:
        """The file."""
        size = f"{_number(self.width)} {_number(self.height)}"
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
            f'width="{_number(self.width)}" height="{_number(self.height)}" '
            f'font-family="{SANS}" role="img">',
            f"<title>{saxutils.escape(self._title.replace('`', ''))}</title>",
            f"<desc>{saxutils.escape(self._description)}</desc>",
        ]
        return "\n".join([*head, *self._parts, "</svg>", ""])


class Picture(Drawing):
    """A drawing on a white card, with its title as the heading."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        super().__init__(width, height, title, description)
        self._add("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=8)
        self._parts[-1] = self._parts[-1].replace("/>", f' fill="{PAPER}" stroke="{RULE}"/>')
        self.text(20, 30, title, size=16, bold=True)

# SPDX-License-Identifier: Apache-2.0
"""Damages of files, drawn at random."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping

Files = Mapping[pathlib.Path, bytes]
KINDS = ("bit", "bit", "bit", "bytes", "cut", "longer", "empty", "missing", "swapped", "renewed")


class Damages:
    """Draws damages.

    Args:
        draw: The random generator.
        folder: The folder of the files; descriptions give paths relative to it.
        whole: The intact content of each file.
        earlier: Files of the same kinds from an earlier save, with other rows.
    """

    def __init__(
        self, draw: random.Random, folder: pathlib.Path, whole: Files, earlier: Files
    ) -> None:
        self._draw = draw
        self._folder = folder
        self._whole = whole
        self._earlier = earlier

    def next(self, kind: str) -> tuple[str, dict[pathlib.Path, bytes | None]]:
        """A damage's description, and the content of the damaged files; None for a removed file."""
        draw = self._draw
        file = draw.choice([one for one, content in self._whole.items() if content])
        content = self._whole[file]
        place = draw.randrange(len(content))
        words = f"{file.relative_to(self._folder)}, byte {place}"
        if kind == "bit":
            bit = draw.randrange(8)
            changed = bytes([content[place] ^ 1 << bit])
            return f"{words}, bit {bit}", {file: content[:place] + changed + content[place + 1 :]}
        if kind == "bytes":
            other = bytes([content[place] ^ 255]) + draw.randbytes(draw.randint(1, 64))
            return words, {file: (content[:place] + other)[: len(content)] + content[place + 65 :]}
        if kind == "cut":
            return words, {file: content[:place]}
        if kind == "longer":
            return words, {file: content + draw.randbytes(draw.randint(1, 64))}
        if kind == "empty":
            return words, {file: b""}
        if kind == "missing":
            return words, {file: None}
        others = [one for one, its in self._whole.items() if its != content]
        if kind == "swapped" and others:
            other_file = draw.choice(others)
            same = [one for one in others if one.suffix == file.suffix]
            if same and draw.random() < 0.8:
                other_file = draw.choice(same)
            words = f"{words} and {other_file.relative_to(self._folder)}"
            return words, {file: self._whole[other_file], other_file: content}
        return words, {file: self._earlier_content(file)}

    def _earlier_content(self, file: pathlib.Path) -> bytes:
        """The earlier content of the file with the same kind and position."""
        mine = [one for one in self._whole if self._kind(one) == self._kind(file)]
        its = [one for one in self._earlier if self._kind(one) == self._kind(file)]
        place = mine.index(file)
        return self._earlier[its[place]] if place < len(its) else b""

    def _kind(self, file: pathlib.Path) -> tuple[str, str]:
        return file.parent.name, file.suffix


def files_in(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
    """The content of each file below a folder."""
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}

# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/: their code blocks, and their tables of another library's names and tf_embed's."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any, NamedTuple

from support import ROOT

DOCS = ROOT / "docs"


def blocks_of(text: str, language: str = "python") -> list[str]:
    """The code blocks of a page. Empty lines before each block keep its line numbers."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in found]


def execute(code: str, page: str, names: dict[str, Any]) -> None:
    """Runs code of a page under the page's path, for tracebacks and for tf.function."""
    exec(compile(code, DOCS / page, "exec", dont_inherit=True), names)


class Page:
    """A page. Its blocks run in sequence and share their names.

    Attributes:
        text: The page.
        blocks: The blocks that have not run. `folder` replaces /mnt and /srv in them.
        names: The names that the blocks have defined.
        printed: The text that the blocks have printed.
    """

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name, self.folder = name, folder
        self.text = (DOCS / name).read_text()
        self.blocks = blocks_of(re.sub('"/(mnt|srv)/', f'"{folder}/', self.text))
        self.names: dict[str, Any] = {}
        self.printed = ""

    def run(self, count: int | None = None, **names: Any) -> None:
        """Runs blocks, and compares the output with the comments at their calls of `print`.

        Args:
            count: The number of blocks. Default: all that have not run.
            **names: Names to define before.
        """
        self.names.update(names)
        for _ in range(len(self.blocks) if count is None else count):
            block, printed = self.blocks.pop(0), io.StringIO()
            with contextlib.redirect_stdout(printed):
                execute(block, self.name, self.names)
            self.printed += printed.getvalue()
            for number, line in enumerate(block.splitlines(), 1):
                if said := re.search(r"^ *print\(.*\)  # (.*)$", line):
                    lines = printed.getvalue().splitlines()
                    assert said[1] in lines, f"docs/{self.name}:{number} prints {lines}"


class Row(NamedTuple):
    """A line of a table: another library's names, tf_embed's code, and the difference."""

    line: int
    theirs: str
    ours: str
    differs: str


def code_in(cell: str) -> list[str]:
    """The code spans in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def rows_of(text: str) -> list[Row]:
    """The lines of the tables of a migration page, without their heads."""
    lines = [*text.splitlines(), ""]
    return [
        Row(number, *(cell.strip() for cell in line.strip("|").split("|")))
        for number, line in enumerate(lines[:-1], 1)
        if line.startswith("| ") and not lines[number].startswith("|--")
    ]

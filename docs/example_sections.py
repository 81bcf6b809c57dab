# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe: a docstring's `Example:` is code, as its `Examples:` is.

griffe knows the title *Examples* alone. Another title makes a box whose lines are Markdown.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

TITLE = re.compile(r"^( *)Example(?:, ([^\n]*))?:$", re.MULTILINE)


def examples(match: re.Match[str]) -> str:
    indent, of = match[1], match[2]
    return f"{indent}Examples:" + (f"\n{indent}    {of[0].upper()}{of[1:]}:\n" if of else "")


class ExampleSections(griffe.Extension):
    """Renames the title before griffe parses the docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = TITLE.sub(examples, obj.docstring.value)

# SPDX-License-Identifier: Apache-2.0
"""The prose of the tree, comments, docstrings and pages, and its tics."""

from __future__ import annotations

import ast
import io
import pathlib
import re
import tokenize

import notebooks

# Each is a habit that hides the noun, the condition or the actor of a sentence.
TICS = {
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
    # A clause of "where" that is a condition can't be told from one that is a place: both count.
    "where": re.compile(r"(?:^|[.,;:(?!] ?)where\b", re.IGNORECASE | re.MULTILINE),
    "who": re.compile(r"\b(?:who|whoever|whom|nobody)\b", re.IGNORECASE),
    "anew": re.compile(r"\b(?:anew|beforehand|likewise|but for|besides)\b", re.IGNORECASE),
}


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z][A-Za-z'-]*", text))


def tics(text: str) -> dict[str, int]:
    """How often each tic is in a text."""
    return {name: len(pattern.findall(text)) for name, pattern in TICS.items()}


def prose_of(path: pathlib.Path) -> str:
    """The prose of a file, without code, by its kind."""
    if path.suffix == ".ipynb":
        code = _of_python("\n".join(notebooks.sources_of(path, "code")))
        pages = "\n\n".join(notebooks.sources_of(path, "markdown"))
        return f"{_of_markdown(pages)}\n{code}"
    text = path.read_text()
    if path.suffix == ".py":
        return _of_python(text)
    if path.suffix == ".md":
        return _of_markdown(text)
    return "\n".join(re.findall(r"//+ ?(.*)$", text, re.M))


def _of_markdown(text: str) -> str:
    return re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def _of_python(text: str) -> str:
    parts = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            parts.append(token.string.lstrip("# "))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = ast.get_docstring(node)
            if found:
                parts.append(found.split(">>>")[0])
    return re.sub(r"`[^`]*`", "", "\n".join(parts))

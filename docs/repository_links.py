# SPDX-License-Identifier: Apache-2.0
"""Links from pages to files outside of docs/, as MkDocs does not have them.

A page links to `../../examples/flights.py` as every viewer of the repository understands it. This
hook of MkDocs puts each such file into the site, in the folder `repository`, and links to it there.
A link to a folder, or to nothing, is left as it is, and MkDocs fails on it.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = "repository"
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(?=[)#])")


def repository_path(target: str, source: pathlib.Path) -> str | None:
    """The path in the repository of a link's target, if it is a file outside of docs/."""
    path = os.path.relpath(source.parent / target, ROOT)
    outside = not path.startswith(("docs/", "../")) and (ROOT / path).is_file()
    return path if outside else None


def linked_files(source: pathlib.Path) -> Iterator[str]:
    for target in LINK.findall(source.read_text()):
        if (path := repository_path(target, source)) is not None:
            yield path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds each linked file, and the files that linked pages link to."""
    sources = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    seen: set[str] = set()
    while sources:
        source = sources.pop()
        for path in sorted(set(linked_files(source)) - seen):
            seen.add(path)
            files.append(File.generated(config, f"{FOLDER}/{path}", abs_src_path=str(ROOT / path)))
            if path.endswith(".md"):
                sources.append(ROOT / path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to the files in the site in place of those in the repository."""
    uri = page.file.src_uri
    inside = uri.startswith(FOLDER + "/")
    source = ROOT / uri.removeprefix(FOLDER + "/") if inside else ROOT / "docs" / uri

    def replaced(match: re.Match[str]) -> str:
        path = repository_path(match[1], source)
        if path is not None:
            return os.path.relpath(f"{FOLDER}/{path}", os.path.dirname(uri))
        if inside:  # a link into docs/
            target = os.path.relpath(source.parent / match[1], ROOT / "docs")
            return os.path.relpath(target, os.path.dirname(uri))
        return match[1]

    return LINK.sub(replaced, markdown)

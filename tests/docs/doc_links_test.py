# SPDX-License-Identifier: Apache-2.0
"""No link between the pages of the repository, or from mkdocs.yml to a page, is broken."""

from __future__ import annotations

import inspect
import os
import pathlib
import re

from absl.testing import absltest

import tf_embed
from support import ROOT
from support.processes import notebooks

PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.ipynb")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(page: pathlib.Path) -> str:
    """A page, or the prose of a notebook."""
    if page.suffix == ".ipynb":
        return "\n\n".join(notebooks.sources_of(page, "markdown"))
    return page.read_text()


def without_code(text: str) -> str:
    """A page without code blocks, and without the links' brackets in code spans."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", lambda code: code[0].strip("`").replace("](", ""), text)


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(text_of(page)), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip()) for text in texts}


def violations(page: pathlib.Path, text: str) -> list[str]:
    """The broken links of a page, a sentence each."""
    found = []
    name = page.relative_to(ROOT)
    for link in LINK.findall(without_code(text)):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = pathlib.Path(os.path.normpath(page.parent / target)) if target else page
        if not path.is_file():
            found.append(f"{name} links to {link}, which is no file")
        elif anchor and path.suffix in (".md", ".ipynb") and anchor not in anchors(path):
            found.append(f"{name} links to {link}, which has no such heading")
    return found


class DocLinksTest(absltest.TestCase):
    def test_links_lead_somewhere(self):
        self.assertEqual([line for page in PAGES for line in violations(page, text_of(page))], [])

    def test_a_link_to_nothing_is_found(self):
        page = ROOT / "docs" / "guides" / "workers.md"
        for text in ("[a](nothing.md)", "[a](../nothing.svg)", "[a](#nothing)", "[a](tiers.md#b)"):
            self.assertLen(violations(page, text), 1, text)
        for text in (
            "[a](tiers.md#prefetch)",
            "[a](https://x.org)",
            "`f[a](b)`",
            "[`a`](tiers.md)",
        ):
            self.assertEmpty(violations(page, text), text)

    def test_pictures_are_shown_and_name_ops_and_files_that_are_there(self):
        pages = "".join(map(text_of, PAGES))
        ops = "".join(path.read_text() for path in (ROOT / "cc" / "ops").glob("*.cc"))
        for picture in (ROOT / "docs" / "images").glob("*.svg"):
            self.assertRegex(pages, rf"!\[[^\]]{{20,}}\]\([^)]*{picture.name}\)")
            text = re.sub(r"<[^>]+>", "", picture.read_text())
            for op in re.findall(r"TfEmbed\w+", text):
                self.assertIn(f'REGISTER_OP("{op}")', ops)
            for path in re.findall(r"\b(?:cc|tf_embed)/[\w/]*(?:\.\w+)?", text):
                self.assertTrue((ROOT / path).exists(), f"{picture.name} names {path}")

    def test_each_page_is_in_the_navigation(self):
        listed = re.findall(
            r"\w[\w/]*\.(?:md|ipynb)", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
        )
        docs = ROOT / "docs"
        pages = [page.relative_to(docs).as_posix() for page in PAGES if docs in page.parents]
        self.assertCountEqual(pages, [page for page in listed if (docs / page).is_file()])
        for page in set(listed) - set(pages):
            self.assertTrue((ROOT / page.removeprefix("repository/")).is_file(), page)

    def test_each_public_name_is_in_the_reference(self):
        pages = (ROOT / "docs" / "reference").glob("*.md")
        text = "".join(page.read_text() for page in pages)
        shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
        names = {f"tf_embed.{name}" for name in tf_embed.__all__ if not name.startswith("_")}
        modules = [module for module in vars(tf_embed).values() if inspect.ismodule(module)]
        public = [module for module in modules if f"::: {module.__name__}." in text]
        self.assertGreaterEqual(len(public), 9)
        for module in public:
            found = {name: getattr(module, name) for name in module.__all__}
            names |= {f"{module.__name__}.{k}" for k, v in found.items() if not inspect.ismodule(v)}
        self.assertContainsSubset(names, shown)


if __name__ == "__main__":
    absltest.main()

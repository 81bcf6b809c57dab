# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: a notebook is a page, as a file of Markdown is.

The navigation and links name `tutorials/dlrm.ipynb`, as every viewer of the repository understands
it. The page has the cells in order. The notebook itself is in the site too, for a download.
"""

from __future__ import annotations

import json
import pathlib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = "repository"


def markdown_of(text: str) -> str:
    """The cells of a notebook as Markdown, without the comment that names the licence."""
    parts = []
    for cell in json.loads(text)["cells"]:
        lines = [line for line in cell["source"] if not line.startswith("# SPDX-")]
        source = "".join(lines)
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


class NotebookPage(File):
    """A notebook that MkDocs takes for a page of Markdown."""

    def is_documentation_page(self) -> bool:
        """Returns True, so that the page is rendered and not copied."""
        return True

    @property
    def content_string(self) -> str:
        """The page as Markdown, with a link to the notebook under the title."""
        title, _, rest = markdown_of((ROOT / "docs" / self.src_uri).read_text()).partition("\n")
        up = "../" * self.src_uri.count("/")
        notebook = f"{up}{FOLDER}/docs/{self.src_uri}"
        return f"{title}\n\n[Download this page as a notebook]({notebook})\n{rest}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts a page in the place of each notebook, and the notebook itself beside other files."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            page = NotebookPage(
                file.src_uri, file.src_dir, config.site_dir, config.use_directory_urls
            )
            files.append(page)
            copy = f"{FOLDER}/docs/{file.src_uri}"
            files.append(File.generated(config, copy, abs_src_path=str(file.abs_src_path)))
    return files

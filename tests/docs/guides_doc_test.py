# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/ without a test of their own: their code runs and prints the text they show."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import parameterized

from support import ROOT

DOCS = ROOT / "docs"
# A page is tested by this file, or by the one of its name beside it or in tests/processes.
PAGES = (
    "index.md",
    "quickstart.md",
    "guides/control_flow.md",
    "guides/custom_loops.md",
    "guides/eviction.md",
    "guides/gpu.md",
    "guides/saving_and_serving.md",
    "guides/strings.md",
    "guides/table_batched.md",
    "guides/training.md",
)
TESTED_ELSEWHERE = (
    "guides/redis.md",
    "guides/servers.md",
    "guides/serving.md",
    "guides/snapshots.md",
    "guides/static_export.md",
    "guides/tiers.md",
    "guides/troubleshooting.md",
    "guides/workers.md",
    "migrating/from_fbgemm.md",
    "migrating/from_oneembedding.md",
    "migrating/from_sok.md",
    "migrating/from_tfra.md",
)


def pieces_of(page: pathlib.Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


class GuidesDocTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*PAGES)
    def test_each_piece_of_code_runs(self, page):
        pieces = pieces_of(DOCS / page)
        self.assertNotEmpty(pieces)
        names: dict[str, Any] = {}
        printed = io.StringIO()
        with contextlib.chdir(tempfile.mkdtemp(dir=self.get_temp_dir())):
            for number, piece in enumerate(pieces):
                # TensorFlow reads the source of a tf.function from its file.
                file = pathlib.Path(f"piece_{number}.py").absolute()
                file.write_text(piece)
                with contextlib.redirect_stdout(printed):
                    exec(compile(piece, str(file), "exec"), names)
        lines = printed.getvalue().splitlines()
        said = re.findall(r"^ *print\(.*\)  # (.*)$", "".join(pieces), re.MULTILINE)
        for line in said:
            self.assertIn(line, lines)

    def test_every_page_with_code_is_tested(self):
        pages = {
            page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if pieces_of(page)
        }
        self.assertEqual(pages, {*PAGES, *TESTED_ELSEWHERE})


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The notebooks of docs/tutorials: each runs in its own process and prints as it says.

A notebook asserts its own figures. This test generates the ratings; the other notebooks generate
their data.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from support import ROOT
from support.oracles.reference import SEED
from support.processes import notebooks

DOCS = ROOT / "docs"
NAMES = ("recommender", "from_tfra", "larger_than_memory", "two_tower", "dlrm")
PACKAGES = {"two_tower": "keras_rs"}  # in addition to tf_embed's requirements
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def path_of(name: str) -> pathlib.Path:
    return DOCS / "tutorials" / f"{name}.ipynb"


def generated_ratings(users: int = 150, films: int = 100, count: int = 8000) -> str:
    """A u.data. Films have means. Even users like even films more, and odd users odd films."""
    rng = np.random.default_rng(SEED)
    pairs = rng.permutation(users * films)[:count]
    user, film = pairs // films, pairs % films
    liked = np.where(user % 2 == film % 2, 0.8, -0.8)
    means = rng.normal(3.0, 0.7, films)
    stars = np.rint(means[film] + liked + rng.normal(0, 0.3, count)).clip(1, 5).astype(int)
    lines = zip(user * 10**12, film, stars, strict=True)
    return "".join(f"{user}\t{film}\t{star}\t0\n" for user, film, star in lines)


def run(path: pathlib.Path, folder: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, notebooks.__file__, str(path)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "MOVIELENS_DIR": folder}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


class NotebooksTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> str:
        return tempfile.mkdtemp(dir=self.get_temp_dir())

    @parameterized.parameters(*[(name,) for name in NAMES])
    def test_each_cell_runs_and_prints_as_it_says(self, name):
        if name in PACKAGES:
            package = PACKAGES[name]
            pytest.importorskip(package, reason=f"needs {package}: pip install {package}")
        folder = self.folder()
        (pathlib.Path(folder) / "u.data").write_text(generated_ratings())
        program = run(path_of(name), folder)
        self.assertEqual(program.returncode, 0, program.stdout + program.stderr)
        lines = program.stdout.splitlines()
        code = "\n".join(notebooks.sources_of(path_of(name), "code"))
        said = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
        self.assertNotEmpty(said)
        for line in said:
            self.assertIn(line, lines)

    def test_a_cell_that_fails_is_found(self):
        folder = self.folder()
        notebook = pathlib.Path(folder) / "failing.ipynb"
        notebook.write_text(
            '{"cells": [{"cell_type": "code", "source": ["x = 1\\n", "assert x == 2"]}]}'
        )
        program = run(notebook, folder)
        self.assertNotEqual(program.returncode, 0)
        self.assertIn("AssertionError", program.stderr)

    @parameterized.parameters(*[(name,) for name in NAMES])
    def test_cells_are_python_without_outputs(self, name):
        for cell in notebooks.cells_of(path_of(name)):
            if cell["cell_type"] == "code":
                ast.parse("".join(cell["source"]))  # an IPython magic is a syntax error
                self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None))

    @parameterized.parameters(*[(name,) for name in NAMES])
    def test_it_has_a_title_a_licence_and_checks(self, name):
        self.assertStartsWith(notebooks.sources_of(path_of(name), "markdown")[0], "# ")
        code = notebooks.sources_of(path_of(name), "code")
        self.assertStartsWith(code[0], LICENCE)
        checks = [node for cell in code for node in ast.walk(ast.parse(cell))]
        self.assertGreaterEqual(sum(isinstance(node, ast.Assert) for node in checks), 2)

    def test_every_notebook_is_tested(self):
        self.assertCountEqual([path.stem for path in DOCS.rglob("*.ipynb")], NAMES)


if __name__ == "__main__":
    tf.test.main()

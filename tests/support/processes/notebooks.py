# SPDX-License-Identifier: Apache-2.0
"""Reads notebooks, and runs a notebook's code cells in order, in a single namespace.

python tests/support/processes/notebooks.py NOTEBOOK

A notebook is JSON of the fourth version of nbformat. Code cells are plain Python, so that this
program needs no Jupyter.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
from typing import Any


def cells_of(path: pathlib.Path) -> list[dict[str, Any]]:
    """The cells of a notebook, in order."""
    return json.loads(path.read_text())["cells"]


def sources_of(path: pathlib.Path, kind: str) -> list[str]:
    """The text of each cell of a kind, "code" or "markdown"."""
    return ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == kind]


def run(path: pathlib.Path) -> None:
    """Runs the code cells of a notebook. An exception of a cell ends the run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        for number, code in enumerate(sources_of(path, "code")):
            # TensorFlow reads the source of a tf.function from its file.
            file = pathlib.Path(folder) / f"cell_{number}.py"
            file.write_text(code)
            exec(compile(code, str(file), "exec"), names)


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))

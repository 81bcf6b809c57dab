# SPDX-License-Identifier: Apache-2.0
"""Measures a part of a section, in its own process.

    python benchmarks/section.py lookup 1e6 [--quick] [--folder=FOLDER]

Prints a line of JSON for each row. The output of libraries goes to the standard error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys

# Read when TensorFlow is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from settings import BUILD, Settings


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures one part of one section.")
    parser.add_argument("section")
    parser.add_argument("part")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path, default=BUILD)
    options = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    section = importlib.import_module(f"sections.{options.section}")
    for row in section.rows(options.part, Settings(options.quick, options.folder)):
        lines.write(row.to_json() + "\n")
    lines.flush()
    sys.stdout.flush()
    # Skips the teardown of TensorFlow's threads and peers' tables, which takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()

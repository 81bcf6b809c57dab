# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python tests.

`oracles` compute expected results, `cases` are inputs that several tests share, `faults` disturb
the code under test, and `processes` start other processes or run in them.
"""

import importlib.util
import os
import pathlib
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CAMPAIGNS = TESTS / "campaigns"
# The PYTHONPATH of processes that import these helpers. They get the tf_embed of this process: from
# the tree, or from a wheel.
_PACKAGE = importlib.util.find_spec("tf_embed")
assert _PACKAGE is not None and _PACKAGE.origin is not None
PYTHONPATH = os.pathsep.join([str(pathlib.Path(_PACKAGE.origin).parents[1]), str(TESTS)])


def pyproject() -> dict[str, Any]:
    """The settings in pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())

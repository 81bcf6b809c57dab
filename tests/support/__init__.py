# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python tests.

`oracles` say what is right, `cases` are inputs that several tests share, `faults` are what goes
wrong, and `processes` start other processes or run in them.
"""

import importlib.util
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CAMPAIGNS = TESTS / "campaigns"
# PYTHONPATH of processes that import these helpers, and the tf_embed that this process has: of the
# tree, or of a wheel.
_PACKAGE = importlib.util.find_spec("tf_embed")
assert _PACKAGE is not None and _PACKAGE.origin is not None
PYTHONPATH = os.pathsep.join([str(pathlib.Path(_PACKAGE.origin).parents[1]), str(TESTS)])

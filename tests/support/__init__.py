# SPDX-License-Identifier: Apache-2.0
"""Helpers of the Python tests.

`oracles` say what is right, `cases` are inputs that several tests share, `faults` are what goes
wrong, and `processes` start other processes or run in them.
"""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CAMPAIGNS = TESTS / "campaigns"
# The variable PYTHONPATH of a process that imports tf_embed from the tree, and these helpers.
PYTHONPATH = os.pathsep.join([str(ROOT), str(TESTS)])

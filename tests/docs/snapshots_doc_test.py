# SPDX-License-Identifier: Apache-2.0
"""docs/guides/snapshots.md: its code runs as written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support import ROOT

DOC = (ROOT / "docs" / "guides" / "snapshots.md").read_text()
FOLDER = "/mnt/nvme/snapshots"


class SnapshotsDocTest(tf.test.TestCase):
    def test_each_piece_of_code_runs(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        pieces = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
        self.assertLen(pieces, 4)
        names: dict[str, Any] = {"keras": keras, "tf_embed": tf_embed}
        names["ids"] = np.arange(80).reshape(40, 2)
        names["targets"] = np.ones((40, 1))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for piece in pieces:
                exec(piece.replace(FOLDER, folder), names)
        self.assertIn("[('monday', None, 80), ('tuesday', 'monday', 80)]", printed.getvalue())
        self.assertIn("[('tuesday', None), ('wednesday', 'tuesday')]", printed.getvalue())
        self.assertCountEqual(os.listdir(folder), ["tuesday", "wednesday", "snapshot-000001"])

    def test_the_numbers_are_those_of_the_code(self):
        log = ROOT / "cc" / "core" / "table" / "change_log.h"
        self.assertIn("kMaxLeft = size_t{1} << 24", log.read_text())
        self.assertIn("kMaxMarks = 64", log.read_text())
        self.assertIn("16 million keys and 64 snapshots at most", DOC)


if __name__ == "__main__":
    tf.test.main()

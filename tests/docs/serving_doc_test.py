# SPDX-License-Identifier: Apache-2.0
"""docs/guides/serving.md: its code runs as written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from support import ROOT

DOC = (ROOT / "docs" / "guides" / "serving.md").read_text()
FOLDER = "/mnt/shared/items"


class ServingDocTest(tf.test.TestCase):
    def test_each_piece_of_code_runs(self):
        folder = os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), "items")
        pieces = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
        self.assertLen(pieces, 3)
        ids = np.random.default_rng(0).integers(0, 1000, [400, 8])
        names: dict[str, Any] = {"ids": ids, "targets": ids[:, 0] % 2}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for piece in pieces:
                exec(piece.replace(FOLDER, folder), names)
        self.assertRegex(printed.getvalue(), r"\d+ \d+\.\d+ None")
        self.assertAllEqual(names["answers"], names["model"].predict_on_batch(ids))


if __name__ == "__main__":
    tf.test.main()

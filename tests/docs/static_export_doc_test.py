# SPDX-License-Identifier: Apache-2.0
"""docs/guides/static_export.md: its code runs as written, the second piece without tf_embed."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support import ROOT
from support.processes.stock_process import StockProcess
from tf_embed.static_export import quantization

DOC = (ROOT / "docs" / "guides" / "static_export.md").read_text()
FOLDER = "/srv/models/clicks"
IDS = np.array([[5, 8, 0], [10**12, 0, 0]])


class StaticExportDocTest(tf.test.TestCase):
    def test_each_piece_of_code_runs(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        export, serve, in_place, smaller = (
            piece.replace(FOLDER, folder)
            for piece in re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
        )
        rng = np.random.default_rng(1)
        names: dict[str, Any] = {"keras": keras, "tf": tf, "tf_embed": tf_embed}
        names["items"], names["clicked"] = rng.integers(0, 9, [64, 3]), rng.integers(0, 2, [64, 1])
        for piece in (export, in_place, smaller):
            exec(piece, names)
        answers = tf.function(names["model"])(tf.constant(IDS)).numpy()
        with StockProcess() as stock:
            self.assertEqual(stock.run(serve), str(tf.constant(answers)) + "\n")
            (same,) = stock.call(f"{folder}/2", [IDS])
            (byte,) = stock.call(f"{folder}/3", [IDS])
        self.assertAllEqual(same, answers)
        self.assertAllClose(byte, answers, atol=0.01)

    def test_the_bounds_are_those_of_the_code(self):
        for kind, words in (
            (quantization.HalfFormat, ("|w| / 2048 + 2**-25", "abs(w) / 2048 + 2^-25")),
            (
                quantization.ByteFormat,
                ("/ 510 + 2**-21 * greatest |w|", "/ 510 + 2^-21 * (greatest"),
            ),
        ):
            self.assertIn(words[0], " ".join(kind.__doc__.split()))
            self.assertIn(words[1], DOC)


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""docs/guides/tiers.md: its code runs as written, and the names it gives exist."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import re
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_embed
from support import ROOT
from support.oracles.reference import SEED
from tf_embed.layers import DynamicEmbedding

DOC = (ROOT / "docs" / "guides" / "tiers.md").read_text()
FOLDER = "/mnt/nvme/tables"


def model_of(inputs: list[str], **layers: DynamicEmbedding) -> keras.Model:
    ids = {name: keras.Input((), dtype="int64", name=name) for name in inputs}
    rows = [layer(ids[name]) for name, layer in zip(inputs, layers.values(), strict=True)]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()([*rows, *rows])))
    model.compile("sgd", "mse", jit_compile=False)
    return model


class TiersDocTest(tf.test.TestCase):
    def test_each_piece_of_code_runs(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        first, *pieces = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
        self.assertIn(FOLDER, first)
        names: dict[str, Any] = {"tf_embed": tf_embed}
        exec(first.replace(FOLDER, folder), names)
        layer, storage = names["layer"], names["storage"]
        self.assertEqual(os.listdir(folder), [])

        rng = np.random.default_rng(SEED)
        ids, labels = rng.integers(0, 1000, [500, 2]), rng.normal(size=[500, 1])
        names["model"] = keras.Sequential(
            [keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        names["model"].compile("sgd", "mse", jit_compile=False)
        of_one = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(50)
        names["user_layer"], names["item_layer"] = (
            DynamicEmbedding(4, optimizer="adagrad", storage=storage) for _ in range(2)
        )
        of_two = tf.data.Dataset.from_tensor_slices(
            ({"user": ids[:, 0], "item": ids[:, 1]}, labels)
        ).batch(50)
        printed = io.StringIO()
        before = os.getcwd()
        try:
            os.chdir(tempfile.mkdtemp(dir=self.get_temp_dir()))  # a piece writes to "logs"
            for piece in pieces:
                names["dataset"] = of_two if "user_layer" in piece else of_one
                with contextlib.redirect_stdout(printed):
                    exec(piece, names)
                if "user_layer" in piece:
                    two = model_of(
                        ["user", "item"], user=names["user_layer"], item=names["item_layer"]
                    )
                    two.fit(names["dataset"], verbose=0)
            self.assertNotEmpty(os.listdir("logs"))
        finally:
            os.chdir(before)
        report = re.search(r"```\n('items'.*?)```", DOC, re.DOTALL)[1]
        self.assertIn(re.search("A row takes .*", report)[0], printed.getvalue())

    def test_what_it_names_is_there(self):
        names = re.findall(r"`((?:layer|variable)\.[a-z_.]+)\(", DOC)
        self.assertIn("layer.variable.table.shrink", names)
        layer = DynamicEmbedding(4)
        layer.build([None])
        roots = {"layer": layer, "variable": layer.variable}
        for name in names:
            kind, _, rest = name.partition(".")
            self.assertTrue(callable(operator.attrgetter(rest)(roots[kind])), name)
        table = re.search(r"\| name \| meaning.*?\n\n", DOC, re.DOTALL)[0]
        stats = layer.variable.stats()
        cells = [line.split("|")[1] for line in table.strip().splitlines()[2:]]
        listed = [name.strip(" `") for cell in cells for name in cell.split(",")]
        self.assertContainsSubset(listed, stats)
        arguments = re.findall(r"^\| `([a-z_]+)` \| ", DOC.split("## Prefetch")[0], re.MULTILINE)
        self.assertCountEqual(arguments, tf_embed.Storage.__dataclass_fields__)


if __name__ == "__main__":
    tf.test.main()

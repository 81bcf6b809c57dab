# SPDX-License-Identifier: Apache-2.0
"""docs/migrating/from_fbgemm.md, line by line: its code runs, and absent names are absent."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from support import ROOT
from support.cases.doc_tables import code_in, rows_of
from tf_embed import tbe

DOC = ROOT / "docs" / "migrating" / "from_fbgemm.md"


ROWS = rows_of(DOC.read_text(), "FBGEMM")
# Names that the second column replaces by others.
OTHERS = ("forward", "state_dict", "load_state_dict")


def names_for_code() -> dict[str, Any]:
    """The objects that code of the second column may use."""
    bags = tbe.TableBatchedEmbeddingBags(
        [(9, 4), (None, 4)], optimizer=tbe.OptimType.EXACT_ROWWISE_ADAGRAD
    )
    return {
        "tbe": tbe,
        "bags": bags,
        "indices": tf.constant([1, 2, 10**15], tf.int64),
        "offsets": tf.constant([0, 2, 3], tf.int64),
        "rows": bags.get_weights(),
    }


class FbgemmDocTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*ROWS)
    def test_a_line_says_what_is_so(self, theirs, ours, differs):
        layer = tbe.TableBatchedEmbeddingBags
        if ours == "not there":
            self.assertNotEmpty(differs)
            for name in code_in(theirs):
                self.assertFalse(hasattr(tbe, name), name)
            return
        (code,) = code_in(ours)
        self.assertEqual(ours, f"`{code}`")
        exec(code, names_for_code())
        for name in code_in(theirs):
            found = name in code or hasattr(layer, name) or hasattr(tbe, name)
            self.assertTrue(found or name in OTHERS, name)

    def test_every_public_method_has_a_line(self):
        said = {name for theirs, _, _ in ROWS for name in code_in(theirs)}
        methods = [name for name in vars(tbe.TableBatchedEmbeddingBags) if not name.startswith("_")]
        ours = {name for name in methods if hasattr(keras.layers.Layer, name)}
        cache_counts = {name for name in methods if "cache_miss" in name or "uvm_cache" in name}
        properties = {"tables", "embedding_specs", "optimizer", "bounds_check_warning"}
        self.assertEmpty(set(methods) - said - ours - cache_counts - properties)
        self.assertGreater(len(ROWS), 20)

    def test_the_code_in_it_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
        self.assertLen(blocks, 2)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                exec(block, {})
        self.assertEqual(printed.getvalue(), "300\n")

    def test_a_batch_gives_pooled_rows(self):
        names = names_for_code()
        names["bags"].split_embedding_weights()[0][:] = np.ones([9, 4])
        pooled = names["bags"](names["indices"], names["offsets"])
        self.assertAllEqual(pooled, [[2.0] * 4 + [0.0] * 4])


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""docs/migrating/from_oneembedding.md, line by line: its names exist and run, or do not exist."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from typing import Any

import keras
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import ROOT
from support.cases.doc_tables import code_in, rows_of
from tf_embed import one_embedding

DOC = ROOT / "docs" / "migrating" / "from_oneembedding.md"

# The names that oneflow.one_embedding documents.
NAMES = """
    make_uniform_initializer make_normal_initializer make_constant_initializer
    make_trunc_normal_initializer make_column_options make_table_options make_table
    make_device_mem_store_options make_cached_ssd_store_options make_cached_host_mem_store_options
    MultiTableEmbedding MultiTableMultiColumnEmbedding forward save_snapshot load_snapshot
    make_persistent_table_reader make_persistent_table_writer Ftrl SmartDecayAdam Optimizer
    size_factor storage_dim physical_block_size persistent_path capacity padding_idx state_dict
"""


ROWS = rows_of(DOC.read_text(), "OneFlow")


def names_for(folder: str) -> dict[str, Any]:
    """The names that the code of the second column may use."""
    uniform = one_embedding.make_uniform_initializer()
    table = one_embedding.make_table(uniform)
    store = one_embedding.make_device_mem_store_options(folder, 100)

    def layer(**options: Any) -> Any:
        kind = one_embedding.MultiTableEmbedding
        made = kind("layer", 2, "float32", "int32", [table] * 2, store, **options)
        made.build()
        return made

    rows = layer()
    rows.save_snapshot("saved")
    return {
        "one_embedding": one_embedding,
        "tf_embed": tf_embed,
        "keras": keras,
        "tf": tf,
        "uniform": uniform,
        "table": table,
        "store": store,
        "layer": rows,
        "other": layer(),
        "tracked": layer(policy=tf_embed.TablePolicy(eviction=None, track_changes=True)),
        "ids": tf.constant([[1, 2], [3, 4]]),
        "table_ids": tf.constant([[0, 1], [1, 0]]),
        "folder": folder,
    }


class OneEmbeddingDocTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*ROWS)
    def test_a_line_says_what_is_so(self, theirs, ours, differs):
        if ours == "not there":
            self.assertNotEmpty(differs)
            for name in code_in(theirs):
                self.assertFalse(hasattr(one_embedding, name), name)
            return
        (code,) = code_in(ours)
        self.assertEqual(ours, f"`{code}`")
        with tempfile.TemporaryDirectory() as folder:
            exec(code, names_for(folder))
        for name in code_in(theirs):
            found = f"{name}(" in code or f"{name}=" in code or name in code
            self.assertTrue(found or hasattr(one_embedding, name) or name in OTHERS, name)

    def test_every_name_has_a_line(self):
        said = {name for theirs, _, _ in ROWS for name in code_in(theirs)}
        self.assertEmpty(set(NAMES.split()) - said)
        self.assertEmpty(set(one_embedding.__all__) - said)
        self.assertGreater(len(ROWS), 20)

    def test_the_code_in_it_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
        self.assertLen(blocks, 2)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                exec(block, {})
        self.assertEqual(printed.getvalue(), "300\n")


# Names that have another name in the second column.
OTHERS = ("Optimizer", "state_dict", "capacity", "size_factor", "persistent_path")


if __name__ == "__main__":
    tf.test.main()

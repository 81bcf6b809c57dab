# SPDX-License-Identifier: Apache-2.0
"""docs/migrating/from_sok.md, line by line: the names it gives exist and run, or do not exist."""

from __future__ import annotations

import contextlib
import datetime
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
from tf_embed import sok

DOC = ROOT / "docs" / "migrating" / "from_sok.md"

# The names that sparse_operation_kit documents, of both versions.
NAMES = """
    Init All2AllDenseEmbedding DistributedEmbedding Saver dump_to_file restore_from_file
    load_embedding_values TFDistributedEmbedding split_embedding_variable_from_others
    max_vocabulary_size_per_gpu slot_num nnz_per_slot dynamic_input use_hashtable key_dtype
    embedding_initializer combiner max_nnz max_feature_num embedding_variable
    init Variable DynamicVariable lookup_sparse all2all_dense_embedding sparse_read_and_evict
    OptimizerWrapper SGD export assign dump load incremental_model_dump filter_variables
    size indices sparse_read scatter_add scatter_sub scatter_update to_static to_dynamic
    max_capacity evict_strategy filter_ratio max_hbm_for_vectors use_low_frequency_filter
"""


ROWS = rows_of(DOC.read_text(), "SOK")


def names_for(folder: str) -> dict[str, Any]:
    """The names that the code of the second column may use."""
    dense = sok.All2AllDenseEmbedding(1024, 4, 2, 1, name="dense")
    pooled = sok.DistributedEmbedding("sum", 1024, 4, 2, 3, name="pooled")
    for layer in (dense, pooled):
        layer.build()
        sok.assign(layer, [1, 3], [[0.5] * 4] * 2)
    inputs = keras.Input([2, 1], dtype="int64")
    model = keras.Model(inputs, dense(inputs))
    optimizer = sok.OptimizerWrapper(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    indices = [[0, 0], [0, 1], [3, 2]]
    return {
        "sok": sok,
        "tf_embed": tf_embed,
        "keras": keras,
        "tf": tf,
        "keys": tf.constant([[[1], [2]], [[3], [4]]]),
        "sparse": tf.SparseTensor(indices, tf.constant([1, 2, 3], tf.int64), [4, 3]),
        "dense": dense,
        "pooled": pooled,
        "model": model,
        "timed": tf_embed.Variable(dim=4, policy=tf_embed.TablePolicy(eviction="ttl")),
        "datetime": datetime,
        "optimizer": optimizer,
        "folder": folder,
    }


class SokDocTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*ROWS)
    def test_a_line_says_what_is_so(self, theirs, ours, differs):
        if ours == "not there":
            self.assertNotEmpty(differs)
            for name in code_in(theirs):
                self.assertFalse(hasattr(sok, name), name)
            return
        (code,) = code_in(ours)
        self.assertEqual(ours, f"`{code}`")
        with tempfile.TemporaryDirectory() as folder:
            exec(code, names_for(folder))
        for name in code_in(theirs):
            self.assertTrue(name in code or hasattr(sok, name) or name in OTHERS, name)

    def test_every_name_has_a_line(self):
        said = {name for theirs, _, _ in ROWS for name in code_in(theirs)}
        self.assertEmpty(set(NAMES.split()) - said)
        self.assertEmpty(set(sok.__all__) - said)
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
OTHERS = (
    *("init", "DynamicVariable", "all2all_dense_embedding", "sparse_read", "scatter_update"),
    *("max_vocabulary_size_per_gpu", "split_embedding_variable_from_others", "size", "indices"),
    *("max_capacity", "evict_strategy", "filter_ratio", "use_low_frequency_filter"),
    *("max_hbm_for_vectors", "SavedModel", "tf.keras.optimizers.Adam", "LazyAdamOptimizer"),
)


if __name__ == "__main__":
    tf.test.main()

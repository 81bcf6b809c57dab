# SPDX-License-Identifier: Apache-2.0
"""The lines of tables below Keras's summary."""

from __future__ import annotations

import contextlib
import io

import keras
import numpy as np
import tensorflow as tf
from absl.testing import absltest

import tf_embed
from tf_embed import tbe
from tf_embed.layers import DynamicEmbedding
from tf_embed.variable.memory_report import size_text


class TableLinesTest(tf.test.TestCase):
    def lines(self, model: keras.layers.Layer) -> list[list[str]]:
        """The words of each line after the heading."""
        texts: list[str] = []
        tf_embed.print_tables(model, print_fn=texts.append)
        return [line.split() for line in texts[0].splitlines()[1:]]

    def test_each_table_has_a_line_that_stays_right_as_rows_grow(self):
        ids = keras.Input([2], dtype="int64")
        layer = DynamicEmbedding(8, name="items", combiner="sum", optimizer="adam")
        batched = tbe.TableBatchedEmbeddingBags(
            [(None, 2), (None, 3)], feature_table_map=[0, 1], table_names=["one", "two"]
        )
        outputs = keras.layers.Concatenate()([layer(ids), layer(ids), batched([ids, ids])])
        model = keras.Model(ids, outputs)
        head, *lines = self.lines(model)
        self.assertEqual(head, ["Table", "Rows", "Dim", "Weights", "Memory"])
        names = [line[0] for line in lines]
        self.assertEqual(names, ["items", "one", "two"])
        self.assertEqual([line[1:4] for line in lines], [["0", f"{n}", "0"] for n in (8, 2, 3)])
        layer.variable.upsert(np.arange(1500), np.ones([1500, 8]))
        batched.tables[1].upsert([1, 2], np.ones([2, 3]))
        lines = self.lines(model)[1:]
        self.assertEqual(
            [line[1:4] for line in lines],
            [["1,500", "8", "12,000"], ["0", "2", "0"], ["2", "3", "6"]],
        )
        self.assertEqual(lines[0][5], "KiB")

    def test_bytes_on_disk_have_a_column(self):
        storage = tf_embed.Storage(host_bytes=2**16, path=self.get_temp_dir())
        layer = DynamicEmbedding(8, name="items", storage=storage)
        layer.build()
        layer.variable.upsert(np.arange(60_000), np.ones([60_000, 8]))  # more than buffers hold
        head, line = self.lines(layer)
        self.assertEqual(head[5:], ["Disk"])
        self.assertEqual(line[:4], ["items", "60,000", "8", "480,000"])
        self.assertEqual(" ".join(line[6:]), size_text(layer.variable.stats()["disk_bytes"]))

    def test_the_summary_of_a_model_ends_with_them(self):
        ids = keras.Input([2], dtype="int64")
        model = tf_embed.Model(ids, DynamicEmbedding(8, name="items")(ids))
        texts: list[str] = []
        model.summary(print_fn=texts.append)
        self.assertLen(texts, 2)
        self.assertIn("Total params: 0", texts[0])
        self.assertIn(" items     0    8        0", texts[1])
        model.summary(None, None, texts.append, expand_nested=True)
        self.assertEqual(texts[2:], texts[:2])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            model.summary(80)
        self.assertTrue(printed.getvalue().endswith(texts[1] + "\n"))
        dense = tf_embed.Model(ids, keras.ops.cast(ids, "float32"))
        dense.summary(print_fn=texts.append)
        self.assertLen(texts, 5)

    def test_a_model_without_tables_says_so_and_nothing_else_is_taken(self):
        texts: list[str] = []
        tf_embed.print_tables(keras.layers.Dense(1), print_fn=texts.append)
        self.assertEqual(texts, [" No tables."])
        with self.assertRaisesRegex(TypeError, "`model` must be a Keras model .* model=3"):
            tf_embed.print_tables(3)


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""`TableProjector` writes the most used rows and the norms of all rows for TensorBoard."""

from __future__ import annotations

import pathlib
import tempfile
import unittest.mock
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.oracles.reference import SEED
from tf_embed.callbacks import TableProjector, used_rows
from tf_embed.layers import DynamicEmbedding
from tf_embed.saving import row_blocks

IDS = np.random.default_rng(SEED).zipf(1.5, [48, 2]) % 50
LABELS = np.ones([48, 1])
STRINGS = [b"a\tb", b"a\\tb", b"\xff\n", "zo\u00eb".encode(), b"\x00", "a\u2028".encode()]
TEXTS = ["a\\tb", "a\\\\tb", "\\xff\\n", "zo\u00eb", "\\x00", "a\\u2028"]


def fit(callback: Any, epochs: int = 1, **options: Any) -> tf_embed.Variable:
    """Trains a model, and returns its table."""
    keras.utils.set_random_seed(SEED)
    layer = DynamicEmbedding(3, name="items", initializer="normal", optimizer="adam", **options)
    ids = keras.Input([2], dtype="int64")
    model = keras.Sequential([ids, layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(IDS, LABELS, 8, epochs, verbose=0, shuffle=False, callbacks=[callback])
    return layer.variable


def written(callback: TableProjector) -> None:
    """Lets a callback write the rows of its tables, without a model."""
    callback.on_train_begin()
    callback.on_epoch_end(0)
    callback.on_train_end()


class TableProjectorTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def table(self, folder: pathlib.Path, name: str = "0_items") -> tuple[list[Any], np.ndarray]:
        """The lines of the keys of a table, split in columns, and its rows."""
        text = (folder / "rows" / f"{name}_keys.tsv").read_text()
        rows = np.loadtxt(folder / "rows" / f"{name}.tsv", delimiter="\t", ndmin=2)
        return [line.split("\t") for line in text.split("\n")[:-1]], rows

    def histograms(self, folder: pathlib.Path) -> list[tuple[int, np.ndarray]]:
        """The step and the buckets of each histogram."""
        found = []
        for path in (folder / "rows").glob("events*"):
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    self.assertEqual(value.metadata.plugin_data.plugin_name, "histograms")
                    self.assertEqual(value.tag, "items/row_norm")
                    found.append((event.step, tf.make_ndarray(value.tensor)))
        return found

    def test_the_rows_with_the_highest_counts_are_written_in_their_order(self):
        folder = self.folder()
        policy = tf_embed.TablePolicy(eviction="lfu")
        variable = fit(TableProjector(folder, rows=7), policy=policy)
        (head, *lines), rows = self.table(folder)
        self.assertEqual(head, ["key", "last_step", "count", "norm"])
        keys = [int(line[0]) for line in lines]
        self.assertLen(set(keys), 7)
        self.assertAllClose(rows, variable.lookup(keys))
        self.assertAllClose([float(line[3]) for line in lines], np.linalg.norm(rows, axis=1))
        counts = [int(line[2]) for line in lines]
        self.assertAllEqual(counts, variable.row_statistics(keys)["count"])
        every_key = variable.export()[0]
        wanted = np.sort(variable.row_statistics(every_key)["count"].numpy())[::-1]
        self.assertAllEqual(counts, wanted[:7])

    def test_without_statistics_the_longest_rows_are_written(self):
        folder = self.folder()
        v = tf_embed.Variable(dim=2, name="items")
        v.upsert([1, 2, 3, 4], [[3.0, 4.0], [0.0, 9.0], [1.0, 0.0], [np.nan, 1.0]])
        written(TableProjector(folder, v, rows=2))
        lines, rows = self.table(folder)
        self.assertEqual(lines, [["key", "norm"], ["2", "9"], ["1", "5"]])
        self.assertAllEqual(rows, [[0.0, 9.0], [3.0, 4.0]])

    @pytest.mark.smoke
    def test_norms_are_written_after_epochs_and_at_the_end(self):
        folder = self.folder()
        variable = fit(TableProjector(folder, every_n_epochs=2), epochs=5)
        found = self.histograms(folder)
        self.assertEqual([step for step, _ in found], [1, 3, 4])
        norms = np.linalg.norm(variable.export()[1], axis=1)
        buckets = found[-1][1]
        self.assertEqual(buckets.shape, (30, 3))
        self.assertEqual(buckets[:, 2].sum(), len(norms))
        self.assertAllClose([buckets[0, 0], buckets[-1, 1]], [norms.min(), norms.max()])

    @parameterized.parameters("blocks", "files")
    def test_a_large_table_is_read_block_by_block(self, how):
        v = tf_embed.Variable(dim=2, name="items", policy=tf_embed.TablePolicy(eviction="lru"))
        rows = np.random.default_rng(SEED).normal(size=[90, 2])
        for some in np.split(np.arange(90), 9):
            v.upsert(some, rows[some])
        whole, parts = self.folder(), self.folder()
        written(TableProjector(whole, v, rows=25))
        most_bytes = 0 if how == "files" else 2**20
        with (
            unittest.mock.patch.object(row_blocks, "BLOCK_BYTES", 100),
            unittest.mock.patch.object(row_blocks, "_BUFFER_BYTES", 100),
            unittest.mock.patch.object(used_rows, "_MOST_BYTES", most_bytes),
            unittest.mock.patch.object(used_rows, "_MOST_NORMS", 30),
        ):
            written(TableProjector(parts, v, rows=25))
        self.assertEqual(self.table(parts)[0], self.table(whole)[0])
        self.assertAllEqual(self.table(parts)[1], self.table(whole)[1])
        self.assertEqual(self.histograms(whole)[0][1][:, 2].sum(), 90)
        self.assertEqual(self.histograms(parts)[0][1][:, 2].sum(), 30)
        self.assertEqual({path.suffix for path in (parts / "rows").iterdir()} - {".v2"}, SUFFIXES)

    @parameterized.parameters(0, 2**20)
    def test_string_keys_are_distinct_texts_of_a_line_each(self, most_bytes):
        folder = self.folder()
        v = tf_embed.Variable(tf.string, dim=1, name="a b/c")
        v.upsert(STRINGS, [[6.0], [5.0], [4.0], [3.0], [2.0], [1.0]])
        with unittest.mock.patch.object(used_rows, "_MOST_BYTES", most_bytes):
            written(TableProjector(folder, v))
        lines, _ = self.table(folder, "0_a_b_c")
        self.assertEqual([line[0] for line in lines[1:]], TEXTS)

    def test_a_table_without_rows_is_left_out(self):
        folder = self.folder()
        full, empty = (tf_embed.Variable(dim=1, name=name) for name in ("items", "empty"))
        full.upsert([1], [[2.0]])
        written(TableProjector(folder, [empty, full]))
        config = (folder / "rows" / "projector_config.pbtxt").read_text()
        self.assertNotIn("empty", config)
        self.assertIn('tensor_name: "items"', config)

    @pytest.mark.smoke
    def test_the_projector_of_tensorboard_reads_them_beside_its_callback(self):
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.projector import projector_plugin
        from werkzeug.test import Client

        folder = str(self.folder())
        v = tf_embed.Variable(dim=2, name='an "item"')
        v.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        board = keras.callbacks.TensorBoard(folder, write_graph=False)
        fit(keras.callbacks.CallbackList([board, TableProjector(folder, v)]))
        runs = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder)
        runs.Reload()
        self.assertEqual(set(runs.Runs()), {"train", "rows"})
        provider = data_provider.MultiplexerDataProvider(runs, folder)
        context = base_plugin.TBContext(logdir=folder, data_provider=provider)
        apps = projector_plugin.ProjectorPlugin(context).get_plugin_apps()

        def get(route: str, **query: str) -> Any:
            return Client(apps[route]).get(route, query_string={"run": "rows", **query})

        (found,) = get("/info").json["embeddings"]
        self.assertEqual((found["tensorName"], found["tensorShape"]), ('an "item"', [2, 2]))
        rows = np.frombuffer(get("/tensor", name='an "item"').data, np.float32)
        self.assertAllEqual(rows, [3.0, 4.0, 1.0, 2.0])
        self.assertEqual(get("/metadata", name='an "item"').text, "key\tnorm\n2\t5\n1\t2.236068\n")

    def test_what_makes_no_sense_is_refused(self):
        v = tf_embed.Variable(value_dtype=tf.string, dim=1, name="texts")
        with self.assertRaisesRegex(ValueError, "list. Received: 'texts', which has rows of str"):
            TableProjector("logs", v).on_train_begin()
        with self.assertRaisesRegex(TypeError, "`tables` must be tf_embed.Variables or layers"):
            TableProjector("logs", [3])
        with self.assertRaisesRegex(ValueError, "`rows` must be .*100000. Received: rows=100001"):
            TableProjector("logs", rows=100_001)
        with self.assertRaisesRegex(ValueError, "`every_n_epochs` must be at least 1"):
            TableProjector("logs", every_n_epochs=0)
        with self.assertRaisesRegex(TypeError, "`log_dir` must be a str or a path"):
            TableProjector(3)


SUFFIXES = {".tsv", ".pbtxt"}  # temporary files are gone


if __name__ == "__main__":
    tf.test.main()

# SPDX-License-Identifier: Apache-2.0
"""The examples: their inputs, and a run of each, on tiny data and without a network.

kill_and_resume_test.py tests the example of that name; `make demo` runs flights.py.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import custom_loop
import keras
import larger_than_memory
import movielens_data
import numpy as np
import one_embedding_parquet
import one_embedding_three_tables
import pytest
import stream_data
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import ROOT
from support.oracles.reference import SEED, sorted_rows
from tf_embed import one_embedding

EXAMPLES = ROOT / "examples"
HEADER = "user|item|rating|timestamp"


def run(program: str, *arguments: str, cwd: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def generated_rows(count: int = 600) -> list[str]:
    """Lines of a u.data in GroupLens's format: 20 users, 30 items, ids of any size."""
    rng = np.random.default_rng(SEED)
    pairs = rng.permutation(20 * 30)[:count]
    stars, times = rng.integers(1, 6, count), rng.integers(10**9, size=count)
    ids = (f"{10**12 * (pair // 30)}\t{pair % 30}" for pair in pairs)
    return [f"{pair}\t{star}\t{time}" for pair, star, time in zip(ids, stars, times, strict=True)]


class MovieLensDataTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def written(self, lines: list[str], folder: pathlib.Path | None = None) -> pathlib.Path:
        folder = folder or self.folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "u.data").write_text("\n".join(lines) + "\n")
        return folder

    def loaded(self, lines: list[str]) -> movielens_data.Ratings:
        return movielens_data.load(self.written(lines))

    def assert_same(self, one: movielens_data.Ratings, two: movielens_data.Ratings) -> None:
        for name in ("user", "item", "stars", "fold"):
            self.assertAllEqual(getattr(one, name), getattr(two, name))

    def test_a_file_of_grouplens_is_read(self):
        ratings = self.loaded(["196\t242\t3\t881250949", "186\t302\t5\t891717742"])
        self.assertAllEqual(ratings.user, [196, 186])
        self.assertAllEqual(ratings.item, [242, 302])
        self.assertAllEqual(ratings.stars, [3.0, 5.0])
        self.assertEqual(ratings.user.dtype, np.int64)
        self.assertEqual(ratings.stars.dtype, np.float32)

    def test_a_header_and_bars_make_no_difference_to_ratings_and_split(self):
        rows = generated_rows()
        bars = [HEADER, *(row.replace("\t", "|") for row in rows)]
        self.assert_same(self.loaded(rows), self.loaded(bars))

    def test_the_folder_of_the_archive_is_found_from_the_folder_around_it(self):
        around = self.folder()
        self.written(generated_rows(), around / "ml-100k")
        self.assert_same(movielens_data.load(around), movielens_data.load(around / "ml-100k"))

    def test_the_fold_is_what_the_docstring_says(self):
        # printf "196\t242\t3\t881250949" | sha256sum: 28b57d8036bba4e0...
        self.assertEqual(movielens_data.fold_of("196\t242\t3\t881250949"), 8)

    def test_the_split_does_not_depend_on_the_order_of_the_lines(self):
        rows = generated_rows()
        shuffled = np.random.default_rng(SEED).permutation(len(rows))
        ratings, other = self.loaded(rows), self.loaded([rows[place] for place in shuffled])
        self.assert_same(ratings.where(shuffled), other)

    def test_a_tenth_is_in_each_fold(self):
        counts = np.bincount(
            [movielens_data.fold_of(f"{number}\t1\t3\t0") for number in range(10000)]
        )
        self.assertLen(counts, movielens_data.FOLDS)
        # Six standard deviations of a binomial number of 10,000 draws.
        self.assertAllInRange(counts, 1000 - 180, 1000 + 180)

    @parameterized.parameters("1\t2\t3", "1\t2\t3\t4\t5", "1\t2\tthree\t4", "", "1::2::3::4")
    def test_a_damaged_line_is_named(self, line):
        with self.assertRaisesRegex(SystemExit, "u.data, line 3, must be user, item, rating"):
            self.loaded(["1\t2\t3\t4", "1\t3\t3\t4", line, "1\t4\t3\t4"])

    def test_a_folder_without_ratings_is_named(self):
        folder = self.folder()
        with self.assertRaisesRegex(SystemExit, f"There is no u.data in {re.escape(str(folder))}"):
            movielens_data.load(folder)
        (folder / "u.data").write_text(HEADER + "\n")
        with self.assertRaisesRegex(SystemExit, "There are no ratings in"):
            movielens_data.load(folder)

    def test_titles_are_latin_1_and_may_be_missing(self):
        folder = self.folder()
        self.assertEqual(movielens_data.titles(folder), {})
        text = "item|title|releaseDate\n7|Misérables, Les (1995)|01-Jan-1995\n8|Up|\n"
        (folder / "u.item").write_bytes(text.encode("latin-1"))
        self.assertEqual(movielens_data.titles(folder), {7: "Misérables, Les (1995)", 8: "Up"})

    def test_the_archive_is_fetched_once_and_unpacked_whole(self):
        archive, rows = self.folder() / "ml-100k.zip", generated_rows()
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr("ml-100k/u.data", "\n".join(rows) + "\n")
        downloads = self.folder() / "new"
        for _ in range(2):
            folder = movielens_data.fetched(downloads, archive.as_uri())
            self.assert_same(movielens_data.load(folder), self.loaded(rows))
            archive.unlink(missing_ok=True)
        self.assertEqual([path.name for path in downloads.iterdir()], ["ml-100k"])

    @parameterized.parameters(None, b"<html>Please log in</html>")
    def test_without_data_and_network_there_is_one_sentence(self, received):
        archive = self.folder() / "ml-100k.zip"
        if received is not None:
            archive.write_bytes(received)
        downloads = self.folder() / "new"
        with self.assertRaisesRegex(SystemExit, r"no --data was given\.$"):
            movielens_data.fetched(downloads, archive.as_uri())
        self.assertFalse(downloads.exists())


class MovieLensTest(tf.test.TestCase):
    def test_it_predicts_ratings_and_recommends(self):
        folder, rows = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir())), generated_rows()
        (folder / "u.data").write_text("\n".join(rows) + "\n")
        titles = "".join(f"{item}|Café {item} (1995)|01-Jan-1995||\n" for item in range(31))
        (folder / "u.item").write_bytes(titles.encode("latin-1"))
        program = run("movielens.py", f"--data={folder}", "--seeds=1", "--epochs=2", cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        train = [row.split("\t") for row in rows if movielens_data.fold_of(row) != 0]
        users, items = ({row[column] for row in train} for column in (0, 1))
        for name, ids in (("user_bias", users), ("user_row", users), ("item_row", items)):
            rows_line = rf"{name}\s+{len(ids)}, and {len(ids)} ids in training\n"
            self.assertRegex(program.stdout, rows_line)
        self.assertRegex(program.stdout, r"tf_embed mean\s+\d\.\d{4}\n")
        self.assertRegex(program.stdout, r"User \d+ should see\n  \d\.\d\d  Café 30")


class LargerThanMemoryTest(tf.test.TestCase):
    def test_ids_follow_zipfs_law_and_are_spread(self):
        ids = np.concatenate([larger_than_memory.ids_of(step, 1000) for step in range(20)])
        _, counts = np.unique(ids, return_counts=True)
        counts = np.sort(counts)[::-1] / ids.size
        self.assertLess(len(counts), 1001)
        self.assertBetween(counts[0] / counts[9], 5, 20)  # 10 ** 1.05 is 11, without the rounding
        self.assertGreater(np.abs(ids).max(), 2**62)

    def test_a_run_on_disk_is_the_run_in_memory(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        options = ("--rows=20000", "--steps=12", "--host-bytes=400000", "--verbose=2")
        program = run("larger_than_memory.py", *options, "--path=rows", "--compare", cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        self.assertRegex(program.stdout, r"cache hit rate  \d+\.\d\d%\n")
        self.assertRegex(program.stdout, r"\nhost +390\.6 KiB")
        self.assertIn("losses equal    yes\nrows equal      yes\n", program.stdout)

    def test_it_draws(self):
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
        layer = tf_embed.layers.DynamicEmbedding(4)
        layer(tf.range(10), training=True)
        trace = larger_than_memory.Trace(layer, every=10)
        for step in range(100):
            trace.on_train_batch_end(step, {"loss": 1.0, "cache_hit_rate": 0.5})
        self.assertLen(trace.tiers, 10)
        path = pathlib.Path(self.get_temp_dir()) / "drawn" / "run.png"
        larger_than_memory.plot(path, trace, "heading")
        self.assertGreater(path.stat().st_size, 1000)


class OneEmbeddingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters([()], [("--columns", "--dim=10")])
    def test_each_store_has_the_losses_of_the_others(self, options):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        program = run("one_embedding_three_tables.py", "--path=.", *options, cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        for store in one_embedding_three_tables.STORES:
            line = rf"{store} +first loss \d\.\d+  last \d\.\d+  rows 24,124\n"
            self.assertRegex(program.stdout, line)
        self.assertRegex(program.stdout, r" \d+,\d+ rows went to the disk\n")
        self.assertEndsWith(program.stdout, "losses are equal\n")

    def test_the_parts_of_a_model_of_columns_are_those_of_a_deepfm(self):
        example = one_embedding_three_tables
        options = example.options_of(["--columns", "--dim=4"])
        store = one_embedding.make_device_mem_store_options(self.get_temp_dir(), 100)
        embedding = example.embedding_of(store, options)
        model = example.model_of(embedding, options)
        ids = np.array([[1, 2, 3], [4, 4, 4]])
        rows = embedding(ids).numpy().astype(np.float64)
        self.assertEqual(rows.shape, (2, 3, 5))
        for table, high in enumerate(example.HIGHS):
            self.assertBetween(np.abs(rows[:, table, :4]).max(), high / 8, high)
        self.assertLess(np.abs(rows[..., 4]).max(), 0.05)
        mlp = [one for one in model.layers if isinstance(one, keras.layers.Dense)]
        hidden = rows[..., :4].reshape([2, 12])
        for number, dense in enumerate(mlp):
            kernel, bias = dense.get_weights()
            hidden = hidden @ kernel + bias
            hidden = np.maximum(hidden, 0.0) if number < len(mlp) - 1 else hidden
        pairs = sum((rows[:, i, :4] * rows[:, j, :4]).sum(1) for i, j in ((0, 1), (0, 2), (1, 2)))
        wanted = hidden[:, 0] + rows[..., 4].sum(1) + pairs
        self.assertAllClose(model(ids)[:, 0], wanted, rtol=1e-5, atol=1e-6)

    def test_a_parquet_file_has_the_rows_of_a_snapshot(self):
        pytest.importorskip("pyarrow", reason="needs pyarrow: pip install pyarrow")
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        # More rows than a file has in a block.
        program = run("one_embedding_parquet.py", "--path=.", "--rows=80000", cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        self.assertRegex(program.stdout, r"^(79,99\d|80,000) rows in a file of [\d,]+ bytes\n")
        self.assertEndsWith(program.stdout, "rows are equal\n")

    def test_another_row_of_a_snapshot_is_seen(self):
        readers = []
        for number in range(2):
            folder = tempfile.mkdtemp(dir=self.get_temp_dir())
            kind = (folder, "s", "int64", "float32", 3)
            with one_embedding.make_persistent_table_writer(*kind) as writer:
                writer.write(np.arange(5), np.full([5, 3], number / 8))
            readers.append(one_embedding.make_persistent_table_reader(*kind))
        self.assertFalse(one_embedding_parquet.are_equal(*readers))


class CustomLoopTest(tf.test.TestCase):
    def test_a_step_of_micro_batches_is_a_step_of_one_batch(self):
        models = [custom_loop.Clicks() for _ in range(2)]
        for step in range(5):
            *batch, _ = custom_loop.batch_of(step)
            losses = [models[0].train_step(*batch)]
            with tf.GradientTape() as tape:
                losses.append(models[1].loss(*(part.reshape(-1) for part in batch)))
            variables = models[1].variables_to_train
            models[1].optimizer.apply(tape.gradient(losses[1], variables), variables)
            # Another order of float32 sums, as in optimizers_test.py.
            self.assertAllClose(*losses, rtol=2e-5, atol=2e-6)
        for one, two in zip(*(model.dense.weights for model in models), strict=True):
            self.assertAllClose(one, two, rtol=2e-5, atol=2e-6)
        for name in ("user", "item"):
            tables = (getattr(model, name) for model in models)
            one, two = (sorted_rows(*table.export()) for table in tables)
            self.assertAllEqual(one[0], two[0])
            self.assertAllClose(one[1], two[1], rtol=2e-5, atol=2e-6)

    def test_batches_drift_and_depend_on_the_step_alone(self):
        users, items, clicks, best = custom_loop.batch_of(700)
        for one, two in zip((users, items, clicks, best), custom_loop.batch_of(700), strict=True):
            self.assertAllEqual(one, two)
        early_users, early_items, _, _ = custom_loop.batch_of(0)
        self.assertNotEmpty(np.setdiff1d(users, early_users))
        self.assertEmpty(np.intersect1d(items, early_items))
        gone = np.concatenate([custom_loop.items_gone(step) for step in range(0, 701, 20)])
        self.assertEmpty(np.intersect1d(items, gone))
        self.assertLen(np.unique(gone), 700 * custom_loop.NEW_ITEMS)

    @pytest.mark.smoke
    def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(self):
        model, folder = custom_loop.Clicks(), tempfile.mkdtemp(dir=self.get_temp_dir())
        checkpoint = tf.train.Checkpoint(model=model)
        for step in range(1, 41):
            model.train_step(*custom_loop.batch_of(step - 1)[:3])
            if step % custom_loop.REMOVE_STEPS == 0:
                model.item.remove(custom_loop.items_gone(step))
            if step == 30:
                manager = tf.train.CheckpointManager(checkpoint, f"{folder}/o", max_to_keep=2)
                manager.save(checkpoint_number=step)
        program = run("custom_loop.py", "--steps=40", "--output_dir=o", cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        self.assertIn("goes on from o/ckpt-30", program.stdout)
        self.assertIn("checkpoint o/ckpt-40", program.stdout)

        resumed = custom_loop.Clicks()
        tf.train.Checkpoint(model=resumed).read(f"{folder}/o/ckpt-40")
        self.assertEqual(int(resumed.optimizer.iterations), 40)
        for one, two in zip(model.dense.weights, resumed.dense.weights, strict=True):
            self.assertAllEqual(one, two)
        for name in ("user", "item"):
            tables = (getattr(either, name) for either in (model, resumed))
            one, two = (sorted_rows(*table.export()) for table in tables)
            self.assertAllEqual(one[0], two[0])
            self.assertAllEqual(one[1], two[1])


class StreamTest(tf.test.TestCase, parameterized.TestCase):
    """Two months of flights, each with a different tail number."""

    FLIGHTS = 150

    def row(self, month: int, number: int) -> list[str]:
        ids = ["UA", f"N{month}{number:03}", str(number % 7), "JFK", "NA", str(number % 24)]
        return [*ids, str(month), str(float(40 * (number % 3 == 0) - 5))]

    def folder(self, months: int = 2) -> pathlib.Path:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))
        for month in range(1, months + 1):
            rows = [self.row(month, number) for number in range(self.FLIGHTS)]
            lines = [",".join(row) for row in (stream_data.COLUMNS, *rows)]
            (folder / f"2013-{month:02}.csv").write_text("\n".join(lines) + "\n")
        return folder

    def in_parquet(self, folder: pathlib.Path) -> None:
        try:
            from pyarrow import csv, parquet
        except ImportError as error:  # also if its version does not match NumPy
            pytest.skip(
                f"needs pyarrow, of a version for this NumPy: pip install pyarrow ({error})"
            )
        types = dict.fromkeys(stream_data.IDS, "string") | {stream_data.DELAY: "float32"}
        options = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
        for path in folder.glob("*.csv"):
            table = csv.read_csv(path, convert_options=options)
            parquet.write_table(table, path.with_suffix(".parquet"))
            path.unlink()

    def assert_read(self, folder: pathlib.Path, reader: str) -> None:
        self.assertEqual(stream_data.reader_for(folder), reader)
        paths = stream_data.months(folder, reader)
        self.assertEqual([path.stem for path in paths], ["2013-01", "2013-02"])
        for month, path in enumerate(paths, 1):
            sizes, ids, delays = [], [], []
            for some_ids, some_delays in stream_data.batches(path, reader, 64):
                sizes.append(len(some_ids))
                ids.extend(some_ids.numpy().tolist())
                delays.extend(some_delays.numpy().tolist())
            self.assertEqual(sizes, [64, 64, 22])
            for number, (named, delay) in enumerate(zip(ids, delays, strict=True)):
                *wanted, wanted_delay = self.row(month, number)
                pairs = zip(stream_data.IDS, wanted, strict=True)
                self.assertEqual(named, [f"{name}={value}".encode() for name, value in pairs])
                self.assertEqual(delay, float(wanted_delay))

    def test_csv_is_read_where_there_is_no_parquet(self):
        self.assert_read(self.folder(), "csv")

    def test_parquet_is_read_the_same(self):
        folder = self.folder()
        self.in_parquet(folder)
        if stream_data.reader_for(folder) == "tensorflow_io":
            pytest.skip("tensorflow-io comes first, and has a test of its own")
        self.assert_read(folder, "pyarrow")

    @pytest.mark.io
    def test_tensorflow_io_reads_the_same(self):
        pytest.importorskip(
            "tensorflow_io", reason="needs tensorflow-io: pip install tensorflow-io==0.37.1"
        )
        if not tf.__version__.startswith("2.16."):
            pytest.skip("tensorflow-io 0.37.1 loads its libraries with TensorFlow 2.16 only")
        folder = self.folder()
        self.in_parquet(folder)
        self.assert_read(folder, "tensorflow_io")

    def test_what_cannot_be_read_is_named(self):
        folder = self.folder(months=0)
        with self.assertRaisesRegex(SystemExit, "Nothing here can't read what is in"):
            stream_data.reader_for(folder)
        with self.assertRaisesRegex(SystemExit, "pyarrow can't read what is in"):
            stream_data.reader_for(self.folder(), "pyarrow")

    @pytest.mark.smoke
    def test_new_ids_take_the_rows_of_those_long_unseen(self):
        folder = self.folder()
        options = ("--batch_size=32", "--max_rows=120", f"--folder={folder}", "--dim=4")
        program = run("stream_parquet.py", *options, cwd=folder)
        self.assertEqual(program.returncode, 0, program.stderr)
        self.assertIn("read by csv", program.stdout)
        logged = (folder / "evicted.tsv").read_text().splitlines()
        # Tail numbers, two months, 7 flight numbers, 24 hours, one carrier and two airports.
        ids = 2 * self.FLIGHTS + 2 + 7 + 24 + 3
        self.assertGreaterEqual(len(logged), ids - 120)
        self.assertRegex(program.stdout, rf"2013-02 +300  \d\.\d{{4}} +120 +{len(logged)}\n")
        self.assertRegex(program.stdout, rf"AUC \d\.\d{{4}}, 120 rows, {len(logged)} evicted")
        flights, key, weights = logged[0].split("\t")
        # The first evicted id is among the first inserted ids, as the table was full.
        self.assertRegex(key, r"^tailnum=N10[0-3]\d$")
        self.assertBetween(int(flights), 96, 150)
        self.assertLen(weights.split(), 4)
        gone = {line.split("\t")[1] for line in logged}
        self.assertNoCommonElements(gone, {"carrier=UA", "origin=JFK", "dest=NA", "month=2"})


if __name__ == "__main__":
    tf.test.main()

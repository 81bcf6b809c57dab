# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_embed.inspect` on each kind of save, against the tables that were saved."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
import pathlib
import random
import shutil
import sys
import tempfile
import zipfile
from unittest import mock

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from tf_embed.inspect import diff, histogram, recognize, rows
from tf_embed.inspect.__main__ import main
from tf_embed.saving import keras_files
from tf_embed.serving import Publisher

pytestmark = pytest.mark.of_cpu("Files are the same whatever the device.")

DIM, KEYS = 4, 30
# The path of each kind of save in the folder, and how the report calls it.
KINDS = {
    "rows": "row files",
    "snapshots/monday": "snapshot",
    "snapshots/tuesday": "snapshot",
    "snapshots": "folder of snapshots",
    "published": "folder of publications",
    "published/publication-0000000001": "publication",
    "model.keras": "Keras model",
    "model": "Keras model",
    "model.weights.h5": "Keras weights",
    "checkpoints": "checkpoint",
    "checkpoints/all-1": "checkpoint",
    "exported": "SavedModel",
    "static": "SavedModel",
}
WITH_ROWS = [one for one in KINDS if one not in ("snapshots", "published")]
WITH_SLOTS = [one for one in WITH_ROWS if not one.startswith(("published", "exported", "static"))]


def run(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command line."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = main(list(map(str, arguments)))
    return code, printed.getvalue(), errors.getvalue()


def content(table: tf_embed.Variable) -> dict[int, np.ndarray]:
    """The rows of a table by key."""
    return {int(key): row for key, row in zip(*(x.numpy() for x in table.export()), strict=True)}


class Saved:
    """A trained model, saved in each way in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        policy = tf_embed.TablePolicy(max_rows=100, eviction="lfu", track_changes=True)
        layer = tf_embed.layers.DynamicEmbedding(DIM, optimizer="adam", policy=policy, name="items")
        model = keras.Sequential(
            [keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", jit_compile=False)
        ids = np.arange(KEYS).reshape(-1, 2)
        model.fit(ids, np.ones([len(ids), 1]), verbose=0)
        self.variable = layer.variable
        layer.variable.save_rows(folder / "rows")
        model.save(folder / "model.keras")
        with mock.patch.object(keras_files, "BLOCK_BYTES", 100):  # in many blocks
            model.save_weights(folder / "model.weights.h5")
        (folder / "model").mkdir()
        keras.saving.save_model(model, folder / "model", zipped=False)
        tf.train.Checkpoint(model=model).save(str(folder / "checkpoints" / "all"))
        model.export(folder / "exported", verbose=False)
        tf_embed.export_static(model, folder / "static")
        snapshots = tf_embed.Snapshots(folder / "snapshots", model)
        snapshots.save("monday")
        Publisher(model, folder / "published").publish()
        self.rows = content(layer.variable)
        layer.variable.remove([0])
        layer.variable.upsert([5, 1000], np.full([2, DIM], 7.0, np.float32))
        snapshots.save("tuesday", since="monday")
        self.later_rows = content(layer.variable)


class InspectTest(parameterized.TestCase):
    """One model is saved once for all tests, which change only copies."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.saved = Saved(cls.folder)

    def new_folder(self) -> str:
        """A new empty folder."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def copied(self, name: str) -> pathlib.Path:
        """A copy of a save, and of the saves beside it."""
        top = name.split("/", maxsplit=1)[0]
        copy = pathlib.Path(self.new_folder())
        if (self.folder / top).is_dir():
            shutil.copytree(self.folder / top, copy / top)
        else:
            shutil.copy(self.folder / top, copy / top)
        return copy / name

    @parameterized.parameters(*KINDS.items())
    def test_each_kind_is_recognized_and_verified(self, name, kind):
        code, printed, errors = run(self.folder / name, "--verify")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn(f"  {kind}, ", printed)
        self.assertIn("Every checksum is right", printed)
        if name in WITH_ROWS:
            save = recognize.save_at(str(self.folder / name))
            (table,) = save.tables
            is_changes = name == "snapshots/tuesday"
            self.assertEqual((table.rows, table.dim), (2 if is_changes else KEYS, DIM))
            self.assertEqual((table.key_dtype, table.value_dtype), ("int64", "float32"))
            if name in WITH_SLOTS:
                self.assertEqual((table.rule, table.slots), ("adam", 2 * DIM))
                self.assertEqual(table.statistics, ("last_step", "count"))
                self.assertGreater(table.step, 0)

    @parameterized.parameters(*WITH_ROWS)
    def test_rows_of_keys_are_those_of_the_table(self, name):
        (table,) = recognize.save_at(str(self.folder / name)).tables
        expected = self.saved.later_rows if name.endswith("tuesday") else self.saved.rows
        found = rows.found_rows(table, np.array([*expected, 12345]))
        self.assertEqual(found.keys(), expected.keys())
        for key, row in expected.items():
            np.testing.assert_array_equal(found[key].weights[0], row)
        if name in WITH_SLOTS and not name.endswith("tuesday"):
            self.assertEqual(found[3].statistics["count"].tolist(), [1])

    def test_rows_are_printed(self):
        code, printed, _ = run(self.folder / "rows", "--rows", "5", "-6")
        weights = " ".join(self.saved.rows[5].astype(str))
        self.assertEqual(code, 0)
        self.assertIn(f"items 5\n  weights {weights}\n  slots   8, from ", printed)
        self.assertIn("items -6: no row", printed)

    @parameterized.parameters(("x",), (str(2**63),))
    def test_a_wrong_key_is_refused(self, key):
        code, _, errors = run(self.folder / "rows", "--rows", key)
        self.assertEqual(code, 1)
        self.assertIn(f"which are int64. Received: {key}", errors)

    def test_a_chain_is_told(self):
        _, printed, _ = run(self.folder / "snapshots" / "tuesday")
        chain = printed.partition("\nchain")[2].splitlines()[1:]
        self.assertEqual([line.split()[0] for line in chain], ["tuesday", "monday"])
        self.assertEqual(chain[0].split()[-1], "monday")

    @parameterized.parameters(2**27, 100)
    def test_a_difference_counts_rows(self, part_bytes):
        monday, tuesday = (self.folder / "snapshots" / one for one in ("monday", "tuesday"))
        with mock.patch.object(diff, "PART_BYTES", part_bytes):
            _, printed, _ = run(monday, "--diff", tuesday)
        changed = np.abs(7.0 - self.saved.rows[5].astype(np.float64)).max()
        self.assertEqual(
            printed,
            f"items: 1 added, 1 removed, 1 changed, {KEYS - 2} the same\n"
            f"  largest change of a weight: {changed:g}, in the row of 5\n",
        )

    @parameterized.parameters(
        "model.keras", "checkpoints", "static", "published/publication-0000000001"
    )
    def test_saves_of_one_moment_do_not_differ(self, name):
        _, printed, _ = run(self.folder / "rows", "--diff", self.folder / name)
        self.assertEqual(printed, f"items: 0 added, 0 removed, 0 changed, {KEYS} the same\n")

    def test_histograms_count_each_row_once(self):
        (table,) = recognize.save_at(str(self.folder / "snapshots" / "tuesday")).tables
        found = histogram.histograms_of(table)
        self.assertEqual(found.keys(), {"norm", "last_step", "count"})
        for one in found.values():
            self.assertEqual(sum(count for _, count in one.bars()), len(self.saved.later_rows))
        code, printed, _ = run(self.folder / "snapshots" / "tuesday", "--histogram")
        self.assertEqual(code, 0)
        self.assertIn("items: L2 norm of a row", printed)
        self.assertIn("█", printed)

    def test_a_csv_file_has_the_rows(self):
        file = self.new_folder() + "/rows.csv"
        self.assertEqual(run(self.folder / "snapshots" / "tuesday", "--to", file)[0], 0)
        with open(file) as opened:
            found = list(csv.DictReader(opened))
        read = {int(row["key"]): [float(row[f"weight_{i}"]) for i in range(DIM)] for row in found}
        self.assertEqual(read.keys(), self.saved.later_rows.keys())
        for key, row in self.saved.later_rows.items():
            np.testing.assert_array_equal(np.array(read[key], np.float32), row)

    @parameterized.parameters("rows", "model.keras", "checkpoints", "static")
    def test_an_npz_file_has_the_rows(self, name):
        file = self.new_folder() + "/rows.npz"
        self.assertEqual(run(self.folder / name, "--to", file)[0], 0)
        with np.load(file) as arrays:
            read = dict(zip(arrays["keys"].tolist(), arrays["weights"], strict=True))
            self.assertEqual(arrays["slots"].shape, (KEYS, 0 if name == "static" else 2 * DIM))
        self.assertEqual(read.keys(), self.saved.rows.keys())
        for key, row in self.saved.rows.items():
            np.testing.assert_array_equal(read[key], row)

    @pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="pyarrow is not installed")
    def test_a_parquet_file_has_the_rows(self):
        import pyarrow.parquet as pq

        file = self.new_folder() + "/rows.parquet"
        self.assertEqual(run(self.folder / "rows", "--to", file)[0], 0)
        found = pq.read_table(file)
        for key, row in zip(found["key"].to_pylist(), found["weights"].to_pylist(), strict=True):
            np.testing.assert_array_equal(np.array(row, np.float32), self.saved.rows[key])

    @pytest.mark.skipif(
        not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed"
    )
    def test_histograms_are_drawn(self):
        file = self.new_folder() + "/rows.png"
        self.assertEqual(run(self.folder / "rows", "--histogram", "--png", file)[0], 0)
        self.assertEqual(pathlib.Path(file).read_bytes()[:4], b"\x89PNG")

    @parameterized.parameters(
        (("--to", "x.parquet"), "pyarrow"), (("--histogram", "--png", "x.png"), "matplotlib")
    )
    def test_a_missing_package_is_named(self, options, package):
        missing = {name: None for name in sys.modules if name.startswith(package)}
        with mock.patch.dict(sys.modules, {**missing, package: None}):
            code, _, errors = run(self.folder / "rows", *options)
        self.assertEqual(code, 1)
        self.assertIn(f"pip install {package}", errors)
        self.assertFalse(os.path.exists("x.parquet"))

    @parameterized.parameters(
        (("nowhere",), "'nowhere' is not there"),
        ((__file__,), "is not a file that tf_embed writes"),
        ((os.path.dirname(__file__),), "holds nothing that tf_embed writes"),
    )
    def test_a_path_without_a_save_is_refused(self, arguments, message):
        code, printed, errors = run(*arguments)
        self.assertEqual((code, printed), (1, ""))
        self.assertIn(message, errors)

    @parameterized.parameters(
        (("snapshots", "--rows", "1"), "name one of tuesday, monday"),
        (("rows", "--table", "users"), "which has ['items']. Received: 'users'"),
        (("rows", "--to", "x.txt"), "`--to` must end in .csv, .npz or .parquet. Received: x.txt"),
        (("rows", "--to", "/nowhere/x.csv"), "'/nowhere/x.csv' can't be written"),
    )
    def test_a_wrong_option_is_refused(self, arguments, message):
        path, *options = arguments
        code, _, errors = run(self.folder / path, *options)
        self.assertEqual(code, 1)
        self.assertIn(message, errors)

    @parameterized.product(
        name=(
            "rows",
            "snapshots/tuesday",
            "published/publication-0000000001",
            "model.keras",
            "model.weights.h5",
            "checkpoints",
            "exported",
            "static",
        ),
        seed=(0, 1, 2, 3),
    )
    def test_a_damaged_file_is_named_or_harmless(self, name, seed):
        draw = random.Random(f"{name} {seed}")
        asked = ("--rows", "5", "29", "--histogram")
        expected = run(self.folder / name, *asked)[1]
        path = self.copied(name)
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        file = draw.choice([one for one in files if one.is_file() and one.stat().st_size])
        whole = bytearray(file.read_bytes())
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file.write_bytes(whole)
        code, printed, errors = run(path, *asked)
        if code:
            self.assertEqual(code, 1)
            self.assertIn(str(path), errors)
            self.assertNotIn("Traceback", errors)
        else:
            self.assertEqual(printed, expected)
        # Every byte of these has a checksum.
        if name in ("rows", "snapshots/tuesday") or file.suffix == ".rows":
            code, _, errors = run(path, "--verify")
            self.assertEqual(code, 1)
            self.assertIn(str(file), errors)

    def test_all_damaged_tables_are_named(self):
        path = self.copied("snapshots")
        for file in path.rglob("*.rows"):
            file.write_bytes(file.read_bytes()[:-1])
        code, _, errors = run(path, "--verify")
        self.assertEqual(code, 1)
        for file in path.rglob("*.rows"):
            self.assertIn(str(file), errors)

    def test_a_folder_of_snapshots_has_the_readable_ones(self):
        path = self.copied("snapshots")
        (path / "monday" / "snapshot.json").write_text("{}")
        code, printed, _ = run(path)
        self.assertEqual(code, 0)
        self.assertIn(f"'{path}/monday/snapshot.json' is damaged", printed)
        self.assertEqual(run(path, "--verify")[0], 1)

    @parameterized.parameters("x", "x.h5", "model.weights.h5", "x.index", "snapshot.json")
    def test_a_pipe_is_refused(self, name):
        folder = self.new_folder()
        os.mkfifo(os.path.join(folder, name))
        for path in (folder, os.path.join(folder, name)):
            code, _, errors = run(path)
            self.assertEqual(code, 1)
            self.assertIn(folder, errors)

    def test_a_damaged_name_of_an_array_does_not_hide_the_table(self):
        path = self.copied("model.weights.h5")
        for name in ("checksum", "kind"):
            whole = (self.folder / "model.weights.h5").read_bytes()
            path.write_bytes(whole.replace(name.encode() + b"\0", b"q" * len(name) + b"\0"))
            code, _, errors = run(path, "--verify")
            self.assertEqual(code, 1)
            self.assertIn(str(path), errors)

    def test_strings_are_keys_and_weights(self):
        folder = self.new_folder()
        words = tf_embed.Variable(dim=2, key_dtype="string", value_dtype="string", name="words")
        words.upsert(["a", "b"], [["x", "y"], ["z", ""]])
        words.save_rows(folder)
        self.assertEqual(run(folder, "--rows", "b")[1], "words b\n  weights b'z' b''\n")
        words.upsert(["b"], [["q", ""]])
        later = self.new_folder()
        words.save_rows(later)
        code, printed, _ = run(folder, "--diff", later)
        self.assertEqual(printed, "words: 0 added, 0 removed, 1 changed, 1 the same\n")
        code, _, errors = run(folder, "--to", os.path.join(folder, "x.npz"))
        self.assertEqual(code, 1)
        self.assertIn("has strings", errors)

    def test_tables_of_one_store_are_apart(self):
        path = os.path.join(self.new_folder(), "two.weights.h5")
        halves = tf_embed.Variable("uint64", "bfloat16", dim=2, name="halves")
        halves.upsert(tf.constant([2**64 - 1], tf.uint64), tf.constant([[0.5, 3.0]], tf.bfloat16))
        words = tf_embed.Variable("string", "float64", dim=1, name="words")
        words.upsert(["long", "", "x"], [[1.0], [2.0], [1.5]])
        arrays = {
            **keras_files.arrays_of(halves.table, "table_0_"),
            **keras_files.arrays_of(words.table, "table_1_"),
        }
        with h5py.File(path, "w") as file:
            keras_files.write(file.create_group("bags/vars"), arrays)
        for options, lines in (
            (("bags/table_0", "--rows", str(2**64 - 1)), ["weights 0.5 3.0"]),
            (("bags/table_1", "--rows", "", "x"), ["weights 2.0", "weights 1.5"]),
        ):
            code, printed, errors = run(path, "--table", *options)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual([line.strip() for line in printed.splitlines()[1::2]], lines)
        code, _, errors = run(path, "--to", "x.csv")
        self.assertEqual(code, 1)
        self.assertIn("choose one by `--table`. Received: ['bags/table_0', 'bags/table_1']", errors)

    def test_a_compressed_archive_is_read(self):
        path = os.path.join(self.new_folder(), "model.keras")
        with (
            zipfile.ZipFile(self.folder / "model.keras") as stored,
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name in stored.namelist():
                archive.writestr(name, stored.read(name))
        self.assertEqual(run(path, "--rows", "3"), run(self.folder / "model.keras", "--rows", "3"))

    def test_a_shortened_name_is_told(self):
        folder = self.new_folder()
        for name in ("n" * 300, "v"):
            tf_embed.Variable(dim=1, name=name).save_rows(folder)
        code, printed, _ = run(folder)
        self.assertEqual(code, 0)
        self.assertIn("is of a variable with so long a name that files don't have it", printed)

    def test_an_empty_table_has_no_rows(self):
        folder = self.new_folder()
        tf_embed.Variable(dim=2, name="v").save_rows(folder)
        file = os.path.join(folder, "x.npz")
        self.assertEqual(run(folder, "--to", file)[1], f"0 rows in {file}\n")
        self.assertEqual(run(folder, "--diff", folder)[0], 0)
        self.assertEqual(run(folder, "--histogram")[1], "v: no rows\n")

    def test_a_storage_is_told(self):
        folder = self.new_folder()
        storage = tf_embed.Storage(host_bytes=4000, path=folder)
        v = tf_embed.Variable(dim=8, name="v", storage=storage)
        v.upsert(range(4000), np.ones([4000, 8]))
        code, printed, _ = run(folder)
        self.assertEqual(code, 0)
        self.assertIn("working files of running tables", printed)
        code, _, errors = run(folder, "--rows", "1")
        self.assertEqual(code, 1)
        self.assertIn(f"'{folder}' has no table whose rows can be read", errors)


class HistogramTest(parameterized.TestCase):
    """Histograms of numbers of any size."""

    @parameterized.parameters(
        ([1.0, 2.0, 3.0],),
        ([-5.0, 1e300, -1e308],),
        ([1e-300, 1e-310, 0.0],),
        (list(range(1000)),),
        ([7.0] * 5,),
    )
    def test_bars_are_few_and_hold_their_numbers(self, numbers):
        counted = histogram.Histogram()
        for some in np.array_split(np.array(numbers), 3):
            counted.add(some)
        counted.add(np.array([np.nan, np.inf]))
        bars = counted.bars()
        self.assertLessEqual(len(bars), 21)
        self.assertEqual(counted.not_finite, 2)
        for lower, count in bars:
            inside = [one for one in numbers if lower <= one < lower + counted.width]
            self.assertLen(inside, count)


if __name__ == "__main__":
    absltest.main()

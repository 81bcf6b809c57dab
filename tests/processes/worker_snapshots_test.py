# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables that workers share, in real processes, against a dict of rows."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import tempfile
from typing import Any

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.faults import small_disks
from support.processes import worker_programs, worker_snapshots
from support.processes.worker_snapshots import Shadow, Tables, path_of

FOLDER = tempfile.TemporaryDirectory()
REFUSED = {
    "names": ("ValueError", "worker 0 saves 'name-0'", "worker 1 saves 'name-1'"),
    "argument": ("ValueError", "`name`", "name='a/b'"),
    "fold": ("ValueError", "the same names of a fold", "['one', 'name-0']", "['one', 'name-1']"),
    "remove": ("ValueError", "the same snapshot to remove", "'name-0'", "'name-1'"),
    "keep": ("ValueError", "the same `last`", "worker 0 has 1", "worker 1 has 2"),
    "publish": ("ValueError", "no tables that are sharded over workers: save", "'items'"),
    "missing": ("ValueError", "name='missing'"),
    "write": ("ResourceExhaustedError", "The disk is full."),
    "write, later": ("ResourceExhaustedError", "The disk is full."),
    "unknown": ("FailedPreconditionError", "'items'", "save a whole one"),
    "mixed": (
        "ValueError",
        "`tables` must all have their rows in the same processes",
        "'items', which is sharded over 2 workers, and 'DynamicEmbedding_Variable', which is in",
    ),
    "apart": ("NotFoundError", "a file system that all processes share"),
    "damaged": ("DataLossError", "A file is damaged."),
    "busy": ("RuntimeError", "'slow' is still being written"),
}


def launch(cases: list[str], folder: str = FOLDER.name, workers: int = 2) -> Any:
    return worker_programs.launch(worker_snapshots.__file__, cases, workers, folder)


@functools.cache
def launched() -> worker_programs.Launched:
    disk = os.path.join(FOLDER.name, "small_disk")
    with small_disks.file_system("size=1m") as mounted:
        if mounted is not None:
            os.symlink(mounted, disk)
        return launch(["write", "faults", "full_disk", "callback"])


def results(case: str) -> list[Any]:
    assert launched().code == 0, launched().printed
    return [launched().results[rank][case] for rank in (0, 1)]


def joined(parts: list[Any]) -> list[dict[int, Any]]:
    """The joined tables of all workers. No two workers have the same key."""
    tables: list[dict[int, Any]] = [{} for _ in worker_snapshots.NAMES]
    for part in parts:
        for table, rows in zip(tables, part, strict=True):
            assert not table.keys() & rows.keys()
            table.update(rows)
    return tables


def loaded_here(name: str, path: str, **options: Any) -> tuple[Tables, tf_embed.Snapshots]:
    """Loads a snapshot in this process, without a strategy."""
    tables = Tables([0, 1], **options)
    snapshots = tf_embed.Snapshots(path, tables.variables)
    snapshots.load(name)
    return tables, snapshots


def tearDownModule():
    FOLDER.cleanup()


class WorkerSnapshotsTest(tf.test.TestCase, parameterized.TestCase):
    def test_each_worker_writes_its_rows_once(self):
        first, second = results("write")
        sizes = [len(rows) for rows in Shadow(3).tables]
        self.assertEqual(first["whole"][:3], ("whole", None, sizes))
        self.assertEqual(first["changes"][:2], ("changes", "whole"))
        for what in ("whole", "changes", "listed"):
            self.assertEqual(first[what], second[what])
        self.assertEqual(joined([first["apart"], second["apart"]]), Shadow(8).contents())
        self.assertGreater(min(len(rows) for one in (first, second) for rows in one["apart"]), 50)

    def test_workers_load_a_chain(self):
        found = results("write")
        self.assertEqual(joined([one["loaded"] for one in found]), Shadow(8).contents())
        for one in found:
            self.assertIn("must have no rows when it loads", one["not empty"])

    @parameterized.parameters(("whole", 3), ("changes", 5), ("more", 8), ("after load", 9))
    def test_one_process_loads_it(self, name, steps):
        results("write")
        tables, _ = loaded_here(name, path_of(FOLDER.name), shards=3)
        self.assertEqual(tables.contents(), Shadow(steps).contents())

    def test_files_are_those_of_a_table_of_more_shards(self):
        first, _ = results("write")
        names = [name for name in first["plain files"] if name.endswith(".manifest")]
        self.assertLen(names, 2)
        for name in names:
            self.assertEndsWith(name, ".rank0of1.manifest")
        self.assertLen(first["plain files"], 2 + 8 + 1)
        self.assertIn("track_changes=True", first["plain changes"])
        tables, _ = loaded_here("plain", path_of(FOLDER.name, "plain"), policy=worker_snapshots.LFU)
        self.assertEqual(tables.contents(), Shadow(5).contents())

    def test_one_process_and_workers_go_on_from_each_other(self):
        results("write")
        folder = self.enter_context(tempfile.TemporaryDirectory())
        shutil.copytree(path_of(FOLDER.name), path_of(folder))
        tables, snapshots = loaded_here("more", path_of(folder))
        for step in (9, 10):
            tables.train(step)
        snapshots.save("single", since="more")
        done = launch(["order"], folder)
        self.assertEqual(done.code, 0, done.printed)
        found = [done.results[rank]["order"] for rank in (0, 1)]
        self.assertEqual(joined([one["single"] for one in found]), Shadow(10).contents())
        for one in found:
            self.assertIn("'joint' has the changes", one["remove"])
            removed, listed = one["kept"]
            self.assertCountEqual(removed, ["single", "more", "changes", "whole"])
            self.assertEqual(listed, [("joint", None)])
        self.assertCountEqual(os.listdir(path_of(folder)), ["joint", "since the fold"])
        for name, steps in (("joint", 11), ("since the fold", 12)):
            tables, _ = loaded_here(name, path_of(folder))
            self.assertEqual(tables.contents(), Shadow(steps).contents())

    def test_more_workers_load_it(self):
        results("write")
        done = launch(["read"], workers=3)
        self.assertEqual(done.code, 0, done.printed)
        for name, steps in (("whole", 3), ("changes", 5), ("after load", 9)):
            parts = [done.results[rank]["read"][name] for rank in range(3)]
            self.assertEqual(joined(parts), Shadow(steps).contents())

    def test_the_callback_saves_while_fit_trains(self):
        expected = {**results("callback")[0], **results("callback")[1]}
        trained = worker_snapshots.model()
        layer = trained.layers[1]
        snapshots = tf_embed.Snapshots(path_of(FOLDER.name, "callback"), layer)
        found = [(info.name[-2:], info.since) for info in snapshots.list_snapshots()]
        self.assertEqual(
            found, [("04", None), ("05", "snapshot-000004")], "24 steps: 5, 10, 15, 20 and the end"
        )
        snapshots.load("snapshot-000005")
        keys, rows = layer.variable.export()
        found = dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))
        self.assertEqual(found, expected)


class FaultsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*REFUSED)
    def test_all_workers_raise_if_one_can_not(self, what):
        for found in results("faults"):
            for word in REFUSED[what]:
                self.assertIn(word, found[what])

    def test_what_failed_leaves_nothing(self):
        chief, other = results("faults")
        self.assertEmpty(chief["left"])
        self.assertEqual(joined([chief["rows"], other["rows"]]), Shadow(2).contents())
        for found in (chief, other):
            self.assertEqual(found["listed"], [("one", None), ("slow", None)])
            self.assertEqual(found["damaged rows"], [0, 0])

    def test_a_full_disk_leaves_the_snapshot_before(self):
        chief, other = results("full_disk")
        if not chief:
            self.skipTest("Only root may mount a file system: run as root.")
        for found in (chief, other):
            self.assertIn("No space left on device", found["full"])
            self.assertEqual(found["listed"], [("before", None)])
            self.assertEqual(found["listed, later"], [("before", None), ("after", None)])
        self.assertEqual(joined([chief["rows"], other["rows"]]), Shadow(2).contents())

    def test_a_killed_worker_leaves_the_snapshot_before(self):
        self.check_killed("killed", survivor=0)

    def test_a_killed_chief_leaves_the_snapshot_before(self):
        self.check_killed("killed_chief", survivor=1)

    def check_killed(self, case: str, survivor: int) -> None:
        folder = self.enter_context(tempfile.TemporaryDirectory())
        done = launch([case], folder)
        self.assertEqual(list(done.results), [survivor], done.printed)
        said = done.results[survivor][case]
        self.assertRegex(said, "^(Unavailable|Internal|Aborted|Cancelled)Error: ")
        tables, snapshots = loaded_here("before", path_of(folder))
        self.assertEqual(tables.contents(), Shadow(3).contents())
        self.assertEqual([info.name for info in snapshots.list_snapshots()], ["before"])
        snapshots.keep(1)
        files = [str(one) for one in pathlib.Path(path_of(folder)).iterdir()]
        self.assertEqual(files, [path_of(folder, "snapshots/before")])


if __name__ == "__main__":
    absltest.main()

# SPDX-License-Identifier: Apache-2.0
"""Snapshots when something is wrong with the disk, the folder, a name, or another process."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import tempfile
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from small_disks import file_limit, file_system

import tf_embed
from tf_embed.snapshots import Snapshots, files, manifest, snapshots

DIM, KEYS = 16, 5000
TRACKED = tf_embed.TablePolicy(track_changes=True)


def empty(name: str = "v") -> tf_embed.Variable:
    """A variable without rows."""
    return tf_embed.Variable(dim=DIM, name=name, policy=TRACKED, initializer=0.0)


def filled(count: int = KEYS, value: float = 0.0, name: str = "v") -> tf_embed.Variable:
    """A variable whose rows have their key and a value in each place."""
    v = empty(name)
    fill(v, count, value)
    return v


def fill(v: tf_embed.Variable, count: int, value: float) -> None:
    v.upsert(np.arange(count), np.tile(np.arange(count)[:, None] + value, [1, DIM]).astype("f"))


def content_of(v: tf_embed.Variable) -> dict[int, list[float]]:
    keys, rows = (part.numpy().tolist() for part in v.export())
    return dict(zip(keys, rows, strict=True))


class SnapshotFaultsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def check_loads(self, path, name: str, wanted: list[dict[int, list[float]]]) -> None:
        others = [empty(f"w{number}") for number in range(len(wanted))]
        Snapshots(path, others).load(name)
        self.assertEqual([content_of(other) for other in others], wanted)

    # A disk that is full.

    @parameterized.product(wait=(True, False), since=(None, "one"))
    def test_a_full_disk_leaves_earlier_snapshots_and_takes_no_room(self, wait, since):
        with file_system("size=4m") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system.")
            tables = [filled(name="a"), filled(name="b")]
            saved = Snapshots(folder / "s", tables)
            saved.save("one")
            wanted = [content_of(table) for table in tables]
            for table in tables:
                fill(table, KEYS, 0.5)
            used = os.statvfs(folder).f_bavail
            filler = folder / "filler"  # leaves room for one table and a half
            filler.write_bytes(bytes(max(0, used * os.statvfs(folder).f_frsize - 550_000)))
            before = os.statvfs(folder).f_bavail
            for _ in range(2):
                with self.assertRaisesRegex(tf.errors.OpError, str(folder / "s" / "two")):
                    saved.save("two", since=since, wait=wait).wait()
                self.assertEqual([info.name for info in saved.list_snapshots()], ["one"])
                self.assertEqual(os.listdir(folder / "s"), ["one"])
                self.assertEqual(os.statvfs(folder).f_bavail, before)
            self.check_loads(folder / "s", "one", wanted)
            filler.unlink()
            saved.save("two", since=since, wait=wait).wait()
            self.check_loads(folder / "s", "two", [content_of(table) for table in tables])

    def test_a_fold_that_finds_no_room_changes_nothing(self):
        with file_system("size=4m") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system.")
            tables = [filled(name="a"), filled(name="b")]
            saved = Snapshots(folder / "s", tables)
            saved.save("one")
            fill(tables[1], 100, 0.5)
            saved.save("two", since="one")
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            filler = folder / "filler"
            filler.write_bytes(bytes(free - 550_000))
            before = sorted(os.listdir(folder / "s" / "two"))
            for to in ("two", "three"):
                with self.assertRaisesRegex(tf.errors.OpError, str(folder / "s" / to)):
                    saved.fold("two", to)
            self.assertEqual(sorted(os.listdir(folder / "s")), ["one", "two"])
            self.assertEqual(sorted(os.listdir(folder / "s" / "two")), before)
            self.check_loads(folder / "s", "two", [content_of(table) for table in tables])
            filler.unlink()
            saved.fold("two")
            self.check_loads(folder / "s", "two", [content_of(table) for table in tables])

    def test_files_that_may_not_be_long_are_an_error(self):
        folder, v = self.folder(), filled()
        saved = Snapshots(folder, v)
        with file_limit(4096), self.assertRaisesRegex(tf.errors.OpError, str(folder / "one")):
            saved.save("one")
        self.assertEmpty(os.listdir(folder))
        saved.save("one")
        self.check_loads(folder, "one", [content_of(v)])

    # Folders.

    def test_a_folder_without_permission_is_an_error(self):
        with file_system("ro") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system.")
            saved = Snapshots(folder / "s", filled(10))
            for wait in (True, False):
                with self.assertRaisesRegex(tf.errors.OpError, f"{folder}.*Read-only"):
                    saved.save("one", wait=wait).wait()
            self.assertEmpty(saved.list_snapshots())

    def test_a_path_that_is_a_file_is_an_error(self):
        file = self.folder() / "file"
        file.touch()
        for path in (file, file / "x"):
            with self.assertRaisesRegex(tf.errors.OpError, f"{file} is not a directory"):
                Snapshots(path, filled(10)).save("one")
        with self.assertRaisesRegex(tf.errors.OpError, f"{file} is not a directory"):
            Snapshots(file.parent, filled(10)).save("file")
        self.assertEmpty(Snapshots(file.parent, []).list_snapshots())

    def test_what_a_killed_write_left_goes_with_keep(self):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        for name in ("killed", "old", "new"):
            saved.save(name)
        (folder / "killed" / manifest.FILE).rename(folder / "killed" / manifest.ASIDE)
        (folder / "old" / manifest.ASIDE).touch()
        self.assertEqual(list(saved.keep(1)), ["old"])
        self.assertEqual(os.listdir(folder), ["new"])

    def test_a_damaged_snapshot_stands_in_the_way_of_no_other(self):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        saved.save("damaged")
        (folder / "damaged" / manifest.FILE).write_text("{}")
        saved.save("one")
        saved.save("two", since="one")
        saved.fold("two")
        saved.remove("one")
        self.check_loads(folder, "two", [content_of(v)])
        with self.assertRaisesRegex(tf.errors.DataLossError, "damaged/snapshot.json' is damaged"):
            saved.list_snapshots()
        saved.remove("damaged")
        self.assertEqual([info.name for info in saved.list_snapshots()], ["two"])

    def test_no_table_has_rows_when_one_of_several_can_not_be_loaded(self):
        folder = self.folder()
        Snapshots(folder, [filled(10, name="a"), filled(10, name="b")]).save("one")
        (file,) = (folder / "one").glob("rows_1-*.rows")
        file.write_bytes(file.read_bytes()[:-1])
        others = [empty("a"), empty("b")]
        with self.assertRaisesRegex(tf.errors.DataLossError, str(file)):
            Snapshots(folder, others).load("one")
        self.assertEqual([int(other.size()) for other in others], [0, 0])

    # Names.

    @parameterized.parameters(
        *("with spaces ", "unicode ü☃", "a\\b", "x" * 200, "%41", "a:b", "*", "[a]?", "~", "-rf"),
        *("$HOME", "{x}", "snapshot.json", " ", "...", "a\u202eb", "'", '"', "rows_0-00000000.x"),
    )
    def test_odd_names_are_names(self, name):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        saved.save(name)
        fill(v, 5, 1.0)
        saved.save(f"{name}+", since=name)
        self.assertCountEqual(os.listdir(folder), [name, f"{name}+"])
        self.check_loads(folder, f"{name}+", [content_of(v)])
        saved.fold(f"{name}+")
        self.check_loads(folder, f"{name}+", [content_of(v)])
        self.assertEqual(list(saved.keep(1)), [name])
        saved.remove(f"{name}+")
        self.assertEmpty(os.listdir(folder))

    @parameterized.parameters("..", ".", "a/b", "/", "../x", "a\0b", "tab\tx", "x" * 2000, "\ud800")
    def test_what_is_no_name_is_refused_by_every_verb(self, name):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        saved.save("one")
        for call, argument in (
            (lambda: saved.save(name), "name"),
            (lambda: saved.save("two", since=name), "since"),
            (lambda: saved.fold("one", name), "to"),
            (lambda: saved.fold(name), "name"),
            (lambda: saved.load(name), "name"),
            (lambda: saved.remove(name), "name"),
        ):
            with self.assertRaisesRegex(ValueError, f"`{argument}` must .*Received: {argument}="):
                call()
        self.assertEqual(os.listdir(folder), ["one"])

    def test_a_name_that_is_too_long_for_the_disk_is_an_error(self):
        folder, v = self.folder(), filled(10)
        with self.assertRaisesRegex(tf.errors.OpError, f"{folder}/xxx.*too long"):
            Snapshots(folder, v).save("x" * 300)
        self.assertEmpty(os.listdir(folder))

    @parameterized.parameters("ram://snapshots/of/tables", "file://", "relative/to")
    def test_other_file_systems_will_do(self, path):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder())
        path = f"file://{self.folder()}/x" if path == "file://" else path
        v = filled(300)
        saved = Snapshots(path, v)
        saved.save("one")
        fill(v, 20, 1.0)
        saved.save("two", since="one", wait=False).wait()
        self.check_loads(path, "two", [content_of(v)])
        saved.fold("two")
        self.check_loads(path, "two", [content_of(v)])
        saved.save("two")
        self.assertLen(tf.io.gfile.listdir(f"{path}/two"), 3)
        self.assertEqual(list(saved.keep(1)), ["one"])
        self.assertEqual([info.name for info in saved.list_snapshots()], ["two"])
        if "://" in path:
            self.assertFalse(os.path.exists(path.split(":")[0] + ":"))

    # Others.

    @parameterized.parameters("save", "keep")
    def test_of_two_that_save_under_one_name_none_is_half(self, verb):
        folder = self.folder()
        tables, others = ([filled(10, v, n) for n in "ab"] for v in (1.0, 2.0))
        mine, its = Snapshots(folder, tables), Snapshots(folder, others)
        its.save("other")
        commit = files.commit

        def late(*arguments):
            with mock.patch.object(files, "commit", commit):
                its.save("one") if verb == "save" else its.keep(1)
            return commit(*arguments)

        with (
            mock.patch.object(files, "commit", late),
            self.assertRaisesRegex(tf.errors.AbortedError, f"'{folder}/one' is used by another"),
        ):
            mine.save("one")
        for info in its.list_snapshots():
            self.check_loads(folder, info.name, [content_of(other) for other in others])
        mine.save("one")
        self.check_loads(folder, "one", [content_of(table) for table in tables])

    def test_loads_go_on_while_others_are_saved(self):
        folder = self.folder()
        tables = [filled(500, 0.0, n) for n in "ab"]
        saved = Snapshots(folder, tables)
        saved.save("again")
        failures, end = [], threading.Event()

        def load() -> None:
            others = [empty("c"), empty("d")]
            loads = Snapshots(folder, others)
            while not end.is_set():
                try:
                    loads.load("again")
                    values = {row[0] - key for v in others for key, row in content_of(v).items()}
                    if len(values) != 1:
                        failures.append(values)
                except tf.errors.OpError as error:
                    if str(folder) not in str(error):
                        failures.append(error)
                for other in others:
                    other.clear()

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for number in range(1, 25):
                for table in tables:
                    fill(table, 500, float(number))
                saved.save("again", wait=number % 2 == 0)
        finally:
            saved.wait()
            end.set()
            thread.join()
        self.assertEmpty(failures)
        self.check_loads(folder, "again", [content_of(table) for table in tables])

    def test_a_forked_child_has_no_part_in_a_snapshot_under_way(self):
        folder, errors = self.folder(), self.folder() / "errors"
        v = filled(10)
        saved = Snapshots(folder, v)
        go_on, write = threading.Event(), snapshots._Writer.write

        def stuck(writer):
            go_on.wait()
            return write(writer)

        with mock.patch.object(snapshots._Writer, "write", stuck):
            pending = saved.save("one", wait=False)
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            try:
                pending.wait()
            except RuntimeError as error:
                errors.write_text(str(error))
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertIn("'one' must be waited for by the process that", errors.read_text())
        go_on.set()
        self.assertEqual(pending.wait().rows, 10)
        self.check_loads(folder, "one", [content_of(v)])

    def test_a_folder_that_is_removed_is_an_error_or_made_anew(self):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder / "s", v)
        saved.save("one")
        shutil.rmtree(folder / "s")
        with self.assertRaisesRegex(ValueError, "`since` must be the name of a snapshot"):
            saved.save("two", since="one")
        self.assertIsNone(saved.latest())
        saved.save("two")
        self.check_loads(folder / "s", "two", [content_of(v)])


if __name__ == "__main__":
    tf.test.main()

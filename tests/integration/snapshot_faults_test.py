# SPDX-License-Identifier: Apache-2.0
"""Snapshots with faults of the disk, the folder, a name, or another process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.faults.small_disks import file_limit, file_system
from tf_embed.snapshots import Snapshots, checked_json, files, manifest, writing

DIM, KEYS = 16, 5000
TRACKED = tf_embed.TablePolicy(track_changes=True)


def empty(name: str = "v") -> tf_embed.Variable:
    """A variable without rows."""
    return tf_embed.Variable(dim=DIM, name=name, policy=TRACKED, initializer=0.0)


def filled(count: int = KEYS, value: float = 0.0, name: str = "v") -> tf_embed.Variable:
    """A variable in which each weight of a row is its key plus `value`."""
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

    @contextlib.contextmanager
    def saved_on_a_small_disk(
        self,
    ) -> Iterator[tuple[pathlib.Path, list[tf_embed.Variable], Snapshots]]:
        """A disk of 4 MiB with a snapshot "one" of two tables in its folder "s"."""
        with file_system("size=4m") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system: run as root.")
            tables = [filled(name="a"), filled(name="b")]
            saved = Snapshots(folder / "s", tables)
            saved.save("one")
            yield folder, tables, saved

    @parameterized.product(wait=(True, False), since=(None, "one"), room=(50_000, 550_000))
    def test_a_full_disk_leaves_earlier_snapshots_and_takes_no_room(self, wait, since, room):
        with self.saved_on_a_small_disk() as (folder, tables, saved):
            wanted = [content_of(table) for table in tables]
            for table in tables:
                fill(table, KEYS, 0.5)
            free = os.statvfs(folder).f_bavail
            filler = folder / "filler"  # leaves room for no table, or for 1.5 tables
            filler.write_bytes(bytes(free * os.statvfs(folder).f_frsize - room))
            before = os.statvfs(folder).f_bavail
            errors: list[Exception] = []
            for _ in range(2):
                try:  # assertRaises would drop the objects in the error's frames
                    saved.save("two", since=since, wait=wait).wait()
                except tf.errors.OpError as error:
                    errors.append(error)
                self.assertIn(str(folder / "s" / "two"), str(errors[-1]))
                self.assertEqual([info.name for info in saved.list_snapshots()], ["one"])
                self.assertEqual(os.listdir(folder / "s"), ["one"])
                self.assertEqual(os.statvfs(folder).f_bavail, before)
            self.assertLen(errors, 2)
            self.check_loads(folder / "s", "one", wanted)
            filler.unlink()
            saved.save("two", since=since, wait=wait).wait()
            self.check_loads(folder / "s", "two", [content_of(table) for table in tables])

    def test_a_fold_that_finds_no_room_changes_nothing(self):
        with self.saved_on_a_small_disk() as (folder, tables, saved):
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
                self.skipTest("Only root may mount a file system: run as root.")
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
        aside = f"{manifest.FILE}.{'0a' * 8}.aside"
        (folder / "killed" / manifest.FILE).rename(folder / "killed" / aside)
        (folder / "old" / aside).touch()
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

    @parameterized.parameters(
        # A damaged snapshot, the newest loadable snapshot, and the snapshots that `keep` removes.
        ("a", "e", ["c", "b"]),
        ("e", "d", ["b", "a"]),
        ("d", "c", ["a"]),  # "e" has the changes since "d"
    )
    def test_damaged_snapshots_are_told_and_neither_counted_nor_removed(self, name, newest, left):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        for one, since in (("a", None), ("b", None), ("c", None), ("d", None), ("e", "d")):
            saved.save(one, since=since)
        (folder / name / manifest.FILE).write_text("{}")
        for call, expected in ((saved.latest, newest), (lambda: list(saved.keep(2)), left)):
            with self.assertLogs(level="WARNING") as logs:
                self.assertEqual(call(), expected)
            self.assertIn(f"{folder / name}", logs.output[0])
            self.assertLen(logs.output, 2 if name == "d" else 1)
        self.assertEqual(sorted(os.listdir(folder)), sorted({*"abcde"} - {*left}))
        self.check_loads(folder, newest, [content_of(v)])

    @parameterized.parameters(True, False)
    def test_without_a_snapshot_that_can_be_loaded_the_newest_one_is_an_error(self, is_there):
        folder, v = self.folder(), filled(10)
        saved = Snapshots(folder, v)
        saved.save("a")
        saved.save("b", since="a")
        if is_there:
            (folder / "a" / manifest.FILE).write_text("{}")
        else:
            shutil.rmtree(folder / "a")
        with (
            self.assertLogs(level="WARNING") as logs,
            self.assertRaisesRegex(tf.errors.DataLossError, str(folder)),
        ):
            saved.latest()
        self.assertIn(
            f"'{folder}/b' has changes since '{folder}/a', which can't be read.",
            "".join(logs.output),
        )
        before = os.listdir(folder)
        self.assertEqual(list(saved.keep(1)), [])
        self.assertEqual(os.listdir(folder), before)

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

    def test_another_optimizer_meanwhile_is_an_error_and_no_snapshot(self):
        folder, v = self.folder(), filled(50)
        saved = Snapshots(folder, v)
        saved.save("one")
        go_on = self.stuck_save(saved, "two")
        before = content_of(v)
        optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        optimizer.build(v.trainable_variables)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(v, [1, 2]))
        variables = v.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        go_on.set()
        try:
            saved.wait()
        except tf.errors.FailedPreconditionError:
            self.assertEqual([info.name for info in saved.list_snapshots()], ["one"])
        else:
            self.check_loads(folder, "two", [before])
        saved.save("three")
        self.check_loads(folder, "three", [content_of(v)])

    @parameterized.named_parameters(
        ("clear", lambda v, path: v.clear()),
        ("restore", lambda v, path: tf.train.Checkpoint(v=v).read(path)),
    )
    def test_a_table_is_replaced_when_its_snapshot_is_written(self, replace):
        folder, v = self.folder(), filled(50)
        path = tf.train.Checkpoint(v=v).write(str(self.folder() / "checkpoint"))
        saved = Snapshots(folder, v)
        saved.save("one")
        v.upsert([3, 1000], [[7.0] * DIM] * 2)
        before = content_of(v)
        go_on = self.stuck_save(saved, "two", since="one")
        threading.Timer(0.2, go_on.set).start()
        replace(v, path)
        self.assertTrue(go_on.is_set())
        saved.wait()
        self.check_loads(folder, "two", [before])
        with self.assertRaisesRegex(tf.errors.FailedPreconditionError, "save a whole one"):
            saved.save("three", since="two")
        saved.save("three")
        self.check_loads(folder, "three", [content_of(v)])

    def stuck_save(self, saved: Snapshots, name: str, **options) -> threading.Event:
        """Begins a snapshot. It is written once the event is set."""
        go_on, write = threading.Event(), writing.Writer.write

        def stuck(writer):
            go_on.wait()
            return write(writer)

        with mock.patch.object(writing.Writer, "write", stuck):
            saved.save(name, wait=False, **options)
        return go_on

    def test_two_writers_of_one_manifest_leave_one_of_theirs(self):
        folder = str(self.folder())
        bodies = [{"name": "x" * size} for size in (10, 20_000)]

        def write(body):
            for _ in range(200):
                checked_json.write(folder, manifest.FILE, body)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            writers = [pool.submit(write, body) for body in bodies]
            path = os.path.join(folder, manifest.FILE)
            while not all(writer.done() for writer in writers):
                with (
                    contextlib.suppress(tf.errors.NotFoundError),
                    checked_json.reading(path) as body,
                ):
                    self.assertIn(body["name"], ["x" * 10, "x" * 20_000])
            for writer in writers:
                writer.result()
        self.assertEqual(os.listdir(folder), [manifest.FILE])

    def test_two_processes_that_save_in_one_folder_leave_no_half_snapshot(self):
        folder = self.folder()
        program = f"""
import sys, numpy as np, tensorflow as tf, tf_embed
value, saved = float(sys.argv[1]), 0
policy = tf_embed.TablePolicy(track_changes=True)
tables = [tf_embed.Variable(dim={DIM}, name=n, policy=policy, initializer=0.0) for n in "ab"]
snapshots = tf_embed.Snapshots({str(folder)!r}, tables)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    rows = np.tile(np.arange(300)[:, None] + value, [1, {DIM}]).astype("f")
    for table in tables:
        table.upsert(np.arange(300), rows)
    try:
        snapshots.save(("same", sys.argv[1])[number % 2], wait=number % 3 == 0).wait()
        saved += 1
        if number % 8 == 0:
            snapshots.keep(2)
    except tf.errors.OpError as error:
        assert {str(folder)!r} in str(error), error
print(saved)
"""
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, value],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for value in ("1", "2")
        ]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            said, _ = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0)
            self.assertGreater(int(said), 0)
        v = [empty("a"), empty("b")]
        found = Snapshots(folder, v).list_snapshots()
        self.assertNotEmpty(found)
        for info in found:
            Snapshots(folder, v).load(info.name)
            values = {row[0] - key for table in v for key, row in content_of(table).items()}
            self.assertLen(values, 1, info.name)
            for table in v:
                table.clear()

    def test_a_reader_lists_snapshots_while_others_are_saved_and_removed(self):
        folder, v = self.folder(), filled(20)
        saved, reader = Snapshots(folder, v), Snapshots(folder, [])
        failures, listed, end = [], 0, threading.Event()

        def read() -> None:
            nonlocal listed
            while not end.is_set():
                try:
                    listed += len(reader.list_snapshots())
                    if reader.latest() is None:
                        failures.append("no snapshot is listed")
                except Exception as error:
                    failures.append(error)

        saved.save("first")
        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(60):
                saved.save(f"{number}")
                saved.keep(2)
        finally:
            end.set()
            thread.join()
        self.assertEmpty(failures)
        self.assertGreater(listed, 0)

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
        go_on = self.stuck_save(saved, "one")
        pending = saved._pending
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

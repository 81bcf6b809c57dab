# SPDX-License-Identifier: Apache-2.0
"""`progress=` of saves and loads: the calls, their numbers, and the effect of errors."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_embed
from support.cases.dtype_pairs import as_dict
from tf_embed import one_embedding
from tf_embed.saving import progress

CPU = ["/CPU:0"]
ROWS = 3000
TRACKED = tf_embed.TablePolicy(track_changes=True)


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Limits the length of this process's files, in bytes. Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Calls(list):
    """Records the calls, and raises in one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self._fails_at = fails_at

    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))
        if len(self) - 1 == self._fails_at:
            raise KeyError("of the caller")


class ProgressTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.enter_context(mock.patch.object(progress, "_SECONDS_BETWEEN_CALLS", 0.0001))

    def variable(self, rows: int = ROWS, key_dtype: str = "int64", **options: Any) -> Any:
        options = {"dim": 2, "devices": CPU * 2, "name": "v", **options}
        v = options.pop("kind", tf_embed.Variable)(key_dtype, **options)
        keys: Any = np.arange(rows)
        if key_dtype == "string":
            keys = np.array([f"key {key}" for key in range(rows)], object)
        if rows:
            v.upsert(keys, np.arange(2 * rows, dtype=np.float32).reshape(rows, 2))
        return v

    def storage(self) -> tf_embed.Storage:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return tf_embed.Storage(host_bytes=20_000, path=folder)

    def check(self, calls: Calls, rows: int, total: int | None = None) -> None:
        """Asserts that numbers rise from 0 to all rows.

        Args:
            calls: The calls.
            rows: Both numbers in the last call.
            total: The number of all rows in the other calls.
        """
        self.assertEqual(calls[-1], (rows, rows))
        if rows:
            self.assertEqual(calls[0][0], 0)
        done = [call[0] for call in calls]
        self.assertEqual(done, sorted(done))
        self.assertEqual({call[1] for call in calls[:-1]} - {total or rows}, set())
        self.assertEqual({type(number) for call in calls for number in call}, {int})


class FilesTest(ProgressTestCase):
    @parameterized.named_parameters(
        ("integers", {}),
        ("strings", {"key_dtype": "string"}),
        ("one_shard", {"devices": CPU}),
        ("five_shards", {"devices": CPU * 5}),
        ("no_rows", {"rows": 0}),
        ("partitioner", {"partitioner": lambda keys, shards: tf.cast(keys, tf.int32) % shards}),
        ("eviction", {"policy": tf_embed.TablePolicy(max_rows=5000)}),
    )
    def test_all_rows_are_told_of(self, options):
        v, saved, loaded = self.variable(**options), Calls(), Calls()
        rows = int(v.size())
        v.save_rows(self.folder, buffer_bytes=100, progress=saved)
        self.check(saved, rows)
        w = self.variable(**{**options, "rows": 0})
        w.load_rows(self.folder, progress=loaded)
        self.check(loaded, rows)
        self.assertEqual(as_dict(w), as_dict(v))

    def test_rows_over_a_disk_are_told_of(self):
        v, saved, loaded = self.variable(storage=self.storage()), Calls(), Calls()
        v.save_rows(self.folder, buffer_bytes=100, progress=saved)
        self.check(saved, ROWS)
        w = self.variable(rows=0, storage=self.storage())
        w.load_rows(self.folder, progress=loaded)
        self.check(loaded, ROWS)

    def test_a_save_is_told_of_while_it_runs(self):
        v = self.variable(100_000)
        for _ in range(20):  # in a save, the reporting thread may get no time
            calls = Calls()
            v.save_rows(self.folder, buffer_bytes=1000, progress=calls)
            self.check(calls, 100_000)
            if len(calls) > 3:
                return
        self.fail("no call while rows were written")

    def test_a_load_is_told_of_after_each_block(self):
        v, calls = self.variable(devices=CPU), Calls()
        v.save_rows(self.folder, buffer_bytes=1600)
        with mock.patch.object(progress, "_SECONDS_BETWEEN_CALLS", 0):
            v.load_rows(self.folder, progress=calls)
        self.check(calls, ROWS)
        most = max(np.diff([done for done, _ in calls]))  # rows of 16 bytes, in blocks of 1600
        self.assertLessEqual(most, 100)

    def test_calls_are_not_made_faster_than_the_pause(self):
        v, calls = self.variable(), Calls()
        v.save_rows(self.folder, buffer_bytes=100)
        with mock.patch.object(progress, "_SECONDS_BETWEEN_CALLS", 1000):
            v.load_rows(self.folder, progress=calls)
        self.assertEqual(calls, [(0, ROWS), (ROWS, ROWS)])

    def test_parts_of_processes_tell_of_their_own_rows(self):
        v, parts = self.variable(kind=tf_embed.tfra.Variable), [Calls(), Calls()]
        for rank, calls in enumerate(parts):
            v.save_to_file_system(self.folder, 2, rank, progress=calls)
            self.check(calls, ROWS)
        w, both = self.variable(0, kind=tf_embed.tfra.Variable), Calls()
        w.load_from_file_system(self.folder, load_entire_dir=True, progress=both)
        self.check(both, 2 * ROWS)
        mine = Calls()  # one of three processes reads all files, and keeps its own rows
        w.clear()
        w.load_from_file_system(self.folder, 3, 1, progress=mine)
        self.check(mine, 2 * ROWS)
        self.assertEqual(int(w.size()), ROWS // 3)

    def test_saves_of_a_table_at_once_are_told_apart(self):
        v = self.variable()
        noted = [Calls() for _ in range(6)]

        def save(number: int) -> None:
            folder = os.path.join(self.folder, str(number))
            v.save_rows(folder, progress=noted[number] if number % 3 else None)

        threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in (1, 2, 4, 5):
            self.check(noted[number], ROWS)

    def test_a_call_may_save_the_table_itself(self):
        v, calls = self.variable(100_000), Calls()

        def tell(done: int, total: int) -> None:
            calls(done, total)
            if len(calls) < 4:
                v.save_rows(os.path.join(self.folder, "inner"))

        v.save_rows(os.path.join(self.folder, "outer"), buffer_bytes=100, progress=tell)
        self.assertEqual(calls[-1][0], calls[-1][1])
        w = self.variable(0)
        w.load_rows(os.path.join(self.folder, "outer"))
        self.assertEqual(int(w.size()), 100_000)

    def test_no_thread_is_made_unless_it_is_asked_for(self):
        v = self.variable()
        with mock.patch.object(threading, "Thread", side_effect=AssertionError):
            v.save_rows(self.folder)
            v.save_rows(self.folder, progress=False)
            with self.assertRaises(AssertionError):
                v.save_rows(self.folder, progress=Calls())

    def test_nothing_is_kept_of_the_calls(self):
        v, before = self.variable(), threading.active_count()
        v.save_rows(self.folder, progress=Calls())
        v.load_rows(self.folder, progress=Calls())
        gc.collect()
        self.assertEqual(threading.active_count(), before)
        self.assertEmpty([one for one in gc.get_objects() if isinstance(one, Calls)])


class ErrorsTest(ProgressTestCase):
    @parameterized.parameters(0, 1)
    def test_an_error_of_a_call_is_raised_after_the_save(self, fails_at):
        v, calls = self.variable(), Calls(fails_at)
        self.enter_context(mock.patch.object(progress, "_SECONDS_BETWEEN_CALLS", 1000))
        with self.assertRaisesRegex(KeyError, "of the caller"):
            v.save_rows(self.folder, progress=calls)
        self.assertLen(calls, fails_at + 1)
        w = self.variable(0)
        w.load_rows(self.folder)
        self.assertEqual(as_dict(w), as_dict(v))
        again = Calls()
        v.save_rows(self.folder, progress=again)
        self.check(again, ROWS)

    def test_an_error_of_the_thread_is_raised_after_the_save(self):
        v = self.variable(100_000)
        for number in range(20):
            folder, calls = os.path.join(self.folder, str(number)), Calls(1)
            with self.assertRaisesRegex(KeyError, "of the caller"):
                v.save_rows(folder, buffer_bytes=100, progress=calls)
            w = self.variable(0)
            w.load_rows(folder)
            self.assertEqual(int(w.size()), 100_000)
            self.assertLen(calls, 2)
            if calls[-1][0] < calls[-1][1]:
                return
        self.fail("no call while rows were written")

    @parameterized.parameters(0, 3)
    def test_an_error_of_a_call_is_raised_after_the_load(self, fails_at):
        v = self.variable()
        v.save_rows(self.folder, buffer_bytes=100)
        w, calls = self.variable(0), Calls(fails_at)
        self.enter_context(mock.patch.object(progress, "_SECONDS_BETWEEN_CALLS", 0))
        with self.assertRaisesRegex(KeyError, "of the caller"):
            w.load_rows(self.folder, progress=calls)
        self.assertLen(calls, fails_at + 1)
        self.assertEqual(as_dict(w), as_dict(v))

    def test_a_save_that_fails_makes_no_last_call(self):
        v, before = self.variable(), threading.active_count()
        v.save_rows(self.folder)
        v.upsert([10**6], [[1.0, 2.0]])
        calls = Calls()
        with file_limit(ROWS * 8), self.assertRaises(tf.errors.OpError):
            v.save_rows(self.folder, buffer_bytes=100, progress=calls)
        self.assertEqual(calls[0], (0, ROWS + 1))
        self.assertLess(calls[-1][0], ROWS + 1)
        self.assertEqual(threading.active_count(), before)
        w = self.variable(0)
        w.load_rows(self.folder)
        self.assertEqual(int(w.size()), ROWS)  # the earlier save
        again = Calls()  # counts nothing of the one that failed
        v.save_rows(self.folder, progress=again)
        self.check(again, ROWS + 1)

    def test_the_error_of_a_save_comes_before_that_of_a_call(self):
        v = self.variable()
        with file_limit(ROWS * 8), self.assertRaises(tf.errors.OpError):
            v.save_rows(self.folder, buffer_bytes=100, progress=Calls(0))

    def test_a_load_that_is_refused_makes_no_call(self):
        v, calls = self.variable(), Calls()
        with self.assertRaises(tf.errors.NotFoundError):
            v.load_rows(self.folder, progress=calls)
        self.assertEmpty(calls)


class ArgumentTest(ProgressTestCase):
    @parameterized.parameters("yes", 2, 0.5, ([],), Calls, ((1, 2),), lambda: None, lambda one: one)
    def test_what_is_no_progress_is_refused_by_name(self, wrong):
        v = self.variable(kind=tf_embed.tfra.Variable)
        v.save_rows(self.folder)
        snapshots = tf_embed.Snapshots(os.path.join(self.folder, "snapshots"), v)
        for call in (
            lambda: v.save_rows(self.folder, progress=wrong),
            lambda: v.load_rows(self.folder, progress=wrong),
            lambda: v.load_from_file_system_with_restore_function(self.folder, progress=wrong),
            lambda: snapshots.save("one", progress=wrong),
            lambda: snapshots.load("one", progress=wrong),
        ):
            kinds = "a bool" if wrong == 2 else "None, a bool, or a function of two numbers"
            with self.assertRaisesRegex(
                TypeError, f"`progress` must be {kinds}. Received: progress="
            ):
                call()
        self.assertEmpty(snapshots.list_snapshots())

    def test_calls_in_a_graph_are_refused_by_name(self):
        v = self.variable()

        def in_graph(call: Any, progress: Any) -> None:
            @tf.function(autograph=False)
            def traced() -> None:
                call(self.folder, progress=progress)

            traced()

        for call in (v.save_rows, v.load_rows):
            for tell in (True, Calls()):
                with self.assertRaisesRegex(ValueError, "`progress` must be None in a graph"):
                    in_graph(call, tell)
            in_graph(call, None)
            in_graph(call, False)
        self.assertEqual(int(v.size()), ROWS)

    def test_functions_of_many_kinds_are_called(self):
        v, noted = self.variable(10), []
        for tell in (
            lambda done, total: noted.append(total),
            lambda *numbers: noted.append(numbers[1]),
            lambda done, total, more=1: noted.append(total),
            {}.setdefault,  # a method of C
        ):
            v.save_rows(self.folder, progress=tell)
        self.assertGreaterEqual(noted.count(10), 6)

    def test_true_prints_a_bar_of_rows(self):
        v = self.variable()
        for call in (v.save_rows, v.load_rows):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                call(self.folder, progress=True)
            self.assertIn(f"{ROWS}/{ROWS}", printed.getvalue())
            self.assertIn("/row", printed.getvalue())
            self.assertEndsWith(printed.getvalue(), "\n")

    @parameterized.parameters(None, False, 0, np.False_)
    def test_nothing_is_printed_otherwise(self, quiet):
        v = self.variable()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            v.save_rows(self.folder, progress=quiet)
            v.load_rows(self.folder, progress=quiet)
        self.assertEmpty(printed.getvalue())

    def test_the_first_process_alone_prints(self):
        v = self.variable(kind=tf_embed.tfra.Variable)
        for rank in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                v.save_to_file_system(self.folder, 2, rank, progress=True)
            self.assertEqual(bool(printed.getvalue()), rank == 0)

    def test_a_table_without_rows_has_no_bar(self):
        v = self.variable(0)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            v.save_rows(self.folder, progress=True)
            v.load_rows(self.folder, progress=True)
        self.assertEmpty(printed.getvalue())


class SnapshotsTest(ProgressTestCase):
    @parameterized.product(over_disk=(False, True), policy=(None, TRACKED), wait=(True, False))
    def test_rows_of_all_tables_are_told_of(self, over_disk, policy, wait):
        def tables(rows: int) -> list[Any]:
            made = []
            for number in (1, 2):
                options = {"storage": self.storage()} if over_disk else {}
                name = f"t{number}"
                made.append(self.variable(rows * number, name=name, policy=policy, **options))
            return made

        some, saved, loaded = tables(ROWS), Calls(), Calls()
        snapshots = tf_embed.Snapshots(self.folder, some)
        if not wait and policy is None:
            with self.assertRaisesRegex(ValueError, "`wait`"):
                snapshots.save("one", wait=wait, progress=saved)
            self.assertEmpty(saved)
            return
        snapshots.save("one", wait=wait, progress=saved).wait()
        self.check(saved, 3 * ROWS)
        others = tables(0)
        tf_embed.Snapshots(self.folder, others).load("one", progress=loaded)
        self.check(loaded, 3 * ROWS)
        self.assertEqual([as_dict(v) for v in others], [as_dict(v) for v in some])

    def test_of_changes_the_last_call_has_their_number(self):
        v = self.variable(policy=TRACKED)
        snapshots = tf_embed.Snapshots(self.folder, v)
        snapshots.save("one")
        v.upsert([1, 2, ROWS], [[5.0, 6.0]] * 3)
        v.remove([7])
        calls, loaded = Calls(), Calls()
        self.assertEqual(snapshots.save("two", since="one", progress=calls).wait().rows, 3)
        self.check(calls, 3, total=ROWS)
        before = as_dict(v)
        v.clear()
        snapshots.load("two", progress=loaded)
        self.check(loaded, ROWS + 3)  # includes rows that the newer snapshot replaces
        self.assertEqual(as_dict(v), before)

    def test_an_error_of_a_call_leaves_a_snapshot(self):
        v = self.variable(policy=TRACKED)
        snapshots = tf_embed.Snapshots(self.folder, v)
        with self.assertRaisesRegex(KeyError, "of the caller"):
            snapshots.save("one", progress=Calls(0))
        pending = snapshots.save("two", since="one", wait=False, progress=Calls(0))
        with self.assertRaisesRegex(KeyError, "of the caller"):
            pending.wait()
        self.assertEqual([info.name for info in snapshots.list_snapshots()], ["one", "two"])
        before = as_dict(v)
        v.clear()
        with self.assertRaisesRegex(KeyError, "of the caller"):
            snapshots.load("two", progress=Calls(0))
        self.assertEqual(as_dict(v), before)
        v.upsert([1], [[5.0, 6.0]])
        self.assertEqual(snapshots.save("three", since="two").wait().rows, 1)

    def test_a_snapshot_that_fails_makes_no_last_call(self):
        v, calls = self.variable(policy=TRACKED), Calls()
        snapshots = tf_embed.Snapshots(self.folder, v)
        with file_limit(ROWS * 8), self.assertRaises(tf.errors.OpError):
            snapshots.save("one", progress=calls)
        self.assertLess(calls[-1][0], ROWS)
        self.assertEmpty(snapshots.list_snapshots())
        again = Calls()
        snapshots.save("one", progress=again)
        self.check(again, ROWS)

    def test_a_layer_of_many_tables_tells_of_its_rows(self):
        paths = [tempfile.mkdtemp(dir=self.folder) for _ in range(2)]

        def layer(paths: list[str]) -> Any:
            store = one_embedding.make_device_mem_store_options(paths, 10_000)
            return one_embedding.MultiTableEmbedding(
                "told", 2, "float32", "int64", None, store, devices="/CPU:0"
            )

        saved, loaded, spread = Calls(), Calls(), Calls()
        one = layer(paths)
        for number, table in enumerate(one.row_tables):
            keys = np.arange(number, ROWS, len(one.row_tables))
            table.upsert(keys, np.ones([len(keys), 2], np.float32))
        one.save_snapshot("one", progress=saved)
        self.check(saved, ROWS)
        layer(paths).load_snapshot("one", progress=loaded)
        self.check(loaded, ROWS)
        fewer = layer(paths[:1])
        fewer.load_snapshot("one", progress=spread)
        self.check(spread, ROWS)


if __name__ == "__main__":
    absltest.main()

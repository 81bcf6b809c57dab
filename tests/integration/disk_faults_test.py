# SPDX-License-Identifier: Apache-2.0
"""Tables on disk with faults of the disk, the folder, the budget or the process.

tests/cc/tiers and tests/cc/stores test the answer of a store to each failing call.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.faults.small_disks import file_limit, file_system
from support.oracles.reference import SEED

DIM = 16
ROW_BYTES = 2 * 4 * DIM + 1  # with Adagrad's slots
CACHE_ROWS, KEYS, BATCH = 500, 20_000, 200
LEAST_DISK_BYTES = 4 * 4096  # a header, a block and a footer, plus a third for compaction


class Trained:
    """A variable, its optimizer, and its steps. A step is a function of its number."""

    def __init__(self, storage: tf_embed.Storage | None, shards: int = 1) -> None:
        self.v = tf_embed.Variable(
            dim=DIM,
            name="items",
            initializer=keras.initializers.RandomNormal(seed=SEED),
            storage=storage,
            devices=["/CPU:0"] * shards,
        )
        self.optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
        self.optimizer.build(self.v.trainable_variables)

    def step(self, number: int) -> None:
        keys = np.random.default_rng([SEED, number]).integers(0, KEYS, BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_embed.embedding_lookup(self.v, keys) ** 2)
        variables = self.v.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def content(self) -> list[np.ndarray]:
        """Keys in order, with their rows and slots."""
        keys, rows, slots = (part.numpy() for part in self.v.table.export()[:3])
        order = np.argsort(keys)
        return [keys[order], rows[order], slots[order]]


def filled(storage: tf_embed.Storage, count: int = KEYS, name: str = "v") -> tf_embed.Variable:
    """A variable in which each weight of a row is its key."""
    v = tf_embed.Variable(dim=4, name=name, initializer=-1.0, storage=storage)
    for keys in np.split(np.arange(count), 20):
        v.upsert(keys, np.tile(keys[:, None], [1, 4]).astype("f"))
    return v


class DiskFaultsTest(tf.test.TestCase, parameterized.TestCase):
    def folder(self) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=self.get_temp_dir()))

    def storage(self, path: Any = None, rows: int = CACHE_ROWS, **options: Any) -> Any:
        path = self.folder() if path is None else path
        return tf_embed.Storage(host_bytes=rows * ROW_BYTES, path=path, **options)

    def check_filled(self, v: tf_embed.Variable, count: int = KEYS) -> None:
        keys = np.arange(count)
        self.assertAllEqual(v.lookup(keys), np.tile(keys[:, None], [1, 4]))

    def check_equal(self, one: Trained, other: Trained) -> None:
        for mine, its in zip(one.content(), other.content(), strict=True):
            self.assertAllEqual(mine, its)

    # A disk that is full.

    def train_to_the_end(
        self, on_disk: Trained, make_room: Callable[[Trained], None], message: str
    ) -> None:
        """Trains, and compares with a table in memory. Repeats a failed step once there is room."""
        in_memory = Trained(None)
        failed = False
        for number in range(100):
            try:
                on_disk.step(number)
            except tf.errors.ResourceExhaustedError as error:
                self.assertFalse(failed, error)
                failed = True
                self.assertRegex(str(error), message)
                self.check_equal(on_disk, in_memory)  # the step changed nothing
                make_room(in_memory)
                on_disk.step(number)
            in_memory.step(number)
        self.assertTrue(failed)
        self.assertGreater(on_disk.v.stats()["disk_rows"], 0)
        self.check_equal(on_disk, in_memory)

    def test_training_goes_on_when_a_full_file_system_has_room_again(self):
        with file_system("size=4m") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system: run as root.")
            filler = folder / "filler"
            filler.write_bytes(bytes(3 * 2**20))
            on_disk = Trained(self.storage(folder))
            self.train_to_the_end(
                on_disk,
                lambda in_memory: filler.unlink(),
                f"Can't write [0-9]+ bytes of rows to '{folder}/items-0/rows-[0-9a-f]+.seg'.* has "
                "[0-9]+ bytes of rows: No space left on device. The rows that were to be written "
                "stay in memory. No row of the batch was changed in this shard.",
            )

    def test_training_goes_on_when_files_may_be_long_again(self):
        folder = self.folder()
        on_disk = Trained(self.storage(folder))
        with contextlib.ExitStack() as limit:
            limit.enter_context(file_limit(4096))
            self.train_to_the_end(
                on_disk,
                lambda in_memory: limit.close(),
                f"Can't write [0-9]+ bytes of rows to '{folder}/items-0/rows-.*: File too large",
            )

    def test_a_batch_of_which_a_part_was_written_is_not_called_unchanged(self):
        v = filled(self.storage(rows=100))
        # A batch with so many new keys is written in parts. There is room for the first parts.
        keys = np.arange(KEYS, KEYS + 20_000)
        with file_limit(4096), self.assertRaises(tf.errors.ResourceExhaustedError) as caught:
            v.upsert(keys, np.tile(keys[:, None], [1, 4]).astype("f"))
        self.assertBetween(int(v.size()), KEYS + 1, 2 * KEYS - 1)
        self.assertIn("stay in memory.", str(caught.exception))
        self.assertNotIn("No row of the batch", str(caught.exception))

    def test_training_goes_on_when_rows_make_room_below_a_bound(self):
        folder = self.folder()
        on_disk = Trained(self.storage(folder, disk_bytes=2**21))
        keys = np.arange(0, KEYS, 2)

        def remove(in_memory: Trained) -> None:
            for trained in (on_disk, in_memory):
                trained.v.remove(keys)

        self.train_to_the_end(
            on_disk,
            remove,
            f"The folder '{folder}/items-0' has [0-9]+ bytes of rows and may have 2097152: no room "
            "for 8192 bytes more. Of the bound 262144 bytes are kept free for compaction, and ",
        )
        self.assertLessEqual(on_disk.v.stats()["disk_bytes"], 2**21)

    def test_a_restore_that_finds_no_room_changes_nothing(self):
        folder = self.folder()
        large = Trained(None)
        large.v.upsert(np.arange(KEYS), np.ones([KEYS, DIM], "f"))
        path = tf.train.Checkpoint(v=large.v).write(str(self.folder() / "checkpoint"))
        small = Trained(self.storage(folder, disk_bytes=2**20))
        for number in range(10):
            small.step(number)
        before = small.content()
        with self.assertRaisesRegex(
            tf.errors.ResourceExhaustedError, f"The folder '{folder}/items-0.2' has .* no room for"
        ):
            tf.train.Checkpoint(v=small.v).read(path)
        for mine, its in zip(small.content(), before, strict=True):
            self.assertAllEqual(mine, its)
        self.assertEqual(os.listdir(folder), ["items-0"])

    # Budgets.

    @parameterized.product(rows=(1, 2, BATCH // 4), shards=(1, 2))
    def test_a_cache_smaller_than_a_batch_changes_no_number(self, rows, shards):
        on_disk = Trained(self.storage(rows=rows * shards), shards)
        in_memory = Trained(None)
        for number in range(20):
            on_disk.v.prefetch(np.arange(BATCH))
            for trained in (on_disk, in_memory):
                trained.step(number)
        self.assertLessEqual(on_disk.v.stats()["cache_rows"], rows * shards)
        self.check_equal(on_disk, in_memory)

    def test_a_cache_without_room_for_a_row_is_refused(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "`host_bytes` must have room for a row of table 'v', which takes 17 bytes. .*=16",
        ):
            filled(tf_embed.Storage(host_bytes=16, path=self.folder()))

    def test_a_bound_of_one_block_loses_no_row(self):
        folder = self.folder()
        storage = tf_embed.Storage(host_bytes=2400, path=folder, disk_bytes=LEAST_DISK_BYTES)
        v = tf_embed.Variable(dim=4, name="v", storage=storage)
        few, keys = np.arange(250), np.arange(1000)
        v.upsert(few, np.tile(few[:, None], [1, 4]).astype("f"))
        self.assertGreater(v.stats()["disk_rows"], 0)
        with self.assertRaisesRegex(
            tf.errors.ResourceExhaustedError,
            f"'{folder}/v-0' has [0-9]+ bytes of rows and may have {LEAST_DISK_BYTES}: .* 4096 "
            "bytes are kept free for compaction",
        ):
            v.upsert(keys, np.tile(keys[:, None], [1, 4]).astype("f"))
        taken, rows = (part.numpy() for part in v.export())
        self.assertNotEmpty(taken)
        self.assertAllEqual(rows, np.tile(taken[:, None], [1, 4]))

    @parameterized.parameters((1, 1), (2, 1), (1, LEAST_DISK_BYTES - 1))
    def test_a_bound_below_one_block_is_refused(self, shards, disk_bytes):
        folder = self.folder()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"`disk_bytes` must have room for a file of rows of table 'v' .* {LEAST_DISK_BYTES} "
            f"bytes. Received: disk_bytes={disk_bytes // shards} for each shard",
        ):
            tf_embed.Variable(
                dim=4,
                name="v",
                storage=self.storage(folder, disk_bytes=disk_bytes),
                devices=["/CPU:0"] * shards,
            )
        self.assertEmpty(os.listdir(folder))

    # Folders.

    @parameterized.parameters("", "x", "x/y")
    def test_a_path_that_is_a_file_is_an_error(self, below):
        file = self.folder() / "file"
        file.touch()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            f"`path` must name a folder, and '{file}' is a file. Received: path='{file / below}'",
        ):
            filled(self.storage(file / below))

    def test_a_path_without_a_folder_to_write_to_is_an_error(self):
        with self.assertRaisesRegex(tf.errors.UnavailableError, "folder '/proc/x"):
            filled(self.storage("/proc/x"))

    def test_a_file_with_the_name_of_the_folder_is_an_error(self):
        folder = self.folder()
        (folder / "v-0").touch()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, f"needs a folder '{folder}/v-0', which is a file"
        ):
            filled(self.storage(folder))

    def test_a_read_only_file_system_is_an_error(self):
        with file_system("ro") as folder:
            if folder is None:
                self.skipTest("Only root may mount a file system: run as root.")
            with self.assertRaisesRegex(
                tf.errors.UnavailableError, f"folder '{folder}/v-0': Read-only file system"
            ):
                filled(self.storage(folder))

    def test_a_folder_in_memory_will_do(self):
        if not os.access("/dev/shm", os.W_OK):
            self.skipTest("There is no /dev/shm.")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            v = filled(self.storage(folder))
            self.assertGreater(v.stats()["disk_bytes"], 0)
            self.check_filled(v)
            del v  # before the folder is deleted

    def test_a_relative_path_is_meant_when_the_table_is_made(self):
        folder, before = self.folder(), os.getcwd()
        try:
            os.chdir(folder)
            v = tf_embed.Variable(dim=4, name="v", storage=self.storage("rows/of/tables"))
        finally:
            os.chdir(before)
        self.assertEqual(os.listdir(folder / "rows" / "of" / "tables"), ["v-0"])
        self.assertEqual(v.storage.path, "rows/of/tables")
        for keys in np.split(np.arange(KEYS), 20):
            v.upsert(keys, np.tile(keys[:, None], [1, 4]).astype("f"))
        self.check_filled(v)

    def test_a_folder_that_is_removed_is_an_error_and_loses_no_row(self):
        folder = self.folder()
        v = filled(self.storage(folder))
        shutil.rmtree(folder / "v-0")
        self.check_filled(v)
        more = np.arange(KEYS, 3 * KEYS)
        with self.assertRaisesRegex(
            tf.errors.UnavailableError, f"Can't make '{folder}/v-0/rows-.*No such file"
        ):
            v.upsert(more, np.tile(more[:, None], [1, 4]).astype("f"))
        keys, rows = (part.numpy() for part in v.export())
        self.assertAllEqual(np.intersect1d(keys, np.arange(KEYS)), np.arange(KEYS))
        self.assertAllEqual(rows, np.tile(keys[:, None], [1, 4]))

    def test_a_flipped_bit_is_an_error_and_never_a_row(self):
        folder = self.folder()
        v = filled(self.storage(folder, rows=20))
        file = min((folder / "v-0").glob("rows-*"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        with file.open("r+b") as opened:  # overwrites the file that the table has open
            opened.write(content)
        failed = 0
        for keys in np.split(np.arange(KEYS), 200):
            try:
                self.assertAllEqual(v.lookup(keys), np.tile(keys[:, None], [1, 4]))
            except tf.errors.DataLossError as error:
                failed += 1
                self.assertRegex(
                    str(error),
                    f"'{file}' is damaged: .* Keys of the batch that can't be read: "
                    "[0-9]+ of 100[.]",
                )
        self.assertBetween(failed, 1, 3)  # a block has rows of at most three batches
        saves = self.folder()
        for save in (
            lambda: tf.train.Checkpoint(v=v).write(str(saves / "checkpoint")),
            lambda: v.save_rows(saves / "files"),
        ):
            with self.assertRaisesRegex(tf.errors.DataLossError, f"'{file}' is damaged"):
                save()

    # Several tables and processes in a folder.

    def test_tables_of_one_name_have_folders_of_their_own(self):
        folder = self.folder()
        one, other = (filled(self.storage(folder), count) for count in (KEYS, KEYS // 2))
        self.assertEqual(sorted(os.listdir(folder)), ["v-0", "v-0.2"])
        self.check_filled(one)
        self.check_filled(other, KEYS // 2)
        self.assertEqual(other.size(), KEYS // 2)
        del one, other
        gc.collect()
        self.assertEmpty(os.listdir(folder))

    def test_the_next_process_removes_what_killed_ones_left(self):
        folder, checkpoint = self.folder(), str(self.folder() / "checkpoint")
        program = f"""
import os, signal, sys
import numpy as np, tensorflow as tf
import tf_embed
storage = tf_embed.Storage(host_bytes=24000, path={str(folder)!r})
names, shards, restores = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] == "True"
tables = []
for name in names:
    v = tf_embed.Variable(dim=4, name=name, storage=storage, devices=["/CPU:0"] * shards)
    v.upsert(np.arange(20000), np.ones([20000, 4], "f"))
    tables.append(v)
    if restores:
        tf.train.Checkpoint(v=v).read(tf.train.Checkpoint(v=v).write({checkpoint!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""

        def killed(names: str, shards: int, restores: bool = False) -> list[str]:
            command = [sys.executable, "-c", program, names, str(shards), str(restores)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            return sorted(os.listdir(folder))

        self.assertEqual(killed("v", 4), ["v-0", "v-1", "v-2", "v-3"])
        self.assertEqual(killed("v,w,v", 1), ["v-0", "v-0.2", "w-0"])
        self.assertEqual(killed("v", 1, restores=True), ["v-0.2", "w-0"])
        self.assertEqual(killed("v-0", 2), ["v-0-0", "v-0-1", "v-0.2", "w-0"])
        v = filled(self.storage(folder))
        self.assertEqual(sorted(os.listdir(folder)), ["v-0", "v-0-0", "v-0-1", "w-0"])
        self.check_filled(v)

    def test_another_process_takes_no_folder_in_use_and_leaves_none_at_its_end(self):
        folder = self.folder()
        v = filled(self.storage(folder))
        program = f"""
import os
import numpy as np
import tf_embed
storage = tf_embed.Storage(host_bytes=2400, path={str(folder)!r})
try:
    tf_embed.Variable(dim=4, name="v", storage=storage)
except Exception as error:
    print(type(error).__name__, error)
other = tf_embed.Variable(dim=4, name="other", storage=storage)
other.upsert(np.arange(5000), np.ones([5000, 4], "f"))
print(sorted(os.listdir({str(folder)!r})))
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        refused, names = done.stdout.splitlines()
        self.assertStartsWith(refused, "FailedPreconditionError")
        self.assertIn(f"'{folder}/v-0' is in use", refused)
        self.assertEqual(names, "['other-0', 'v-0']")
        self.assertEqual(os.listdir(folder), ["v-0"])  # `other` lived until the process ended
        self.check_filled(v)

    @pytest.mark.of_cpu("a forked child has no threads for copies to a GPU")
    def test_a_forked_child_is_refused_and_removes_nothing(self):
        folder = self.folder()
        v = filled(self.storage(folder))
        before = sorted(os.listdir(folder / "v-0"))
        errors = self.folder() / "errors"
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            with errors.open("w") as file:
                # A few keys: for many, TensorFlow uses threads, which the child does not have.
                for use in (lambda: v.lookup([1, 2]), lambda: v.upsert([1], [[2.0] * 4])):
                    try:
                        use()
                    except tf.errors.FailedPreconditionError as error:
                        print(error, file=file)
            del v, use
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        for line in errors.read_text().splitlines():
            self.assertRegex(line, f"A child process must not use the folder '{folder}/v-0'")
        self.assertLen(errors.read_text().splitlines(), 2)
        self.assertEqual(sorted(os.listdir(folder / "v-0")), before)
        self.check_filled(v)


if __name__ == "__main__":
    tf.test.main()

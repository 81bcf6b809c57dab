# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables whose counts of waiting keys do not fit in memory twice."""

from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys
import tempfile

import tensorflow as tf

import tf_embed

HEADROOM_BYTES = 24 << 20


def limit(extra: int | None) -> None:
    """Limits the address space to its present size plus `extra` bytes; None lifts the limit."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + (extra or 0)
    resource.setrlimit(resource.RLIMIT_AS, (-1 if extra is None else most, -1))


def main(folder: str) -> None:
    """Prints the errors of saves and folds under a limit. Then saves, folds and loads."""
    policy = tf_embed.TablePolicy(
        track_changes=True,
        admission=tf_embed.BloomAdmission(300, error_rate=1e-6, max_keys=2**20),
    )
    table = tf_embed.Variable(dim=1, name="t", policy=policy)
    table.upsert([1], [[1.0]])
    snapshots = tf_embed.Snapshots(folder, table)
    snapshots.save("first")
    snapshots.save("second", since="first")
    for save in (
        lambda: snapshots.save("third"),
        lambda: snapshots.save("fourth", since="first"),
        lambda: snapshots.fold("second", "fifth"),
    ):
        limit(HEADROOM_BYTES)
        try:
            save()
            error = "none"
        except tf.errors.ResourceExhaustedError as refused:
            error = str(refused).splitlines()[0]
        limit(None)
        print(error)
    snapshots.save("last", since="first")
    snapshots.fold("last", "whole")
    table.clear()
    snapshots.load("whole")
    print([info.name for info in snapshots.list_snapshots()], table.lookup([1]).numpy().tolist())


class SnapshotMemoryTest(tf.test.TestCase):
    def test_a_save_without_memory_is_an_error_and_the_next_one_is_whole(self):
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        run = subprocess.run(
            [sys.executable, __file__, folder], capture_output=True, text=True, check=False
        )
        self.assertEqual(run.returncode, 0, run.stderr[-2000:])
        *errors, last = run.stdout.splitlines()
        self.assertLen(errors, 3)
        for error in errors:
            self.assertRegex(error, "[Nn]o memory")
        self.assertEqual(last, "['first', 'second', 'last', 'whole'] [[1.0]]")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        tf.test.main()

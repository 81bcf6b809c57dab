# SPDX-License-Identifier: Apache-2.0
"""Parameter servers with failures, and rows that must outlive a process."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

import tf_embed
from support.faults import server_mishaps
from support.processes import server_programs
from support.processes.server_cluster import ClusterTestCase, cluster, wait_for

_LOST_SERVER = 75


class ServerMishapsTest(ClusterTestCase):
    def cluster(self) -> Any:
        return cluster(self.folder, server_mishaps.__file__, workers=1, servers=2)

    def wait_for_begun(self) -> None:
        wait_for(self.folder / "begun")
        (self.folder / "begun").unlink()

    def test_a_new_model_has_the_rows_of_the_checkpoint(self) -> None:
        with self.cluster() as made:
            found = self.run_chief(made, "rebuilt", str(self.folder / "checkpoints"))
        self.assertEqual(found["found"], [[4, [2, 2]], [4, [2, 2]], [6, [3, 3]]])

    def test_rows_of_each_model_come_back_to_a_server_that_died_after_training(self) -> None:
        with self.cluster() as made:
            made.start_chief("two_models", str(self.folder), "waits", "run_id=a")
            self.wait_for_begun()
            made.kill("ps", 1)
            self.assertEqual(made.wait("chief", 0), _LOST_SERVER, made.log("chief", 0))
            self.assertIn("ServerLostError: The server ps 1 has died", made.log("chief", 0))
            made.start("ps", 1)
            found = self.run_chief(made, "two_models", str(self.folder), "run_id=a")
        self.assertEqual(found["found"], [[4, 2, 2, 2], [2, 4, 2, 2]])

    def test_servers_keep_rows_however_late_a_new_chief_comes(self) -> None:
        with self.cluster() as made:
            made.start_chief("outlived", str(self.folder), "waits", "run_id=a")
            self.wait_for_begun()
            made.kill("chief", 0)
            time.sleep(10.0)  # over three times as long as TensorFlow keeps other resources
            found = self.run_chief(made, "outlived", str(self.folder), "run_id=a")
        self.assertEqual(found["found"], [-24.0, 7.0])

    def test_calls_after_one_that_raised_train_each_batch_once(self) -> None:
        with self.cluster() as made:
            found = self.run_chief(made, "failed_calls")
        self.assertEqual((found["begin"], found["epoch"], found["steps"]), (5, 60, 80))
        self.assertBetween(found["end"], 26, 30)
        self.assertEqual(found["trained"], [4] * 20)

    def test_a_batch_that_fails_is_trained_once_it_is_right(self) -> None:
        with self.cluster() as made:
            found = self.run_chief(made, "bad_batches")
        self.assertEqual(found["errors"], [True, True])
        self.assertLessEqual(found["steps before"], 13)
        self.assertEqual(found["steps"], 20)
        self.assertBetween(min(found["trained"]), 1, 2)

    def test_an_epoch_is_not_trained_again_if_its_validation_has_failed(self) -> None:
        with self.cluster() as made:
            found = self.run_chief(made, "bad_validation")
        self.assertEqual(found, {"errors": 1, "steps": 6, "trained": [1] * 6})

    def test_a_checkpoint_has_the_rows_that_callbacks_changed(self) -> None:
        folder = self.folder / "checkpoints"
        with self.cluster() as made:
            found = self.run_chief(made, "changed_by_callbacks", str(folder))
        self.assertEqual(found["steps"], 4)
        here = tf_embed.layers.DynamicEmbedding(server_programs.DIM, name="items")
        here.build([None])
        snapshots = tf_embed.Snapshots(folder, here)
        for snapshot, size in zip(snapshots.list_snapshots(), (3, 4), strict=True):
            here.variable.clear()
            snapshots.load(snapshot.name)
            self.assertEqual(int(here.variable.size()), size)


if __name__ == "__main__":
    tf.test.main()

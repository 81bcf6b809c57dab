# SPDX-License-Identifier: Apache-2.0
"""Tables on parameter servers, in real processes: a chief, two workers and two servers."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import keras
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support import ROOT
from support.processes import server_programs
from support.processes.server_cluster import Cluster, ClusterTestCase, cluster, wait_for

_LOST_SERVER = 75


class ServersTest(ClusterTestCase, parameterized.TestCase):
    def cluster(self, **tasks: int) -> Any:
        return cluster(self.folder, server_programs.__file__, **tasks)

    def begun(self, made: Cluster) -> list[Any]:
        """The lines that chiefs have printed at the beginning of training."""
        lines = made.log("chief", 0).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in found if "as_saved" in one]

    @pytest.mark.smoke
    def test_no_update_of_racing_workers_is_lost_also_if_one_dies(self) -> None:
        with self.cluster() as made:
            self.assertEqual(
                self.run_chief(made, "sums", str(self.folder), "60"), {"exact": True, "steps": 60}
            )
            told = self.folder / "begun"
            told.unlink()
            made.start_chief("sums", str(self.folder), "150", "slow")
            wait_for(told)
            made.kill("worker", 1)
            time.sleep(1.0)
            made.start("worker", 1)
            self.assertEqual(made.wait("chief", 0), 0, made.log("chief", 0))
            self.assertEqual(made.result(), {"exact": True, "steps": 150})

    def test_a_worker_may_die_while_its_results_are_fetched(self) -> None:
        with self.cluster() as made:
            made.start_chief("sums", str(self.folder), "150", "large")
            wait_for(self.folder / "begun")
            for _ in range(2):
                made.kill("worker", 1)
                time.sleep(1.0)
                made.start("worker", 1)
                time.sleep(4.0)
            self.assertEqual(made.wait("chief", 0), 0, made.log("chief", 0))
            self.assertEqual(made.result(), {"exact": True, "steps": 150})

    def test_workers_train_batches_of_their_own_at_least_once(self) -> None:
        with self.cluster() as made:
            found = self.run_chief(made, "own_batches", str(self.folder), "50")
            (no_steps, no_dataset, no_batch) = found.pop("refused")
            self.assertStartsWith(no_steps, "ValueError: `steps_per_epoch` must be given if `x` is")
            words = "TypeError: `x(worker, workers)` must give a tf.data.Dataset. Received"
            self.assertStartsWith(no_dataset, words)
            words = "ValueError: `x(worker, workers)` must give each worker a dataset with a batch"
            self.assertStartsWith(no_batch, words)
            trained = found.pop("trained")
            self.assertEqual(found, {"size": 2, "steps": 100, "epochs": 2})
            self.assertEqual(sum(trained), 100)
            self.assertGreater(min(trained[:2]), 0)
            told = self.folder / "begun"
            told.unlink()
            made.start_chief("own_batches", str(self.folder), "75", "slow")
            wait_for(told)
            made.kill("worker", 1)
            time.sleep(1.0)
            made.start("worker", 1)
            self.assertEqual(made.wait("chief", 0), 0, made.log("chief", 0))
            found = made.result()
            self.assertEqual((found["size"], found["steps"]), (2, 150))
            self.assertGreaterEqual(sum(found["trained"]), 150)
            self.assertLess(sum(found["trained"]), 160)

    def test_a_new_chief_goes_on_in_the_middle_of_a_pass(self) -> None:
        with self.cluster() as made:
            # Checkpoints of step 8, in the second pass, and of step 15, the end of an epoch.
            self.assertEqual(made.run_chief("passes", str(self.folder), "8"), -9)
            self.assertEqual(made.run_chief("passes", str(self.folder), "15"), -9)
            found = self.run_chief(made, "passes", str(self.folder))
            self.assertEqual(found["trained"], [3] * 6 + [2])

    def test_trainers_take_turns(self) -> None:
        with self.cluster(workers=1, servers=1) as made:
            found = self.run_chief(made, "turns")
        self.assertEqual(found["trained"], [2, 4, 6, 8])

    def test_a_model_may_be_compiled_again(self) -> None:
        with self.cluster(workers=1, servers=1) as made:
            found = self.run_chief(made, "compiles")
        self.assertEqual(found["trained"], [2, 8, 14])
        self.assertEqual(found["names"], [["loss"], ["error", "loss"], ["error", "loss"]])
        self.assertEqual(found["steps"], 4)

    def test_a_new_chief_of_a_program_that_compiles_again_goes_on(self) -> None:
        with self.cluster(workers=1, servers=1) as made:
            killed = made.run_chief("compiles_again", str(self.folder), "10", "run_id=a")
            self.assertEqual(killed, -9, made.log("chief", 0))
            found = self.run_chief(made, "compiles_again", str(self.folder), "run_id=a")
            self.assertIn("was written with another optimizer than", made.log("chief", 0))
        self.assertEqual(found, {"trained": [[], [], [2]], "steps": 12})

    def test_a_callback_stops_training(self) -> None:
        with self.cluster(workers=1, servers=1) as made:
            found = self.run_chief(made, "stops", str(self.folder))
        # Steps that were under way at the stop are finished and saved.
        within = found["within"]
        self.assertBetween(within["steps"], 3, 9)
        self.assertEqual(within["batches"], within["steps"])
        self.assertEqual((found["end"]["batches"], found["end"]["steps"]), (40, 40))
        for one in found.values():
            state = {"steps": one["steps"], "epoch": 1, "steps_of_epoch": 0, "batch": 0}
            self.assertEqual(one["saved"], state)

    def test_results_equal_those_of_keras(self) -> None:
        with self.cluster(workers=1, servers=1) as made:
            found = self.run_chief(made, "results")
            printed = made.log("chief", 0)
        names = ["a_loss", "a_mae", "b_loss", "loss", "seen"]
        self.assertEqual(found["outputs, verbose"], names)
        self.assertEqual(found["classes, verbose"], ["f1", "loss"])
        # A call on the chief, and two steps in each of three passes.
        self.assertEqual(found["calls"], 7.0)
        for what in ("outputs", "classes"):
            for there, here in (found[what], found[f"{what}, evaluated"]):
                self.assertEqual(set(there), set(here))
                for name, value in here.items():
                    self.assertAllClose(there[name], value, msg=f"{what} {name}")
        self.assertIn("is updated in a condition, a loop or a tf.function of a layer", printed)
        inner = found["inner graphs"]
        self.assertAllClose(inner.pop("loss"), found["loss of Keras"])
        self.assertEqual(inner, {"seen_0": [0.0], "seen_1": [0.0]})
        self.assertEqual(found["inner calls"], [3.0, 3.0])  # a call on the chief, and two steps

    def test_training_goes_on_after_the_chief_and_a_server_were_killed(self) -> None:
        folder = str(self.folder)
        with self.cluster() as made:
            # An epoch has 16 steps. Checkpoints are every 20 steps, and at the end of each epoch.
            self.assertEqual(made.run_chief("train", folder, "4", "45", "run_id=a"), -9)
            found = self.run_chief(made, "train", folder, "4", "run_id=a")
            self.assertEqual(found["steps"], 64)
            first, second = self.begun(made)
            self.assertEqual((first["steps"], first["as_saved"]), (0, [True, True]))
            self.assertEqual(second["steps"], 40)
            self.assertEqual(second["as_saved"], [False, False])  # the servers have kept newer rows
            self.assertGreater(second["saved_slots"], 0.0)
            self.assertGreater(second["slots"], second["saved_slots"])  # and newer slots

            made.start_chief("train", folder, "40", "wait", "run_id=a")
            wait_for(self.folder / "begun")
            time.sleep(0.5)
            made.kill("ps", 1)
            self.assertEqual(made.wait("chief", 0), _LOST_SERVER, made.log("chief", 0))
            self.assertIn(
                "ServerLostError: The server ps 1 has died, and its rows with it",
                made.log("chief", 0),
            )
            made.start("ps", 1)
            found = self.run_chief(made, "train", folder, "8", "run_id=a")
            self.assertEqual(self.begun(made)[-1]["as_saved"][1], True)
            self.assertEqual(self.begun(made)[-1]["sizes"], second["sizes"])
            self.assertGreater(found["evaluated"]["auc"], 0.74)

            # Another run finds no rows of this run on the servers, and restores a checkpoint.
            self.run_chief(made, "train", folder, "9", "run_id=b")
            last = self.begun(made)[-1]
            self.assertEqual(last["as_saved"], [True, True])
            self.assertAllClose(last["slots"], last["saved_slots"])
        loaded = tf_embed.layers.DynamicEmbedding(server_programs.DIM, name="items")
        loaded.build([None])
        snapshots = tf_embed.Snapshots(self.folder / "checkpoints", loaded)
        snapshots.load(snapshots.latest())
        self.assertEqual(int(loaded.variable.size()), 60)

    def test_the_documented_program_trains_a_model_that_one_process_loads(self) -> None:
        text = (ROOT / "docs" / "guides" / "servers.md").read_text()
        (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (self.folder / "train.py").write_text(program)
        with cluster(self.folder, str(self.folder / "train.py")) as made:
            self.assertEqual(made.run_chief(), 0, made.log("chief", 0))
            self.assertRegex(made.log("chief", 0), r"Epoch 2/2\n.*val_auc")
        model = keras.saving.load_model(self.folder / "model.keras")
        layer = next(
            one for one in model.layers if isinstance(one, tf_embed.layers.DynamicEmbedding)
        )
        self.assertEqual(int(layer.variable.size()), 2 * 4096)

    def test_processes_without_the_library_are_named(self) -> None:
        program = self.folder / "plain.py"
        program.write_text(
            "import os, sys\n"
            "import tensorflow as tf\n"
            "r = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
            "if r.task_type == 'ps':\n"
            "    tf.distribute.Server(r.cluster_spec(), 'ps', r.task_id).join()\n"
            "import tf_embed\n"
            "tf_embed.distributed.run_with_servers(lambda strategy: None)\n"
        )
        with cluster(self.folder, str(program), workers=1, servers=1) as made:
            self.assertEqual(made.run_chief(), 1)
            self.assertIn("The process ps 0 has not loaded tf_embed", made.log("chief", 0))


if __name__ == "__main__":
    tf.test.main()

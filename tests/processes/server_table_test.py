# SPDX-License-Identifier: Apache-2.0
"""Verbs of a table on parameter servers, in real processes, against a table in one process."""

from __future__ import annotations

import pickle
import tempfile

import tensorflow as tf

from support.oracles.verb_results import VerbsTestCase
from support.processes import server_tables, table_verbs
from support.processes.server_cluster import ClusterTestCase, cluster


class ServerTableTest(ClusterTestCase, VerbsTestCase):
    def test_every_verb_does_what_it_does_on_one_table(self) -> None:
        with cluster(self.folder, server_tables.__file__, workers=1) as made:
            self.run_chief(made, "tables", str(self.folder))
        results = pickle.loads((self.folder / "results").read_bytes())
        self.assertEqual(results.keys(), table_verbs.KINDS.keys())
        for name, found in results.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.assert_results([found], table_verbs.oracle(name, folder), name)

    def test_bounds_saves_and_refusals(self) -> None:
        with cluster(self.folder, server_tables.__file__) as made:
            found = self.run_chief(made, "bounded")
            saves = self.run_chief(made, "saves", str(self.folder))
            refused = self.run_chief(made, "refusals")
        self.assertIn("/job:ps/replica:0/task:1", found.pop("device"))
        self.assertEqual(found.pop("stats"), 400)
        self.assertEqual(found.pop("bound"), [700, True])
        self.assertEqual(found.pop("trigger"), [0, 9])
        self.assertEqual(found.pop("restrict"), [591, 100])
        self.assertEqual(found, {"clear": 0})
        self.assertLen(saves, 9)
        self.assertEqual([what for what, is_same in saves.items() if not is_same], [])
        expected = {
            "local": ("is made in the scope of a ParameterServerStrategy, so its", "local"),
            "updates": ("which call no `apply_update`", "NotedUpdates"),
            "strings": ("which is on parameter servers, can't have", "value_dtype=string"),
            "outside": (
                "on parameter servers, where tables are trained by",
                "Nadam, whose rule runs outside",
            ),
            "average": ("gradient_accumulation_steps=2",),
            "bags": ("table-batched", "can't have tables on parameter servers"),
            "many tables": ("The layer of many tables 'emb' can't have",),
            "rule": ("an optimizer whose rule runs outside of the table",),
            "slots": ("does not work with slots that are written from outside",),
            "copy": ("can't be copied: it is on 2 servers",),
            "proc_size": ("`proc_size` must be 2 or left out, because", "is on 2 servers"),
            "run_id": ("`run_id` must be given before the strategy has its first",),
            "not compiled": ("`model` must be compiled. Received",),
            "save_every": ("is for a trainer with a `checkpoint_dir`",),
            "no batch": ("`x` must have a batch. Received: a dataset",),
            "no batch of a worker": ("must give each worker a dataset", "of 2 workers"),
            "batches of the chief": ("`x(worker, workers)` must make its datasets itself",),
            "bound": ("max_rows=1",),
            "follower": ("`model`", "'there'", "tables of this process"),
            "snapshots": (
                "`tables` must all have their rows in the same processes",
                "'there', which is on 2 servers, and 'here', which is in this process",
            ),
            "saved_model": ("SavedModel", ".keras"),
            "static export": ("static export", ".keras"),
        }
        self.assertEqual(set(refused), set(expected))
        for what, words in expected.items():
            for word in words:
                self.assertIn(word, refused[what])


if __name__ == "__main__":
    tf.test.main()
